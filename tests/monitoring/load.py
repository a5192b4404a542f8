"""A load whose every call is counted by the driver, so that what the metrics say can be held against it.

`Load.expected` has the counters: for each line of idempotence.stats, what the calls of this load must have added up to.
The mistakes are known: each method makes one kind, and counts it.
"""

import collections
import contextlib
import secrets
import threading
import time
import uuid

import psycopg

PAYLOAD = '{"amount": 1}'
OTHER_PAYLOAD = '{"amount": 2}'

# The lines of idempotence.stats: session, owner, kind. Client sessions of a role are one line.
PAYMENTS = ("payments", "app", "standing")
REFUNDS = ("refunds", "app", "standing")
ORDERS = ("orders", "app", "standing")
REPORTS = ("reports", "app", "standing")
MAIL = ("mail", "app", "inbox")
CREW = ("", "crew", "client")
LINES = [PAYMENTS, REFUNDS, ORDERS, REPORTS, MAIL, CREW]

SET_UP = """
CREATE EXTENSION idempotence;
CREATE ROLE app LOGIN;
CREATE ROLE crew LOGIN;
CREATE ROLE prometheus LOGIN;
SELECT idem_grant('app'), idem_grant('crew'), idem_grant('prometheus', 'monitor');
SELECT idem_create_session('payments', ttl => '1 day', owner => 'app');
SELECT idem_create_session('refunds', ttl => '1 day', owner => 'app');
SELECT idem_create_session('orders', ttl => '1 day', owner => 'app');
SELECT idem_create_session('reports', ttl => '1 day', owner => 'app', max_attempts => 2);
SELECT idem_create_session('dated', ttl => '1 day', owner => 'app', time_keys => true);
SELECT idem_create_session('mail', ttl => '1 day', owner => 'app', inbox => true);
"""


class Unexpected(Exception):
    """A call has not answered what this load asked for."""


