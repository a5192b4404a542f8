"""Handlers as applications write them, with the mistakes that applications make: the routes of go/tests/cases.go and
java/tests/Cases.java. A body names the run, and GET /notes/RUN returns what the handlers have noted."""

import collections
import concurrent.futures
import contextlib
import http.client
import socket
import time
import uuid

import psycopg
import pytest
import servers
from ports import free_port, wait_until_listening
from test_agents import AGENTS, agent

ENDED = "the transaction of this request has ended"
MISUSE = "the handler must not commit or roll back: the adapter commits after the answer is recorded"
Answer = collections.namedtuple("Answer", "status headers body")


class Application:
    """An agent that serves the cases."""

    def __init__(self, language, port):
        self.language, self.port = language, port

    def send(self, path, run, *, key=None, method="POST", headers=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            body = run if body is None else body
            connection.request(method, path, body, {"Idempotency-Key": f'"{key or run}"', **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())

    def notes(self, run):
        return self.send(f"/notes/{run}", run, method="GET").body.splitlines()

    def calls(self, run):
        return self.notes(run).count("call")

    def eventually(self, run, text, count=1):
        """The notes once so many of them contain the text."""
        last = time.monotonic() + 5
        while sum(text in each for each in self.notes(run)) < count:
            assert time.monotonic() < last, self.notes(run)
            time.sleep(0.05)
        return self.notes(run)


def database(sql, *arguments):
    with psycopg.connect(servers.uri(), autocommit=True) as connection:
        return connection.execute(sql, arguments).fetchone()[0]


def effects(run):
    return database("SELECT count(*) FROM client_effect WHERE run = %s", run)


def recorded(run):
    return database("SELECT status FROM idem_lookup('cases', %s)", f":{run}")


def settled(run):
    """What is recorded once the server has ended the transaction. It takes a moment to notice a closed connection."""
    last = time.monotonic() + 5
    while (status := recorded(run)) == "in_progress" and time.monotonic() < last:
        time.sleep(0.02)
    return status


@contextlib.contextmanager
def served(language, **environment):
    servers.prepare(["SELECT idem_create_session('cases', ttl => '1 hour')"])
    port = free_port()
    with agent(language, "cases", str(port), environment=environment) as process:
        wait_until_listening(port, process)
        yield Application(language, port)


@pytest.fixture(scope="module", params=AGENTS)
def app(request):
    with served(request.param) as application:
        yield application


@pytest.fixture
def run():
    return uuid.uuid4().hex[:12]


@pytest.fixture
def go(app):
    if app.language != "go":
        pytest.skip("Go only")
    return app


@pytest.fixture
def java(app):
    if app.language != "java":
        pytest.skip("Java only")
    return app


# ------------------------------------------------------------------------------------- after the handler has returned


@pytest.mark.parametrize("path, status, expected", [("/late", 201, 1), ("/late-refused", 500, 0)])
def test_the_connection_refuses_late_use(app, run, path, status, expected):
    assert app.send(path, run).status == status
    # Other requests use all four connections of the pool while the late calls are made.
    with concurrent.futures.ThreadPoolExecutor(4) as others:
        held = [others.submit(app.send, "/hold", f"{run}-{i}") for i in range(4)]
        notes = [each for each in app.eventually(run, "late: ", 8) if each.startswith("late: ")]
        assert all(each.result().status == 201 for each in held)
    assert all(ENDED in each for each in notes), notes
    assert effects(run) == expected
    assert [effects(f"{run}-{i}") for i in range(4)] == [1, 1, 1, 1]


def test_a_statement_that_is_running_belongs_to_the_request(app, run):
    assert app.send("/running", run).status == 201
    assert effects(run) == 2


# ------------------------------------------------------------------------------------------- who ends the transaction


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_handler_must_not_end_the_transaction(app, run, how):
    assert app.send(f"/{how}", run).status == 500
    assert MISUSE in app.notes(run)[1]
    assert (effects(run), recorded(run), app.calls(run)) == (0, "unknown", 1)


def test_a_handler_that_closes_the_drivers_connection_is_not_repeated(app, run):
    assert app.send("/close-driver", run).status == 500
    assert (effects(run), recorded(run), app.calls(run)) == (0, "unknown", 1)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_handler_must_not_end_the_transaction_in_sql(app, run, how):
    assert app.send(f"/sql-{how}", run).status == 500
    assert (effects(run), recorded(run), app.calls(run)) == (0, "unknown", 1)
    assert MISUSE in "".join(app.notes("log")[-2:])


def test_a_handler_may_use_savepoints(app, run):
    assert app.send("/savepoint", run).status == 201
    assert "division by zero" in app.notes(run)[1]
    assert (effects(run), recorded(run)) == (1, "succeeded")


def test_a_final_error_is_no_answer_of_a_handler(app, run):
    assert app.send("/fail-final", run).status == 500
    assert (effects(run), recorded(run), app.calls(run)) == (0, "unknown", 1)


# --------------------------------------------------------------------------- errors that are not the transaction's own


@pytest.mark.parametrize("path", ["/other-database", "/other-deadline", "/nested", "/nested-busy"])
def test_an_error_from_elsewhere_is_the_applications(app, run, path):
    answer = app.send(path, run)
    assert (answer.status, answer.body) == (500, "")
    assert (effects(run), recorded(run), app.calls(run)) == (0, "unknown", 1)


@pytest.mark.parametrize("status, outcome", [(504, "unknown"), (422, "failed"), (201, "unknown")])
def test_a_statement_that_the_handler_cancels_is_not_repeated(app, run, status, outcome):
    answer = app.send(f"/slow-{status}", run)
    assert answer.status == (500 if status == 201 else status)
    # pgx closes a connection whose statement was cancelled.
    assert (settled(run), effects(run), app.calls(run)) == (outcome, 0, 1)
    if status == 422:
        again = app.send(f"/slow-{status}", run)
        assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (422, answer.body, "true")
        assert app.calls(run) == 1


def test_a_lost_connection_repeats_a_handler_that_answers_regardless(app, run):
    answer = app.send("/lost-422", run)
    assert (answer.status, answer.body) == (201, "created")
    assert (effects(run), recorded(run), app.calls(run)) == (1, "succeeded", 2)


# -------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("path", ["/hang", "/hang-statement"])
def test_handlers_that_hang_do_not_exhaust_the_pool(app, run, path):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda i: app.send(path, f"{run}-{i}"), range(4)))
    assert time.monotonic() - began < 2.5
    assert {(each.status, each.headers["Retry-After"]) for each in answers} == {(503, "1")}
    assert all("#unavailable" in each.body for each in answers)
    assert app.send("/created", run).status == 201
    assert time.monotonic() - began < 2.5
    assert sum(effects(f"{run}-{i}") for i in range(4)) == 0
    sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(3)'"
    assert database(sql) == 0
    if path == "/hang":
        assert ENDED in app.eventually(f"{run}-0", "after the limit")[-1]


