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
    """Sends the numbers of one slot of the window, one after the other: number n is sent after the answer to number
    n - window has arrived. `number` belongs to `session`. `doubtful`: it is not known whether that number was
    executed."""

    place: int
    session: str = ""
    number: int = 0
    doubtful: bool = False


class Client:
    """Registers under a name, which fences the former owner of that name, and sends requests with numbers of its own,
    as many at once as `window`. If its session has ended, it looks up what was executed there, and registers again.
    `timeout`: how long (seconds) the client may be silent before its session ends."""

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
        """Executes a request once, under the next number, as `run` does. Waits while `window` others are in flight."""
        return self.driver.do(self._send(payload, work))

    def close(self) -> Any:
        """Ends the session, which otherwise ends after its timeout."""
        return self.driver.do(self._close())

    async def _registered(self, ended: str | None = None) -> str:
        """The session; a new one if there is none, or if it is the one that has ended."""
        await settle(self._lock.acquire())
        try:
            if self.session is None or self.session == ended:
                # Created before the first attempt, so that a repeated registration is the same one. It is created
                # by the database, since its timestamp decides which of two registrations came first.
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
            # After a final error the number is free, since all was rolled back. After a lost connection the number
            # may have been executed.
            lane.doubtful = isinstance(error, InProgress) or attempt.left(self.deadline) <= 0
            raise
        lane.doubtful = False
        return answer

    async def _decide(self, lane: _Lane) -> None:
        """Settles the number, so that no late copy of its request takes effect any more."""
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
        """The outcome of a number of a session that has ended, in which nothing can be begun any more. None: it was
        not executed."""
        attempt = Attempt(self.driver, lane.session, lane.number, deadline=self.deadline)

        async def look() -> Answer | None:
            try:
                found = await attempt.look_up()
            except Exception as error:
                if sqlstate(error) != "ID004":
                    raise
                return None  # the session is unknown, so it never had an outcome
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
