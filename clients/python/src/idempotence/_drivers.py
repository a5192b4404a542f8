"""The driver of what the user passes as `pool` or `conn`."""

from __future__ import annotations

import inspect
import re
from typing import Any

from ._transactions import Driver, Tx

_URI = re.compile(r"postgres(ql)?://|.*=")


def driver_of(source: Any) -> Driver:
    """The driver of a pool, an engine, a session factory, a Django alias, a connection string or a function that
    connects."""
    if isinstance(source, Driver):
        return source
    if isinstance(source, str):
        if not _URI.match(source):
            from ._django_database import Django

            return Django(source)
        import psycopg

        from ._psycopg import Psycopg

        return Psycopg(lambda: psycopg.connect(source))
    root, name = type(source).__module__.partition(".")[0], type(source).__name__
    if root == "psycopg_pool":
        from ._psycopg import Psycopg

        return Psycopg(source, name.startswith("Async"))
    if root == "sqlalchemy":
        if "scoped_session" in name:
            raise TypeError("a scoped session is shared by the requests of a thread: pass its sessionmaker")
        from ._sqlalchemy import Sqlalchemy

        return Sqlalchemy(source, "async" in name.lower())
    where = root if root == "asyncpg" else getattr(getattr(source, "func", source), "__module__", "") or ""
    if callable(source) or root == "asyncpg":
        if where.startswith("asyncpg"):
            from ._asyncpg import Asyncpg

            return Asyncpg(source)
        from ._psycopg import Psycopg

        return Psycopg(source, inspect.iscoroutinefunction(source) or where == "psycopg.connection_async")
    raise TypeError(
        f"idempotence knows no {type(source).__qualname__}: pass a pool of psycopg or asyncpg, an engine or a"
        " session factory of SQLAlchemy, a Django alias, or a function that connects"
    )


def transaction_of(conn: Any) -> Tx:
    """The transaction of the caller's connection: queries only."""
    if isinstance(conn, str):
        from django.db import connections

        conn = connections[conn]
    root = next((each for each in map(_root, type(conn).__mro__) if each in _BORROWED), None)
    if root is None:
        raise TypeError(f"idempotence knows no connection of the kind {type(conn).__qualname__}")
    driver = Driver(None, "Async" in type(conn).__name__ or root == "asyncpg")
    module = __import__(f"idempotence.{_BORROWED[root]}", fromlist=["BorrowedTx"])
    tx: Tx = module.BorrowedTx(driver, conn)
    return tx


_BORROWED = {
    "psycopg": "_psycopg",
    "asyncpg": "_asyncpg",
    "sqlalchemy": "_sqlalchemy",
    "django": "_django_database",
}


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]
