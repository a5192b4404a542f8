"""What is caught when an application is made, or in its first request."""

import asyncio
import time
import uuid

import pytest

pytest.importorskip("fastapi")

import httpx
import servers
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.responses import StreamingResponse

import idempotence
from idempotence.fastapi import Idempotent

RUN = uuid.uuid4().hex[:8]


def application(idempotent, protected=True):
    app = FastAPI()
    if protected:
        app.router.route_class = idempotent.route
    return app


@pytest.fixture(scope="module")
def pool():
    from psycopg_pool import ConnectionPool

    servers.prepare(["SELECT idem_create_session('traps')"])
    with ConnectionPool(servers.uri(), min_size=1, max_size=2, timeout=2) as pool:
        yield pool


@pytest.mark.parametrize("key", [None, True, 1.5, b"k"])
def test_what_is_no_key_names_no_request(pool, key):
    with pytest.raises(TypeError, match="the key of a request is"):
        idempotence.run(pool, "traps", key, None, lambda conn: None)
    with pool.connection() as conn, pytest.raises(TypeError, match="the key of a request is"):
        idempotence.once(conn, "traps", [key])


def get_db():
    yield None


def test_a_dependency_with_a_yield_is_refused(pool):
    idempotent = Idempotent(pool, "traps")
    app = application(idempotent)
    with pytest.raises(TypeError, match="get_db has a yield"):

        @app.post("/pay")
        def pay(conn=Depends(idempotent), db=Depends(get_db)):
            return {}


def test_it_is_refused_on_an_included_router(pool):
    idempotent = Idempotent(pool, "traps")
    app, router = FastAPI(), APIRouter(route_class=idempotent.route)

    @router.post("/pay")
    def pay(conn=Depends(idempotent)):
        return {}

    with pytest.raises(TypeError, match="get_db has a yield"):
        app.include_router(router, dependencies=[Depends(get_db)])
        TestClient(app).post("/pay", headers={"Idempotency-Key": f"key-{RUN}"})


def test_a_harmless_one_is_named(pool):
    idempotent = Idempotent(pool, "traps", yields=[get_db])
    app = application(idempotent)

    @app.post("/harmless")
    def pay(db=Depends(get_db), conn=Depends(idempotent)):
        return {}

    assert TestClient(app).post("/harmless", headers={"Idempotency-Key": f"key-{RUN}"}).status_code == 200


def test_a_route_of_another_class_fails_in_the_first_request(pool):
    idempotent = Idempotent(pool, "traps")
    app = application(idempotent, protected=False)

    @app.post("/pay")
    def pay(conn=Depends(idempotent)):
        return {}

    with pytest.raises(RuntimeError, match="route_class=idempotent.route"):
        TestClient(app).post("/pay", headers={"Idempotency-Key": f"key-{RUN}"})


def test_an_answer_that_is_streamed_fails_in_the_first_request_and_keeps_nothing(pool):
    idempotent = Idempotent(pool, "traps")
    app = application(idempotent)

    @app.post("/stream")
    def pay(conn=Depends(idempotent)):
        return StreamingResponse(iter(["a"]))

    with pytest.raises(TypeError, match="must be whole"):
        TestClient(app).post("/stream", headers={"Idempotency-Key": f"streamed-{RUN}"})
    assert idempotence.lookup(pool, "traps", f":streamed-{RUN}").status == "unknown"


def test_a_handler_that_commits_is_refused(pool):
    idempotent = Idempotent(pool, "traps")
    app = application(idempotent)

    @app.post("/commits")
    def pay(conn=Depends(idempotent)):
        conn.commit()
        return {}

    with pytest.raises(RuntimeError, match="the handler must not commit or roll back"):
        TestClient(app).post("/commits", headers={"Idempotency-Key": f"commits-{RUN}"})
    assert idempotence.lookup(pool, "traps", f":commits-{RUN}").status == "unknown"


