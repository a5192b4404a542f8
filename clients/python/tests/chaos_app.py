"""The application that clients/chaos kills: chaos_app.py fastapi|starlette|django|unprotected DRIVER URI PORT"""

import asyncio
import contextlib
import json
import sys

import drivers
import servers


def django_view(protected=True):
    drivers.django_setup()
    from django.db import connection, transaction
    from django.http import JsonResponse

    from idempotence.django import idempotent

    @(idempotent("chaos") if protected else transaction.atomic)
    def pay(request):
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO chaos_effect (key) VALUES (%s) RETURNING n", [json.loads(request.body)["key"]])
            return JsonResponse({"n": cursor.fetchone()[0]}, status=201)

    return pay


async def insert(tx, key):
    return {"n": (await tx.query("INSERT INTO chaos_effect (key) VALUES ($1) RETURNING n", key))[0][0]}


def starlette_app(pool):
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from idempotence._drivers import transaction_of
    from idempotence.starlette import Idempotent

    @Idempotent(pool, "chaos")
    async def pay(request):
        answer = await insert(transaction_of(request.state.conn), (await request.json())["key"])
        return JSONResponse(answer, 201)

    return Starlette(routes=[Route("/pay", pay, methods=["POST"])])


def unprotected_app(pool):
    """What shows that the chaos finds what nothing protects, and what bench/clients compares with."""
    from fastapi import Body, FastAPI

    from idempotence._drivers import transaction_of

    app = FastAPI()

    @contextlib.asynccontextmanager
    async def transaction():
        if hasattr(pool, "acquire"):
            async with pool.acquire() as conn, conn.transaction():
                yield transaction_of(conn)
        else:
            async with pool.connection() as conn:
                yield transaction_of(conn)

    @app.post("/pay", status_code=201)
    async def pay(key: str = Body(embed=True)):
        async with transaction() as tx:
            return await insert(tx, key)

    return app


def fastapi_app(pool, driver):
    from fastapi import Body, Depends, FastAPI

    from idempotence._await import finish
    from idempotence._drivers import transaction_of
    from idempotence.fastapi import Idempotent

    idempotent = Idempotent(pool, "chaos")
    app = FastAPI()
    app.router.route_class = idempotent.route

    if drivers.asynchronous(driver):

        @app.post("/pay", status_code=201)
        async def pay(key: str = Body(embed=True), conn=Depends(idempotent)):
            return await insert(transaction_of(conn), key)
    else:

        @app.post("/pay", status_code=201)
        def pay(key: str = Body(embed=True), conn=Depends(idempotent)):
            return finish(insert(transaction_of(conn), key))

    return app


def django_application(protected=True):
    view = django_view(protected)
    import django_app

    django_app.urlpatterns[:] = [django_app.path("pay", view)]
    return django_app


async def serve(framework, driver, port):
    import uvicorn

    pool = await drivers.Pools(driver).get()
    if framework == "fastapi":
        app = fastapi_app(pool, driver)
    else:
        app = (starlette_app if framework == "starlette" else unprotected_app)(pool)
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical")).serve()


if __name__ == "__main__":
    framework, driver, servers.POOLS["owner"], port = sys.argv[1:]
    if framework == "django":
        django_application().serve(int(port))
    else:
        asyncio.run(serve(framework, driver, int(port)))
