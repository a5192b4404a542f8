"""What check_guide.py plays with: a server that can crash, an outside service, and one order with its workers."""

import collections
import contextlib
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import psycopg
from commit_proxy import CommitProxy
from psycopg.conninfo import make_conninfo

DEADLINE_S = 100
ROOT = pathlib.Path(__file__).resolve().parents[2]

# Long enough that a busy machine does not let a lease run out by itself.
LEASE_S = 2

# What a server must never have written to its log.
NEVER = re.compile(rb"TRAP:|PANIC:|terminated by signal")


def until(happens, what):
    """Waits until this happens. Gives what it gave."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := happens():
            return found
        time.sleep(0.02)
    raise SystemExit(f"it never came to this: {what}")


class Server:
    """A server of the same programs as the one at `like`, which may crash."""

    def __init__(self, like):
        with psycopg.connect(like) as conn:
            (bindir,) = conn.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()
            (libraries,) = conn.execute("SHOW shared_preload_libraries").fetchone()
        self.variables = self.shell(
            'server_start "$1/pg_config" "fsync = off" "max_connections = 300" "shared_preload_libraries = \'$2\'"\n'
            "declare -p server_dir server_socket server_bin server_log",
            bindir,
            libraries,
        )
        self.socket = re.search('server_socket="(.*)"', self.variables)[1]
        self.uri = f"postgresql:///postgres?host={self.socket}&port=5432&user=postgres"

    def shell(self, commands, *arguments):
        """Runs commands with the functions that the scripts use for private servers."""
        sourced = ". scripts/common.sh\n. scripts/server.sh\n"
        done = subprocess.run(
            ["bash", "-euc", sourced + commands, "bash", *arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True,
        )
        return done.stdout

    def crash(self):
        """Ends the server without a checkpoint, and starts it again."""
        ctl = 'as_server_user "$server_bin/pg_ctl" -D "$server_dir/data" -l "$server_log" -w -t 60'
        self.shell(f"{self.variables}\n{ctl} -m immediate stop >/dev/null\n{ctl} start >/dev/null")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        log = self.shell(f'{self.variables}\nserver_stop\ncat "$server_log"\nserver_remove')
        bad = NEVER.search(log.encode())
        assert not bad, f"the server's log has {bad[0]}"


class Service:
    """The outside service, a process of its own."""

    def __init__(self, file):
        self.file = file
        self.process = None
        self.port = 0
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/snippets/outside_service.py"), str(self.file), str(self.port)],
            stdout=subprocess.PIPE, text=True,
        )
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def restart_when_dead(self):
        self.process.wait(DEADLINE_S)
        assert self.process.returncode == -signal.SIGKILL, "the service was not killed"
        self.start()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self, page, body=None):
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(f"{self.url}/{page}", data, timeout=DEADLINE_S) as reply:
            return json.load(reply)

    def fault(self, kind, when, what, times=1):
        self.ask("fault", {"kind": kind, "when": when, "what": what, "times": times})


class Scenario:
    """One order, a service of its own, and the workers that are given the order."""

    def __init__(self, server, command, directory, order, amount):
        self.server = server
        self.command = command
        self.order = order
        self.lease_s = LEASE_S
        self.home = pathlib.Path(directory) / order
        self.home.mkdir()
        self.service = Service(self.home / "service.db")
        self.proxy = CommitProxy(self.home, server.socket)
        self.workers = {}
        self.ended = set()
        self.sql("INSERT INTO purchase VALUES (%s, %s, '1 Main Street')", order, amount)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        self.proxy.shutdown()
        self.proxy.server_close()
        self.service.stop()

    def sql(self, statement, *values):
        with psycopg.connect(self.server.uri, autocommit=True) as conn:
            cursor = conn.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

    # What happens

    def start(self, name, what=None, when=None):
        """Starts a worker. With a point, returns when the worker has come to it."""
        if isinstance(what, int):
            self.proxy.hold(what, when)
        elif what:
            self.service.fault(what, when, "hold")
        # Only the first may be held.
        host = str(self.home) if name == "first" else self.server.socket
        uri = make_conninfo(self.server.uri, host=host, application_name=f"{self.order} {name}"[-63:])
        with open(self.home / f"{name}.out", "w") as out, open(self.home / f"{name}.err", "w") as err:
            self.workers[name] = subprocess.Popen(
                [*self.command, uri, self.service.url, str(self.lease_s), self.order], stdout=out, stderr=err
            )
        if what:
            held = (lambda: self.proxy.held) if isinstance(what, int) else (lambda: self.service.ask("held"))
            until(lambda: held() or self.has_ended(name), f"{self.order} is held")
            assert not self.has_ended(name), f"{self.order}: {name} ended before: {self.said(name)}"

    def go(self, lost=False):
        """What is held goes on. What is held on its way to the database may be lost instead."""
        self.proxy.go(lost)
        self.service.ask("go", {})

    def kill(self, name):
        self.workers[name].kill()
        self.workers[name].wait()
        self.ended.add(name)

    def stop(self, name):
        self.workers[name].send_signal(signal.SIGSTOP)

    def resume(self, name):
        self.workers[name].send_signal(signal.SIGCONT)

    def cut(self, name):
        """Cuts the connections that the worker has to the database."""
        which = "FROM pg_stat_activity WHERE application_name = %s"
        application = f"{self.order} {name}"[-63:]
        self.sql(f"SELECT pg_terminate_backend(pid) {which}", application)
        # The worker may come back at once if it is not held.
        (left,) = self.sql(f"SELECT pg_terminate_backend(pid, 10000) {which} LIMIT 1", application) or [(True,)]
        assert left, f"{self.order}: the connections do not end"

    def settle(self, point):
        """Settles the order. It was as far as that."""
        settle = "SELECT status, replayed, point FROM idem_settle('orders', %s, wait => '20 seconds')"
        (answer,) = self.sql(settle, self.order)
        assert answer == ("cancelled", False, point), f"{self.order}: settled as {answer}"

    # What is waited for

    def has_ended(self, name):
        return self.workers[name].poll() is not None

    def wait_for(self, *names):
        """The workers end, and end well."""
        for name in names:
            until(lambda: self.has_ended(name), f"{self.order}: {name} ends, which says {self.said(name)}")
            assert self.workers[name].returncode == 0, f"{self.order}: {name} says {self.said(name)}"

    def gives_up_waiting(self, name):
        until(lambda: "left at" in self.said(name), f"{self.order}: {name} waits no longer for the service")

    def stays_unanswered(self, name):
        """The worker has no answer, and is not at work, for twice as long as a lease lasts."""
        time.sleep(2 * LEASE_S)
        assert not self.has_ended(name), f"{self.order}: {name} had an answer"
        assert "attempt" not in self.said(name), f"{self.order}: {name} says {self.said(name)}"

    def said(self, name):
        return (self.home / f"{name}.err").read_text()

    def has_said(self, name, pattern):
        assert re.search(pattern, self.said(name)), f"{self.order}: {name} says {self.said(name)!r}, without {pattern}"

    # What is so at the end

    def attempts(self, highest):
        done = self.service.ask("done")
        assert {attempt for _, _, attempt in done} == {str(highest)}, f"{self.order}: {done}"

    def prove(self, charge=1, ship=1, notify=1, decline=0, status="succeeded", recorded=1, loosely=False):
        """Each effect happened as often as is said, and the order was recorded once, which all workers tell."""
        done = self.service.ask("done")
        found = collections.Counter(kind for kind, _, _ in done)
        wanted = {"charge": charge, "ship": ship, "notify": notify, "decline": decline}
        if loosely and found["notify"] in (1, 2):
            wanted["notify"] = found["notify"]
        assert found == collections.Counter(wanted), f"{self.order}: {done}, expected {wanted}"
        # No holder sends a second message, and only who was told that there were others sends one after them.
        told = collections.Counter(attempt for kind, _, attempt in done if kind == "notify")
        assert loosely or all(count == 1 for count in told.values()), f"{self.order}: {done}"

        outcomes = self.sql("SELECT status, response FROM idempotence.outcomes WHERE request = %s", self.order)
        assert [row[0] for row in outcomes] == [status], f"{self.order}: {outcomes}"
        response = outcomes[0][1]
        fulfilled = self.sql("SELECT response FROM fulfilment WHERE order_id = %s", self.order)
        assert fulfilled == [(response,)] * recorded, f"{self.order}: {fulfilled}"
        left = self.sql("SELECT * FROM idempotence.unfinished WHERE request = %s", self.order)
        assert left == [], f"{self.order}: {left}"
        for name in self.workers.keys() - self.ended:
            said = (self.home / f"{name}.out").read_text().split(maxsplit=3)
            assert said[:2] == [self.order, status], f"{self.order}: {name} says {said}"
            assert json.loads(said[3]) == response, f"{self.order}: {name} says {said}"
