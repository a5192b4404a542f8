"""The exceptions of the client, and the SQLSTATEs of a driver's errors."""

from __future__ import annotations

import asyncio
import datetime
import re
from typing import Any

# The table "What to retry" of the reference. 57014 is not in it: a statement that was cancelled may take as long again.
RETRYABLE = re.compile("08|25P03|40001|40P01|53|55P03|57P0[1-35]")
_DRIVERS = ("psycopg", "asyncpg", "sqlalchemy", "django.db")
NO_COMMIT = "the handler must not commit or roll back: the adapter commits after the answer is recorded"
NO_CLOSE = "the handler must not close the connection: the adapter commits after the answer is recorded"


class Final(Exception):
    """Raised by the work: the request has failed for good. The response is recorded, and every retry receives it."""

    def __init__(self, response: Any = None) -> None:
        super().__init__(response)
        self.response = response


class InProgress(Exception):
    """Another process executes the request, and the wait is over. Retry later, with the same key and payload."""

    def __init__(self, key: object, expires_at: datetime.datetime | None = None) -> None:
        super().__init__(f"the request {key} is still in progress")
        self.expires_at = expires_at


class Interrupted(Exception):
    """Another process stopped in the middle of the request. An effect may have happened, so the request is not simply
    executed again."""

    def __init__(self, key: object, point: str | None = None, state: Any = None) -> None:
        where = f"at {point!r}" if point else "in the middle"
        super().__init__(f"the request {key} stopped {where}: take it over with a lease, and check what has happened")
        self.point, self.state = point, state


class Superseded(Exception):
    """The lease is lost: another process has taken the request over, or it is settled. Stop the work. SQLSTATE
    ID005."""

    sqlstate = "ID005"

    def __init__(self, key: object) -> None:
        super().__init__(f"the lease of the request {key} is lost: another process has taken it over, so stop")


class Unrecorded(Exception):
    """The block of a lease ended without record and without release."""

    def __init__(self, key: object) -> None:
        super().__init__(
            f"the block ended, and the outcome of the request {key} is not recorded: call record() or release() on the"
            " lease. The request can be taken over when its lease has expired"
        )


class TransactionEnded(RuntimeError):
    """The connection of a request is used after its end."""

    def __init__(self) -> None:
        super().__init__(
            "the transaction of this request has ended: what runs after the answer takes a connection of its own"
        )


class Spoilt(Exception):
    """The transaction cannot commit, since the handler caught an error of the database."""

    sqlstate = "25P02"

    def __init__(self) -> None:
        super().__init__(
            "the handler caught an error of the database, so its transaction cannot commit: catch it around a savepoint"
        )


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error of any driver. SQLAlchemy and Django wrap the driver's error."""
    inner = [error]
    if type(error).__module__.partition(".")[0] in ("sqlalchemy", "django"):
        inner += [e for e in (getattr(error, "orig", None), error.__cause__) if e is not None]
    for each in inner:
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def detail(error: BaseException) -> str:
    """The DETAIL of an error that the server has reported."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        found = getattr(getattr(each, "diag", None), "message_detail", None) or getattr(each, "detail", None)
        if isinstance(found, str):
            return found
    return ""


def of_driver(error: BaseException) -> bool:
    """Whether a driver, a pool or the network raised the error, and not the application."""
    return isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError)) or raised_by_driver(error)


def raised_by_driver(error: BaseException) -> bool:
    return any(kind.__module__.startswith(_DRIVERS) for kind in type(error).__mro__)


def of_lost_connection(error: BaseException) -> bool:
    """Whether a driver reports such an error when the connection is lost."""
    state = sqlstate(error)
    return bool(RETRYABLE.match(state)) if state else True
