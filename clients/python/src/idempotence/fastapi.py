"""FastAPI: `app.router.route_class = idempotent.route`, and `Depends(idempotent)` in a path function."""

# Annotations are read by FastAPI, so they are no strings here.
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from . import starlette


@dataclasses.dataclass(eq=False)
class Idempotent(starlette.Idempotent):
    """`conn = Depends(idempotent)` is the connection whose transaction has the request, and protects the route. It is
    resolved after all other dependencies, so what they refuse is not recorded. A dependency with a `yield` may commit,
    or answer, at another time than the request does: such a route is refused when it is made, unless `yields` names the
    dependency as harmless. The other options are those of Rules."""

    refusals: ClassVar[tuple[type[Exception], ...]] = (RequestValidationError,)
    _: dataclasses.KW_ONLY
    yields: Sequence[Callable[..., Any]] = ()

    async def __call__(self, request: Request) -> Any:  # type: ignore[override]
        exchange = request.scope.get("idempotence")
        if exchange is None or exchange.rules is not self:
            raise RuntimeError(
                "Depends(idempotent) protects nothing here: set route_class=idempotent.route on the router, before"
                " the route is made"
            )
        return exchange.handed if exchange.begun else await exchange.begin()

    @property
    def route(self) -> type[APIRoute]:
        return _Route


class _Route(APIRoute):
    """Protects the path functions that depend on an Idempotent, and no others."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()
        # Of an included router it is another one than self.dependant.
        dependant = inspect.getclosurevars(handler).nonlocals.get("dependant", self.dependant)
        found = [each.call for each in _all(dependant) if isinstance(each.call, Idempotent)]
        if not found:
            return handler
        rules: Idempotent = found[0]
        for each in _all(dependant):
            if each.call not in rules.yields and (
                inspect.isgeneratorfunction(each.call) or inspect.isasyncgenfunction(each.call)
            ):
                raise TypeError(
                    f"{each.call.__name__} has a yield, and {self.path} is protected: what follows the yield"
                    " runs after the COMMIT of the request, or after its answer. Take the connection from"
                    " Depends(idempotent); if it commits nothing, name it: Idempotent(…, yields=[…])"
                )
        dependant.dependencies.sort(key=lambda each: any(isinstance(inner.call, Idempotent) for inner in _all(each)))

        async def protected(request: Request) -> Any:
            return await starlette.protect(rules, request, handler, False)

        return protected


def _all(dependant: Any) -> Iterator[Any]:
    yield dependant
    for each in dependant.dependencies:
        yield from _all(each)
