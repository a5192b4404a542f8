"""idemkit: its decorator for synchronous functions, with its Redis and its PostgreSQL backend."""

import subprocess
import sys

from idemkit import IdempotencyConflict, MethodConfig, PostgresBackend, RedisBackend, idempotent_sync

from work import COMMIT, InProgress, open_pool, reached, transfer

from .contender import Contender

DAYS_7 = 7 * 24 * 3600


class Idemkit(Contender):
    def __init__(self, place, backend):
        self.pool = open_pool(place.postgres)
        config = MethodConfig(
            key_fields=["request.key"],
            scope=lambda arguments: "payments",
            expires_after_seconds=DAYS_7,
            lease_ttl_seconds=place.lease_s,
            wait_timeout_seconds=place.wait_s,
        )

        @idempotent_sync(backend=backend, config=config)
        def protected(request):
            with self.pool.connection() as conn:
                answer = transfer(conn, request)
            reached(COMMIT)
            return answer

        self.protected = protected

    def transfer(self, request):
        try:
            return self.protected(request)
        except IdempotencyConflict:
            raise InProgress from None


class IdemkitRedis(Idemkit):
    title = "idemkit with Redis"
    kept_in = "redis"
    usage = """
    The decorator `idempotent_sync` around a function that does the transaction, with `key_fields`, `scope` and
    `RedisBackend`. idemkit for Python, README: *Method calls and AI tools*, *Backends*, *Configuration*.
    """

    def __init__(self, place):
        super().__init__(place, RedisBackend.from_url(f"unix://{place.redis}"))


class IdemkitPostgres(Idemkit):
    title = "idemkit with PostgreSQL"
    kept_in = "postgres"
    usage = """
    The same with `PostgresBackend`, whose table is made by `idemkit init-pg`. It claims and completes in
    transactions of its own, over connections of its own.
    """

    @staticmethod
    def prepare(place):
        subprocess.run(
            [sys.executable, "-m", "idemkit.cli", "init-pg", place.postgres], check=True, stdout=subprocess.DEVNULL
        )

    def __init__(self, place):
        super().__init__(place, PostgresBackend.from_url(place.postgres, min_size=1, max_size=2))
