"""A driver that blocks, called from an event loop: each call runs in a thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio

from ._await import T, finish, uninterrupted
from ._transactions import Driver, Statement, Tx

_limiters: dict[str, anyio.CapacityLimiter] = {}


def _limiter(name: str, most: float) -> anyio.CapacityLimiter:
    return _limiters.setdefault(name, anyio.CapacityLimiter(most))


class _ThreadedTx(Tx):
    """A call runs to its end even if the request is cancelled, so no two threads ever use the connection."""

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx.driver)
        self.tx, self.conn, self.errors = tx, tx.conn, tx.errors

    async def call(self, coroutine: Any) -> Any:
        # Not among the threads of the handlers: a request that has a connection never waits for a thread.
        unlimited = _limiter("use", math.inf)
        return await uninterrupted(anyio.to_thread.run_sync(lambda: finish(coroutine), limiter=unlimited))

    async def begin(self) -> None:
        await self.call(self.tx.begin())

    async def begin_with(self, sql: str, *args: Any) -> Any:
        return await self.call(self.tx.begin_with(sql, *args))

    async def commit(self, record: Statement | None = None, undo: bool = False) -> None:
        await self.call(self.tx.commit(record, undo))

    async def leave(self, commit: bool) -> None:
        await self.tx.leave(commit)  # in a thread, which does not end with the loop

    async def single(self, sql: str, *args: Any) -> list[Any]:
        rows: list[Any] = await self.call(self.tx.single(sql, *args))
        return rows

    async def query(self, sql: str, *args: Any) -> list[Any]:
        rows: list[Any] = await self.call(self.tx.query(sql, *args))
        return rows

    async def failed(self) -> bool:
        return bool(await self.call(self.tx.failed()))

    async def reported(self, error: BaseException) -> bool:
        return await self.tx.reported(error)

    def lost(self) -> bool:
        return self.tx.lost()

    async def close(self, abandoned: bool = False) -> None:
        await self.call(self.tx.close(abandoned))


class Threaded(Driver):
    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.source, asynchronous=True)
        self.blocking = driver

    async def call(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=_limiter("open", 40))

    async def open(self, timeout: float) -> Tx:
        async def close(tx: Tx) -> None:
            await _ThreadedTx(tx).close()

        opening = self.call(lambda: finish(self.blocking.open(timeout)))
        return _ThreadedTx(await uninterrupted(opening, undo=close))
