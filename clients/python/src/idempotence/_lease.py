"""An effect outside the database: the claim is committed before the work, and the outcome after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ._await import settle, uninterrupted
from ._drivers import driver_of
from ._errors import Final, Superseded, Unrecorded, sqlstate
from ._run import KEY, Answer, Attempt, Ticket, as_replayed, ask, encoded, interval, named
from ._transactions import Driver

_JSONB = {n: f"CAST(CAST(${n} AS text) AS jsonb)" for n in (4, 5)}
_TOKEN = f"{KEY}, token => CAST($3 AS bigint)"
_CALLS = {
    "extend": f"SELECT idem_extend({KEY}, CAST($3 AS bigint), CAST(CAST($4 AS text) AS interval))",
    "record": f"SELECT idem_record({_TOKEN}, response => {_JSONB[4]}, failed => CAST($5 AS boolean))",
    "release": f"SELECT idem_release({_TOKEN})",
    "checkpoint": f"SELECT idem_checkpoint({_TOKEN}, point => CAST($4 AS text), state => {_JSONB[5]})",
}


class Done(Exception):
    """The request has its outcome already, so there is nothing to do: the block of the lease is not executed. `answer`
    is the outcome."""

    def __init__(self, key: object, answer: Answer) -> None:
        super().__init__(f"the request {key} is done: {answer.status}. Its outcome is in the attribute answer")
        self.answer = answer


class Lease:
    """The claim of a request, for as long as the work takes. Used with `with`, or `async with` for an asynchronous
    pool. A request that has its outcome already raises `Done` instead of entering the block.

    `taken_over`: another process stopped in the middle, so check first what it has done, and continue from `point` and
    `state`. A heartbeat extends the lease. If the lease is lost, an asynchronous block is cancelled, and every block
    ends with `Superseded`. `Final` is recorded as a failure. Any other exception leaves the lease to expire. A block
    that ends without record and without release raises `Unrecorded`."""

    token: int
    status: str
    taken_over: bool
    point: str | None
    state: Any
    attempt: int
    answer: Answer | None = None

    def __init__(
        self,
        driver: Driver,
        session: str,
        key: object,
        payload: Any,
        lease: float,
        wait: float,
        deadline: float,
        patience: float,
    ) -> None:
        self.driver, self.session, self.key, self.seconds, self.deadline = driver, session, key, lease, deadline
        self._attempt = Attempt(
            driver, session, key, payload, wait=min(wait, patience), deadline=deadline, patience=patience
        )
        self._stop: Callable[[], Any] = lambda: None
        self.lost = self.released = self._cancelled = False

    def record(self, response: Any = None, failed: bool = False) -> Any:
        """Records the outcome. It may be called again: the same token gets the same answer."""
        return self.driver.do(self._record(response, failed))

    def checkpoint(self, point: str, state: Any = None) -> Any:
        """Saves how far the work has got, for the process that takes the request over."""
        return self.driver.do(self._call("checkpoint", point, encoded(state)))

    def extend(self, seconds: float | None = None) -> Any:
        """Extends the lease now, as the heartbeat does."""
        return self.driver.do(self._call("extend", interval(seconds or self.seconds)))

    def release(self) -> Any:
        """Gives the request up. Only for work that has had no effect: the next begin is not told to check first."""
        return self.driver.do(self._release())

    async def _release(self) -> None:
        self._stop()
        await self._call("release")
        self.released = True

    async def _record(self, response: Any, failed: bool) -> None:
        await self._call("record", encoded(response), failed)
        self._stop()
        self.answer = self.answer or Answer("failed" if failed else "succeeded", as_replayed(response))

    async def _call(self, name: str, *args: Any, deadline: float | None = None) -> None:
        """In a transaction and on a connection of its own: the heartbeat's call may be running meanwhile."""
        until = self.deadline if deadline is None else deadline
        try:
            await ask(self.driver, until, _CALLS[name], self.session, named(self.key), self.token, *args)
        except Exception as error:
            if sqlstate(error) != "ID005":
                raise
            self.lost = True
            raise Superseded(self.key) from error

    async def _begin(self) -> None:
        ticket = await self._attempt.answered(lambda: self._attempt.begin_lease(self.seconds))
        if ticket.answer:
            raise Done(self.key, ticket.answer)
        self._hold(ticket)

    def _hold(self, ticket: Ticket) -> None:
        assert ticket.token is not None
        self.status, self.point, self.state, self.attempt = ticket.status, ticket.point, ticket.state, ticket.attempt
        self.taken_over, self.token = ticket.status == "taken_over", ticket.token

    async def _beat(self) -> bool:
        """Extends the lease. True if it is lost; after any other error the next beat tries again."""
        try:
            await self._call("extend", interval(self.seconds), deadline=self.seconds / 3)
        except Exception as error:
            return isinstance(error, Superseded)
        return False

    async def _end(self, error: BaseException | None) -> bool:
        self._stop()
        if isinstance(error, Final) and self.answer is None:
            await self._record(error.response, True)
            return True
        if self.lost and self.answer is None and not isinstance(error, Superseded):
            raise Superseded(self.key) from error
        if error is None and self.answer is None and not self.released:
            raise Unrecorded(self.key)
        return False

    def __enter__(self) -> Lease:
        if self.driver.asynchronous:
            raise TypeError("the pool is asynchronous: use `async with`")
        self.driver.do(self._begin())
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(self.seconds / 3) and not self.driver.do(self._beat()):
                self.driver.do(self.driver.leave())

        self._stop = stop.set
        threading.Thread(target=beat, name="idempotence heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> bool:
        return bool(self.driver.do(self._end(error)))

    async def __aenter__(self) -> Lease:
        if not self.driver.asynchronous:
            raise TypeError("the pool blocks: use `with`, or pass an asynchronous pool")
        await self._begin()
        owner = asyncio.current_task()

        async def beat() -> None:
            while True:
                await asyncio.sleep(self.seconds / 3)
                if await self._beat():
                    self._cancelled = owner is not None and self.answer is None and owner.cancel()
                    return

        task = asyncio.ensure_future(beat())
        self._stop = lambda: self.lost or task.cancel()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, at: Any) -> bool:
        owner = asyncio.current_task()
        if self._cancelled and isinstance(error, asyncio.CancelledError) and owner:
            owner.uncancel()
        self._stop()
        return await uninterrupted(self._end(error))


