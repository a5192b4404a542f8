"""A retried request takes effect once: the client of the PostgreSQL extension idempotence.

It contains no rule of its own: the same calls, made by hand in SQL, have the same results.
"""

from ._check import check
from ._client import Client
from ._complete import complete
from ._errors import Final, InProgress, Interrupted, Superseded, TransactionEnded, Unrecorded
from ._lease import Done, Lease, lease
from ._run import Answer, lookup, once, run

__all__ = [
    "Answer",
    "Client",
    "Done",
    "Final",
    "InProgress",
    "Interrupted",
    "Lease",
    "Superseded",
    "TransactionEnded",
    "Unrecorded",
    "check",
    "complete",
    "lease",
    "lookup",
    "once",
    "run",
]
