"""What all drivers have in common: a source of connections, and a transaction on one of them.

`begin` and `commit` take one round trip each if the driver can send statements without waiting for the answers. The
handler's own statements are never sent together with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ._await import T, finish, later, uninterrupted
from ._errors import RETRYABLE, Spoilt, of_driver, of_lost_connection, raised_by_driver, sqlstate

Statement = tuple[str, tuple[Any, ...]]
Fetch = Callable[[], Awaitable[list[Any]]]
SAVEPOINT = "SAVEPOINT idempotence_work"
# How long (seconds) a statement may take that is running when the handler returns.
PATIENCE = 5
UNDO = "ROLLBACK TO SAVEPOINT idempotence_work"


def begin_words(isolation: str | None, read_only: bool | None, deferrable: bool | None) -> str:
    """BEGIN with the options of a connection. None: the default of the server."""
    words = ["BEGIN"]
    if isolation is not None:
        words += ["ISOLATION LEVEL", isolation.replace("_", " ").upper()]
    if read_only is not None:
        words.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        words.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(words)


class Tx:
    """A transaction. Statements have their arguments as $1, $2 … in this order. `conn` is what the handler receives.
    `errors` holds what the server has reported for statements of this transaction."""

    conn: Any = None
    over = False  # it has committed

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.errors: list[BaseException] = []
        self.has_savepoint = False

    # The parts that each driver provides.

    async def start(self) -> None:
        """Begins the transaction."""

    async def send(self, sql: str, *args: Any) -> Fetch:
        """Executes a statement. Within `folded` its rows can be fetched only afterwards."""
        raise NotImplementedError

    async def send_begin(self, sql: str, *args: Any) -> Fetch:
        """Executes the statement that begins a request, within `folded`."""
        return await self.send(sql, *args)

    async def set_savepoint(self) -> None:
        await self.send(SAVEPOINT)

    async def flush(self) -> None:
        """Sends the statements that the handler's session has kept back."""

    async def retire(self) -> None:
        """The handler has returned: refuses every use of its connection by tasks and threads that it has started, and
        waits for a statement that one of them is executing."""

    async def release(self) -> None:
        """Keeps the handler's effects. COMMIT releases the savepoint, if there is one."""

    async def undo(self) -> None:
        """Takes the handler's effects back."""
        await self.send(UNDO)

    async def end(self) -> None:
        """Commits. Raises an error if the server answers anything else than COMMIT."""
        raise NotImplementedError

    async def ended(self) -> None:
        """Called after COMMIT."""

    def folded(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """In this block the driver sends the statements of the adapter together, if it can."""
        return contextlib.nullcontext()

    def pipelined(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """In this block the driver sends all statements without waiting for the answers, also those of the handler, if
        it can."""
        return contextlib.nullcontext()

    async def failed(self) -> bool:
        """Whether a statement has failed, so that the transaction can only roll back."""
        raise NotImplementedError

    def lost(self) -> bool:
        """Whether the connection is gone."""
        raise NotImplementedError

    async def close(self, abandoned: bool = False) -> None:
        """Rolls back what is not committed, and returns the connection. `abandoned`: a thread of the handler may still
        be using it, so it is closed instead."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Breaks the connection, from any thread. A statement that is running fails, and the server rolls back."""

    # What the callers use.

    async def query(self, sql: str, *args: Any) -> list[Any]:
        with self.noting_errors():
            return await (await self.send(sql, *args))()

    async def begin(self) -> None:
        """BEGIN alone: the transaction of a request that is not protected."""
        with self.noting_errors():
            async with self.folded():
                await self.start()

    async def begin_with(self, sql: str, *args: Any) -> Any:
        """BEGIN, the statement, SAVEPOINT. Returns the first row of the statement."""
        with self.noting_errors():
            async with self.folded():
                await self.start()
                fetch = await self.send_begin(sql, *args)
                await self.set_savepoint()
                self.has_savepoint = True
            return (await fetch())[0]

    async def commit(self, record: Statement | None = None, undo: bool = False) -> None:
        """The statement that records, and COMMIT. `undo`: without the handler's effects."""
        with self.noting_errors():
            await self.retire()
            if not undo:
                await self.flush()
            async with self.folded():
                await (self.undo() if undo else self.release())
                if record:
                    await self.send(record[0], *record[1])
                await self.end()
        await self.ended()
        self.over = True

    async def leave(self, commit: bool) -> None:
        """Ends a transaction that has written nothing, and returns the connection. No answer depends on it, so the
        caller goes on at once. `commit`: after a ROLLBACK psycopg prepares its statements anew."""
        await later(self.left(commit), self.driver.asynchronous)

    async def left(self, commit: bool) -> None:
        try:
            if commit:
                await self.commit()
        except Exception as error:
            if not of_driver(error):
                raise
        finally:
            await closed(self)

    async def single(self, sql: str, *args: Any) -> list[Any]:
        """The rows of a statement that is a transaction of its own."""
        with self.noting_errors():
            async with self.folded():
                await self.start()
                fetch = await self.send(sql, *args)
                await self.end()
            rows = await fetch()
        await self.ended()
        self.over = True
        return rows

    @contextlib.contextmanager
    def noting_errors(self) -> Any:
        try:
            yield
        except Exception as error:
            self.errors.append(error)
            raise

    async def reported(self, error: BaseException) -> bool:
        """Whether the error is one that this transaction's connection has raised."""
        return any(each is error for each in self.errors)

    async def retryable(self, error: BaseException) -> bool:
        """Whether the same transaction may be sent again. Only the state of this connection decides, and what the
        server has reported on it: an error of another database or of the network is the application's."""
        state = sqlstate(error)
        if state and not isinstance(error, Spoilt) and await self.reported(error):
            return bool(RETRYABLE.match(state))
        # A connection that the handler has closed or cancelled is lost without an error of the driver.
        return self.lost() and (raised_by_driver(error) or any(map(of_lost_connection, self.errors)))


async def closed(tx: Tx, abandoned: bool = False) -> None:
    """Closes. An error of the driver is not reported: the transaction has not happened, or it has committed before."""
    try:
        await tx.close(abandoned)
    except Exception as error:
        if not of_driver(error):
            raise


class Driver:
    """Lends connections."""

    def __init__(self, source: Any, asynchronous: bool = False) -> None:
        self.source, self.asynchronous = source, asynchronous

    async def open(self, timeout: float) -> Tx:
        """Takes a connection, and does not begin yet."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds) if self.asynchronous else time.sleep(seconds)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """The result; for an asynchronous driver an awaitable of it."""
        return coroutine if self.asynchronous else finish(coroutine)

    async def uninterrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to its end even if the request is cancelled."""
        return await (uninterrupted(work) if self.asynchronous else work)

    async def leave(self) -> None:
        """The current thread uses no connection any more."""

    async def call(self, function: Callable[[], T]) -> T:
        """Calls a function that blocks no longer than this driver does."""
        return function()

    def lock(self) -> Any:
        return asyncio.Lock() if self.asynchronous else threading.Lock()

    def queue(self) -> Any:
        return asyncio.Queue() if self.asynchronous else queue.SimpleQueue()
