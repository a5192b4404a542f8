"""Measures what people would otherwise use beside the extension, and writes a section of docs/benchmarks/measured.md.

scripts/field.sh starts the server and calls this.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import sys
import time

import crashes
import kills
import plot
import rates
import report
from contenders import VARIANTS
from rates import Cell
from servers import Servers

PACKAGES = ["psycopg", "psycopg-pool", "redis", "aws-lambda-powertools", "dbos", "idemkit"]


def arguments():
    parser = argparse.ArgumentParser(prog="field.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a run of minutes: few rounds and few kills")
    parser.add_argument("--rounds", type=int, help="rounds, each of which measures all contenders once")
    parser.add_argument("--seconds", type=float, help="seconds for which each is measured in a round")
    parser.add_argument("--kills", type=int, help="kills for each contender")
    parser.add_argument("--contenders", default=",".join(VARIANTS), help="some of the contenders, separated by commas")
    parser.add_argument("--only", choices=["rates", "kills", "crashes"], help="one part, without a page")
    parser.add_argument("--resume", action="store_true", help="take what a run that was cut off has measured")
    parser.add_argument("--check", action="store_true", help="only the kills, and say which went as they should")
    parser.add_argument("--edition", type=pathlib.Path, help="the edition for managed services, in the extension's place")
    parser.add_argument("--section", type=pathlib.Path, required=True, help="the section to write")
    parser.add_argument("--picture", type=pathlib.Path, required=True, help="the picture to write")
    parser.add_argument("--page", type=pathlib.Path, help="the page that takes the section in (default: the section)")
    parser.add_argument("--results", type=pathlib.Path, required=True, help="the results to write, as JSON")
    parser.add_argument("--bindir", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.check:
        given.only = "kills"
    usual = {"rounds": 7, "seconds": 1.5, "kills": 2000}
    if given.quick or given.check:
        usual = {"rounds": 2, "seconds": 1.0, "kills": 40}
    for name, value in usual.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def say(text):
    print(f"field: {text}", file=sys.stderr, flush=True)


class Results(dict):
    """What was measured so far, in a file if there is one, so that a run that was cut off can go on."""

    def __init__(self, path, subject, resume):
        kept = json.loads(path.read_text()) if resume and path and path.exists() else {}
        # Only what was measured in the same way comes into one page.
        super().__init__(kept if subject.items() <= kept.items() else subject)
        self.path = path

    def keep(self, name, value):
        self[name] = value
        if self.path:
            self.path.write_text(json.dumps(self, indent=1) + "\n")


def main():
    given = arguments()
    variants = given.contenders.split(",")
    if unknown := [variant for variant in variants if variant not in VARIANTS]:
        sys.exit(f"there is no contender {unknown[0]}; there are {', '.join(VARIANTS)}")
    cells = [Cell(4, False), Cell(4, True)]
    if not given.quick:
        cells = [Cell(1, False), Cell(4, False), Cell(16, False), Cell(1, True), Cell(4, True)]
    # So that the Redis servers are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    edition = given.edition and given.edition.read_text()
    with Servers(given.bindir, given.data, given.directory, variants, edition) as servers:
        subject = {
            "quick": given.quick,
            "rounds": given.rounds,
            "seconds": given.seconds,
            "kills_each": given.kills,
            "variants": variants,
            "edition": str(given.edition),
            "versions": {
                "PostgreSQL": servers.postgres.version(),
                "Redis": servers.redis["default"].version(),
                "Python": platform.python_version(),
                **{package: importlib.metadata.version(package) for package in PACKAGES},
            },
        }
        results = Results(None if given.check else given.results, subject, given.resume)
        if given.only in (None, "rates") and "rates" not in results:
            results.keep("rates", rates.measure(servers, variants, cells, given.rounds, given.seconds, say))
        if given.only in (None, "kills"):
            killed = results.get("kills", {})
            for variant, result in kills.measure(servers, kills.of(variants), given.kills, killed, say):
                killed[variant] = result
                results.keep("kills", killed)
        if given.only in (None, "crashes") and "crashes" not in results:
            times, requests = (1, 40) if given.quick else (5, 200)
            results.keep("crashes", crashes.measure(servers, variants, times, requests, say))
    say(f"done in {time.monotonic() - began:.0f} s")
    if given.check:
        sys.exit(not kills.check(results["kills"]))
    if given.only is None:
        page = given.page or given.section
        given.picture.parent.mkdir(parents=True, exist_ok=True)
        given.section.write_text(report.section(results, os.path.relpath(given.picture, page.parent)))
        given.picture.write_text(plot.picture(results))


if __name__ == "__main__":
    main()
