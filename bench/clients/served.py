"""The applications in Python that rates.py measures: served.py FRAMEWORK DRIVER GUARD URI PORT REDIS

POST /unprotected inserts a key in a transaction, as the framework's and the driver's documentation does it. With the
guard `idempotence` POST /protected does the same through the adapter. Any other guard is middleware around the whole
application, as its own documentation has it. One process serves, with eight connections: FastAPI by uvicorn, Django by
gunicorn with eight threads.
"""

import asyncio
import contextlib
import json
import sys
import urllib.parse

FRAMEWORK, DRIVER, GUARD, URI, PORT, REDIS = sys.argv[1:]
INSERT = "INSERT INTO chaos_effect (key) VALUES (%s) RETURNING n"


def idemkit():
    """README of idemkit, HTTP: for production."""
    from idemkit import HttpConfig, PostgresBackend, RedisBackend

    backend = PostgresBackend.from_url(URI) if GUARD == "idemkit-postgres" else RedisBackend.from_url(REDIS)
    return {"backend": backend, "config": HttpConfig(scope=lambda req: req.headers.get("x-user-id", "anonymous"))}


def guarded(app):
    if GUARD.startswith("idemkit"):
        from idemkit import IdempotencyMiddleware

        app.add_middleware(IdempotencyMiddleware, **idemkit())
    elif GUARD == "asgi-idempotency-header":
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends import RedisBackend
        from redis.asyncio import from_url

        app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis=from_url(REDIS)))
    return app


async def psycopg(routes):
    from psycopg_pool import AsyncConnectionPool

    async def insert(conn, key):
        return {"n": (await (await conn.execute(INSERT, (key,))).fetchone())[0]}

    @contextlib.asynccontextmanager
    async def transaction():
        async with pool.connection() as conn:
            yield conn

    async with AsyncConnectionPool(URI, min_size=8, max_size=8, open=False) as pool:
        await serve(routes(pool, transaction, insert))


async def asyncpg(routes):
    import asyncpg

    async def insert(conn, key):
        return {"n": await conn.fetchval(INSERT.replace("%s", "$1"), key)}

    @contextlib.asynccontextmanager
    async def transaction():
        async with pool.acquire() as conn, conn.transaction():
            yield conn

    async with asyncpg.create_pool(URI, min_size=8, max_size=8) as pool:
        await serve(routes(pool, transaction, insert))


async def sqlalchemy_asyncpg(routes):
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    async def insert(session, key):
        return {"n": (await session.execute(text(INSERT.replace("%s", ":key")), {"key": key})).scalar()}

    @contextlib.asynccontextmanager
    async def transaction():
        async with sessions.begin() as session:
            yield session

    engine = create_async_engine(URI.replace("postgresql:", "postgresql+asyncpg:"), pool_size=8, max_overflow=0)
    sessions = async_sessionmaker(engine)
    await serve(routes(sessions, transaction, insert))


async def sqlalchemy_psycopg(_):
    """Blocking, in path functions of `def`."""
    from fastapi import Body, Depends, FastAPI
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import sessionmaker

    from idempotence.fastapi import Idempotent

    engine = create_engine(URI.replace("postgresql:", "postgresql+psycopg:"), pool_size=8, max_overflow=0)
    sessions = sessionmaker(engine)

    def insert(session, key):
        return {"n": session.execute(text(INSERT.replace("%s", ":key")), {"key": key}).scalar()}

    def unprotected(key: str = Body(embed=True)):
        with sessions.begin() as session:
            return insert(session, key)

    app = FastAPI()
    app.post("/unprotected", status_code=201)(unprotected)
    idempotent = Idempotent(sessions, "chaos")

    def protected(key: str = Body(embed=True), session=Depends(idempotent)):
        return insert(session, key)

    app.router.route_class = idempotent.route
    app.post("/protected", status_code=201)(protected)
    await serve(app)


def asynchronous_routes(pool, transaction, insert):
    from fastapi import Body, Depends, FastAPI

    from idempotence.fastapi import Idempotent

    async def unprotected(key: str = Body(embed=True)):
        async with transaction() as conn:
            return await insert(conn, key)

    app = FastAPI()
    app.post("/unprotected", status_code=201)(unprotected)
    if GUARD != "idempotence":
        return guarded(app)
    idempotent = Idempotent(pool, "chaos")

    async def protected(key: str = Body(embed=True), conn=Depends(idempotent)):
        return await insert(conn, key)

    # Of the routes that follow: the one above stays as it is without the adapter.
    app.router.route_class = idempotent.route
    app.post("/protected", status_code=201)(protected)
    return app


async def serve(app):
    import uvicorn

    await uvicorn.Server(uvicorn.Config(app, port=int(PORT), log_level="critical")).serve()


def django():
    from gunicorn.app.base import BaseApplication

    class Application(BaseApplication):
        def load_config(self):
            settings = {"bind": f"127.0.0.1:{PORT}", "worker_class": "gthread", "threads": 8, "keepalive": 60}
            for name, value in {**settings, "loglevel": "critical"}.items():
                self.cfg.set(name, value)

        def load(self):
            return django_application()

    Application().run()


def django_application():
    import django
    from django.conf import settings

    parts = urllib.parse.urlsplit(URI)
    database = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": None, **database}},
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="x",
    )
    django.setup()
    from django.core.wsgi import get_wsgi_application
    from django.db import connection, transaction
    from django.http import JsonResponse
    from django.urls import path

    from idempotence.django import idempotent

    def pay(request):
        with connection.cursor() as cursor:
            cursor.execute(INSERT, [json.loads(request.body)["key"]])
            return JsonResponse({"n": cursor.fetchone()[0]}, status=201)

    global urlpatterns
    urlpatterns = [path("unprotected", transaction.atomic(pay)), path("protected", idempotent("chaos")(pay))]
    application = get_wsgi_application()
    if GUARD.startswith("idemkit"):
        from idemkit import WSGIIdempotencyMiddleware

        application = WSGIIdempotencyMiddleware(application, **idemkit())
    return application


DRIVERS = {
    "psycopg": psycopg,
    "asyncpg": asyncpg,
    "sqlalchemy-asyncpg": sqlalchemy_asyncpg,
    "sqlalchemy-psycopg": sqlalchemy_psycopg,
}

if FRAMEWORK == "django":
    django()
else:
    import uvloop

    uvloop.install()
    asyncio.run(DRIVERS[DRIVER](asynchronous_routes))
