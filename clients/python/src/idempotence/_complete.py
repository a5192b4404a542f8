"""Completes requests that nobody retries: their lease has expired, or they stopped at a checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ._errors import InProgress, Superseded
from ._lease import Done, Lease, worked
from ._run import Attempt, working_driver
from ._transactions import Driver

log = logging.getLogger("idempotence")

# The back-off counts from the end of the last attempt, and all completers see the same count. A request that stopped at
# a checkpoint without a lease has no attempt.
_ABANDONED = """
SELECT request, coalesce(attempt, 1) FROM idempotence.unfinished
WHERE session = CAST($1 AS text) AND last IS NULL
  AND coalesce(leased_until, since) + make_interval(secs =>
        least(CAST(CAST($2 AS text) AS float8) * 2 ^ (least(coalesce(attempt, 1), 20) - 1), 300)) <= clock_timestamp()
ORDER BY since LIMIT 100
"""


class _Completer:
    def __init__(
        self,
        driver: Driver,
        session: str,
        handler: Callable[[Lease], Any],
        lease: float,
        interval: float | None,
        grace: float,
        max_attempts: int | None,
        stop: Any,
        deadline: float,
    ) -> None:
        self.driver, self.session, self.handler, self.seconds = driver, session, handler, lease
        self.interval, self.grace, self.max_attempts = interval, grace, max_attempts
        self.stop, self.deadline = stop, deadline
        self.left: set[str] = set()

    @property
    def stopped(self) -> bool:
        return self.stop is not None and bool(self.stop.is_set())

    async def run(self) -> int:
        completed = 0
        while not self.stopped:
            try:
                done, found = await self.go_over()
            except Exception:
                if self.interval is None:
                    raise
                log.exception("the abandoned requests of %s cannot be read", self.session)
                done = found = 0
            completed += done
            if self.interval is None:
                break
            if not done or not found:
                await self.pause(self.interval)
        return completed

    async def go_over(self) -> tuple[int, int]:
        """Takes over every abandoned request. Returns how many were completed, and how many there were."""
        attempt, completed = Attempt(self.driver, "", deadline=self.deadline), 0

        async def read() -> list[Any]:
            tx = await attempt.open()
            return await tx.single(_ABANDONED, self.session, str(self.grace))

        found = await attempt.answered(read)
        for request, attempts in found:
            if self.stopped:
                break
            if self.max_attempts is not None and attempts >= self.max_attempts:
                if request not in self.left:
                    self.left.add(request)
                    log.error("the request %s of %s was begun %s times: it is left", request, self.session, attempts)
                continue
            completed += await self.complete(request)
        return completed, len(found)

    async def complete(self, request: str) -> bool:
        held = Lease(self.driver, self.session, request, None, self.seconds, 0, self.deadline, 0)
        try:
            await worked(held, self.handler)
        except (Done, InProgress, Superseded):
            return False  # another process was faster
        except Exception:
            # The lease expires, and the next attempt follows after the back-off.
            log.exception("the request %s of %s is not completed", request, self.session)
            return False
        return held.answer is not None

    async def pause(self, seconds: float) -> None:
        await self.driver.leave()
        if self.stop is None:
            await self.driver.sleep(seconds)
        elif self.driver.asynchronous:
            try:
                await asyncio.wait_for(self.stop.wait(), seconds)
            except TimeoutError:
                pass
        else:
            self.stop.wait(seconds)


def complete(
    pool: Any,
    session: str,
    handler: Callable[[Lease], Any],
    *,
    lease: float = 30,
    interval: float | None = 5,
    grace: float = 10,
    max_attempts: int | None = None,
    stop: Any = None,
    deadline: float = 30,
) -> Any:
    """Finds the requests of a session that were begun and are abandoned: their lease has expired, or they stopped at a
    checkpoint. Takes each over and calls handler(lease), which finds `key`, `point`, `state` and `taken_over` there,
    and whose response is recorded. Any number of completers may run. Returns how many requests it has completed.

    interval: the pause (seconds) between two searches; None: one search. grace: how long a request must have been
    abandoned, so that its client can retry first; doubled after each attempt, up to 5 minutes. max_attempts: a request
    that was begun so often is left, and logged; the session's own `max_attempts` records a failure instead. stop: an
    Event of threading, or of asyncio for an asynchronous pool; once it is set, the current request is completed and the
    function returns. An exception of the handler is logged, and the lease expires."""
    driver = working_driver(pool, session, handler)
    return driver.do(_Completer(driver, session, handler, lease, interval, grace, max_attempts, stop, deadline).run())
