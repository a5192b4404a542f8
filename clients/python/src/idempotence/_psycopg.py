"""psycopg 3: pools, and functions that connect."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from . import _transactions
from ._await import settle
from ._errors import NO_CLOSE, NO_COMMIT, Spoilt, TransactionEnded
from ._transactions import Driver, Fetch, Tx, begin_words


def is_psycopg(raw: Any) -> bool:
    return isinstance(raw, (psycopg.Connection, psycopg.AsyncConnection))


def is_asynchronous(raw: Any) -> bool:
    return isinstance(raw, psycopg.AsyncConnection)


async def execute(raw: Any, sql: str, *args: Any) -> Any:
    """A cursor that has executed the statement. It is not the connection's own kind of cursor, which may expect
    another style of arguments, or return other rows."""
    kind: Any = psycopg.AsyncCursor if is_asynchronous(raw) else psycopg.Cursor
    cursor = kind(raw, row_factory=tuple_row)
    # BEGIN, COMMIT and the like gain nothing by being prepared.
    await settle(cursor.execute(re.sub(r"\$\d+", "%s", sql), args or None, prepare=None if args else False))
    return cursor


def rows(cursor: Any) -> Fetch:
    async def fetch() -> list[Any]:
        return list(await settle(cursor.fetchall())) if cursor.description else []

    return fetch


@contextlib.asynccontextmanager
async def pipeline(raw: Any) -> AsyncIterator[None]:
    """One round trip. A connection that is not in autocommit mode would wait for the answer to the BEGIN that psycopg
    sends by itself, so that is switched off here. psycopg's own switch refuses to act in a transaction."""
    autocommit, raw._autocommit = raw._autocommit, True
    try:
        if not psycopg.Pipeline.is_supported():  # libpq 13
            yield
        elif is_asynchronous(raw):
            async with raw.pipeline():
                yield
        else:
            with raw.pipeline():
                yield
    finally:
        raw._autocommit = autocommit


async def begin(raw: Any) -> None:
    """BEGIN with the options of the connection, as psycopg sends it."""
    level = None if raw.isolation_level is None else psycopg.IsolationLevel(raw.isolation_level).name
    await execute(raw, begin_words(level, raw.read_only, raw.deferrable))


def has_failed(raw: Any) -> bool:
    return bool(raw.info.transaction_status == TransactionStatus.INERROR)


def check_tag(cursor: Any) -> None:
    """COMMIT of a transaction in which a statement has failed is answered with ROLLBACK, which is no error."""
    if cursor.statusmessage != "COMMIT":
        raise Spoilt


