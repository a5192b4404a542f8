"""Latency and throughput of the adapters and their rivals over HTTP, against the same route unprotected.

scripts/clients_rates.sh calls this. The database (and Redis) stand behind clients/roundtrips/delay.sh, so that the
application is as far from them as on another host. One framework is measured after the other:

* Latency: one client per variant, which sends one request at a time; the variants take turns request by request, so
  that whatever else the machine does meets all of them.
* Throughput: wrk with 8 connections; the variants take turns in blocks, in an order that is new in each round.

A variant is a route of an application (unprotected, protected, or unprotected behind a rival's middleware) with new
keys or with one key that is replayed. Ratios are taken within a round. After each block the rows are counted: a key has
one effect, and what was answered has taken effect.
"""

import argparse
import contextlib
import dataclasses
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
import urllib.request

import psycopg

from chaos import ROLE, prepare

HERE = pathlib.Path(__file__).resolve().parent
ROUND_TRIPS = HERE.parents[1] / "clients" / "roundtrips"
OURS, BARE = "idempotence", "unprotected"
IN_PYTHON = ["idemkit-postgres", "idemkit-redis", "asgi-idempotency-header"]
# Framework and driver as the tables name them, the program with its arguments, and the rivals of that framework.
ROUTES = {
    "FastAPI, psycopg": ("python", ["fastapi", "psycopg"], IN_PYTHON),
    "FastAPI, asyncpg": ("python", ["fastapi", "asyncpg"], []),
    "FastAPI, SQLAlchemy, psycopg": ("python", ["fastapi", "sqlalchemy-psycopg"], []),
    "FastAPI, SQLAlchemy, asyncpg": ("python", ["fastapi", "sqlalchemy-asyncpg"], []),
    "Django, psycopg": ("python", ["django", "psycopg"], IN_PYTHON[:1]),
    "Express, pg": ("node", ["express", "pg"], []),
    "Fastify, pg": ("node", ["fastify", "pg"], []),
    "Fastify, postgres.js": ("node", ["fastify", "postgres"], []),
    "axum, tokio-postgres": ("rust", ["tokio-postgres"], []),
    "axum, sqlx": ("rust", ["sqlx"], []),
    "net/http, pgx": ("go", [], []),
    "HttpServer, JDBC": ("java", [], []),
}
CONNECTIONS = 8
WARM_REQUESTS = 60
GOALS = {"latency": 1.15, "throughput": 0.85}


@dataclasses.dataclass(frozen=True)
class Variant:
    guard: str
    replay: bool

    @property
    def path(self):
        return "/protected" if self.guard == OURS else "/unprotected"


class Proxy:
    """One of the proxies of clients/roundtrips."""

    def __init__(self, program, upstream, *arguments):
        command = [ROUND_TRIPS / program, "--listen", "0", "--upstream", upstream, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = json.loads(self.process.stdout.readline())
        self.address, self.control = f"127.0.0.1:{ready['port']}", ready.get("control")

    def call(self, method, path):
        with urllib.request.urlopen(urllib.request.Request(self.control + path, method=method)) as answer:
            return json.load(answer)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Application:
    """A process that serves the unprotected route, and the protected one where the guard is ours."""

    def __init__(self, route, guard, database, redis, programs):
        self.route, self.guard = route, guard
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        kind, arguments, _ = ROUTES[route]
        uri, port = f"postgresql://{ROLE}@{database}/postgres", str(self.port)
        command = {
            "python": [sys.executable, HERE / "served.py", *arguments, guard, uri, port, f"redis://{redis}"],
            "node": ["node", programs.get("node"), *arguments, uri, port],
            "rust": [programs.get("rust"), *arguments, uri, port],
            "go": [programs.get("go"), uri, port],
            # pgjdbc prepares on the server at the fifth execution.
            "java": [
                "java",
                "-cp",
                programs.get("java"),
                "Served",
                f"jdbc:postgresql://{database}/postgres?user={ROLE}",
                port,
            ],
        }[kind]
        self.process = subprocess.Popen(command, start_new_session=True, env={**os.environ, "NODE_ENV": "production"})
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{route}, {guard} does not start")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Client:
    """One connection that is kept alive. It adds little to what it measures: it does not parse more than the length."""

    def __init__(self, port, path):
        self.port, self.path, self.socket = port, path, None

    def send(self, key):
        """Sends one request and returns the seconds until its answer was there."""
        body = b'{"key":"%s"}' % key.encode()
        request = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f'Idempotency-Key: "{key}"\r\nContent-Length: {len(body)}\r\n\r\n'
        ).encode() + body
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), 10)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        self.socket.sendall(request)
        head, _, body = self.until(b"", b"\r\n\r\n").partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            self.until(body, b"0\r\n\r\n")
        else:
            length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
            while len(body) < length:
                body += self.socket.recv(65536)
        took = time.perf_counter() - began
        if head[9:12] != b"201":
            raise SystemExit(f"{self.path}: {head!r} {body!r}")
        if b"connection: close" in head.lower():
            self.close()
        return took

    def until(self, data, end):
        while end not in data:
            part = self.socket.recv(65536)
            if not part:
                raise SystemExit(f"{self.path}: the connection was closed after {data!r}")
            data += part
        return data

    def close(self):
        if self.socket:
            self.socket.close()
            self.socket = None


