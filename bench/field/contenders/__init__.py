"""The contenders: each file shows one way to make a retried transfer take effect once.

A contender is made in the process that uses it, and has one method, `transfer(request)`. It answers the request, now or
as it was answered before, or raises `InProgress`. It calls `reached` at the places where the kills stop it.
"""

import dataclasses

from .dbos_workflow import DbosWorkflow
from .hand_written import HandWritten, HandWrittenFunction
from .idemkit_decorator import IdemkitPostgres, IdemkitRedis
from .idempotence import BeginRecord, ClaimPipeline, Run
from .powertools import Powertools
from .redis_lock import RedisLock
from .unprotected import Unprotected

# How Redis keeps what it was told.
DEFAULT = "default"
ALWAYS = "always"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A contender, and the Redis that it uses."""

    id: str
    contender: type
    redis: str | None = None

    @property
    def title(self):
        return self.contender.title + {None: "", DEFAULT: ", default", ALWAYS: ", `appendfsync always`"}[self.redis]


VARIANTS = {
    variant.id: variant
    for variant in [
        Variant("unprotected", Unprotected),
        Variant("hand_written", HandWritten),
        Variant("hand_written_function", HandWrittenFunction),
        Variant("begin_record", BeginRecord),
        Variant("claim_pipeline", ClaimPipeline),
        Variant("run", Run),
        Variant("redis_lock", RedisLock, DEFAULT),
        Variant("redis_lock_always", RedisLock, ALWAYS),
        Variant("powertools", Powertools, DEFAULT),
        Variant("powertools_always", Powertools, ALWAYS),
        Variant("idemkit_redis", IdemkitRedis, DEFAULT),
        Variant("idemkit_redis_always", IdemkitRedis, ALWAYS),
        Variant("idemkit_postgres", IdemkitPostgres),
        Variant("dbos", DbosWorkflow),
    ]
}

# What rates and costs are compared with.
REFERENCE = "hand_written"
