#!/usr/bin/env python3
"""steps.py FILE MOVING [SCENARIO...]: stops calls and the sweep between all pairs of their steps.

FILE and MOVING, the two files of the edition, are installed with a stop point before each statement of the functions
that read the ring, the session or a request. A session stops at the point that it has set (steps.stop_at), until the
test lets it go on. Each scenario traces which points its calls pass, and is then run once for each pair of a point of
the one call and a point of the other. What must hold afterwards is asserted. The database of the environment is used,
as a superuser.
"""

import os
import pathlib
import random
import re
import sys
import threading
import time

import psycopg

FUNCTIONS = """_begin_request _start_request _find _put _put_seen _note_keys _record_request _held _take _probe
_verify_session _verify_claim _at_commit _turn _import_row _close_for_export _save_session""".split()
SETUP = """
DROP SCHEMA IF EXISTS steps CASCADE;
CREATE SCHEMA steps;
GRANT USAGE ON SCHEMA steps TO PUBLIC;
CREATE FUNCTION steps.stop(point text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog SET lock_timeout = 0 AS $$
BEGIN
  IF current_setting('steps.trace', true) = 'on' THEN
    RAISE WARNING 'passed %', point;
  END IF;
  IF current_setting('steps.stop_at', true) = point THEN
    PERFORM set_config('steps.stop_at', '', false);
    PERFORM pg_advisory_lock_shared(7, current_setting('steps.number')::integer);
    PERFORM pg_advisory_unlock_shared(7, current_setting('steps.number')::integer);
  END IF;
  RETURN false;
END $$;
"""
# Position 0 or 1 of the ring, which is due to turn. The current segment and the next one take outcomes of different
# lives; those of the scenarios live for two days, between the two.
RESET = """
TRUNCATE idempotence.outcome, idempotence.pending;
SELECT setval('idempotence.ring', {position}), setval('idempotence.keep', {keep});
UPDATE idempotence.segment SET keep = CASE number WHEN 0 THEN {keep0} WHEN 1 THEN {keep1} ELSE 86400 END,
  opened_at = now() - interval '30 days' - number * interval '1 day',
  closed_at = CASE number WHEN 2 THEN now() - interval '20 days' ELSE 'infinity' END{reset};
"""
DAY = 86400
# The position, and the lives of the current segment and the next one.
RINGS = ((0, DAY, 7 * DAY), (0, 7 * DAY, DAY), (1, DAY, 7 * DAY), (1, 7 * DAY, DAY))
# Each copy of an unexpired row that is needed lasts until the row expires: one copy at least of each.
SHORTLIVED = """
SELECT o.key, array_agg(o.segment) FROM idempotence.outcome o LEFT JOIN idempotence.segment g ON g.number = o.segment
WHERE o.expires_at > now() AND o.class IN ('s', 'f', 'c') GROUP BY o.session, o.key
HAVING NOT bool_or(o.segment = 3 OR CASE WHEN isfinite(g.closed_at)
                                         THEN g.closed_at + g.keep * interval '1 second' >= o.expires_at
                                         ELSE g.keep >= extract(epoch FROM o.expires_at - o.recorded_at) END)
"""


def with_points(text):
    """The file with a stop point before each statement that begins a line of the functions named."""
    lines, function, inside, before = [], None, False, ""
    for line in text.splitlines():
        if match := re.match(r"CREATE OR REPLACE FUNCTION idempotence\.(\w+)\(", line):
            function, inside = match[1] if match[1] in FUNCTIONS else None, False
        if function and inside:
            starts = before.endswith(";") or re.match(
                r"\s*(BEGIN|LOOP|ELSE|(IF|ELSIF) .* THEN|(FOR|WHILE) .* LOOP)$|.*\bBEGIN$", before
            )
            if starts and not re.match(r"\s*(EXCEPTION|WHEN|--)", line) and not before.endswith("NULL;"):
                if not re.match(r"\s*END\b", line) or not before.strip().startswith(
                    ("RETURN", "RAISE", "EXIT", "CONTINUE")
                ):
                    # Not PERFORM, which would set FOUND.
                    lines.append(f"    IF steps.stop('{function}:{len(lines)}') THEN END IF;")
        if function and re.search(r"(^|\s)BEGIN$", line):
            inside = True
        lines.append(line)
        before = line.split(" --")[0].rstrip() if line.strip() and not line.strip().startswith("--") else before
        if line.rstrip().endswith("$$;"):
            function, inside = None, False
    return "\n".join(lines) + "\n"


