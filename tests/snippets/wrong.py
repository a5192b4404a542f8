"""Checks that an example reports at once what is wrong with the server, database or user that it is to connect to."""

import re
import socket
import struct
import subprocess
import threading

from psycopg.conninfo import conninfo_to_dict

# Ends an example that hangs. It measures nothing: on a busy machine a program may need many seconds to start.
HANGS_S = 60

# An example that retries a connection that the server refuses for good makes more attempts.
MOST_ATTEMPTS = 2

WRONG = [
    ({"host": "127.0.0.1", "port": "1"}, "Connection refused|ECONNREFUSED"),
    ({"user": "nobody"}, "nobody.*does not exist"),
    ({"dbname": "nowhere"}, "nowhere.*does not exist"),
]

# The codes that stand in the place of the protocol version where a client asks for SSL or GSSAPI encryption.
ENCRYPTION_REQUESTS = {80877103, 80877104}


class RefusingServer:
    """A server that answers each attempt to connect as PostgreSQL answers one to a database that does not exist."""

    def __init__(self):
        self.attempts = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            with client:
                try:
                    self.refuse(client)
                except OSError:
                    pass

    def refuse(self, client):
        stream = client.makefile("rb")
        while header := stream.read(8):
            length, code = struct.unpack("!ii", header)
            stream.read(length - 8)
            if code not in ENCRYPTION_REQUESTS:
                break
            client.sendall(b"N")
        self.attempts += 1
        fields = b'SFATAL\0VFATAL\0C3D000\0Mdatabase "elsewhere" does not exist\0\0'
        client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)


def tells_what_is_wrong(command, uri):
    """Raises AssertionError unless the program fails without retries and names the cause."""
    right = conninfo_to_dict(uri)
    for wrong, cause in WRONG:
        fails_because(command, {**right, **wrong}, cause)
    server = RefusingServer()
    try:
        fails_because(command, {**right, "host": "127.0.0.1", "port": str(server.port)}, "elsewhere.*does not exist")
        assert 1 <= server.attempts <= MOST_ATTEMPTS, f"it tries {server.attempts} times to connect"
    finally:
        server.socket.close()


def fails_because(command, address, cause):
    address = {"port": "5432", **address}
    uri = "postgresql:///{dbname}?host={host}&port={port}&user={user}".format(**address)
    try:
        failed = subprocess.run([*command, uri], capture_output=True, text=True, timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"with {uri} it does not end within {HANGS_S} seconds") from None
    assert failed.returncode != 0, f"with {uri} it ends well"
    assert re.search(cause, failed.stderr), f"with {uri} it says {failed.stderr!r}"
