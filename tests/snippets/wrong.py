"""Whether an example tells at once what is wrong with where it is to connect to."""

import re
import subprocess

from psycopg.conninfo import conninfo_to_dict

# An example that retries a connection that cannot come about takes longer.
AT_ONCE_S = 5

WRONG = [
    ({"host": "127.0.0.1", "port": "1"}, "Connection refused|ECONNREFUSED"),
    ({"user": "nobody"}, "nobody.*does not exist"),
    ({"dbname": "nowhere"}, "nowhere.*does not exist"),
]


def tells_what_is_wrong(command, uri):
    """Raises AssertionError unless the program fails at once and names the cause."""
    right = conninfo_to_dict(uri)
    for wrong, cause in WRONG:
        there = {"port": "5432", **right, **wrong}
        bad = "postgresql:///{dbname}?host={host}&port={port}&user={user}".format(**there)
        try:
            failed = subprocess.run([*command, bad], capture_output=True, text=True, timeout=AT_ONCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"with {wrong} it says nothing for {AT_ONCE_S} seconds") from None
        assert failed.returncode != 0, f"with {wrong} it ends well"
        assert re.search(cause, failed.stderr), f"with {wrong} it says {failed.stderr!r}"