def test_a_handler_that_throws_leaves_nothing(app, run):
    with contextlib.suppress(http.client.RemoteDisconnected):
        assert app.send("/throw", run).status == 500
    assert (effects(run), recorded(run)) == (0, "unknown")
    sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'client_owner' AND state LIKE 'idle in transaction%%'"
    assert database(sql) == 0


# ----------------------------------------------------------------------------------------------------------- Go's http


def test_early_hints_are_forwarded(go, run):
    raw = socket.create_connection(("127.0.0.1", go.port))
    headers = ["Host: x", f"Idempotency-Key: {run}", "Content-Length: 12", "Connection: close"]
    raw.sendall("\r\n".join(["POST /early-hints HTTP/1.1", *headers, "", run]).encode())
    answer = b""
    while part := raw.recv(4096):
        answer += part
    raw.close()
    hints, final = answer.decode().split("\r\n\r\n", 1)
    assert hints.startswith("HTTP/1.1 103 ") and "Link: </style.css>" in hints
    assert final.startswith("HTTP/1.1 201 ") and "Link" not in final and "Idempotent-Replayed" not in final
    assert (effects(run), recorded(run)) == (1, "succeeded")


def test_rows_that_the_handler_leaves_open_are_closed(go, run):
    assert go.send("/open-rows", run).status == 201
    assert effects(run) == 1


