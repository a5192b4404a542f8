"""Runs one of the driver examples while somebody else holds its key and its backend is terminated.

Usage: check.py NAME URI COMMAND...; the command is given a connection URI and a key. The example must
wait, reconnect, wait again, execute once when the key is free, and replay; and move nothing where an
account is missing. Nothing of this depends on how long anything takes; what never happens ends with an
error after DEADLINE_S.
"""

import json
import pathlib
import subprocess
import sys
import time
import uuid

import psycopg
from wrong import tells_what_is_wrong

DEADLINE_S = 120
ROOT = pathlib.Path(__file__).resolve().parents[2]

WAITING = """
SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database() AND l.pid <> ALL (%s)
"""


def waiting(watch, program, others):
    """The backend that waits for the key, once there is one that is not among `others`."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if program.poll() is not None:
            raise SystemExit("the example ended instead of waiting for the key")
        row = watch.execute(WAITING, [others]).fetchone()
        if row:
            return row[0]
        time.sleep(0.01)
    raise SystemExit("the example never came to wait for the key")


def check(uri, command):
    """Raises SystemExit or AssertionError unless the example does what it should."""
    key = str(uuid.uuid4())
    with psycopg.connect(uri, autocommit=True) as watch, psycopg.connect(uri) as holder:
        watch.execute((ROOT / "docs/snippets/setup.sql").read_text())
        holder.execute("SELECT idem_begin('payments', %s)", [key])
        program = subprocess.Popen([*command, uri, key], stdout=subprocess.PIPE, text=True)
        try:
            victim = waiting(watch, program, [])
            watch.execute("SELECT pg_terminate_backend(%s)", [victim])
            waiting(watch, program, [victim])
            holder.rollback()
            output, _ = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
        assert program.returncode == 0, f"exit code {program.returncode}, output {output!r}"

        expected = [
            ("succeeded", "executed", {"balance": "70.00"}),
            ("succeeded", "replayed", {"balance": "70.00"}),
            ("failed", "executed", {"error": "insufficient funds"}),
        ]
        answers = [line.split(" ", 2) for line in output.splitlines()]
        found = [(status, how, json.loads(response)) for status, how, response in answers]
        assert found == expected, f"found {found}, expected {expected}"

        balances = watch.execute("SELECT array_agg(balance::text ORDER BY id) FROM account").fetchone()[0]
        assert balances == ["70.00", "30.00"], f"the accounts are {balances}"

        watch.execute("DELETE FROM account WHERE id = 2")
        astray = subprocess.run([*command, uri, f"{key}-c"], capture_output=True, text=True, timeout=DEADLINE_S)
        assert astray.returncode != 0 and "there is no account 2" in astray.stderr, f"it says {astray.stderr!r}"
        status = "in_progress"
        deadline = time.monotonic() + DEADLINE_S
        # Until its backend has noticed that the program is gone.
        while status == "in_progress" and time.monotonic() < deadline:
            time.sleep(0.01)
            status = watch.execute("SELECT status FROM idem_lookup('payments', %s)", [f"{key}-c"]).fetchone()[0]
        left = watch.execute("SELECT balance::text FROM account").fetchall()
        assert (status, left) == ("unknown", [("70.00",)]), f"without the account it is {status}, and {left} is left"
    tells_what_is_wrong(command, uri)


def main():
    name, uri, *command = sys.argv[1:]
    try:
        check(uri, command)
    except (AssertionError, SystemExit, psycopg.Error, subprocess.TimeoutExpired) as error:
        print(f"not ok snippet {name}: {error}")
        sys.exit(1)
    print(f"ok snippet {name}")


main()
