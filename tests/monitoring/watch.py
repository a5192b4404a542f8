"""What can be seen of a running server by each way: exporters, Prometheus, alerts, the check for Nagios."""

import re
import time

from load import LINES
from stack import MONITORING, get, parse, series
from told import metrics, run, tell

DATABASE = "shop"


class Watch:
    def __init__(self, stack, load, programs):
        self.stack, self.load, self.programs = stack, load, programs
        self.seen = {}          # alerts that have fired, with their annotations
        self.early = {}         # alerts that were pending or fired in a healthy time
        self.began = time.time()

    def sql(self, query, *arguments):
        with self.load.connect("prometheus") as conn:
            return conn.execute(query, arguments or None).fetchall()

    # -- what the exporters say

    def routes(self):
        """The samples by each way that they can come."""
        yield "prometheus-postgres-exporter", lambda: parse(get(f"http://127.0.0.1:{self.postgres_port}/metrics"))[0]
        yield "prometheus-sql-exporter", lambda: parse(get(f"http://127.0.0.1:{self.sql_port}/metrics"))[0]
        for job in ("postgres", "sql"):
            yield f"Prometheus, job {job}", \
                lambda job=job: self.stack.query(f'{{__name__=~"idempotence_.*",job="{job}"}}')

    def compare(self, name, expected):
        """Every series that `expected` names is there by each way, with the driver's value. A value may be a range.

        It is asked for at each look, since autovacuum may have changed the size of a table.
        """
        for route, samples in self.routes():
            def differ(samples=samples):
                there = samples()
                return [f"{key[0]} {dict(key[1])}: {there.get(key)} and not {value}"
                        for key, value in expected().items() if not fits(there.get(key), value)]

            # An exporter asks once a second, and Prometheus two seconds later at most.
            deadline = time.monotonic() + 10
            while (wrong := differ()) and time.monotonic() < deadline:
                time.sleep(0.1)
            tell(f"{name}: {route}", wrong)

    def counters(self):
        expected = {}
        for line in LINES:
            labels = dict(zip(("session", "role", "kind"), line), datname=DATABASE)
            for metric, _, of in metrics():
                match = re.fullmatch(r"idempotence_(\w+)_total", metric)
                if not match or "session" not in of:
                    continue
                if match[1] == "wait_seconds":
                    waited = self.load.waited[line]
                    value = (waited * 0.8 - 0.1, waited)
                else:
                    value = self.load.expected[line][match[1]]
                expected[series(metric, labels)] = value
        return expected

    # -- alerts

    def look(self, healthy=False):
        for state in ("pending", "firing") if healthy else ("firing",):
            for alert in self.stack.alerts(state):
                (self.early if healthy else self.seen)[alert["labels"]["alertname"]] = alert

    def wait_for_alerts(self, names, seconds):
        deadline = time.monotonic() + seconds
        while set(names) - set(self.seen) and time.monotonic() < deadline:
            self.look()
            time.sleep(0.3)

    # -- the check for Nagios

    def nagios(self, service, *options):
        done = run(MONITORING / "check_idempotence", "-s", service, "-h", self.load.where["host"], "-U", "prometheus",
                   "-d", DATABASE, *options, env={"PATH": f"{self.programs}:/usr/bin:/bin"})
        return done.returncode, done.stdout.strip()

    def check_nagios(self, name, expected):
        """For each service: the exit code, and performance data that have to be there."""
        wrong = []
        for service, (code, *perf) in expected.items():
            got, line = self.nagios(*service.split(" "))
            word = ["OK", "WARNING", "CRITICAL", "UNKNOWN"][code]
            head = f"IDEMPOTENCE_{service.split(' ')[0].upper()} {word}: "
            data = line.partition(" | ")[2]
            if got != code or not line.startswith(head) or "\n" in line \
                    or any(not re.search(rf"(^| ){one}(;|$| )", data) for one in perf):
                wrong.append(f"{service}: {got}, {line}, and not {code} with {perf}")
        tell(name, wrong)


def fits(value, expected):
    if value is None:
        return False
    if isinstance(expected, tuple):
        return expected[0] <= value <= expected[1]
    return value == expected
