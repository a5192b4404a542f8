"""Django: @idempotent("payments") on a view, or the middleware for all views below some paths."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import RawPostDataException

from ._drivers import driver_of, finish
from ._http import Answered, Exchange, Facts, Reply, Rules, look_up

View = Callable[..., Any]
_ANSWERED = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)


def _facts(request: HttpRequest) -> Facts:
    key, length = request.META.get("HTTP_IDEMPOTENCY_KEY"), request.META.get("CONTENT_LENGTH") or "0"
    told = None if "HTTP_TRANSFER_ENCODING" in request.META else int(length)
    # A server of WSGI joins headers that are there twice by a comma, which no key has outside of quotes.
    return Facts(
        request.method or "", request.path, request.META.get("QUERY_STRING", ""), [] if key is None else [key], told
    )


def _made(reply: Reply) -> HttpResponse:
    response = HttpResponse(reply.body, status=reply.status)
    del response["Content-Type"]
    for name, value in reply.headers:
        response[name] = value
    return response


def _protect(rules: Rules, view: View, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
    driver = driver_of(rules.pool)
    try:
        exchange = finish(Exchange.of(rules, driver, _facts(request), request, lambda: request.body))
    except Answered as answered:
        return _made(answered.reply)
    except RawPostDataException as error:
        raise ImproperlyConfigured(
            "a middleware has read the body before it could be protected: read request.body in it"
        ) from error

    async def invoke() -> Any:
        exchange.begun, raised = False, False
        request.idempotence = await exchange.begin()
        try:
            response = view(request, *args, **kwargs)
        except _ANSWERED as error:
            response, raised = response_for_exception(request, error), True
        if response.streaming:
            raise TypeError("a protected view answers after COMMIT, so its answer must be whole: it cannot be streamed")
        if hasattr(response, "render") and not response.is_rendered:
            response = response.render()
        # REST framework has made an answer of an exception by itself, and then asks for a rollback.
        raised = raised or bool(getattr(response, "exception", False))
        if raised and exchange.protected and exchange.attempt.tx:
            transaction.set_rollback(False, using=rules.pool)
        await exchange.finish(Reply(response.status_code, list(response.items()), response.content), raised)
        return response

    return finish(exchange.serve(invoke, _made))


class _Idempotent(Rules):
    """See `idempotent`."""

    def __call__(self, view: View) -> View:
        if inspect.iscoroutinefunction(view):
            raise TypeError("the connections of Django block: make the protected view a plain function")

        # With ATOMIC_REQUESTS its COMMIT would come after the answer was recorded.
        @transaction.non_atomic_requests(using=self.pool)
        @functools.wraps(view)
        def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return _protect(self, view, request, *args, **kwargs)

        result: View = protected
        return result

    def answer(self, request: HttpRequest) -> HttpResponse:
        """A view for GET: the answer to the request that has this key. Waits for it, and never executes."""
        return _made(finish(look_up(self, driver_of(self.pool), _facts(request), request)))


def idempotent(session: str, *, using: str = "default", **options: Any) -> _Idempotent:
    """The decorator, of a view that is a function. The transaction is that of the alias `using`, so the view works on
    the connection of its models; `request.idempotence` is that connection, or the Lease. The other options are those of
    Rules."""
    return _Idempotent(using, session, **options)


class Middleware:
    """Protects all views whose path begins as the pattern `paths` in the setting IDEMPOTENCE says, which also has
    `session` and the options: IDEMPOTENCE = {"session": "payments", "paths": "/api/"}. It must be the last one: views
    that other middleware wraps are not seen."""

    def __init__(self, get_response: View) -> None:
        options = dict(getattr(settings, "IDEMPOTENCE", {}))
        if settings.MIDDLEWARE[-1] != f"{type(self).__module__}.{type(self).__qualname__}" or "session" not in options:
            raise ImproperlyConfigured(
                'idempotence.django.Middleware is the last of MIDDLEWARE, and needs IDEMPOTENCE = {"session": …}'
            )
        self.get_response, self.paths = get_response, re.compile(options.pop("paths", "/"))
        self.rules = idempotent(**options)

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: View, args: Any, kwargs: Any) -> Any:
        if self.paths.match(request.path) and request.method in self.rules.methods:
            return _protect(self.rules, view, request, *args, **kwargs)
        return None
