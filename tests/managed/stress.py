#!/usr/bin/env python3
"""stress.py DATA BIN: one minute (IDEM_MINUTES) of everything at once against the edition for managed services.

Consumers, begin and record, claims, leases, idem_run, settling and lookups share keys, at both isolation levels, with
and without synchronous_commit, and now and then in a cursor that fails. Meanwhile sweeps turn the ring at a varying
pace, a loan is granted and revoked, backends are killed, and the server is killed with SIGKILL and restarted. Each
request's effect is a row of the table effect, written in the transaction that executes it.

In the end no request has two effects, every request that was reported as done has one, none that was settled has any,
no committed lease was lost, and no read of the borrower succeeded while the loan was revoked. DATA is the data
directory of the server that the environment names, and BIN has its programs. The database has the edition, and is used
by a superuser.
"""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time

import psycopg

DATA, BIN = sys.argv[1:3]
SECONDS = 60 * float(os.environ.get("IDEM_MINUTES", "1"))
SEED = int(os.environ.get("IDEM_SEED", time.time_ns() % 1_000_000))
# A key of a session with this ttl is used for a tenth of it, so that no use comes after its outcome has expired.
SHORT = 40
SETUP = f"""
DROP TABLE IF EXISTS effect;
CREATE TABLE effect (
  session text NOT NULL, key text NOT NULL, kind text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
GRANT ALL ON effect TO PUBLIC;
-- A key, or keys, that may be used until a time.
CREATE OR REPLACE FUNCTION in_time(key anyelement, until float8) RETURNS anyelement LANGUAGE plpgsql AS $$
BEGIN
  IF extract(epoch FROM clock_timestamp()) > until THEN
    RAISE EXCEPTION 'too late' USING ERRCODE = 'TL001';
  END IF;
  RETURN key;
END $$;
DO $$ BEGIN
  CREATE ROLE stress_owner;
  CREATE ROLE stress_borrower;
EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA public TO PUBLIC;
SELECT idem_grant('stress_owner'), idem_grant('stress_borrower');
SELECT idem_create_session('long', ttl => '1 day'), idem_create_session('short', ttl => '{SHORT} s'),
  idem_create_session('inbox', ttl => '1 day', inbox => true),
  idem_create_session('brief', ttl => '{SHORT} s', inbox => true),
  idem_create_session('lent', ttl => '1 day', owner => 'stress_owner');
-- The ring turns as soon as a second has passed, until the sweeps give it other lives.
UPDATE idempotence.settings SET retention = '1 second';
UPDATE idempotence.segment SET keep = 1 WHERE number = 0;
SELECT setval('idempotence.keep', 1);
"""
CLASH = {
    "40001", "40P01", "55P03",  # another transaction is first, or at work
    "57P01", "57P02", "57P03", "08006", "08003", "08001",  # killed, or not up yet
    "ID005", "ID011", "55000",  # superseded; a claim of a request that is done, or must be looked at
    "TL001",  # the key may not be used any more
}  # fmt: skip


