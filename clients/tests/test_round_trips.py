"""How many round trips to the database a protected request takes, counted by a proxy that parses the protocol, and what
happens when the connection is cut between the statements that share a round trip."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

import pytest
import servers
from test_agents import AGENTS, address
from test_cases import effects, recorded, run, served  # noqa: F401 (run is a fixture)

COUNT = pathlib.Path(__file__).resolve().parents[1] / "roundtrips" / "count.py"
SETTLE = 0.2


class Proxy:
    """roundtrips/count.py, which holds each answer until the client has sent nothing for SETTLE."""

    def __init__(self, line):
        self.port, self.control = line["port"], line["control"]

    def ask(self, path, method):
        with urllib.request.urlopen(urllib.request.Request(f"{self.control}/{path}", method=method)) as answer:
            return json.loads(answer.read() or "null")

    def reset(self):
        self.ask("reset", "POST")

    def cut(self, when, at):
        self.ask(f"cut?when={when}&at={at}", "POST")

    def trips(self):
        """The statements of each round trip, in their order."""
        counted = self.ask("trips", "GET")
        return [trip for connection in counted["connections"] for trip in connection["trips"]]

    @property
    def cut_pending(self):
        return self.ask("trips", "GET")["cut_pending"]


@contextlib.contextmanager
def counting():
    parts = servers.conninfo_to_dict(servers.URI)
    command = [sys.executable, COUNT, "--stdin", "--listen", "0", "--upstream", f"127.0.0.1:{parts['port']}"]
    command += ["--settle", str(int(SETTLE * 1000))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Proxy(json.loads(process.stdout.readline()))
        process.stdin.close()


@pytest.fixture(scope="module", params=AGENTS)
def counted(request):
    with counting() as proxy, served(request.param, IDEM_OWNER=address(port=str(proxy.port))) as app:
        # The drivers prepare statements when they see them again: pgx the second time, pgjdbc the fifth time.
        for i in range(8):
            assert app.send("/created", f"warm-{request.param}-{i}-{time.time_ns()}").status == 201
        yield app, proxy


def commands(trip):
    return [statement.split("(")[0].split()[0].upper() for statement in trip["statements"]]


def test_a_protected_request_takes_three_round_trips(counted, run):  # noqa: F811
    app, proxy = counted
    proxy.reset()
    assert app.send("/created", run).status == 201
    trips = proxy.trips()
    assert [commands(trip) for trip in trips] == [["BEGIN", "SELECT", "SAVEPOINT"], ["INSERT"], ["SELECT", "COMMIT"]]
    assert "idem_begin" in trips[0]["statements"][1] and "idem_record" in trips[2]["statements"][0]
    assert (trips[2]["results"][-1], trips[2]["transaction"]) == ("COMMIT", "idle")


def test_an_unprotected_request_takes_no_more(counted, run):  # noqa: F811
    app, proxy = counted
    proxy.reset()
    assert app.send("/created", run, method="GET").status == 201
    # pgjdbc sends BEGIN together with the next statement.
    expected = {"go": [["BEGIN"], ["INSERT"], ["COMMIT"]], "java": [["BEGIN", "INSERT"], ["SELECT", "COMMIT"]]}
    assert [commands(trip) for trip in proxy.trips()] == expected[app.language]


def test_a_replay_waits_for_one_round_trip(counted, run):  # noqa: F811
    app, proxy = counted
    assert app.send("/created", run).status == 201
    proxy.reset()
    began = time.monotonic()
    assert app.send("/created", run).headers["Idempotent-Replayed"] == "true"
    assert time.monotonic() - began < 1.8 * SETTLE
    trips = proxy.trips()
    assert [commands(trip)[0] for trip in trips][0] == "BEGIN" and len(trips) == 2
    assert commands(trips[1])[-1] == "COMMIT" and trips[1]["transaction"] == "idle"


@pytest.fixture(scope="module", params=AGENTS)
def writing(request):
    servers.prepare([])
    with servers.psycopg.connect(servers.URI, autocommit=True) as conn:
        conn.execute((COUNT.parent / "writing_begin.sql").read_text())
    with counting() as proxy:
        with served(request.param, IDEM_OWNER=address(port=str(proxy.port), user="client_writer")) as app:
            yield app, proxy


def test_a_replay_waits_for_commit_if_its_begin_has_written(writing, run):  # noqa: F811
    app, proxy = writing
    assert app.send("/created", run).status == 201
    proxy.reset()
    # The COMMIT never reaches the server. So the adapter, which waits for it, begins again.
    proxy.cut("before", "COMMIT")
    assert app.send("/created", run).headers["Idempotent-Replayed"] == "true"
    assert sum("idem_begin" in str(trip["statements"]) for trip in proxy.trips()) == 2
    assert effects(run) == 1


@pytest.mark.parametrize("at", ["idem_begin", "SAVEPOINT", "INSERT", "idem_record", "COMMIT"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_at_any_statement_has_one_effect(counted, run, when, at):  # noqa: F811
    app, proxy = counted
    proxy.reset()
    proxy.cut(when, at)
    answer = app.send("/created", run)
    # A claim whose backend has not noticed the cut yet is answered 409, and the client sends its request again.
    while answer.status == 409:
        time.sleep(0.1)
        answer = app.send("/created", run)
    assert (answer.status, answer.body) == (201, "created")
    assert not proxy.cut_pending
    assert (effects(run), recorded(run)) == (1, "succeeded")