def lease(
    pool: Any,
    session: str,
    key: object,
    payload: Any = None,
    *,
    lease: float = 30,
    wait: float = 0.2,
    deadline: float = 30,
) -> Lease:
    """The claim for as long as the work takes: `with lease(pool, "payments", key, payload) as held: …`, see Lease.
    Raises `Done` if the request has its outcome, and `InProgress` if another process holds it at the deadline.
    `run(…, lease=30)` does the same with a function."""
    return Lease(driver_of(pool), session, key, payload, lease, wait, deadline, deadline)


async def run_with_lease(
    driver: Driver,
    session: str,
    key: object,
    payload: Any,
    work: Callable[[Lease], Any],
    seconds: float,
    wait: float,
    deadline: float,
) -> Answer:
    """Calls work(lease), and records what it returns unless the work has recorded or released itself."""
    held = Lease(driver, session, key, payload, seconds, wait, deadline, deadline)
    try:
        return await worked(held, work)
    except Done as done:
        return done.answer


async def worked(held: Lease, work: Callable[[Lease], Any]) -> Answer:
    async def call() -> None:
        response = await settle(work(held))
        if held.answer is None and not held.released:
            await held._record(response, False)

    if held.driver.asynchronous:
        async with held:
            await call()
    else:
        with held:
            await call()
    return held.answer or Answer("released", None)
