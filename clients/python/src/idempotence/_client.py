"""A client that numbers its requests, in a session of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ._await import settle
from ._drivers import driver_of
from ._errors import InProgress, Interrupted, sqlstate
from ._run import Answer, Attempt, ask, interval

_REGISTER = (
    "SELECT session, window_size FROM idem_register(CAST($1 AS text), window_size => CAST($2 AS integer),"
    " timeout => CAST(CAST($3 AS text) AS interval), request_id => CAST(CAST($4 AS text) AS uuid))"
)


@dataclasses.dataclass
class _Lane:
    """Sends the numbers of one place in the window, one after the other. So number n is sent when the answer to
    n - window is in. `session` is where `number` belongs. `doubtful`: nobody knows what became of that number."""

    place: int
    session: str = ""
    number: int = 0
    doubtful: bool = False


class Client:
    """Registers under a name, which fences whoever has it, and sends requests with numbers of its own, as many at once
    as `window`. A session that has ended is registered anew, after a look back at what was done in it. `timeout`: how
    long (seconds) it may be silent before its session ends."""

    def __init__(
        self, pool: Any, name: str, window: int = 5, timeout: float | None = None, deadline: float = 30
    ) -> None:
        self.driver = driver_of(pool)
        self.name, self.window, self.timeout, self.deadline = name, window, timeout, deadline
        self.session: str | None = None
        self._lock = self.driver.lock()
        self._lanes = self.driver.queue()
        self._made = False

    def send(self, payload: Any, work: Callable[[Any], Any]) -> Any:
        """Executes a request once, under the next number: as `run`. Waits while `window` others are in flight."""
        return self.driver.do(self._send(payload, work))

    def close(self) -> Any:
        """Ends the session, which else counts until its timeout."""
        return self.driver.do(self._close())

    async def _registered(self, ended: str | None = None) -> str:
        """The session; a new one where there is none, or none but the one that has ended."""
        await settle(self._lock.acquire())
        try:
            if self.session is None or self.session == ended:
                # Made before the first attempt, so that the same registration, asked for again, is one. By the
                # database: the time in it tells which of two registrations came first.
                (request_id,) = await ask(self.driver, self.deadline, "SELECT idem_generate_id()::text")
                args = (self.name, self.window, interval(self.timeout), request_id)
                self.session, granted = await ask(self.driver, self.deadline, _REGISTER, *args)
                if not self._made:
                    self._made = True
                    for place in range(1, granted + 1):
                        await settle(self._lanes.put(_Lane(place)))
                    self.window = granted
            assert self.session is not None
            return self.session
        finally:
            self._lock.release()

    async def _send(self, payload: Any, work: Callable[[Any], Any]) -> Answer:
        session = await self._registered()
        lane: _Lane = await settle(self._lanes.get())
        try:
            if lane.doubtful:
                await self._decide(lane)
            while True:
                session = await self._registered()
                if lane.session != session:
                    lane.session, lane.number = session, lane.place
                try:
                    return await self._sent(lane, payload, work)
                except Exception as error:
                    if sqlstate(error) != "ID004":
                        raise
                answer = await self._look_back(lane)
                await self._registered(ended=session)
                if answer:
                    return answer
        finally:
            await settle(self._lanes.put(lane))

    async def _sent(self, lane: _Lane, payload: Any, work: Callable[[Any], Any]) -> Answer:
        attempt = Attempt(self.driver, lane.session, lane.number, payload, wait=0.2, deadline=self.deadline)
        lane.doubtful = True
        try:
            answer = await attempt.answered(lambda: attempt.executed(work))
            lane.number += self.window
        except Exception as error:
            # What is final was rolled back, and the number is free. Of a lost connection nobody knows.
            lane.doubtful = isinstance(error, InProgress) or attempt.left(self.deadline) <= 0
            raise
        lane.doubtful = False
        return answer

    async def _decide(self, lane: _Lane) -> None:
        """Uses the number up, whether it was done or not: no late copy may take effect under it any more."""
        sql = "SELECT status FROM idem_settle(CAST($1 AS text), CAST($2 AS text))"
        try:
            (status,) = await ask(self.driver, self.deadline, sql, lane.session, str(lane.number))
        except Exception as error:
            if sqlstate(error) != "ID004":
                raise
            status = "cancelled"  # its session has ended
        if status == "in_progress":
            raise InProgress(lane.number)
        lane.number, lane.doubtful = lane.number + self.window, False

    async def _look_back(self, lane: _Lane) -> Answer | None:
        """What came of a number of a session that has ended, where nothing can be begun any more. None: it was not
        done."""
        attempt = Attempt(self.driver, lane.session, lane.number, deadline=self.deadline)

        async def look() -> Answer | None:
            try:
                found = await attempt.look_up()
            except Exception as error:
                if sqlstate(error) != "ID004":
                    raise
                return None  # not even the session is known: it never had an outcome
            if found.status in ("in_progress", "not_here"):
                raise InProgress(lane.number)
            if found.status == "suspended":
                raise Interrupted(lane.number)
            return found if found.replayed else None

        return await attempt.answered(look)

    async def _close(self) -> None:
        if self.session is not None:
            await ask(self.driver, self.deadline, "SELECT idem_close(CAST($1 AS text))", self.session)
            self.session = None
