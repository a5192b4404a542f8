"""vectors.json, with each driver."""

import asyncio
import contextlib
import inspect
import time
import uuid

import drivers
import pytest
import servers

import idempotence
from idempotence._await import finish, settle
from idempotence._drivers import driver_of, transaction_of

FILE, CASES = servers.load("vectors.json")


@pytest.fixture(scope="module", autouse=True)
def prepared():
    servers.prepare(FILE["setup"])


class Refused(Exception):
    """Of the application."""


class Runner:
    def __init__(self, name, run):
        self.asynchronous, self.run = drivers.asynchronous(name), run
        self.pools, self.helpers, self.works, self.client = drivers.Pools(name), servers.Helpers(), 0, None

    async def sleep(self, seconds):
        await asyncio.sleep(seconds) if self.asynchronous else time.sleep(seconds)

    async def act(self, action, conn):
        """One action of a work."""
        tx = transaction_of(conn)
        if "effect" in action:
            await tx.query("INSERT INTO client_effect VALUES ($1, CAST($2 AS int))", self.run, action["effect"])
        elif "sql" in action:
            rows = await tx.query(action["sql"])
            assert "rows" not in action or [list(row) for row in rows] == action["rows"]
        elif "sleep" in action:
            await self.sleep(action["sleep"])
        elif "caught" in action:
            with pytest.raises(Exception, match="client_effect"):
                await tx.query(action["caught"])
        elif "foreign" in action:
            await self.foreign(action["foreign"])
        elif "terminate" in action:
            self.helpers.terminate((await tx.query("SELECT pg_backend_pid()"))[0][0])
        elif "final" in action:
            raise idempotence.Final(action["final"])
        elif "raise" in action:
            raise Refused(action["raise"])

    async def foreign(self, kind):
        """Raises an error of another connection."""
        tx = await driver_of(await self.pools.get("unreachable" if kind == "unreachable" else "stranger")).open(2)
        try:
            await tx.begin()
            await tx.query(servers.raising(kind))
        finally:
            await tx.close()

    def work(self, attempts):
        """The user's function."""
        self.works = 0

        async def work(conn):
            self.works += 1
            for action in attempts[min(self.works, len(attempts)) - 1]:
                if "return" in action:
                    return action["return"]
                await self.act(action, conn)

        return work if self.asynchronous else lambda conn: finish(work(conn))

    async def step(self, step):
        if self.helpers.step(step):
            return
        if "sleep" in step:
            return await self.sleep(step["sleep"])
        expect, self.works = step.get("expect", {}), 0
        call = getattr(self, "call_" + step["call"])
        if "error" not in expect:
            self.compare(await call(step), expect)
            return
        with pytest.raises(Exception) as caught:
            await call(step)
        self.compare_error(caught.value, expect)

    def compare(self, got, expect):
        for name, value in expect.items():
            assert (self.works if name == "works" else got[name]) == value, f"{name} of {got}"

    def compare_error(self, error, expect):
        want = expect["error"]
        if want == "application":
            assert type(error) is Refused
        elif want == "in_progress":
            assert type(error) is idempotence.InProgress, repr(error)
            assert not expect.get("expires") or error.expires_at is not None
        elif want == "interrupted":
            assert type(error) is idempotence.Interrupted, repr(error)
            assert error.point == expect.get("point")
        elif want == "unrecorded":
            assert type(error) is idempotence.Unrecorded, repr(error)
        elif want == "connection":
            assert idempotence._errors.sqlstate(error) is None and idempotence._errors.of_driver(error), repr(error)
        else:
            assert idempotence._errors.sqlstate(error) == want, repr(error)
        if "works" in expect:
            assert self.works == expect["works"]

    @staticmethod
    def key(key):
        return uuid.UUID(key["uuid"]) if isinstance(key, dict) else key

    async def arguments(self, step):
        return await self.pools.get(step.get("pool", "owner")), step.get("session", self.run), self.key(step["key"])

    async def call_run(self, step):
        options = {name: step[name] for name in ("wait", "deadline", "ttl", "claim") if name in step}
        answer = await settle(
            idempotence.run(*await self.arguments(step), step["payload"], self.work(step["work"]), **options)
        )
        return vars(answer)

    async def call_lookup(self, step):
        return vars(await settle(idempotence.lookup(*await self.arguments(step), wait=step.get("wait"))))

    async def call_lease(self, step):
        options = {name: step[name] for name in ("lease", "wait", "deadline") if name in step}
        held = idempotence.lease(*await self.arguments(step), step["payload"], **options)
        try:
            if self.asynchronous:
                async with held:
                    await self.leased(held, step["do"])
            else:
                with held:
                    finish(self.leased(held, step["do"]))
        except idempotence.Done as done:
            return {**vars(done.answer), "token": hasattr(held, "token"), "taken_over": False, "point": None}
        answer = held.answer or idempotence.Answer(held.status, None)
        return {
            "replayed": answer.replayed,
            "response": answer.response,
            "status": held.status,
            "taken_over": held.taken_over,
            "point": held.point,
            "state": held.state,
            "attempt": held.attempt,
            "token": isinstance(held.token, int),
        }

    async def leased(self, held, actions):
        for action in actions:
            self.works += 1
            action = {action["each"]: True, "state": None} if "each" in action else action
            if "record" in action:
                if action.get("terminate"):
                    await self.record_twice(held, action)
                else:
                    await settle(held.record(action["record"], failed=action.get("failed", False)))
            elif "checkpoint" in action:
                await settle(held.checkpoint(str(action["checkpoint"]), action.get("state")))
            elif "release" in action:
                await settle(held.release())
            elif "extend" in action:
                await settle(held.extend())
            elif "until_lost" in action:
                last = time.monotonic() + action["until_lost"]
                while not held.lost:
                    assert time.monotonic() < last
                    await self.sleep(0.02)
                await self.sleep(0.1)
            elif "effect" in action or "sql" in action:
                self.helper_act(action, held)
            else:
                await self.act(action, self.helpers.connection())

    def helper_act(self, action, held):
        if "effect" in action:
            self.helpers.connection().execute("INSERT INTO client_effect VALUES (%s, %s)", (self.run, action["effect"]))
        else:
            self.helpers.sql({**action, "sql": action["sql"].replace("{token}", str(held.token))})

    async def record_twice(self, held, action):
        """The answer to the first COMMIT gets lost: the record is sent again with the same token."""
        lost = []

        async def single(tx, *args):
            rows = await original(tx, *args)
            if not lost:
                lost.append(True)
                tx.lost = lambda: True
                with tx.noting_errors():
                    raise ConnectionResetError("the answer to COMMIT is lost")
            return rows

        tx = await driver_of(await self.pools.get()).open(2)
        await tx.close()
        kind = type(tx)
        original = kind.single
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "single", single)
            await settle(held.record(action["record"]))
        assert lost

    async def call_once(self, step):
        pool, keys = await self.pools.get(), [self.key(key) for key in step["keys"]]
        tx = await driver_of(pool).open(5)
        try:
            await tx.begin()
            conn = "default" if pool == "default" else tx.conn
            new = await settle(idempotence.once(conn, self.run, keys))
            if not step.get("rollback"):
                await tx.commit()
        finally:
            await tx.close()
        return {"new": [str(key) for key in new]}

    async def call_check(self, step):
        pool = await self.pools.get(step.get("pool", "owner"))
        found = await settle(idempotence.check(pool, step.get("session", self.run)))
        return servers.checked(step, found, found.edition)

    async def call_client(self, step):
        self.client = idempotence.Client(await self.pools.get(), step["name"], step["window"])
        return {}

    async def call_send(self, step):
        return vars(await settle(self.client.send(step["payload"], self.work(step["work"]))))

    async def call_close(self, step):
        await settle(self.client.close())
        return {}

    async def case(self, case):
        async with self.pools.stack:
            for sql in case.get("setup", []):
                self.helpers.connection().execute(sql)
            for step in case["steps"]:
                await self.step(step)
        if "effects" in case:
            assert self.helpers.effects(self.run) == case["effects"]


@pytest.mark.parametrize("name", drivers.NAMES)
@pytest.mark.parametrize("case", CASES, ids=servers.identifier)
def test_vector(case, name):
    run, case = servers.begin(case)
    runner = Runner(name, run)
    with contextlib.closing(runner.helpers):
        coroutine = runner.case(case)
        assert inspect.iscoroutine(coroutine)
        asyncio.run(coroutine) if runner.asynchronous else finish(coroutine)
