"""Types the SQL of a page as psql would, and holds the answers against what the page says."""

import json
import re

import psycopg
from guide_parts import until

# A statement ends with a line's end, but for a comment, and not inside of $$ … $$.
STATEMENT = re.compile(r"((?:\$\$.*?\$\$|.)*?)(;|\\gset)[ ]*(?:-- ([^\n]*))?\n", flags=re.DOTALL)


def run_sql(conn, script):
    """Where a comment behind a statement tells the answer, that must be it, but for what stands in brackets."""
    variables = {}
    for statement, end, expected in STATEMENT.findall(script):
        for name, value in variables.items():
            statement = re.sub(rf":'{name}'", f"'{value}'", statement)
            statement = re.sub(rf"(?<!:):{name}\b", value, statement)
        try:
            cursor = type_in(conn, statement)
            row = [as_psql(value) for value in cursor.fetchone() or []] if cursor.description else []
            answer = ", ".join(row)
        except psycopg.DatabaseError as error:
            answer = f"ERROR {error.sqlstate}"
        if end == r"\gset":
            variables.update(zip((column.name for column in cursor.description), row))
        expected = re.sub(r" \([^()]*\)$", "", expected).strip()
        assert expected or not answer.startswith("ERROR"), f"{statement}\ngives {answer}"
        assert not expected or answer.strip() == expected, f"{statement}\ngives {answer}, not {expected}"


def type_in(conn, statement):
    """Types a statement, again while autovacuum has the table."""
    return until(lambda: execute_unless_in_use(conn, statement), f"{statement} finds its table free")


def execute_unless_in_use(conn, statement):
    try:
        return conn.execute(statement)
    except psycopg.errors.ObjectInUse:
        return None


def as_psql(value):
    """As psql would print it."""
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    if isinstance(value, bool):
        return "t" if value else "f"
    return "" if value is None else str(value)
