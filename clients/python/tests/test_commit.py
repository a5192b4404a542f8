"""Nobody is answered before COMMIT has returned, and a COMMIT whose answer is lost is asked about. A proxy holds it
up."""

import asyncio
import pathlib
import sys
import tempfile
import threading
import time
import uuid

import httpx
import psycopg
import pytest
import servers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "snippets"))

from commit_proxy import CommitProxy  # noqa: E402

import idempotence  # noqa: E402


@pytest.fixture
def proxy():
    servers.prepare(["SELECT idem_create_session('commits')"])
    there = servers.conninfo_to_dict(servers.URI)["host"]
    with tempfile.TemporaryDirectory() as here:
        yield CommitProxy(here, there), servers.uri(host=here)


INSERT = "INSERT INTO client_effect VALUES (%s, 1)"


def run_psycopg(uri, key):
    def work(conn):
        conn.execute(INSERT, (key,))
        return "done"

    return idempotence.run(uri, "commits", key, None, work).response


async def run_fastapi(uri, key):
    from fastapi import Depends, FastAPI
    from psycopg_pool import AsyncConnectionPool

    from idempotence.fastapi import Idempotent

    async with AsyncConnectionPool(uri, min_size=1, open=False) as pool:
        idempotent = Idempotent(pool, "commits", deadline=20)
        app = FastAPI()
        app.router.route_class = idempotent.route

        @app.post("/")
        async def pay(conn=Depends(idempotent)):
            await conn.execute(INSERT, (key,))
            return "done"

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return (await client.post("/", headers={"Idempotency-Key": key})).json()


def run_django(uri, key):
    import drivers

    drivers.django_setup()
    from django.db import connections
    from django.http import HttpResponse
    from django.test import RequestFactory

    from idempotence.django import idempotent

    alias = f"commits{key}"
    drivers.django_alias(alias, uri)

    @idempotent("commits", using=alias, deadline=20)
    def pay(request):
        with connections[alias].cursor() as cursor:
            cursor.execute(INSERT, (key,))
        return HttpResponse("done")

    answer = pay(RequestFactory().post("/", headers={"Idempotency-Key": key})).content.decode()
    connections[alias].close()
    return answer


WAYS = {"psycopg": run_psycopg, "fastapi": lambda *args: asyncio.run(run_fastapi(*args)), "django": run_django}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("lost", [False, True], ids=["goes on", "lost"])
@pytest.mark.parametrize("way", WAYS)
def test_the_answer_comes_after_commit(proxy, way, lost, when):
    proxy, uri = proxy
    key, answers = uuid.uuid4().hex[:12], []
    proxy.hold(1, when)
    thread = threading.Thread(target=lambda: answers.append(WAYS[way](uri, key)), daemon=True)
    thread.start()
    last = time.monotonic() + 20
    while not proxy.held:
        assert time.monotonic() < last and thread.is_alive(), answers
        time.sleep(0.01)
    time.sleep(0.2)
    assert not answers
    proxy.go(lost)
    thread.join(20)
    assert answers == ["done"]
    with psycopg.connect(servers.URI) as conn:
        assert conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (key,)).fetchone()[0] == 1