class Load:
    def __init__(self, host, database, superuser):
        self.where = {"host": host, "dbname": database}
        self.superuser = superuser
        self.expected = {line: collections.Counter() for line in LINES}
        # Seconds that calls have waited, by the driver's clock.
        self.waited = collections.Counter()
        # The errors of class ID.
        self.errors = collections.Counter()
        # What went wrong in a thread.
        self.failures = []
        self.lock = threading.Lock()
        self.last_key = 0
        self.stopping = threading.Event()
        self.threads = []

    # ---- connections and counting

    def connect(self, role="app", **options):
        return psycopg.connect(**self.where, user=role, application_name="load", **options)

    def admin(self, *statements):
        with self.connect(self.superuser, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def set_up(self):
        with psycopg.connect(host=self.where["host"], dbname="postgres", user=self.superuser, autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {self.where['dbname']}")
        with self.connect(self.superuser) as conn:
            conn.execute(SET_UP)

    def count(self, line, **calls):
        with self.lock:
            self.expected[line].update(calls)

    def key(self):
        with self.lock:
            self.last_key += 1
            return f"key-{self.last_key}"

    def begin(self, conn, line, key, status, replayed=False, **options):
        """Begins a request, and raises if the answer is not the one that this load is about."""
        arguments = "".join(f", {name} => %({name})s" for name in options)
        row = conn.execute(f"SELECT status, replayed, token FROM idem_begin(%(session)s, %(key)s{arguments})",
                           {"session": line[0], "key": key, **options}).fetchone()
        if row[:2] != (status, replayed):
            raise Unexpected(f"{line[0]}, {key}: {row} and not {status}")
        return row[2]

    def record(self, conn, line, key, token=None, failed=False):
        conn.execute("SELECT idem_record(%s, %s, '{\"done\": true}', failed => %s, token => %s)",
                     (line[0], key, failed, token))

    def refused(self, sqlstate, work):
        """Runs what must fail with this SQLSTATE."""
        try:
            work()
        except psycopg.Error as error:
            if error.sqlstate != sqlstate:
                raise
            with self.lock:
                self.errors[sqlstate] += 1
        else:
            raise Unexpected(f"nothing failed with {sqlstate}")

    # ---- what is as it should be

    def do(self, conn, line, key=None):
        """One request that is done."""
        key = key or self.key()
        self.begin(conn, line, key, "started", payload=PAYLOAD)
        self.record(conn, line, key)
        conn.commit()
        self.count(line, started=1, recorded=1)
        return key

    def replay(self, conn, line, key):
        self.begin(conn, line, key, "succeeded", True, payload=PAYLOAD)
        conn.commit()
        self.count(line, replayed=1)

    def first(self):
        """One request a line, so that every line is there."""
        with self.connect() as conn:
            for line in (PAYMENTS, REFUNDS, ORDERS, REPORTS):
                self.do(conn, line)
            conn.execute("SELECT idem_once('mail', 'first')")
            self.count(MAIL, recorded=1)
        with self.connect("crew") as conn:
            self.client = conn.execute("SELECT session FROM idem_register('shop-1', timeout => '1 hour')").fetchone()[0]
            conn.commit()
            self.number(conn, 1)

    def number(self, conn, number, session=None):
        session = session or self.client
        conn.execute("SELECT FROM idem_begin(%s, %s)", (session, number))
        conn.execute("SELECT idem_record(%s, %s)", (session, number))
        conn.commit()
        self.count(CREW, started=1, recorded=1)

    # ---- what goes on at the same time

    def spawn(self, work, *arguments):
        def run():
            try:
                work(*arguments)
            except Exception as failure:    # told by join
                self.failures.append(f"{work.__name__}: {failure!r}")
        thread = threading.Thread(target=run, name=work.__name__)
        thread.start()
        self.threads.append(thread)
        return thread

    def stop(self):
        self.stopping.set()
        self.join()
        self.stopping.clear()

    def join(self):
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        if self.failures:
            raise Unexpected("; ".join(self.failures))

    def healthy(self, pause=0.02):
        """Requests, one in ten of them asked for twice."""
        with self.connect() as conn:
            while not self.stopping.is_set():
                keys = [self.do(conn, PAYMENTS) for _ in range(10)]
                self.replay(conn, PAYMENTS, keys[0])
                self.stopping.wait(pause * 10)

    def storm(self):
        """A client that does not stop asking for what was done."""
        with self.connect() as conn:
            key = self.do(conn, PAYMENTS)
            while not self.stopping.wait(0.005):
                self.replay(conn, PAYMENTS, key)

    def rollbacks(self):
        with self.connect() as conn:
            while not self.stopping.wait(0.1):
                self.begin(conn, REFUNDS, self.key(), "started")
                conn.rollback()
                self.count(REFUNDS, started=1)

    def contention(self):
        """A holder that takes half a second, and four others that wait for its request each time."""
        while not self.stopping.is_set():
            with self.held(REFUNDS) as (conn, key):
                waiting = [threading.Thread(target=self.wait_for, args=(REFUNDS, key)) for _ in range(4)]
                for thread in waiting:
                    thread.start()
                time.sleep(0.5)
                self.record(conn, REFUNDS, key)
                conn.commit()
                self.count(REFUNDS, recorded=1)
                for thread in waiting:
                    thread.join()

    @contextlib.contextmanager
    def held(self, line):
        """A request that an open transaction holds."""
        with self.connect() as conn:
            key = self.key()
            self.begin(conn, line, key, "started", payload=PAYLOAD)
            self.count(line, started=1)
            yield conn, key

    def wait_for(self, line, key):
        """Waits for a holder, and gets the answer that it records."""
        with self.connect() as conn:
            since = time.monotonic()
            # A wait is counted when it begins, its time when it is over.
            self.count(line, waits=1)
            try:
                self.begin(conn, line, key, "succeeded", True, payload=PAYLOAD, wait="600 s")
            except Exception as failure:
                self.failures.append(f"wait_for: {failure!r}")
                raise
            with self.lock:
                self.waited[line] += time.monotonic() - since
            conn.commit()
            self.count(line, replayed=1)

    def fill(self, line, requests, bytes_each):
        """Much at once."""
        with self.connect() as conn:
            for _ in range(requests):
                key = self.key()
                self.begin(conn, line, key, "started")
                conn.execute("SELECT idem_record(%s, %s, to_jsonb(%s::text))", 
                             (line[0], key, secrets.token_hex(bytes_each // 2)))
        self.count(line, started=requests, recorded=requests)

    # ---- the mistakes

    def mismatches(self, times):
        with self.connect() as conn:
            key = self.do(conn, REFUNDS)
            for _ in range(times):
                self.refused("ID001", lambda: self.begin(conn, REFUNDS, key, "", payload=OTHER_PAYLOAD))
                conn.rollback()
        self.count(REFUNDS, mismatched=times)

    def failed(self, times):
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                self.begin(conn, REFUNDS, key, "started")
                self.record(conn, REFUNDS, key, failed=True)
                conn.commit()
        self.count(REFUNDS, started=times, failed=times)

    def recorded_and_rolled_back(self, times):
        """The calls are counted, whatever becomes of their transaction."""
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                self.begin(conn, REFUNDS, key, "started")
                self.record(conn, REFUNDS, key)
                conn.rollback()
        self.count(REFUNDS, started=times, recorded=times)

    def unrecorded(self, line, times):
        with self.connect() as conn:
            for _ in range(times):
                self.begin(conn, line, self.key(), "started")
                self.refused("ID008", conn.commit)
                conn.rollback()
        self.count(line, started=times, unrecorded=times)

    def released(self, times):
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                self.begin(conn, REFUNDS, key, "started")
                conn.execute("SELECT idem_release(%s, %s)", (REFUNDS[0], key))
                conn.commit()
        self.count(REFUNDS, started=times, released=times)

    def cancelled(self, times):
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                conn.execute("SELECT idem_settle(%s, %s)", (REFUNDS[0], key))
                conn.commit()
                self.begin(conn, REFUNDS, key, "cancelled", True)
                conn.commit()
        self.count(REFUNDS, cancelled=times, replayed=times)

    def busy(self, key, times):
        """Callers that do not wait for the holder of this request."""
        with self.connect() as conn:
            for _ in range(times):
                self.begin(conn, REFUNDS, key, "in_progress", wait="0")
                conn.rollback()
        self.count(REFUNDS, in_progress=times)

    def lease(self, conn, line, key, status="started", lease="10 ms"):
        token = self.begin(conn, line, key, status, lease=lease)
        conn.commit()
        self.count(line, **{status: 1})
        if lease == "10 ms":
            time.sleep(0.03)
        return token

    def left_behind(self, times):
        """Workers that die between the claim and the outcome."""
        with self.connect() as conn:
            for _ in range(times):
                self.lease(conn, ORDERS, self.key())

    def late(self, times):
        """Workers that come back when another one has taken over."""
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                late = self.lease(conn, ORDERS, key)
                token = self.lease(conn, ORDERS, key, "taken_over", "1 hour")
                self.refused("ID005", lambda: self.record(conn, ORDERS, key, late))
                conn.rollback()
                self.record(conn, ORDERS, key, token)
                conn.commit()
        self.count(ORDERS, fenced=times, recorded=times)

    def taken_over_again(self, attempts):
        """A request that each of its workers dies of; the last one has it still."""
        with self.connect() as conn:
            key = self.key()
            self.lease(conn, ORDERS, key)
            for attempt in range(2, attempts + 1):
                self.lease(conn, ORDERS, key, "taken_over", "10 ms" if attempt < attempts else "1 hour")

    def dead_letters(self, times):
        """Requests that are given up after two attempts."""
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                self.lease(conn, REPORTS, key)
                self.lease(conn, REPORTS, key, "taken_over")
                status = conn.execute("SELECT status FROM idem_begin('reports', %s)", (key,)).fetchone()[0]
                if status != "failed":
                    raise Unexpected(f"a dead letter is {status}")
                conn.commit()
        self.count(REPORTS, failed=times)

    def suspended(self, times):
        with self.connect() as conn:
            for _ in range(times):
                key = self.key()
                self.begin(conn, ORDERS, key, "started")
                conn.execute("SELECT idem_checkpoint('orders', %s, 'charged')", (key,))
                conn.commit()
        self.count(ORDERS, started=times)

    def numbers(self):
        """A client that sends a number too early, one that is over, and that was started twice."""
        with self.connect("crew") as conn:
            for number in range(2, 8):
                self.number(conn, number)
            for number, sqlstate in [(100, "ID006"), (200, "ID006"), (1, "ID003")]:
                self.refused(sqlstate, lambda: conn.execute("SELECT FROM idem_begin(%s, %s)", (self.client, number)))
                conn.rollback()
            former = self.client
            self.client = conn.execute("SELECT session FROM idem_register('shop-1', timeout => '1 hour')").fetchone()[0]
            conn.commit()
            self.refused("ID005", lambda: conn.execute("SELECT FROM idem_begin(%s, 8)", (former,)))
            conn.rollback()
        self.count(CREW, out_of_sequence=2, discarded=1, fenced=1)

    def messages(self):
        with self.connect() as conn:
            for message, new in [("m1", True), ("m2", True), ("m1", False)]:
                if conn.execute("SELECT idem_once('mail', %s)", (message,)).fetchone()[0] != new:
                    raise Unexpected(f"message {message}")
                conn.commit()
            query = "SELECT count(*) FROM idem_once_many('mail', '{m1,m2,m3,m4,m5}'::text[])"
            fresh = conn.execute(query).fetchone()[0]
            if fresh != 3:
                raise Unexpected(f"{fresh} messages")
        self.count(MAIL, recorded=5, replayed=3)

    def program_mistakes(self, times):
        """They are counted for the database only."""
        with self.connect() as conn:
            for _ in range(times):
                self.refused("ID007", lambda: self.record(conn, REFUNDS, self.key()))
                conn.rollback()

    def strangers(self, times):
        """Client sessions that nobody knows here, that live elsewhere, and a key that is two days old."""
        session = str(uuid.uuid4())
        with self.connect("crew") as conn:
            for name, sqlstate in [(session, "ID004"), (f"{session}@elsewhere", "ID012")]:
                for _ in range(times):
                    self.refused(sqlstate, lambda: conn.execute("SELECT FROM idem_begin(%s, 1)", (name,)))
                    conn.rollback()
        made_ms = int(time.time() * 1000) - 2 * 86_400_000
        key = str(uuid.UUID(int=made_ms << 80 | 7 << 76 | 2 << 62))
        with self.connect() as conn:
            self.refused("ID010", lambda: conn.execute("SELECT FROM idem_begin('dated', %s)", (key,)))
            conn.rollback()

    def blocked(self):
        """A request whose work waits for a lock that somebody without a request has."""
        with self.connect() as conn:
            key = self.key()
            self.begin(conn, REPORTS, key, "started")
            self.count(REPORTS, started=1)
            conn.execute("SELECT pg_advisory_xact_lock(1)")
            self.record(conn, REPORTS, key)
            conn.commit()
            self.count(REPORTS, recorded=1)

    def register(self, sessions):
        """Client sessions up to the limit, and one more."""
        with self.connect("crew") as conn:
            for _ in range(sessions):
                conn.execute("SELECT idem_register(timeout => '1 hour')")
                conn.commit()
            self.refused("ID009", lambda: conn.execute("SELECT idem_register(timeout => '1 hour')"))
            conn.rollback()
