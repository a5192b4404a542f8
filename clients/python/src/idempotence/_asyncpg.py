"""asyncpg: pools, and functions that connect."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from asyncpg.pool import PoolConnectionProxy  # type: ignore[import-untyped]
from asyncpg.transaction import TransactionState  # type: ignore[import-untyped]

from ._await import later
from ._errors import sqlstate
from ._simple import Link, SimpleTx, literal
from ._transactions import Driver, Fetch, Tx


class AsyncpgLink(Link):
    """asyncpg returns no rows of a simple query, but it does return messages. So the value of an expression comes in a
    message of the level INFO, which every client receives whatever its settings are.

    asyncpg sends and executes a statement in two steps. Outside of a transaction PgBouncer may pass the second one to
    another connection, so no such statement is used there."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.message: str | None = None

    async def execute(self, sql: str) -> str:
        """Executes statements one of which begins or ends the transaction. asyncpg must know whether one is open:
        else its own `transaction()` refuses to be a savepoint in it, and its pool reports one that was left open."""
        raw = self.raw
        if sql.startswith("BEGIN"):
            transaction = raw.transaction()
            tag: str = await raw.execute(sql)
            transaction._state, transaction._managed, raw._top_xact = TransactionState.STARTED, True, transaction
        else:
            tag = await raw.execute(sql)
            if not raw.is_in_transaction():
                raw._top_xact = None
        return tag

    async def evaluate(self, before: list[str], expression: str, after: list[str]) -> str:
        block = literal(f"BEGIN RAISE INFO USING MESSAGE = {expression}; END")
        self.message = None
        self.raw.add_log_listener(self.receive)
        try:
            await self.execute("; ".join([*before, f"DO {block}", *after]))
        finally:
            with contextlib.suppress(Exception):
                self.raw.remove_log_listener(self.receive)
        if self.message is None:
            raise RuntimeError("a message of the server has not arrived: what is in between must pass them on")
        return self.message

    def receive(self, connection: Any, message: Any) -> None:
        if message.severity_en == "INFO":
            self.message = message.message


def is_asyncpg(raw: Any) -> bool:
    return isinstance(raw, asyncpg.Connection)


async def fetched(conn: Any, sql: str, *args: Any) -> Fetch:
    rows = [tuple(row) for row in await conn.fetch(sql, *args)]

    async def fetch() -> list[Any]:
        return rows

    return fetch


async def has_failed(raw: Any) -> bool:
    try:
        await raw.execute("SELECT 1")
    except Exception as error:
        return sqlstate(error) == "25P02"
    return False


class BorrowedTx(Tx):
    """The transaction of a connection that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        return await fetched(self.conn, sql, *args)


class AsyncpgTx(SimpleTx):
    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn
        self.raw = getattr(conn, "_con", conn)  # a pool lends a proxy, which it disables when it takes it back
        self.link = AsyncpgLink(self.raw)
        self.conn.add_query_logger(self.note)

    async def retire(self) -> None:
        """Disables the connection that the pool has lent, as the pool does when it takes it back."""
        if isinstance(self.conn, PoolConnectionProxy) and self.conn._con is not None:
            holder = self.conn._holder
            self.conn._detach()
            self.raw._pool_release_ctr += 1  # prepared statements and cursors
            self.conn = holder._proxy = PoolConnectionProxy(holder, self.raw)

    def note(self, query: Any) -> None:
        if query.exception is not None:
            self.errors.append(query.exception)

    async def start(self) -> None:
        await self.control("BEGIN")

    async def end(self) -> None:
        await self.control("COMMIT")

    async def ended(self) -> None:
        self.check_tag()

    async def send_alone(self, sql: str, *args: Any) -> Fetch:
        return await fetched(self.conn, sql, *args)

    async def failed(self) -> bool:
        return await has_failed(self.conn)

    async def reported(self, error: BaseException) -> bool:
        await asyncio.sleep(0)  # asyncpg calls `note` in the next iteration of the loop
        return await super().reported(error) or (not self.lost() and await self.failed())

    def lost(self) -> bool:
        return bool(self.raw.is_closed())

    def disconnect(self) -> None:
        with contextlib.suppress(Exception):
            self.raw.terminate()

    async def close(self, abandoned: bool = False) -> None:
        # The pool rolls back what is open, and replaces a connection that is gone or that a statement still uses.
        source = self.driver.source
        with contextlib.suppress(Exception):
            self.conn.remove_query_logger(self.note)
        if not hasattr(source, "release"):
            await self.conn.close()
        elif self.over:
            await later(source.release(self.conn), asynchronous=True)  # it asks the server to reset the connection
        else:
            await source.release(self.conn)


class Asyncpg(Driver):
    def __init__(self, source: Any) -> None:
        super().__init__(source, asynchronous=True)
        self.initializing: asyncio.Lock | None = None

    async def open(self, timeout: float) -> Tx:
        if not hasattr(self.source, "acquire"):
            return AsyncpgTx(self, await self.source())
        await self.initialize()
        return AsyncpgTx(self, await self.source.acquire(timeout=timeout))

    async def initialize(self) -> None:
        """A pool that was created when a module was imported has not connected yet, and may have been given a loop that
        never runs."""
        pool, loop = self.source, asyncio.get_running_loop()
        if pool._initialized:
            if pool._loop is not loop:
                raise RuntimeError(
                    "the pool of asyncpg belongs to another event loop: create it without awaiting it, or in the"
                    " application's lifespan"
                )
            return
        self.initializing = self.initializing or asyncio.Lock()
        async with self.initializing:
            if not pool._initialized:
                pool._loop = loop
                await pool
