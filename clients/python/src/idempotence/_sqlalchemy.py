"""SQLAlchemy: engines and session factories, blocking and asynchronous.

A session joins the connection's transaction as SQLAlchemy's own recipe for test suites does: its commit and rollback
end a savepoint of its own. Our savepoint is below it. With psycopg 3 the statements of SQLAlchemy are sent in the
pipeline of the driver's connection; other drivers wait for each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.exc import PendingRollbackError

from ._await import settle
from ._errors import Spoilt, TransactionEnded, sqlstate
from ._transactions import Driver, Fetch, Statement, Tx

try:
    from . import _psycopg
except ImportError:  # SQLAlchemy also works with other drivers
    _psycopg = None  # type: ignore[assignment]


class BorrowedTx(Tx):
    """The transaction of a connection or session that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        return await send(self.conn, sql, *args)


async def send(conn: Any, sql: str, *args: Any) -> Fetch:
    named = {f"p{number}": value for number, value in enumerate(args, 1)}
    result = await settle(conn.execute(text(re.sub(r"\$(\d+)", r":p\1", sql)), named))
    fetched = [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    async def fetch() -> list[Any]:
        return fetched

    return fetch


def _caller() -> Any:
    """The thread and the task that are running."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


def _note(context: Any) -> None:
    """Called for each error of an engine. The transaction of the connection notes it."""
    tx = context.connection and context.connection.info.get("idempotence")
    if tx is None:
        return
    errors = (context.original_exception, context.sqlalchemy_exception)
    tx.errors += [error for error in errors if isinstance(error, Exception)]
    tx.cancelled = tx.cancelled or not isinstance(context.original_exception, Exception)


class SqlalchemyTx(Tx):
    def __init__(self, driver: Driver, connection: Any, raw: Any, make_session: Any) -> None:
        super().__init__(driver)
        self.connection, self.raw = connection, raw
        # The blocking connection, also of an asynchronous one.
        self.sync: Any = getattr(connection, "sync_connection", connection)
        self.pipelined = _psycopg is not None and _psycopg.is_psycopg(raw)
        self.nested: Any = None
        self.session: Any = None
        self.owner: Any = None
        # Whether a statement was cancelled. SQLAlchemy then closes the connection.
        self.cancelled = False
        self.sync.info["idempotence"] = self
        engine = self.sync.engine
        if not event.contains(engine, "handle_error", _note):
            event.listen(engine, "handle_error", _note)
        event.listen(self.sync, "before_cursor_execute", self.guard)
        if make_session is None:
            self.conn = connection
        else:
            self.conn = self.session = make_session(
                bind=connection, join_transaction_mode="create_savepoint", close_resets_only=False
            )

    def guard(self, *_: Any) -> None:
        """Called before each statement. Once the handler has returned, only the adapter executes any."""
        if self.owner is not None and self.owner != _caller():
            raise TransactionEnded

    async def retire(self) -> None:
        self.owner = _caller()
        if self.pipelined:
            await _psycopg.quiet(self.raw)

    async def start(self) -> None:
        self.root = await settle(self.connection.begin())
        if self.pipelined:
            await _psycopg.begin(self.raw)

    async def send(self, sql: str, *args: Any) -> Fetch:
        if self.pipelined:
            return _psycopg.rows(await _psycopg.execute(self.raw, sql, *args))
        if not self.sync.in_transaction():
            self.root = await settle(self.connection.begin())
        return await send(self.connection, sql, *args)

    async def set_savepoint(self) -> None:
        self.nested = await settle(self.connection.begin_nested())
        if self.session is not None:
            await settle(self.session.connection())  # sets the savepoint of the session

    async def flush(self) -> None:
        if self.session is not None:
            try:
                await settle(self.session.flush())
            except PendingRollbackError as error:
                raise Spoilt from error

    async def release(self) -> None:
        if self.pipelined and _psycopg.has_failed(self.raw):
            raise Spoilt
        if self.session is not None:
            await settle(self.session.commit())
        if self.nested is not None:
            await settle(self.nested.commit())

    async def undo(self) -> None:
        if self.session is not None:
            await settle(self.session.close())
        await settle(self.nested.rollback())

    async def commit(self, record: Statement | None = None, undo: bool = False) -> None:
        if not self.has_savepoint and self.session is not None and not undo:
            with self.noting_errors():
                await self.retire()
                await self.flush()
                await self.release()
        await super().commit(record, undo)

    async def end(self) -> None:
        if self.pipelined:
            self.committed = await _psycopg.execute(self.raw, "COMMIT")
            return
        if await self.failed():
            raise Spoilt
        await settle(self.connection.commit())

    async def ended(self) -> None:
        if self.pipelined:
            _psycopg.check_tag(self.committed)
            await settle(self.connection.commit())  # SQLAlchemy's part of it: the server is not asked again

    def folded(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return _psycopg.pipeline(self.raw) if self.pipelined else contextlib.nullcontext()

    async def failed(self) -> bool:
        if self.session is not None and not self.session.is_active:
            return True
        if self.pipelined:
            return _psycopg.has_failed(self.raw)
        try:
            await settle(self.connection.exec_driver_sql("SELECT 1"))
        except Exception as error:
            return sqlstate(error) == "25P02"
        return False

    def lost(self) -> bool:
        return bool(self.sync.invalidated or self.sync.closed or (self.pipelined and self.raw.closed))

    async def retryable(self, error: BaseException) -> bool:
        # The handler has cancelled its statement, for example by asyncio.wait_for(), and would do so again.
        return not self.cancelled and await super().retryable(error)

    def disconnect(self) -> None:
        if self.pipelined:
            _psycopg.disconnect(self.raw)

    async def close(self, abandoned: bool = False) -> None:
        self.owner = _caller()
        if not self.sync.closed and not self.sync.invalidated:
            self.sync.info.pop("idempotence", None)
            if self.pipelined and not self.raw.closed and (abandoned or self.raw.lock.locked()):
                await _psycopg.break_off(self.raw)
            if abandoned or (self.pipelined and self.raw.closed):
                await settle(self.connection.invalidate())
        try:
            if self.session is not None:
                await settle(self.session.close())
        finally:
            await settle(self.connection.close())


class Sqlalchemy(Driver):
    """`source` is an engine or a session factory."""

    async def open(self, timeout: float) -> Tx:
        engine, make_session = self.source, None
        if not hasattr(engine, "connect"):
            make_session, engine = self.source, getattr(self.source, "kw", {}).get("bind")
            if engine is None:
                raise TypeError("the session factory has no engine: make it with bind=…")
        connection = await settle(engine.connect())
        if self.asynchronous:
            raw = (await connection.get_raw_connection()).driver_connection
        else:
            raw = connection.connection.driver_connection
        return SqlalchemyTx(self, connection, raw, make_session)
