"""The work that all contenders do, one transfer in PostgreSQL, and the places where a worker can be stopped in it."""

import random
import secrets
import time

from psycopg_pool import ConnectionPool

ACCOUNTS = 100_000

# The places. A worker that is to be killed at one of them stops there, says so, and waits for the kill.
EFFECT = "effect"  # the work is done, and its transaction is still open
COMMIT = "commit"  # the transaction is committed, and nothing has happened since

UPDATE = "UPDATE account SET balance = balance + %(amount)s WHERE id = %(account)s RETURNING balance"
INSERT = "INSERT INTO ledger (request_key, account, amount) VALUES (%(key)s, %(account)s, %(amount)s)"


class InProgress(Exception):
    """The request is being executed, or was when its worker died: ask again later."""


class Stop:
    """The place at which this process is to stop, and whom it tells."""

    place = None
    tell = None


def reached(place):
    """The contenders call this at each place."""
    if place == Stop.place:
        Stop.tell()
        while True:
            time.sleep(60)


def open_pool(uri, **kwargs):
    """A pool of one connection: each client and each worker is a process that does one thing at a time."""

    def configure(conn):
        # From pay() of stops.sql, where the work is done in the server.
        conn.add_notice_handler(lambda notice: reached(EFFECT))

    return ConnectionPool(uri, min_size=1, max_size=1, open=True, configure=configure, kwargs=kwargs)


def transfer(conn, request):
    """The work: two statements in the caller's transaction."""
    (balance,) = conn.execute(UPDATE, request).fetchone()
    conn.execute(INSERT, request)
    reached(EFFECT)
    return {"balance": balance}


def new_request():
    """A transfer under a new key: a UUID of version 7, which ascends in time."""
    milliseconds, noise = time.time_ns() // 1_000_000, secrets.token_hex(10)
    digits = f"{milliseconds:012x}7{noise[:3]}8{noise[3:18]}"
    key = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return {"key": key, "account": random.randint(1, ACCOUNTS), "amount": 250}
