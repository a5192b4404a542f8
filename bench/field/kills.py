"""What each contender guarantees when its worker is killed: requests are counted that took effect twice, or not at all.

A slot is a worker and a client. The client sends a request. The worker is killed (SIGKILL) at a place or at a random
moment. Another worker takes its place, and the client asks it for the same request until there is an answer. At the
end, the ledger tells how often each request took effect.
"""

import collections
import random
import threading
import time

import psycopg

from contenders import DEFAULT, VARIANTS
from work import COMMIT, EFFECT, new_request
from worker import start

RANDOM = "random"
# In each four kills: one at each of the places, two at random moments.
KINDS = [EFFECT, RANDOM, COMMIT, RANDOM]
SLOTS = 16

# The shortest lease that leaves a worker time enough for its work, so that the retries do not wait long.
LEASE_S, WAIT_S = 1.0, 0.2
# A request that has no answer after this time is stuck. Long, so that a busy machine looks like nothing else.
BOUND_S = 60
RETRY_S = 0.05


class Tally:
    """What is to be done, and what happened."""

    def __init__(self, kills):
        self.lock = threading.Lock()
        self.left = [KINDS[number % len(KINDS)] for number in range(kills)]
        self.kind = {}
        # With the last thing that was said of them.
        self.stuck = {}
        self.waits = []
        self.errors = collections.Counter()
        self.failure = None

    def next(self):
        with self.lock:
            return self.left.pop() if self.left and self.failure is None else None


class Slot(threading.Thread):
    def __init__(self, servers, variant, tally, number):
        super().__init__(name=f"{variant.id}-{number}")
        self.servers, self.variant, self.tally = servers, variant, tally
        # Half of the random kills come before the answer. So they fall upon the whole time of a request, evenly.
        self.delay_s = 0.005
        self.place = servers.place(variant, f"slot-{number}", LEASE_S, WAIT_S)
        self.worker = self.spare = None

    def run(self):
        try:
            self.worker = self.new_worker()
            with psycopg.connect(self.servers.postgres.uri, autocommit=True) as conn:
                while kind := self.tally.next():
                    self.kill_one(kind, conn)
        except Exception as error:
            self.tally.failure = error

    def end(self):
        for worker in (self.worker, self.spare):
            if worker:
                worker.kill()

    def new_worker(self):
        return start(self.variant.id, self.place)

    def replace_worker(self):
        """By one that was there already, unless it is its start that recovers what the killed one left."""
        self.worker.kill()
        self.worker, self.spare = self.spare or self.new_worker(), None

    def kill_one(self, kind, conn):
        if not self.variant.contender.recovers_at_start:
            self.spare = self.new_worker()
        request = new_request()
        while not self.was_killed(kind, request, conn):
            self.tally.kind[request["key"]] = "answered"
            request = new_request()
        killed_at = time.monotonic()
        self.tally.kind[request["key"]] = kind
        self.replace_worker()
        if last := self.unanswered(request, killed_at + BOUND_S):
            self.tally.stuck[request["key"]] = last
        else:
            self.tally.waits.append(time.monotonic() - killed_at)

    def was_killed(self, kind, request, conn):
        """Sends a request for the first time. False: it was answered before it could be killed."""
        if kind == RANDOM:
            self.worker.send(request, None)
            message = self.worker.receive(self.moment())
            answered = message is not None and message[0] == "answer"
            self.delay_s *= 0.9 if answered else 1.1
            return not answered
        if kind == EFFECT and self.variant.contender.in_server:
            conn.execute("INSERT INTO to_stop VALUES (%s)", (request["key"],))
        self.worker.send(request, kind)
        message = self.worker.receive(BOUND_S)
        # Where the server is held there, it is the notice that stops the worker.
        if message != ("stopped",):
            raise RuntimeError(f"{self.variant.id} did not stop at {kind}: {message}")
        conn.execute("DELETE FROM to_stop WHERE key = %s", (request["key"],))
        return True

    def moment(self):
        return random.uniform(0, 2 * self.delay_s)

    def unanswered(self, request, until):
        """The client asks until there is an answer. If there is none within the bound: what was said last."""
        message = None
        while time.monotonic() < until:
            self.worker.send(request, None)
            message = self.worker.receive(BOUND_S)
            if message is None:
                # It still waits. Another one has not been asked.
                self.replace_worker()
                return "no answer at all"
            if message[0] == "answer":
                return None
            if message[0] == "error":
                with self.tally.lock:
                    self.tally.errors[message[1].splitlines()[0][:200]] += 1
            time.sleep(RETRY_S)
        return message[0]


def of(variants):
    """Those that are killed. How Redis keeps what it was told makes no difference: it is not Redis that is killed."""
    return [variant for variant in variants if VARIANTS[variant].redis != DEFAULT]


def measure(servers, variants, kills, known, say):
    """What the kills have left, by variant. Those that are known are left out."""
    servers.make_database("schema.sql", "stops.sql")
    for variant in variants:
        if variant in known:
            continue
        say(f"{variant}: {kills} kills")
        result = kill(servers, VARIANTS[variant], kills)
        say(f"{variant}: {summary(result)}")
        yield variant, result


def kill(servers, variant, kills):
    began = time.monotonic()
    tally = Tally(kills)
    slots = [Slot(servers, variant, tally, number) for number in range(SLOTS)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join()
    # All stay until the last slot has its answers: what a killed worker left may have been taken over by any of them.
    for slot in slots:
        slot.end()
    if tally.failure:
        raise tally.failure
    # What the server still does for a client that is no more.
    time.sleep(1)
    return {**count(servers, tally), "seconds": time.monotonic() - began}


def count(servers, tally):
    keys = list(tally.kind)
    with psycopg.connect(servers.postgres.uri) as conn:
        lines = dict(
            conn.execute("SELECT request_key, count(*) FROM ledger WHERE request_key = ANY (%s) GROUP BY 1", (keys,))
        )
    result = {kind: {"kills": 0, "doubled": 0, "lost": 0, "stuck": 0} for kind in (EFFECT, COMMIT, RANDOM, "answered")}
    for key, kind in tally.kind.items():
        of_kind = result[kind]
        of_kind["kills"] += kind != "answered"
        of_kind["doubled"] += lines.get(key, 0) > 1
        if key in tally.stuck:
            of_kind["stuck"] += 1
        else:
            of_kind["lost"] += key not in lines
    return {
        "kinds": result,
        "waits_s": sorted(tally.waits),
        "errors": dict(tally.errors),
        "stuck": list(tally.stuck.values()),
        "requests": len(keys),
    }


def total(result, what):
    """Of all kinds of kills."""
    return sum(kind[what] for kind in result["kinds"].values())


def check(results):
    """Prints whether each did what its design says. False: one did not."""
    checks = []
    for variant, result in results.items():
        if VARIANTS[variant].contender.one_transaction:
            good = not any(total(result, what) for what in ("doubled", "lost", "stuck"))
        else:
            # If these were not doubled, then nobody was killed there.
            good = result["kinds"][COMMIT]["doubled"] == result["kinds"][COMMIT]["kills"] > 0
        print(f"{'ok' if good else 'not ok'} {variant}: {summary(result)}")
        checks.append(good)
    return all(checks)


def summary(result):
    totals = [f"{total(result, what)} {what}" for what in ("kills", "doubled", "lost", "stuck")]
    said = [f"{number} times {error!r}" for error, number in result["errors"].items()] + result["stuck"]
    return "; ".join([", ".join(totals), f"{result['requests']} requests, {result['seconds']:.0f} s", *said])
