"""The server that the tests run against, and what both files of vectors share. IDEM_URI: a superuser's, of a database
that has the extension or may get it."""

import json
import os
import pathlib
import re
import threading
import time
import uuid

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CLIENTS = pathlib.Path(__file__).resolve().parents[2]
URI = os.environ["IDEM_URI"]
# The file of the edition for managed services, which is installed in the place of the extension.
MANAGED = os.environ.get("IDEM_MANAGED")
EDITION = "managed" if MANAGED else "extension"
OWNER, STRANGER, NOBODY = "client_owner", "client_stranger", "client_nobody"
# Where the functions are in a schema that the role was not granted: the edition for managed services has its own.
HIDDEN = {} if MANAGED else {"dbname": "client_hidden"}


def uri(role=OWNER, **more):
    return make_conninfo(**{**conninfo_to_dict(URI), "user": role, **more})


POOLS = {
    "owner": uri(),
    "stranger": uri(STRANGER),
    "ungranted": uri(NOBODY),
    "hidden": uri(NOBODY, **HIDDEN),
    "empty": uri(dbname="client_empty"),
    "unreachable": uri(host="127.0.0.1", port="1", connect_timeout="2"),
}


def prepare(setup):
    """Roles, an empty database, the tables of the vectors, and more."""
    with psycopg.connect(URI, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(1)")  # the tests run in several processes
        for role in (OWNER, STRANGER, NOBODY, "client_installer"):
            if not conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).rowcount:
                conn.execute(f"CREATE ROLE {role} LOGIN")
        if not conn.execute("SELECT FROM pg_database WHERE datname = 'client_empty'").rowcount:
            conn.execute("CREATE DATABASE client_empty")
            if HIDDEN:
                conn.execute("CREATE DATABASE client_hidden")
                conn.execute("ALTER DATABASE client_hidden SET search_path = public, hidden")
                with psycopg.connect(make_conninfo(URI, **HIDDEN)) as there:
                    there.execute("CREATE SCHEMA hidden; CREATE EXTENSION idempotence SCHEMA hidden")
        conn.execute("GRANT CREATE ON SCHEMA public TO client_owner")
        if MANAGED:
            install_managed(conn)
        else:
            conn.execute("CREATE EXTENSION IF NOT EXISTS idempotence")
            conn.execute(
                "SELECT idem_grant('client_owner'), idem_grant('client_owner', 'admin'), idem_grant('client_stranger')"
            )
        conn.execute("SET client_min_messages = warning")
        # Still under the lock: two transactions that create the same table IF NOT EXISTS at once may both try.
        with psycopg.connect(uri(), autocommit=True, options="-c client_min_messages=warning") as owner:
            for sql in [*json.loads((CLIENTS / "vectors.json").read_text())["setup"], *setup]:
                owner.execute(sql)


def install_managed(conn):
    """As its owner does, who is no superuser."""
    if not conn.execute("SELECT to_regnamespace('idempotence')").fetchone()[0]:
        name = conn.info.dbname
        conn.execute(f"GRANT CREATE ON DATABASE {name} TO client_installer")
        conn.execute(f"ALTER DATABASE {name} SET search_path = public, idempotence")
        with psycopg.connect(uri("client_installer"), autocommit=True) as installer:
            installer.execute(pathlib.Path(MANAGED).read_text())
            for role in (OWNER, STRANGER):
                installer.execute(f"SELECT idempotence.idem_grant('{role}')")


def load(name):
    """The file, and its cases, one for each value of `each`, with a name of the run."""
    file = json.loads((CLIENTS / name).read_text())
    cases = []
    for case in file["cases"]:
        if MANAGED and "client sessions" in case.get("needs", []):
            continue
        for value in case.pop("each", [None]):
            cases.append(filled(case, value))
    return file, cases


def filled(value, each, run=None):
    """With {each} put in, and {run} where it is given."""
    if isinstance(value, dict):
        return {filled(k, each, run): filled(v, each, run) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, each, run) for v in value]
    if isinstance(value, str):
        if run:
            return value.replace("{run}", run)
        if value == "{each}":
            return each
        return value.replace("{each}", each if isinstance(each, str) else json.dumps(each))
    return value


def checked(step, sentences, edition):
    """What a check has found, in the words of vectors.json."""
    return {
        "problems": [sentence.partition(":")[0] for sentence in sentences],
        "says": [text for text in step["expect"].get("says", []) if any(text in sentence for sentence in sentences)],
        "edition": (edition or "").split(" ")[0] == EDITION,
    }


def raising(state):
    """A statement that fails with this SQLSTATE."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'provoked' USING ERRCODE = '{state}'; END $$"


def begin(case):
    """The case with a name of its run."""
    run = uuid.uuid4().hex[:12]
    return run, filled(case, None, run)


class Helpers:
    """The connections of the steps that are SQL."""

    def __init__(self):
        self.named, self.threads = {}, []

    def connection(self, name=None):
        if name not in self.named:
            self.named[name] = psycopg.connect(uri(), autocommit=True)
        return self.named[name]

    def step(self, step):
        """Does a step that both files have. False if it is another one."""
        if "sql" in step:
            if "after" in step:
                self.threads.append(threading.Timer(step["after"], self.sql, [step]))
                self.threads[-1].start()
            else:
                self.sql(step)
        elif "until" in step:
            last = time.monotonic() + 10
            while not self.connection().execute(step["until"]).fetchone()[0]:
                assert time.monotonic() < last, f"never true: {step['until']}"
                time.sleep(0.02)
        else:
            return False
        return True

    def sql(self, step):
        cursor = self.connection(step.get("on")).execute(step["sql"])
        while cursor.nextset():
            pass
        if "rows" in step:
            assert [list(row) for row in cursor.fetchall()] == step["rows"]

    def terminate(self, pid):
        self.connection().execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    def effects(self, run):
        return self.connection().execute("SELECT count(*) FROM client_effect WHERE run = %s", (run,)).fetchone()[0]

    def close(self):
        for thread in self.threads:
            thread.join()
        for conn in self.named.values():
            conn.close()


def identifier(case):
    return re.sub(r"[^A-Za-z0-9]+", "-", case["name"])[:90]