class Keys:
    """New keys, and those that a variant replays."""

    def __init__(self):
        self.run, self.number, self.replayed = f"{time.time_ns():x}", 0, {}

    def new(self):
        self.number += 1
        return f"{self.run}-{self.number}"

    def of(self, variant):
        return self.replayed.setdefault((variant.guard, variant.path), self.new()) if variant.replay else self.new()


def variants_of(route):
    for guard in [BARE, OURS, *ROUTES[route][2]]:
        yield Variant(guard, False)
        if guard != BARE:
            yield Variant(guard, True)


def latencies(applications, variants, keys, requests):
    """The latency of each variant: its median and its 10th percentile, in ms."""
    clients = {variant: Client(applications[variant].port, variant.path) for variant in variants}
    took = {variant: [] for variant in variants}
    for number in range(-10, requests):
        for variant in random.sample(variants, len(variants)):
            seconds = clients[variant].send(keys.of(variant))
            if number >= 0:
                took[variant].append(seconds * 1000)
    for client in clients.values():
        client.close()
    return {
        variant: {"median": statistics.median(each), "p10": statistics.quantiles(each, n=10)[0]}
        for variant, each in took.items()
    }


def throughput(conn, application, variant, keys, seconds):
    """Requests a second with 8 connections."""
    prefix, different = (keys.of(variant), 1) if variant.replay else (keys.new(), 10**9)
    prefix = f"{prefix}-w"
    if variant.replay:
        # The first request of all executes, and is not measured.
        Client(application.port, variant.path).send(f"{prefix}-{0:010d}")
    wrk = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", HERE / "pay.lua"]
    wrk += [f"http://127.0.0.1:{application.port}", "--", variant.path, prefix, str(different)]
    said = subprocess.run(wrk, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    requests, failed, took = int(said[0]), int(said[1]), float(said[2])
    # What was under way when wrk ended comes to its end before the next variant is measured. The wait has an end: a
    # route may leave a transaction open when its client disconnects, as sqlx does if it is sending BEGIN.
    busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state <> 'idle'"
    last = time.monotonic() + 3
    while conn.execute(busy, (ROLE,)).fetchone()[0] and time.monotonic() < last:
        time.sleep(0.01)
    counts = "SELECT count(*), count(DISTINCT key) FROM chaos_effect WHERE starts_with(key, %s)"
    effects, different = conn.execute(counts, (f"{prefix}-",)).fetchone()
    right = effects <= 1 if variant.replay else requests <= effects <= requests + CONNECTIONS
    if failed or effects != different or not right or not requests:
        raise SystemExit(
            f"{application.route}, {variant}: {requests} answers, {failed} failed; {effects} effects,"
            f" {effects - different} doubled"
        )
    return requests / took


def round_trips(route, given):
    """How many round trips to PostgreSQL a request of each variant takes."""
    counted = {}
    for guard in [OURS, *ROUTES[route][2]]:
        with contextlib.ExitStack() as stack:
            proxy = Proxy("count.py", given.server, "--settle", "20")
            stack.callback(proxy.close)
            application = Application(route, guard, proxy.address, given.redis_direct, given.programs)
            stack.callback(application.close)
            keys = Keys()
            for variant in variants_of(route):
                if guard not in (variant.guard, OURS if variant.guard == BARE else None):
                    continue
                client = Client(application.port, variant.path)
                key = keys.of(variant)
                # Pools connect, and drivers prepare statements after some executions.
                for _ in range(12):
                    client.send(key if variant.replay else keys.new())
                proxy.call("POST", "/reset")
                client.send(key if variant.replay else keys.new())
                counted[variant] = proxy.call("GET", "/trips")["round_trips"]
                client.close()
    return counted


def measure(route, given, conn):
    """The rounds of one route: for each variant the latencies and rates, and its round trips."""
    variants = list(variants_of(route))
    counted = round_trips(route, given)
    rounds = []
    with contextlib.ExitStack() as stack:
        by_guard = {}
        for guard in [OURS, *ROUTES[route][2]]:
            by_guard[guard] = Application(route, guard, given.database, given.redis, given.programs)
            stack.callback(by_guard[guard].close)
        applications = {variant: by_guard.get(variant.guard, by_guard[OURS]) for variant in variants}
        keys = Keys()
        latencies(applications, variants, keys, WARM_REQUESTS)
        for number in range(given.rounds):
            for variant in random.sample(variants, len(variants)) if number == 0 else []:
                throughput(conn, applications[variant], variant, keys, 1)
            taken = latencies(applications, variants, keys, given.requests)
            for variant in random.sample(variants, len(variants)):
                taken[variant]["rate"] = throughput(conn, applications[variant], variant, keys, given.seconds)
            rounds.append(taken)
            conn.execute("TRUNCATE chaos_effect")
    return {
        f"{variant.guard}{' replay' if variant.replay else ''}": {
            "round_trips": counted[variant],
            **{name: [taken[variant][name] for taken in rounds] for name in ("median", "p10", "rate")},
        }
        for variant in variants
    }


def spread(values, decimals=2):
    values = list(values)
    return f"{statistics.median(values):.{decimals}f} [{min(values):.{decimals}f} … {max(values):.{decimals}f}]"


def against(samples, name, variant):
    """Ratios to the unprotected route in the same rounds."""
    return [mine / bare for mine, bare in zip(samples[variant][name], samples[BARE][name], strict=True)]


def table(results, replay):
    """A line for each guard of each route: round trips, and what it takes beside the unprotected route."""
    columns = ["latency, median", "latency, 10th percentile", "throughput, 8 connections"]
    columns = [*(["round trips"] if replay else ["round trips, unprotected", "protected"]), *columns]
    lines = ["|  | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for route, samples in results.items():
        for guard in [OURS, *ROUTES[route][2]]:
            variant = f"{guard} replay" if replay else guard
            cells = [str(samples[variant]["round_trips"])]
            if not replay:
                cells.insert(0, str(samples[BARE]["round_trips"]))
            cells += [spread(against(samples, name, variant)) for name in ("median", "p10", "rate")]
            lines.append(f"| {route}: {guard} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def absolute(results):
    lines = [
        "|  | latency, median, ms | latency, 10th percentile, ms | requests/s, 8 connections |",
        "|---|---|---|---|",
    ]
    for route, samples in results.items():
        for variant, sample in samples.items():
            cells = [spread(sample["median"]), spread(sample["p10"]), spread(sample["rate"], 0)]
            lines.append(f"| {route}: {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def missed(results):
    """The adapters that miss a goal, and by how much."""
    lines = []
    for route, samples in results.items():
        latency = min(statistics.median(against(samples, name, OURS)) for name in ("median", "p10"))
        rate = statistics.median(against(samples, "rate", OURS))
        if latency > GOALS["latency"] or rate < GOALS["throughput"]:
            lines.append(f"* {route}: latency {latency:.2f}, throughput {rate:.2f}")
    return "\n".join(lines) or "None."


def system(path, name):
    """A line of what the kernel reports."""
    lines = pathlib.Path("/proc", path).read_text().splitlines()
    return next(line for line in lines if line.startswith(name)).partition(":")[2].strip()


def page(given, conn, results):
    server = conn.execute("SHOW server_version").fetchone()[0].split()[0]
    packages = re.findall(r"^([a-z-]+).*==(.*)$", (HERE / "requirements.in").read_text(), re.MULTILINE)
    memory = int(system("meminfo", "MemTotal").split()[0]) / 2**20
    kernel = ".".join(platform.release().split(".")[:2])
    machine = [system("cpuinfo", "model name"), f"{os.cpu_count()} logical cores", f"{memory:.0f} GB of memory"]
    versions = [
        f"PostgreSQL {server}",
        *given.versions,
        f"Python {platform.python_version()}",
        *map(" ".join, packages),
    ]
    return (
        (HERE / "page.md")
        .read_text()
        .format(
            machine=", ".join([*machine, f"Linux {kernel}"]),
            versions=", ".join(versions),
            rounds=given.rounds,
            seconds=given.seconds,
            requests=given.requests,
            delay_ms=given.delay_us / 1000,
            new=table(results, False),
            replays=table(results, True),
            absolute=absolute(results),
            missed=missed(results),
        )
    )


def in_page(path, text):
    """Puts the table between the two comments of a page that name this script."""
    begin, end = "<!-- scripts/clients_rates.sh writes this table -->\n", "<!-- end of that table -->"
    before, _, rest = path.read_text().partition(begin)
    if rest:
        path.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")


def main():
    parser = argparse.ArgumentParser(prog="clients_rates.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--delay-us", type=int, default=500, help="one-way delay to the database, in microseconds")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each route")
    parser.add_argument("--requests", type=int, default=200, help="requests of each variant in a round, for latency")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each variant in a round, for throughput")
    parser.add_argument("--routes", default="", help="measure only routes whose names match this regular expression")
    parser.add_argument("--page", type=pathlib.Path, required=True, help="the page to write")
    parser.add_argument("--summary", type=pathlib.Path, help="another page that has the table of new requests")
    parser.add_argument("--results", type=pathlib.Path, required=True, help="the results to write, as JSON")
    for name in ("uri", "server", "redis-socket"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--programs", type=json.loads, default={}, help=argparse.SUPPRESS)
    parser.add_argument("--versions", nargs="*", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    # So that the applications are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare(given.uri)
    results = {}
    with psycopg.connect(given.uri, autocommit=True) as conn, contextlib.ExitStack() as stack:
        conn.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        its = given.uri.replace("user=postgres", f"user={ROLE}")
        subprocess.run([sys.executable, "-m", "idemkit.cli", "init-pg", its], check=True, stdout=subprocess.DEVNULL)
        for name, upstream in (("database", given.server), ("redis", given.redis_socket)):
            proxy = Proxy("delay.sh", upstream, "--delay-us", str(given.delay_us))
            stack.callback(proxy.close)
            setattr(given, name, proxy.address)
        direct = Proxy("delay.sh", given.redis_socket, "--delay-us", "0")
        stack.callback(direct.close)
        given.redis_direct = direct.address
        for route in ROUTES:
            if not re.search(given.routes, route):
                continue
            print(f"clients: {route}", file=sys.stderr, flush=True)
            results[route] = measure(route, given, conn)
            # After each route, so that of a run that is cut off the whole routes are left.
            given.results.write_text(json.dumps(results, indent=1) + "\n")
            given.page.write_text(page(given, conn, results))
            if given.summary and results.keys() == ROUTES.keys():
                in_page(given.summary, table(results, False))


main()
