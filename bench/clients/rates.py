"""Requests a second through the adapters and their rivals, against the same route unprotected.

scripts/clients_rates.sh calls this. All applications run from the beginning to the end; one at a time is asked, by wrk.
In a round each is asked once for each cell, in an order that is new for each cell, and ratios are taken within a round.
After each measurement the rows are counted: a key has one effect, and what was answered has taken effect.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

import psycopg

from chaos import ROLE, prepare

HERE = pathlib.Path(__file__).parent
GUARDS = ["idempotence", "idemkit-postgres", "idemkit-redis", "asgi-idempotency-header"]
ROUTES = {
    "FastAPI, psycopg": ("fastapi", "psycopg-async", GUARDS),
    "FastAPI, asyncpg": ("fastapi", "asyncpg", GUARDS[:1]),
    "Django, psycopg": ("django", "django", GUARDS[:2]),
    "Express, pg": ("express", "pg", GUARDS[:1]),
    "Fastify, pg": ("fastify", "pg", GUARDS[:1]),
    "axum, tokio-postgres": ("axum", "tokio-postgres", GUARDS[:1]),
}
CELLS = [(connections, replays) for replays in (False, True) for connections in (1, 8)]
# The keys of replays, and more than anybody asks for.
KEPT, ALL = 50, 10**9


class Application:
    def __init__(self, route, guard, given):
        self.name, self.route, self.guard = f"{route}, {guard}", route, guard
        framework, driver, _ = ROUTES[route]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        uri = given.uri.replace("user=postgres", f"user={ROLE}")
        unprotected = ["unprotected"] * (guard == "unprotected")
        if framework == "axum":
            command = [given.axum, *(unprotected or [driver]), str(self.port), uri]
        elif driver == "pg":
            command = ["node", given.node, framework, driver, uri, str(self.port), *unprotected]
        else:
            command = [sys.executable, HERE / "served.py", framework, driver, guard, uri, str(self.port), given.redis]
        self.process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "NODE_ENV": "production"})
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.1)
        raise SystemExit(f"{self.name} does not start")

    def cpu_s(self):
        """The processor time of its processes so far."""
        ticks = 0
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:  # the session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def measure(conn, application, cell, seconds, prefix):
    connections, replays = cell
    before = application.cpu_s()
    wrk = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", HERE / "pay.lua"]
    wrk += [f"http://127.0.0.1:{application.port}", "--", prefix, str(KEPT if replays else ALL)]
    said = subprocess.run(wrk, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    requests, failed, took = int(said[0]), int(said[1]), float(said[2])
    busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state <> 'idle'"
    while conn.execute(busy, (ROLE,)).fetchone()[0]:
        time.sleep(0.01)
    cpu = application.cpu_s() - before
    effects, keys = conn.execute("SELECT count(*), count(DISTINCT key) FROM chaos_effect").fetchone()
    conn.execute("TRUNCATE chaos_effect")
    # wrk leaves what is under way at the end.
    right = effects <= KEPT if replays else requests <= effects <= requests + connections
    if failed or effects != keys or not right or not requests:
        raise SystemExit(
            f"{application.name}, {cell}: {requests} answers, {failed} failed; {effects} effects, {keys} keys"
        )
    return {"rate": requests / took, "app_us": cpu / requests * 1e6, "effects": effects}


def rounds(given, conn, applications):
    """Yields the number of each round, and the samples so far."""
    samples, run = {}, f"{int(time.time()):x}"
    for number in range(given.rounds + 1):
        print(f"clients: round {number} of {given.rounds}", file=sys.stderr, flush=True)
        # The first round warms up, and makes what is replayed.
        seconds = given.seconds if number else 1
        for cell in CELLS:
            connections, replays = cell
            for at in random.sample(range(len(applications)), len(applications)):
                application = applications[at]
                if replays and application.guard == "unprotected":
                    continue
                prefix = f"{run}-{at:02d}-replay" if replays else f"{run}-{at:02d}-{number:02d}-{connections}"
                sample = measure(conn, application, cell, seconds, prefix)
                while replays and not number and sample["effects"]:
                    sample = measure(conn, application, cell, seconds, prefix)
                if replays and sample["effects"]:
                    raise SystemExit(f"{application.name}: {sample['effects']} replays took effect")
                if number:
                    samples.setdefault(f"{application.route}|{application.guard}|{cell}", []).append(sample)
        if number:
            yield number, samples


def spread(values, decimals):
    values = list(values)
    return f"{statistics.median(values):.{decimals}f} [{min(values):.{decimals}f} … {max(values):.{decimals}f}]"


def table(samples, text, cells=CELLS, also=()):
    """A line for each guard of each route, and what `text` makes of its samples and of those unprotected."""
    titles = [f"{'replays' if r else 'new requests'}, {c} connection{'s'[: c > 1]}" for c, r in cells]
    lines = ["|  | " + " | ".join(titles) + " |", "|---" * (len(cells) + 1) + "|"]
    for route, (_, _, guards) in ROUTES.items():
        for guard in [*also, *guards]:
            found = [samples.get(f"{route}|{guard}|{cell}") for cell in cells]
            bare = [samples[f"{route}|unprotected|{(connections, False)}"] for connections, _ in cells]
            values = [text(mine, its) if mine else "" for mine, its in zip(found, bare, strict=True)]
            lines.append(f"| {route}: {guard} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def ratio(mine, bare):
    return spread((a["rate"] / b["rate"] for a, b in zip(mine, bare, strict=True)), 2)


def system(path, name):
    """A line of what the kernel tells."""
    lines = pathlib.Path("/proc", path).read_text().splitlines()
    return next(line for line in lines if line.startswith(name)).partition(":")[2].strip()


def page(given, conn, number, samples):
    server = conn.execute("SHOW server_version").fetchone()[0].split()[0]
    packages = re.findall(r"^([a-z-]+).*==(.*)$", (HERE / "requirements.in").read_text(), re.MULTILINE)
    versions = [
        f"PostgreSQL {server}",
        *given.versions,
        f"Python {platform.python_version()}",
        *map(" ".join, packages),
    ]
    memory = int(system("meminfo", "MemTotal").split()[0]) / 2**20
    kernel = ".".join(platform.release().split(".")[:2])
    machine = [system("cpuinfo", "model name"), f"{os.cpu_count()} logical cores", f"{memory:.0f} GB of memory"]
    text, all_of = (HERE / "page.md").read_text(), ["unprotected"]
    return text.format(
        machine=", ".join([*machine, f"Linux {kernel}"]),
        versions=", ".join(versions),
        rounds=number,
        seconds=given.seconds,
        kept=KEPT,
        new=table(samples, ratio, CELLS[:2]),
        replays=table(samples, ratio, CELLS[2:]),
        rates=table(samples, lambda mine, _: spread((each["rate"] for each in mine), 0), also=all_of),
        cpu=table(samples, lambda mine, _: spread((each["app_us"] for each in mine), 0), also=all_of),
    )


def main():
    parser = argparse.ArgumentParser(prog="clients_rates.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of which measures all once")
    parser.add_argument("--seconds", type=int, default=2, help="seconds for which each is measured in a round")
    parser.add_argument("--page", type=pathlib.Path, required=True, help="the page to write")
    parser.add_argument("--results", type=pathlib.Path, required=True, help="the results to write, as JSON")
    for name in ("uri", "axum", "node", "redis"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--versions", nargs="*", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    # So that the applications are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(given.uri)
    with psycopg.connect(given.uri, autocommit=True) as conn, contextlib.ExitStack() as stack:
        conn.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        its = given.uri.replace("user=postgres", f"user={ROLE}")
        subprocess.run([sys.executable, "-m", "idemkit.cli", "init-pg", its], check=True, stdout=subprocess.DEVNULL)
        applications = []
        for route, (_, _, guards) in ROUTES.items():
            for guard in ["unprotected", *guards]:
                applications.append(Application(route, guard, given))
                stack.callback(applications[-1].end)
        # After each round, so that of a run that is cut off the whole rounds are left.
        for number, samples in rounds(given, conn, applications):
            given.results.write_text(json.dumps(samples, indent=1) + "\n")
            given.page.write_text(page(given, conn, number, samples))


main()
