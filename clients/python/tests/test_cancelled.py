"""After the answer, and after a request was cancelled: no statement of a request runs in the transaction of another
one, and no connection is lost."""

import asyncio
import contextlib
import threading
import time
import uuid

import anyio
import drivers
import httpx
import psycopg
import pytest
import servers

pytest.importorskip("fastapi")

from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException  # noqa: E402
from sqlalchemy import text  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.responses import JSONResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

import idempotence  # noqa: E402
from idempotence._await import finish  # noqa: E402
from idempotence._drivers import driver_of, transaction_of  # noqa: E402
from idempotence.fastapi import Idempotent  # noqa: E402
from idempotence.starlette import Idempotent as StarletteIdempotent  # noqa: E402

POOLS = drivers.some(
    ["psycopg-pool", "psycopg-async", "asyncpg", "sqlalchemy-session", "sqlalchemy", "sqlalchemy-psycopg-async"],
    ["psycopg-pool", "asyncpg", "sqlalchemy-session"],
)


@pytest.fixture(autouse=True)
def prepared():
    servers.prepare(["SELECT idem_create_session('cancelled')"])


def effects(key):
    with psycopg.connect(servers.uri()) as conn:
        return conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (key,)).fetchone()[0]


async def insert(conn, key):
    await transaction_of(conn).query("INSERT INTO client_effect VALUES ($1, 1)", key)


def application(idempotent, handler):
    """POST /KEY calls handler(conn, key, tasks), in a thread if the driver blocks."""
    app = FastAPI()
    app.router.route_class = idempotent.route
    if driver_of(idempotent.pool).asynchronous:

        @app.post("/{key}")
        async def asynchronous(key: str, tasks: BackgroundTasks, conn=Depends(idempotent)):
            return await handler(conn, key, tasks)
    else:

        @app.post("/{key}")
        def blocking(key: str, tasks: BackgroundTasks, conn=Depends(idempotent)):
            return finish(handler(conn, key, tasks))

    return app


@contextlib.asynccontextmanager
async def client_of(app):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=30) as client:
        yield lambda key: client.post(f"/{key}", headers={"Idempotency-Key": key})


class Limited:
    """A middleware that gives a path half a second."""

    def __init__(self, app, slow, way):
        self.app, self.slow, self.way = app, slow, way

    async def __call__(self, scope, receive, send):
        if scope["path"] != f"/{self.slow}":
            return await self.app(scope, receive, send)
        try:
            if self.way == "wait_for":
                await asyncio.wait_for(self.app(scope, receive, send), 0.5)
            else:
                with anyio.fail_after(0.5):
                    await self.app(scope, receive, send)
        except TimeoutError:
            await JSONResponse({}, 504)(scope, receive, send)


@pytest.mark.parametrize("name", POOLS)
def test_a_background_task_cannot_use_the_connection(name):
    """Its statement would be committed by the next request."""
    first, second, seen = uuid.uuid4().hex, uuid.uuid4().hex, []

    async def handler(conn, key, tasks):
        await insert(conn, key)

        async def later():
            try:
                await insert(conn, f"late {key}")
            except Exception as error:
                seen.append(error)

        if key == first:
            tasks.add_task(later if asynchronous else lambda: finish(later()))
        return {}

    asynchronous = drivers.asynchronous(name)

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack, client_of(application(Idempotent(await pools.get(), "cancelled"), handler)) as post:
            assert [(await post(key)).status_code for key in (first, second, second)] == [200, 200, 200]

    asyncio.run(requests())
    assert (effects(first), effects(second), effects(f"late {first}")) == (1, 1, 0)
    assert len(seen) == 1
    if name.startswith("psycopg"):
        assert isinstance(seen[0], idempotence.TransactionEnded), repr(seen[0])


def test_cursors_and_the_connection_itself_are_refused_after_the_answer():
    kept = {}

    async def handler(conn, key, tasks):
        kept.update(conn=conn, cursor=conn.cursor())
        return {}

    async def requests():
        pools = drivers.Pools("psycopg-pool")
        async with pools.stack, client_of(application(Idempotent(await pools.get(), "cancelled"), handler)) as post:
            assert (await post(uuid.uuid4().hex)).status_code == 200
            for use in (
                lambda: kept["conn"].execute("SELECT 1"),
                lambda: kept["conn"].cursor(),
                lambda: kept["conn"].close(),
                lambda: kept["cursor"].execute("SELECT 1"),
                lambda: kept["conn"].cancel(),
            ):
                with pytest.raises(idempotence.TransactionEnded, match="the transaction of this request has ended"):
                    use()
            assert isinstance(kept["conn"], psycopg.Connection)

    asyncio.run(requests())


