"""A protected request takes as many round trips as BEGIN, INSERT and COMMIT do: three. A replay waits for one."""

import asyncio
import contextlib
import inspect
import json
import time
import uuid

import counting
import drivers
import httpx
import pytest
import servers

pytest.importorskip("fastapi")

from fastapi import Depends, FastAPI, HTTPException  # noqa: E402

import idempotence  # noqa: E402
from idempotence._await import finish, settle  # noqa: E402
from idempotence._drivers import driver_of, transaction_of  # noqa: E402
from idempotence.fastapi import Idempotent  # noqa: E402

# Driver, round trips of a new request, of a replay together with what is not waited for, and of a refusal.
FOLDED = {
    "psycopg-pool": (3, 2, 3),
    "psycopg-async": (3, 2, 3),
    "sqlalchemy": (3, 2, 3),
    "sqlalchemy-session": (3, 2, 3),
    "sqlalchemy-psycopg-async": (3, 2, 3),
    "asyncpg": (3, 2, 3),
    "sqlalchemy-async": (3, 2, 3),
    "sqlalchemy-async-session": (3, 2, 3),
    # psycopg2 sends BEGIN and COMMIT alone.
    "sqlalchemy-psycopg2": (5, 3, 5),
}
# The pool of asyncpg resets a connection when it is returned.
RESET = "pg_advisory_unlock_all"


@pytest.fixture(scope="module")
def counter():
    servers.prepare(["SELECT idem_create_session('trips')"])
    with counting.counter() as counter:
        yield counter


SLOW_S = 0.4


@pytest.fixture(scope="module")
def slow():
    servers.prepare(["SELECT idem_create_session('trips')"])
    with counting.counter(settle_ms=int(SLOW_S * 1000)) as slow:
        yield slow


def nothing(name):
    async def nothing():
        return None

    return nothing() if drivers.asynchronous(name) else None


@contextlib.asynccontextmanager
async def application(name, uri):
    pools = drivers.Pools(name)
    async with pools.stack:
        pool = await pools.make(uri, "owner")
        idempotent = Idempotent(pool, "trips")
        app = FastAPI()
        app.router.route_class = idempotent.route

        async def insert(conn, amount):
            await transaction_of(conn).query("INSERT INTO client_effect VALUES ('trips', CAST($1 AS int))", amount)
            if amount > 900:
                raise HTTPException(402)
            return {"moved": amount}

        if drivers.asynchronous(name):

            @app.post("/{amount}")
            async def pay(amount: int, conn=Depends(idempotent)):
                return await insert(conn, amount)
        else:

            @app.post("/{amount}")
            def pay(amount: int, conn=Depends(idempotent)):
                return finish(insert(conn, amount))

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            yield client


async def post(client, key=None, amount=1):
    return await client.post(f"/{amount}", headers={"Idempotency-Key": key or uuid.uuid4().hex})


def statements(counter):
    return [trip for trip in counter.trips() if RESET not in str(trip)]


@pytest.mark.parametrize("name", FOLDED)
def test_round_trips_of_a_request(counter, name):
    async def measure():
        async with application(name, counter.uri) as client:
            for _ in range(7):  # drivers prepare statements at their first uses
                assert (await post(client)).status_code == 200
                assert (await post(client, amount=901)).status_code == 402
            counted, key = [], uuid.uuid4().hex
            for status, options in ((200, {"key": key}), (200, {"key": key}), (402, {"amount": 901})):
                counter.reset()
                assert (await post(client, **options)).status_code == status
                counted.append(await asyncio.to_thread(statements, counter))
            return counted

    counted = asyncio.run(measure())
    assert tuple(map(len, counted)) == FOLDED[name], json.dumps(counted, indent=1)


# How many round trips a new request and a replay wait for. The end of a replay's transaction is not waited for.
WAITED = {name: (new, 2 if name.endswith("psycopg2") else 1) for name, (new, *_) in FOLDED.items()}


@pytest.mark.parametrize("name", drivers.some(FOLDED, ["psycopg-pool", "asyncpg", "sqlalchemy-async-session"]))
def test_a_replay_is_answered_before_its_transaction_has_ended(slow, name):
    async def measure():
        async with application(name, slow.uri) as client:
            for _ in range(2):
                assert (await post(client)).status_code == 200
            waited, key = [], uuid.uuid4().hex
            for _ in range(2):
                await asyncio.sleep(2 * SLOW_S)  # for what the last request has left
                began = time.monotonic()
                assert (await post(client, key)).status_code == 200
                waited.append(int((time.monotonic() - began) / SLOW_S))
            # What is left of the replay ends, too: the connection is used by the next request.
            for _ in range(2):
                assert (await post(client)).status_code == 200
            return tuple(waited)

    assert asyncio.run(measure()) == WAITED[name]


