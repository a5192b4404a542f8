"""One face for all drivers: a source of transactions.

All methods are coroutines. Those of a driver that blocks never suspend, so `finish` runs them to their end; those of an
asynchronous driver are awaited. So everything above is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise TypeError(
        "a coroutine, from a source of connections that blocks: give an asynchronous pool, engine or function"
    )


async def settle(value: Any) -> Any:
    """A value that a blocking driver has returned, or that an asynchronous one will."""
    return await value if inspect.isawaitable(value) else value


class Tx:
    """A transaction that is open. Statements have their arguments as $1, $2 … in this order."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        self.driver, self.conn = driver, conn

    async def query(self, sql: str, *args: Any) -> list[Any]:
        raise NotImplementedError

    async def commit(self) -> None:
        await settle(self.conn.commit())

    def lost(self, error: BaseException) -> bool:
        """Whether the connection is gone."""
        return bool(getattr(self.conn, "closed", False))

    async def started(self, beginning: Awaitable[Any]) -> None:
        """A connection on which no transaction can be begun goes back."""
        try:
            await beginning
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Gives the connection back. What is not committed is rolled back, or the connection is not used again."""

    @contextlib.asynccontextmanager
    async def pipeline(self) -> AsyncIterator[None]:
        """In it statements need not be answered before the next ones are sent."""
        yield


class Driver:
    """Where transactions come from."""

    asynchronous = False

    def __init__(self, source: Any, asynchronous: bool = False) -> None:
        self.source, self.asynchronous = source, asynchronous

    async def open(self, timeout: float) -> Tx:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds) if self.asynchronous else time.sleep(seconds)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """The result, or of an asynchronous driver what gives it when it is awaited."""
        return coroutine if self.asynchronous else finish(coroutine)

    async def leave(self) -> None:
        """This thread asks for nothing more."""

    async def call(self, function: Callable[[], T]) -> T:
        """Calls a function that may block for as long as this driver does."""
        return function()

    def lock(self) -> Any:
        return asyncio.Lock() if self.asynchronous else threading.Lock()

    def queue(self) -> Any:
        return asyncio.Queue() if self.asynchronous else queue.SimpleQueue()


class PsycopgTx(Tx):
    in_pipeline = False

    async def query(self, sql: str, *args: Any) -> list[Any]:
        import psycopg
        from psycopg.rows import tuple_row

        # Not the connection's own kind of cursor, which may want another style of arguments, or give other rows.
        cursor: Any = (psycopg.AsyncCursor if self.driver.asynchronous else psycopg.Cursor)(
            self.conn, row_factory=tuple_row
        )
        await settle(cursor.execute(re.sub(r"\$\d+", "%s", sql), args or None))
        return [] if self.in_pipeline or cursor.description is None else list(await settle(cursor.fetchall()))

    async def commit(self) -> None:
        await (self.query("COMMIT") if self.in_pipeline else super().commit())

    async def close(self) -> None:
        try:
            if not self.conn.closed:
                await settle(self.conn.rollback())
        finally:
            source = self.driver.source
            await settle(source.putconn(self.conn) if hasattr(source, "putconn") else self.conn.close())

    @contextlib.asynccontextmanager
    async def pipeline(self) -> AsyncIterator[None]:
        # BEGIN and COMMIT go with the rest: psycopg's own would be waited for.
        was, pipeline = self.conn.autocommit, self.conn.pipeline()
        await self.set_autocommit(True)
        try:
            async with contextlib.AsyncExitStack() as stack:
                _ = (
                    await stack.enter_async_context(pipeline)
                    if self.driver.asynchronous
                    else stack.enter_context(pipeline)
                )
                self.in_pipeline = True
                await self.query("BEGIN")
                yield
        finally:
            self.in_pipeline = False
            if not self.conn.closed:
                await settle(self.conn.rollback())
                await self.set_autocommit(was)

    async def set_autocommit(self, value: bool) -> None:
        if self.conn.autocommit != value:
            await settle(self.conn.set_autocommit(value))


class Psycopg(Driver):
    async def open(self, timeout: float) -> Tx:
        if hasattr(self.source, "getconn"):
            conn = await settle(self.source.getconn(timeout=min(timeout, self.source.timeout)))
        else:
            conn = await settle(self.source())
        tx = PsycopgTx(self, conn)
        if conn.autocommit:
            await tx.started(tx.query("BEGIN"))
        return tx


class AsyncpgTx(Tx):
    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        self.transaction = conn.transaction()

    async def query(self, sql: str, *args: Any) -> list[Any]:
        return [tuple(row) for row in await self.conn.fetch(sql, *args)]

    async def commit(self) -> None:
        await self.transaction.commit()

    def lost(self, error: BaseException) -> bool:
        try:
            return bool(self.conn.is_closed())
        except Exception:
            return True  # the pool has taken it back, since it is closed

    async def close(self) -> None:
        # asyncpg's pool rolls back what is open, and puts another connection in the place of one that is gone.
        source = self.driver.source
        await (source.release(self.conn) if hasattr(source, "release") else self.conn.close())


class Asyncpg(Driver):
    async def open(self, timeout: float) -> Tx:
        source = self.source
        tx = AsyncpgTx(self, await (source.acquire(timeout=timeout) if hasattr(source, "acquire") else source()))
        await tx.started(tx.transaction.start())
        return tx


class SqlalchemyTx(Tx):
    """Of a Connection or a Session, blocking or not: what is used of them is the same."""

    async def query(self, sql: str, *args: Any) -> list[Any]:
        from sqlalchemy import text

        named = {f"p{number}": value for number, value in enumerate(args, 1)}
        result = await settle(self.conn.execute(text(re.sub(r"\$(\d+)", r":p\1", sql)), named))
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    def lost(self, error: BaseException) -> bool:
        return bool(getattr(error, "connection_invalidated", False) or getattr(self.conn, "invalidated", False))

    async def close(self) -> None:
        await settle(self.conn.close())


class Sqlalchemy(Driver):
    async def open(self, timeout: float) -> Tx:
        make = getattr(self.source, "connect", self.source)
        return SqlalchemyTx(self, await settle(make()))


class DjangoTx(Tx):
    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        self.atomic: Any = None
        self.raw = conn.connection

    async def query(self, sql: str, *args: Any) -> list[Any]:
        with self.conn.cursor() as cursor:
            cursor.execute(re.sub(r"\$\d+", "%s", sql), args or None)
            return list(cursor.fetchall()) if cursor.description else []

    async def commit(self) -> None:
        atomic, self.atomic = self.atomic, None
        atomic.__exit__(None, None, None)

    def lost(self, error: BaseException) -> bool:
        # After an error at COMMIT Django has connected anew.
        return self.conn.connection is not self.raw or bool(self.raw.closed)

    async def close(self) -> None:
        try:
            if self.atomic:
                self.conn.needs_rollback = True
                await self.commit()
        finally:
            self.conn.close_if_unusable_or_obsolete()


class Django(Driver):
    async def leave(self) -> None:
        from django.db import connections

        connections[self.source].close()

    async def sleep(self, seconds: float) -> None:
        await self.leave()  # who waits holds no connection of a pool
        await super().sleep(seconds)

    async def open(self, timeout: float) -> Tx:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections, transaction

        atomic = transaction.atomic(using=self.source, durable=True)
        try:
            atomic.__enter__()
        except RuntimeError as error:
            raise ImproperlyConfigured(
                "a transaction is open already, whose COMMIT would come after the answer: begin no atomic() around this"
                " call, and where ATOMIC_REQUESTS is set put @transaction.non_atomic_requests on the view"
            ) from error
        tx = DjangoTx(self, connections[self.source])
        tx.atomic = atomic
        return tx


def driver_of(source: Any) -> Driver:
    """The driver of a pool, an engine, a session factory, a Django alias, a connection string or a function that
    connects."""
    if isinstance(source, Driver):
        return source
    if isinstance(source, str):
        if "=" not in source and "://" not in source:
            return Django(source)
        import psycopg

        return Psycopg(lambda: psycopg.connect(source))
    root, name = type(source).__module__.partition(".")[0], type(source).__name__
    if root == "psycopg_pool":
        return Psycopg(source, name.startswith("Async"))
    if root == "asyncpg":
        return Asyncpg(source, True)
    if root == "sqlalchemy":
        return Sqlalchemy(source, "async" in name.lower())
    if callable(source):
        asynchronous = inspect.iscoroutinefunction(source)
        where = getattr(getattr(source, "func", source), "__module__", "")
        return Asyncpg(source, True) if where.startswith("asyncpg") else Psycopg(source, asynchronous)
    raise TypeError(
        f"idempotence knows no {type(source).__qualname__}: give a pool of psycopg or asyncpg, an engine or a"
        " session factory of SQLAlchemy, a Django alias, or a function that connects"
    )


def transaction_of(conn: Any) -> Tx:
    """The transaction of somebody else's connection: queries only."""
    if isinstance(conn, str):
        from django.db import connections

        conn = connections[conn]
    root = type(conn).__module__.partition(".")[0]
    kinds = {"psycopg": PsycopgTx, "asyncpg": AsyncpgTx, "sqlalchemy": SqlalchemyTx, "django": DjangoTx}
    if root not in kinds:
        raise TypeError(f"idempotence knows no connection of the kind {type(conn).__qualname__}")
    return kinds[root](Driver(None, "Async" in type(conn).__name__ or root == "asyncpg"), conn)