def disconnect(raw: Any) -> None:
    """Shuts the socket down. This is safe while another thread executes a statement, and closing is not: libpq would
    free the memory that the other thread uses."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(raw.fileno())) as broken:
        broken.shutdown(socket.SHUT_RDWR)


async def quiet(raw: Any) -> None:
    """Waits for a statement that a task or thread of the handler is executing."""
    if raw._pipeline is not None:
        raise RuntimeError("the handler has left a pipeline open")
    if not raw.lock.locked():
        return
    if is_asynchronous(raw):
        async with asyncio.timeout(_transactions.PATIENCE), raw.lock:
            return
    if not raw.lock.acquire(timeout=_transactions.PATIENCE):
        raise TimeoutError("a thread of the handler is still executing a statement")
    raw.lock.release()


async def break_off(raw: Any) -> None:
    """Closes a connection on which a statement may be running, after that statement has failed."""
    disconnect(raw)
    if is_asynchronous(raw):
        async with raw.lock:
            await raw.close()
    else:
        with raw.lock:
            raw.close()


def named_as(kind: Any, derived: Any) -> Any:
    derived.__module__, derived.__name__, derived.__qualname__ = kind.__module__, kind.__name__, kind.__qualname__
    return derived


@functools.cache
def _lent(kind: Any) -> Any:
    """The class of the connection that a handler receives: the pool's connection under an identity of its own. It
    shares all state with the pool's connection until the transaction ends; from then on every use is refused, also by
    cursors that the handler has kept. It notes the errors that the server reports."""

    class Lent(kind):  # type: ignore[misc]
        __slots__ = ()

        if issubclass(kind, psycopg.AsyncConnection):

            async def wait(self, *args: Any, **kwargs: Any) -> Any:
                with self.idempotence.noting_errors():
                    return await super().wait(*args, **kwargs)

        else:

            def wait(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
                with self.idempotence.noting_errors():
                    return super().wait(*args, **kwargs)

        def commit(self) -> Any:
            raise RuntimeError(NO_COMMIT)

        def rollback(self) -> Any:
            raise RuntimeError(NO_COMMIT)

        def close(self) -> Any:
            raise RuntimeError(NO_CLOSE)

        def __del__(self) -> None:
            """The connection is closed by its pool, or by `close`."""

    return named_as(kind, Lent)


@functools.cache
def _ended(kind: Any) -> Any:
    """The class of a connection whose transaction has ended. It has the layout of the class above, so the class of the
    object can be exchanged."""

    class Ended(kind):  # type: ignore[misc]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__"):
                return object.__getattribute__(self, name)
            raise TransactionEnded

        def __setattr__(self, name: str, value: Any) -> None:
            raise TransactionEnded

        def __repr__(self) -> str:
            return "<the connection of a request that has ended>"

        def __del__(self) -> None:
            """There is nothing to close."""

    return named_as(kind, Ended)


def lend(raw: Any, tx: Tx) -> Any:
    """The connection that the handler uses in place of the pool's one."""
    kind: Any = type(raw)
    raw.idempotence = tx
    lent = object.__new__(_lent(kind))
    lent.__dict__ = raw.__dict__
    return lent


def end_use(lent: Any, raw: Any) -> None:
    """From now on every use of the lent connection is refused. The adapter goes on with the pool's one."""
    kind: Any = type(raw)
    ended = _ended(kind)
    if type(lent) is not ended:
        lent.__dict__ = {}
        lent.__class__ = ended
        del raw.idempotence


class PsycopgTx(Tx):
    def __init__(self, driver: Driver, raw: Any) -> None:
        super().__init__(driver)
        self.raw, self.autocommit = raw, raw.autocommit
        self.conn = lend(raw, self)
        # In autocommit mode statements would take effect one by one after a ROLLBACK that the handler executes.
        raw._autocommit = False

    async def retire(self) -> None:
        end_use(self.conn, self.raw)
        await quiet(self.raw)

    async def start(self) -> None:
        await begin(self.raw)

    async def send(self, sql: str, *args: Any) -> Fetch:
        return rows(await execute(self.raw, sql, *args))

    async def release(self) -> None:
        if has_failed(self.raw):
            raise Spoilt

    async def end(self) -> None:
        self.committed = await execute(self.raw, "COMMIT")

    async def ended(self) -> None:
        check_tag(self.committed)

    def folded(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return pipeline(self.raw)

    def pipelined(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return pipeline(self.raw)

    async def failed(self) -> bool:
        return has_failed(self.raw)

    def lost(self) -> bool:
        return bool(self.raw.closed)

    def disconnect(self) -> None:
        disconnect(self.raw)

    async def close(self, abandoned: bool = False) -> None:
        raw = self.raw
        end_use(self.conn, raw)
        try:
            if raw.closed:
                return
            if abandoned or raw.lock.locked():
                await break_off(raw)
            else:
                await settle(raw.rollback())
                raw._autocommit = self.autocommit
        finally:
            source = self.driver.source
            await settle(source.putconn(raw) if hasattr(source, "putconn") else raw.close())


class BorrowedTx(Tx):
    """The transaction of a connection that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        return rows(await execute(self.conn, sql, *args))


class Psycopg(Driver):
    async def open(self, timeout: float) -> Tx:
        if hasattr(self.source, "getconn"):
            return PsycopgTx(self, await settle(self.source.getconn(timeout=min(timeout, self.source.timeout))))
        return PsycopgTx(self, await settle(self.source()))
