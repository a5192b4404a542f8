#!/usr/bin/env python3
"""kills.py KEYS KILLS: transfers of KEYS keys, while KILLS of those at work on them are killed; then the ledger tells what was done.

Each worker is a psql that calls pay(key, amount), which begins, works and records, and is asked again for the same key
until there is an answer. A kill ends a worker's backend (pg_terminate_backend), or the worker (SIGKILL), at a random moment.
Every second key is sent by two workers at once. Keys are added until all kills have hit. Connection and database come from the
environment, as libpq has it.
"""

import os
import queue
import random
import subprocess
import sys
import threading
import time

SETUP = """
DROP TABLE IF EXISTS ledger, account;
DROP FUNCTION IF EXISTS pay;
CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account VALUES (1, 0);
CREATE TABLE ledger (key text NOT NULL, amount bigint NOT NULL);
SELECT idem_create_session('SESSION', ttl => '1 day');
CREATE FUNCTION pay(key text, amount bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  t idempotence.idem_ticket := idem_begin('SESSION', key, payload => to_jsonb(amount), wait => '2 s');
BEGIN
  IF t.status = 'in_progress' THEN
    RAISE EXCEPTION 'in progress' USING ERRCODE = 'lock_not_available';
  ELSIF NOT t.replayed THEN
    INSERT INTO ledger VALUES (key, amount);
    PERFORM pg_sleep(random() * 0.05);
    t.response := to_jsonb(amount);
    PERFORM idem_record('SESSION', key, t.response);
  END IF;
  RETURN t.response;
END $$;
"""
WORKERS = 8


class Psql:
    """A psql that is started when it is asked, and anew when it, or its backend, was killed."""

    def __init__(self, database=None):
        self.command, self.process, self.backend = ["psql", "-XAtq", *([database] if database else [])], None, None

    def ask(self, statement):
        """The answer; None if there is none."""
        if self.process is None or self.process.poll() is not None or self.told("SELECT 1;") is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self.backend = self.told("SELECT pg_backend_pid();")
        return self.told(statement)

    def told(self, statement):
        try:
            self.process.stdin.write(f"{statement}\n\\echo end\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        lines = []
        while (line := self.process.stdout.readline()) != "end\n":
            if not line:
                return None
            lines.append(line.strip())
        return lines[0] if lines else None


class Worker(threading.Thread):
    def __init__(self, work, answers):
        super().__init__(daemon=True)
        self.work, self.answers, self.psql, self.failure = work, answers, Psql(), None

    def run(self):
        try:
            while request := self.work.get():
                key, amount = request
                until = time.monotonic() + 60
                while (answer := self.psql.ask(f"SELECT pay('{key}', {amount});")) is None:
                    assert time.monotonic() < until, f"{key} has no answer after a minute"
                self.answers[key].append(answer)
        except AssertionError as failure:
            self.failure = failure


def sql(statement, *database):
    command = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *database]
    return subprocess.run(command, input=statement, capture_output=True, text=True, check=True).stdout.strip()


def main():
    keys, kills = int(sys.argv[1]), int(sys.argv[2])
    sql(SETUP.replace("SESSION", f"kills {time.time()}"))
    work, answers = queue.Queue(), {}

    def send():
        n = len(answers)
        answers[f"k{n}"] = []
        for _ in range(1 + n % 2):
            work.put((f"k{n}", n + 1))

    for _ in range(keys):
        send()
    workers = [Worker(work, answers) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    # Past a pooler, which would have it kill itself.
    command = ["psql", "-XAtq", "-d", os.environ.get("MANAGED_KILLER", "dbname=postgres")]
    killer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    killed, dice = 0, random.Random(1)
    while killed < kills and not any(worker.failure for worker in workers):
        while work.qsize() < 2 * WORKERS:
            send()
        time.sleep(dice.uniform(0, 0.02) if work.qsize() < 5 * (kills - killed) + 100 else 0.02)
        worker = dice.choice(workers)
        backend, worker.psql.backend = worker.psql.backend, None  # until it is connected again
        if backend and worker.is_alive():
            if dice.random() < 0.5:
                killer.stdin.write(f"SELECT pg_terminate_backend({backend});\n")
                killer.stdin.flush()
            else:
                worker.psql.process.kill()
            killed += 1
    for _ in workers:
        work.put(None)
    for worker in workers:
        worker.join()
    keys = len(answers)
    failures = [worker.failure for worker in workers if worker.failure]
    assert not failures, failures
    wrong = {key: got for n, (key, got) in enumerate(answers.items()) if set(got) != {str(n + 1)} or len(got) != 1 + n % 2}
    assert not wrong, f"other answers than asked for: {wrong}"
    done = sql("SELECT count(*), count(DISTINCT key), sum(amount) FROM ledger")
    assert done == f"{keys}|{keys}|{keys * (keys + 1) // 2}", done
    open_rows = sql("SELECT count(*) FROM idempotence.kept WHERE class IN ('o', 'k')")
    assert open_rows == "0", open_rows
    print(f"ok - {keys} keys, {sum(map(len, answers.values()))} requests, {killed} kills: 0 doubled, 0 lost")


if __name__ == "__main__":
    main()
