"""A retried request takes effect once. The client of the PostgreSQL extension idempotence.

No rule lives here: what these functions do under a key, the same calls by hand in SQL do too.
"""

from ._client import Client
from ._errors import Final, InProgress, Interrupted
from ._lease import Lease, Superseded, lease
from ._run import Answer, check, lookup, once, run

__all__ = [
    "Answer",
    "Client",
    "Final",
    "InProgress",
    "Interrupted",
    "Lease",
    "Superseded",
    "check",
    "lease",
    "lookup",
    "once",
    "run",
]
