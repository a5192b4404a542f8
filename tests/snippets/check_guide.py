"""Runs the worker of docs/guide.md while everything around it fails, and proves what the guide promises.

Usage: check_guide.py URI COMMAND...; the command is the worker's. A server of its own is made from the
programs of the one at URI, with the same libraries preloaded, so that it can crash. At each call to the
outside service and at each COMMIT, before it and after it: the worker is killed, or stopped for longer than
its lease; its connections are cut; the server crashes; the service dies, fails, loses its reply or hangs.
Other workers are at work on the same orders. The proof is in Scenario.prove. Besides: each Python block of
the guide stands in docs/snippets/charge_ship_notify.py, and each SQL block does what it says.
"""

import concurrent.futures
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import psycopg
from guide_parts import ROOT, Scenario, Server
from typed import run_sql, type_in
from wrong import tells_what_is_wrong

GUIDE = ROOT / "docs/guide.md"
SNIPPET = ROOT / "docs/snippets/charge_ship_notify.py"

WHEN = ["before", "after"]
CALLS = ["charge", "ship", "notify"]
# The claim; that the card was charged; that the parcel was shipped; the outcome.
COMMITS = [1, 2, 3, 4]
POINTS = list(itertools.product(CALLS + COMMITS, WHEN))

# How many at once, on a machine of two cores.
WIDTH = 14


def killed(scenario, what, when):
    """The worker is killed. What it had sent arrives, but for a COMMIT that was not on its way."""
    scenario.start("first", what, when)
    scenario.kill("first")
    scenario.go(lost=when == "before")
    scenario.start("second")
    scenario.wait_for("second")


def stopped(scenario, what, when):
    """The worker is stopped for longer than its lease, and goes on later."""
    scenario.start("first", what, when)
    scenario.stop("first")
    scenario.start("second")
    if what in COMMITS and when == "before":
        # Its transaction is open: nobody gets past that, lease or no lease.
        scenario.stays_unanswered("second")
    else:
        scenario.wait_for("second")
    # What it had sent arrives only now.
    scenario.go()
    scenario.resume("first")
    scenario.wait_for("first", "second")
    if what in CALLS:
        # If it was stopped for longer than its call may take, it has left before it could be refused.
        scenario.has_said("first", "ID005|left at timed out")


def cut(scenario, what, when):
    """The worker's connections to the database are cut."""
    scenario.start("first", what, when)
    scenario.cut("first")
    scenario.go()
    scenario.start("second")
    scenario.wait_for("first", "second")


def hung(scenario, what, when):
    """The service does not answer in time, but goes on later."""
    scenario.start("first", what, when)
    scenario.start("second")
    scenario.gives_up_waiting("first")
    scenario.go()
    scenario.wait_for("first", "second")


def refused(scenario, what, when):
    """The service answers with an error, though it may have done what it was told to."""
    scenario.service.fault(what, when, "error")
    scenario.start("first")
    scenario.start("second")
    scenario.wait_for("first", "second")


def unanswered(scenario, what, when):
    """The service closes the connection without an answer."""
    scenario.service.fault(what, when, "lose")
    scenario.start("first")
    scenario.start("second")
    scenario.wait_for("first", "second")


def died(scenario, what, when):
    """The service is killed, and started again."""
    scenario.service.fault(what, when, "die")
    scenario.start("first")
    scenario.service.restart_when_dead()
    scenario.start("second")
    scenario.wait_for("first", "second")


def unharmed(scenario, *_):
    """Two workers at once, and nothing fails."""
    scenario.start("first")
    scenario.start("second")
    scenario.wait_for("first", "second")
    scenario.attempts(1)


def slow(scenario, what, when):
    """A step takes far longer than the lease: the lease is extended, and nobody takes over."""
    scenario.start("first", what, when)
    scenario.start("second")
    scenario.stays_unanswered("second")
    scenario.go()
    scenario.wait_for("first", "second")
    scenario.attempts(1)


def declined(scenario, *_):
    """The card is declined. The worker is killed before it has recorded that."""
    scenario.start("first", 2, "before")
    scenario.kill("first")
    scenario.go(lost=True)
    scenario.start("second")
    scenario.wait_for("second")