@pytest.mark.parametrize("where", ["between statements", "in a statement"])
@pytest.mark.parametrize(
    "name", drivers.some(["psycopg-pool", "sqlalchemy-session", "sqlalchemy"], ["psycopg-pool", "sqlalchemy-session"])
)
def test_a_thread_that_outlives_its_request_writes_nowhere(name, where):
    """A scope of anyio waits for the thread, so only asyncio can cancel such a request."""
    late, other = uuid.uuid4().hex, uuid.uuid4().hex
    slow, ended = [True], threading.Event()

    async def handler(conn, key, tasks):
        if key == late and slow[0]:
            try:
                if where == "in a statement":
                    await transaction_of(conn).query("SELECT pg_sleep(1.2)")
                else:
                    time.sleep(1.2)
                await insert(conn, f"{key}")
            finally:
                ended.set()
        elif key == other:
            time.sleep(1)
        await insert(conn, key)
        return {"paid": key}

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack:
            pool = await pools.get()
            app = Limited(application(Idempotent(pool, "cancelled"), handler), late, "wait_for")
            async with client_of(app) as post:
                assert (await post(late)).status_code == 504
                assert (await post(other)).status_code == 200
                await asyncio.to_thread(ended.wait, 5)
                slow[0] = False
                assert effects(late) == 0
                again = await post(late)
                assert (again.status_code, again.headers.get("Idempotent-Replayed")) == (200, None)
                # No connection is missing.
                for _ in range(6):
                    assert (await post(uuid.uuid4().hex)).status_code == 200

    asyncio.run(requests())
    assert (effects(late), effects(other)) == (1, 1)


@pytest.mark.parametrize("way", ["wait_for", "fail_after"])
@pytest.mark.parametrize("name", POOLS)
def test_cancelled_requests_leave_no_connection_behind(name, way):
    """The pool has 4 connections; 6 requests are cancelled at once, while their handlers wait."""
    keys = [uuid.uuid4().hex for _ in range(6)]
    slow = [True]

    async def pay(request):
        conn = request.state.conn
        await insert(conn, request.path_params["key"])
        if slow[0]:
            await asyncio.sleep(5)
        return JSONResponse({})

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack:
            idempotent = StarletteIdempotent(await pools.get(), "cancelled")
            protected = Starlette(routes=[Route("/{key}", idempotent(pay), methods=["POST"])])

            async def limited(scope, receive, send):
                app = Limited(protected, scope["path"][1:], way) if slow[0] else protected
                await app(scope, receive, send)

            async with client_of(limited) as post:
                got = await asyncio.gather(*map(post, keys))
                assert {each.status_code for each in got} == {504}
                slow[0] = False
                for key in keys:
                    assert (await post(key)).status_code == 200

    asyncio.run(requests())
    assert [effects(key) for key in keys] == [1] * 6


@pytest.mark.parametrize("name", ["psycopg-pool", "psycopg-async", "asyncpg"])
def test_a_cancelled_request_ends_the_heartbeat_of_its_lease(name):
    key, slow = uuid.uuid4().hex, [True]

    async def pay(request):
        if slow[0]:
            await asyncio.sleep(30)
        return JSONResponse({})

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack:
            idempotent = StarletteIdempotent(await pools.get(), "cancelled", lease=1)
            app = Starlette(routes=[Route("/{key}", idempotent(pay), methods=["POST"])])
            async with client_of(Limited(app, key, "fail_after")) as post:
                assert (await post(key)).status_code == 504
                slow[0] = False
                await asyncio.sleep(2)
                # The lease has expired, since nothing extends it.
                assert (await post(key)).status_code == 200

    asyncio.run(requests())
    assert not [each for each in threading.enumerate() if each.name == "idempotence heartbeat" and each.is_alive()]


