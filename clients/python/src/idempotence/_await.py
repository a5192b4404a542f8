"""The same code for drivers that block and for asynchronous ones.

Every method of a driver is a coroutine. A coroutine of a blocking driver never suspends, and `finish` runs it to its
end; a coroutine of an asynchronous driver is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_tasks: set[asyncio.Task[Any]] = set()


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise TypeError(
        "the function is a coroutine, but its pool blocks: pass an asynchronous pool, or make the function a plain one"
    )


async def later(coroutine: Coroutine[Any, Any, Any], asynchronous: bool) -> None:
    """Runs what the caller does not wait for: in a task, or in a thread if the coroutine blocks."""
    if asynchronous:
        task = asyncio.ensure_future(coroutine)
        _tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(_tasks.discard)
        # A loop that ends cancels its tasks. One that has not begun would not even clean up.
        await asyncio.sleep(0)
        return
    try:
        threading.Thread(target=finish, args=[coroutine], name="idempotence end", daemon=True).start()
    except RuntimeError:  # no further thread is allowed
        finish(coroutine)


async def settle(value: Any) -> Any:
    """A value, or the result of an awaitable."""
    return await value if inspect.isawaitable(value) else value


def _shield() -> contextlib.AbstractContextManager[Any]:
    """Keeps the cancel scopes of anyio out. Without anyio there are none."""
    try:
        import anyio
    except ImportError:
        return contextlib.nullcontext()
    return anyio.CancelScope(shield=True)


async def uninterrupted(work: Awaitable[T], undo: Callable[[T], Awaitable[Any]] | None = None) -> T:
    """Awaits the work to its end even if the caller is cancelled meanwhile, and raises the cancellation afterwards.
    `undo` is then called with the result, which the caller never receives."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with _shield():
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:
                break  # raised below
        if cancelled is None:
            return task.result()
        if undo is not None and not task.cancelled() and task.exception() is None:
            await undo(task.result())
    raise cancelled
