"""Transfers money once, in one network round trip. psycopg 3; usage: pipeline_psycopg.py URI [KEY]

setup.sql makes what it needs. BEGIN, claim, work, record and COMMIT are sent at once, and their answers are
read afterwards. So the program decides nothing in between: what must not be kept has to be an error of the
server's. After an error the server skips what is left of the pipeline, COMMIT too, and nothing is kept.
"""

import collections
import datetime
import json
import random
import sys
import time
import uuid

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

ALREADY_DONE = "ID011"

# No row of this is passed over: an account that is missing would have to be made, without a balance, which
# NOT NULL refuses. A balance below zero is refused by the CHECK.
MOVE = """
MERGE INTO account
USING (VALUES (%(from)s, -%(amount)s::numeric), (%(to)s, %(amount)s::numeric)) AS step (id, amount)
ON account.id = step.id
WHEN MATCHED THEN UPDATE SET balance = balance + step.amount
WHEN NOT MATCHED THEN INSERT (id) VALUES (step.id)
"""

# The response comes from what the transaction has written.
RECORD_MOVED = """
SELECT response, idem_record('payments', %(key)s, response, ttl => %(ttl)s)
FROM (SELECT jsonb_build_object('balance', balance::text) FROM account WHERE id = %(from)s) AS account (response)
"""

RECORD_FAILED = """
SELECT %(failure)s AS response, idem_record('payments', %(key)s, %(failure)s, failed => true, ttl => %(ttl)s)
"""

Answer = collections.namedtuple("Answer", "status replayed response")


class Payments:
    def __init__(self, uri):
        self.uri = uri
        self.conn = None

    def transfer(self, key, payload, attempts_max=10):
        """Asks until there is an answer, with the same key and payload each time."""
        failure = None
        for attempt in range(attempts_max):
            try:
                return self.send(key, payload, failure)
            except psycopg.errors.CheckViolation as refused:
                # Nothing is kept, the claim neither. That the request has failed for good is for the next
                # pipeline to record. Somebody else may have been faster: then that answer counts.
                failure, error = {"error": "insufficient funds"}, refused
                continue
            except psycopg.errors.NotNullViolation:
                # Nothing is recorded: the key is as if it had never been used.
                raise LookupError(f"there is no account {payload['to']}, or no {payload['from']}") from None
            except psycopg.errors.ObjectNotInPrerequisiteState:
                # 55000, an OperationalError too: it stopped half way, and nobody may just start it again.
                find_out, error = self.look, TimeoutError("another attempt is still at work")
            except psycopg.OperationalError as retryable:
                # Connection lost, perhaps during COMMIT; 40001, 40P01, 55P03.
                find_out, error = None, retryable
            except psycopg.Error as done:
                # Anything else is a mistake.
                if done.sqlstate != ALREADY_DONE:
                    raise
                find_out, error = self.look_up, done
            try:
                answer = find_out and find_out(key, payload)
            except psycopg.OperationalError as retryable:
                answer, error = None, retryable
            if answer:
                return answer
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 2))
        raise error

    def send(self, key, payload, failure):
        """One transaction in one round trip. With a failure there is no work, only the record of it."""
        seconds, hours = datetime.timedelta(seconds=5), datetime.timedelta(hours=12)
        args = {"key": str(key), "ttl": hours, "failure": Jsonb(failure), **payload}
        conn = self.connect()
        try:
            # The answers are waited for at the end of the block, and nowhere in it. An error may be raised
            # at any statement, or there. conn.transaction() would wait for BEGIN and for COMMIT.
            with conn.pipeline():
                conn.execute("BEGIN")
                conn.execute(
                    "SELECT idem_claim('payments', %s, payload => %s, wait => %s)",
                    (str(key), Jsonb(payload), seconds),
                )
                if failure is None:
                    conn.execute(MOVE, args)
                record = conn.execute(RECORD_FAILED if failure else RECORD_MOVED, args)
                conn.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        return Answer("failed" if failure else "succeeded", False, record.fetchone().response)

    def look_up(self, key, payload):
        """The answer to a request that is done."""
        ticket = self.connect().execute("SELECT status, response FROM idem_lookup('payments', %s)", (str(key),)).fetchone()
        # Or in_progress: it may still be taken back by a failover.
        if ticket.status in ("succeeded", "failed", "cancelled"):
            return Answer(ticket.status, True, ticket.response)

    def look(self, key, payload):
        """What became of a request that stopped half way."""
        with self.connect().transaction():
            ticket = self.conn.execute(
                "SELECT status, replayed, response, point FROM idem_begin('payments', %s, payload => %s)",
                (str(key), Jsonb(payload)),
            ).fetchone()
            if ticket.replayed:
                return Answer(ticket.status, True, ticket.response)
            if ticket.status == "taken_over" or ticket.point:
                # A program that works in steps would go on from here. Rolls back: the point stays.
                raise RuntimeError(f"the transfer {key} stopped at {ticket.point!r}")
            # It is at work, or starts anew: as after a rollback.
            raise psycopg.Rollback()

    def connect(self):
        """The connection. It is in autocommit: psycopg sends no BEGIN of its own."""
        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(self.uri, autocommit=True, row_factory=namedtuple_row)
        return self.conn

    def roll_back(self):
        """COMMIT was skipped, so the transaction is still there, and refuses every statement but ROLLBACK."""
        try:
            self.conn.rollback()
        except psycopg.OperationalError:
            self.conn.close()


def main():
    uri = sys.argv[1]
    # A wrong address, login or database is told here, and not retried. Its error has no SQLSTATE.
    psycopg.connect(uri).close()
    # Made once, before the first attempt, and kept with the order that it belongs to.
    key = sys.argv[2] if len(sys.argv) > 2 else str(uuid.uuid4())
    payments = Payments(uri)
    for key, amount in [(key, "30.00"), (key, "30.00"), (key + "-b", "1000.00")]:
        answer = payments.transfer(key, {"from": 1, "to": 2, "amount": amount})
        print(answer.status, "replayed" if answer.replayed else "executed", json.dumps(answer.response))


if __name__ == "__main__":
    main()
