"""Transfers money and delivers messages once, on several servers, whichever is asked first. psycopg 3; usage:
nodes.py SESSION KEY NODE=URI [NODE=URI ...]; NODE is what SELECT idem_node() says there.

setup.sql makes what it needs on each server. Besides, each server needs a session for each node, bound to it:
SELECT idem_create_session('payments of paris', ttl => '24 hours', node => 'paris').

Whoever makes a request chooses its session together with its key, and keeps both, for example in the row of the order.
Both are the name of the request from then on. A program that chose the session anew, from the nodes that it knows at
the time, would send a retry as another request.
"""

import json
import random
import re
import sys
import time

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

ELSEWHERE = "ID012"
ATTEMPTS_MAX = 30


class Nodes:
    """The servers, by the names that they have for themselves."""

    def __init__(self, uris):
        self.uris = uris

    def any(self):
        """The node that a load balancer would choose."""
        return random.choice(list(self.uris))

    def ask(self, node, work):
        """Calls work(conn) in a transaction until there is an answer, first on this node."""
        was_sent_on = False
        for attempt in range(ATTEMPTS_MAX):
            try:
                with psycopg.connect(self.uris[node], row_factory=namedtuple_row) as conn:
                    answer = work(conn)
                if answer is not None:
                    return answer
                error = TimeoutError("another attempt is still at work")
            except psycopg.OperationalError as retryable:
                # Connection lost, perhaps during COMMIT; 40001, 40P01, 55P03. The same again on the same node.
                error = retryable
            except psycopg.DatabaseError as misrouted:
                if misrouted.sqlstate != ELSEWHERE:
                    raise
                # The wrong server, which cannot know what was done. The same again on the right one: the same
                # session, the same key or number, the same payload. Nothing else is an answer.
                node, error = self.named_by(misrouted), misrouted
                if not was_sent_on:
                    was_sent_on = True
                    continue
                # While a session moves, each of its two servers names the other one.
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 1))
        raise error

    def named_by(self, misrouted):
        """The node that the message ends with. Without its address there is no answer, and nothing may be sent anew."""
        node = re.search(r'belongs to node "([^"]+)"$', misrouted.diag.message_primary)[1]
        if node not in self.uris:
            raise LookupError(f"the address of node {node} is not known here") from misrouted
        return node


def transfer(conn, session, key, amount):
    """One transaction: begin, work, record. None: another attempt is still at work."""
    ticket = conn.execute(
        "SELECT status, replayed, response FROM idem_begin(%s, %s, payload => %s)",
        (session, key, Jsonb({"amount": amount})),
    ).fetchone()
    if ticket.status != "started":
        return None if ticket.status in ("in_progress", "not_here") else ticket
    conn.execute("UPDATE account SET balance = balance - %s WHERE id = 1", (amount,))
    conn.execute("UPDATE account SET balance = balance + %s WHERE id = 2", (amount,))
    response = {"paid": amount}
    conn.execute("SELECT idem_record(%s, %s, %s)", (session, key, Jsonb(response)))
    return ticket._replace(status="succeeded", response=response)


def deliver(conn, session, number, message):
    """The same in a client session, where numbers take the place of keys."""
    ticket = conn.execute(
        "SELECT status, replayed, response FROM idem_begin(%s, %s, payload => %s)",
        (session, number, Jsonb({"message": message})),
    ).fetchone()
    if ticket.status != "started":
        return None if ticket.status in ("in_progress", "not_here") else ticket
    conn.execute("INSERT INTO delivery (message) VALUES (%s)", (message,))
    conn.execute("SELECT idem_record(%s, %s, %s)", (session, number, Jsonb(message)))
    return ticket._replace(status="succeeded", response=message)


def tell(where, ticket):
    print(where, ticket.status, "replayed" if ticket.replayed else "executed", json.dumps(ticket.response))


def main():
    session, key, *named = sys.argv[1:]
    nodes = Nodes(dict(node.split("=", 1) for node in named))
    for uri in nodes.uris.values():
        # A wrong address, login or database is told here, and not retried. Its error has no SQLSTATE.
        psycopg.connect(uri).close()
    for _ in range(4):
        tell(session, nodes.ask(nodes.any(), lambda conn: transfer(conn, session, key, "10.00")))

    # A client session lives where it was registered, and its name says where that is.
    client = nodes.ask(nodes.any(), lambda conn: conn.execute("SELECT session FROM idem_register()").fetchone()).session
    home = client.partition("@")[2]
    for number in [1, 2, 2, 1]:
        ticket = nodes.ask(nodes.any(), lambda conn: deliver(conn, client, number, f"{key}/{number}"))
        tell(f"number {number} on {home}", ticket)


main()
