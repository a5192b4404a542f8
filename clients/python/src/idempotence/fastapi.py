"""FastAPI: `app.router.route_class = idempotent.route`, and `Depends(idempotent)` in a path function."""

# FastAPI reads annotations, so they are not strings here.
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from fastapi import Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette._utils import is_async_callable

from . import starlette
from ._exchange import Exchange

_KEY = Header(
    alias="Idempotency-Key",
    description="A new key for each new request, and the same key with each retry. A retry takes effect once, and gets"
    " the first answer.",
)
_exchange: contextvars.ContextVar[Exchange] = contextvars.ContextVar("idempotence exchange")


@dataclasses.dataclass(eq=False)
class Idempotent(starlette.Idempotent):
    """`conn = Depends(idempotent)` is the connection whose transaction executes the request, and protects the route. It
    is resolved after all other dependencies, so what they refuse is not recorded, and a replay is for callers that
    they let in.

    A route is refused when it is made if one of its dependencies breaks that: one with a `yield`, which may commit or
    answer at another time than the request does, unless `yields` names it as harmless; and one that depends on
    Depends(idempotent) and reads the request, unless @idempotent.inside marks it as one that does not authenticate.
    See Options for the other arguments."""

    refusals: ClassVar[tuple[type[Exception], ...]] = (RequestValidationError,)
    _: dataclasses.KW_ONLY
    yields: Sequence[Callable[..., Any]] = ()
    marked: set[Callable[..., Any]] = dataclasses.field(default_factory=set, init=False, repr=False)

    def inside(self, dependency: Callable[..., Any]) -> Callable[..., Any]:
        """Marks a dependency that is resolved within the transaction and does not authenticate."""
        self.marked.add(dependency)
        return dependency

    async def __call__(  # type: ignore[override]
        self, request: Request, idempotency_key: Annotated[str | None, _KEY] = None
    ) -> Any:
        exchange = request.scope.get("idempotence")
        if exchange is None or exchange.options is not self:
            raise RuntimeError(
                "Depends(idempotent) protects nothing here: set route_class=idempotent.route on the router, before"
                " the route is made"
            )
        _exchange.set(exchange)
        return exchange.handed if exchange.begun else await exchange.begin()

    @property
    def route(self) -> type[APIRoute]:
        return _Route


class _Route(APIRoute):
    """Protects the path functions that depend on an Idempotent, and no others."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        # For an included router it is another one than self.dependant.
        dependant = inspect.getclosurevars(handler).nonlocals.get("dependant", self.dependant)
        found = {each.call for each in _all(dependant) if isinstance(each.call, Idempotent)}
        if not found:
            return handler
        if len(found) > 1:
            raise TypeError(f"{self.path} depends on two Idempotent: one request has one transaction")
        (idempotent,) = found
        _check(idempotent, self, dependant)
        dependant.dependencies.sort(key=_is_inside)
        dependant.call = _marked(dependant.call)

        async def protected(request: Request) -> Any:
            overrides = getattr(self.dependency_overrides_provider or request.app, "dependency_overrides", {})
            if idempotent in overrides:  # a test without a database
                return await handler(request)
            return await starlette.protect(idempotent, request, handler, False)

        return protected


def _check(idempotent: Idempotent, route: APIRoute, dependant: Any) -> None:
    methods = sorted(route.methods or ())
    if not any(map(idempotent.protects, methods)):
        raise TypeError(
            f"{route.path} is protected, but none of its methods is ({', '.join(methods)}): remove Depends(idempotent),"
            " or name them: Idempotent(…, methods=[…])"
        )
    starlette.check_handler(idempotent, dependant.call)
    for each in _all(dependant):
        name = getattr(each.call, "__name__", repr(each.call))
        if each.call not in idempotent.yields and (
            inspect.isgeneratorfunction(each.call) or inspect.isasyncgenfunction(each.call)
        ):
            raise TypeError(
                f"{name} has a yield, and {route.path} is protected: what follows the yield runs after the COMMIT of"
                " the request, or after its answer. Take the connection from Depends(idempotent). If it commits"
                " nothing, name it: Idempotent(…, yields=[…])"
            )
        if (
            each is not dependant
            and not isinstance(each.call, Idempotent)
            and each.call not in idempotent.marked
            and _is_inside(each)
            and any(map(_reads_the_request, _all(each)))
        ):
            raise TypeError(
                f"{name} depends on Depends(idempotent) and reads the request, and {route.path} is protected: a replay"
                f" is answered without {name}, so it must not authenticate. Authenticate in a dependency that takes"
                " another connection. If it does not authenticate, mark it: @idempotent.inside"
            )


def _all(dependant: Any) -> Iterator[Any]:
    yield dependant
    for each in dependant.dependencies:
        yield from _all(each)


def _is_inside(dependant: Any) -> bool:
    """Whether the dependency needs the transaction, and so is resolved within it."""
    return any(isinstance(each.call, Idempotent) for each in _all(dependant))


def _reads_the_request(dependant: Any) -> bool:
    from fastapi.security.base import SecurityBase

    if isinstance(dependant.call, Idempotent):
        return False
    return bool(
        dependant.header_params
        or dependant.cookie_params
        or dependant.query_params
        or dependant.request_param_name
        or dependant.http_connection_param_name
        or isinstance(dependant.call, SecurityBase)
    )


def _note_call() -> None:
    if exchange := _exchange.get(None):
        exchange.working = True


def _marked(call: Callable[..., Any]) -> Callable[..., Any]:
    """The path function, which notes that it was called: an exception before it is one of authentication, and is not
    recorded."""
    if is_async_callable(call):

        @functools.wraps(call)
        async def marked(*args: Any, **kwargs: Any) -> Any:
            _note_call()
            return await call(*args, **kwargs)
    else:

        @functools.wraps(call)
        def marked(*args: Any, **kwargs: Any) -> Any:
            _note_call()
            return call(*args, **kwargs)

    return marked
