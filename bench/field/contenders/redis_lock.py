"""A lock in Redis, whose key gets the result when the work is done."""

import json
import secrets

import redis

from work import COMMIT, InProgress, open_pool, reached, transfer

from .contender import Contender

DAYS_7 = 7 * 24 * 3600

# Lets the lock go, unless somebody else has it by now.
RELEASE = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'


class RedisLock(Contender):
    title = "Redis lock with a result"
    kept_in = "redis"
    usage = """
    `SET key token NX PX lease`, the transaction, `SET key result`. A retry that does not get the lock reads the
    key. A transaction that fails lets the lock go, by a script that compares the token. Redis documentation,
    *Distributed Locks with Redis*: the correct implementation with a single instance.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres)
        self.redis = redis.Redis(unix_socket_path=place.redis, decode_responses=True)
        self.release = self.redis.register_script(RELEASE)
        self.lease_ms = int(place.lease_s * 1000)

    def transfer(self, request):
        name, token = f"payments:{request['key']}", f"token:{secrets.token_hex(16)}"
        if not self.redis.set(name, token, nx=True, px=self.lease_ms):
            known = self.redis.get(name)
            if known is None or known.startswith("token:"):
                raise InProgress
            return json.loads(known)
        try:
            with self.pool.connection() as conn:
                answer = transfer(conn, request)
        except Exception:
            self.release(keys=[name], args=[token])
            raise
        reached(COMMIT)
        self.redis.set(name, json.dumps(answer), ex=DAYS_7)
        return answer
