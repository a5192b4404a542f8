"""psycopg2, below Django and SQLAlchemy. A simple query returns the rows of its last statement.

psycopg2 sends BEGIN in front of the first statement, and COMMIT, by itself, and waits for the answers: it refuses named
cursors in a transaction that it has not begun. So a request takes two round trips more than with psycopg 3."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from typing import Any

import psycopg2  # type: ignore[import-untyped]
from psycopg2 import extensions

from . import _transactions
from ._simple import Link

# The value of an expression is the value of this setting until the transaction ends.
_VALUE = "idempotence_client.value"


def is_psycopg2(raw: Any) -> bool:
    return isinstance(raw, extensions.connection)


def has_failed(raw: Any) -> bool:
    return bool(raw.info.transaction_status == extensions.TRANSACTION_STATUS_INERROR)


def execute(raw: Any, sql: str) -> Any:
    """A cursor that has executed the statements. It is not the connection's own kind of cursor, which may return other
    rows."""
    cursor = raw.cursor(cursor_factory=extensions.cursor)
    cursor.execute(sql)
    return cursor


class Psycopg2Link(Link):
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def execute(self, sql: str) -> str:
        with contextlib.closing(execute(self.raw, sql)) as cursor:
            tag: str = cursor.statusmessage
            return tag

    async def evaluate(self, before: list[str], expression: str, after: list[str]) -> str:
        keep, read = f"SELECT set_config('{_VALUE}', {expression}, true)", f"SELECT current_setting('{_VALUE}')"
        statements = [*before, keep, *after, read]
        with contextlib.closing(execute(self.raw, "; ".join(statements))) as cursor:
            found: str = cursor.fetchone()[0]
            return found


class Cursors:
    """The cursors that are made on a connection from now on. `close` closes those that are left."""

    def __init__(self, raw: Any) -> None:
        self.raw, self.factory = raw, raw.cursor_factory
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        raw.cursor_factory = self.make

    def make(self, *args: Any, **kwargs: Any) -> Any:
        cursor = (self.factory or extensions.cursor)(*args, **kwargs)
        self.made.add(cursor)
        return cursor

    def close(self) -> None:
        self.raw.cursor_factory = self.factory
        for cursor in list(self.made):
            with contextlib.suppress(psycopg2.Error):
                cursor.close()


def disconnect(raw: Any) -> None:
    """Shuts the socket down. Closing would wait for the statement of another thread."""
    with contextlib.suppress(OSError, psycopg2.Error), socket.socket(fileno=os.dup(raw.fileno())) as broken:
        broken.shutdown(socket.SHUT_RDWR)


def is_lost(raw: Any) -> bool:
    """Whether the connection is lost, and was not closed by the handler."""
    return bool(raw.closed == 2)


def is_busy(raw: Any) -> bool:
    """Whether a thread is executing a statement."""
    return bool(not raw.closed and raw.info.transaction_status == extensions.TRANSACTION_STATUS_ACTIVE)


def quiet(raw: Any) -> None:
    """Waits for a statement that a thread of the handler is executing."""
    last = time.monotonic() + _transactions.PATIENCE
    while is_busy(raw):
        if time.monotonic() > last:
            raise TimeoutError("a thread of the handler is still executing a statement")
        time.sleep(0.01)


def break_off(raw: Any) -> None:
    """Closes a connection on which a statement may be running, after that statement has failed."""
    disconnect(raw)
    raw.close()
