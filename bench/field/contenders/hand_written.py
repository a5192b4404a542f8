"""Hand-written SQL: a row for each key, inserted and completed in the transaction of the work."""

import hashlib
import json

from psycopg.types.json import Jsonb

from work import COMMIT, open_pool, reached, transfer

from .contender import Contender

CLAIM = """
INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', %s, %s, now() + interval '7 days') ON CONFLICT (scope, key) DO NOTHING
"""
KNOWN = "SELECT fingerprint, response FROM request WHERE scope = 'payments' AND key = %s"
RECORD = "UPDATE request SET response = %s WHERE scope = 'payments' AND key = %s"


def fingerprint(request):
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()


class HandWritten(Contender):
    title = "hand-written SQL"
    kept_in = "postgres"
    one_transaction = True
    usage = """
    `INSERT … ON CONFLICT DO NOTHING` into a table of requests, the work, and `UPDATE` of the row with the
    response, all in one transaction. A retry reads the row.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres)

    def transfer(self, request):
        key, digest = request["key"], fingerprint(request)
        with self.pool.connection() as conn:
            if conn.execute(CLAIM, (key, digest)).rowcount == 0:
                known, answer = conn.execute(KNOWN, (key,)).fetchone()
                if known != digest:
                    raise ValueError(f"another request has the key {key}")
                return answer
            answer = transfer(conn, request)
            conn.execute(RECORD, (Jsonb(answer), key))
        reached(COMMIT)
        return answer


class HandWrittenFunction(Contender):
    title = "hand-written SQL, one function"
    kept_in = "postgres"
    one_transaction = True
    in_server = True
    usage = """
    The same statements, with the work, in a PL/pgSQL function: one round trip.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres, autocommit=True)

    def transfer(self, request):
        with self.pool.connection() as conn:
            (answer,) = conn.execute(
                "SELECT pay_by_hand(%s, %s, %s)", (request["key"], fingerprint(request), Jsonb(request))
            ).fetchone()
        reached(COMMIT)
        return answer
