"""Kills whatever serves payments, at every point, and then counts: keys = effects = distinct answers.

    chaos.py --data DIR --bin DIR --uri URI [--keys N] [--kills N] [--seed N] [--log FILE] -- COMMAND…

The server with its data in --data is killed and started by the programs in --bin; --uri is a superuser's, over a Unix
socket. COMMAND starts the application: in it {port} and {uri} stand for where it listens (127.0.0.1) and what it
connects to; {tcp} is the same server for drivers that know no Unix sockets. Two of it run. The application protects
POST /pay with the session `chaos`: it inserts the body's "key" into chaos_effect (key), and answers 2xx with {"n": n},
the number that the row got. It may answer 409, and 5xx where something broke.

Ends with 0 and one line if each key has one effect, and every answer to it was the number of that effect."""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "roundtrips"))

import protocol  # noqa: E402
import psycopg  # noqa: E402
from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: E402

ROLE = "chaos_app"
WORKERS = 2
THREADS = 8
KINDS = {
    "backend": 4,  # ended while it works
    "worker": 3,  # kill -9 of an application
    "server": 1,  # all backends at once; it recovers from its log
    "cut before COMMIT": 3,  # the server never sees it, and of one pipeline it executes what comes before
    "cut after COMMIT": 4,  # it is done, and the answer is lost
    "cut before begin": 1,
    "cut after begin": 2,  # the server has executed it, and the client does not learn of it
    "worker before COMMIT": 2,
    "worker after COMMIT": 3,
    "backend at COMMIT": 2,
}
# Where a trap can be: in a statement of its own, or in one that the driver folds with others.
STATEMENTS = {
    "COMMIT": re.compile(r"\bCOMMIT\b", re.IGNORECASE),
    "begin": re.compile(r"\bidem_begin\b", re.IGNORECASE),
}


def place_of(kind):
    """The statement at which this kind of kill happens, if it happens at one."""
    return kind.split(" ")[2] if " " in kind else ""


class Trap:
    """What is done at the next COMMIT, or at the next begin of a request, that any application sends."""

    def __init__(self):
        self.lock, self.at = threading.Lock(), None
        # Which of STATEMENTS the application has sent so far. One that is unprotected sends no begin.
        self.seen = set()

    def met(self, statement):
        """What is armed for this statement, which an application sends now. It is armed no more."""
        names = {name for name, pattern in STATEMENTS.items() if pattern.search(statement)}
        with self.lock:
            self.seen |= names
            if not self.at or self.at[0] not in names:
                return None
            at, self.at = self.at, None
            return at

    def disarm(self):
        """What was still armed."""
        with self.lock:
            at, self.at = self.at, None
            return at

    def arm(self, where, when, action):
        """`before` or `after` the server has done it: action(worker), and the connection is cut."""
        with self.lock:
            self.at = (where, when, action)


class Proxy:
    """Between an application and the server."""

    def __init__(self, there, worker, trap):
        self.there, self.worker, self.trap, self.folder = there, worker, trap, tempfile.TemporaryDirectory()
        listener, tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
        listener.bind(f"{self.folder.name}/.s.PGSQL.5432")
        os.chmod(self.folder.name, 0o755)
        listener.listen(100)
        self.port = tcp.getsockname()[1]
        for each in (listener, tcp):
            threading.Thread(target=self.accept, args=[each], daemon=True).start()

    def accept(self, listener):
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.there)
            except OSError:
                client.close()
                continue
            line = Line(self, client, server)
            threading.Thread(target=line.to_server, daemon=True).start()
            threading.Thread(target=line.to_client, daemon=True).start()


class Line:
    """One connection."""

    def __init__(self, proxy, client, server):
        self.proxy, self.client, self.server = proxy, client, server
        self.frontend, self.backend, self.statements = protocol.Frontend(), protocol.Backend(), protocol.Statements()
        # How many ReadyForQuery the server owes, the first one for the startup; and what is done when it has sent them.
        self.owed, self.after = 1, None

    def close(self):
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def to_server(self):
        with contextlib.suppress(OSError):
            while data := self.client.recv(1 << 16):
                for kind, body, message in self.frontend.feed(data):
                    if kind in (protocol.SSL_REQUEST, protocol.GSSENC_REQUEST):
                        self.client.sendall(b"N")  # encrypted statements would not be found
                        continue
                    statement = self.statements.text(kind, body)
                    at = self.proxy.trap.met(statement) if statement is not None else None
                    if at and at[1] == "before":
                        at[2](self.proxy.worker)
                        return self.close()
                    # Before it is forwarded, or the answer might be there first.
                    self.after = at[2] if at else self.after
                    self.owed += kind in protocol.READY_FOLLOWS
                    self.server.sendall(message)
        self.close()

    def to_client(self):
        with contextlib.suppress(OSError):
            while data := self.server.recv(1 << 16):
                self.owed -= sum(kind == b"Z" for kind, _ in self.backend.feed(data))
                if not self.after:
                    self.client.sendall(data)
                elif self.owed <= 0:
                    self.after(self.proxy.worker)
                    break
        self.close()


