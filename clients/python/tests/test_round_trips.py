"""A protected request takes as many round trips as BEGIN, INSERT and COMMIT do: three, and four with asyncpg."""

import asyncio
import contextlib
import inspect
import json
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

# Driver, round trips of a new request, of a replay, and of a refusal by an exception.
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


def test_round_trips_of_django(counter):
    drivers.django_setup()
    from django.db import connections
    from django.http import HttpResponse
    from django.test import RequestFactory

    from idempotence.django import idempotent

    parts = servers.conninfo_to_dict(counter.uri)
    connections.databases["counted"] = {
        **connections.databases["default"],
        "HOST": parts["host"],
        "PORT": parts["port"],
        "CONN_MAX_AGE": 60,
        "OPTIONS": {},
    }

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
    assert [*map(len, counted)] == [3, 2], json.dumps(counted, indent=1)


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
