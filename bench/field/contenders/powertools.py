"""Powertools for AWS Lambda (Python): the decorator of its idempotency utility, with its Redis persistence layer."""

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

from work import COMMIT, InProgress, open_pool, reached, transfer

from .contender import Contender

DAYS_7 = 7 * 24 * 3600


class Context:
    """What Lambda hands to a handler: here, the time for which a worker may work."""

    def __init__(self, lease_s):
        self.lease_ms = int(lease_s * 1000)

    def get_remaining_time_in_millis(self):
        return self.lease_ms


class Powertools(Contender):
    title = "AWS Powertools with Redis"
    kept_in = "redis"
    usage = """
    The decorator `idempotent` around a handler that does the transaction, with the Redis persistence layer and
    an existing Redis client. The key is chosen by `event_key_jmespath`. The context that is handed to the
    handler tells the time that is left. Powertools for AWS Lambda (Python), *Idempotency*: *Idempotent
    decorator*, *Persistence layers*, *Choosing a payload subset*, *Lambda timeouts*.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres)
        self.context = Context(place.lease_s)
        client = redis.Redis(unix_socket_path=place.redis, decode_responses=True)
        config = IdempotencyConfig(event_key_jmespath="key", expires_after_seconds=DAYS_7)

        @idempotent(config=config, persistence_store=CachePersistenceLayer(client=client))
        def handler(event, context):
            with self.pool.connection() as conn:
                answer = transfer(conn, event)
            reached(COMMIT)
            return answer

        self.handler = handler

    def transfer(self, request):
        try:
            return self.handler(request, self.context)
        except IdempotencyAlreadyInProgressError:
            raise InProgress from None
