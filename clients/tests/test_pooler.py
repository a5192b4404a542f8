"""The folded round trips behind PgBouncer in transaction mode, where consecutive transactions of a connection run on
different backends. Skipped where pgbouncer is not installed."""

import collections
import concurrent.futures
import contextlib
import getpass
import shutil
import socket
import subprocess
import time

import pytest
import servers
from test_cases import database, effects, free_port, recorded, run, served  # noqa: F401 (run is a fixture)

# PgBouncer 1.18 does not know prepared statements, so a driver needs one of these options.
OPTIONS = [
    ("go", "statement_cache_mode=describe"),
    ("go", "prefer_simple_protocol=true"),
    ("java", "prepareThreshold=0"),
    ("java", "preferQueryMode=simple"),
]


@contextlib.contextmanager
def pgbouncer(folder):
    port, there = free_port(), servers.conninfo_to_dict(servers.URI)
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host=127.0.0.1 port={there['port']} user={servers.OWNER}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 3\nignore_startup_parameters = extra_float_digits\n"
    )
    # pgbouncer refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if getpass.getuser() == "root" else []
    for each in [*list(folder.parents)[:2], folder, configuration]:
        each.chmod(0o755)
    process = subprocess.Popen([*user, shutil.which("pgbouncer"), "-q", configuration])
    try:
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            time.sleep(0.05)
        yield f"postgresql://127.0.0.1:{port}/{there['dbname']}?user={servers.OWNER}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module", params=OPTIONS, ids="-".join)
def pooled(request, tmp_path_factory):
    if not shutil.which("pgbouncer"):
        pytest.skip("pgbouncer is not installed")
    with pgbouncer(tmp_path_factory.mktemp("pgbouncer")) as uri:
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
