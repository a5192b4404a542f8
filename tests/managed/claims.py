#!/usr/bin/env python3
"""claims.py: whoever has begun a request has it until its transaction ends, and whoever was told of a lease keeps it.

Cursors that fail in a savepoint release locks early; lookups hold the lock of a request for a moment;
synchronous_commit may be off; a loan may be revoked. The server of the environment is used, as a superuser, with a
database that has the edition.
"""

import sys
import threading
import time

import psycopg

FAILURES = []
CURSOR = """DECLARE c CURSOR FOR
SELECT t.status FROM generate_series(1, 2) i,
  LATERAL (SELECT status FROM idem_begin('claims', CASE WHEN 1 / (2 - i) = 1 THEN '{key}' END{lease})) t"""


def connect(**options):
    connection = psycopg.connect("", **options)
    connection.execute("SET search_path = public, idempotence")
    if not options.get("autocommit"):
        connection.commit()
    return connection


def tell(holds, told):
    print(f"{'ok' if holds else 'not ok'} - {told}")
    if not holds:
        FAILURES.append(told)


def begin_in_cursor(connection, key, lease=""):
    """Begins a request in a cursor that then fails in a savepoint, so that the locks are gone."""
    connection.execute(CURSOR.format(key=key, lease=lease))
    assert connection.execute("FETCH c").fetchone() == ("started",)
    connection.execute("SAVEPOINT s")
    try:
        connection.execute("FETCH c")
    except psycopg.errors.DivisionByZero:
        connection.execute("ROLLBACK TO s")


def outcome(connection, *statements):
    """Executes statements and commits: what the first one has answered, and whether all that committed."""
    try:
        answer = connection.execute(*statements[0]).fetchone()[0]
        if answer in ("started", "taken_over"):
            for statement in statements[1:]:
                connection.execute(*statement)
        connection.commit()
        return answer, True
    except psycopg.Error as error:
        connection.rollback()
        return error.sqlstate, False


def effect(name, key):
    return "INSERT INTO claims VALUES (%s, %s)", (name, key)


def begin(key, options="wait => '5 s'"):
    return f"SELECT status FROM idem_begin('claims', %s, {options})", (key,)


def record(key):
    return "SELECT idem_record('claims', %s)", (key,)


def effects(control, key):
    return control.execute("SELECT count(*) FROM claims WHERE key = %s", (key,)).fetchone()[0]


def cursors(control):
    first, second = connect(), connect()

    # The second begin waits for the row of the first one, and finds its outcome.
    begin_in_cursor(first, "waits")
    results = []
    thread = threading.Thread(
        target=lambda: results.append(outcome(second, begin("waits"), effect("second", "waits"), record("waits")))
    )
    thread.start()
    time.sleep(0.5)
    results.append(outcome(first, ("SELECT 'started'",), effect("first", "waits"), record("waits")))
    thread.join()
    tell(results == [("started", True), ("succeeded", True)] or results == [("succeeded", True), ("started", True)],
         f"a begin that waits for a request of a failed cursor gets its outcome: {results}")  # fmt: skip
    tell(effects(control, "waits") == 1, "and the request has one effect")

    # The row of the second one is in another segment, so nothing waits.
    for name, second_statements in (
        ("another segment", (begin("another segment"), effect("second", "another segment"), record("another segment"))),
        ("a lease", (begin("a lease", "lease => '1 hour'"), effect("second", "a lease"))),
        ("a verdict", (("SELECT status FROM idem_settle('claims', %s)", ("a verdict",)),)),
    ):
        begin_in_cursor(first, name)
        control.execute("SELECT setval('idempotence.keep', 0)")
        one = outcome(second, *second_statements)
        control.execute("SELECT setval('idempotence.keep', 86400)")
        two = outcome(first, ("SELECT 'started'",), effect("first", name), record(name))
        tell(
            one[1] and two == ("40001", False),
            f"a begin that has lost its locks to {name} is refused at COMMIT: {one}, {two}",
        )
    tell(
        effects(control, "another segment") == 1 and effects(control, "a verdict") == 0,
        "and no request has two effects",
    )

    # A lease of a failed cursor.
    begin_in_cursor(first, "leased", ", lease => '1 hour'")
    # An assert-enabled server requires that a lock is still held on the table of a deferred trigger: a read acquires
    # one.
    first.execute("SELECT idem_lookup('claims', 'leased')")
    one = outcome(second, begin("leased"), effect("second", "leased"), record("leased"))
    two = outcome(first, ("SELECT 'none'",))
    tell(
        one == ("started", True) and two == ("40001", False),
        f"a lease that was begun in a failed cursor is refused at COMMIT: {one}, {two}",
    )

    # Nobody else wants it.
    begin_in_cursor(first, "alone")
    tell(
        outcome(first, ("SELECT 'started'",), effect("first", "alone"), record("alone")) == ("started", True),
        "alone, it is committed",
    )
    begin_in_cursor(first, "steps")
    first.execute("SELECT idem_checkpoint('claims', 'steps', 'half')")
    first.commit()
    tell(
        second.execute("SELECT point FROM idem_begin('claims', 'steps')").fetchone() == ("half",),
        "and so is its checkpoint",
    )
    second.rollback()


