"""Stands between a program and its server, and holds a COMMIT up: before the server has it, or its answer.

For programs that send a statement and wait for its answer, over a Unix socket and without a password.
"""

import contextlib
import pathlib
import socket
import socketserver
import struct
import threading


class CommitProxy(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens in the directory `here` and passes on to the server that listens in `there`."""

    daemon_threads = True

    def __init__(self, here, there):
        self.there = str(pathlib.Path(there) / ".s.PGSQL.5432")
        self.changed = threading.Condition()
        self.commits = 0
        self.at = None
        self.held = False
        self.gone = False
        self.lost = False
        super().__init__(str(pathlib.Path(here) / ".s.PGSQL.5432"), Connection)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def hold(self, number, when):
        """The COMMIT with this number is to be held: `before` the server has it, or `after` it was done."""
        self.at = (number, when)

    def go(self, lost=False):
        """Whatever is held goes on, or is lost."""
        with self.changed:
            self.gone = True
            self.lost = lost
            self.changed.notify_all()

    def pass_by(self, number, when):
        """Returns when what is sent may go on."""
        with self.changed:
            if self.at == (number, when):
                self.held = True
                self.changed.wait_for(lambda: self.gone)
                self.held = False
                if self.lost:
                    raise EOFError

    def handle_error(self, *_):
        """The program or the server is gone: that is what the test is about."""


class Connection(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(self.server.there)
            (length,) = struct.unpack("!i", received(self.request, 4))
            upstream.sendall(struct.pack("!i", length) + received(self.request, length - 4))
            got, more = answer(upstream)
            self.request.sendall(got)
            while more:
                sent, commit = question(self.request)
                number = None
                if commit:
                    with self.server.changed:
                        self.server.commits += 1
                        number = self.server.commits
                    self.server.pass_by(number, "before")
                upstream.sendall(sent)
                # A connection that the program closes has no answer.
                if sent[:1] == b"X":
                    return
                got, more = answer(upstream)
                if commit:
                    self.server.pass_by(number, "after")
                self.request.sendall(got)


def question(conn):
    """All that the program sends before it waits for an answer, and whether it contains a COMMIT: in a query, or in the
    Parse of a pipeline."""
    sent, commit = b"", False
    while True:
        kind, body = message(conn)
        sent += kind + body
        commit = commit or (kind in (b"Q", b"P") and body.endswith((b"COMMIT\0", b"COMMIT\0\0\0")))
        if kind in (b"Q", b"S", b"X"):
            return sent, commit


def answer(conn):
    """All that the server sends until it waits for the next statement, and whether it does. It may hang up instead."""
    got = b""
    with contextlib.suppress(EOFError):
        while True:
            kind, body = message(conn)
            got += kind + body
            if kind == b"Z":
                return got, True
    return got, False


def message(conn):
    kind, size = received(conn, 1), received(conn, 4)
    return kind, size + received(conn, struct.unpack("!i", size)[0] - 4)


def received(conn, count):
    got = b""
    while len(got) < count:
        part = conn.recv(count - len(got))
        if not part:
            raise EOFError
        got += part
    return got
