"""Runs the examples of the reference and of the pages that belong to it, each page in a new database.

Usage: check_reference.py URI PYTHON; the URI is a superuser's. Compares the result of each statement with the comment
after it. Runs the program of "One endpoint" unchanged. Checks that the pages describe each function, setting and
SQLSTATE of the extension.
"""

import pathlib
import re
import subprocess
import sys

import psycopg
from check_readme import check_program
from psycopg.conninfo import make_conninfo
from typed import run_sql

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["reference", "client-sessions", "administration"]
DATABASE = "reference"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def examples(conn, text):
    """The SQL of a page. Blocks marked "preloaded" need the library's shared memory; without it they are left out."""
    (libraries,) = conn.execute("SHOW shared_preload_libraries").fetchone()
    found = re.findall(r"^```sql( preloaded)?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(code for preloaded, code in found if not preloaded or "idempotence" in libraries)


def check(uri, python):
    texts = {page: (ROOT / f"docs/{page}.md").read_text() for page in PAGES}
    with psycopg.connect(uri, autocommit=True) as server:
        for page, text in texts.items():
            make_database(server)
            with psycopg.connect(make_conninfo(uri, dbname=DATABASE), autocommit=True) as conn:
                try:
                    run_page(conn, page, text, python)
                finally:
                    end_roles(conn)
        server.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def make_database(server):
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    server.execute(f"CREATE DATABASE {DATABASE}")


def end_roles(conn):
    """Drops the roles that the examples create: they belong to the server, and remain after the database is dropped."""
    for role in ["app", "billing", "web", "payer", "shop"]:
        if conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
            conn.execute(f"RESET ROLE; DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def run_page(conn, page, text, python):
    if page != "reference":
        run_sql(conn, examples(conn, text))
        return
    first, rest = text.split("\n## Terms\n")
    uri = f"postgresql:///{DATABASE}?host={conn.info.host}&port={conn.info.port}&user={conn.info.user}"
    run_sql(conn, examples(conn, first))
    (program,) = blocks(first, "python")
    check_program(python, program, uri)
    run_sql(conn, examples(conn, rest))
    is_complete(conn)


def is_complete(conn):
    """Checks that each setting and SQLSTATE of class ID has a row, and each public function a signature on a page."""
    pages = [*PAGES, "scaling", "operations"]
    text = "\n".join((ROOT / f"docs/{page}.md").read_text() for page in pages)
    settings = conn.execute("SELECT name FROM pg_settings WHERE name LIKE 'idempotence.%'").fetchall()
    assert len(settings) > 20, "the library is not loaded"
    table = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    said, there = set(re.findall(r"^\| `(idempotence\.\w+)`", table, flags=re.MULTILINE)), {name for (name,) in settings}
    assert said == there, f"the reference lacks the settings {there - said}, and has {said - there}"
    functions = conn.execute(
        "SELECT DISTINCT proname FROM idempotence.function_level f JOIN pg_proc p ON p.oid = f.function"
        " WHERE pronamespace <> 'idempotence'::regnamespace"
    ).fetchall()
    codes = set(re.findall(r'"(ID\d{3})"', "".join(file.read_text() for file in (ROOT / "src/error").rglob("*.rs"))))
    untold = {code for code in codes if not re.search(rf"^\| {code} ", text, flags=re.MULTILINE)}
    assert len(codes) > 10 and not untold, f"the reference lacks the errors {untold}"
    missing = [name for (name,) in functions if not re.search(rf"(^|`|CALL ){name}\(", text, flags=re.MULTILINE)]
    assert not missing, f"the pages lack the functions {missing}"


def main():
    uri, python = sys.argv[1:]
    try:
        check(uri, python)
    except (AssertionError, SystemExit, psycopg.Error, subprocess.SubprocessError) as error:
        print(f"not ok snippet reference: {error}")
        sys.exit(1)
    print("ok snippet reference")


main()
