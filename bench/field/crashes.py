"""What each contender guarantees when the server that keeps its records crashes: requests that were answered before are
asked for again afterwards, and those are counted that take effect a second time."""

import threading
import time

import psycopg

from contenders import VARIANTS
from kills import BOUND_S, LEASE_S, RETRY_S, WAIT_S
from work import new_request
from worker import start

WORKERS = 4


def measure(servers, variants, times, number, say):
    """How many answered requests took effect once more after a crash, by variant."""
    servers.make_database("schema.sql")
    results = {}
    for variant in variants:
        if VARIANTS[variant].contender.kept_in is None:
            continue
        asked = []
        for _ in range(times):
            some = [new_request() for _ in range(number)]
            ask_all(servers, VARIANTS[variant], some)
            servers.keeper(VARIANTS[variant]).crash()
            ask_all(servers, VARIANTS[variant], some)
            asked += some
        keys = [request["key"] for request in asked]
        with psycopg.connect(servers.postgres.uri) as conn:
            doubled, kept = conn.execute(
                "SELECT count(*) FILTER (WHERE lines > 1), count(*) FROM (SELECT count(*) AS lines FROM ledger"
                " WHERE request_key = ANY (%s) GROUP BY request_key) AS key",
                (keys,),
            ).fetchone()
        results[variant] = {"crashes": times, "requests": len(keys), "doubled": doubled, "lost": len(keys) - kept}
        say(f"{variant}: {times} crashes: {doubled} of {len(keys)} requests doubled, {len(keys) - kept} lost")
    return results


def ask_all(servers, variant, requests):
    """A few workers answer these."""
    failures = []

    def ask(number):
        worker = start(variant.id, servers.place(variant, f"worker-{number}", LEASE_S, WAIT_S))
        try:
            for request in requests[number::WORKERS]:
                until = time.monotonic() + BOUND_S
                worker.send(request, None)
                while (message := worker.receive(BOUND_S)) is None or message[0] != "answer":
                    if time.monotonic() > until:
                        raise RuntimeError(f"{variant.id} has no answer: {message}")
                    time.sleep(RETRY_S)
                    worker.send(request, None)
        except Exception as error:
            failures.append(error)
        finally:
            worker.kill()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
