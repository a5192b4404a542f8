#!/usr/bin/env python3
"""A proxy between a client and PostgreSQL that counts network round trips.

    count.py --listen PORT --upstream ADDRESS [--control PORT] [--settle MS]

ADDRESS is host:port, the path of a Unix socket or of its directory, or a URI (postgresql://...). Port 0 takes a free
port. When the proxy is ready it prints one line of JSON: {"port": ..., "control": "http://127.0.0.1:..."}. It ends
when its standard input is closed (with --stdin) or by a signal.

A round trip begins with the first message that a client sends after it has received an answer. It includes everything
that the client sends until the next answer reaches it, so a pipeline is one round trip. To find out what a client
sends without waiting, the proxy holds each answer until the client has sent nothing for --settle milliseconds: a client
that waits for the answer cannot send anything in that time, and a client that does not wait sends its next message.

README.md beside this file describes the control endpoint and how a test uses it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import urllib.parse

import protocol

# How long a call of the control endpoint waits for an answer that does not come.
QUIET_MAX_S = 10


CALLS = ["GET /trips", "POST /reset", "POST /cut"]


class Cut(Exception):
    """The connection is to be closed instead of forwarding this message."""


class Trip:
    """One network round trip: what the client sent, and how the server answered."""

    def __init__(self):
        self.messages, self.statements, self.prepared, self.results = [], [], [], []
        self.cut = None  # where the proxy closed the connection
        self.transaction = None  # its state after the trip: idle, in transaction, failed

    def as_json(self):
        return vars(self)


class Connection:
    """One client connection and its counterpart to the server."""

    def __init__(self, number, proxy):
        self.number, self.proxy = number, proxy
        self.frontend, self.backend = protocol.Frontend(), protocol.Backend()
        self.startup, self.startup_round_trips, self.ready = {}, 0, False
        # The current round trip takes messages until an answer to it has reached the client.
        self.trips, self.trip, self.answered, self.closed = [], None, True, False
        self.statements = protocol.Statements()
        # How many ReadyForQuery the server owes, and whether the connection is cut when it has sent them.
        self.owed, self.cut_after = 0, False
        self.last_client_bytes = self.last_traffic = 0.0

    # What the client sends.

    def sent(self, kind, body):
        """Notes a message of the client in the current round trip, or begins one."""
        if kind == b"X":
            return
        if self.answered:
            self.trip, self.answered = Trip(), False
            if self.ready:
                self.trips.append(self.trip)
            else:
                self.startup_round_trips += 1
        if kind == protocol.PROTOCOL_VERSION_3:
            self.startup = protocol.startup_parameters(body)
            return
        if not isinstance(kind, bytes):
            return
        trip = self.trip
        trip.messages.append(protocol.FRONTEND_NAMES.get(kind, repr(kind)))
        if kind in protocol.READY_FOLLOWS:
            self.owed += 1
        text = self.statements.text(kind, body)
        if text is None:
            return
        if kind in (b"Q", b"E"):
            trip.statements.append(one_line(text))
        elif kind == b"P":
            trip.prepared.append(one_line(text))
        when = self.proxy.take_cut(text)
        if when == "before":
            trip.cut = f"before {one_line(text)}"
            raise Cut
        if when == "after":
            trip.cut = f"after {one_line(text)}"
            self.cut_after = True

    async def upstream(self, client, server):
        """Forwards what the client sends, message by message."""
        while data := await client[0].read(65536):
            self.last_client_bytes = self.last_traffic = now()
            for kind, body, message in self.frontend.feed(data):
                if kind in (protocol.SSL_REQUEST, protocol.GSSENC_REQUEST):
                    # The proxy has to read the protocol, so it declines encryption itself.
                    self.startup_round_trips += 1
                    client[1].write(b"N")
                    continue
                try:
                    self.sent(kind, body)
                except Cut:
                    return
                server[1].write(message)
            await server[1].drain()

    # What the server answers.

    def received(self, kind, body):
        """Notes a message of the server in the current round trip. Returns whether it is a part of an answer."""
        if kind == b"Z":
            self.owed -= self.ready
            self.ready = True
        trip = self.trip
        if trip is None or kind in protocol.ASYNCHRONOUS:
            return False
        if kind == b"C":
            trip.results.append(protocol.strings(body, 1)[0])
        elif kind == b"E":
            trip.results.append(f"ERROR {protocol.error_fields(body).get('C')}")
        elif kind == b"I":
            trip.results.append("")
        elif kind == b"Z":
            trip.transaction = {b"I": "idle", b"T": "in transaction", b"E": "failed"}[body[:1]]
        return True

    async def downstream(self, client, server):
        """Forwards what the server sends, when the client has stopped sending."""
        while data := await server[0].read(65536):
            self.last_traffic = now()
            answer = [self.received(*message) for message in self.backend.feed(data)]
            while (left := self.last_client_bytes + self.proxy.settle_s - now()) > 0:
                await asyncio.sleep(left)
            if self.cut_after:
                if self.owed > 0:
                    continue
                return
            client[1].write(data)
            await client[1].drain()
            self.last_traffic = now()
            self.answered = self.answered or any(answer)

    async def serve(self, client):
        """Both directions, until either side closes."""
        server = await self.proxy.connect()
        try:
            both = [asyncio.ensure_future(way(client, server)) for way in (self.upstream, self.downstream)]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for way in both:
                way.cancel()
            for failed in await asyncio.gather(*both, return_exceptions=True):
                if isinstance(failed, Exception) and not isinstance(failed, ConnectionError):
                    raise failed
        finally:
            self.closed = True
            server[1].close()

    def as_json(self):
        return {
            "connection": self.number,
            "user": self.startup.get("user"),
            "database": self.startup.get("database"),
            "application_name": self.startup.get("application_name"),
            "startup_round_trips": self.startup_round_trips,
            "round_trips": len(self.trips),
            "trips": [trip.as_json() for trip in self.trips],
        }


class Proxy:
    def __init__(self, upstream, settle_s):
        self.host, self.port, self.settle_s = *address(upstream), settle_s
        self.connections, self.number = [], 0
        self.cut = None  # (when, text): where the next connection is cut that sends this text

    async def connect(self):
        if self.host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}")
        return await asyncio.open_connection(self.host, self.port)

    async def accept(self, reader, writer):
        self.number += 1
        connection = Connection(self.number, self)
        self.connections.append(connection)
        with contextlib.suppress(ConnectionError):
            await connection.serve((reader, writer))
        writer.close()

    def take_cut(self, text):
        """Whether a connection that sends this statement is cut `before` or `after` it. It happens once."""
        if self.cut is None or self.cut[1].lower() not in text.lower():
            return None
        when, self.cut = self.cut[0], None
        return when

    def reset(self):
        """Forgets the round trips so far, the connections that are closed, and a cut that has not happened."""
        self.cut = None
        self.connections = [connection for connection in self.connections if not connection.closed]
        for connection in self.connections:
            connection.trips = []

    async def quiet(self, seconds):
        """Waits until no round trip is under way and no connection has had traffic for that long."""
        last = now() + QUIET_MAX_S
        while now() < last:
            open_ = [connection for connection in self.connections if not connection.closed]
            left = max((connection.last_traffic for connection in open_), default=0.0) + seconds - now()
            if left <= 0 and all(connection.answered for connection in open_):
                return
            await asyncio.sleep(max(left, 0.01))

    def as_json(self):
        connections = [connection.as_json() for connection in self.connections if connection.trips]
        return {
            "round_trips": sum(each["round_trips"] for each in connections),
            "cut_pending": self.cut is not None,
            "connections": connections,
        }


class Control:
    """The HTTP endpoint that tests call."""

    def __init__(self, proxy):
        self.proxy = proxy

    async def accept(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split(" ", 2)
            status, answer = await self.answer(method, urllib.parse.urlsplit(target))
            body = json.dumps(answer, indent=1).encode() + b"\n"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()

    async def answer(self, method, target):
        given = dict(urllib.parse.parse_qsl(target.query))
        call = f"{method} {target.path}"
        if call == "POST /cut":
            if given.get("when") not in ("before", "after") or not given.get("at"):
                return "400 Bad Request", {"error": "POST /cut?when=before|after&at=TEXT"}
            self.proxy.cut = (given["when"], given["at"])
            return "200 OK", {}
        if call not in CALLS:
            return "404 Not Found", {"error": f"no such call: {call}", "calls": CALLS}
        await self.proxy.quiet(float(given.get("quiet", 0.1)))
        if call == "POST /reset":
            self.proxy.reset()
        return "200 OK", self.proxy.as_json()


def now():
    return asyncio.get_running_loop().time()


def one_line(text):
    return " ".join(text.split())


def address(upstream):
    """Host (or the directory of a Unix socket) and port of host:port, of a path, or of a URI."""
    if "://" in upstream:
        # A URI without a host and with several directories in the query is legal to libpq and not to urllib.
        parts = urllib.parse.urlsplit(upstream)
        query = dict(urllib.parse.parse_qsl(parts.query))
        host = query.get("host") or urllib.parse.unquote(parts.hostname or "") or os.environ.get("PGHOST", "127.0.0.1")
        return host, int(query.get("port") or parts.port or os.environ.get("PGPORT", 5432))
    if upstream.startswith("/"):
        directory, _, port = upstream.partition("/.s.PGSQL.")
        return directory, int(port or os.environ.get("PGPORT", 5432))
    host, _, port = upstream.rpartition(":")
    return host or "127.0.0.1", int(port)


async def main():
    parser = argparse.ArgumentParser(prog="count.py", description="A proxy that counts round trips to PostgreSQL.")
    parser.add_argument("--listen", type=int, default=0, help="port on 127.0.0.1 for the client; 0: a free one")
    parser.add_argument("--upstream", required=True, help="the server: host:port, a Unix socket, or a URI")
    parser.add_argument("--control", type=int, default=0, help="port on 127.0.0.1 of the control endpoint")
    parser.add_argument("--settle", type=float, default=50, help="milliseconds without client bytes that end a trip")
    parser.add_argument("--stdin", action="store_true", help="end when standard input is closed")
    given = parser.parse_args()
    proxy = Proxy(given.upstream, given.settle / 1000)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", given.listen)
    control = await asyncio.start_server(Control(proxy).accept, "127.0.0.1", given.control)
    port, control_port = (each.sockets[0].getsockname()[1] for each in (server, control))
    print(json.dumps({"port": port, "control": f"http://127.0.0.1:{control_port}"}), flush=True)
    if given.stdin:
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