@pytest.mark.parametrize("name", drivers.some(["psycopg-pool", "psycopg-async", "asyncpg"], ["psycopg-async"]))
def test_what_a_begin_has_recorded_is_answered_after_commit(slow, name):
    """The begin records that the request is given up, so its COMMIT is waited for."""
    session, key = f"trips-{uuid.uuid4().hex}", uuid.uuid4().hex
    servers.prepare([f"SELECT idem_create_session('{session}', max_attempts => 1)"])
    with servers.psycopg.connect(servers.uri(), autocommit=True) as conn:
        conn.execute("SELECT idem_begin(%s, %s::text, lease => '10 ms')", (session, key))
    time.sleep(0.05)

    async def measure():
        pools = drivers.Pools(name)
        async with pools.stack:
            pool = await pools.make(slow.uri, "owner")
            await settle(idempotence.lookup(pool, session, key))  # connects
            await asyncio.sleep(3 * SLOW_S)
            began = time.monotonic()
            answer = await settle(idempotence.run(pool, session, key, None, lambda conn: nothing(name)))
            return answer.status, int((time.monotonic() - began) / SLOW_S)

    status, waited = asyncio.run(measure())
    assert status == "failed" and waited >= 2


@pytest.mark.parametrize("name", ["psycopg-connect", "psycopg-async", "asyncpg"])
def test_a_replay_leaves_no_connection_behind_if_the_loop_ends(counter, name):
    key = uuid.uuid4().hex

    async def replay():
        pools = drivers.Pools(name)
        async with pools.stack:
            pool = await pools.make(counter.uri, "owner")
            return await settle(idempotence.run(pool, "trips", key, None, lambda conn: nothing(name)))

    for replayed in (False, True):
        assert asyncio.run(replay()).replayed is replayed
    last = time.monotonic() + 10
    with servers.psycopg.connect(servers.URI, autocommit=True) as conn:
        while conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state LIKE 'idle in%%'", (servers.OWNER,)
        ).fetchone()[0]:
            assert time.monotonic() < last
            time.sleep(0.05)


def test_round_trips_of_django(counter):
    drivers.django_setup()
    from django.db import connections
    from django.http import HttpResponse
    from django.test import RequestFactory

    from idempotence.django import idempotent

    drivers.django_alias("counted", counter.uri, CONN_MAX_AGE=60)

    @idempotent("trips", using="counted")
    def pay(request):
        with connections["counted"].cursor() as cursor:
            cursor.execute("INSERT INTO client_effect VALUES ('trips', 1)")
        return HttpResponse("paid")

    key, counted = uuid.uuid4().hex, []
    with contextlib.closing(connections["counted"]):
        pay(RequestFactory().post("/", headers={"Idempotency-Key": uuid.uuid4().hex}))
        for _ in range(2):
            counter.reset()
            pay(RequestFactory().post("/", headers={"Idempotency-Key": key}))
            counted.append(counter.trips())
    expected = [3, 2] if drivers.DJANGO == "psycopg" else [5, 3]  # psycopg2 sends BEGIN and COMMIT alone
    assert [*map(len, counted)] == expected, json.dumps(counted, indent=1)


@pytest.mark.parametrize("name", ["psycopg-pool", "psycopg-async", "asyncpg"])
def test_calls_outside_a_transaction_take_one_round_trip(counter, name):
    async def measure():
        pools = drivers.Pools(name)
        async with pools.stack:
            pool = await pools.make(counter.uri, "owner")
            for _ in range(7):
                await settle(idempotence.lookup(pool, "trips", "nothing"))
            counter.reset()
            await settle(idempotence.lookup(pool, "trips", "nothing"))
            return await asyncio.to_thread(statements, counter)

    assert len(counted := asyncio.run(measure())) == 1, counted


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["SAVEPOINT", "idem_record", "COMMIT"])
@pytest.mark.parametrize(
    "name",
    drivers.some(
        ["psycopg-pool", "psycopg-async", "asyncpg", "sqlalchemy-psycopg-async"], ["psycopg-async", "asyncpg"]
    ),
)
def test_a_connection_that_is_cut_between_folded_statements(counter, name, at, when):
    """The request is executed once, and answered after its COMMIT."""
    key = uuid.uuid4().hex[:12]

    async def pay(conn):
        await transaction_of(conn).query("INSERT INTO client_effect VALUES ($1, 1)", key)
        return {"paid": 1}

    async def attempt():
        pools = drivers.Pools(name)
        async with pools.stack:
            pool = await pools.make(counter.uri, "owner")
            assert driver_of(pool).asynchronous == drivers.asynchronous(name)
            counter.cut(when, at)
            work = pay if drivers.asynchronous(name) else lambda conn: finish(pay(conn))
            answer = idempotence.run(pool, "trips", key, None, work)
            return await answer if inspect.isawaitable(answer) else answer

    assert asyncio.run(attempt()).response == {"paid": 1}
    with servers.psycopg.connect(servers.URI) as conn:
        assert conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (key,)).fetchone()[0] == 1
