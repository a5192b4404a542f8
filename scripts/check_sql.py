#!/usr/bin/env python3
"""Checks that the extension's SQL depends neither on a search_path nor on other settings of its callers: neither the SQL of
sql/*.sql nor that of the strings in src/.

SQL that runs with the rights of another role must not look anything up on a path that the caller may set. So casts,
functions, relations and operators are qualified, and what looks an operator up by itself is not used: IS DISTINCT FROM,
NULLIF, IN, BETWEEN, CASE x WHEN, USING, LIKE and their like. All SQL is held to that, whoever runs it. A string of Rust
counts as SQL if it begins or looks so; the rest of a statement that is put together of words cannot be told from prose.

A literal with a backslash is written E'', since its meaning depends on standard_conforming_strings otherwise. Each function in
PL/pgSQL pins the settings of PL/pgSQL that count at run time, see PINNED.
"""

import pathlib
import re
import sys

TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|\#variable_conflict[^\n]*)
      | (?P<text>[Ee]?'(?:[^']|'')*')
      | (?P<quoted>"[^"]*")
      | (?P<dollar>\$[a-z_]*\$)
      | (?P<parameter>\$\d+)
      | (?P<number>\d[\d.e]*)
      | (?P<name>@extschema@|[A-Za-z_]\w*)
      | (?P<sign>::|:=|=>|[-+*/<>=~!@\#%^&|?]+|.)""",
    re.VERBOSE | re.DOTALL,
)
OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|?]+$")
# What may stand before a parenthesis and is no function.
WORDS = set(
    """ALL AND ANY ARRAY AS BY CHECK COALESCE CONFLICT CROSS DISTINCT ELSE END EXCEPTION EXISTS EXTRACT FILTER FROM FULL GREATEST
    GROUP IF INNER INTO JOIN KEY LATERAL LEAST LEFT LOOP NOT ON OR ORDER OVER PERFORM RETURN RETURNS ROW ROWS SELECT SET SETOF
    TABLE TABLESAMPLE THEN UNION UNIQUE USING VALUES WHEN WHERE WITH WITHIN CURRENT_USER SESSION_USER ONLY RETURNING""".split()
)
# The settings of PL/pgSQL that count when a function is executed. The caller may set the first two, and they are pinned by the
# definition. Only a superuser may set the third, and so only a superuser could call a function that sets it. It is pinned by
# the first line of the body.
PINNED = ("SET plpgsql.extra_errors = 'none'", "SET plpgsql.extra_warnings = 'none'")
CONFLICT = re.compile(r"\s*#variable_conflict (error|use_variable|use_column)\n")
# The routines that cannot have a SET clause, and why. The two settings count where values are assigned to several variables
# and where a query gives several rows to INTO, which these do not do.
UNPINNED = {
    "idem_sweep": "a procedure with a SET clause cannot end transactions",
    "idem_import": "the query of the caller runs in it, with the settings of the caller",
}
PLPGSQL = re.compile(
    r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) (?P<name>[\w.@]+)\((?P<head>[^;]*?)\bAS (?P<tag>\$\w*\$)(?P<body>.*?)(?P=tag)",
    re.DOTALL,
)
LOOKS_LIKE_SQL = re.compile(
    r"^\s*(SELECT|WITH|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|CREATE (TABLE|INDEX|FUNCTION)|ALTER TABLE)\b"
    r"|OPERATOR\(|pg_catalog\.|\bidempotence\.\w+ [a-z] WHERE| IS (NOT )?NULL\b|\bEXISTS \(|\bORDER BY\b|\bNULLIF\(|\bDISTINCT FROM\b"
    r"|\bCASE WHEN\b|\bRETURNING\b|\b[a-z_.]+ (=|<>|<|>|<=|>=) (\$\d|'|[a-z]\.)"
)
RUST = re.compile(
    r"""(?P<skip>//[^\n]*|b?'(?:[^'\\]|\\.)'|b"(?:[^"\\]|\\.)*")
      | r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
      | "(?P<plain>(?:[^"\\]|\\.)*)" """,
    re.VERBOSE | re.DOTALL,
)


