"""Django's connections. With psycopg 3 the statements of Django's savepoints are sent in the pipeline of the driver's
connection; with psycopg2 they are collected, and sent in one simple query together with those of the adapter."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from ._errors import NO_CLOSE, Spoilt
from ._simple import SimpleTx
from ._transactions import Driver, Fetch, Tx

try:
    from . import _psycopg
except ImportError:  # Django also works with psycopg2
    _psycopg = None  # type: ignore[assignment]
try:
    from . import _psycopg2
except ImportError:
    _psycopg2 = None  # type: ignore[assignment]


async def send(conn: Any, sql: str, *args: Any) -> Fetch:
    with conn.cursor() as cursor:
        cursor.execute(re.sub(r"\$\d+", "%s", sql), args or None)
        fetched = list(cursor.fetchall()) if cursor.description else []

    async def fetch() -> list[Any]:
        return fetched

    return fetch


class BorrowedTx(Tx):
    """The transaction of a connection that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        return await send(self.conn, sql, *args)


class DjangoTx(Tx):
    """`outer` is the transaction, and `inner` the savepoint: both are Django's atomic(), so Django drops the on_commit
    hooks of effects that are rolled back, and calls the others after COMMIT.

    Within a TestCase `outer` is a savepoint in the transaction of the test, and nothing is committed.

    The view works on Django's own connection `conn`, and `raw` is the connection of the driver."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn
        conn.ensure_connection()
        self.in_test = conn.in_atomic_block
        self.outer: Any = None
        self.inner: Any = None
        self.enter()
        # Django has connected anew if the connection has failed a check of CONN_HEALTH_CHECKS.
        self.raw: Any = conn.connection
        self.in_use = True
        self.thread = threading.get_ident()
        # Whether the statements that end the savepoint are not executed: ROLLBACK ends it, too.
        self.discards = False
        conn.execute_wrappers.append(self.execute)
        conn.close = self.refuse_close  # Django's own close() returns the connection to the pool

    # The parts of each driver.

    def end_lent(self) -> None:
        """Refuses what the view has kept."""

    def is_current(self) -> bool:
        """Whether Django still has this connection. After an error at COMMIT it connects anew."""
        return self.conn.connection is self.raw

    def has_failed(self) -> bool:
        raise NotImplementedError

    async def break_off(self) -> None:
        """Closes the connection if a thread of the view is still executing a statement."""
        raise NotImplementedError

    # The parts that both drivers have in common.

    def execute(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Called for each statement of Django. Notes the errors of those of the handler."""
        if self.discards and self.thread == threading.get_ident():
            return None
        with self.noting_errors():
            return execute(sql, params, many, context)

    def refuse_close(self) -> None:
        raise RuntimeError(NO_CLOSE)

    def end_use(self) -> None:
        """Gives Django its connection back, and refuses what the view has kept."""
        if not self.in_use:
            return
        self.in_use = False
        del self.conn.close
        self.end_lent()

    def end_wrapper(self) -> None:
        with contextlib.suppress(ValueError):
            self.conn.execute_wrappers.remove(self.execute)

    def enter(self) -> None:
        """Switches autocommit off. The BEGIN is sent by `start`."""
        outer = transaction.atomic(using=self.conn.alias, durable=True)
        try:
            outer.__enter__()
        except RuntimeError as error:
            raise ImproperlyConfigured(
                "a transaction is open already, and its COMMIT would come after the answer: do not open an atomic()"
                " around this call. If ATOMIC_REQUESTS is set, put @transaction.non_atomic_requests on the view"
            ) from error
        self.outer = outer

    async def retire(self) -> None:
        self.end_use()

    async def set_savepoint(self) -> None:
        inner = transaction.atomic(using=self.conn.alias)
        inner.__enter__()
        self.inner = inner

    async def release(self) -> None:
        # Django would roll back to the savepoint, and record an answer without its effects.
        if await self.failed():
            raise Spoilt
        inner, self.inner = self.inner, None
        if inner is not None:
            inner.__exit__(None, None, None)

    async def undo(self) -> None:
        inner, self.inner = self.inner, None
        inner.__exit__(Spoilt, Spoilt(), None)

    async def ended(self) -> None:
        self.end_use()
        self.end_wrapper()
        # The request has taken effect. A hook that fails is logged, and does not change its answer.
        if not self.in_test:
            self.conn.run_on_commit = [(sids, hook, True) for sids, hook, _ in self.conn.run_on_commit]
        outer, self.outer = self.outer, None
        outer.__exit__(None, None, None)

    async def leave(self, commit: bool) -> None:
        """The next statement of this thread uses the same connection, so the end of the transaction is waited for."""
        await self.left(commit)

    async def failed(self) -> bool:
        return bool(self.conn.needs_rollback or self.has_failed())

    def lost(self) -> bool:
        return not self.is_current() or self.is_gone()

    def is_gone(self) -> bool:
        return bool(self.raw.closed)

    async def close(self, abandoned: bool = False) -> None:
        conn = self.conn
        self.end_use()
        if not self.raw.closed:
            await self.break_off()
        try:
            if self.inner is not None:
                self.discards = not self.in_test
                self.inner.__exit__(Spoilt, Spoilt(), None)
            self.end_wrapper()
            if self.outer is not None:
                self.outer.__exit__(Spoilt, Spoilt(), None)
        finally:
            self.inner = self.outer = None
            self.end_wrapper()
            if not self.in_test:
                conn.close_if_unusable_or_obsolete()