def test_streams_are_refused(go, run):
    assert go.send("/interfaces", run).status == 201
    assert go.notes(run)[1].startswith("flusher false, hijacker false, a protected route cannot stream")
    began = time.monotonic()
    assert go.send("/events", f"{run}-e").status == 500
    assert time.monotonic() - began < 2 and recorded(f"{run}-e") == "unknown"


@pytest.mark.parametrize("how", ["announced", "prefix", "early-prefix"])
def test_trailers_are_refused(go, run, how):
    assert go.send(f"/trailer-{how}", run).status == 500
    assert (effects(run), recorded(run)) == (0, "unknown")
    assert "trailers cannot be recorded" in "".join(go.notes("log")[-2:])


def test_fail_after_the_answer_has_no_effect(go, run):
    assert go.send("/fail-late", run).status == 201
    time.sleep(0.3)
    assert go.send("/fail-late", run).headers["Idempotent-Replayed"] == "true"


def test_a_connection_that_the_handler_has_seen_is_closed(go, run):
    assert go.send("/conn", run).status == 201
    assert go.eventually(run, "conn: ")[-1] == "conn: conn closed"
    assert effects(run) == 1


def test_every_method_of_the_transaction_works(go, run):
    answer = go.send("/methods", run)
    assert go.notes(run)[1:] == [
        "batch: 1 7 <nil> <nil> <nil> <nil>",
        "copy: 2 <nil>",
        "query: 6 SELECT 3 <nil>",
        "nested: <nil> tx is closed",
        "closed: tx is closed",
        "none: no rows in result set",
    ]
    assert (answer.status, effects(run)) == (201, 3)


def test_the_response_behaves_as_that_of_net_http(go, run):
    for replayed in (None, "true"):
        answer = go.send("/headers", run)
        assert (answer.status, answer.body, answer.headers["Idempotent-Replayed"]) == (201, "created", replayed)
        assert answer.headers["ETag"] == '"1"' and answer.headers.get_all("Content-Length") == ["7"]
        assert "Location" not in answer.headers
    for replayed in (None, "true"):
        answer = go.send("/no-content", f"{run}-204")
        assert (answer.status, answer.body, answer.headers["Idempotent-Replayed"]) == (204, "", replayed)
    assert "does not allow body" in go.notes(f"{run}-204")[1]
    for _ in range(2):
        assert go.send("/sniffed", f"{run}-html").headers["Content-Type"] == "text/html; charset=utf-8"
    assert "content-type" in str(database("SELECT response FROM idem_lookup('cases', %s)", f":{run}-html"))


def test_headers_of_layers_in_front_are_kept(app, run):
    for replayed in (False, True):
        answer = app.send("/middleware", run)
        assert answer.status == 201 and answer.headers["X-Frame-Options"] == "DENY"
        assert set(answer.headers.get_all("Vary")) == ({"Origin"} if replayed else {"Origin", "Accept"})
        if app.language == "go":
            assert ("X-Removed" in answer.headers) == replayed
            assert answer.headers["Trailer"] == "X-Took"


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_timeout_handler_calls_once(go, run, where):
    answer = go.send(f"/timeout-{where}", run)
    assert (answer.status, answer.body) == (503, "too slow")
    go.eventually(run, "statement: ")
    time.sleep(0.3)
    assert (settled(run), effects(run), go.calls(run)) == ("unknown", 0, 1)


def test_a_stripped_prefix_is_part_of_the_path(go, run):
    first = go.send("/a/x", run)
    assert (first.status, first.body) == (200, "/a/x")
    assert go.send("/b/x", run).status == 422
    assert go.send("/a/x", run).headers["Idempotent-Replayed"] == "true"


def test_limits_of_layers_in_front_are_respected(go, run):
    answer = go.send("/limited", run, body="x" * 100)
    assert answer.status == 413 and "#body-too-large" in answer.body and "10 bytes" in answer.body


