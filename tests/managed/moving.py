#!/usr/bin/env python3
"""moving.py: the way from the edition for managed services to the extension, and back, under load, as docs/managed.md has it.

Clients send payments and messages without a pause, to whichever of two databases has the session, and each of them several times;
meanwhile their backends are killed, and the sessions move up and back. In the end each has taken effect once, in one of the
databases, and all answers to a payment are the same. The server of run.sh is in the environment.
"""

import collections
import pathlib
import random
import subprocess
import threading
import time

from kills import Psql, sql

MANAGED, EXTENSION = "moving_managed", "moving_extension"
SQL = pathlib.Path(__file__).resolve().parents[2] / "sql" / "managed"
CLIENTS = 6
SESSIONS = "SELECT idem_create_session('payments', ttl => '1 day'), idem_create_session('inbox', inbox => true, ttl => '1 day');"
SETUP = """
CREATE TABLE ledger (key text NOT NULL, n integer NOT NULL);
CREATE FUNCTION pay(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  t idempotence.idem_ticket := idem_begin('payments', k, payload => to_jsonb(k), wait => '2 s');
  n integer := random() * 1000000000;
BEGIN
  IF t.status = 'in_progress' THEN
    RAISE EXCEPTION 'in progress' USING ERRCODE = 'lock_not_available';
  ELSIF NOT t.replayed THEN
    INSERT INTO ledger VALUES (k, n);
    PERFORM pg_sleep(random() * 0.02), idem_record('payments', k, to_jsonb(n), failed => n % 10 = 0);
    RETURN n;
  END IF;
  RETURN t.response;
END $$;
CREATE FUNCTION note(k text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF idem_once('inbox', k) THEN
    INSERT INTO ledger VALUES (k, 0);
  END IF;
  RETURN 'noted';
END $$;
"""
COLUMNS = """key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, expires_at timestamptz,
  attempt integer, begun_at timestamptz, leased_until timestamptz, point text, state jsonb"""


class Clients:
    """What all clients share: the keys so far, what was answered, and where."""

    def __init__(self):
        self.keys, self.answers, self.places = 0, collections.defaultdict(set), collections.Counter()
        self.ended, self.failures, self.lock = threading.Event(), [], threading.Lock()

    def choose(self):
        """A new key, or one that somebody is just sending, or an old one."""
        with self.lock:
            self.keys += random.random() < 0.4
            number = self.keys - 1 - random.choice((0, 0, 1, 3, random.randrange(max(self.keys, 1))))
        return f"{'pm'[number % 2]}{max(number, 0)}" if number >= 0 else "p0"

    def work(self):
        psqls = {place: Psql(place) for place in (MANAGED, EXTENSION)}
        while not self.ended.is_set() and not self.failures:
            key, until = self.choose(), time.monotonic() + 60
            call = f"SELECT {'pay' if key[0] == 'p' else 'note'}('{key}');"
            while True:
                place = random.choice((MANAGED, EXTENSION))
                if (answer := psqls[place].ask(call)) is not None:
                    break
                if time.monotonic() > until:
                    self.failures.append(f"{key} has no answer after a minute")
                    return
            with self.lock:
                self.answers[key].add(answer)
                self.places[place] += 1


def move(source, target):
    """The three steps. Gives how many rows were imported, and how many were there already, of either session."""
    sql("SELECT idem_drop_session('payments'), idem_drop_session('inbox')", source)
    text = f"BEGIN; {SESSIONS} CREATE TEMP TABLE moved ({COLUMNS}) ON COMMIT DELETE ROWS;"
    for session in ("payments", "inbox"):
        rows = sql(f"COPY (SELECT * FROM idem_export('{session}', 'moves')) TO STDOUT", source)
        text += f"COPY moved FROM STDIN;\n{rows}\n\\.\n" if rows else ""
        text += f"SELECT imported, present FROM idem_import('{session}', 'TABLE moved', 'moves'); TRUNCATE moved;"
    return [tuple(map(int, line.split("|"))) for line in sql(text + "COMMIT;", target).split() if line[0].isdigit()]


def main():
    for name in (MANAGED, EXTENSION):
        sql(f"DROP DATABASE IF EXISTS {name}")
        sql(f"CREATE DATABASE {name}")
        sql(f"ALTER DATABASE {name} SET search_path = public, idempotence")
    for file in ("idempotence_managed.sql", "idempotence_moving.sql"):
        sql((SQL / file).read_text(), MANAGED)
    sql("CREATE SCHEMA idempotence; CREATE EXTENSION idempotence SCHEMA idempotence;", EXTENSION)
    for name in (MANAGED, EXTENSION):
        sql(SETUP, name)
    sql(SESSIONS, MANAGED)
    sql("SELECT idem_settle('payments', 'settled'), idem_begin('payments', 'run out', lease => '10 ms')", MANAGED)

    clients = Clients()
    threads = [threading.Thread(target=clients.work, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    kills = 0

    def serve(place, requests):
        """Waits until so many more were answered there, and kills a backend now and then."""
        nonlocal kills
        wanted = clients.places[place] + requests
        while clients.places[place] < wanted and not clients.failures:
            found = sql(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pay(%'"
                f" AND datname = '{place}' AND state = 'active' ORDER BY random() LIMIT 1) a"
            )
            kills += int(found)
            time.sleep(0.1)

    serve(MANAGED, 400)
    up = move(MANAGED, EXTENSION)
    serve(EXTENSION, 400)
    again = sql("SELECT status FROM idem_begin('payments', 'settled')", EXTENSION)
    assert again == "cancelled", f"a verdict came along as {again}"
    again = sql("SELECT status FROM idem_begin('payments', 'run out', lease => '10 ms')", EXTENSION)
    assert again == "taken_over", f"a lease came along as {again}"
    back = move(EXTENSION, MANAGED)
    serve(MANAGED, 400)
    clients.ended.set()
    for thread in threads:
        thread.join()

    assert not clients.failures, clients.failures
    effects = collections.Counter()
    for place in (MANAGED, EXTENSION):
        effects.update(sql("SELECT key FROM ledger", place).split())
        assert int(sql("SELECT count(*) FROM ledger", place)) > 20, f"{place} has executed next to nothing"
    doubled = [key for key, count in effects.items() if count > 1]
    lost = [key for key in clients.answers if key not in effects]
    contradicting = [key for key, answers in clients.answers.items() if len(answers) > 1]
    assert not doubled and not lost and not contradicting, f"doubled {doubled}, lost {lost}, contradicting {contradicting}"
    # What went up came back, and was there already.
    went, came, were_there = (sum(counts) for counts in (next(zip(*up)), next(zip(*back)), list(zip(*back))[1]))
    assert min(went, came, were_there) > 20, f"up {up}, back {back}"
    told = f"{len(effects)} keys, {sum(clients.places.values())} requests, {kills} kills, {went} rows up, {came} back"
    print(f"ok - up and back under load: {told}: 0 doubled, 0 lost")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        print(f"not ok - up and back under load: {error.stderr}")
        raise SystemExit(1) from None