class PsycopgTx(DjangoTx):
    """Until the view has returned, Django has the connection `lent` in place of `raw`: it shares all state with it, and
    refuses every use from then on, also by cursors that the view has kept."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        self.lent: Any = _psycopg.lend(self.raw, self)
        conn.connection = self.lent

    def end_lent(self) -> None:
        if self.conn.connection is self.lent:
            self.conn.connection = self.raw
        _psycopg.end_use(self.lent, self.raw)

    async def retire(self) -> None:
        await super().retire()
        await _psycopg.quiet(self.raw)

    def is_current(self) -> bool:
        return self.conn.connection in (self.raw, self.lent)

    def has_failed(self) -> bool:
        return _psycopg.has_failed(self.raw)

    async def start(self) -> None:
        if not self.in_test:
            await _psycopg.begin(self.raw)

    async def send(self, sql: str, *args: Any) -> Fetch:
        return _psycopg.rows(await _psycopg.execute(self.raw, sql, *args))

    async def end(self) -> None:
        if not self.in_test:
            self.committed = await _psycopg.execute(self.raw, "COMMIT")

    async def ended(self) -> None:
        if not self.in_test:
            _psycopg.check_tag(self.committed)
        await super().ended()

    def folded(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return _psycopg.pipeline(self.raw)

    def pipelined(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return _psycopg.pipeline(self.raw)

    def disconnect(self) -> None:
        _psycopg.disconnect(self.raw)

    async def break_off(self) -> None:
        if self.raw.lock.locked():
            await _psycopg.break_off(self.raw)


class Psycopg2Tx(SimpleTx, DjangoTx):
    """psycopg2 sends BEGIN and COMMIT by itself, and waits for their answers. Cursors that the view has kept are closed
    when it has returned."""

    implicit = True

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        self.link = _psycopg2.Psycopg2Link(self.raw)
        self.cursors = _psycopg2.Cursors(self.raw)

    def execute(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if self.collected is not None and self.thread == threading.get_ident():
            self.collected.append(sql)  # of a savepoint
            return None
        return super().execute(execute, sql, params, many, context)

    def end_lent(self) -> None:
        self.cursors.close()

    async def retire(self) -> None:
        await super().retire()
        _psycopg2.quiet(self.raw)

    def is_gone(self) -> bool:
        return _psycopg2.is_lost(self.raw)

    def has_failed(self) -> bool:
        return _psycopg2.has_failed(self.raw)

    async def send_alone(self, sql: str, *args: Any) -> Fetch:
        return await send(self.conn, sql, *args)

    async def end(self) -> None:
        """COMMIT is sent by `ended`."""

    async def ended(self) -> None:
        with self.noting_errors():
            if await self.failed():
                raise Spoilt
            await super().ended()

    def disconnect(self) -> None:
        _psycopg2.disconnect(self.raw)

    async def break_off(self) -> None:
        if _psycopg2.is_busy(self.raw):
            _psycopg2.break_off(self.raw)


class Django(Driver):
    """`source` is an alias of DATABASES."""

    async def leave(self) -> None:
        if not connections[self.source].in_atomic_block:
            connections[self.source].close()

    async def sleep(self, seconds: float) -> None:
        await self.leave()  # while a request waits it holds no connection of a pool
        await super().sleep(seconds)

    async def open(self, timeout: float) -> Tx:
        conn = connections[self.source]
        conn.ensure_connection()
        pipelined = _psycopg is not None and _psycopg.is_psycopg(conn.connection)
        return (PsycopgTx if pipelined else Psycopg2Tx)(self, conn)