class Session:
    """A connection whose calls run in a thread, and stop where they are told to."""

    number = 0

    def __init__(self, steps, role=None):
        Session.number += 1
        self.steps, self.number, self.thread = steps, Session.number, None
        self.connection = psycopg.connect("", autocommit=True)
        self.connection.execute(f"SET search_path = public, idempotence; SET steps.number = {self.number}")
        if role:
            self.connection.execute(f"SET ROLE {role}")
        self.pid = self.connection.info.backend_pid
        self.error = self.result = None

    def call(self, statement, *values):
        """Runs a statement to its end. Returns its first row, the tag of a command without rows, or an SQLSTATE."""
        self.start(None, statement, *values)
        return self.finish()

    def start(self, point, statement, *values):
        """Starts a statement, which stops at a point, and returns when it has stopped, has ended or is blocked."""
        if point:
            self.steps.control.execute("SELECT pg_advisory_lock(7, %s)", (self.number,))
            self.connection.execute("SELECT set_config('steps.stop_at', %s, false)", (point,))
        self.result = None

        def run():
            try:
                cursor = self.connection.execute(statement, values or None)
                self.result = cursor.fetchone() if cursor.description else cursor.statusmessage
            except psycopg.Error as error:
                self.result = error.sqlstate

        self.stopped_at = point
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        self.settle()

    def settle(self):
        """Waits until the call has ended, or waits for a lock itself."""
        until = time.monotonic() + 60
        while self.thread.is_alive():
            assert time.monotonic() < until, "a call neither ends nor stops"
            self.thread.join(0.003)
            if self.thread.is_alive() and self.steps.is_waiting(self.pid):
                return False
        return True

    def go_on(self):
        if self.stopped_at:
            self.steps.control.execute("SELECT pg_advisory_unlock(7, %s)", (self.number,))
            self.stopped_at = None
        return self.settle()

    def finish(self):
        self.go_on()
        self.thread.join(60)
        assert not self.thread.is_alive(), "a call does not end"
        return self.result

    def trace(self, statement, *values):
        """The points that a call passes, each once, in their order."""
        points = {}
        self.connection.add_notice_handler(handler := lambda notice: self.note(points, notice))
        self.connection.execute("SET steps.trace = on; SET client_min_messages = warning")
        self.call(statement, *values)
        self.connection.execute("SET steps.trace = off")
        self.connection.remove_notice_handler(handler)
        return list(points)

    @staticmethod
    def note(points, notice):
        if match := re.match(r"passed (.*)", notice.message_primary):
            points[match[1]] = None


