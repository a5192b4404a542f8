"""This extension, in the three ways that its README shows."""

import psycopg
from psycopg.types.json import Jsonb

from work import COMMIT, InProgress, open_pool, reached, transfer

from .contender import Contender

ALREADY_DONE = "ID011"


class BeginRecord(Contender):
    title = "idempotence, begin and record"
    kept_in = "postgres"
    one_transaction = True
    usage = """
    `idem_begin`, of which three columns are read, the work, and `idem_record`, in one transaction. README: *Use
    it from a program*.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres)

    def transfer(self, request):
        key = request["key"]
        with self.pool.connection() as conn:
            status, replayed, answer = conn.execute(
                "SELECT status, replayed, response FROM idem_begin('payments', %s, payload => %s)",
                (key, Jsonb(request)),
            ).fetchone()
            if replayed:
                return answer
            if status == "in_progress":
                raise InProgress
            answer = transfer(conn, request)
            conn.execute("SELECT idem_record('payments', %s, %s)", (key, Jsonb(answer)))
        reached(COMMIT)
        return answer


class ClaimPipeline(Contender):
    title = "idempotence, `idem_claim` in one pipeline"
    kept_in = "postgres"
    one_transaction = True
    in_server = True
    usage = """
    `BEGIN`, `idem_claim`, the work as a function and `idem_record` of what it returns, `COMMIT`, sent at once,
    and `idem_lookup` where the claim says that the request is done. Reference: *One round trip*.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres, autocommit=True)

    def transfer(self, request):
        key = request["key"]
        with self.pool.connection() as conn:
            try:
                with conn.pipeline():
                    conn.execute("BEGIN")
                    conn.execute("SELECT idem_claim('payments', %s, payload => %s)", (key, Jsonb(request)))
                    record = conn.execute(
                        "SELECT response, idem_record('payments', %s, response) FROM pay(%s) AS response",
                        (key, Jsonb(request)),
                    )
                    conn.execute("COMMIT")
                answer = record.fetchone()[0]
            except psycopg.errors.LockNotAvailable:
                conn.rollback()
                raise InProgress from None
            except psycopg.Error as error:
                conn.rollback()
                if error.sqlstate != ALREADY_DONE:
                    raise
                (answer,) = conn.execute("SELECT response FROM idem_lookup('payments', %s)", (key,)).fetchone()
        reached(COMMIT)
        return answer


class Run(Contender):
    title = "idempotence, `idem_run`"
    kept_in = "postgres"
    one_transaction = True
    in_server = True
    usage = """
    `idem_run` around a function that does the work. README: *Use it in PL/pgSQL*.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres, autocommit=True)

    def transfer(self, request):
        with self.pool.connection() as conn:
            try:
                (answer,) = conn.execute(
                    "SELECT response FROM idem_run('payments', %s, 'SELECT pay($1)', %s)",
                    (request["key"], Jsonb(request)),
                ).fetchone()
            except psycopg.errors.LockNotAvailable:
                raise InProgress from None
        reached(COMMIT)
        return answer
