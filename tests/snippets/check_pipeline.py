"""Runs one of the pipeline examples over a wire that tells its round trips and is cut at the worst moments.

Usage: check_pipeline.py NAME URI COMMAND...; the command is given a connection URI and a key. Instead of a
command it may be a script for pgbench. A transfer must take one round trip and happen once, whatever goes
wrong, and a pipeline that an error ends must leave nothing. Nothing of this depends on how long anything
takes; what never happens ends with an error after DEADLINE_S.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import uuid

import psycopg
from psycopg.conninfo import conninfo_to_dict
from wire import Wire

DEADLINE_S = 120
ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIES = 6

# Which of the two pipelines: the one that moves money, or the one that records that there is too little.
MOVED = "jsonb_build_object"
FAILED = "failed => true"

TRANSFER = ["BEGIN", "SELECT 1", "MERGE 2", "SELECT 1", "COMMIT"]
RECORDING = ["BEGIN", "SELECT 1", "SELECT 1", "COMMIT"]


def outcomes(first, third):
    """What a program says that transfers 30, then 30 with the same key, then 1000 with another key."""
    return [
        ("succeeded", first, {"balance": "70.00"}),
        ("succeeded", "replayed", {"balance": "70.00"}),
        ("failed", third, {"error": "insufficient funds"}),
    ]


class Check:
    def __init__(self, uri, command):
        self.uri = uri
        self.command = command
        self.watch = psycopg.connect(uri, autocommit=True)
        self.programs = []
        self.key = None

    def run(self):
        """Raises SystemExit or AssertionError unless the example does what it should."""
        try:
            if self.command[-1].endswith(".sql"):
                self.pgbench()
                return
            self.one_round_trip()
            if self.command[-1].endswith(".py"):
                self.one_round_trip_when_prepared()
            self.cut()
            self.copies_at_once()
            self.key_held()
            self.row_changed()
            self.stopped_half_way()
            self.begin_fails()
        finally:
            for program in self.programs:
                program.kill()

    # One round trip

    def one_round_trip(self):
        with self.wire() as wire:
            self.start(wire.uri)
            self.judge(outcomes("executed", "executed"))
            committed = [trip for trip in wire.trips if "COMMIT" in trip.answers]
            assert [trip.answers for trip in committed] == [TRANSFER, RECORDING], "a commit took more than one trip"
            for trip in committed:
                assert len(trip.statements) == len(trip.answers), f"one trip has {trip.statements}"
            answers = [answer for trip in wire.trips for answer in trip.answers]
        # The replay and the failure. Each leaves a transaction that has to be rolled back.
        ended = ["BEGIN", "ID011", "ROLLBACK", "SELECT 1", "BEGIN", "SELECT 1", "23514", "ROLLBACK"]
        found = [answer for answer in answers if answer not in ("SET", "25P02")]
        assert found == [*TRANSFER, *ended, *RECORDING], f"the server answered {found}"
        # With one Sync the rest is skipped. With a Sync for each statement the rest is refused.
        refused = answers.count("25P02")
        expected = 0 if self.command[-1].endswith(".py") else 3
        assert refused == expected, f"{refused} statements were refused after an error, expected {expected}"

    def one_round_trip_when_prepared(self):
        """psycopg prepares a statement that it has executed a few times."""
        spec = importlib.util.spec_from_file_location("example", self.command[-1])
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        with self.wire() as wire:
            payments = example.Payments(wire.uri)
            payload = {"from": 1, "to": 2, "amount": "1.00"}
            for number in range(10):
                payments.transfer(f"{self.key}-{number}", payload)
            answers = [trip.answers for trip in wire.trips]
            assert answers == [TRANSFER] * 10, f"ten transfers took {answers}"
            prepared = payments.conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]
            assert prepared == 5, f"{prepared} statements were prepared"

            # Why it has to roll back.
            payments.roll_back = lambda: None
            try:
                payments.transfer(f"{self.key}-0", payload)
            except psycopg.errors.InFailedSqlTransaction:
                payments.conn.close()
            else:
                raise AssertionError("a connection could be used after an error without ROLLBACK")
        self.leaves({1: "90.00", 2: "10.00"})

    # What goes wrong

    def cut(self):
        """Before the server commits, and before the program learns that it has."""
        plans = [
            ([(MOVED, "before"), (FAILED, "before")], "executed"),
            ([(MOVED, "before")] * 2 + [(MOVED, "after"), (FAILED, "before"), (FAILED, "after")], "replayed"),
        ]
        for cuts, how in plans:
            with self.wire() as wire:
                wire.cuts = list(cuts)
                self.start(wire.uri)
                self.judge(outcomes(how, how))
                assert not wire.cuts, f"these cuts were not made: {wire.cuts}"
                for done, word in [(TRANSFER, MOVED), (RECORDING, FAILED)]:
                    uncommitted = [trip for trip in wire.trips if trip.answers == done[:-1]]
                    assert len(uncommitted) == cuts.count((word, "before")), f"the server had done {wire.trips}"
                    committed = [trip for trip in wire.trips if trip.answers == done]
                    assert len(committed) == 1, f"the server committed {len(committed)} of {done}"

    def copies_at_once(self):
        self.fresh()
        with psycopg.connect(self.uri) as holder:
            holder.execute("SELECT idem_begin('payments', %s)", [self.key])
            for _ in range(COPIES):
                self.start(self.uri)
            self.wait_for(COPIES, "wait_event_type = 'Lock' AND wait_event = 'advisory'")
            holder.rollback()
        said = [self.said(program) for program in self.programs]
        for lines in said:
            assert [line[::2] for line in lines] == [line[::2] for line in outcomes("", "")], f"one says {lines}"
        executed = sorted(status for lines in said for status, how, _ in lines if how == "executed")
        assert executed == ["failed", "succeeded"], f"executed were {executed}"
        self.leaves({1: "70.00", 2: "30.00"})

    def key_held(self):
        """For longer than the wait: 55P03."""
        with self.wire() as wire:
            with psycopg.connect(self.uri) as holder:
                holder.execute("SELECT idem_begin('payments', %s)", [self.key])
                self.start(f"{wire.uri}&options=-c%20lock_timeout%3D10ms")
                for _ in self.until("a second attempt after 55P03"):
                    if sum("55P03" in trip.answers for trip in wire.trips) > 1:
                        break
                holder.rollback()
            self.judge(outcomes("executed", "executed"))

    def row_changed(self):
        """By another transaction, since this one's snapshot: 40001."""
        with self.wire() as wire:
            self.start_and_change_row(
                lambda: self.start(f"{wire.uri}&options=-c%20default_transaction_isolation%3Dserializable")
            )
            self.judge(outcomes("executed", "executed"))
            assert any("40001" in trip.answers for trip in wire.trips), "there was no 40001"

    def start_and_change_row(self, start):
        with psycopg.connect(self.uri) as other:
            other.execute("UPDATE account SET balance = balance WHERE id = 1")
            start()
            self.wait_for(1, "wait_event_type = 'Lock' AND wait_event = 'transactionid'")
            other.commit()

    def stopped_half_way(self):
        """At a checkpoint, or with a lease that ran out: 55000. The program says so, and leaves it as it is."""
        checkpoint = "SELECT idem_begin('payments', %(key)s), idem_checkpoint('payments', %(key)s, 'the first step')"
        lease = "SELECT idem_begin('payments', %(key)s, lease => '10 ms')"
        for stop, told, status in [(checkpoint, "the first step", "suspended"), (lease, "stopped at", "in_progress")]:
            self.fresh()
            self.watch.execute(stop, {"key": self.key})
            self.watch.execute("SELECT pg_sleep(0.02)")
            before = self.look_up()
            assert before[0] == status, f"a request that stopped half way is {before}"
            self.fails(self.uri, told)
            self.leaves({1: "100.00", 2: "0.00"}, unfinished=1)
            assert self.look_up() == before, f"it was {before}, and is {self.look_up()}"
            self.watch.execute("SELECT idem_settle('payments', %s)", [self.key])

    def begin_fails(self):
        """Then the work must not be a transaction of its own."""
        with self.wire() as wire:
            wire.spoil_begin = True
            self.fails(wire.uri, "syntax error")
            self.leaves({1: "100.00", 2: "0.00"})
            assert self.look_up()[0] == "unknown", f"without BEGIN it is {self.look_up()}"

    # pgbench

    def pgbench(self):
        for mode in ["extended", "prepared"]:
            with self.wire() as wire:
                trips = []
                for count in [1, 11]:
                    wire.trips.clear()
                    self.transact(wire.uri, f"{self.key}-{count}", mode, count)
                    trips.append(len(wire.trips))
                assert trips[1] - trips[0] == 10, f"ten transactions more took {trips} round trips"
                answers = [trip.answers for trip in wire.trips[-10:]]
                assert answers == [TRANSFER] * 10, f"the server answered {answers}"
                self.leaves({1: "99.88", 2: "0.12"})

                wire.trips.clear()
                self.transact(wire.uri, f"{self.key}-1", mode, 2, fails="is already done")
                answers = [answer for trip in wire.trips for answer in trip.answers]
                assert answers[-2:] == ["BEGIN", "ID011"], f"to a duplicate the server answered {answers}"
                self.leaves({1: "99.88", 2: "0.12"})

            with self.wire() as wire:
                options = {"PGOPTIONS": "-c default_transaction_isolation=serializable"}
                self.start_and_change_row(lambda: self.transact(wire.uri, self.key, mode, 1, options))
                said, _ = self.programs[0].communicate(timeout=DEADLINE_S)
                assert re.search(r"actually processed: 1/1\n(.*\n)*.*retried: 1 ", said), f"pgbench says {said}"
                answers = [answer for trip in wire.trips for answer in trip.answers]
                assert answers[-8:] == [*TRANSFER[:2], "40001", "ROLLBACK", *TRANSFER][-8:], f"it answered {answers}"
                self.leaves({1: "99.99", 2: "0.01"})

    def transact(self, uri, batch, mode, count, options=None, fails=None):
        """Starts pgbench. Waits for its end, unless there are options."""
        there = conninfo_to_dict(uri)
        program = pathlib.Path(self.one("SELECT setting FROM pg_config WHERE name = 'BINDIR'"), "pgbench")
        command = f"{program} -n -M {mode} -f {self.command[-1]} -D n=0 -D batch={batch} -t {count} --max-tries=10"
        self.programs.append(
            subprocess.Popen(
                [*command.split(), "-h", there["host"], "-U", there["user"], there["dbname"]],
                env={**os.environ, **(options or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )
        if options is None:
            _, said = self.programs[-1].communicate(timeout=DEADLINE_S)
            code = self.programs[-1].returncode
            assert fails in said if fails else code == 0, f"pgbench ends with {code}: {said}"

    # Running

    def fresh(self):
        """Puts the accounts back, and takes a new key."""
        self.watch.execute((ROOT / "docs/snippets/setup.sql").read_text())
        self.programs = []
        self.key = str(uuid.uuid4())

    @contextlib.contextmanager
    def wire(self):
        self.fresh()
        with Wire(self.uri) as wire:
            yield wire

    def start(self, uri):
        self.programs.append(
            subprocess.Popen(
                [*self.command, uri, self.key], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )

    def said(self, program):
        output, errors = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 0, f"exit code {program.returncode}, output {output!r}, errors {errors!r}"
        answers = [line.split(" ", 2) for line in output.splitlines()]
        return [(status, how, json.loads(response)) for status, how, response in answers]

    def judge(self, expected):
        found = self.said(self.programs[0])
        assert found == expected, f"found {found}, expected {expected}"
        self.leaves({1: "70.00", 2: "30.00"})

    def fails(self, uri, told):
        self.start(uri)
        output, errors = self.programs[0].communicate(timeout=DEADLINE_S)
        assert self.programs[0].returncode != 0 and told in errors, f"it says {output!r} {errors!r}, not {told!r}"

    # Looking

    def leaves(self, balances, unfinished=0):
        """The money is where it belongs, and no claim and no transaction is left."""
        found = dict(self.watch.execute("SELECT id, balance::text FROM account").fetchall())
        assert found == {**found, **balances}, f"the accounts are {found}"
        found = self.one(f"SELECT count(*) FROM idempotence.unfinished WHERE starts_with(request, '{self.key}')")
        assert found == unfinished, f"{found} requests are unfinished"
        # A backend notices some time later that the program is gone.
        for _ in self.until("no lock and no transaction being left", running=False):
            locks = self.one(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                " WHERE l.locktype = 'advisory' AND d.datname = current_database()"
            )
            if locks == 0 and not self.backends("xact_start IS NOT NULL"):
                return

    def look_up(self):
        return self.watch.execute(
            "SELECT status, point, attempt, expires_at FROM idem_lookup('payments', %s)", [self.key]
        ).fetchone()

    def wait_for(self, count, where):
        for _ in self.until(f"{count} waiting where {where}"):
            if self.backends(where) == count:
                return

    def backends(self, where):
        return self.one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            f" AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {where}"
        )

    def one(self, query):
        return self.watch.execute(query).fetchone()[0]

    def until(self, what, running=True):
        """Goes round until left, and ends the check where that does not come."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if running and any(program.poll() is not None for program in self.programs):
                raise SystemExit(f"the example ended before {what}")
            yield
            time.sleep(0.01)
        raise SystemExit(f"it never came to {what}")


def main():
    name, uri, *command = sys.argv[1:]
    try:
        Check(uri, command).run()
    except (AssertionError, SystemExit, psycopg.Error, subprocess.TimeoutExpired) as error:
        print(f"not ok snippet {name}: {error}")
        sys.exit(1)
    print(f"ok snippet {name}")


main()
