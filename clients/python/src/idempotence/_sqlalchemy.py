"""SQLAlchemy: engines and session factories, blocking and asynchronous.

A session joins the connection's transaction as SQLAlchemy's own recipe for test suites does: its commit and rollback
end a savepoint of its own. Our savepoint is below it. SQLAlchemy sets and releases both. With psycopg 3 these
statements are sent in the pipeline of the driver's connection; with asyncpg and psycopg2 they are collected, and sent
in one simple query together with those of the adapter; other drivers wait for each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.sql.expression import ReleaseSavepointClause, RollbackToSavepointClause, SavepointClause

from ._await import finish, settle
from ._errors import Spoilt, TransactionEnded, sqlstate
from ._simple import SimpleTx
from ._transactions import Driver, Fetch, Tx, begin_words

try:
    from . import _psycopg
except ImportError:  # SQLAlchemy also works with other drivers
    _psycopg = None  # type: ignore[assignment]
try:
    from . import _psycopg2
except ImportError:
    _psycopg2 = None  # type: ignore[assignment]
try:
    from . import _asyncpg
except ImportError:
    _asyncpg = None  # type: ignore[assignment]

_SAVEPOINTS = (SavepointClause, ReleaseSavepointClause, RollbackToSavepointClause)


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


def _guard(connection: Any, *_: Any) -> None:
    """Called before each statement of an engine."""
    tx = connection.info.get("idempotence")
    if tx is not None:
        tx.guard()


def _intercept(context: Any, statement: str) -> bool:
    """Called for each statement of an engine in place of its execution. True: it is executed later."""
    tx = context.root_connection.info.get("idempotence")
    if tx is None:
        return False
    if isinstance(getattr(context.compiled, "statement", None), _SAVEPOINTS):
        return bool(tx.keep_back(statement))
    tx.interrupt()
    return False


def _on_execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    return _intercept(context, statement)


def _on_execute_without_parameters(cursor: Any, statement: str, context: Any) -> bool:
    return _intercept(context, statement)


def _watch(engine: Any) -> None:
    if not event.contains(engine, "handle_error", _note):
        event.listen(engine, "handle_error", _note)
        event.listen(engine, "before_cursor_execute", _guard)
        event.listen(engine, "do_execute", _on_execute)
        event.listen(engine, "do_executemany", _on_execute)
        event.listen(engine, "do_execute_no_params", _on_execute_without_parameters)


class SqlalchemyTx(Tx):
    """With any driver."""

    def __init__(self, driver: Driver, connection: Any, raw: Any, make_session: Any) -> None:
        super().__init__(driver)
        self.connection, self.raw = connection, raw
        # The blocking connection, also of an asynchronous one.
        self.sync: Any = getattr(connection, "sync_connection", connection)
        self.root: Any = None
        self.nested: Any = None
        self.session: Any = None
        self.owner: Any = None
        # Whether a statement was cancelled. SQLAlchemy then closes the connection.
        self.cancelled = False
        self.sync.info["idempotence"] = self
        _watch(self.sync.engine)
        if make_session is None:
            self.conn = connection
        else:
            self.conn = self.session = make_session(
                bind=connection, join_transaction_mode="create_savepoint", close_resets_only=False
            )

    # The parts that the driver's connection `raw` has.

    async def has_failed(self) -> bool:
        try:
            await settle(self.connection.exec_driver_sql("SELECT 1"))
        except Exception as error:
            return sqlstate(error) == "25P02"
        return False

    def is_gone(self) -> bool:
        return False

    def is_busy(self) -> bool:
        """Whether a thread or task is executing a statement."""
        return False

    async def break_off(self) -> None:
        """Closes the connection while a statement is running."""

    async def roll_back(self) -> None:
        """Ends the transaction if SQLAlchemy does not know of it."""

    def keep_back(self, statement: str) -> bool:
        """Called before SQLAlchemy executes the statement of a savepoint. True: it is sent later, with others."""
        return False

    def interrupt(self) -> None:
        """Called before SQLAlchemy executes any other statement, within its own code. While the adapter begins or
        commits, a hook of the session does so: it waits for the answer, so what precedes it is sent first."""

    # The parts that all drivers have in common.

    def guard(self) -> None:
        """Called before each statement. Once the handler has returned, only the adapter executes any."""
        if self.owner is not None and self.owner != _caller():
            raise TransactionEnded

    async def retire(self) -> None:
        self.owner = _caller()

    async def start(self) -> None:
        self.root = await settle(self.connection.begin())

    async def send(self, sql: str, *args: Any) -> Fetch:
        if not self.sync.in_transaction():
            await self.start()
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
        if self.session is not None:
            await settle(self.session.commit())
        if self.nested is not None:
            await settle(self.nested.commit())

    async def undo(self) -> None:
        if self.session is not None:
            await settle(self.session.close())
        await settle(self.nested.rollback())

    async def end(self) -> None:
        if await self.failed():
            raise Spoilt
        await settle(self.connection.commit())

    async def failed(self) -> bool:
        if self.session is not None and not self.session.is_active:
            return True
        return await self.has_failed()

    def lost(self) -> bool:
        return bool(self.sync.invalidated or self.sync.closed or self.is_gone())

    async def retryable(self, error: BaseException) -> bool:
        # The handler has cancelled its statement, for example by asyncio.wait_for(), and would do so again.
        return not self.cancelled and await super().retryable(error)

    async def close(self, abandoned: bool = False) -> None:
        self.owner = _caller()
        if self.is_usable():
            if not self.is_gone() and (abandoned or self.is_busy()):
                await self.break_off()
            if abandoned or self.is_gone():
                await settle(self.connection.invalidate())
        try:
            try:
                if self.session is not None:
                    await self.close_session()
            finally:
                if self.is_usable():
                    await self.roll_back()
        finally:
            if self.is_usable():
                self.sync.info.pop("idempotence", None)
            await settle(self.connection.close())

    async def close_session(self) -> None:
        await settle(self.session.close())

    def run_within(self, work: Coroutine[Any, Any, Any]) -> None:
        """Awaits from within SQLAlchemy's own code, which does not."""
        if self.driver.asynchronous:
            self.sync.connection.dbapi_connection.run_async(lambda _: work)
        else:
            finish(work)

    def is_usable(self) -> bool:
        return not self.sync.closed and not self.sync.invalidated


