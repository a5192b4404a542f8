"""Executes the examples of README.md and docs/tutorial.md in a fresh database, and compares the answers with the comments.

Usage: check_readme.py URI PYTHON; the URI is a superuser's. Makes and drops the database `readme` and the
role `app`. The Python program is run as it stands there.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import psycopg
from psycopg.conninfo import make_conninfo
from wrong import tells_what_is_wrong

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sections(page):
    """The code blocks of each section of a page, in their order. Those before the first section have the title None."""
    text = (ROOT / page).read_text()
    parts = [None, *re.split(r"^## (.*)$", text, flags=re.MULTILINE)]
    return {
        title: re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
        for title, body in zip(parts[::2], parts[1::2])
    }


def statements(block):
    """Each statement with what its comments say; those inside of a function do not count."""
    lines = []
    for line in block.splitlines():
        lines.append(line)
        statement = "\n".join(lines)
        if statement.count("$$") % 2 == 0 and line.partition("--")[0].rstrip().endswith(";"):
            comments = [] if "$$" in statement else re.findall("-- (.*)", statement)
            yield statement, " ".join(comments)
            lines = []
    assert not "".join(lines).strip(), f"this does not end: {lines}"


def row_as_text(row):
    """A row as psql shows it and as the comments have it: columns separated by bars."""

    def shown(column):
        if isinstance(column, bool):
            return "t" if column else "f"
        return json.dumps(column) if isinstance(column, dict) else str(column)

    return " | ".join(map(shown, row or ()))


def run(conn, block):
    """Executes a block. A comment that begins with an arrow, a brace, failed or ERROR is the expected answer."""
    for statement, comment in statements(block):
        try:
            cursor = conn.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            answer = row[-1] if row else None
        except psycopg.DatabaseError as error:
            answer = f"ERROR {error.sqlstate}: {error}" if "ERROR ID" in comment else f"ERROR: {error}"
        if comment.startswith("→ "):
            assert row_as_text(row) == comment[2:], f"{statement}\ngives {row_as_text(row)}"
        elif comment.startswith("{"):
            said, _ = json.JSONDecoder().raw_decode(comment)
            assert answer == said, f"{statement}\ngives {answer}"
        elif comment.startswith("failed: {"):
            assert row[0] == "failed" and answer["sqlstate"] in comment, f"{statement}\ngives {row}"
        else:
            expected = comment.partition(" …")[0] if comment.startswith("ERROR") else ""
            found = str(answer) if str(answer).startswith("ERROR") else ""
            assert found.startswith(expected) and bool(found) == bool(expected), f"{statement}\ngives {answer}"


def check(uri, python):
    readme, tutorial = sections("README.md"), sections("docs/tutorial.md")
    with psycopg.connect(uri, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS readme")
        server.execute("CREATE DATABASE readme")
        superuser = make_conninfo(uri, dbname="readme")
        app = make_conninfo(superuser, user="app")
        try:
            with psycopg.connect(superuser, autocommit=True) as conn:
                run(conn, next(code for language, code in readme["Install"] if language == "sql"))
            with psycopg.connect(app, autocommit=True) as conn:
                for title in [None, "A single statement", "A program", "An effect in another system"]:
                    for _, code in (block for block in tutorial[title] if block[0] == "sql"):
                        run(conn, code)
            for program in (code for language, code in tutorial["A program"] if language == "python"):
                check_program(python, program, app)
            with psycopg.connect(superuser, autocommit=True) as conn:
                for _, code in tutorial["Messages"]:
                    run(conn, code)
                balances = conn.execute("SELECT array_agg(balance ORDER BY id) FROM account").fetchone()[0]
            assert balances == [100 - 22, 22], f"the accounts are {balances}"
            with psycopg.connect(app, autocommit=True) as conn:
                for _, code in readme[None]:
                    run(conn, code)
        finally:
            server.execute("DROP DATABASE IF EXISTS readme WITH (FORCE)")
            server.execute("DROP ROLE IF EXISTS app")


def check_program(python, block, uri):
    said = re.findall(r"^print\(.*# (.*)$", block, flags=re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(block)
        file.flush()
        done = subprocess.run([python, file.name, uri], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.splitlines() == said, f"it says {done.stdout!r} {done.stderr!r}"
        tells_what_is_wrong([python, file.name], uri)


def main():
    uri, python = sys.argv[1:]
    try:
        check(uri, python)
    except (AssertionError, psycopg.Error, subprocess.TimeoutExpired) as error:
        print(f"not ok snippet readme: {error}")
        sys.exit(1)
    print("ok snippet readme")


if __name__ == "__main__":
    main()