def lookups(control):
    """A lookup holds the lock in shared mode. Here one holds it for as long as a stopped process would."""
    lookup, caller = connect(), connect(autocommit=True)
    lock = "SELECT {} (idempotence._lock_of(s.secret, %s)) FROM idempotence.session s WHERE s.name = 'claims'"
    for call in (
        "SELECT status FROM idem_begin('claims', 'looked at', wait => '0', lease => '1 hour')",
        "SELECT idem_record('claims', 'looked at', token => token) IS NOT NULL FROM idempotence.own_pending"
        " WHERE request = 'looked at'",
    ):
        lookup.execute(lock.format("pg_advisory_xact_lock_shared"), ("looked at",))
        threading.Timer(0.3, lookup.commit).start()
        caller.execute("SET idempotence.wait = 0")
        try:
            answer = caller.execute(call).fetchone()
        except psycopg.Error as error:
            answer = error.sqlstate
        tell(answer in (("started",), (True,)), f"{call[7:24]} waits for a lookup, whatever its wait is: {answer}")
        time.sleep(0.5)
    lookup.execute(lock.format("pg_advisory_xact_lock"), ("held",))
    answer = caller.execute(*begin("held", "wait => '0'")).fetchone()
    tell(answer == ("in_progress",), f"it does not wait for one that holds the claim: {answer}")
    lookup.commit()


def flushes(control):
    """With synchronous_commit = off, what was told of a lease is on the disk when COMMIT returns."""
    control.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    control.execute("SELECT pg_reload_conf()")
    time.sleep(0.5)
    control.execute(
        "CREATE OR REPLACE FUNCTION careless(k text) RETURNS text LANGUAGE sql SET synchronous_commit = off"
        " AS $$ SELECT status FROM idem_begin('claims', k, lease => '1 hour') $$"
    )
    caller = connect()
    caller.execute("SET synchronous_commit = off")
    caller.commit()
    for name, call in (
        ("a lease", "SELECT idem_begin('claims', 'flushed', lease => '20 ms')"),
        ("a lease that is taken over", "SELECT pg_sleep(0.1), idem_begin('claims', 'flushed', lease => '1 hour')"),
        (
            "an extension",
            "SELECT idem_extend('claims', 'flushed', p.token, '2 hours') FROM idempotence.own_pending p"
            " WHERE p.request = 'flushed'",
        ),
        ("a lease that is begun under a setting of a function", "SELECT careless('careless')"),
        ("a verdict", "SELECT idem_settle('claims', 'settled')"),
        ("a request that is given up", "SELECT pg_sleep(0.1), idem_begin('once', 'given up')"),
    ):
        if name.startswith("a request"):
            control.execute("SELECT idem_begin('once', 'given up', lease => '20 ms')")
        caller.execute(call)
        (position,) = caller.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        caller.commit()
        (flushed,) = control.execute("SELECT pg_current_wal_flush_lsn() >= %s", (position,)).fetchone()
        tell(flushed, f"COMMIT waits for the flush of {name}")
    control.execute("ALTER SYSTEM RESET wal_writer_delay")
    control.execute("SELECT pg_reload_conf()")


def main():
    control = connect(autocommit=True)
    control.execute("CREATE TABLE claims (by text, key text)")
    control.execute(
        "SELECT idem_create_session('claims', ttl => '1 day'),"
        " idem_create_session('once', ttl => '1 day', max_attempts => 1)"
    )
    for test in (cursors, lookups, flushes):
        test(control)
    sys.exit(bool(FAILURES))


if __name__ == "__main__":
    main()