class Steps:
    def __init__(self):
        self.control = psycopg.connect("", autocommit=True)
        self.control.execute("SET search_path = public, idempotence")
        self.keys = self.pairs = 0
        self.failures = []
        self.reset_writers = ""

    def is_waiting(self, pid):
        return self.control.execute(
            "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", (pid,)
        ).fetchone() == (True,)

    def key(self):
        self.keys += 1
        return f"k{self.keys}"

    def reset(self, ring):
        position, keep0, keep1 = ring
        self.control.execute(
            RESET.format(
                position=position, keep0=keep0, keep1=keep1, keep=(keep0, keep1)[position], reset=self.reset_writers
            )
        )

    def chosen(self, points, others):
        """All pairs or, unless IDEM_STEPS is all, about forty of them. Each run takes other ones."""
        pairs = [(one, other) for one in points for other in others]
        return pairs if os.environ.get("IDEM_STEPS") == "all" else random.sample(pairs, min(40, len(pairs)))

    def trace_sweep(self, sweep, ring, steps):
        """The points of a number of steps of the sweep: which step, which point; None is its end."""
        self.reset(ring)
        points = []
        for n in range(steps):
            points += [(n, point) for point in sweep.trace("SELECT idempotence._sweep_step()")] + [(n, None)]
        return points

    def expect(self, holds, told):
        if not holds:
            self.failures.append(told)
            print("#  ", told, flush=True)

    def check_lives(self, told):
        self.expect(
            not (found := self.control.execute(SHORTLIVED).fetchall()), f"{told}: truncated before it expires: {found}"
        )

    # The scenarios. Each gives the number of pairs.

    def once(self, ring, call="SELECT idem_once('inbox', %s)", first_ends="before"):
        """Two consumers of a message, of which the second stops. The first one ends, and the sweep stops as well."""
        first, second, sweep = Session(self), Session(self), Session(self)
        self.reset(ring)
        points = second.trace(call, self.key())
        for point, (n, step) in self.chosen(points, self.trace_sweep(sweep, ring, 4)):
            self.reset(ring)
            key, told = self.key(), f"{ring}, consumer at {point}, sweep {n} at {step}"
            first.call("BEGIN")
            one = first.call(call, key) if first_ends == "before" else None
            second.start(point, call, key)
            if first_ends == "before":
                first.call("COMMIT")
            for _ in range(n):
                sweep.call("SELECT idempotence._sweep_step()")
            sweep.start(step, "SELECT idempotence._sweep_step()")
            if first_ends == "after":
                first.start(None, call, key)
                if first.thread.is_alive():
                    second.go_on()
                one = first.finish()
                first.call("COMMIT")
            if not second.go_on():
                sweep.go_on()
            two = second.finish()
            sweep.finish()
            self.expect([one, two].count((True,)) == 1, f"{told}: first {one}, second {two}")
            self.check_lives(told)
            self.pairs += 1

    def begin(self, ring):
        """A request is begun, stops, and is recorded, while the sweep goes on; a second caller gets its outcome."""
        first, second, sweep = Session(self), Session(self), Session(self)
        begin, record = "SELECT status FROM idem_begin('begin', %s, wait => '0')", "SELECT idem_record('begin', %s)"
        self.reset(ring)
        first.call("BEGIN")
        key = self.key()
        calls = [(0, point) for point in first.trace(begin, key)] + [(1, point) for point in first.trace(record, key)]
        calls += [(2, point) for point in first.trace("COMMIT")]
        for (of, point), (n, step) in self.chosen(calls, self.trace_sweep(sweep, ring, 3)):
            self.reset(ring)
            key, told = self.key(), f"{ring}, call {of} at {point}, sweep {n} at {step}"
            first.call("BEGIN")
            statements = ((begin, key), (record, key), ("COMMIT",))
            for statement in statements[:of]:
                first.call(*statement)
            first.start(point, *statements[of])
            for _ in range(n):
                sweep.call("SELECT idempotence._sweep_step()")
            sweep.start(step, "SELECT idempotence._sweep_step()")
            second.call("BEGIN")
            second.start(None, begin, key)
            if not first.go_on():
                sweep.go_on()
            results = [first.finish()] + [first.call(*statement) for statement in statements[of + 1 :]]
            other = second.finish()
            if other == ("started",):
                second.call(record, key)
            ended = second.call("COMMIT")
            sweep.finish()
            mine, others = (
                results[-1] == "COMMIT" and results[0] != ("in_progress",),
                other == ("started",) and ended == "COMMIT",
            )
            self.expect(mine + others == 1, f"{told}: {results}, the second caller {other} {ended}")
            self.expect(second.call(begin, key) == ("succeeded",), f"{told}: it is not replayed")
            self.check_lives(told)
            self.pairs += 1

    def dropped(self, isolation, call, executed):
        """A session is dropped and exported while a call stops: what commits here is in the export."""
        first, owner = Session(self), Session(self)
        begin = f"BEGIN ISOLATION LEVEL {isolation}"
        is_inbox = "once" in call
        session = "moves, an inbox" if is_inbox else "moves"
        call = call.replace("moves", session)
        make = f"SELECT idem_create_session('{session}', ttl => '1 day', inbox => {is_inbox})"
        owner.call(make)
        first.call(begin)
        points = first.trace(call, self.key())
        first.call("ROLLBACK")
        record = () if is_inbox else (f"SELECT idem_record('{session}', %s)",)
        for point in points:
            key, told = self.key(), f"{isolation}, {call[7:17]} at {point}"
            first.call(begin)
            first.start(point, call, key)
            owner.start(None, f"SELECT idem_drop_session('{session}')")
            if owner.thread.is_alive():
                first.go_on()
            owner.finish()
            owner.call("SET idempotence.wait = '100 ms'")
            owner.start(None, f"SELECT array_agg(key) || '{{}}'::text[] FROM idem_export('{session}', 'a test')")
            exported = owner.finish()
            one = first.finish()
            for statement in record:
                one = first.call(statement, key) if one == executed else one
            ended = first.call("COMMIT")
            (done,) = self.control.execute(
                "SELECT count(*) > 0 FROM idempotence.outcome o WHERE o.key = %s AND o.class = 's'", (key,)
            ).fetchone()
            self.expect(
                not done or exported == "55006" or key in exported[0],
                f"{told}: {one}, {ended}, but exported {exported}",
            )
            owner.call(make)
            self.pairs += 1
        owner.call(f"SELECT idem_drop_session('{session}')")

    def altered(self, isolation):
        """The loan of a session changes, with its secret, while a begin stops: no two callers execute the request."""
        first, second, owner, sweep = (Session(self) for _ in range(4))
        begin, record = "SELECT status FROM idem_begin('lent', %s, wait => '0')", "SELECT idem_record('lent', %s)"
        first.call("BEGIN")
        points = first.trace(begin, self.key())
        first.call("ROLLBACK")
        for point, sweeps in self.chosen(points, (0, 3)):
            key, told = self.key(), f"{isolation}, begin at {point}, {sweeps} sweeps"
            first.call(f"BEGIN ISOLATION LEVEL {isolation}")
            first.start(point, begin, key)
            owner.call(
                "SELECT idem_alter_session('lent', usable_by => %s::text::regrole)",
                "pg_monitor" if self.keys % 2 else "pg_read_all_stats",
            )
            for _ in range(sweeps):
                sweep.call("CALL idempotence.idem_sweep()")
            second.call("BEGIN")
            other = second.call(begin, key)
            one = first.finish()
            for session, answer in ((second, other), (first, one)):
                if answer == ("started",):
                    session.call(record, key)
            ends = [session.call("COMMIT") for session in (second, first)]
            executed = [answer == ("started",) and end == "COMMIT" for answer, end in zip((other, one), ends)]
            self.expect(sum(executed) < 2, f"{told}: both have executed it")
            self.expect(sum(executed) == 1 or "ROLLBACK" in ends, f"{told}: {one}, {other}, {ends}")
            self.pairs += 1


