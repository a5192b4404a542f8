"""A pool of each driver, by the names of the vectors."""

import contextlib
import functools
import os
import sys
import uuid

import psycopg
from psycopg.conninfo import conninfo_to_dict
from servers import POOLS

NAMES = [
    "psycopg-pool",
    "psycopg-async",
    "psycopg-connect",
    "asyncpg",
    "sqlalchemy",
    "sqlalchemy-async",
    "sqlalchemy-psycopg-async",
    "sqlalchemy-session",
    "sqlalchemy-psycopg2",
    "sqlalchemy-async-session",
    "django",
]

# The driver of Django's connections: psycopg or psycopg2.
DJANGO = os.environ.get("IDEM_DJANGO", "psycopg")


def some(names, short):
    """The parameters of a test: those that are not in `short` run in the long form only."""
    import pytest

    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


def asynchronous(name):
    return "async" in name


def sqlalchemy_url(driver, uri):
    from sqlalchemy import URL

    parts = conninfo_to_dict(uri)
    host, port = parts.pop("host"), parts.pop("port", "5432")
    parts.pop("connect_timeout", None)
    query = {"host": host} if host.startswith("/") else {}
    if driver.endswith("asyncpg") and query:
        query = {"host": f"{host}"}
    return URL.create(
        driver, parts["user"], host=None if query else host, port=int(port), database=parts["dbname"], query=query
    )


def django_setup():
    import django
    from django.conf import settings

    if settings.configured:
        return
    if DJANGO == "psycopg2":
        # Django takes psycopg 3 if it can be imported.
        sys.modules["psycopg"] = None
        from django.db.backends.postgresql.base import Database

        sys.modules["psycopg"] = psycopg
        assert Database.__name__ == "psycopg2"
    databases = {}
    for name, uri in POOLS.items():
        parts = conninfo_to_dict(uri)
        databases["default" if name == "owner" else name] = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts["user"],
            "HOST": parts["host"],
            "PORT": parts.get("port", "5432"),
        }
    if DJANGO == "psycopg":
        databases["default"]["OPTIONS"] = {"pool": {"min_size": 1, "max_size": 4, "timeout": 5}}
    else:
        databases["default"]["CONN_MAX_AGE"] = 60
    settings.configure(
        DATABASES=databases,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="django_app",
        SECRET_KEY="x",
        USE_TZ=True,
        MIDDLEWARE=["django_app.refuse_before"],
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )
    django.setup()


def django_alias(alias, uri, **settings):
    """Adds an entry to DATABASES."""
    from django.db import connections

    parts = conninfo_to_dict(uri)
    place = {"HOST": parts["host"], "PORT": parts.get("port", "5432"), "OPTIONS": {}}
    connections.databases[alias] = {**connections.databases["default"], **place, **settings}


class Pools:
    """Opened when they are asked for. `pooled`: behind PgBouncer, which knows no prepared statements."""

    def __init__(self, name, pooled=False):
        self.name, self.open, self.stack, self.pooled = name, {}, contextlib.AsyncExitStack(), pooled

    def options(self, driver):
        """Of each connection, as the manuals of the drivers state them for PgBouncer."""
        if not self.pooled or driver == "psycopg2":
            return {}
        if driver == "psycopg":
            return {"prepare_threshold": None}
        options = {"statement_cache_size": 0}
        if self.name.startswith("sqlalchemy"):
            options |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: f"s{uuid.uuid4()}"}
        return options

    async def get(self, which="owner"):
        if which not in self.open:
            self.open[which] = await self.make(POOLS[which], which)
        return self.open[which]

    async def make(self, uri, which):
        if self.name == "django":
            django_setup()
            if self.pooled:
                django_alias(which, uri, DISABLE_SERVER_SIDE_CURSORS=True)
            return "default" if which == "owner" else which
        if self.name == "psycopg-connect":
            import psycopg

            return functools.partial(psycopg.connect, uri, autocommit=True)
        if self.name == "psycopg-pool":
            from psycopg_pool import ConnectionPool

            kwargs = self.options("psycopg")
            pool = ConnectionPool(uri, kwargs=kwargs, min_size=1, max_size=4, timeout=2, open=False)
            pool.open()
            self.stack.callback(pool.close)
            return pool
        if self.name == "psycopg-async":
            from psycopg_pool import AsyncConnectionPool

            kwargs = self.options("psycopg")
            pool = AsyncConnectionPool(uri, kwargs=kwargs, min_size=1, max_size=4, timeout=2, open=False)
            await pool.open()
            self.stack.push_async_callback(pool.close)
            return pool
        if self.name == "asyncpg":
            import asyncpg

            parts = conninfo_to_dict(uri)
            pool = asyncpg.create_pool(
                host=parts["host"],
                port=int(parts.get("port", 5432)),
                user=parts["user"],
                database=parts["dbname"],
                min_size=0,
                max_size=4,
                **self.options("asyncpg"),
            )
            with contextlib.suppress(OSError):
                pool = await pool
            self.stack.push_async_callback(pool.close)
            return pool
        if self.name.startswith("sqlalchemy") and asynchronous(self.name):
            from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

            driver = "psycopg" if "psycopg" in self.name else "asyncpg"
            url = sqlalchemy_url(f"postgresql+{driver}", uri)
            engine = create_async_engine(url, pool_size=4, max_overflow=0, connect_args=self.options(driver))
            self.stack.push_async_callback(engine.dispose)
            return async_sessionmaker(engine) if self.name.endswith("session") else engine
        from sqlalchemy import create_engine
        from sqlalchemy.orm import sessionmaker

        driver = "psycopg2" if self.name.endswith("psycopg2") else "psycopg"
        url = sqlalchemy_url(f"postgresql+{driver}", uri)
        engine = create_engine(url, pool_size=4, max_overflow=0, connect_args=self.options(driver))
        self.stack.callback(engine.dispose)
        return sessionmaker(engine) if self.name == "sqlalchemy-session" else engine
