"""The servers of a run: the PostgreSQL that field.sh has started, and two Redis servers of our own."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import time

import psycopg
import redis

from contenders import ALWAYS, DEFAULT, VARIANTS

# None of these is a change to what is measured: Redis listens on a Unix socket only, and keeps its files with us.
REDIS = ["--port", "0", "--daemonize", "no", "--loglevel", "warning", "--logfile", "redis.log"]
# The default is that of redis-server without a configuration file: snapshots, after 60 s at the earliest.
PERSISTENCE = {DEFAULT: [], ALWAYS: ["--appendonly", "yes", "--appendfsync", "always"]}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a contender works, and for how long it may."""

    postgres: str
    redis: str | None
    # After this time somebody else may execute the request.
    lease_s: float
    # How long a contender that waits for the holder of a request does so before it says InProgress.
    wait_s: float
    # Which of the workers this is. One that replaces a killed one has the same name.
    executor: str


class Postgres:
    """The private server, of which only its crash and its restart are ours."""

    def __init__(self, program_directory, data, edition):
        self.pg_ctl, self.data, self.edition = os.path.join(program_directory, "pg_ctl"), data, edition
        host, user = os.environ["PGHOST"], os.environ["PGUSER"]
        self.uri = f"postgresql://{user}@/field?host={host}&port={os.environ['PGPORT']}"
        self.any_database = f"postgresql://{user}@/postgres?host={host}&port={os.environ['PGPORT']}"

    def make_database(self, *scripts):
        with psycopg.connect(self.any_database, autocommit=True) as conn:
            conn.execute("DROP DATABASE IF EXISTS field WITH (FORCE)")
            conn.execute("CREATE DATABASE field")
            if self.edition:
                conn.execute("ALTER DATABASE field SET search_path = public, idempotence")
        with psycopg.connect(self.uri, autocommit=True) as conn:
            for script in scripts:
                sql = (pathlib.Path(__file__).parent / script).read_text()
                conn.execute(sql.replace("CREATE EXTENSION idempotence;", self.edition) if self.edition else sql)

    def version(self):
        with psycopg.connect(self.any_database) as conn:
            return conn.execute("SHOW server_version").fetchone()[0].split()[0]

    def crash(self):
        """Ends without a checkpoint and starts again: it goes on with what is in its log."""
        self.run("-m", "immediate", "-w", "stop")
        self.run("-w", "-t", "60", "-l", os.path.join(os.path.dirname(self.data), "log"), "start")

    def run(self, *arguments):
        as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*as_user, self.pg_ctl, "-D", self.data, *arguments]
        # Not to a pipe: the server would keep it open.
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def processes(self):
        """The processes of the server."""
        postmaster = int(pathlib.Path(self.data, "postmaster.pid").read_text().split()[0])
        return [postmaster, *children(postmaster)]


class Redis:
    """A Redis server with one of the two kinds of persistence."""

    def __init__(self, persistence, directory):
        self.persistence, self.directory = persistence, directory / persistence
        self.directory.mkdir(parents=True)
        self.socket = str(self.directory / "socket")
        self.process = None
        self.start()

    def start(self):
        settings = [*REDIS, *PERSISTENCE[self.persistence], "--unixsocket", self.socket]
        self.process = subprocess.Popen(["redis-server", *settings], cwd=self.directory, stdin=subprocess.DEVNULL)
        for _ in range(200):
            with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                redis.Redis(unix_socket_path=self.socket).ping()
                return
            time.sleep(0.05)
        raise RuntimeError(f"redis-server does not start: {(self.directory / 'redis.log').read_text()}")

    def version(self):
        with redis.Redis(unix_socket_path=self.socket) as client:
            return client.info("server")["redis_version"]

    def crash(self):
        """Is killed and starts again: it goes on with what is in its files."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()

    def processes(self):
        return [self.process.pid]

    def stop(self):
        self.process.kill()
        self.process.wait()


class Servers:
    """All of them, for a while."""

    def __init__(self, program_directory, data, directory, variants, edition=None):
        self.postgres = Postgres(program_directory, data, edition)
        self.variants = [VARIANTS[variant] for variant in variants]
        self.directory = directory
        self.redis = {}

    def __enter__(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        self.redis = {persistence: Redis(persistence, self.directory) for persistence in PERSISTENCE}
        return self

    def __exit__(self, *_):
        for server in self.redis.values():
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def place(self, variant, executor, lease_s, wait_s):
        socket = variant.redis and self.redis[variant.redis].socket
        return Place(self.postgres.uri, socket, lease_s, wait_s, executor)

    def keeper(self, variant):
        """The server that keeps what a contender records."""
        return self.redis[variant.redis] if variant.contender.kept_in == "redis" else self.postgres

    def make_database(self, *scripts):
        """A fresh database and empty Redis servers, prepared for the contenders."""
        self.postgres.make_database(*scripts)
        for server in self.redis.values():
            with redis.Redis(unix_socket_path=server.socket) as client:
                client.flushall()
        for variant in self.variants:
            variant.contender.prepare(self.place(variant, "prepare", lease_s=60, wait_s=10))

    def cpu_s(self, variant):
        """The processor time that the servers of this variant have used so far, by process."""
        processes = self.postgres.processes() + (self.redis[variant.redis].processes() if variant.redis else [])
        return {process: cpu_s(process) for process in processes}


def children(process):
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def cpu_s(process):
    """In nanoseconds in the file, for each thread."""
    total = 0
    for thread in pathlib.Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(thread.read_text().split()[0])
    return total / 1e9
