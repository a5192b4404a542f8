"""Django: @idempotent("payments") on a view, or the middleware for all views below some paths.

A view of Django REST framework authenticates inside of itself, so it is protected by `idempotence.rest_framework`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIRequest
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError

from ._await import finish
from ._exchange import Exchange, HandlerTimeout, look_up
from ._options import Facts, Options
from ._reply import Answered, Reply

View = Callable[..., Any]
_ANSWERED = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)


def raw_path(request: HttpRequest) -> str:
    """The path as it was sent. Servers of WSGI decode it; most of them pass the original, too."""
    scope = getattr(request, "scope", None)
    if scope:
        return scope["raw_path"].decode("latin-1") if scope.get("raw_path") else quote(scope["path"])
    sent = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    path: str = re.sub(r"^[a-z]+://[^/]*", "", sent).partition("?")[0] if sent else quote(request.path)
    return path


def facts(request: HttpRequest) -> Facts:
    meta = request.META
    key, length = meta.get("HTTP_IDEMPOTENCY_KEY"), meta.get("CONTENT_LENGTH") or ""
    # A server of WSGI joins repeated headers by a comma, which no key has outside of quotes.
    return Facts(
        request.method or "",
        raw_path(request),
        meta.get("QUERY_STRING", ""),
        [] if key is None else [key],
        meta.get("CONTENT_TYPE", ""),
        int(length) if length.isascii() and length.isdigit() else None,
    )


def read_body(options: Options, request: HttpRequest, length: int | None) -> bytes | None:
    """None: it is too large."""
    if length is not None and length > options.max_body:
        return None
    if length is None and "HTTP_TRANSFER_ENCODING" in request.META and isinstance(request, WSGIRequest):
        # Django would pass an empty body to the view.
        raise options.problem("body-unsupported")
    try:
        body: bytes = request.body
    except RawPostDataException as error:
        raise ImproperlyConfigured(
            "a middleware has read the body before the adapter could: read request.body in it"
        ) from error
    except UnreadablePostError:
        raise options.problem("body-incomplete") from None
    if length is not None and len(body) != length:
        raise options.problem("body-incomplete")
    return body if len(body) <= options.max_body else None


def made(reply: Reply) -> HttpResponse:
    response = HttpResponse(reply.body, status=reply.status)
    del response["Content-Type"]
    for name, value in reply.headers:
        response[name] = value
    return response


def reply_of(response: Any) -> Reply:
    if response.streaming:
        raise TypeError(
            f"a protected view answers after COMMIT, so its answer must be whole: a {type(response).__name__} is sent"
            " piece by piece"
        )
    return Reply(response.status_code, list(response.items()), response.content)


@contextlib.contextmanager
def time_limit(exchange: Exchange) -> Iterator[None]:
    """A thread cannot be stopped. When the time is over its connection is broken, so the claim is released, and the
    view's next statement fails. A lease limits its handler by itself."""
    tx = exchange.attempt.tx
    if tx is None:
        yield
        return
    lock, over, expired = threading.Lock(), False, False

    def expire() -> None:
        nonlocal expired
        with lock:
            if not over:
                expired = True
                tx.disconnect()

    timer = threading.Timer(exchange.options.handler_timeout, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if expired:
            raise HandlerTimeout from error
        raise
    finally:
        timer.cancel()
        with lock:
            over = True
    if expired:
        raise HandlerTimeout


def serve(options: Options, request: Any, call: Callable[[], Any]) -> Any:
    """`call` calls the view and returns its response, and whether an exception was its cause."""
    sent = getattr(request, "_request", request)  # of REST framework
    known = facts(sent)
    read = functools.partial(read_body, options, sent, known.length)
    try:
        exchange = finish(Exchange.of(options, options.driver(), known, request, read))
    except Answered as answered:
        return made(answered.reply)

    async def invoke() -> Any:
        exchange.begun, exchange.working = False, True
        request.idempotence = await exchange.begin()
        with time_limit(exchange):
            response, raised = call()
        await exchange.finish(reply_of(response), raised)
        return response

    return finish(exchange.serve(invoke, made))


def _blocking(identity: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A view blocks, so an identity that is a coroutine runs in a loop of its own."""

    def blocking(request: Any) -> Any:
        async def awaited() -> Any:
            return await who

        who = identity(request)
        return async_to_sync(awaited)() if inspect.isawaitable(who) else who

    return blocking


def _call_view(view: View, request: HttpRequest, args: Any, kwargs: Any) -> tuple[Any, bool]:
    try:
        response, raised = view(request, *args, **kwargs), False
    except _ANSWERED as error:
        response, raised = response_for_exception(request, error), True
    if hasattr(response, "render") and not response.is_rendered:
        response = response.render()
    return response, raised


def check_view(view: View) -> None:
    """Refuses a view that authenticates inside of itself: its replay would be answered before."""
    if inspect.iscoroutinefunction(view):
        raise TypeError("the connections of Django block: make the protected view a plain function")
    kind: Any = getattr(view, "cls", None) or getattr(view, "view_class", None)
    if _derives(kind, "rest_framework.views.APIView"):
        raise TypeError(
            f"{kind.__name__} is a view of REST framework, which authenticates inside of it: use"
            " idempotence.rest_framework.IdempotentMixin, or put the decorator below @api_view"
        )
    if _derives(kind, "django.contrib.auth.mixins.AccessMixin"):
        raise TypeError(
            f"{kind.__name__} authenticates in dispatch(): put the decorator on its method, by"
            ' @method_decorator(idempotent(…), name="post")'
        )
    inner: Any = view
    while inner is not None:
        if getattr(inner, "__globals__", {}).get("__name__") == "django.contrib.auth.decorators":
            raise TypeError(
                f"{view.__name__} is decorated by login_required or its like below the adapter: put that decorator"
                " above @idempotent, so that it comes first"
            )
        inner = getattr(inner, "__wrapped__", None)


def _derives(kind: Any, name: str) -> bool:
    """Whether a class derives from another one, which need not be installed."""
    return any(f"{each.__module__}.{each.__name__}" == name for each in getattr(kind, "__mro__", ()))


class _Idempotent(Options):
    """See `idempotent`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.identity is not None:
            self.identity = _blocking(self.identity)

    def __call__(self, view: View) -> View:
        check_view(view)

        # With ATOMIC_REQUESTS its COMMIT would come after the answer was recorded.
        @transaction.non_atomic_requests(using=self.pool)
        @functools.wraps(view)
        def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(request, HttpRequest):
                from . import rest_framework

                return rest_framework.serve(self, request, view, args, kwargs)
            return serve(self, request, lambda: _call_view(view, request, args, kwargs))

        result: View = protected
        return result

    def answer(self, request: HttpRequest) -> HttpResponse:
        """A view for GET: the answer to the request with this key. It waits for it, and never executes."""
        return made(finish(look_up(self, self.driver(), facts(request), request)))


def idempotent(session: str, *, using: str = "default", **options: Any) -> _Idempotent:
    """The decorator of a view that is a function, or of the method of a class by `method_decorator`. The transaction is
    one of the alias `using`, so the view works on the connection of its models; `request.idempotence` is that
    connection, or the Lease. See Options for the other arguments."""
    if not isinstance(using, str):
        raise TypeError(f"using is an alias of DATABASES, and not {using!r}")
    return _Idempotent(using, session, **options)


class Middleware:
    """Protects POST and PATCH of all views whose path matches the pattern `paths` of the setting IDEMPOTENCE, which
    also has `session` and the options: IDEMPOTENCE = {"session": "payments", "paths": "/api/"}. It must be the last
    one: it does not see views that later middleware wraps."""

    def __init__(self, get_response: View) -> None:
        options = {"methods": ("POST", "PATCH"), **getattr(settings, "IDEMPOTENCE", {})}
        if settings.MIDDLEWARE[-1] != f"{type(self).__module__}.{type(self).__qualname__}" or "session" not in options:
            raise ImproperlyConfigured(
                'idempotence.django.Middleware is the last of MIDDLEWARE, and needs IDEMPOTENCE = {"session": …}'
            )
        self.get_response, self.paths = get_response, re.compile(options.pop("paths", "/"))
        self.idempotent = idempotent(**options)

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: View, args: Any, kwargs: Any) -> Any:
        if not self.paths.match(request.path) or not self.idempotent.protects(request.method or ""):
            return None
        if getattr(getattr(view, "cls", None), "idempotent", None) is not None:
            return None  # IdempotentMixin
        try:
            check_view(view)
        except TypeError as error:
            raise ImproperlyConfigured(str(error)) from error
        return serve(self.idempotent, request, lambda: _call_view(view, request, args, kwargs))