class Keys:
    """The keys of all sessions, and what callers were told of them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.made = collections.defaultdict(list)
        self.done, self.settled, self.leased = set(), set(), {}

    def choose(self, session, dice):
        """A new key, one that other workers use, or (if it does not expire) an old one; and until when to use it."""
        with self.lock:
            made, now = self.made[session], time.time()
            limit = SHORT / 10 if session in ("short", "brief") else 1e9
            recent = [one for one in made[-12:] if now < one[1] + limit]
            if recent and dice.random() < 0.65:
                key, born = dice.choice(made if limit > 1e6 and dice.random() < 0.2 else recent)
            else:
                key, born = f"{len(made)}", now
                made.append((key, born))
            return key, born + limit


class Stress:
    def __init__(self):
        self.keys, self.counts, self.failures = Keys(), collections.Counter(), []
        self.end, self.stop = time.monotonic() + SECONDS, threading.Event()
        # The loan: how often it was granted, and whether it may be in force.
        self.grants, self.lent = 0, True
        self.server = threading.Lock()

    def connect(self, role=None, safe=True):
        while not self.stop.is_set():
            try:
                connection = psycopg.connect("", autocommit=False, prepare_threshold=3)
                connection.execute("SET search_path = public, idempotence")
                if role:
                    connection.execute(f"SET ROLE {role}")
                if not safe:
                    connection.execute("SET synchronous_commit = off")
                connection.commit()
                return connection
            except psycopg.Error:
                time.sleep(0.1)
        return None

    def fail(self, what):
        self.failures.append(what)
        print("not ok -", what, flush=True)

    def clashed(self, connection, error, what, expected=False):
        """After an error: counts it, and ends the transaction, or the connection."""
        state = error.sqlstate or "lost"
        self.counts[f"refused {state}"] += 1
        if state != "lost" and state not in CLASH and not expected:
            self.fail(f"{what}: {state} {error}")
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()

    # What workers do. Each returns what is true once its transaction has committed: a list of (session, key) that are
    # done.

    def once(self, run, dice, session):
        key, until = self.keys.choose(session, dice)
        (new,) = run("SELECT idem_once(%s, in_time(%s::text, %s))", session, key, until)
        if new:
            run("INSERT INTO effect VALUES (%s, %s, 'once')", session, key)
        self.counts[f"once {new}"] += 1
        return [(session, key)]

    def once_many(self, run, dice, session):
        chosen = [self.keys.choose(session, dice) for _ in range(dice.randint(1, 6))]
        keys, until = [key for key, _ in chosen], min(until for _, until in chosen)
        (new,) = run(
            "SELECT coalesce(array_agg(o.request), '{}') FROM idem_once_many(%s, in_time(%s::text[], %s)) o",
            session,
            keys,
            until,
        )
        for key in new:
            run("INSERT INTO effect VALUES (%s, %s, 'once_many')", session, key)
        self.counts["once_many, new"] += len(new)
        return [(session, key) for key in keys]

    def execute(self, run, dice, session, key, kind):
        """The work of a request that this transaction has begun, up to its record."""
        effect = "INSERT INTO effect VALUES (%s, %s, %s)"
        way = dice.random()
        if way < 0.1:
            run("SAVEPOINT s")
            run(effect, session, key, kind)
            run("SELECT idem_record(%s, %s)", session, key)
            run("ROLLBACK TO s")
        elif way < 0.15:
            # It ends the lease of a former holder.
            self.keys.leased.pop((session, key), None)
            run("SELECT idem_checkpoint(%s, %s, 'half', '1')", session, key)
            return []
        elif way < 0.18:
            run("SELECT idem_release(%s, %s)", session, key)
            return []
        if dice.random() < 0.3:
            time.sleep(dice.random() * 0.05)
        run(effect, session, key, kind)
        run("SELECT idem_record(%s, %s, '1', failed => %s)", session, key, dice.random() < 0.2)
        return [(session, key)]

    def begin(self, run, dice, session, cursor=False):
        key, until = self.keys.choose(session, dice)
        called = time.monotonic()
        begin = "SELECT status, replayed, attempt FROM idem_begin(%s, in_time(%s::text, %s), wait => %s)"
        wait = dice.choice(("0", "0.1 s", "1 s", "2 s"))
        if cursor:
            run(
                "DECLARE c CURSOR FOR SELECT t.* FROM generate_series(1, 2) i,"
                " LATERAL (SELECT status, replayed, attempt"
                f" FROM idem_begin('{session}', CASE WHEN 1 / (2 - i) = 1 THEN '{key}' END, wait => '{wait}')) t"
            )
            answer = run("FETCH c")
            run("SAVEPOINT s")
            try:
                run("FETCH c")
            except psycopg.errors.DivisionByZero:
                run("ROLLBACK TO s")
        else:
            answer = run(begin, session, key, until, wait)
        status, replayed, attempt = answer
        self.counts[f"begin {status}"] += 1
        if status == "cancelled" or replayed:
            return [(session, key)] if status != "cancelled" else []
        if status in ("started", "taken_over"):
            self.check_lease(session, key, status, attempt, called)
            return self.execute(run, dice, session, key, "cursor" if cursor else "begin")
        return []

    def check_lease(self, session, key, status, attempt, called):
        """A request that was leased before this call is not just started."""
        told = self.keys.leased.get((session, key))
        if told is not None and told < called and status == "started" and attempt == 1:
            self.fail(f"the committed lease of {key} was lost")

    def claim(self, run, dice, session):
        key, _ = self.keys.choose(session, dice)
        run("SELECT idem_claim(%s, %s, wait => '0.2 s')", session, key)
        self.counts["claims"] += 1
        return self.execute(run, dice, session, key, "claim")

    def run_command(self, run, dice, session):
        key, _ = self.keys.choose(session, dice)
        status, _ = run(
            "SELECT status, replayed FROM idem_run(%s, %s, %s, wait => '0.5 s', on_error => 'record')", session, key,
            f"INSERT INTO effect VALUES ('{session}', '{key}', 'run') RETURNING 1",
        )  # fmt: skip
        self.counts[f"run {status}"] += 1
        return [(session, key)] if status != "cancelled" else []

    def settle(self, run, dice, session):
        key, _ = self.keys.choose(session, dice)
        (status,) = run("SELECT status FROM idem_settle(%s, %s, wait => '0.1 s')", session, key)
        self.counts[f"settle {status}"] += 1
        return [("settled", session, key)] if status == "cancelled" else []

    def look(self, run, dice, session):
        key, _ = self.keys.choose(session, dice)
        (status,) = run("SELECT status FROM idem_lookup(%s, %s)", session, key)
        self.counts[f"lookup {status}"] += 1
        return [(session, key)] if status in ("succeeded", "failed") else []

    def lease(self, connection, dice, session, safe):
        """A lease is committed, and its work recorded later by another transaction, under the token."""
        key, _ = self.keys.choose(session, dice)
        called, length = time.monotonic(), dice.choice(("50 ms", "300 ms", "2 s"))
        try:
            answer = connection.execute(
                "SELECT status, attempt, token FROM idem_begin(%s, %s, wait => '0.1 s', lease => %s::interval)",
                (session, key, length),
            ).fetchone()
            status, attempt, token = answer
            connection.commit()
            self.counts[f"lease {status}"] += 1
            if status not in ("started", "taken_over"):
                return
            self.check_lease(session, key, status, attempt, called)
            self.keys.leased.setdefault((session, key), time.monotonic())
            time.sleep(dice.random() * 0.1)
            if dice.random() < 0.3:
                connection.execute("SELECT idem_extend(%s, %s, %s, '1 s')", (session, key, token))
                connection.commit()
            if dice.random() < 0.2:
                return
            connection.execute("INSERT INTO effect VALUES (%s, %s, 'lease')", (session, key))
            connection.execute("SELECT idem_record(%s, %s, token => %s)", (session, key, token))
            connection.commit()
            self.counts["lease recorded"] += 1
            if safe:
                self.keys.done.add((session, key))
        except psycopg.Error as error:
            self.clashed(connection, error, "lease")

    def work(self, number):
        dice, connection = random.Random(SEED * 100 + number), None
        safe = number % 4 != 0  # the others commit without waiting for the disk, so a crash may undo what they did
        role = "stress_owner" if number % 7 == 6 else None
        while not self.stop.is_set():
            if connection is None or connection.closed:
                if (connection := self.connect(role, safe)) is None:
                    return
            session = "lent" if role else dice.choice(("long", "long", "short"))
            inbox = dice.choice(("inbox", "brief"))
            kind = dice.random()
            if kind < 0.12:
                self.lease(connection, dice, "lent" if role else "long", safe)
                continue

            def run(statement, *values, of=connection):
                cursor = of.execute(statement, values or None)
                return cursor.fetchone() if cursor.description else None

            try:
                if dice.random() < 0.15:
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if kind < 0.3 and not role:
                    done = self.once(run, dice, inbox)
                elif kind < 0.42 and not role:
                    done = self.once_many(run, dice, inbox)
                elif kind < 0.7:
                    done = self.begin(run, dice, session)
                elif kind < 0.73:
                    done = self.begin(run, dice, "lent" if role else "long", cursor=True)
                elif kind < 0.8:
                    done = self.claim(run, dice, "lent" if role else "long")
                elif kind < 0.88:
                    done = self.run_command(run, dice, "lent" if role else "long")
                elif kind < 0.9:
                    done = self.settle(run, dice, "lent" if role else "long")
                else:
                    done = self.look(run, dice, session)
                connection.commit()
                self.counts["transactions"] += 1
                for one in done if safe else ():
                    (self.keys.settled.add(one[1:]) if one[0] == "settled" else self.keys.done.add(one))
            except psycopg.Error as error:
                self.clashed(connection, error, f"worker {number}")

    def sweep(self, number):
        """Turns the ring at a varying pace: the life of its next segment and the time between sweeps change."""
        dice, connection = random.Random(SEED * 100 + 50 + number), None
        while not self.stop.is_set():
            if connection is None or connection.closed:
                if (connection := self.connect()) is None:
                    return
                connection.autocommit = True
            try:
                if dice.random() < 0.1:
                    connection.execute(
                        "UPDATE idempotence.settings SET retention = %s::interval",
                        (f"{dice.choice((1, 1, 3, 10, 45))} s",),
                    )
                connection.execute("CALL idempotence.idem_sweep()")
                self.counts["sweeps"] += 1
                time.sleep(dice.choice((0, 0.05, 0.3, 1, 3)))
            except psycopg.Error as error:
                self.clashed(connection, error, "sweep")

    def lend(self):
        """Grants and revokes the loan. lent is false only while it is certainly revoked."""
        dice, connection = random.Random(SEED * 100 + 60), None
        while not self.stop.is_set():
            if connection is None or connection.closed:
                if (connection := self.connect("stress_owner")) is None:
                    return
            try:
                self.grants += 1
                self.lent = True
                connection.execute("SELECT idem_alter_session('lent', usable_by => 'stress_borrower')")
                connection.commit()
                time.sleep(dice.random())
                connection.execute("SELECT idem_alter_session('lent', usable_by => '-')")
                connection.commit()
                self.lent = False
                self.counts["loans revoked"] += 1
                time.sleep(dice.random() * 2)
            except psycopg.Error as error:
                self.clashed(connection, error, "lend")

    def borrow(self):
        """Reads in each way there is, also with the proof that it has noted down before, and works while it may."""
        dice, connection, noted = random.Random(SEED * 100 + 61), None, []
        ways = (
            "SELECT status FROM idem_lookup('lent', %(key)s)",
            "SELECT status FROM idem_begin('lent', %(key)s, wait => '0')",
            "SELECT request FROM idempotence.outcomes WHERE session = 'lent' LIMIT 1",
            "SELECT request FROM idempotence.kept WHERE session = 'lent' LIMIT 1",
            "SELECT request FROM idempotence.unfinished WHERE session = 'lent' LIMIT 1",
            "SELECT request FROM idempotence.own_pending WHERE session = 'lent' LIMIT 1",
            "SELECT request FROM idem_outcomes('lent') LIMIT 1",
            "SELECT id FROM idempotence.own_session WHERE name = 'lent'",
            "SELECT (o).key FROM idempotence._look_up(%(id)s, 'stress_borrower', %(proof)s, %(key)s)",
            "SELECT (o).key FROM idempotence._look_up(%(id)s, 'stress_owner', %(proof)s, %(key)s)",
        )
        while not self.stop.is_set():
            if connection is None or connection.closed:
                if (connection := self.connect("stress_borrower")) is None:
                    return
            key, _ = self.keys.choose("lent", dice)
            way = dice.choice(ways)
            values = {"key": key, "id": None, "proof": None, **(dice.choice(noted) if noted else {})}
            before = (self.grants, self.lent)
            try:
                if found := connection.execute(
                    "SELECT id, proof FROM idempotence.own_session WHERE name = 'lent'"
                ).fetchone():
                    noted = [*noted[-20:], {"id": found[0], "proof": found[1]}]
                    if dice.random() < 0.5:
                        values |= noted[-1]
                    else:
                        connection.commit()
                        before = (self.grants, self.lent)
                answer = connection.execute(way, values).fetchone()
                if before == (self.grants, False) and not self.lent and answer is not None:
                    self.fail(f"the borrower read without a loan: {way} {answer}")
                self.counts["reads with a loan" if before[1] else "reads without a loan: empty"] += 1
                if answer in (("started",), ("taken_over",)):
                    connection.execute("INSERT INTO effect VALUES ('lent', %s, 'borrower')", (key,))
                    connection.execute("SELECT idem_record('lent', %s)", (key,))
                connection.commit()
            except psycopg.Error as error:
                refused = error.sqlstate in ("42501", "42704")
                self.counts["reads refused"] += refused
                self.clashed(connection, error, "borrow", refused)

    def kill(self):
        """Kills backends and, now and then, a backend or the server by SIGKILL; starts the server again."""
        dice, next_crash = random.Random(SEED * 100 + 70), time.monotonic() + 8
        while not self.stop.is_set():
            time.sleep(dice.random() * 0.6)
            try:
                with psycopg.connect("", autocommit=True) as connection:
                    row = connection.execute(
                        "SELECT pid FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                        " AND datname = current_database() ORDER BY random() LIMIT 1"
                    ).fetchone()
                    if row and time.monotonic() < next_crash:
                        connection.execute("SELECT pg_terminate_backend(%s)", row)
                        self.counts["backends terminated"] += 1
                        continue
            except psycopg.Error:
                continue
            next_crash = time.monotonic() + dice.uniform(8, 25)
            if row and dice.random() < 0.5:
                try:
                    os.kill(row[0], signal.SIGKILL)
                    self.counts["backends killed by SIGKILL"] += 1
                except ProcessLookupError:
                    pass
            else:
                self.restart()

    def restart(self):
        with open(f"{DATA}/postmaster.pid", encoding="utf-8") as file:
            postmaster = int(file.readline())
        os.kill(postmaster, signal.SIGKILL)
        self.counts["servers killed by SIGKILL"] += 1
        command = [f"{BIN}/pg_ctl", "-D", DATA, "-l", f"{DATA}/../log", "-w", "-t", "60", "start"]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        # Backends that are left hold the shared memory for a moment.
        until = time.monotonic() + 120
        while subprocess.run(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode:
            if time.monotonic() > until:
                self.fail("the server does not start again")
                self.stop.set()
                return
            time.sleep(0.5)

    def check(self):
        """What must hold in the end."""
        connection = self.connect()
        doubled = connection.execute(
            "SELECT session, key, array_agg(kind || ' ' || at ORDER BY at) FROM effect"
            " GROUP BY 1, 2 HAVING count(*) > 1"
        ).fetchall()
        effects = set(connection.execute("SELECT session, key FROM effect").fetchall())
        lost = self.keys.done - effects
        settled = self.keys.settled & effects
        for one in doubled:
            self.fail(f"doubled: {one}")
        for one in lost:
            self.fail(f"lost: {one}")
        for one in settled:
            self.fail(f"settled and executed: {one}")
        # Where an outcome must not expire, each effect has one, and it is replayed.
        (without,) = connection.execute(
            "SELECT count(*) FROM effect e WHERE e.session IN ('long', 'inbox', 'lent') AND NOT EXISTS"
            " (SELECT FROM idempotence.outcomes o WHERE (o.session, o.request) = (e.session, e.key))"
        ).fetchone()
        (open_rows,) = connection.execute("SELECT count(*) FROM idempotence.kept WHERE class IN ('o', 'k')").fetchone()
        (position,) = connection.execute("SELECT last_value FROM idempotence.ring").fetchone()
        if without or open_rows:
            self.fail(f"{without} effects without an outcome, {open_rows} open rows")
        for name in sorted(self.counts):
            print(f"#   {name}: {self.counts[name]}")
        for name, least in (("transactions", 100), ("loans revoked", 2), ("reads refused", 2), ("lease recorded", 2)):
            if self.counts[name] < least:
                self.fail(f"only {self.counts[name]} {name}")
        if position < 4:
            self.fail(f"the ring has turned {position} steps only")
        print(
            f"{'not ok' if self.failures else 'ok'} - {SECONDS / 60:g} minutes (seed {SEED}), {len(effects)} effects,"
            f" {self.counts['transactions']} transactions, {position} steps of the ring:"
            f" {len(doubled)} doubled, {len(lost)} lost,"
            f" {sum('read without' in str(failure) for failure in self.failures)} unauthorized reads"
        )

    def main(self):
        with psycopg.connect("", autocommit=True) as connection:
            connection.execute("SET search_path = public, idempotence")
            connection.execute(SETUP)
        tasks = [
            *((self.work, (n,)) for n in range(12)),
            (self.sweep, (0,)),
            (self.sweep, (1,)),
            (self.lend, ()),
            (self.borrow, ()),
        ]
        threads = [threading.Thread(target=self.guard, args=task, daemon=True) for task in [*tasks, (self.kill, ())]]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.end and not self.stop.is_set() and len(self.failures) < 20:
            time.sleep(0.2)
        self.stop.set()
        for thread in threads:
            thread.join(120)
        self.stop.clear()
        self.check()
        return 1 if self.failures else 0

    def guard(self, task, arguments):
        """A thread that ends by a fault of this program is a failure, too."""
        try:
            task(*arguments)
        except Exception as error:  # noqa: BLE001
            self.fail(f"{task.__name__}: {error!r}")


if __name__ == "__main__":
    sys.exit(Stress().main())