def faults(sql, assigns=False):
    """What is wrong in a piece of SQL: pairs of a place and a text. `assigns`: it may be the columns of an UPDATE."""
    tokens = [(m.group(), m.lastgroup, m.start()) for m in TOKEN.finditer(sql) if m.lastgroup not in ("space", "dollar")]
    words = [word for word, _, _ in tokens] + [""] * 4
    queries = {words[i] for i in range(len(tokens)) if words[i + 1] == "AS" and words[i + 2] == "("}
    depth, setting, functions = 0, [0] if assigns else [], []
    for i, (word, kind, at) in enumerate(tokens):
        before, after = (words[i - 1] if i else ""), words[i + 1]

        def fault(what, at=at):
            return at, what

        if kind == "sign":
            if word in "([":
                depth += 1
                functions.append(before)
            elif word in ")]":
                depth -= 1
                functions = functions[:-1]
            elif word == "::":
                if after not in ("pg_catalog", "@extschema@", "hole") and words[i + 2] != ".":
                    yield fault(f"the cast ::{after} is not qualified")
            elif OPERATOR.match(word) and word not in (":=", "=>"):
                inside = functions and functions[-1] == "OPERATOR"
                star = word == "*" and before in ("(", "SELECT", ".", "RETURNING", ",")
                assigned = word == "=" and depth in setting
                option = word == "=" and functions and functions[-1] == "WITH"
                if not (inside or star or assigned or option):
                    yield fault(f"the operator {word} is not qualified")
            if word == ";":
                setting = []
        if kind != "name":
            continue
        if re.match("[a-z]", word) and i + 1 < len(tokens) and tokens[i + 1][1] == "text" and before != "BEGIN":
            yield fault(f"the type {word} is not qualified")
        if word == "OPERATOR" and words[i + 1 : i + 3] != ["(", "pg_catalog"]:
            yield fault("an operator is not one of pg_catalog's")
        elif word in ("WHERE", "RETURNING", "BEGIN", "AS"):
            setting = [place for place in setting if place < depth]
        elif word == "SET":
            setting.append(depth)
        elif word == "FROM" and before == "DISTINCT":
            yield fault("IS DISTINCT FROM looks an operator up")
        elif word in ("NULLIF", "BETWEEN", "ILIKE", "SIMILAR", "NATURAL", "CAST", "OVERLAPS"):
            yield fault(f"{word} looks a name up")
        elif word == "LIKE" and before != "(":
            yield fault("LIKE looks an operator up")
        elif word == "IN" and words[max(i - 2, 0)] not in ("FOR", "FOREACH"):
            yield fault("IN looks an operator up")
        elif word == "CASE" and after != "WHEN":
            yield fault("CASE x WHEN looks an operator up")
        elif word == "USING":
            if after == "(" and words[i + 2] != "SELECT":
                yield fault("USING looks an operator up")
            elif after != "(":
                setting.append(depth)
        elif after == "(" and before not in (".", ")", "FUNCTION", "PROCEDURE", "AS", "ROLE"):
            if word not in WORDS and word != "hole" and not (word == "LIKE" or word in queries or word == "OPERATOR"):
                yield fault(f"the function {word} is not qualified")
        if kind == "name" and word in ("FROM", "JOIN", "UPDATE", "TRUNCATE") or word == "INTO" and before == "INSERT":
            is_of_extract = word == "FROM" and functions and functions[-1] == "EXTRACT"
            is_lock = word == "UPDATE" and before not in ("", ";", "(", "BEGIN", "AS")
            place = i + 1 + (words[i + 1] in ("ONLY", "TABLE"))
            named = words[place]
            if re.fullmatch(r"[a-z_]\w*", named) and words[place + 1] not in (".", "(") and not is_of_extract and not is_lock:
                if named not in queries | {"hole"}:
                    yield fault(f"the relation {named} is not qualified")