class Worker:
    """One process of the application, behind a proxy of its own. It is started again whenever it is gone."""

    def __init__(self, command, uri, log, trap):
        self.log = log
        parts = conninfo_to_dict(uri)
        self.proxy = Proxy(f"{parts['host']}/.s.PGSQL.{parts.get('port', '5432')}", self, trap)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        mine = f"postgresql:///{parts['dbname']}?host={self.proxy.folder.name}&port=5432&user={ROLE}"
        tcp = f"postgresql://127.0.0.1:{self.proxy.port}/{parts['dbname']}?user={ROLE}"
        self.command = [
            part.replace("{port}", str(self.port)).replace("{uri}", mine).replace("{tcp}", tcp) for part in command
        ]
        self.ending = False
        self.start()
        threading.Thread(target=self.watch, daemon=True).start()

    def start(self):
        self.process = subprocess.Popen(self.command, start_new_session=True, stdout=self.log, stderr=self.log)

    def watch(self):
        while not self.ending:
            self.process.wait()
            if not self.ending:
                self.start()
                time.sleep(0.2)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        self.ending = True
        self.kill()
        self.process.wait()


class Chaos:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.done, self.tried, self.kills = 0, 0, collections.Counter()
        self.changed, self.answers = threading.Condition(), collections.defaultdict(set)
        self.codes, self.over = collections.Counter(), False
        self.todo = [f"{time.time_ns():x}-{n}" for n in range(options.keys)]  # of this run only
        self.trap = Trap()
        self.workers = [Worker(options.command, options.uri, options.log, self.trap) for _ in range(WORKERS)]

    def pay(self, key):
        """Asks until there is an answer, as a client does: the same key, the same body."""
        last = time.monotonic() + 120
        while time.monotonic() < last:
            status, body = self.ask(key)
            with self.changed:
                self.codes[status] += 1
            if 200 <= status < 300:
                with self.changed:
                    self.answers[key].add(body["n"])
                return
            if status and status not in (409, 500, 503):
                raise SystemExit(f"{key}: {status} {body!r}")
            time.sleep(random.uniform(0.01, 0.1))
        raise SystemExit(f"{key}: no answer in two minutes")

    def ask(self, key):
        conn = http.client.HTTPConnection("127.0.0.1", random.choice(self.workers).port, timeout=20)
        try:
            body = json.dumps({"key": key})
            conn.request("POST", "/pay", body, {"Idempotency-Key": f'"{key}"', "Content-Type": "application/json"})
            response = conn.getresponse()
            body = response.read()
            return response.status, json.loads(body) if response.status < 300 else body
        except (OSError, ValueError, http.client.HTTPException):
            return 0, b""  # none, or a part of it
        finally:
            conn.close()

    def client(self):
        while True:
            with self.changed:
                if not self.todo:
                    return
                key = self.todo.pop()
            # Some are sent twice at once, and some again when they are done.
            twin = threading.Thread(target=self.pay, args=[key]) if random.random() < 0.2 else None
            if twin:
                twin.start()
            self.pay(key)
            if twin:
                twin.join()
            elif random.random() < 0.2:
                self.pay(key)
            with self.changed:
                self.done += 1
                self.changed.notify_all()
                # The kills keep pace, or the last ones would meet nobody.
                self.changed.wait_for(
                    lambda: self.done - self.tried * self.options.keys / max(self.options.kills, 1) < 3 * THREADS
                )

    def killer(self):
        """As many kills as are due for what is done."""
        each = self.options.keys / max(self.options.kills, 1)
        for number in range(self.options.kills):
            with self.changed:
                self.changed.wait_for(
                    lambda n=number: self.over or self.done >= min(n * each, self.options.keys - THREADS)
                )
                if self.over:
                    return
            kinds = [kind for kind in KINDS if place_of(kind) in ("", *self.trap.seen)]
            kind = self.random.choices(kinds, [KINDS[kind] for kind in kinds])[0]
            hit = False
            # On a busy machine nobody may have been at work. Then the clients go on before the next try.
            while not hit and not self.over:
                hit = self.kill(kind)
                with self.changed:
                    self.tried += 1
                    self.kills[kind] += hit
                    self.changed.notify_all()

    def kill(self, kind):
        """Whether it has hit something."""
        what, when = (*kind.split(" "), "")[:2]
        if kind == "server":
            return self.restart()
        if kind == "worker":
            self.random.choice(self.workers).kill()
            return True
        if kind != "backend":
            actions = {"cut": lambda _: None, "worker": Worker.kill, "backend": self.end_backend}
            self.trap.arm(place_of(kind), "before" if when == "at" else when, actions[what])
        last = time.monotonic() + 15  # a Java machine takes a while to start, and both applications may be gone
        while time.monotonic() < last and not self.over:
            if self.end_backend() if kind == "backend" else self.trap.at is None:
                return True
            time.sleep(0.01)
        return self.trap.disarm() is None and kind != "backend"

    def end_backend(self, _=None):
        ask = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = %s AND xact_start IS NOT NULL ORDER BY random() LIMIT 1"
        )
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.options.uri, autocommit=True) as conn:
            return conn.execute(ask, (ROLE,)).rowcount > 0
        return False

    def restart(self):
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        control = [*user, f"{self.options.bin}/pg_ctl", "-D", self.options.data, "-s", "-w"]
        log = os.path.join(os.path.dirname(self.options.data.rstrip("/")), "log")
        subprocess.run([*control, "-m", "immediate", "stop"], check=True)
        subprocess.run([*control, "-l", log, "start"], check=True, stdout=subprocess.DEVNULL)
        return True

    def run(self):
        clients = [threading.Thread(target=self.client) for _ in range(THREADS)]
        killer = threading.Thread(target=self.killer)
        began = time.monotonic()
        for thread in [*clients, killer]:
            thread.start()
        for thread in clients:
            thread.join()
        with self.changed:
            self.over = True
            self.changed.notify_all()
        killer.join()
        for worker in self.workers:
            worker.end()
        return self.judge(time.monotonic() - began)

    def judge(self, seconds):
        effects = collections.defaultdict(list)
        with psycopg.connect(self.options.uri) as conn:
            for key, n in conn.execute("SELECT key, n FROM chaos_effect"):
                effects[key].append(n)
        keys = self.options.keys
        doubled = sum(len(rows) > 1 for rows in effects.values())
        lost = keys - len(effects)
        contradicting = sum(self.answers[key] != set(rows) for key, rows in effects.items())
        distinct = len({n for answers in self.answers.values() for n in answers})
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        good = (
            not (doubled or lost or contradicting)
            and distinct == keys
            and sum(self.kills.values()) >= self.options.kills * 0.8
        )
        print(
            f"{'ok' if good else 'not ok'} chaos: {keys} keys, {sum(map(len, effects.values()))} effects,"
            f" {distinct} distinct answers; {doubled} doubled, {lost} lost, {contradicting} contradicting;"
            f" kills: {kills}; answers: {dict(self.codes)}; {seconds:.0f} s",
            flush=True,
        )
        return 0 if good else 1


