"""Runs one of the client session examples while its connections are cut at the worst moments.

Usage: check_session.py NAME URI COMMAND...; the command is given a connection URI and a number of
messages. The server at URI must have nothing else to do: it is told to wait for a standby that does not
exist, so that a COMMIT is done but not answered, which is the moment that idempotency is for. The
example must deliver each message once. Nothing here depends on how long anything takes; what never
happens ends with an error after DEADLINE_S.
"""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import psycopg
from wrong import tells_what_is_wrong

DEADLINE_S = 120
ROOT = pathlib.Path(__file__).resolve().parents[2]

MESSAGES = 200
LANES = 5
ROUNDS = 3
APPLICATION = "client session example"

# Where a backend of the example waits: for the table that it writes, and for the standby.
BEFORE_COMMIT = "wait_event_type = 'Lock' AND wait_event = 'relation'"
AFTER_COMMIT = "wait_event = 'SyncRep'"


class Check:
    def __init__(self, uri, command):
        self.uri = uri
        self.command = command
        self.watch = psycopg.connect(uri, autocommit=True)
        self.watch.execute("SET synchronous_commit = local")
        self.seen = set()
        self.program = None

    def run(self):
        """Raises SystemExit or AssertionError unless the example does what it should."""
        self.watch.execute((ROOT / "docs/snippets/setup.sql").read_text())
        try:
            with self.delivery_locked():
                uri = psycopg.conninfo.make_conninfo(self.uri, application_name=APPLICATION)
                self.program = subprocess.Popen(
                    [*self.command, uri, str(MESSAGES)], stdout=subprocess.PIPE, text=True
                )
                self.cut(BEFORE_COMMIT, LANES)
                self.wait_for(BEFORE_COMMIT, LANES)
            # The first outcome goes through: others of an unsaved session wait for it.
            with self.delivery_locked():
                self.wait_for(BEFORE_COMMIT, LANES)
                self.answer_no_commit()
            for _ in range(ROUNDS):
                self.wait_for(AFTER_COMMIT, LANES)
                self.cut(AFTER_COMMIT, LANES)
                # What is sent again is answered only once it is as durable as its COMMIT would have been.
                with self.delivery_locked():
                    self.answer_commits()
                    self.wait_for(BEFORE_COMMIT, LANES)
                    self.answer_no_commit()

            # All in flight have committed, none has its answer, and the session ends.
            self.wait_for(AFTER_COMMIT, LANES)
            self.end_session()
            self.answer_commits()

            # The same with requests that have not committed.
            with self.delivery_locked():
                self.wait_for(BEFORE_COMMIT, LANES)
                self.end_session()
            output, _ = self.program.communicate(timeout=DEADLINE_S)
        finally:
            self.answer_commits()
            if self.program:
                self.program.kill()
        assert self.program.returncode == 0, f"exit code {self.program.returncode}, output {output!r}"
        self.judge(dict(line.rsplit(" ", 1) for line in output.splitlines()))
        tells_what_is_wrong(self.command, self.uri)
        self.run_half_way()

    def run_half_way(self):
        """A request that stopped at a checkpoint in a session that ended is neither done nor to be sent again."""
        self.watch.execute("TRUNCATE delivery")
        uri = psycopg.conninfo.make_conninfo(self.uri, application_name=APPLICATION)
        self.program = None
        try:
            with self.delivery_locked():
                self.program = subprocess.Popen(
                    [*self.command, uri, str(LANES)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                self.wait_for(BEFORE_COMMIT, LANES)
                self.end_session(half_way=3)
            _, said = self.program.communicate(timeout=DEADLINE_S)
        finally:
            if self.program:
                self.program.kill()
        assert self.program.returncode != 0, "a request that stopped half way was taken for done, or not done"
        assert "the first step" in said, f"of a request that stopped half way it says {said!r}"
        delivered = self.one("SELECT count(*) FROM delivery WHERE message = 'message 3'")
        assert delivered == 0, "a request that stopped half way was sent again"

    def judge(self, said):
        expected = {
            "delivered": str(MESSAGES),
            "replayed": str(ROUNDS * LANES),
            "looked up": str(LANES),
            "sessions": "3",
        }
        assert said == expected, f"it says {said}, expected {expected}"
        delivered = self.one("SELECT array_agg(message) FROM delivery")
        wanted = [f"message {n}" for n in range(1, MESSAGES + 1)]
        assert sorted(delivered) == sorted(wanted), f"{len(delivered)} deliveries of {len(set(delivered))} messages"
        ends = self.one(
            "SELECT array_agg(ended ORDER BY created_at) FROM idempotence.sessions WHERE client = 'courier'"
            f" AND created_at >= (SELECT created_at FROM idempotence.sessions WHERE session = '{self.first}')"
        )
        assert ends == ["closed"] * 3, f"the sessions ended as {ends}"

    # What goes wrong

    def answer_no_commit(self):
        """Has COMMITs that write wait for a standby, and returns once they do."""
        self.watch.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self.watch.execute("SELECT pg_reload_conf()")
        # A backend learns of it some time after the reload; the checkpointer does for all of them.
        for _ in self.until("a COMMIT waiting for the standby"):
            with psycopg.connect(self.uri, autocommit=True) as probe:
                pid = probe.info.backend_pid
                probing = threading.Thread(target=write_unless_cut, args=[probe])
                probing.start()
                waiting = False
                while probing.is_alive() and not waiting:
                    waiting = bool(self.backends(AFTER_COMMIT, f"pid = {pid}"))
                    time.sleep(0.01)
                self.watch.execute("SELECT pg_terminate_backend(%s)", [pid])
                probing.join()
            if waiting:
                return

    def answer_commits(self):
        self.watch.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.watch.execute("SELECT pg_reload_conf()")

    def delivery_locked(self):
        holder = psycopg.connect(self.uri)
        holder.execute("LOCK TABLE delivery IN SHARE MODE")
        return holder

    def cut(self, where, count):
        """Cuts so many connections that wait there, each once."""
        victims = set()
        for _ in self.until(f"{count} waiting where {where}"):
            for pid in self.backends(where) - self.seen:
                if len(victims) < count:
                    self.seen.add(pid)
                    victims.add(pid)
                    self.watch.execute("SELECT pg_terminate_backend(%s)", [pid])
            if len(victims) == count:
                return

    def wait_for(self, where, count):
        for _ in self.until(f"{count} at once waiting where {where}"):
            if len(self.backends(where) - self.seen) == count:
                return

    def end_session(self, half_way=None):
        """Cuts all connections and ends the session, with the example standing still meanwhile. One of its
        requests gets half way before."""
        self.program.send_signal(signal.SIGSTOP)
        try:
            for _ in self.until("the end of the example's connections"):
                running = self.backends("true")
                if not running:
                    break
                self.watch.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", [list(running)])
            session = self.one(
                "SELECT session FROM idempotence.sessions WHERE client = 'courier' AND ended IS NULL"
            )
            self.first = getattr(self, "first", session)
            if half_way is not None:
                with self.watch.transaction():
                    begun = self.one(f"SELECT status FROM idem_begin('{session}', {half_way})")
                    assert begun == "started", f"number {half_way} is {begun}"
                    self.watch.execute(f"SELECT idem_checkpoint('{session}', {half_way}, 'the first step')")
            assert self.one(f"SELECT idem_close('{session}')"), "the session had ended already"
        finally:
            self.program.send_signal(signal.SIGCONT)

    # Looking

    def backends(self, where, which=f"application_name = '{APPLICATION}'"):
        query = f"SELECT pid FROM pg_stat_activity WHERE {which} AND datname = current_database() AND {where}"
        return {pid for (pid,) in self.watch.execute(query)}

    def one(self, query):
        return self.watch.execute(query).fetchone()[0]

    def until(self, what):
        """Goes round until left, and ends the check where that does not come."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self.program and self.program.poll() is not None:
                raise SystemExit(f"the example ended before {what}")
            yield
            time.sleep(0.01)
        raise SystemExit(f"it never came to {what}")


def write_unless_cut(conn):
    try:
        conn.execute("UPDATE account SET balance = balance")
    except psycopg.OperationalError:
        pass


def main():
    name, uri, *command = sys.argv[1:]
    try:
        Check(uri, command).run()
    except (AssertionError, SystemExit, psycopg.Error, subprocess.TimeoutExpired) as error:
        print(f"not ok snippet {name}: {error}")
        sys.exit(1)
    print(f"ok snippet {name}")


main()
