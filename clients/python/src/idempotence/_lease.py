"""An effect elsewhere: the claim is committed before the work, and the outcome after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ._drivers import Driver, driver_of
from ._errors import Final, sqlstate
from ._run import _KEY, Answer, Attempt, ask, encoded, interval, named

_JSONB = {n: f"CAST(CAST(${n} AS text) AS jsonb)" for n in (4, 5)}
_TOKEN = f"{_KEY}, token => CAST($3 AS bigint)"
_CALLS = {
    "extend": f"SELECT idem_extend({_KEY}, CAST($3 AS bigint), CAST(CAST($4 AS text) AS interval))",
    "record": f"SELECT idem_record({_TOKEN}, response => {_JSONB[4]}, failed => CAST($5 AS boolean))",
    "release": f"SELECT idem_release({_TOKEN})",
    "checkpoint": f"SELECT idem_checkpoint({_TOKEN}, point => CAST($4 AS text), state => {_JSONB[5]})",
}


class Superseded(Exception):
    """The lease is lost: somebody else may be at work, or the request is settled. Stop. It has the SQLSTATE ID005."""

    sqlstate = "ID005"

    def __init__(self, key: object) -> None:
        super().__init__(f"the lease of the request {key} is lost: somebody else has taken it over, so stop")


class Lease:
    """Used with `with`, or `async with` for an asynchronous pool. In the block `answer` is None where the work is to be
    done, and else the answer, and nothing is to be done. `taken_over`: somebody stopped in the middle, so look first,
    and go on from `point` and `state`. A heartbeat extends the lease; where that is refused, an asynchronous block is
    cancelled, and every block ends in `Superseded`. `Final` is recorded as a failure; any other exception leaves the
    lease to run out."""

    token: int | None
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
        self.lost = self._cancelled = False

    def record(self, response: Any = None, failed: bool = False) -> Any:
        """Records the outcome. It may be asked for again: the same token gets the same answer."""
        return self.driver.do(self._record(response, failed))

    def checkpoint(self, point: str, state: Any = None) -> Any:
        """Saves how far the work has got, for whoever takes the request over."""
        return self.driver.do(self._call("checkpoint", point, encoded(state)))

    def extend(self, seconds: float | None = None) -> Any:
        """Extends the lease now, as the heartbeat does."""
        return self.driver.do(self._call("extend", interval(seconds or self.seconds)))

    def release(self) -> Any:
        """Gives the request up. Only for work that has had no effect: the next begin is not told to look."""
        self._stop()
        return self.driver.do(self._call("release"))

    async def _record(self, response: Any, failed: bool) -> None:
        await self._call("record", encoded(response), failed)
        self._stop()
        self.answer = self.answer or Answer("failed" if failed else "succeeded", response)

    async def _call(self, name: str, *args: Any, deadline: float | None = None) -> None:
        """In a transaction, and a connection, of its own: the heartbeat's may be going on meanwhile."""
        until = self.deadline if deadline is None else deadline
        try:
            await ask(self.driver, until, _CALLS[name], self.session, named(self.key), self.token, *args)
        except Exception as error:
            if sqlstate(error) != "ID005":
                raise
            self.lost = True
            raise Superseded(self.key) from error

    async def _begin(self) -> None:
        async def begin() -> Answer | None:
            answer = await self._attempt.begin(self.seconds)
            if answer is None:
                await self._attempt.commit()
            return answer

        self.answer, ticket = await self._attempt.answered(begin), self._attempt.ticket
        assert ticket
        self.status, self.point, self.state, self.attempt = ticket.status, ticket.point, ticket.state, ticket.attempt
        self.taken_over, self.token = ticket.status == "taken_over", ticket.token

    async def _beat(self) -> bool:
        """Extends the lease. True if it is lost; another error leaves it to the next beat."""
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
        return False

    def __enter__(self) -> Lease:
        self.driver.do(self._begin())
        if self.answer is None:
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
        await self._begin()
        if self.answer is None:
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
        if self._cancelled and isinstance(error, asyncio.CancelledError) and owner and hasattr(owner, "uncancel"):
            owner.uncancel()
        return await self._end(error)


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
    Raises InProgress where somebody else has it at the deadline."""
    return Lease(driver_of(pool), session, key, payload, lease, wait, deadline, deadline)
