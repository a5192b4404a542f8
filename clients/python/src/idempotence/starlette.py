"""Starlette: @idempotent on an endpoint. FastAPI builds on it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from starlette._exception_handler import _lookup_exception_handler
from starlette._utils import is_async_callable
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ._exchange import Exchange, HandlerTimeout, look_up
from ._options import Facts, Options
from ._reply import Answered, Reply
from ._threads import Threaded
from ._transactions import Driver

Handler = Callable[..., Awaitable[Response]]


def source(options: Options) -> Driver:
    driver = options.driver()
    return driver if driver.asynchronous else Threaded(driver)


def facts(request: Request) -> Facts:
    scope, headers = request.scope, request.headers
    length = headers.get("content-length", "")
    # Servers pass the path as it was sent, too. A test client may not.
    path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else quote(scope["path"])
    return Facts(
        scope["method"],
        path,
        scope["query_string"].decode("latin-1"),
        headers.getlist("idempotency-key"),
        headers.get("content-type", ""),
        int(length) if length.isascii() and length.isdigit() else None,
    )


class Body:
    """The body of a request, read up to a limit, and passed on to the handler once for each attempt."""

    def __init__(self, options: Options, request: Request, length: int | None) -> None:
        self.options, self.request, self.length = options, request, length
        self.data: bytes | None = None
        self.unread: Any = None  # the rest of a body that is too large

    async def read(self) -> bytes | None:
        """None: it is too large."""
        limit, chunks, size = self.options.max_body, [], 0
        if self.length is not None and self.length > limit:
            return None
        stream = self.request.stream()
        try:
            async for chunk in stream:
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    self.data, self.unread = b"".join(chunks), stream
                    return None
        except ClientDisconnect:
            raise self.options.problem("body-incomplete") from None
        if self.length is not None and size != self.length:
            raise self.options.problem("body-incomplete")
        self.data = b"".join(chunks)
        return self.data

    def request_for_handler(self) -> Request:
        """The same request, with a body that was not read yet."""
        scope, data = dict(self.request.scope), self.data
        if data is None:
            return Request(scope, self.request.receive)
        unsent = [data]

        async def receive() -> Any:
            if unsent:
                return {"type": "http.request", "body": unsent.pop(), "more_body": self.unread is not None}
            if self.unread is not None:
                chunk = await anext(self.unread, None)
                return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}
            return await self.request.receive()

        return Request(scope, receive)


def made(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    if reply.status >= 200 and reply.status not in (204, 304):
        response.headers["content-length"] = str(len(reply.body))
    return response


def reply_of(response: Response) -> Reply:
    if not isinstance(getattr(response, "body", None), bytes):
        raise TypeError(
            f"a protected route answers after COMMIT, so its answer must be whole: a {type(response).__name__} is sent"
            " piece by piece"
        )
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    return Reply(response.status_code, headers, bytes(response.body))


async def response_to(request: Request, error: Exception) -> Response | None:
    """The response that the application makes of an exception. None: it makes none, so it is a mistake."""
    handlers, statuses = request.scope.get("starlette.exception_handlers", ({}, {}))
    handler: Any = statuses.get(error.status_code) if isinstance(error, HTTPException) else None
    handler = handler or _lookup_exception_handler(handlers, error)
    if handler is None:
        return None
    response: Response = await (
        handler(request, error) if is_async_callable(handler) else run_in_threadpool(handler, request, error)
    )
    return response


async def within_limit(exchange: Exchange, handler: Awaitable[Response]) -> Response:
    """A lease limits its handler by itself."""
    if exchange.options.lease is not None:
        return await handler
    try:
        async with asyncio.timeout(exchange.options.handler_timeout) as limit:
            return await handler
    except TimeoutError as error:
        if limit.expired():
            raise HandlerTimeout from error
        raise


async def protect(options: Options, request: Request, handler: Handler, begins: bool) -> Response:
    """Serves a request. `begins`: the request is begun before the handler is called. Otherwise the handler calls
    `begin` of the exchange in the scope."""
    known = facts(request)
    body = Body(options, request, known.length)
    try:
        exchange = await Exchange.of(options, source(options), known, request, body.read)
    except Answered as answered:
        return made(answered.reply)

    async def invoke() -> Response:
        attempt = body.request_for_handler()
        attempt.scope["idempotence"] = exchange
        exchange.begun, exchange.working, raised = False, begins, False
        if begins:
            attempt.state.conn = await exchange.begin()
        try:
            response = await within_limit(exchange, handler(attempt))
        except (Answered, HandlerTimeout):
            raise
        except Exception as error:
            if not exchange.working or isinstance(error, options.refusals) or await exchange.attempt.retryable(error):
                raise
            answer = await response_to(attempt, error)
            if answer is None:
                raise
            response, raised = answer, True
        await exchange.finish(reply_of(response), raised)
        return response

    response: Response = await exchange.serve(invoke, made)
    return response


def check_handler(options: Options, endpoint: Callable[..., Any]) -> None:
    """An asynchronous connection does nothing in a plain function, and reports nothing."""
    if options.driver().asynchronous and not is_async_callable(endpoint):
        name = getattr(endpoint, "__name__", repr(endpoint))
        raise TypeError(f"the pool is asynchronous and {name} is not: write `async def`, or pass a pool that blocks")


class Idempotent(Options):
    """`idempotent = Idempotent(pool, "payments")`, and then @idempotent on an endpoint, which works on
    `request.state.conn`. See Options for the other arguments."""

    def __call__(self, endpoint: Callable[..., Any]) -> Handler:
        if inspect.isclass(endpoint):
            raise TypeError(f"put the decorator on the methods of {endpoint.__name__}")
        check_handler(self, endpoint)

        @functools.wraps(endpoint)
        async def protected(*args: Any) -> Response:
            async def handler(attempt: Request) -> Response:
                call = endpoint if is_async_callable(endpoint) else functools.partial(run_in_threadpool, endpoint)
                response: Response = await call(*args[:-1], attempt)
                return response

            # The method of an HTTPEndpoint has `self` in front of the request.
            return await protect(self, args[-1], handler, True)

        return protected

    async def answer(self, request: Request) -> Response:
        """An endpoint for GET: the answer to the request with this key. It waits for it, and never executes."""
        return made(await look_up(self, source(self), facts(request), request))
