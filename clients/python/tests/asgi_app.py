"""The applications of FastAPI and Starlette that http_vectors.json runs. asgi_app.py FRAMEWORK DRIVER PORT"""

import contextlib
import json
import sys

import drivers
import uvicorn
from actions import perform, perform_now
from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel
from servers import CLIENTS
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import idempotence.fastapi
import idempotence.starlette
from idempotence._drivers import driver_of

ROUTES = json.loads((CLIENTS / "http_vectors.json").read_text())["routes"]
OPTIONS = ("required", "strict", "max_body", "unprotectable", "wait", "lease", "methods", "handler_timeout")
METHODS = ["POST", "PATCH", "PUT", "DELETE"]


class Body(BaseModel):
    run: str
    work: list[list[dict]]


def refuse(status):
    raise HTTPException(status, "refused")


def where(route):
    return route["path"] + "{rest:path}" if route.get("prefix") else route["path"]


def rules(kind, pool, route):
    options = {name: route[name] for name in OPTIONS if name in route}
    if "identity" in route:
        options["identity"] = lambda request: request.headers.get(route["identity"], "")
    return kind(pool, route["session"], **options)


async def other(pool):
    tx = await driver_of(pool).open(5)
    await tx.single("SELECT 1")
    await tx.close()
    return Response("1")


class Refuse:
    """The layer before."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        status = dict(scope.get("headers", [])).get(b"x-refuse")
        await (PlainTextResponse("refused", int(status)) if status else self.app)(scope, receive, send)


def fastapi_app(pool, blocking, lifespan):
    app = FastAPI(lifespan=lifespan)
    app.add_middleware(Refuse)
    for route in ROUTES:
        add_route(app, pool, blocking, route)
    return app


def add_route(app, pool, blocking, route):
    if "sql" in route:

        async def ask():
            return await other(pool)

        app.add_api_route(route["path"], (lambda: driver_of_blocking(pool)) if blocking else ask)
        return
    idempotent = rules(idempotence.fastapi.Idempotent, pool, route)
    if "answer" in route:
        app.add_api_route(route["path"], idempotent.answer, response_class=Response)
        return
    router = APIRouter(route_class=idempotent.route)

    async def work(body: Body, conn=Depends(idempotent)):
        return made(*await perform(body.model_dump(), conn, refuse))

    def work_blocking(body: Body, conn=Depends(idempotent)):
        return made(*perform_now(body.model_dump(), conn, refuse))

    router.add_api_route(where(route), work_blocking if blocking else work, methods=METHODS)
    app.include_router(router)


def driver_of_blocking(pool):
    with pool.connection() as conn:
        conn.execute("SELECT 1")
    return 1


def made(status, headers, body):
    return Response(body, status, headers)


def starlette_app(pool, lifespan):
    routes = []
    for route in ROUTES:
        if "sql" in route:

            async def ask(request):
                return await other(pool)

            routes.append(Route(route["path"], ask))
            continue
        idempotent = rules(idempotence.starlette.Idempotent, pool, route)
        if "answer" in route:
            routes.append(Route(route["path"], idempotent.answer))
            continue

        @idempotent
        async def work(request: Request):
            return made(*await perform(await request.json(), request.state.conn, refuse))

        routes.append(Route(where(route), work, methods=METHODS))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(Refuse)
    return app


async def main(framework, driver, port):
    pools = drivers.Pools(driver)
    async with pools.stack:
        pool = await pools.get()
        blocking = not drivers.asynchronous(driver)
        app = fastapi_app(pool, blocking, None) if framework == "fastapi" else starlette_app(pool, None)
        await uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off")).serve()


if __name__ == "__main__":
    import asyncio

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
