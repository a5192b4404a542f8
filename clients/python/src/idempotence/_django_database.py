"""Django's connections. With psycopg 3 the statements of Django are sent in the pipeline of the driver's connection."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from ._errors import NO_CLOSE, Spoilt
from ._transactions import Driver, Fetch, Tx

try:
    from . import _psycopg
except ImportError:  # Django also works with psycopg2
    _psycopg = None  # type: ignore[assignment]


class BorrowedTx(Tx):
    """The transaction of a connection that belongs to the caller: queries only."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver)
        self.conn = conn

    async def send(self, sql: str, *args: Any) -> Fetch:
        with self.conn.cursor() as cursor:
            cursor.execute(re.sub(r"\$\d+", "%s", sql), args or None)
            fetched = list(cursor.fetchall()) if cursor.description else []

        async def fetch() -> list[Any]:
            return fetched

        return fetch


class DjangoTx(BorrowedTx):
    """`outer` is the transaction, and `inner` the savepoint: both are Django's atomic(), so Django drops the on_commit
    hooks of effects that are rolled back, and calls the others after COMMIT.

    Within a TestCase `outer` is a savepoint in the transaction of the test, and nothing is committed.

    The view works on Django's own connection `conn`. With psycopg 3 that has `lent`, instead of the connection `raw` of
    the driver, until the view has returned: cursors that the view has kept are refused from then on."""

    def __init__(self, driver: Driver, conn: Any) -> None:
        super().__init__(driver, conn)
        conn.ensure_connection()
        self.in_test = conn.in_atomic_block
        self.outer: Any = None
        self.inner: Any = None
        self.enter()
        # Django has connected anew if the connection has failed a check of CONN_HEALTH_CHECKS.
        self.raw: Any = conn.connection
        self.pipelined = _psycopg is not None and _psycopg.is_psycopg(self.raw)
        self.lent: Any = _psycopg.lend(self.raw, self) if self.pipelined else self.raw
        self.in_use = True
        conn.connection = self.lent
        conn.execute_wrappers.append(self.execute)
        conn.close = self.refuse_close  # Django's own close() returns the connection to the pool

    def execute(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Notes the errors of the handler's statements."""
        with self.noting_errors():
            return execute(sql, params, many, context)

    def refuse_close(self) -> None:
        raise RuntimeError(NO_CLOSE)

    def end_use(self) -> None:
        """Gives Django the connection of the driver back, and refuses what the view has kept."""
        if not self.in_use:
            return
        self.in_use, conn = False, self.conn
        del conn.close
        with contextlib.suppress(ValueError):
            conn.execute_wrappers.remove(self.execute)
        if self.pipelined:
            if conn.connection is self.lent:
                conn.connection = self.raw
            _psycopg.end_use(self.lent, self.raw)

    async def retire(self) -> None:
        self.end_use()
        if self.pipelined:
            await _psycopg.quiet(self.raw)

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

    async def start(self) -> None:
        if self.pipelined and not self.in_test:
            await _psycopg.begin(self.raw)

    async def send(self, sql: str, *args: Any) -> Fetch:
        if not self.pipelined:
            return await super().send(sql, *args)
        return _psycopg.rows(await _psycopg.execute(self.raw, sql, *args))

    async def set_savepoint(self) -> None:
        inner = transaction.atomic(using=self.conn.alias)
        inner.__enter__()
        self.inner = inner

    async def release(self) -> None:
        # Django would roll back to the savepoint, and record an answer without its effects.
        if self.conn.needs_rollback or await self.failed():
            raise Spoilt
        inner, self.inner = self.inner, None
        inner.__exit__(None, None, None)

    async def undo(self) -> None:
        inner, self.inner = self.inner, None
        inner.__exit__(Spoilt, Spoilt(), None)

    async def end(self) -> None:
        if not self.has_savepoint and (self.conn.needs_rollback or await self.failed()):
            raise Spoilt
        if self.pipelined and not self.in_test:
            self.committed = await _psycopg.execute(self.raw, "COMMIT")

    async def ended(self) -> None:
        if self.pipelined and not self.in_test:
            _psycopg.check_tag(self.committed)
        self.end_use()
        # The request has taken effect. A hook that fails is logged, and does not change its answer.
        if not self.in_test:
            self.conn.run_on_commit = [(sids, hook, True) for sids, hook, _ in self.conn.run_on_commit]
        outer, self.outer = self.outer, None
        outer.__exit__(None, None, None)

    def folded(self) -> contextlib.AbstractAsyncContextManager[Any]:
        if not self.pipelined:
            return contextlib.nullcontext()
        return _psycopg.pipeline(self.raw)

    async def failed(self) -> bool:
        if self.conn.needs_rollback:
            return True
        if self.pipelined:
            return _psycopg.has_failed(self.raw)
        status: int = self.raw.info.transaction_status
        return status == 3  # psycopg2.extensions.TRANSACTION_STATUS_INERROR

    def lost(self) -> bool:
        # After an error at COMMIT Django has connected anew.
        return self.conn.connection not in (self.raw, self.lent) or bool(self.raw.closed)

    def disconnect(self) -> None:
        if self.pipelined:
            _psycopg.disconnect(self.raw)

    async def close(self, abandoned: bool = False) -> None:
        conn = self.conn
        self.end_use()
        if self.pipelined and not self.raw.closed and self.raw.lock.locked():
            await _psycopg.break_off(self.raw)
        try:
            for block in (self.inner, self.outer):
                if block is not None:
                    block.__exit__(Spoilt, Spoilt(), None)
        finally:
            self.inner = self.outer = None
            if not self.in_test:
                conn.close_if_unusable_or_obsolete()


class Django(Driver):
    """`source` is an alias of DATABASES."""

    async def leave(self) -> None:
        if not connections[self.source].in_atomic_block:
            connections[self.source].close()

    async def sleep(self, seconds: float) -> None:
        await self.leave()  # while a request waits it holds no connection of a pool
        await super().sleep(seconds)

    async def open(self, timeout: float) -> Tx:
        return DjangoTx(self, connections[self.source])