def prepare(uri):
    with psycopg.connect(uri, autocommit=True) as conn:
        conn.execute("SET client_min_messages = warning")
        if not conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).rowcount:
            conn.execute(f"CREATE ROLE {ROLE} LOGIN")
        # The edition for managed services is there already, with its functions on the path.
        if not conn.execute("SELECT to_regclass('idempotence.door') IS NOT NULL").fetchone()[0]:
            conn.execute("CREATE EXTENSION IF NOT EXISTS idempotence")
        conn.execute(f"SELECT idem_grant('{ROLE}')")
        conn.execute("DROP TABLE IF EXISTS chaos_effect")
        # Without a unique constraint: a second effect is to show up here, not to be prevented.
        conn.execute("CREATE TABLE chaos_effect (n bigserial, key text NOT NULL)")
        conn.execute(
            f"GRANT SELECT, INSERT ON chaos_effect TO {ROLE}; GRANT USAGE ON SEQUENCE chaos_effect_n_seq TO {ROLE}"
        )
        with psycopg.connect(make_conninfo(uri, user=ROLE), autocommit=True) as app:
            app.execute("SET client_min_messages = warning")
            app.execute("SELECT idem_create_session('chaos', ttl => '1 day')")


def main():
    parser = argparse.ArgumentParser()
    for name in ("data", "bin", "uri"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--log", type=argparse.FileType("w"), default=os.devnull, help="what the application says")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    prepare(options.uri)
    sys.exit(Chaos(options).run())


if __name__ == "__main__":
    main()
