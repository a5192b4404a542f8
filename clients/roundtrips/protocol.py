"""PostgreSQL's frontend/backend protocol, as far as a proxy has to understand it.

`Frontend` and `Backend` split one direction of a connection into messages. A stream may break a message anywhere; a
splitter keeps the incomplete rest until more bytes arrive.
"""

import struct

PROTOCOL_VERSION_3 = 3
CANCEL_REQUEST = 80877102
SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104

FRONTEND_NAMES = {
    b"B": "Bind",
    b"C": "Close",
    b"D": "Describe",
    b"E": "Execute",
    b"F": "FunctionCall",
    b"H": "Flush",
    b"P": "Parse",
    b"Q": "Query",
    b"S": "Sync",
    b"X": "Terminate",
    b"c": "CopyDone",
    b"d": "CopyData",
    b"f": "CopyFail",
    b"p": "Authentication",
}

# The messages of a client that the server answers with ReadyForQuery.
READY_FOLLOWS = {b"Q", b"S", b"F"}

# Messages that the server may send at any time. They answer nothing.
ASYNCHRONOUS = {b"N", b"S", b"A"}


class Frontend:
    """Splits what a client sends. A message is (type, body); those before the first one with a type byte have their
    request code as type: PROTOCOL_VERSION_3, CANCEL_REQUEST, SSL_REQUEST or GSSENC_REQUEST."""

    def __init__(self):
        self.rest, self.typed = b"", False

    def feed(self, data):
        """The messages that are complete now, each with its own bytes: (type, body, bytes)."""
        self.rest += data
        messages = []
        while True:
            header = 1 if self.typed else 0
            if len(self.rest) < header + 4:
                return messages
            size = header + struct.unpack_from("!I", self.rest, header)[0]
            if len(self.rest) < size:
                return messages
            message, self.rest = self.rest[:size], self.rest[size:]
            if self.typed:
                messages.append((message[:1], message[5:], message))
                continue
            code = struct.unpack_from("!I", message, 4)[0]
            if code >> 16 == PROTOCOL_VERSION_3:
                code, self.typed = PROTOCOL_VERSION_3, True
            messages.append((code, message[8:], message))


class Backend:
    """Splits what the server sends into messages: (type, body)."""

    def __init__(self):
        self.rest = b""

    def feed(self, data):
        self.rest += data
        messages = []
        while len(self.rest) >= 5:
            size = 1 + struct.unpack_from("!I", self.rest, 1)[0]
            if len(self.rest) < size:
                break
            messages.append((self.rest[:1], self.rest[5:size]))
            self.rest = self.rest[size:]
        return messages


class Statements:
    """The statements of one connection: the text of each prepared statement and portal by its name."""

    def __init__(self):
        self.prepared, self.portals = {}, {}

    def text(self, kind, body):
        """The SQL of this Query, Parse, Bind or Execute; None for other messages."""
        if kind == b"Q":
            return strings(body, 1)[0]
        if kind == b"P":
            name, text = strings(body, 2)
            self.prepared[name] = text
            return text
        if kind == b"B":
            portal, name = strings(body, 2)
            self.portals[portal] = self.prepared.get(name, f"(unknown statement {name})")
            return self.portals[portal]
        if kind == b"E":
            portal = strings(body, 1)[0]
            return self.portals.get(portal, f"(unknown portal {portal})")
        return None


def strings(body, number):
    """The first zero-terminated strings of a message."""
    return [text.decode(errors="replace") for text in body.split(b"\0", number)[:number]]


def startup_parameters(body):
    """The parameters of a StartupMessage, such as user, database and application_name."""
    parts = strings(body, body.count(b"\0"))
    return dict(zip(parts[::2], parts[1::2], strict=False))


def error_fields(body):
    """The fields of an ErrorResponse by their one-letter codes: C is the SQLSTATE, M the message."""
    return {part[:1].decode(): part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
