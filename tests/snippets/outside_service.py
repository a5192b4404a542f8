"""A shop's outside service: takes payments, ships parcels, notifies customers. It can be told to go wrong.

Usage: outside_service.py FILE [PORT]; tells its port once it listens. FILE is an SQLite database. What the
service has done is in there before anybody is told, so a SIGKILL loses nothing of it, and a service that is
started again on the same file goes on from there.

    POST /charge {"order", "amount"}    honours Idempotency-Key: a copy gets the first answer
    POST /ship {"order", "address"}     so does this
    POST /notify {"order"}              does not: each call sends a message
    GET /notified?order=O               how many messages were sent
    GET /charges?order=O                what was charged

For the test alone:

    POST /fault {"kind", "when", "what", "times"}   the next calls of this kind go wrong, before or after the work
    GET /held                                       how many calls are held
    POST /go                                        no fault any more; calls that are held go on
    GET /done                                       what was done, and for which attempt
"""

import contextlib
import http.server
import json
import os
import signal
import sqlite3
import sys
import threading
import urllib.parse

# What the card of an order over this amount says.
LIMIT = 1000

TABLES = """
CREATE TABLE IF NOT EXISTS done (
    id integer PRIMARY KEY, kind text NOT NULL, order_id text NOT NULL, attempt text, key text UNIQUE,
    request text NOT NULL, code integer NOT NULL, reply text NOT NULL
)
"""


class Store:
    """What was done. One thread at a time."""

    def __init__(self, file):
        self.file = file
        self.lock = threading.Lock()
        with self.open() as database:
            database.execute(TABLES)

    @contextlib.contextmanager
    def open(self):
        """A transaction, durable when the block ends."""
        with self.lock, contextlib.closing(sqlite3.connect(self.file)) as database, database:
            yield database

    def do(self, kind, request, key, attempt):
        """Does what is asked for, unless this was done under the key before. Gives the answer."""
        text = json.dumps(request, sort_keys=True)
        with self.open() as database:
            if key is not None:
                key = f"{kind} {key}"
                before = database.execute("SELECT request, code, reply FROM done WHERE key = ?", [key]).fetchone()
                if before and before[0] != text:
                    return 422, {"error": "the key belongs to another request"}
                if before:
                    return before[1], json.loads(before[2])
            declined = kind == "charge" and request["amount"] > LIMIT
            row = (kind if not declined else "decline", request["order"], attempt, key, text)
            code = 402 if declined else 200
            added = database.execute(
                "INSERT INTO done (kind, order_id, attempt, key, request, code, reply) VALUES (?, ?, ?, ?, ?, ?, '')",
                (*row, code),
            )
            reply = {"error": "the card was declined"} if declined else {kind: f"{kind}-{added.lastrowid}"}
            database.execute("UPDATE done SET reply = ? WHERE id = ?", (json.dumps(reply), added.lastrowid))
        return code, reply

    def charges(self, order):
        with self.open() as database:
            query = "SELECT reply FROM done WHERE kind = 'charge' AND order_id = ? ORDER BY id"
            return [json.loads(reply) for (reply,) in database.execute(query, [order])]

    def list(self):
        with self.open() as database:
            return database.execute("SELECT kind, order_id, attempt FROM done ORDER BY id").fetchall()


class Faults:
    """What is to go wrong."""

    def __init__(self):
        self.changed = threading.Condition()
        self.next = None
        self.held = 0
        self.round = 0

    def set(self, fault):
        with self.changed:
            self.next = fault

    def go(self):
        with self.changed:
            self.next = None
            self.round += 1
            self.changed.notify_all()

    def meet(self, kind, when):
        """What goes wrong now, if anything. A call that is held returns when it may go on."""
        with self.changed:
            fault = self.next
            if fault is None or (fault["kind"], fault["when"]) != (kind, when):
                return None
            fault["times"] -= 1
            if fault["times"] == 0:
                self.next = None
            if fault["what"] == "hold":
                self.held += 1
                now = self.round
                self.changed.wait_for(lambda: self.round != now)
                self.held -= 1
                return None
        if fault["what"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return fault["what"]


class Handler(http.server.BaseHTTPRequestHandler):
    store = None
    faults = None

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        done = self.store.list()
        if url.path == "/notified":
            (order,) = urllib.parse.parse_qs(url.query)["order"]
            self.answer(200, {"notified": sum(what[:2] == ("notify", order) for what in done)})
        elif url.path == "/charges":
            (order,) = urllib.parse.parse_qs(url.query)["order"]
            self.answer(200, self.store.charges(order))
        elif url.path == "/held":
            self.answer(200, self.faults.held)
        elif url.path == "/done":
            self.answer(200, done)
        else:
            self.answer(404, {"error": "no such page"})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        kind = self.path[1:]
        if kind == "fault":
            self.faults.set(request)
            self.answer(200, "set")
        elif kind == "go":
            self.faults.go()
            self.answer(200, "gone")
        elif kind in ("charge", "ship", "notify"):
            self.work(kind, request)
        else:
            self.answer(404, {"error": "no such page"})

    def work(self, kind, request):
        if self.went_wrong(kind, "before"):
            return
        key = self.headers["Idempotency-Key"] if kind != "notify" else None
        code, reply = self.store.do(kind, request, key, self.headers["X-Attempt"])
        if not self.went_wrong(kind, "after"):
            self.answer(code, reply)

    def went_wrong(self, kind, when):
        what = self.faults.meet(kind, when)
        if what == "error":
            self.answer(500, {"error": "something went wrong"})
        # What remains is to lose the reply: the connection is closed without one.
        return what is not None

    def answer(self, code, reply):
        body = json.dumps(reply).encode()
        # Whoever asked may be gone.
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    Handler.store = Store(sys.argv[1])
    Handler.faults = Faults()
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


main()
