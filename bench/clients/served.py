"""The applications in Python that rates.py measures: served.py fastapi|django DRIVER GUARD URI PORT REDIS

The routes are those of clients/python/tests/chaos_app.py. FastAPI is served by uvicorn, Django by gunicorn with
threads, in one process each. GUARD is unprotected, idempotence, or one that is put around what is unprotected, as its
own documentation has it.
"""

import sys

import chaos_app
import drivers
import servers

framework, driver, guard, servers.POOLS["owner"], port, redis_socket = sys.argv[1:]


def idemkit():
    """README of idemkit, HTTP: for production."""
    from idemkit import HttpConfig, PostgresBackend, RedisBackend

    if guard == "idemkit-postgres":
        backend = PostgresBackend.from_url(servers.POOLS["owner"])
    else:
        backend = RedisBackend.from_url(f"unix://{redis_socket}")
    return {"backend": backend, "config": HttpConfig(scope=lambda req: req.headers.get("x-user-id", "anonymous"))}


def guarded(app):
    if guard.startswith("idemkit"):
        from idemkit import IdempotencyMiddleware

        app.add_middleware(IdempotencyMiddleware, **idemkit())
    elif guard == "asgi-idempotency-header":
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends import RedisBackend
        from redis.asyncio import from_url

        app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis=from_url(f"unix://{redis_socket}")))
    return app


async def fastapi():
    import uvicorn

    pool = await drivers.Pools(driver).get()
    app = chaos_app.fastapi_app(pool, driver) if guard == "idempotence" else guarded(chaos_app.unprotected_app(pool))
    await uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="critical")).serve()


def django():
    from gunicorn.app.base import BaseApplication

    class Application(BaseApplication):
        def load_config(self):
            settings = {"bind": f"127.0.0.1:{port}", "worker_class": "gthread", "threads": 8, "loglevel": "critical"}
            for name, value in settings.items():
                self.cfg.set(name, value)

        def load(self):
            from django.core.wsgi import get_wsgi_application
            from idemkit import WSGIIdempotencyMiddleware

            chaos_app.django_application(protected=guard == "idempotence")
            application = get_wsgi_application()
            return WSGIIdempotencyMiddleware(application, **idemkit()) if guard.startswith("idemkit") else application

    Application().run()


if framework == "django":
    django()
else:
    import uvloop

    uvloop.run(fastapi())
