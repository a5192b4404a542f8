"""Transfers money once, however often it is asked to. The client for Python, over psycopg 3; usage: psycopg3.py URI
[KEY]

setup.sql makes what it needs. Do not call a program of your own psycopg.py: it would import itself."""

import json
import sys
import uuid

import idempotence


def transfer(uri, key, payload):
    """The answer, after COMMIT. Connections that get lost, and whoever else has the request, are met with another
    attempt."""

    def work(conn):
        debit = (
            "UPDATE account SET balance = balance - %(amount)s"
            " WHERE id = %(from)s AND balance >= %(amount)s RETURNING balance"
        )
        debited = conn.execute(debit, payload).fetchone()
        if debited is None:
            raise idempotence.Final({"error": "insufficient funds"})  # recorded: the answer to each retry
        credited = conn.execute("UPDATE account SET balance = balance + %(amount)s WHERE id = %(to)s", payload)
        if credited.rowcount == 0:
            # Rolls back: the key is as if it had never been used.
            raise LookupError(f"there is no account {payload['to']}")
        return {"balance": str(debited[0])}

    return idempotence.run(uri, "payments", key, payload, work, wait=5, ttl=12 * 3600)


def main():
    uri = sys.argv[1]
    # A wrong address, a missing session or right is told here, and not retried.
    if faults := idempotence.check(uri, "payments"):
        sys.exit("\n".join(faults))
    # Made once, before the first attempt, and kept with the order that it belongs to.
    key = sys.argv[2] if len(sys.argv) > 2 else str(uuid.uuid4())
    for key, amount in [(key, "30.00"), (key, "30.00"), (key + "-b", "1000.00")]:
        answer = transfer(uri, key, {"from": 1, "to": 2, "amount": amount})
        print(answer.status, "replayed" if answer.replayed else "executed", json.dumps(answer.response))


main()