def test_a_body_that_a_layer_in_front_has_consumed_is_refused(go, run):
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = go.send("/parsed", run, body="amount=1", headers=kind)
    assert answer.status == 415 and "#body-unsupported" in answer.body


def test_a_caller_who_disconnects_releases_the_claim(go, run):
    connection = http.client.HTTPConnection("127.0.0.1", go.port)
    connection.request("POST", "/disconnect", run, {"Idempotency-Key": run})
    go.eventually(run, "call")
    connection.close()
    last = time.monotonic() + 5
    while (status := go.send("/disconnect", run).status) == 409 and time.monotonic() < last:
        time.sleep(0.02)
    assert status == 201
    assert (effects(run), go.calls(run)) == (1, 2)


# -------------------------------------------------------------------------------------------------------- Java's JDBC


def test_a_handler_may_close_its_connection(java, run):
    answer = java.send("/close", run)
    assert (answer.status, java.calls(run), effects(run)) == (201, 1, 1)
    assert java.notes(run)[1:] == ["closed: true", "use: the handler has closed its connection"]


@pytest.mark.parametrize("value", ["u010d", "fold", "nul", "trailer", "name", "empty"])
def test_headers_are_checked_before_commit(java, run, value):
    answer = java.send(f"/header-{value}", run)
    assert answer.status == 500 and "Set-Cookie" not in answer.headers
    assert (effects(run), recorded(run)) == (0, "unknown")


def test_content_length_is_sent_once(java, run):
    for replayed in (None, "true"):
        answer = java.send("/content-length", run)
        assert (answer.status, answer.body, answer.headers["Idempotent-Replayed"]) == (201, "created", replayed)
        assert answer.headers.get_all("Content-Length") == ["7"]


@pytest.mark.parametrize(
    "how, status, outcome",
    [("201", 201, "succeeded"), ("422", 422, "failed"), ("503", 503, "unknown"), ("500", 500, "unknown")]
    + [("error", 500, "unknown")],
)
def test_a_handler_may_leave_its_thread_interrupted(java, run, how, status, outcome):
    assert java.send(f"/interrupted-{how}", run).status == status
    assert recorded(run) == outcome
    again = java.send(f"/interrupted-{how}", run)
    assert (again.status, again.headers["Idempotent-Replayed"]) == (status, None if outcome == "unknown" else "true")
    final = outcome != "unknown"
    assert (effects(run), java.calls(run)) == ((1, 1) if final else (0, 2))


def test_a_caller_of_run_finds_its_thread_interrupted(java, run):
    assert java.send("/interrupted-run", run).status == 201
    assert java.notes(run)[1:] == ["succeeded, interrupted: true"]
    assert effects(run) == 1


@pytest.mark.parametrize("path", ["/null", "/error", "/bad-status"])
def test_a_handler_without_a_reply_is_500(java, run, path):
    assert java.send(path, run).status == 500
    assert (effects(run), recorded(run)) == (0, "unknown")


def test_a_driver_connection_that_the_handler_has_seen_is_closed(java, run):
    assert java.send("/unwrap", run).status == 201
    assert "closed" in java.eventually(run, "unwrapped: ")[-1]
    assert effects(run) == 1


def test_another_pool_without_connections_is_the_applications(java, run):
    began = time.monotonic()
    assert java.send("/other-pool", run).status == 500
    assert (effects(run), java.calls(run)) == (0, 1)
    assert time.monotonic() - began < 3


def test_a_single_connection_without_a_pool(java, run):
    for replayed in (None, "true"):
        answer = java.send("/unpooled", run)
        assert (answer.status, answer.headers["Idempotent-Replayed"]) == (201, replayed)
    assert effects(run) == 1


# ------------------------------------------------------------------------------------------------------- construction


def test_mistakes_are_reported_at_construction(app):
    sentences = app.notes("construction")
    assert len(sentences) == 5 and all(sentences), sentences
    assert all("needs" in each or "must" in each for each in sentences), sentences
