"""Fulfils orders: charges the card, ships the parcel, notifies the customer. psycopg 3;
usage: charge_ship_notify.py URI SERVICE LEASE ORDER...; LEASE is in seconds

All three steps are calls to a service outside the database. docs/guide.md explains the program and creates the
objects that it needs. You can start any number of these workers, also for the same orders.
"""

import collections
import datetime
import http.client
import json
import logging
import random
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

# How long one call to the service, or one attempt to connect to the database, may take.
TIMEOUT_S = 10


class LeaseLost(Exception):
    """Another worker may be executing the order by now."""


class Declined(Exception):
    """The service refuses the call permanently: a retry would not change the answer."""


def fulfil(uri, service, order, length):
    """Returns the outcome of the order, or in_progress if another worker is executing it."""
    with psycopg.connect(uri, autocommit=True, row_factory=namedtuple_row, connect_timeout=TIMEOUT_S) as conn:
        asked_at = time.monotonic()
        with conn.transaction():
            ticket, payload, state = claim(conn, order, length)
        # The claim is committed: from here on other workers see that the order is being executed.
        if ticket.status not in ("started", "taken_over"):
            return ticket
        logging.info("%s: %s, attempt %s, at %s", order, ticket.status, ticket.attempt, ticket.point)
        with Lease(uri, order, ticket.token, length, asked_at) as lease:
            return Attempt(conn, service, order, ticket, lease).run(payload, state)


def claim(conn, order, length):
    """Begins the order and stores the keys of its calls before the first call, in one transaction."""
    purchase = conn.execute("SELECT amount, address FROM purchase WHERE id = %s", (order,)).fetchone()
    if purchase is None:
        raise LookupError(f"there is no order {order}")
    payload = purchase._asdict()
    ticket = conn.execute(
        "SELECT status, replayed, response, token, attempt, point, state"
        " FROM idem_begin('orders', %s, payload => %s, wait => '0', lease => %s)",
        (order, Jsonb(payload), length),
    ).fetchone()
    state = ticket.state
    if ticket.status in ("started", "taken_over") and ticket.point is None:
        state = {"charge_key": f"{order}/charge", "ship_key": f"{order}/ship"}
        save(conn, order, "charge", state, ticket.token)
    return ticket, payload, state


def save(conn, order, point, state, token):
    conn.execute(
        "SELECT idem_checkpoint('orders', %s, %s, %s, token => %s)", (order, point, Jsonb(state), token)
    )


class Attempt:
    """The steps that one holder of the lease executes."""

    def __init__(self, conn, service, order, ticket, lease):
        self.conn = conn
        self.service = service
        self.order = order
        self.ticket = ticket
        self.lease = lease

    def run(self, payload, state):
        """Continues at the last checkpoint, and records the outcome."""
        point = self.ticket.point or "charge"
        try:
            if point == "charge":
                charge = {"order": self.order, "amount": payload["amount"]}
                state["receipt"] = self.call("charge", charge, state["charge_key"])["charge"]
                point = self.reach("ship", state)
            if point == "ship":
                parcel = {"order": self.order, "address": payload["address"]}
                state["parcel"] = self.call("ship", parcel, state["ship_key"])["ship"]
                point = self.reach("notify", state)
            # The service accepts no key for this call. A former holder may have made it, so query first.
            if self.ticket.point != "notify" or not self.notified():
                self.call("notify", {"order": self.order})
        except Declined as final:
            return self.record({"error": str(final)}, failed=True)
        return self.record({"receipt": state["receipt"], "parcel": state["parcel"]})

    def reach(self, point, state):
        """Saves that all steps before this one are done."""
        with self.conn.transaction():
            save(self.conn, self.order, point, state, self.ticket.token)
        return point

    def record(self, response, failed=False):
        """Records the outcome and inserts the row about it, in one transaction."""
        with self.conn.transaction():
            self.conn.execute(
                "SELECT idem_record('orders', %s, %s, failed => %s, token => %s)",
                (self.order, Jsonb(response), failed, self.ticket.token),
            )
            self.conn.execute(
                "INSERT INTO fulfilment (order_id, response) VALUES (%s, %s)", (self.order, Jsonb(response))
            )
        return self.ticket._replace(status="failed" if failed else "succeeded", response=response)

    def call(self, step, body, key=None):
        """Calls the service. After any error except Declined it is unknown whether the step was executed."""
        self.lease.check()
        headers = {"Content-Type": "application/json", "X-Attempt": str(self.ticket.attempt)}
        if key is not None:
            headers["Idempotency-Key"] = key
        request = urllib.request.Request(f"{self.service}/{step}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code == 402:
                raise Declined(json.load(error)["error"]) from None
            raise

    def notified(self):
        url = f"{self.service}/notified?order={urllib.parse.quote(self.order)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return json.load(reply)["notified"] > 0


class Lease:
    """Extends a lease from a separate thread until the end of the block."""

    def __init__(self, uri, order, token, length, asked_at):
        self.uri = uri
        self.request = (order, token, length)
        self.length_s = length.total_seconds()
        # By this process's clock. The lease lasts longer than this, because the database granted it later.
        self.lasts_until = asked_at + self.length_s
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()

    def keep(self):
        while not self.done.wait(self.length_s / 3):
            asked_at = time.monotonic()
            try:
                with psycopg.connect(self.uri, autocommit=True, connect_timeout=TIMEOUT_S) as conn:
                    conn.execute("SELECT idem_extend('orders', %s, %s, %s)", self.request)
                self.lasts_until = asked_at + self.length_s
            except psycopg.OperationalError:
                continue  # Try again. If the error persists, the lease expires, and check() detects that.
            except psycopg.DatabaseError as error:
                # ID005: another caller took over or settled the request, or this process has just recorded it.
                self.lasts_until = asked_at
                logging.info("%s: not extended, %s", self.request[0], error.sqlstate)
                return

    def check(self):
        """Call this before each effect. A call that is under way when the lease expires cannot be recalled."""
        if time.monotonic() >= self.lasts_until:
            raise LeaseLost("the lease may have run out")


def main():
    uri, service, lease_s, *orders = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    length = datetime.timedelta(seconds=float(lease_s))
    # Report a wrong address, login or database here, without a retry. Such an error has no SQLSTATE.
    psycopg.connect(uri).close()
    waiting = collections.deque(orders)
    while waiting:
        order = waiting.popleft()
        try:
            ticket = fulfil(uri, service, order, length)
        except (LeaseLost, psycopg.OperationalError, OSError, http.client.HTTPException) as error:
            # The result of the last call is unknown. The lease expires, and the next worker takes over the order.
            logging.info("%s: left at %s", order, error)
            ticket = None
        except psycopg.DatabaseError as error:
            # ID005: another worker has the order now. This one stops, and may ask for the outcome later.
            if error.sqlstate != "ID005":
                raise
            logging.info("%s: ID005, %s", order, error)
            ticket = None
        if ticket is None or ticket.status == "in_progress":
            waiting.append(order)
            time.sleep(random.uniform(0.1, 0.3))
        else:
            print(order, ticket.status, "replayed" if ticket.replayed else "executed", json.dumps(ticket.response))


main()
