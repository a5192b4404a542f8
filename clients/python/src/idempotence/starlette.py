"""Starlette: @idempotent on an endpoint. FastAPI builds on it."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette._exception_handler import _lookup_exception_handler
from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ._drivers import Driver, T, Tx, driver_of, finish
from ._errors import may_retry
from ._http import Answered, Exchange, Facts, Reply, Rules, look_up

Handler = Callable[[Request], Awaitable[Response]]


class _ThreadedTx(Tx):
    """A transaction of a driver that blocks."""

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx.driver, tx.conn)
        self.lost = tx.lost  # type: ignore[method-assign]
        for name in ("query", "commit", "close"):
            setattr(self, name, functools.partial(self._do, getattr(tx, name)))

    async def _do(self, call: Callable[..., Any], *args: Any) -> Any:
        # Not among the threads of the handlers: those who have a connection never wait for a thread.
        return await anyio.to_thread.run_sync(lambda: finish(call(*args)), limiter=_limiter("use", math.inf))


class _Threaded(Driver):
    """A driver that blocks, in threads."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.source, True)
        self.blocking = self.driver = driver

    async def call(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=_limiter("open", 40))

    async def open(self, timeout: float) -> Tx:
        return _ThreadedTx(await self.call(lambda: finish(self.driver.open(timeout))))


_limiters: dict[str, anyio.CapacityLimiter] = {}


def _limiter(name: str, most: float) -> anyio.CapacityLimiter:
    return _limiters.setdefault(name, anyio.CapacityLimiter(most))


def source(rules: Rules) -> Driver:
    driver = driver_of(rules.pool)
    return driver if driver.asynchronous else _Threaded(driver)


def facts(request: Request) -> Facts:
    scope, keys = request.scope, request.headers.getlist("idempotency-key")
    # HTTP/1 has no body without one of the two headers. HTTP/2 may have one of no told length.
    told = "transfer-encoding" not in request.headers and scope["http_version"].startswith("1")
    length = request.headers.get("content-length", "0" if told else "")
    query = scope["query_string"].decode("latin-1")
    return Facts(scope["method"], scope["path"], query, keys, int(length) if length.isdigit() else None)


def made(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if reply.status >= 200 and reply.status not in (204, 304):
        response.headers["content-length"] = str(len(reply.body))
    return response


def reply_of(response: Response) -> Reply:
    if not isinstance(getattr(response, "body", None), bytes):
        raise TypeError("a protected route answers after COMMIT, so its answer must be whole: it cannot be streamed")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    return Reply(response.status_code, headers, bytes(response.body))


async def response_to(request: Request, error: Exception) -> Response | None:
    """What the application makes of an exception. None: nothing, it is a mistake."""
    handlers, statuses = request.scope.get("starlette.exception_handlers", ({}, {}))
    handler: Any = statuses.get(error.status_code) if isinstance(error, HTTPException) else None
    handler = handler or _lookup_exception_handler(handlers, error)
    if handler is None:
        return None
    response: Response = await (
        handler(request, error) if is_async_callable(handler) else run_in_threadpool(handler, request, error)
    )
    return response


async def protect(rules: Rules, request: Request, handler: Handler, begins: bool) -> Response:
    """Serves a request. `begins`: before the handler is called; else it calls `begin` of the exchange in the scope."""
    try:
        exchange = await Exchange.of(rules, source(rules), facts(request), request, request.body)
    except Answered as answered:
        return made(answered.reply)

    async def invoke() -> Response:
        attempt, unread = request, [exchange.body]
        if exchange.body is not None:

            async def again() -> Any:
                return (
                    {"type": "http.request", "body": unread.pop(), "more_body": False}
                    if unread
                    else await request.receive()
                )

            attempt = Request(dict(request.scope), again)
        attempt.scope["idempotence"], exchange.begun, raised = exchange, False, False
        if begins:
            attempt.state.conn = await exchange.begin()
        try:
            response = await handler(attempt)
        except Answered:
            raise
        except Exception as error:
            if (
                not exchange.begun
                or isinstance(error, rules.refusals)
                or may_retry(error, exchange.attempt.lost(error))
            ):
                raise
            answer = await response_to(attempt, error)
            if answer is None:
                raise
            response, raised = answer, True
        await exchange.finish(reply_of(response), raised)
        return response

    response: Response = await exchange.serve(invoke, made)
    return response


class Idempotent(Rules):
    """`idempotent = Idempotent(pool, "payments")`, and then @idempotent on an endpoint, which works on
    `request.state.conn`. The options are those of Rules."""

    def __call__(self, endpoint: Callable[[Request], Any]) -> Handler:
        if not is_async_callable(endpoint):
            called = endpoint

            async def endpoint(request: Request) -> Any:
                return await run_in_threadpool(called, request)

        handler: Handler = endpoint

        @functools.wraps(endpoint)
        async def protected(request: Request) -> Response:
            return await protect(self, request, handler, True)

        return protected

    async def answer(self, request: Request) -> Response:
        """An endpoint for GET: the answer to the request that has this key. Waits for it, and never executes."""
        return made(await look_up(self, source(self), facts(request), request))
