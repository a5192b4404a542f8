"""asyncpg: pools, and functions that connect.

asyncpg waits for the answer to each call, but it sends several statements in one simple query. Such a query returns no
rows, so the ticket of `begin` is read back from a setting that lives as long as the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

from asyncpg.pool import PoolConnectionProxy  # type: ignore[import-untyped]
from asyncpg.transaction import TransactionState  # type: ignore[import-untyped]

from ._errors import Spoilt, sqlstate
from ._transactions import SAVEPOINT, UNDO, Driver, Fetch, Statement, Tx

_TICKET = "idempotence_client.ticket"


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"'{value}'"
    escaped = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def with_literals(sql: str, args: tuple[Any, ...]) -> str:
    return re.sub(r"\$(\d+)", lambda found: literal(args[int(found[1]) - 1]), sql)


class BorrowedTx(Tx):
    """The transaction of a connection that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        fetched = [tuple(row) for row in await self.conn.fetch(sql, *args)]

        async def fetch() -> list[Any]:
            return fetched

        return fetch


class AsyncpgTx(BorrowedTx):
    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        self.raw = getattr(conn, "_con", conn)  # a pool lends a proxy, which it disables when it takes it back
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
        await self.execute("BEGIN")

    async def begin_with(self, sql: str, *args: Any) -> Any:
        row = f"(SELECT row_to_json(ticket)::text FROM ({with_literals(sql, args)}) ticket)"
        with self.noting_errors():
            await self.execute(f"BEGIN; SELECT set_config('{_TICKET}', {row}, true); {SAVEPOINT}")
            self.has_savepoint = True
            (ticket,) = (await self.query(f"SELECT current_setting('{_TICKET}')"))[0]
            return tuple(json.loads(ticket).values())

    async def commit(self, record: Statement | None = None, undo: bool = False) -> None:
        statements = [UNDO] if undo and self.has_savepoint else []
        statements += [with_literals(*record)] if record else []
        with self.noting_errors():
            await self.retire()
            await self.end("; ".join([*statements, "COMMIT"]))

    async def end(self, sql: str = "COMMIT") -> None:
        tag = await self.execute(sql)
        if tag != "COMMIT":
            raise Spoilt

    async def single(self, sql: str, *args: Any) -> list[Any]:
        with self.noting_errors():
            return await self.query(sql, *args)

    async def execute(self, sql: str) -> str:
        """Executes statements one of which begins or ends the transaction. asyncpg must know whether one is open:
        else its own `transaction()` refuses to be a savepoint in it, and its pool reports one that was left open."""
        raw = self.raw
        if sql.startswith("BEGIN"):
            transaction = raw.transaction()
            tag: str = await self.conn.execute(sql)
            transaction._state, transaction._managed, raw._top_xact = TransactionState.STARTED, True, transaction
        else:
            tag = await self.conn.execute(sql)
            raw._top_xact = None
        return tag

    async def failed(self) -> bool:
        try:
            await self.conn.execute("SELECT 1")
        except Exception as error:
            return sqlstate(error) == "25P02"
        return False

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
        await (source.release(self.conn) if hasattr(source, "release") else self.conn.close())


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
