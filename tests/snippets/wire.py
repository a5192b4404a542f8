"""A wire between an example and the server: it tells what went over it in each round trip, and it can be cut
at a COMMIT. It is a Unix socket, without TLS.

A round trip is what a client sends before it has seen an answer to any of it. What it sends after an answer
belongs to the next one.
"""

import pathlib
import select
import socket
import struct
import tempfile
import threading

from psycopg.conninfo import conninfo_to_dict

FLUSH = b"H" + struct.pack("!i", 4)


class Trip:
    """The statements that were sent, and of each answer the command's tag or the SQLSTATE."""

    def __init__(self):
        self.statements = []
        self.answers = []

    def __repr__(self):
        return f"{len(self.statements)} statements: {self.answers}"


class Wire:
    """Listens at `uri`. Its `cuts` are done one after the other, each once: (word, where) cuts the next COMMIT
    that goes with a statement that has the word in it, "before" or "after" the server commits. If told to
    `spoil_begin`, it makes a mistake of each BEGIN."""

    def __init__(self, uri):
        there = {"port": "5432", **conninfo_to_dict(uri)}
        self.server = f"{there['host']}/.s.PGSQL.{there['port']}"
        self.folder = tempfile.TemporaryDirectory()
        self.uri = "postgresql:///{dbname}?host={here}&user={user}".format(here=self.folder.name, **there)
        self.cuts = []
        self.spoil_begin = False
        self.trips = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(pathlib.Path(self.folder.name) / ".s.PGSQL.5432"))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # close() alone does not wake the thread that accepts.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.folder.cleanup()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=Line(self, client).run, daemon=True).start()

    def where_to_cut(self, statements):
        """Asked at each COMMIT, with what goes with it."""
        if self.cuts and any(self.cuts[0][0] in statement for statement in statements):
            return self.cuts.pop(0)[1]


class Line:
    """One connection."""

    def __init__(self, wire, client):
        self.wire = wire
        self.client = client
        self.server = socket.socket(socket.AF_UNIX)
        self.server.connect(wire.server)
        self.from_client = self.from_server = b""
        self.started = False
        self.prepared = {}
        # The trip that is not answered yet, and the one that is being answered.
        self.asking = self.answered = None
        # How much of what was sent is not answered yet.
        self.executes = self.syncs = 0
        # After an error, until the client's next Sync: the server answers none of that.
        self.skips = False
        self.is_last = False

    def run(self):
        try:
            while self.pass_on():
                pass
        except OSError:
            pass
        self.client.close()
        self.server.close()

    def pass_on(self):
        """Passes on what there is. False at the end."""
        ready, _, _ = select.select([self.client, self.server], [], [])
        if self.client in ready:
            data = self.client.recv(1 << 16)
            self.from_client += data
            return bool(data) and all(self.ask(message) for message in self.asked())
        data = self.hear()
        self.client.sendall(data)
        return bool(data)

    def ask(self, message):
        """Passes a message to the server. False if that was the last one."""
        kind, statement = message[:1] if self.started else b"", None
        self.started = True
        if self.wire.spoil_begin and kind in (b"P", b"Q") and b"BEGIN" in message:
            message = message.replace(b"BEGIN", b"BEGUN")
        if kind == b"P":
            name, statement = message[5:].split(b"\0")[:2]
            self.prepared[name] = statement.decode()
        if kind == b"B":
            statement = self.prepared[message[5:].split(b"\0")[1]]
        if kind == b"Q":
            statement = message[5:-1].decode()
        if kind:
            self.asking = self.asking or Trip()
        if kind in (b"B", b"Q"):
            self.asking.statements.append(statement)
            where = self.wire.where_to_cut(self.asking.statements) if statement == "COMMIT" else None
            if where == "before":
                # The server has done everything else when it learns that the client is gone.
                self.server.sendall(FLUSH)
                self.hear_until(lambda: self.executes == 0)
                return False
            self.is_last = self.is_last or where == "after"

        if kind in (b"S", b"Q"):
            self.skips = False
        self.executes += kind in (b"E", b"Q") and not self.skips
        self.syncs += kind in (b"S", b"Q")
        self.server.sendall(message)
        if self.is_last and kind in (b"S", b"Q"):
            # The server has committed when the client learns that the server is gone.
            self.hear_until(lambda: self.syncs == 0)
            return False
        return True

    def hear_until(self, is_enough):
        while not is_enough():
            if not self.hear():
                return

    def hear(self):
        data = self.server.recv(1 << 16)
        self.from_server += data
        if self.asking and data:
            self.answered, self.asking = self.asking, None
            self.wire.trips.append(self.answered)
        while (size := self.size_of(self.from_server, 1)) is not None:
            message, self.from_server = self.from_server[:size], self.from_server[size:]
            kind = message[:1]
            if kind == b"C":
                self.executes = max(self.executes - 1, 0)
                self.answered.answers.append(message[5:-1].decode())
            if kind == b"E":
                self.executes = 0
                self.skips = self.syncs == 0
                fields = dict((field[:1], field[1:].decode()) for field in message[5:].split(b"\0") if field)
                if self.answered:
                    self.answered.answers.append(fields[b"C"])
            if kind == b"Z" and self.answered:
                self.syncs -= 1
        return data

    def asked(self):
        """The messages that have come whole. Only the first one has no letter before its size."""
        while (size := self.size_of(self.from_client, int(self.started))) is not None:
            message, self.from_client = self.from_client[:size], self.from_client[size:]
            yield message

    @staticmethod
    def size_of(data, letters):
        """The size of the first message, if it is there as a whole."""
        if len(data) < letters + 4:
            return None
        size = letters + struct.unpack_from("!i", data, letters)[0]
        return size if len(data) >= size else None