def main():
    edition, moving, *wanted = sys.argv[1:]
    steps = Steps()
    steps.control.execute("DROP SCHEMA IF EXISTS idempotence CASCADE")
    steps.control.execute(SETUP)
    for file in (edition, moving):
        steps.control.execute(with_points(pathlib.Path(file).read_text(encoding="utf-8")))
    if steps.control.execute("SELECT 1 FROM pg_attribute WHERE attname = 'writers_before'").fetchone():
        steps.reset_writers = ", writers_before = NULL"
    steps.control.execute(
        "SELECT idem_create_session('inbox', ttl => '2 days', inbox => true),"
        " idem_create_session('begin', ttl => '2 days'),"
        " idem_create_session('lent', ttl => '1 day'), idem_create_session('imported', ttl => '2 days', inbox => true)"
    )
    imports = "SELECT imported = 1 FROM idem_import('inbox', format('SELECT %%L AS key', %s::text), 'a test')"
    begin, once = "SELECT status FROM idem_begin('moves', %s, wait => '0')", "SELECT idem_once('moves', %s)"
    scenarios = {
        "once": [(steps.once, ring) for ring in RINGS],
        "once_late": [(lambda ring: steps.once(ring, first_ends="after"), ring) for ring in RINGS],
        "import": [(lambda ring: steps.once(ring, imports), ring) for ring in RINGS],
        "begin": [(steps.begin, ring) for ring in RINGS],
        "dropped": [
            (lambda call, executed=executed, isolation=isolation: steps.dropped(isolation, call, executed), call)
            for isolation in ("READ COMMITTED", "REPEATABLE READ")
            for call, executed in ((begin, ("started",)), (once, (True,)))
        ],
        "altered": [(steps.altered, isolation) for isolation in ("READ COMMITTED", "REPEATABLE READ")],
    }
    for name, runs in scenarios.items():
        if wanted and name not in wanted:
            continue
        before, failed, began = steps.pairs, len(steps.failures), time.monotonic()
        for scenario, argument in runs:
            scenario(argument)
        failed = len(steps.failures) - failed
        print(
            f"{'not ok' if failed else 'ok'} - {name}: {steps.pairs - before} pairs of steps, {failed} wrong,"
            f" {time.monotonic() - began:.0f} s", flush=True,
        )  # fmt: skip
    sys.exit(bool(steps.failures))


if __name__ == "__main__":
    main()