def test_a_background_task_runs_after_commit(pool):
    from fastapi import BackgroundTasks

    idempotent, seen = Idempotent(pool, "traps"), []
    app = application(idempotent)

    @app.post("/task")
    def pay(tasks: BackgroundTasks, conn=Depends(idempotent)):
        tasks.add_task(lambda: seen.append(idempotence.lookup(pool, "traps", f":task-{RUN}").status))
        return {}

    client = TestClient(app)
    for _ in range(2):
        assert client.post("/task", headers={"Idempotency-Key": f"task-{RUN}"}).status_code == 200
    assert seen == ["succeeded"]


def test_a_dependency_that_refuses_comes_first_and_is_not_recorded(pool):
    from fastapi import Header, HTTPException

    def login(authorization: str = Header("")):
        if authorization != "me":
            raise HTTPException(401)

    idempotent = Idempotent(pool, "traps")
    app = application(idempotent)

    @app.post("/login")
    def pay(conn=Depends(idempotent), user=Depends(login)):
        return {"paid": 1}

    client, key = TestClient(app), {"Idempotency-Key": f"login-{RUN}"}
    assert client.post("/login", headers=key).status_code == 401
    assert client.post("/login", headers={**key, "Authorization": "me"}).json() == {"paid": 1}
    # A replay is for whoever is let in.
    assert client.post("/login", headers=key).status_code == 401


def superseded(lease):
    """Gives a lease up behind its holder's back."""
    with servers.psycopg.connect(servers.uri(), autocommit=True) as conn:
        conn.execute("SELECT idem_release('traps', %s, token => %s)", (lease.key, lease.token))


def test_a_lease_that_is_lost_ends_the_handler_with_409(pool):
    async def late(conn):
        superseded(conn)
        await asyncio.sleep(5)
        return {}

    def late_blocking(conn):
        superseded(conn)
        while not conn.lost:
            time.sleep(0.02)
        return {}

    async def both():
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(servers.uri(), min_size=1, open=False) as asynchronous:
            for source, handler in (asynchronous, late), (pool, late_blocking):
                idempotent = Idempotent(source, "traps", lease=0.3)
                app = application(idempotent)
                kind = "async " if source is asynchronous else ""
                names = {"idempotent": idempotent, "Depends": Depends, "handler": handler}
                exec(f"{kind}def pay(conn=Depends(idempotent)): return {'await ' if kind else ''}handler(conn)", names)
                app.post("/late")(names["pay"])
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                    answer = await client.post("/late", headers={"Idempotency-Key": f"late-{bool(kind)}-{RUN}"})
                assert answer.status_code == 409 and answer.json()["type"].endswith("#superseded"), answer.text

    asyncio.run(both())


def test_functions_that_are_not_on_the_path_are_told(pool):
    (fault,) = idempotence.check(servers.uri(options="-c search_path=pg_catalog"), "traps")
    assert fault.startswith("search_path: it lacks ")


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_that_is_gone_is_given_back(pool, autocommit):
    from psycopg_pool import ConnectionPool

    with ConnectionPool(servers.uri(), min_size=1, max_size=1, timeout=5, kwargs={"autocommit": autocommit}) as one:
        with one.connection() as conn:
            pid = conn.info.backend_pid
        with servers.psycopg.connect(servers.uri(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        for key in ("first", "second"):
            name = f"{key}-{autocommit}-{RUN}"
            assert idempotence.run(one, "traps", name, None, lambda conn: 1, deadline=8).response == 1


def test_set_cookie_is_never_on_the_list(pool):
    with pytest.raises(ValueError, match="Set-Cookie"):
        Idempotent(pool, "traps", headers=["Set-Cookie"])


def test_work_that_is_a_coroutine_needs_an_asynchronous_pool(pool):
    async def work(conn):
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="asynchronous pool"):
        idempotence.run(pool, "traps", f"coroutine-{RUN}", None, work)


def test_the_error_behind_a_503_is_logged(pool, caplog):
    idempotent = Idempotent(pool, "traps", deadline=0.2)
    app = application(idempotent)

    @app.post("/busy")
    def busy(conn=Depends(idempotent)):
        conn.execute("DO $$ BEGIN RAISE EXCEPTION 'the stock is busy' USING ERRCODE = '55P03'; END $$")

    answer = TestClient(app).post("/busy", headers={"Idempotency-Key": f"busy-{RUN}"})
    assert answer.status_code == 503
    assert "the stock is busy" in caplog.text