def hopeless(scenario, what, when):
    """The service never answers one of the calls, until there were too many attempts."""
    scenario.lease_s = 0.2
    scenario.service.fault(what, when, "error", times=1000)
    scenario.start("first")
    scenario.wait_for("first")


def settled(scenario, what, when):
    """Somebody settles the order once the lease of the worker, which is stopped, has run out."""
    scenario.start("first", what, when)
    scenario.stop("first")
    scenario.settle(point="ship")
    scenario.go()
    scenario.resume("first")
    scenario.start("second")
    scenario.wait_for("first", "second")


ALONE = [
    *itertools.product([killed, stopped, cut], CALLS + COMMITS, WHEN),
    *itertools.product([hung, died, refused, unanswered], CALLS, WHEN),
    (unharmed, "nothing", "ever"),
    *((slow, what, "before") for what in CALLS),
    (declined, "charge", "final"),
    (hopeless, "ship", "before"),
    (settled, 2, "after"),
]

# What is allowed besides: all three done once, the order recorded once, as succeeded.
OTHERWISE = {
    # The message that the first worker had sent came late, and the service takes no key for it.
    (stopped, "notify", "before"): {"notify": 2},
    (declined, "charge", "final"): {"charge": 0, "ship": 0, "notify": 0, "decline": 1, "status": "failed"},
    (hopeless, "ship", "before"): {"ship": 0, "notify": 0, "status": "failed", "recorded": 0},
    (settled, 2, "after"): {"ship": 0, "notify": 0, "status": "cancelled", "recorded": 0},
}


class Check:
    def __init__(self, server, command, directory):
        self.server = server
        self.command = command
        self.directory = directory

    def scenario(self, kind, what, when):
        name = f"{kind.__name__}-{when}-{what}"
        amount = 2000 if kind is declined else 30
        return Scenario(self.server, self.command, self.directory, name, amount)

    def alone(self, case):
        """One scenario that harms nobody else."""
        with self.scenario(*case) as scenario:
            case[0](scenario, *case[1:])
            scenario.prove(**OTHERWISE.get(case, {}))

    def crash(self, persistence):
        """The server crashes, with a worker at each of the points."""

        def crashed(scenario, what, when):
            scenario.start("first", what, when)

        scenarios = [self.scenario(crashed, what, f"{persistence}-{when}") for what, when in POINTS]
        with concurrent.futures.ThreadPoolExecutor(WIDTH) as threads:
            list(threads.map(lambda scenario, point: crashed(scenario, *point), scenarios, POINTS))
            self.server.crash()

            def go_on(scenario, dies):
                if dies:
                    scenario.kill("first")
                scenario.go()
                scenario.start("second")
                scenario.wait_for("second", *([] if dies else ["first"]))
                scenario.prove()
                scenario.__exit__()

            list(threads.map(go_on, scenarios, itertools.cycle([True, False, False])))

    def run(self):
        """Raises SystemExit or AssertionError unless the guide is right. Gives the number of scenarios."""
        blocks = read_guide()
        with psycopg.connect(self.server.uri, autocommit=True) as conn:
            run_sql(conn, "\n".join(blocks))
        with concurrent.futures.ThreadPoolExecutor(WIDTH) as threads:
            list(threads.map(self.alone, ALONE))
        self.crash("logged")
        with psycopg.connect(self.server.uri, autocommit=True) as conn:
            type_in(conn, "SELECT idem_set_persistence('claims', 'unlogged')")
        self.crash("unlogged")
        line = shlex.join(self.command) + ' "$0" http://127.0.0.1:1 2 order'
        tells_what_is_wrong(["sh", "-c", line], self.server.uri)
        return len(ALONE) + 2 * len(POINTS)


def read_guide():
    """The SQL blocks. What is in Python must stand in the snippet."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    snippet = SNIPPET.read_text()
    for language, block in blocks:
        if language == "python":
            assert block in snippet, f"this is not in {SNIPPET.name}:\n{block}"
    return [block for language, block in blocks if language == "sql"]


def main():
    uri, *command = sys.argv[1:]
    os.environ["no_proxy"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with Server(uri) as server:
                count = Check(server, command, directory).run()
        except (AssertionError, SystemExit, psycopg.Error, subprocess.SubprocessError) as error:
            print(f"not ok snippet guide: {error}")
            sys.exit(1)
    print(f"ok snippet guide: {count} faults")


main()
