"""A worker that charges the card of one order, in a bank outside of the database. The incident is about it.

Usage: pay.py HOST DATABASE BANK ORDER; tells what became of the order

The bank takes no key: each call is a charge. So where an earlier worker may have charged the card, this one does not.
"""

import json
import sys
import urllib.request

import psycopg

LEASE = "2 seconds"


def pay(conn, bank, order):
    with conn.transaction():
        amount, = conn.execute("SELECT amount FROM purchase WHERE id = %s", (order,)).fetchone()
        status, replayed, response, token = conn.execute(
            "SELECT status, replayed, response, token FROM idem_begin('charges', %s, %s, lease => %s)",
            (order, json.dumps({"amount": amount}), LEASE)).fetchone()
        if status == "taken_over":
            # As if it had not been taken over: it stays among those that somebody has to look at.
            raise psycopg.Rollback
        if status == "started":
            conn.execute("UPDATE purchase SET asked_bank_at = now() WHERE id = %s", (order,))
    if status == "taken_over":
        return "unclear: the bank may have been asked"
    if status == "started":
        response = charge(bank, order, amount)
        with conn.transaction():
            conn.execute("SELECT idem_record('charges', %s, %s, token => %s)", (order, json.dumps(response), token))
            conn.execute("UPDATE purchase SET charge = %s WHERE id = %s", (response["charge"], order))
        status = "succeeded"
    return f"{status}, {'replayed' if replayed else 'executed'}: {json.dumps(response)}"


def charge(bank, order, amount):
    body = json.dumps({"order": order, "amount": amount}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{bank}/charge", body), timeout=60) as reply:
        return json.load(reply)


def main():
    host, database, bank, order = sys.argv[1:]
    where = {"host": host, "dbname": database, "user": "cashier", "application_name": "pay-3"}
    with psycopg.connect(**where, autocommit=True) as conn:
        print(f"{order}: {pay(conn, bank, order)}")


main()
