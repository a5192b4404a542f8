"""http_vectors.json, with each framework: an application in a process of its own, and requests over TCP."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import servers
from ports import free_port, wait_until_listening

# An application that is none of ours: its command, in which {port} stands for where it is to listen.
SERVED = os.environ.get("IDEM_SERVED")
FILE, CASES = servers.load("http_vectors.json")
DOCS = "https://pgxn.org/dist/idempotence/docs/http.html"
HERE = pathlib.Path(__file__).parent
APPS = {
    "fastapi-psycopg-async": ["asgi_app.py", "fastapi", "psycopg-async"],
    "fastapi-psycopg": ["asgi_app.py", "fastapi", "psycopg-pool"],
    "fastapi-sqlalchemy-async": ["asgi_app.py", "fastapi", "sqlalchemy-async"],
    "starlette-asyncpg": ["asgi_app.py", "starlette", "asyncpg"],
    "django-wsgi": ["django_app.py", "wsgi"],
    "django-asgi": ["django_app.py", "asgi"],
}
if SERVED:
    APPS = {SERVED.split()[1]: SERVED.split()}
LACKS = {
    "tokio-postgres": {"validation"},
    "sqlx": {"validation"},
    "starlette-asyncpg": {"validation"},
    "django-wsgi": {"validation", "any status exceptions", "chunked bodies"},
    "django-asgi": {"validation", "any status exceptions"},
}


@pytest.fixture(scope="module", params=APPS)
def app(request):
    servers.prepare(FILE["setup"])
    port = free_port()
    command = [sys.executable, HERE / APPS[request.param][0], *APPS[request.param][1:], "{port}"]
    command = [str(part).replace("{port}", str(port)) for part in (APPS[request.param] if SERVED else command)]
    process = subprocess.Popen(command, cwd=HERE)
    try:
        wait_until_listening(port, process, seconds=10)
        yield request.param, port
    finally:
        process.terminate()
        process.wait()


def send(port, step):
    """Sends it as it is. The header of a key that is not ASCII goes as UTF-8."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps(step["json"], ensure_ascii=False).encode() if "json" in step else None
    conn.putrequest(step["request"], step["path"], skip_accept_encoding=True)
    for name, values in step["headers"].items():
        for value in values if isinstance(values, list) else [values]:
            conn.putheader(name, value.encode())
    if body is not None:
        conn.putheader("Content-Type", "application/json")
    if step.get("chunked"):
        conn.putheader("Transfer-Encoding", "chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:], b""))
    elif "truncate" in step:
        conn.putheader("Content-Length", str(len(body)))
        body = body[: -step["truncate"]]
    elif body is not None or step["request"] != "GET":
        conn.putheader("Content-Length", str(len(body or b"")))
    conn.endheaders()
    with contextlib.closing(conn):
        with contextlib.suppress(ConnectionError):
            conn.send(body or b"")
        if "truncate" in step:
            conn.sock.shutdown(socket.SHUT_WR)
        try:
            response = conn.getresponse()
        except (ConnectionError, http.client.BadStatusLine):
            if "truncate" in step:
                return None  # the server has closed the connection
            raise
        return response.status, response.getheaders(), response.read()


def look(answer, expect, answers):
    if answer is None:
        return
    status, headers, body = answer
    named = {}
    for name, value in headers:
        named.setdefault(name.lower(), []).append(value)
    said = f"{status} {headers} {body[:300]!r}"
    if "status" in expect:
        assert re.fullmatch(str(expect["status"]), str(status)), said
    if "json" in expect:
        assert json.loads(body) == expect["json"], said
    if "body" in expect:
        assert body.decode() == expect["body"], said
    for name, pattern in expect.get("headers", {}).items():
        assert any(re.fullmatch(pattern, value) for value in named.get(name.lower(), [])), f"{name}: {said}"
    for name in expect.get("absent", []):
        assert name.lower() not in named, said
    if "replayed" in expect:
        assert (named.get("idempotent-replayed") == ["true"]) == expect["replayed"], said
    if "same_as" in expect:
        first = answers[expect["same_as"]][0]
        assert (status, body) == (first[0], first[2]), said
        kind = [value for name, value in first[1] if name.lower() == "content-type"]
        assert named.get("content-type", []) == kind, said
    if "problem" in expect:
        assert named["content-type"][0].startswith("application/problem+json"), said
        problem = json.loads(body)
        assert problem["type"] == f"{DOCS}#{expect['problem']}", said
        assert problem["title"] and problem["detail"] and problem["status"] == status, said
        assert f'<{DOCS}>; rel="describedby"' in named["link"], said
    if "detail" in expect:
        assert re.fullmatch(expect["detail"], json.loads(body)["detail"]), said


class Sent(threading.Thread):
    def __init__(self, port, step):
        super().__init__()
        self.port, self.step, self.answers = port, step, []
        self.start()

    def run(self):
        self.answers.append(send(self.port, self.step))


def perform(port, case, run, helpers):
    answers, background = [], {}
    for sql in case.get("setup", []):
        helpers.connection().execute(sql)
    for step in case["steps"]:
        if helpers.step(step):
            continue
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "finish" in step:
            wait_for(*background.pop(step["finish"]), answers)
        else:
            threads, got = [Sent(port, step) for _ in range(step.get("times", 1))], []
            answers.append(got)
            if "start" in step:
                background[step["start"]] = threads, step, got
            else:
                wait_for(threads, step, got, answers)
    if "effects" in case:
        assert helpers.effects(run) == case["effects"]


def wait_for(threads, step, got, answers):
    for thread in threads:
        thread.join(30)
        assert thread.answers, f"no answer to {step}"
        got += thread.answers
        look(thread.answers[0], step["expect"], answers)


@pytest.mark.parametrize("case", CASES, ids=servers.identifier)
def test_vector(case, app):
    name, port = app
    lacks = LACKS.get(name, set()) & set(case.get("needs", []))
    if lacks:
        pytest.skip(f"has no {', '.join(lacks)}")
    run, case = servers.begin(case)
    helpers = servers.Helpers()
    with contextlib.closing(helpers):
        perform(port, case, run, helpers)