def test_a_lease_block_that_is_cancelled_ends_its_heartbeat():
    async def main():
        pools = drivers.Pools("psycopg-async")
        async with pools.stack:
            pool, key = await pools.get(), uuid.uuid4().hex
            with anyio.move_on_after(0.3):
                async with idempotence.lease(pool, "cancelled", key, lease=0.6):
                    await asyncio.sleep(30)
            await asyncio.sleep(1)
            async with idempotence.lease(pool, "cancelled", key) as held:
                assert held.taken_over
                await held.record({})

    asyncio.run(main())


@pytest.mark.parametrize("name", POOLS)
def test_a_handler_that_exceeds_its_time_limit(name):
    key, slow = uuid.uuid4().hex, [True]

    async def handler(conn, key, tasks):
        await insert(conn, key)
        if slow[0]:
            await asyncio.sleep(20) if drivers.asynchronous(name) else time.sleep(2)
        return {}

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack:
            idempotent = Idempotent(await pools.get(), "cancelled", handler_timeout=0.5)
            async with client_of(application(idempotent, handler)) as post:
                began = time.monotonic()
                answer = await post(key)
                assert answer.status_code == 503 and answer.json()["type"].endswith("#unavailable")
                assert time.monotonic() - began < 1.8
                slow[0] = False
                assert (await post(key)).status_code == 200

    asyncio.run(requests())
    assert effects(key) == 1


def test_sessions_are_closed_for_good():
    seen = []

    async def handler(session, key, tasks):
        assert isinstance(session, Session)
        seen.append(session)
        return {}

    async def requests():
        pools = drivers.Pools("sqlalchemy-session")
        async with pools.stack, client_of(application(Idempotent(await pools.get(), "cancelled"), handler)) as post:
            assert (await post(uuid.uuid4().hex)).status_code == 200

    asyncio.run(requests())
    with pytest.raises(Exception, match="permanently closed"):
        seen[0].execute(text("SELECT 1"))


@pytest.mark.parametrize("name", POOLS)
def test_a_task_that_outlives_its_handler_keeps_nothing_of_a_refused_request(name):
    """It executes one statement after the other, while the adapter rolls back, records and commits."""
    keys, ended = [uuid.uuid4().hex for _ in range(5)], []

    async def stray(conn, key):
        try:
            while True:
                await insert(conn, key)
                if drivers.asynchronous(name):
                    await asyncio.sleep(0)
        except Exception as error:
            ended.append(error)

    async def handler(conn, key, tasks):
        if drivers.asynchronous(name):
            tasks = asyncio.ensure_future(stray(conn, key))
            await asyncio.sleep(0.01)
            raise HTTPException(402, str(id(tasks)))
        threading.Thread(target=lambda: finish(stray(conn, key)), daemon=True).start()
        time.sleep(0.01)
        raise HTTPException(402)

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack, client_of(application(Idempotent(await pools.get(), "cancelled"), handler)) as post:
            for key in keys:
                assert (await post(key)).status_code in (402, 500)

    asyncio.run(requests())
    last = time.monotonic() + 10
    while len(ended) < len(keys):
        assert time.monotonic() < last
        time.sleep(0.05)
    assert [effects(key) for key in keys] == [0] * len(keys)


@pytest.mark.parametrize(
    "name",
    drivers.some(["psycopg-async", "asyncpg", "sqlalchemy-async", "sqlalchemy-psycopg-async"], ["sqlalchemy-async"]),
)
def test_a_time_limit_that_the_handler_has_set_on_a_statement_is_its_own(name):
    """SQLAlchemy closes the connection of a statement that is cancelled. This is no lost connection, so the handler is
    not called again."""
    key, other, calls = uuid.uuid4().hex, uuid.uuid4().hex, []

    async def handler(conn, key, tasks):
        calls.append(key)
        await insert(conn, key)
        if len(calls) == 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(transaction_of(conn).query("SELECT pg_sleep(5)"), 0.2)
        return {}

    async def requests():
        pools = drivers.Pools(name)
        async with pools.stack, client_of(application(Idempotent(await pools.get(), "cancelled"), handler)) as post:
            assert (await post(key)).status_code == 500
            assert calls == [key] and effects(key) == 0
            # No connection is missing.
            for each in (key, other):
                assert (await post(each)).status_code == 200

    asyncio.run(requests())
    assert (effects(key), effects(other)) == (1, 1)
