"""What a client raises, and which errors of a driver a retry may mend."""

from __future__ import annotations

import asyncio
import datetime
import re
from typing import Any

# The table "What to retry" of the reference. 57014 is not in it: what was cancelled may take as long again.
_RETRY = re.compile("08|25P03|40001|40P01|53|55P03|57P0[1-35]")
_DRIVERS = ("psycopg", "asyncpg", "sqlalchemy", "django.db")


class Final(Exception):
    """Raised by the work: the request has failed for good. Its response is recorded, and the answer to each retry."""

    def __init__(self, response: Any = None) -> None:
        super().__init__(response)
        self.response = response


class InProgress(Exception):
    """Somebody else is at work on the request, and the wait is over. Ask again later, with the same key and payload."""

    def __init__(self, key: object, expires_at: datetime.datetime | None = None) -> None:
        super().__init__(f"the request {key} is still in progress")
        self.expires_at = expires_at


class Interrupted(Exception):
    """Somebody stopped in the middle of the request: an effect may have happened, so it is not simply executed."""

    def __init__(self, key: object, point: str | None = None, state: Any = None) -> None:
        where = f"at {point!r}" if point else "in the middle"
        super().__init__(f"the request {key} stopped {where}: use lease() to take it over and look what happened")
        self.point, self.state = point, state


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error of any driver. SQLAlchemy and Django have the driver's error in theirs."""
    inner = [error]
    if type(error).__module__.partition(".")[0] in ("sqlalchemy", "django"):
        inner += [e for e in (getattr(error, "orig", None), error.__cause__) if e is not None]
    for each in inner:
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def of_driver(error: BaseException) -> bool:
    """Whether a driver, a pool or the network raised it, and not the application."""
    return isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError)) or any(
        kind.__module__.startswith(_DRIVERS) for kind in type(error).__mro__
    )


def may_retry(error: BaseException, lost: bool) -> bool:
    """Whether the same transaction may be sent again. `lost`: the error came with a connection that is gone."""
    state = sqlstate(error)
    return bool(_RETRY.match(state)) if state else lost and of_driver(error)
