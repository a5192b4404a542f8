"""Transfers money once, however often it is asked to. psycopg 3; usage: psycopg3.py URI [KEY]

setup.sql makes what it needs. Do not call a program of your own psycopg.py: it would import itself.
"""

import datetime
import json
import random
import sys
import time
import uuid

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


def transfer(uri, key, payload, attempts_max=10):
    """Asks until there is an answer, with the same key and payload each time."""
    for attempt in range(attempts_max):
        try:
            # Commits at the end of the block, rolls back on an error.
            with psycopg.connect(uri, row_factory=namedtuple_row) as conn:
                ticket = execute(conn, key, payload)
            if ticket.status != "in_progress":
                return ticket
            error = TimeoutError("another attempt is still at work")
        except psycopg.errors.QueryCanceled:
            # 57014, statement_timeout or a cancel: rolled back, and it would take as long again.
            raise
        except (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as retryable:
            # Connection lost, 40001, 40P01, 55P03, 25P03. Anything else is an answer, or a mistake: ID012 the mistake
            # of asking the wrong server, which knows nothing of what was done (nodes.py).
            error = retryable
        time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 2))
    raise error


def execute(conn, key, payload):
    """One transaction: begin, work, record."""
    ticket = conn.execute(
        "SELECT status, replayed, response FROM idem_begin('payments', %s, payload => %s, wait => %s)",
        (str(key), Jsonb(payload), datetime.timedelta(seconds=5)),
    ).fetchone()
    if ticket.status != "started":
        return ticket

    debited = conn.execute(
        "UPDATE account SET balance = balance - %(amount)s"
        " WHERE id = %(from)s AND balance >= %(amount)s RETURNING balance",
        payload,
    ).fetchone()
    if debited:
        credited = conn.execute("UPDATE account SET balance = balance + %(amount)s WHERE id = %(to)s", payload)
        if credited.rowcount == 0:
            # Rolls back: the key is as if it had never been used.
            raise LookupError(f"there is no account {payload['to']}")
        status, response = "succeeded", {"balance": str(debited.balance)}
    else:
        status, response = "failed", {"error": "insufficient funds"}

    conn.execute(
        "SELECT idem_record('payments', %s, %s, failed => %s, ttl => %s)",
        (str(key), Jsonb(response), status == "failed", datetime.timedelta(hours=12)),
    )
    return ticket._replace(status=status, response=response)


def main():
    uri = sys.argv[1]
    # A wrong address, login or database is told here, and not retried. Its error has no SQLSTATE.
    psycopg.connect(uri).close()
    # Made once, before the first attempt, and kept with the order that it belongs to.
    key = sys.argv[2] if len(sys.argv) > 2 else str(uuid.uuid4())
    for key, amount in [(key, "30.00"), (key, "30.00"), (key + "-b", "1000.00")]:
        ticket = transfer(uri, key, {"from": 1, "to": 2, "amount": amount})
        print(ticket.status, "replayed" if ticket.replayed else "executed", json.dumps(ticket.response))


main()
