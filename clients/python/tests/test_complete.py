"""The completer: abandoned requests complete exactly once, however often completers are killed."""

import asyncio
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import uuid

import drivers
import psycopg
import pytest
import servers

import idempotence
from idempotence._await import finish, settle

HERE = pathlib.Path(__file__).parent
KILLS = 200 if os.environ.get("IDEM_LONG") else 8


@pytest.fixture
def session():
    name = f"complete-{uuid.uuid4().hex[:8]}"
    servers.prepare(
        [
            f"SELECT idem_create_session('{name}')",
            "CREATE TABLE IF NOT EXISTS client_charge (key text PRIMARY KEY, asked int NOT NULL DEFAULT 1)",
            "TRUNCATE client_charge",
        ]
    )
    return name


def abandon(session, keys, lease="10 ms"):
    with psycopg.connect(servers.uri(), autocommit=True) as conn:
        for key in keys:
            conn.execute("SELECT idem_begin(%s, %s::text, lease => %s)", (session, key, lease))


def suspend(session, key, point, state):
    with psycopg.connect(servers.uri()) as conn:
        conn.execute("SELECT idem_begin(%s, %s::text)", (session, key))
        conn.execute("SELECT idem_checkpoint(%s, %s::text, %s, %s)", (session, key, point, state))


async def complete(name, session, handler, **options):
    pools = drivers.Pools(name)
    async with pools.stack:
        pool = await pools.get()
        work = handler if drivers.asynchronous(name) else lambda held: finish(handler(held))
        options = {"interval": None, "grace": 0, **options}
        return await settle(idempotence.complete(pool, session, work, **options))


def completed(name, *args, **options):
    """Django refuses to block in an event loop."""
    work = complete(name, *args, **options)
    return asyncio.run(work) if drivers.asynchronous(name) else finish(work)


def statuses(session, keys):
    return [idempotence.lookup(servers.uri(), session, key).status for key in keys]


@pytest.mark.parametrize("name", ["psycopg-pool", "psycopg-async", "asyncpg", "sqlalchemy-session", "django"])
def test_what_was_abandoned_is_taken_over(session, name):
    abandon(session, ["left"])
    abandon(session, ["held"], lease="1 minute")
    suspend(session, "stopped", "charged", '{"charge": 1}')
    time.sleep(0.05)
    seen = {}

    async def handler(held):
        seen[held.key] = (held.taken_over, held.point, held.state)
        return {"by": "completer"}

    assert completed(name, session, handler) == 2
    assert seen["left"] == (True, None, None) and seen["stopped"][1:] == ("charged", {"charge": 1})
    assert statuses(session, ["left", "stopped", "held"]) == ["succeeded", "succeeded", "in_progress"]
    assert completed(name, session, handler) == 0


def test_a_handler_that_fails_is_called_again_after_the_back_off(session, caplog):
    abandon(session, ["k"])
    calls = []

    async def handler(held):
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise ConnectionError("the card processor is away")
        return {}

    stop = threading.Event()

    def stop_when_done():
        while statuses(session, ["k"]) != ["succeeded"]:
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=stop_when_done, daemon=True).start()
    options = {"interval": 0.02, "grace": 0.2, "lease": 0.05, "stop": stop}
    assert completed("psycopg-pool", session, handler, **options) == 1
    # Attempt 2 ended with its lease; attempts 3 and 4 follow 0.4 and 0.8 seconds after the ends of their predecessors.
    assert calls[1] - calls[0] > 0.4 and calls[2] - calls[1] > 0.8
    assert "the card processor is away" in caplog.text


def test_a_final_failure_is_recorded(session):
    abandon(session, ["k"])
    time.sleep(0.05)

    async def handler(held):
        raise idempotence.Final({"error": "card expired"})

    assert completed("psycopg-pool", session, handler) == 1
    assert idempotence.lookup(servers.uri(), session, "k").response == {"error": "card expired"}


def test_max_attempts_leaves_the_request(session, caplog):
    abandon(session, ["k"])
    time.sleep(0.05)

    async def handler(held):
        raise AssertionError("called")

    assert completed("psycopg-pool", session, handler, max_attempts=1) == 0
    assert "it is left" in caplog.text


def test_completers_run_concurrently(session):
    keys = [f"k{n}" for n in range(30)]
    abandon(session, keys)
    time.sleep(0.05)
    calls = []

    async def handler(held):
        calls.append(held.key)
        await asyncio.sleep(0.01)

    async def several():
        return await asyncio.gather(*(complete("psycopg-async", session, handler) for _ in range(3)))

    assert sum(asyncio.run(several())) == 30 and sorted(calls) == sorted(keys)


@pytest.mark.parametrize("driver", drivers.some(["psycopg-connect", "psycopg-async"], ["psycopg-connect"]))
def test_killed_completers_complete_every_request_exactly_once(session, driver):
    command = [sys.executable, HERE / "completer.py", servers.uri(), session, driver]
    completers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    keys, kills, last = [], 0, time.monotonic() + 30 + 3 * KILLS
    try:
        while kills < KILLS:
            assert time.monotonic() < last
            more = [f"{len(keys) + n}" for n in range(5)]
            abandon(session, more)
            keys += more
            time.sleep(random.uniform(0.3, 0.9))
            victim = random.randrange(2)
            completers[victim].kill()
            completers[victim].wait()
            kills += 1
            completers[victim] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while statuses(session, keys) != ["succeeded"] * len(keys):
            assert time.monotonic() < last, statuses(session, keys)
            time.sleep(0.2)
        # Stopped gracefully.
        for each in completers:
            each.send_signal(signal.SIGTERM)
            output, _ = each.communicate(timeout=20)
            assert each.returncode == 0 and output.strip().isdigit()
    finally:
        for each in completers:
            each.kill()
            each.wait()
    with psycopg.connect(servers.uri()) as conn:
        charged = [row[0] for row in conn.execute("SELECT key FROM client_charge").fetchall()]
    assert sorted(charged) == sorted(keys), "each was charged once, by its key"
    for key in keys:
        assert idempotence.lookup(servers.uri(), session, key).response == {"charged": key}
