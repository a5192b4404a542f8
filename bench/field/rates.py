"""How many requests a second each contender answers, and what a request costs, in interleaved rounds."""

import dataclasses
import time

import psycopg

from contenders import VARIANTS
from worker import Worker, count

WARM_UP_S = 0.7


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured: new requests or replays, and by how many clients."""

    clients: int
    replays: bool

    @property
    def title(self):
        return f"{'replays' if self.replays else 'new requests'}, {self.clients} client{'s'[: self.clients > 1]}"


def measure(servers, variants, cells, rounds, seconds, say):
    """The samples of each cell and variant, by round."""
    servers.make_database("schema.sql")
    samples = {cell: {variant: [] for variant in variants if serves(variant, cell)} for cell in cells}
    for cell in cells:
        for number in range(rounds):
            say(f"{cell.title}: round {number + 1} of {rounds}")
            # Each round begins with another variant.
            for turn in range(len(variants)):
                variant = variants[(number + turn) % len(variants)]
                if serves(variant, cell):
                    samples[cell][variant].append(run(servers, VARIANTS[variant], cell, seconds))
    check(servers)
    return [
        {"clients": cell.clients, "replays": cell.replays, "title": cell.title, "samples": samples[cell]}
        for cell in cells
    ]


def serves(variant, cell):
    """The work alone has no replays."""
    return not (cell.replays and VARIANTS[variant].contender.kept_in is None)


def run(servers, variant, cell, seconds):
    workers = [
        Worker(count, variant.id, servers.place(variant, f"client-{number}", lease_s=30, wait_s=10), cell.replays)
        for number in range(cell.clients)
    ]
    try:
        if not all(worker.is_ready(120) for worker in workers):
            raise RuntimeError(f"a client of {variant.id} does not get ready")
        start = time.monotonic() + WARM_UP_S
        for worker in workers:
            worker.send(start, start + seconds)
        time.sleep(max(0, start - time.monotonic()))
        before = servers.cpu_s(variant)
        time.sleep(max(0, start + seconds - time.monotonic()))
        after = servers.cpu_s(variant)
        counts = [worker.receive(60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    done = sum(answered for answered, _ in counts)
    server_s = sum(cpu - before.get(process, 0) for process, cpu in after.items())
    return {
        "rate": done / seconds,
        "server_us": server_s / done * 1e6,
        "client_us": sum(cpu for _, cpu in counts) / done * 1e6,
    }


def check(servers):
    """No request has taken effect twice: nobody was killed."""
    with psycopg.connect(servers.postgres.uri) as conn:
        lines, keys = conn.execute("SELECT count(*), count(DISTINCT request_key) FROM ledger").fetchone()
    if lines != keys or not lines:
        raise RuntimeError(f"{lines} lines in the ledger for {keys} keys")
