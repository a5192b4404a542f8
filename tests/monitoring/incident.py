"""An incident: a worker dies after it has called a bank, and people find out what happened, and mend it.

What they type and what they see stands in docs/operations.md, "An incident". The commands are read from there, run with
the roles that the page names, and their output is held against the page's. The worker, the bank, the exporter and
Prometheus are processes of their own. The worker is killed, and once the bank with it.
"""

import contextlib
import difflib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import time
import urllib.parse

import psycopg
from stack import ROOT, RULES, Stack, get, short_rules, until
from told import run, tell

sys.path.insert(0, str(ROOT / "tests/snippets"))
from guide_parts import Service  # noqa: E402, once its directory is known

DATABASE = "till"
ALERT = "IdempotenceLeaseRunOut"
PAGE = ROOT / "docs/operations.md"
# So many steps of the page are taken before anybody asks the bank.
LOOKS = 5
# The effect of the first had happened, that of the second had not.
CHARGED, UNCHARGED = "order-17", "order-18"

SET_UP = f"""
CREATE EXTENSION idempotence;
CREATE ROLE cashier LOGIN;
CREATE ROLE oncall LOGIN;
CREATE ROLE dba LOGIN;
SELECT idem_grant('cashier'), idem_grant('oncall', 'monitor'), idem_grant('dba', 'admin');
SELECT idem_create_session('charges', ttl => '30 days', owner => 'cashier');
CREATE TABLE purchase (id text PRIMARY KEY, amount int NOT NULL, asked_bank_at timestamptz, charge text);
INSERT INTO purchase VALUES ('{CHARGED}', 30), ('{UNCHARGED}', 50);
GRANT SELECT, UPDATE ON purchase TO cashier, dba;
ALTER ROLE cashier SET log_statement = 'mod';
"""
LOG = ["log_disconnections = on", "log_line_prefix = '%m [%p] %q%u/%a '", "log_timezone = 'UTC'"]

# What is different in each run, or from version to version.
VARIES = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( UTC|[+-]\d\d(:\d\d)?)?", "<time>"),
    (r"\[\d+\]", "[<pid>]"),
    (r"DETAIL:  Parameters:", "DETAIL:  parameters:"),
    (r"\d+:\d\d:\d\d\.\d+", "<duration>"),
    (r"ran out [\w. ]+ ago", "ran out <duration> ago"),
    (r"-{2,}", "-"),
    (r"[ \t]+", " "),
]


def steps():
    """The commands of the page in their order, each with what comes out of it. The alert comes without a command."""
    page = PAGE.read_text(encoding="utf-8")
    section = re.search(r"^### An incident\n(.*?)^##", page, re.M | re.S)[1]
    found = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.M | re.S):
        if language or not found:
            found.append([text if language else "", ""])
        if not language:
            found[-1][1] += text
    return found


def same(text):
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


