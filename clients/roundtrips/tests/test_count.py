"""count.py between a real server and clients that send exactly what a test wants. PGHOST and PGPORT name the server."""

import contextlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import psycopg
import pytest

COUNT = pathlib.Path(__file__).resolve().parents[1] / "count.py"
SERVER = f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ['PGPORT']}"
SETTLE_S = 0.05


class Proxy:
    def __init__(self, upstream, *more):
        command = [sys.executable, COUNT, "--stdin", "--listen", "0", "--upstream", upstream, *more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = json.loads(self.process.stdout.readline())
        self.port, self.control = ready["port"], ready["control"]
        self.uri = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def call(self, path, method="GET"):
        with urllib.request.urlopen(urllib.request.Request(self.control + path, method=method)) as answer:
            return json.load(answer)

    def reset(self):
        self.call("/reset", "POST")

    def trips(self):
        """The trips of the only connection that has any."""
        connections = self.call("/trips")["connections"]
        assert len(connections) <= 1
        return connections[0]["trips"] if connections else []

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def proxy():
    proxy = Proxy(SERVER)
    yield proxy
    proxy.close()


def message(kind, body=b""):
    return kind + struct.pack("!I", len(body) + 4) + body


def query(sql):
    return message(b"Q", sql.encode() + b"\0")


def parse(sql, name=""):
    return message(b"P", f"{name}\0{sql}\0".encode() + b"\0\0")


def bind(name=""):
    return message(b"B", f"\0{name}\0".encode() + b"\0\0\0\0\0\0")


EXECUTE = message(b"E", b"\0" + b"\0\0\0\0")
SYNC, FLUSH = message(b"S"), message(b"H")


class Client:
    """A connection whose every byte the test decides."""

    def __init__(self, proxy):
        self.socket = socket.create_connection(("127.0.0.1", proxy.port))
        self.socket.settimeout(10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parameters = b"user\0postgres\0database\0postgres\0application_name\0raw\0\0"
        self.socket.sendall(struct.pack("!II", len(parameters) + 8, 3 << 16) + parameters)
        self.receive()

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, until=b"Z", times=1):
        """Reads until so many messages of this type have arrived. Returns the types of all."""
        types = b""
        while types.count(until) < times:
            kind = self.exactly(1)
            self.exactly(struct.unpack("!I", self.exactly(4))[0] - 4)
            types += kind
        return types

    def exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data


@pytest.fixture
def client(proxy):
    client = Client(proxy)
    proxy.reset()
    yield client
    client.socket.close()


def test_statements_that_wait_for_each_other(proxy, client):
    for sql in ("BEGIN", "SELECT 1", "COMMIT"):
        client.send(query(sql))
        client.receive()
    trips = proxy.trips()
    assert [trip["statements"] for trip in trips] == [["BEGIN"], ["SELECT 1"], ["COMMIT"]]
    assert [trip["results"] for trip in trips] == [["BEGIN"], ["SELECT 1"], ["COMMIT"]]
    assert [trip["transaction"] for trip in trips] == ["in transaction", "in transaction", "idle"]


def test_several_statements_in_one_query_are_one_trip(proxy, client):
    client.send(query("BEGIN; SELECT 1;\n SAVEPOINT s"))
    client.receive()
    (trip,) = proxy.trips()
    assert trip["statements"] == ["BEGIN; SELECT 1; SAVEPOINT s"]
    assert trip["results"] == ["BEGIN", "SELECT 1", "SAVEPOINT"]


def test_queries_sent_without_waiting_are_one_trip(proxy, client):
    """The server answers the first query at once, but the client has not waited for that answer."""
    for sql in ("BEGIN", "SELECT 1", "SAVEPOINT s"):
        client.send(query(sql))
        time.sleep(SETTLE_S / 5)
    client.receive(times=3)
    (trip,) = proxy.trips()
    assert trip["results"] == ["BEGIN", "SELECT 1", "SAVEPOINT"]


def test_a_pipeline_with_one_sync_is_one_trip(proxy, client):
    client.send(parse("BEGIN") + bind() + EXECUTE + parse("SELECT 1", "one") + bind("one") + EXECUTE + SYNC)
    client.receive()
    (trip,) = proxy.trips()
    assert trip["statements"] == ["BEGIN", "SELECT 1"]
    assert trip["messages"] == ["Parse", "Bind", "Execute", "Parse", "Bind", "Execute", "Sync"]


def test_preparing_first_is_a_trip_of_its_own(proxy, client):
    client.send(parse("SELECT 2", "two") + SYNC)
    client.receive()
    client.send(bind("two") + EXECUTE + SYNC)
    client.receive()
    first, second = proxy.trips()
    assert (first["prepared"], first["statements"]) == (["SELECT 2"], [])
    assert (second["prepared"], second["statements"]) == ([], ["SELECT 2"])


def test_an_answer_to_flush_ends_a_trip(proxy, client):
    client.send(parse("SELECT 3") + FLUSH)
    client.receive(b"1")
    client.send(bind() + EXECUTE + SYNC)
    client.receive()
    assert len(proxy.trips()) == 2


def test_messages_that_arrive_in_pieces(proxy, client):
    for byte in query("SELECT 4"):
        client.send(bytes([byte]))
    client.receive()
    (trip,) = proxy.trips()
    assert trip["statements"] == ["SELECT 4"]


def test_errors_have_their_sqlstate(proxy, client):
    client.send(query("BEGIN; SELECT 1/0"))
    client.receive()
    client.send(query("COMMIT"))
    client.receive()
    first, second = proxy.trips()
    assert (first["results"], first["transaction"]) == (["BEGIN", "ERROR 22012"], "failed")
    assert second["results"] == ["ROLLBACK"]


def test_a_notice_ends_no_trip(proxy, client):
    """The client sends the second query after the notice of the first has reached it, but before the answer has."""
    client.send(query("DO $$ BEGIN RAISE NOTICE 'now'; PERFORM pg_sleep(0.5); END $$"))
    client.receive(b"N")
    client.send(query("SELECT 5"))
    client.receive(times=2)
    (trip,) = proxy.trips()
    assert trip["results"] == ["DO", "SELECT 1"]


def test_results_after_the_first_chunk_belong_to_the_trip(proxy, client):
    """One query returns a row and, 0.3 s later, the rest."""
    client.send(query("SELECT repeat('x', 20000); SELECT pg_sleep(0.3); BEGIN"))
    client.receive()
    (trip,) = proxy.trips()
    assert trip["results"] == ["SELECT 1", "SELECT 1", "BEGIN"]
    assert trip["transaction"] == "in transaction"


def test_copy_is_one_trip_after_its_statement(proxy, client):
    client.send(query("CREATE TEMP TABLE t (x int); COPY t FROM STDIN"))
    client.receive(b"G")
    client.send(message(b"d", b"1\n") + message(b"d", b"2\n") + message(b"c"))
    client.receive()
    first, second = proxy.trips()
    assert second["messages"] == ["CopyData", "CopyData", "CopyDone"]
    assert second["results"] == ["COPY 2"]


def test_startup_and_end_are_not_counted(proxy):
    proxy.reset()
    for _ in range(2):
        # psycopg asks for GSS encryption and TLS first, which the proxy declines.
        with psycopg.connect(proxy.uri, sslmode="prefer", application_name="counted", autocommit=True) as conn:
            conn.execute("SELECT 1")
    answer = proxy.call("/trips")
    assert answer["round_trips"] == 2
    first, second = answer["connections"]
    assert (first["user"], first["database"], first["application_name"]) == ("postgres", "postgres", "counted")
    assert first["startup_round_trips"] >= 2
    assert second["connection"] == first["connection"] + 1


def test_reset_forgets(proxy, client):
    client.send(query("SELECT 6"))
    client.receive()
    assert len(proxy.trips()) == 1
    proxy.reset()
    assert proxy.trips() == []
    client.send(query("SELECT 7"))
    client.receive()
    (trip,) = proxy.trips()
    assert trip["statements"] == ["SELECT 7"]


def test_reading_waits_for_the_answer_under_way(proxy, client):
    client.send(query("SELECT pg_sleep(0.5)"))
    (trip,) = proxy.trips()
    assert trip["results"] == ["SELECT 1"]


def test_pipeline_of_psycopg(proxy):
    with psycopg.connect(proxy.uri, autocommit=True) as conn:
        proxy.reset()
        with conn.pipeline():
            conn.execute("BEGIN")
            conn.execute("SELECT %s::int", (1,))
            conn.execute("COMMIT")
        assert len(proxy.trips()) == 1


@pytest.mark.parametrize("upstream", ["directory", "uri", "proxy"])
def test_addresses_of_the_server(proxy, upstream):
    host, port = os.environ["PGHOST"], os.environ["PGPORT"]
    addresses = {
        "directory": host,
        "uri": f"postgresql:///postgres?host={host}&port={port}&user=postgres",
        "proxy": f"127.0.0.1:{proxy.port}",
    }
    other = Proxy(addresses[upstream])
    try:
        with psycopg.connect(other.uri) as conn:
            assert conn.execute("SELECT 9").fetchone() == (9,)
    finally:
        other.close()


def test_control_names_its_calls(proxy):
    with pytest.raises(urllib.error.HTTPError) as error:
        proxy.call("/nothing")
    with error.value as answer:
        assert answer.status == 404
        assert "GET /trips" in json.load(answer)["calls"]


def count(proxy, table):
    with psycopg.connect(proxy.uri) as conn:
        return conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.fixture
def table(proxy):
    with psycopg.connect(proxy.uri, autocommit=True) as conn:
        conn.execute("DROP TABLE IF EXISTS cut; CREATE TABLE cut (x int)")
    proxy.reset()
    return "cut"


PIPELINE = [parse("BEGIN"), bind(), EXECUTE, parse("INSERT INTO cut VALUES (1)"), bind(), EXECUTE]
COMMIT = [parse("COMMIT"), bind(), EXECUTE, SYNC]


@pytest.mark.parametrize("separately", [False, True])
@pytest.mark.parametrize(("when", "rows"), [("before", 0), ("after", 1)])
def test_a_connection_is_cut_around_commit(proxy, client, table, when, rows, separately):
    proxy.call(f"/cut?when={when}&at=commit", "POST")
    assert proxy.call("/trips")["cut_pending"]
    if separately:
        client.send(b"".join([*PIPELINE, SYNC]))
        client.receive()
    client.send(b"".join([*([] if separately else PIPELINE), *COMMIT]))
    with pytest.raises(EOFError):
        client.receive()
    trip = proxy.trips()[-1]
    assert trip["cut"] == f"{when} COMMIT"
    assert ("COMMIT" in trip["results"]) == (when == "after")
    assert not proxy.call("/trips")["cut_pending"]
    assert count(proxy, table) == rows


def test_a_cut_after_a_statement_waits_for_all_answers_of_the_trip(proxy, client, table):
    """The client sends the COMMIT, with a Sync of its own, without having waited."""
    proxy.call("/cut?when=after&at=INSERT", "POST")
    client.send(b"".join([*PIPELINE, SYNC]))
    time.sleep(SETTLE_S / 5)
    client.send(b"".join(COMMIT))
    with pytest.raises(EOFError):
        client.receive()
    assert proxy.trips()[-1]["results"] == ["BEGIN", "INSERT 0 1", "COMMIT"]
    assert count(proxy, table) == 1


def test_a_cut_at_a_statement_that_is_prepared_already(proxy, client, table):
    client.send(parse("INSERT INTO cut VALUES (2)", "insert") + SYNC)
    client.receive()
    proxy.call("/cut?when=after&at=INSERT", "POST")
    client.send(bind("insert") + EXECUTE + SYNC)
    with pytest.raises(EOFError):
        client.receive()
    assert count(proxy, table) == 1


def test_reset_forgets_a_cut(proxy, client):
    proxy.call("/cut?when=before&at=SELECT", "POST")
    proxy.reset()
    client.send(query("SELECT 10"))
    client.receive()
    assert len(proxy.trips()) == 1


def test_a_cut_needs_its_arguments(proxy):
    with pytest.raises(urllib.error.HTTPError) as error:
        proxy.call("/cut?when=now&at=x", "POST")
    error.value.close()
    assert error.value.code == 400


def test_the_end_of_the_server_reaches_the_client(proxy, client):
    with contextlib.suppress(EOFError):
        client.send(query("SELECT pg_terminate_backend(pg_backend_pid())"))
        client.receive()
    (trip,) = proxy.trips()
    assert trip["results"] == ["ERROR 57P01"]
