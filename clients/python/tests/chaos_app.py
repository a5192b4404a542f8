"""The application that clients/chaos kills: chaos_app.py fastapi|starlette|django|unprotected DRIVER URI PORT"""

import asyncio
import json
import sys

import drivers
import servers

servers.POOLS["owner"] = sys.argv[3]


def django_view():
    drivers.django_setup()
    from django.db import connection
    from django.http import JsonResponse

    from idempotence.django import idempotent

    @idempotent("chaos")
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


def fastapi_app(pool, driver):
    from fastapi import Body, Depends, FastAPI

    from idempotence._drivers import finish, transaction_of
    from idempotence.fastapi import Idempotent

    idempotent = Idempotent(pool, "chaos")
    app = FastAPI()
    app.router.route_class = idempotent.route
    # What shows that the chaos finds what nothing protects.
    given = (lambda: None) if framework == "unprotected" else idempotent

    async def made(conn, key):
        if conn is not None:
            return await insert(transaction_of(conn), key)
        async with pool.connection() as conn:
            return await insert(transaction_of(conn), key)

    if drivers.asynchronous(driver):

        @app.post("/pay", status_code=201)
        async def pay(key: str = Body(embed=True), conn=Depends(given)):
            return await made(conn, key)
    else:

        @app.post("/pay", status_code=201)
        def pay(key: str = Body(embed=True), conn=Depends(given)):
            return finish(made(conn, key))

    return app


async def serve(driver, port):
    import uvicorn

    pool = await drivers.Pools(driver).get()
    app = starlette_app(pool) if framework == "starlette" else fastapi_app(pool, driver)
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical")).serve()


framework, driver, port = sys.argv[1], sys.argv[2], int(sys.argv[4])
if framework == "django":
    import django_app

    django_app.urlpatterns[:] = [django_app.path("pay", django_view())]
    sys.modules["django_app"] = django_app
    django_app.serve(port)
else:
    asyncio.run(serve(driver, port))
