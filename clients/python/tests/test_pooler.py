"""Every driver behind PgBouncer in transaction mode. Skipped where pgbouncer is not installed."""

import asyncio
import concurrent.futures
import uuid

import drivers
import pooler
import pytest
import servers

import idempotence
from idempotence._await import finish, settle
from idempotence._drivers import transaction_of
from idempotence._errors import sqlstate

pytestmark = pytest.mark.skipif(not pooler.INSTALLED, reason="pgbouncer is not installed")


@pytest.fixture(scope="module")
def uri():
    servers.prepare(["SELECT idem_create_session('pooler')"])
    with pooler.pgbouncer() as uri:
        yield uri


class Caller:
    """Calls the client with the pool of a driver, from several tasks or threads at once."""

    def __init__(self, name, pool):
        self.name, self.pool = name, pool

    def work(self, key, fails=False):
        async def work(conn):
            tx = transaction_of(conn)
            backends = [(await tx.query("SELECT pg_backend_pid()"))[0][0] for _ in range(2)]
            assert backends[0] == backends[1]
            await tx.query("INSERT INTO client_effect VALUES ($1, 1)", key)
            if fails:
                raise idempotence.Final({"failed": key})
            return {"key": key}

        return work if drivers.asynchronous(self.name) else lambda conn: finish(work(conn))

    async def run(self, key, payload=None, **options):
        return await settle(idempotence.run(self.pool, "pooler", key, payload, self.work(key, **options)))

    async def every_way(self, number):
        key = uuid.uuid4().hex
        first, second = [await self.run(key, {"n": 1}) for _ in range(2)]
        assert first.response == second.response == {"key": key}
        assert (first.replayed, second.replayed) == (False, True)
        with pytest.raises(Exception) as refused:
            await self.run(key, {"n": 2})
        assert sqlstate(refused.value) == "ID001"
        failed = [await self.run(f"{key}-failed", fails=True) for _ in range(2)]
        assert [each.status for each in failed] == ["failed"] * 2
        found = await settle(idempotence.lookup(self.pool, "pooler", key))
        assert (found.status, found.response) == ("succeeded", {"key": key})

        def charge(held):
            return {"charged": held.key}

        async def charge_asynchronously(held):
            return charge(held)

        call = charge_asynchronously if drivers.asynchronous(self.name) else charge
        leased = await settle(idempotence.run(self.pool, "pooler", f"{key}-leased", None, call, lease=5))
        assert leased.response == {"charged": f"{key}-leased"}
        assert await settle(idempotence.check(self.pool, "pooler")) == []
        return key

    async def all(self, function, arguments):
        if drivers.asynchronous(self.name):
            return await asyncio.gather(*map(function, arguments))
        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            return list(threads.map(lambda argument: finish(function(argument)), arguments))


@pytest.mark.parametrize(
    "name",
    drivers.some(
        [name for name in drivers.NAMES if name != "psycopg-connect"],
        ["psycopg-pool", "asyncpg", "sqlalchemy-async-session", "django"],
    ),
)
def test_every_driver_behind_pgbouncer(uri, name):
    keys = [uuid.uuid4().hex for _ in range(20)]

    async def requests():
        pools = drivers.Pools(name, pooled=True)
        async with pools.stack:
            caller = Caller(name, await pools.make(uri, "pooled"))
            answers = await caller.all(caller.run, keys * 3)
            assert [answer.response["key"] for answer in answers] == keys * 3
            return await caller.all(caller.every_way, range(6))

    ways = asyncio.run(requests()) if drivers.asynchronous(name) else finish(requests())
    with servers.psycopg.connect(servers.URI) as conn:
        for key in [*keys, *ways, *(f"{key}-failed" for key in ways)]:
            assert conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (key,)).fetchone()[0] == 1, key