class Incident:
    """The till, its bank, and who works there."""

    def __init__(self, host, superuser, programs, log, stack):
        self.host, self.superuser, self.log, self.stack = host, superuser, log, stack
        self.environment = {"PATH": f"{programs}:/usr/bin:/bin", "PGHOST": host, "PGTZ": "UTC", "PSQLRC": "/dev/null"}
        self.bank = Service(stack.dir / "bank.db")
        self.fired = set()
        self.pid = 0

    def set_up(self):
        with self.connect(self.superuser, "postgres", autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE {DATABASE}")
            for setting in LOG:
                conn.execute(f"ALTER SYSTEM SET {setting}")
            conn.execute("SELECT pg_reload_conf()")
        with self.connect(self.superuser) as conn:
            conn.execute(SET_UP)

    def connect(self, role, database=DATABASE, **options):
        return psycopg.connect(host=self.host, dbname=database, user=role, **options)

    def value(self, query, role="dba"):
        with self.connect(role) as conn:
            return conn.execute(query).fetchone()[0]

    # -- what happens

    def worker(self, order):
        program = pathlib.Path(__file__).with_name("pay.py")
        return subprocess.Popen([sys.executable, program, self.host, DATABASE, self.bank.url, order],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def retry(self, order):
        """The customer asks again, and gets this answer."""
        return self.worker(order).communicate(timeout=60)[0]

    def dies(self, order, when):
        """The worker is killed while it waits for the bank, which has charged the card or never does."""
        self.bank.fault("charge", when, "hold")
        worker = self.worker(order)
        until("the bank is asked", lambda: self.bank.ask("held") == 1)
        worker.kill()
        worker.wait()
        if when == "before":
            # The call is lost with the bank's own process.
            self.bank.stop()
            self.bank.start()
        else:
            self.bank.ask("go", {})

    def firing(self):
        alerts = self.stack.alerts()
        self.fired |= {alert["labels"]["alertname"] for alert in alerts}
        return [alert for alert in alerts if alert["labels"]["alertname"] == ALERT]

    def alert(self):
        """What whoever is on call gets."""
        try:
            alert, = until(f"{ALERT} fires", self.firing, 60)
        except TimeoutError as late:
            return f"{late}\n"
        labels, annotations = alert["labels"], alert["annotations"]
        return f"[{labels['severity']}] {labels['alertname']}\n{annotations['description']}\n"

    # -- what people type

    def out(self, command):
        """What comes out of a command of the page. A first line of SQL says who types it."""
        if not command:
            return self.alert()
        role = re.match(r"-- as (\w+)", command)
        if role:
            done = run("psql", "-U", role[1], "-d", DATABASE, input=command.partition("\n")[2], env=self.environment)
            return done.stdout + done.stderr
        program, *arguments = shlex.split(command)
        if program == "curl":
            page = urllib.parse.urlsplit(arguments[-1])
            return get(f"{self.bank.url}{page.path}?{page.query}") + "\n"
        if program == "pay":
            return self.retry(*arguments)
        # The page's 4242 is the worker's process, which the log has named before.
        command = re.sub(r"/var/log/\S+", self.log, command).replace("[4242]", f"[{self.pid}]")
        done = run("bash", "-c", command, env=self.environment)
        if named := re.search(r"\[(\d+)\]", done.stdout):
            self.pid = named[1]
        return done.stdout + done.stderr

    def follow(self, what, part, was=None, now=None):
        """Does what the page says, perhaps for another order, and sees what the page says."""
        wrong = []
        for command, page in part:
            if was:
                command, page = command.replace(was, now), page.replace(was, now)
            came = self.out(command)
            if same(page) != same(came):
                differ = difflib.unified_diff(same(page), same(came), "the page", "what came", lineterm="", n=0)
                wrong += [*command.splitlines(), *differ, *came.splitlines()]
        tell(f"incident: {what}", wrong)

    # -- what has to be true

    def holds(self, what, *pairs):
        tell(f"incident: {what}", [f"{found!r} and not {wanted!r}" for found, wanted in pairs if found != wanted])

    def begin_answers(self, order):
        return self.value(f"SELECT idem_explain('charges', '{order}') #>> '{{begin_answers,status}}'")

    def charges(self, order):
        return len(json.loads(get(f"{self.bank.url}/charges?order={order}")))

    def nothing_is_done_meanwhile(self, order, charges):
        """A customer who asks too early does no harm, and who is on call repairs nothing."""
        self.holds(f"{order}: before somebody has decided, nothing is done again",
                   (self.retry(order), f"{order}: unclear: the bank may have been asked\n"),
                   (self.begin_answers(order), "taken_over"), (self.charges(order), charges))
        refused = ""
        try:
            self.value(f"SELECT idem_force_release('charges', '{order}', 'I am on call')", "oncall")
        except psycopg.Error as error:
            refused = error.sqlstate
        self.holds(f"{order}: who is on call looks and does not repair", (refused, "42501"))

    def settled(self, order):
        with contextlib.suppress(TimeoutError):
            until(f"{ALERT} is quiet", lambda: not self.firing(), 30)
        self.holds(f"{order}: the alert goes away, the card was charged once, and the till knows",
                   (self.firing(), []), (self.charges(order), 1), (self.begin_answers(order), "succeeded"),
                   (self.value("SELECT count(*) FROM idempotence.unfinished"), 0),
                   (self.value(f"SELECT charge FROM purchase WHERE id = '{order}'"),
                    json.loads(get(f"{self.bank.url}/charges?order={order}"))[0]["charge"]))


def incident(host, superuser, programs, log):
    began = time.monotonic()
    page = steps()
    # Where the second story begins on the page: until then it is as the first.
    looks, second = page[:LOOKS], [UNCHARGED in command for command, _ in page].index(True)
    with Stack(host, DATABASE, role="oncall") as stack:
        it = Incident(host, superuser, programs, log, stack)
        try:
            it.set_up()
            stack.start_prometheus(short_rules(RULES.read_text(encoding="utf-8")), stack.start_postgres_exporter())
            until("Prometheus knows the till", lambda: stack.query("idempotence_health_level"))
            until("no alert fires", lambda: not stack.alerts())
            it.dies(CHARGED, "after")
            it.follow(f"{CHARGED}: the alert fires, and the request is found", looks)
            it.nothing_is_done_meanwhile(CHARGED, 1)
            it.follow(f"{CHARGED}: it was charged; the customer gets the answer", page[LOOKS:second])
            it.settled(CHARGED)

            it.dies(UNCHARGED, "before")
            it.follow(f"{UNCHARGED}: the alert fires, and the request is found", looks, CHARGED, UNCHARGED)
            it.nothing_is_done_meanwhile(UNCHARGED, 0)
            it.follow(f"{UNCHARGED}: it was not charged; the customer's retry does it", page[second:])
            it.settled(UNCHARGED)
            it.holds("no other alert has fired", (it.fired, {ALERT}))
            with it.connect(superuser) as conn:
                query = "SELECT rolname, rolsuper FROM pg_roles WHERE rolname IN ('dba', 'oncall') ORDER BY rolname"
                found = conn.execute(query).fetchall()
            it.holds("nobody was a superuser", (found, [("dba", False), ("oncall", False)]))
        finally:
            it.bank.stop()
    print(f"# the incident took {time.monotonic() - began:.0f} s")
