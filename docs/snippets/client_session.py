"""Delivers messages, five at a time, each of them once. psycopg 3; usage: client_session.py URI [COUNT]

setup.sql makes what it needs. The requests of a client session have numbers, and of each stream the
newest replies are kept, as many as the session's window is wide. One rule makes them enough: number n
is sent once the answer to n - window is in. Here it is kept by having a lane for each place in the
window, which sends its numbers one after the other: 1, 6, 11 …; 2, 7, 12 …; and so on.
"""

import collections
import concurrent.futures
import queue
import random
import sys
import threading
import time

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

WINDOW = 5
ATTEMPTS_MAX = 30


class Connection:
    """Opened when it is needed, given up when it is in doubt."""

    def __init__(self, uri):
        self.uri = uri
        self.conn = None

    def ask(self, work):
        """Calls work(conn) in a transaction until there is an answer; None means to ask again."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                if self.conn is None:
                    self.conn = psycopg.connect(self.uri, row_factory=namedtuple_row)
                # Commits at the end of the block, rolls back on an error.
                with self.conn.transaction():
                    answer = work(self.conn)
                if answer is not None:
                    return answer
                error = TimeoutError("another attempt is still at work")
            except psycopg.OperationalError as retryable:
                # Connection lost, perhaps during COMMIT; 40001, 40P01, 55P03. Anything else is an answer.
                if self.conn is not None:
                    self.conn.close()
                self.conn = None
                error = retryable
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 1))
        raise error


class Sender:
    """What the lanes share: the messages, and the session."""

    def __init__(self, uri, client, messages):
        self.uri = uri
        self.client = client
        self.messages = queue.SimpleQueue()
        for message in messages:
            self.messages.put(message)
        self.lock = threading.Lock()
        self.session = None
        self.sessions = 0

    def register(self, ended=None):
        """The session; a new one where there is none, or none but the one that has ended."""
        with self.lock:
            if self.session is None or self.session.session == ended:
                # Made before the first attempt: the same registration, asked for again, is one. By the
                # database: the time in it tells which of two registrations came first.
                request_id = Connection(self.uri).ask(
                    lambda conn: conn.execute("SELECT idem_generate_id() AS id").fetchone()
                ).id
                self.session = Connection(self.uri).ask(
                    lambda conn: conn.execute(
                        "SELECT * FROM idem_register(%s, window_size => %s, request_id => %s)",
                        (self.client, WINDOW, request_id),
                    ).fetchone()
                )
                self.sessions += 1
            return self.session

    def lane(self, place):
        """Sends a message after the other, under the numbers place, place + window, …"""
        connection = Connection(self.uri)
        session, number = self.register(), place
        counts = collections.Counter()
        while (message := self.take()) is not None:
            ticket = None
            while ticket is None:
                try:
                    ticket = connection.ask(lambda conn: deliver(conn, session.session, number, message))
                    counts["replayed"] += ticket.replayed
                    number += session.window_size
                except psycopg.DatabaseError as error:
                    # ID004: silent for too long, or the server crashed before the first outcome. Not
                    # ID005: another process is this client now, and this one has to stop. Not ID012: this is
                    # another server than the session lives on, which cannot know what was done; see nodes.py.
                    if error.sqlstate != "ID004":
                        raise
                    ticket = look_up(connection, session.session, number)
                    counts["looked up"] += ticket is not None
                    session, number = self.register(ended=session.session), place
            counts["delivered"] += 1
        return counts

    def take(self):
        try:
            return self.messages.get_nowait()
        except queue.Empty:
            return None

    def close(self):
        Connection(self.uri).ask(
            lambda conn: conn.execute("SELECT idem_close(%s)", (self.session.session,)).fetchone()
        )


def deliver(conn, session, number, message):
    """One transaction: begin, work, record."""
    ticket = conn.execute(
        "SELECT status, replayed, response FROM idem_begin(%s, %s, payload => %s)",
        (session, number, Jsonb({"message": message})),
    ).fetchone()
    if ticket.status != "started":
        return unless_in_progress(ticket)
    conn.execute("INSERT INTO delivery (message) VALUES (%s)", (message,))
    response = {"delivered": message}
    conn.execute("SELECT idem_record(%s, %s, %s)", (session, number, Jsonb(response)))
    return ticket._replace(status="succeeded", response=response)


def look_up(connection, session, number):
    """What came of a request of a session that has ended: nothing can be begun in it any more."""
    try:
        ticket = connection.ask(
            lambda conn: unless_in_progress(
                conn.execute("SELECT status, response, point FROM idem_lookup(%s, %s)", (session, number)).fetchone()
            )
        )
    except psycopg.DatabaseError as error:
        if error.sqlstate != "ID004":
            raise
        return None  # Not even the session is known: it never had an outcome.
    if ticket.status == "suspended":
        # deliver() makes no checkpoints. A program that does would go on from this one under its new number:
        # the steps before it are done.
        raise RuntimeError(f"number {number} stopped half way, at {ticket.point!r}")
    return ticket if ticket.status != "unknown" else None


def unless_in_progress(ticket):
    return None if ticket.status in ("in_progress", "not_here") else ticket


def main():
    uri = sys.argv[1]
    # A wrong address, login or database is told here, and not retried. Its error has no SQLSTATE.
    psycopg.connect(uri).close()
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    sender = Sender(uri, "courier", [f"message {n}" for n in range(1, count + 1)])
    lanes = sender.register().window_size
    with concurrent.futures.ThreadPoolExecutor(lanes) as threads:
        # An error in a lane comes out here.
        counts = sum(threads.map(sender.lane, range(1, lanes + 1)), collections.Counter())
    sender.close()
    for what in ["delivered", "replayed", "looked up"]:
        print(what, counts[what])
    print("sessions", sender.sessions)


main()