class PsycopgTx(SqlalchemyTx):
    pipe: contextlib.AsyncExitStack | None = None

    @contextlib.asynccontextmanager
    async def folded(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as pipe:
            await pipe.enter_async_context(_psycopg.pipeline(self.raw))
            self.pipe = pipe
            try:
                yield
            finally:
                self.pipe = None

    def interrupt(self) -> None:
        """Ends the pipeline. The remaining statements are sent one by one."""
        pipe, self.pipe = self.pipe, None
        if pipe is not None:
            self.run_within(pipe.aclose())

    async def has_failed(self) -> bool:
        return _psycopg.has_failed(self.raw)

    def is_gone(self) -> bool:
        return bool(self.raw.closed)

    def is_busy(self) -> bool:
        return bool(self.raw.lock.locked())

    async def break_off(self) -> None:
        await _psycopg.break_off(self.raw)

    async def retire(self) -> None:
        await super().retire()
        await _psycopg.quiet(self.raw)

    async def start(self) -> None:
        await super().start()
        await _psycopg.begin(self.raw)

    async def send(self, sql: str, *args: Any) -> Fetch:
        return _psycopg.rows(await _psycopg.execute(self.raw, sql, *args))

    async def release(self) -> None:
        if _psycopg.has_failed(self.raw):
            raise Spoilt
        await super().release()

    async def end(self) -> None:
        self.committed = await _psycopg.execute(self.raw, "COMMIT")

    async def ended(self) -> None:
        _psycopg.check_tag(self.committed)
        await settle(self.connection.commit())  # SQLAlchemy's part of it: the server is not asked again

    def pipelined(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return _psycopg.pipeline(self.raw)

    def disconnect(self) -> None:
        _psycopg.disconnect(self.raw)


class CollectingTx(SimpleTx, SqlalchemyTx):
    def keep_back(self, statement: str) -> bool:
        if self.collected is None:
            return False
        self.collected.append(statement)
        return True

    def interrupt(self) -> None:
        if self.collected is not None:
            self.run_within(self.send_collected())

    async def send_alone(self, sql: str, *args: Any) -> Fetch:
        return await send(self.connection, sql, *args)

    async def close_session(self) -> None:
        self.collected = []  # ROLLBACK TO SAVEPOINT is not sent, since ROLLBACK follows
        try:
            await super().close_session()
        finally:
            self.collected = None


class AsyncpgTx(CollectingTx):
    """SQLAlchemy's adapter of asyncpg waits for the answer to BEGIN. In autocommit mode it sends no BEGIN and no
    COMMIT, so this transaction sends both, with the options that the adapter would use."""

    def __init__(self, driver: Driver, connection: Any, raw: Any, make_session: Any) -> None:
        super().__init__(driver, connection, raw, make_session)
        self.link = _asyncpg.AsyncpgLink(raw)
        self.dbapi: Any = self.sync.connection.dbapi_connection
        level = self.dbapi.isolation_level
        options = None if level == "autocommit" else level, self.dbapi.readonly or None, self.dbapi.deferrable or None
        self.begin_words, self.autocommit = begin_words(*options), self.dbapi.autocommit
        self.dbapi.autocommit = True

    async def has_failed(self) -> bool:
        return await _asyncpg.has_failed(self.raw)

    def is_gone(self) -> bool:
        return bool(self.raw.is_closed())

    async def start(self) -> None:
        await SqlalchemyTx.start(self)
        await self.control(self.begin_words)

    async def end(self) -> None:
        await self.control("COMMIT")

    async def ended(self) -> None:
        self.check_tag()
        await settle(self.connection.commit())  # SQLAlchemy's part of it: the server is not asked again

    async def roll_back(self) -> None:
        """SQLAlchemy takes the connection for one without a transaction."""
        try:
            if self.raw.is_in_transaction():
                await self.link.execute("ROLLBACK")
            self.dbapi.autocommit = self.autocommit
        except BaseException:
            await settle(self.connection.invalidate())
            raise

    def disconnect(self) -> None:
        with contextlib.suppress(Exception):
            self.raw.terminate()


class Psycopg2Tx(CollectingTx):
    """psycopg2 sends BEGIN and COMMIT by itself, and waits for their answers."""

    implicit = True

    def __init__(self, driver: Driver, connection: Any, raw: Any, make_session: Any) -> None:
        super().__init__(driver, connection, raw, make_session)
        self.link = _psycopg2.Psycopg2Link(raw)

    async def has_failed(self) -> bool:
        return _psycopg2.has_failed(self.raw)

    def is_gone(self) -> bool:
        return bool(self.raw.closed)

    def is_busy(self) -> bool:
        return _psycopg2.is_busy(self.raw)

    async def break_off(self) -> None:
        _psycopg2.break_off(self.raw)

    def lost(self) -> bool:
        return bool(self.sync.invalidated or self.sync.closed or _psycopg2.is_lost(self.raw))

    async def retire(self) -> None:
        await super().retire()
        _psycopg2.quiet(self.raw)

    async def end(self) -> None:
        """COMMIT is sent by `ended`."""

    async def ended(self) -> None:
        with self.noting_errors():
            if await self.failed():
                raise Spoilt
            await settle(self.connection.commit())

    def disconnect(self) -> None:
        _psycopg2.disconnect(self.raw)


def kind_of(raw: Any) -> type[SqlalchemyTx]:
    if _psycopg is not None and _psycopg.is_psycopg(raw):
        return PsycopgTx
    if _psycopg2 is not None and _psycopg2.is_psycopg2(raw):
        return Psycopg2Tx
    if _asyncpg is not None and _asyncpg.is_asyncpg(raw):
        return AsyncpgTx
    return SqlalchemyTx


class Sqlalchemy(Driver):
    """`source` is an engine or a session factory."""

    async def open(self, timeout: float) -> Tx:
        engine, make_session = self.source, None
        if not hasattr(engine, "connect"):
            make_session, engine = self.source, getattr(self.source, "kw", {}).get("bind")
            if engine is None:
                raise TypeError("the session factory has no engine: make it with bind=…")
        connection = await settle(engine.connect())
        try:
            if self.asynchronous:
                raw = (await connection.get_raw_connection()).driver_connection
            else:
                raw = connection.connection.driver_connection
            return kind_of(raw)(self, connection, raw, make_session)
        except BaseException:
            await settle(connection.close())
            raise
