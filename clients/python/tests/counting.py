"""Applications behind clients/roundtrips/count.py, which counts their round trips to the server."""

import contextlib
import json
import subprocess
import sys
import urllib.request

import servers
from psycopg.conninfo import conninfo_to_dict


class Counter:
    def __init__(self, port, control):
        self.uri, self.control = servers.uri(host="127.0.0.1", port=str(port)), control

    def reset(self):
        self.ask("reset", method="POST")

    def trips(self):
        """The statements of each round trip since the last reset."""
        connections = json.loads(self.ask("trips"))["connections"]
        return [trip["statements"] for each in connections for trip in each["trips"]]

    def cut(self, when, at):
        """Once: cuts the connection before or after the message that contains the text."""
        self.ask(f"cut?when={when}&at={at}", method="POST")

    def ask(self, path, method="GET"):
        with urllib.request.urlopen(urllib.request.Request(f"{self.control}/{path}", method=method)) as answer:
            return answer.read()


@contextlib.contextmanager
def counter(settle_ms=50):
    """Each answer is held for `settle_ms`, so a round trip takes at least that long."""
    command = [sys.executable, servers.CLIENTS / "roundtrips" / "count.py", "--stdin", "--listen", "0"]
    upstream = conninfo_to_dict(servers.URI)["host"]
    process = subprocess.Popen(
        [*map(str, command), "--upstream", upstream, "--settle", str(settle_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Counter(**json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait()
