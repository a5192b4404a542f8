"""Django REST framework: the request is begun after initial(), so authentication, permissions and throttles come first.

    class Pay(IdempotentMixin, APIView):
        idempotent = idempotent("payments", identity=lambda request: request.user.pk)

A view that is a function has `@idempotent("payments")` below `@api_view(["POST"])`. If ATOMIC_REQUESTS is set it also
has `@transaction.non_atomic_requests`, above both; the mixin does so by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from . import django
from ._options import Options


def serve(options: Options, request: Any, handler: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`request` is one of REST framework, and `handler` the method of the view, or its function. REST framework makes a
    response of an exception, so the view does so here, before the response is recorded."""
    view = request.parser_context["view"]

    def call() -> tuple[Any, bool]:
        try:
            response = handler(request, *args, **kwargs)
        except Exception as error:
            response = view.handle_exception(error)
        raised = bool(getattr(response, "exception", False))
        response = view.finalize_response(request, response, *args, **kwargs)
        if hasattr(response, "render") and not response.is_rendered:
            response = response.render()
        return response, raised

    return django.serve(options, request, call)


class IdempotentMixin:
    """In front of APIView, or of a view set. `idempotent` is what `idempotence.django.idempotent` returns."""

    idempotent: Options

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(getattr(self, "idempotent", None), Options):
            raise ImproperlyConfigured(f'{type(self).__name__} needs: idempotent = idempotent("payments")')

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]
        options = kwargs.get("idempotent", getattr(cls, "idempotent", None))
        # With ATOMIC_REQUESTS its COMMIT would come after the answer was recorded.
        return transaction.non_atomic_requests(using=options.pool)(view) if isinstance(options, Options) else view

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        known = django.facts(request)
        if self.idempotent.protects(known.method) and (known.length or 0) <= self.idempotent.max_body:
            _ = request.body  # while it can be read: a permission may read request.data
        return super().initialize_request(request, *args, **kwargs)  # type: ignore[misc]

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        handler, using = getattr(self, request.method.lower(), None), self.idempotent.pool
        if handler is None:
            return
        if self.idempotent.protects(request.method):
            handler = functools.partial(self._protected, handler)
        elif connections[using].settings_dict["ATOMIC_REQUESTS"]:
            # as_view() has taken the view out of ATOMIC_REQUESTS, for all methods.
            handler = transaction.atomic(using=using)(handler)
        # A view exists for one request only. View sets set the methods of their actions in the same way.
        setattr(self, request.method.lower(), handler)

    def _protected(self, handler: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
        return serve(self.idempotent, request, handler, args, kwargs)