def unpinned(sql):
    """What in a piece of SQL depends on the settings of a caller: pairs of a place and a text."""
    for match in TOKEN.finditer(sql):
        if match.lastgroup == "text" and "\\" in match.group() and match.group()[0] not in "Ee":
            yield match.start(), "the literal has a backslash and is not written E''"
    for match in PLPGSQL.finditer(sql):
        name, head, body = match.group("name"), match.group("head"), match.group("body")
        if "LANGUAGE plpgsql" not in head:
            continue
        if not CONFLICT.match(body):
            yield match.start(), f"{name} does not begin with #variable_conflict"
        if name not in UNPINNED:
            yield from ((match.start(), f"{name} lacks {pin}") for pin in PINNED if pin not in head)
        elif re.search(r"\bSELECT\b[^;]*\bINTO\b", body):
            yield match.start(), f"{name} selects INTO variables, and cannot pin how"


def unescaped(text):
    """What a string of Rust holds, with as many lines, and a name for each of its holes."""
    text = re.sub(r"\\\n\s*", lambda m: "\n" * m.group().count("\n"), text)
    text = text.replace('\\"', '"').replace("\\n", " ").replace("\\\\", "\\")
    return re.sub(r"\{[a-z_0-9.:?]*\}", "hole", text)


def pieces():
    """The SQL: the name of a file, the number of the first line, the text, and whether it may be a list of columns."""
    # The script of CREATE EXTENSION is made of the others.
    for path in sorted(path for path in pathlib.Path("sql").glob("*.sql") if "--" not in path.name):
        yield path, 1, path.read_text(), False
    for path in sorted(pathlib.Path("src").rglob("*.rs")):
        text = path.read_text().split("#[cfg(test)]")[0]
        for match in RUST.finditer(text):
            piece = match.group("plain") if match.group("raw") is None else match.group("raw")
            if match.group("skip") is None and LOOKS_LIKE_SQL.search(piece):
                line = text.count("\n", 0, match.start()) + 1
                yield path, line, unescaped(piece), path.name == "statement.rs"


# What must be found, so that it is known that faults are.
FAULTY = [
    "SELECT true FROM idempotence.restore r WHERE r.orphans IS DISTINCT FROM 0",
    "SELECT NULLIF(a.x, 0) FROM idempotence.audit a",
    "a.x IN (1, 2)",
    "a.x BETWEEN 1 AND 2",
    "CASE a.x WHEN 1 THEN 2 END",
    "idempotence.lease l JOIN idempotence.session s USING (id)",
    "a.x LIKE 'a%'",
    "SELECT count(*) FROM idempotence.audit a",
    "SELECT a.x::text FROM idempotence.audit a",
    "SELECT interval '1 day'",
    "SELECT a.x FROM audit a",
    "UPDATE idempotence.restore SET place = 1 WHERE place = 0",
    "SELECT a.x OPERATOR(public.=) 1",
]
UNPINNED_EXAMPLES = [
    r"SELECT a.x FROM idempotence.audit a WHERE a.x OPERATOR(pg_catalog.~) '\d'",
    "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql SET plpgsql.extra_errors = 'none' AS $$\n#variable_conflict error\nBEGIN END $$",
    "CREATE FUNCTION f(a text)\nRETURNS void\nLANGUAGE plpgsql SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'"
    "\nAS $f$\nBEGIN\nEND\n$f$",
]


def main():
    for sql in FAULTY:
        if len(list(faults(sql))) != 1:
            sys.exit(f"one fault is to be found in: {sql}")
    for sql in UNPINNED_EXAMPLES:
        if len(list(unpinned(sql))) != 1:
            sys.exit(f"one setting is not pinned in: {sql}")
    failed = pieces_seen = 0
    for path, line, sql, assigns in pieces():
        pieces_seen += 1
        # COMMENT ON names functions with their arguments, which look like calls.
        named = [] if path.name == "comments.sql" else faults(sql, assigns)
        for at, what in [*named, *unpinned(sql)]:
            failed += 1
            print(f"{path}:{line + sql.count(chr(10), 0, at)}: {what}")
    if pieces_seen < 50:
        sys.exit("the SQL is not found")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
