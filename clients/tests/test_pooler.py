"""The folded round trips behind PgBouncer in transaction mode, where consecutive transactions of a connection run on
different backends. Skipped where pgbouncer is not installed."""

import collections
import concurrent.futures
import time

import pooler
import pytest
from test_cases import database, effects, recorded, run, served  # noqa: F401 (run is a fixture)

# PgBouncer 1.18 does not know prepared statements, so a driver needs one of these options.
OPTIONS = [
    ("go", "statement_cache_mode=describe"),
    ("go", "prefer_simple_protocol=true"),
    ("java", "prepareThreshold=0"),
    ("java", "preferQueryMode=simple"),
]


@pytest.fixture(scope="module", params=OPTIONS, ids="-".join)
def pooled(request):
    if not pooler.INSTALLED:
        pytest.skip("pgbouncer is not installed")
    with pooler.pgbouncer() as uri:
        language, option = request.param
        with served(language, IDEM_OWNER=f"{uri}&{option}") as app:
            yield app


def test_many_clients_get_one_effect_for_each_key(pooled, run):  # noqa: F811
    def until_created(key):
        answer = pooled.send("/created", key)
        while answer.status == 409:
            time.sleep(0.02)
            answer = pooled.send("/created", key)
        return answer.status, answer.body

    keys = [f"{run}-{i}" for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(12) as clients:
        answers = collections.Counter(clients.map(until_created, keys * 3))
    assert answers == {(201, "created"): 120}
    assert [effects(key) for key in keys] == [1] * 40


def test_every_way_to_end_a_transaction(pooled, run):  # noqa: F811
    assert pooled.send("/created", run).status == 201
    assert pooled.send("/created", run).headers["Idempotent-Replayed"] == "true"
    assert pooled.send("/created", run, body="another").status == 422
    assert pooled.send("/slow-422", f"{run}-422").status == 422
    assert pooled.send("/slow-422", f"{run}-422").headers["Idempotent-Replayed"] == "true"
    assert pooled.send("/commit", f"{run}-commit").status == 500
    assert pooled.send("/late-refused", f"{run}-late").status == 500
    assert pooled.send("/hang-statement", f"{run}-hang").status == 503
    sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(3)'"
    assert database(sql) == 0, "PgBouncer has dropped the request to cancel the statement"
    assert pooled.send("/created", run, method="GET").status == 201
    pooled.eventually(f"{run}-late", "late: ", 8)
    assert [effects(f"{run}-{each}") for each in ("422", "commit", "late", "hang")] == [0, 0, 0, 0]
    assert recorded(f"{run}-422") == "failed"
