"""Setups that cannot be right are refused: when an application is made, otherwise in its first request. And those that
are right work: tests without a database, uploads, documentation."""

import asyncio
import functools
import threading
import uuid

import drivers
import httpx
import psycopg
import pytest
import servers

pytest.importorskip("fastapi")

from fastapi import APIRouter, Cookie, Depends, FastAPI, File, Header, HTTPException, Request, Security  # noqa: E402
from fastapi.security import HTTPBearer  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from psycopg_pool import AsyncConnectionPool, ConnectionPool  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.endpoints import HTTPEndpoint  # noqa: E402
from starlette.responses import JSONResponse  # noqa: E402
from starlette.routing import Mount, Route  # noqa: E402

import idempotence  # noqa: E402
from idempotence.fastapi import Idempotent  # noqa: E402
from idempotence.starlette import Idempotent as StarletteIdempotent  # noqa: E402

RUN = uuid.uuid4().hex[:8]


@pytest.fixture(scope="module")
def pool():
    servers.prepare(["SELECT idem_create_session('setups')"])
    with ConnectionPool(servers.uri(), min_size=1, max_size=2, timeout=2) as pool:
        yield pool


def unopened():
    return AsyncConnectionPool(servers.uri(), open=False)


def application(idempotent):
    app = FastAPI()
    app.router.route_class = idempotent.route
    return app


def key(name):
    return {"Idempotency-Key": f"{name}-{RUN}"}


# Construction


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda pool: Idempotent("setups", pool), "pass the pool first"),
        (lambda pool: Idempotent(None, "setups"), "pass a pool"),
        (lambda pool: Idempotent(pool, "setups", identity="user"), "identity is a function"),
        (lambda pool: Idempotent(pool, "setups", requried=False), "requried"),
        (lambda pool: Idempotent(pool, "setups", methods="POST"), "lists"),
        (lambda pool: idempotence.run("setups", pool, "k", None, print), "pass the pool first"),
        (lambda pool: idempotence.run(pool, "setups", "k", print, None), "the work is a function"),
    ],
    ids=range(7),
)
def test_mistakes_in_arguments(pool, make, says):
    with pytest.raises(TypeError, match=says):
        make(pool)


def test_an_asynchronous_pool_needs_an_asynchronous_function(pool):
    idempotent = Idempotent(unopened(), "setups")
    with pytest.raises(TypeError, match="async def"):

        @application(idempotent).post("/")
        def pay(conn=Depends(idempotent)):
            return {}

    with pytest.raises(TypeError, match="async def"):
        StarletteIdempotent(unopened(), "setups")(lambda request: JSONResponse({}))


def test_with_on_an_asynchronous_pool_raises(pool):
    worked = []
    with pytest.raises(TypeError, match="async with"), idempotence.lease(unopened(), "setups", "k"):
        worked.append(1)

    async def blocking():
        async with idempotence.lease(pool, "setups", "k"):
            worked.append(1)

    with pytest.raises(TypeError, match="use `with`"):
        asyncio.run(blocking())
    assert worked == []


def test_a_guard_on_a_route_without_a_protected_method_is_refused(pool):
    idempotent = Idempotent(pool, "setups")
    with pytest.raises(TypeError, match=r"none of its methods is \(GET\)"):

        @application(idempotent).get("/")
        def pay(conn=Depends(idempotent)):
            return {}

    reads = Idempotent(pool, "setups", methods=["get"])

    @(app := application(reads)).get("/")
    def named(conn=Depends(reads)):
        return uuid.uuid4()

    client = TestClient(app)
    assert client.get("/", headers=key("get")).json() == client.get("/", headers=key("get")).json()


def test_two_guards_on_a_route_are_refused(pool):
    one, two = Idempotent(pool, "setups"), Idempotent(pool, "setups")
    with pytest.raises(TypeError, match="two Idempotent"):

        @application(one).post("/")
        def pay(a=Depends(one), b=Depends(two)):
            return {}


# Authentication


def authenticated_by(idempotent):
    def by_header(authorization: str = Header(""), conn=Depends(idempotent)):
        return authorization

    def by_cookie(session: str = Cookie(""), conn=Depends(idempotent)):
        return session

    def by_request(request: Request, conn=Depends(idempotent)):
        return request.headers["authorization"]

    def by_scheme(token=Security(HTTPBearer()), conn=Depends(idempotent)):
        return token

    return by_header, by_cookie, by_request, by_scheme


@pytest.mark.parametrize("number", range(4))
def test_a_dependency_that_authenticates_inside_is_refused(pool, number):
    """A replay would be answered without it."""
    idempotent = Idempotent(pool, "setups")
    user = authenticated_by(idempotent)[number]
    with pytest.raises(TypeError, match="must not authenticate"):

        @application(idempotent).post("/")
        def pay(user=Depends(user), conn=Depends(idempotent)):
            return {}


def test_dependencies_inside_that_do_not_authenticate(pool):
    class Repository:
        def __init__(self, conn):
            self.conn = conn

    idempotent = Idempotent(pool, "setups")

    @idempotent.inside
    def traced(request: Request, conn=Depends(idempotent)):
        return request.url.path

    def repository(conn=Depends(idempotent)):
        return Repository(conn)

    @(app := application(idempotent)).post("/")
    def pay(repository=Depends(repository), path=Depends(traced)):
        return repository.conn.execute("SELECT 1").fetchone()

    client = TestClient(app)
    assert client.post("/", headers=key("repository")).json() == [1]
    assert client.post("/", headers=key("repository")).headers["Idempotent-Replayed"] == "true"


def test_a_refusal_before_the_path_function_is_not_recorded(pool):
    """Also by a dependency that is resolved within the transaction."""
    idempotent, may = Idempotent(pool, "setups"), [False]

    def account(conn=Depends(idempotent)):
        if not may[0]:
            raise HTTPException(403, "not your account")

    @(app := application(idempotent)).post("/")
    def pay(account=Depends(account)):
        return {"paid": 1}

    client = TestClient(app)
    assert client.post("/", headers=key("account")).status_code == 403
    may[0] = True
    assert client.post("/", headers=key("account")).json() == {"paid": 1}


# Identity


class Text(str):
    """A principal's id that is a string."""


async def asynchronous(request):
    await asyncio.sleep(0)
    return request.headers["X-User"]


@pytest.mark.parametrize(
    "identity",
    [
        asynchronous,
        lambda request: asynchronous(request),
        functools.partial(asynchronous),
        lambda request: Text(request.headers["X-User"]),
        lambda request: len(request.headers["X-User"]),
        lambda request: uuid.uuid5(uuid.NAMESPACE_DNS, request.headers["X-User"]),
    ],
    ids=["async", "awaitable", "partial", "str", "int", "UUID"],
)
def test_each_identity_has_keys_of_its_own(pool, identity):
    calls, name = [], uuid.uuid4().hex

    @StarletteIdempotent(pool, "setups", identity=identity)
    def pay(request):
        calls.append(request.headers["X-User"])
        return JSONResponse({"paid_by": calls[-1]})

    client = TestClient(Starlette(routes=[Route("/", pay, methods=["POST"])]))
    got = [
        client.post("/", headers={**key(name), "X-User": user}).json()["paid_by"]
        for user in ("alice", "bob", "alice", "bob")
    ]
    assert got == ["alice", "bob", "alice", "bob"] and calls == ["alice", "bob"]


class User:
    """As many libraries have it: without a text form of its own."""


@pytest.mark.parametrize("who", [None, "", True, 1.5, b"alice", User(), {"id": 1}, {1}, ["alice"]], ids=type)
def test_what_is_no_identity_is_refused(pool, who):
    calls, name = [], uuid.uuid4().hex

    @StarletteIdempotent(pool, "setups", identity=lambda request: who)
    def pay(request):
        calls.append(1)
        return JSONResponse({})

    app = Starlette(routes=[Route("/", pay, methods=["POST"])])
    assert TestClient(app, raise_server_exceptions=False).post("/", headers=key(name)).status_code == 500
    with pytest.raises(TypeError, match="authenticate in front of the adapter"):
        TestClient(app).post("/", headers=key(name))
    assert calls == [] and idempotence.lookup(pool, "setups", f":{name}-{RUN}").status == "unknown"


# What works


def test_an_httpendpoint(pool):
    class Pay(HTTPEndpoint):
        calls = 0

        @StarletteIdempotent(pool, "setups")
        async def post(self, request):
            Pay.calls += 1
            request.state.conn.execute("SELECT 1")
            return JSONResponse({"n": Pay.calls})

    client = TestClient(Starlette(routes=[Route("/", Pay)]))
    assert [client.post("/", headers=key("endpoint")).json() for _ in range(2)] == [{"n": 1}] * 2
    with pytest.raises(TypeError, match="methods of Pay"):
        StarletteIdempotent(pool, "setups")(Pay)


def test_a_mounted_application_signs_the_whole_path(pool):
    calls = []

    @StarletteIdempotent(pool, "setups")
    def pay(request):
        calls.append(request.url.path)
        return JSONResponse({})

    inner = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    client = TestClient(Starlette(routes=[Mount("/a", inner), Mount("/b", inner)]))
    assert client.post("/a/pay", headers=key("mounted")).status_code == 200
    assert client.post("/b/pay", headers=key("mounted")).status_code == 422 and calls == ["/a/pay"]


@pytest.mark.parametrize("included", [False, True])
def test_dependency_overrides_replace_the_database(pool, included):
    idempotent = Idempotent(AsyncConnectionPool("host=127.0.0.1 port=1", open=False), "setups")
    app, router = application(idempotent), APIRouter(route_class=idempotent.route)

    class Fake:
        async def execute(self, sql):
            return [sql]

    @(router if included else app).post("/pay")
    async def pay(conn=Depends(idempotent)):
        return await conn.execute("SELECT 1")

    app.include_router(router)
    app.dependency_overrides[idempotent] = Fake
    for _ in range(2):
        assert TestClient(app).post("/pay").json() == ["SELECT 1"]


def test_the_documentation_of_the_api_has_the_header(pool):
    idempotent = Idempotent(pool, "setups")

    @(app := application(idempotent)).post("/pay")
    def pay(conn=Depends(idempotent)):
        return {}

    (parameter,) = app.openapi()["paths"]["/pay"]["post"]["parameters"]
    assert (parameter["name"], parameter["in"]) == ("Idempotency-Key", "header") and parameter["description"]
    assert TestClient(app).post("/pay").json()["type"].endswith("#key-missing")


@pytest.mark.parametrize("framework", ["fastapi", "django"])
def test_an_upload_is_compared_by_its_parts(pool, framework):
    """A client makes a new boundary for each attempt."""
    calls = []
    if framework == "fastapi":
        idempotent = Idempotent(pool, "setups")

        @(app := application(idempotent)).post("/")
        def upload(file: bytes = File(), conn=Depends(idempotent)):
            calls.append(file)
            return len(file)

        client = TestClient(app)

        def send(data, boundary, name="upload"):
            kind = f"multipart/form-data; boundary={boundary}"
            return client.post("/", content=data, headers={**key(name), "Content-Type": kind})
    else:
        drivers.django_setup()
        from django.http import JsonResponse
        from django.test import RequestFactory

        from idempotence.django import idempotent as django_idempotent

        @django_idempotent("setups")
        def view(request):
            calls.append(request.FILES["file"].read())
            return JsonResponse(len(calls[-1]), safe=False)

        def send(data, boundary, name="upload-django"):
            kind = f'multipart/form-data; boundary="{boundary}"'
            return view(RequestFactory().post("/", data, content_type=kind, headers=key(name)))

    def body(content, boundary):
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        return f"{head}{content}\r\n--{boundary}--\r\n".encode()

    first, second = (send(body("hello", each), each) for each in ("aaaa", "bbbb"))
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.headers["Idempotent-Replayed"] == "true" and calls == [b"hello"]
    assert send(body("hell0", "cccc"), "cccc").status_code == 422
    assert send(body("hello", "dddd") + b"more", "dddd").status_code == 422


def test_a_body_that_breaks_off_is_answered_400_where_the_server_can(pool):
    """uvicorn closes the connection; another server may pass a short body."""
    calls = []

    @StarletteIdempotent(pool, "setups")
    def pay(request):
        calls.append(1)
        return JSONResponse({})

    app = Starlette(routes=[Route("/", pay, methods=["POST"])])
    headers = [(b"idempotency-key", f"short-{RUN}".encode()), (b"content-length", b"18")]
    scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}

    async def answer(*messages):
        unsent, sent = list(messages), []

        async def receive():
            return unsent.pop(0)

        async def send(message):
            sent.append(message)

        await app({**scope, "http_version": "1.1"}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    short = {"type": "http.request", "body": b"to=bob&amount=10", "more_body": False}
    for messages in ([short], [{**short, "more_body": True}, {"type": "http.disconnect"}]):
        status, body = asyncio.run(answer(*messages))
        assert status == 400 and b"#body-incomplete" in body
    assert calls == []


@pytest.mark.parametrize("awaited", [False, True], ids=["at import", "awaited elsewhere"])
def test_a_pool_of_asyncpg_that_a_module_makes(pool, awaited):
    """uvicorn serves in a loop of its own."""
    import asyncpg

    parts = psycopg.conninfo.conninfo_to_dict(servers.uri())
    made = []

    async def make():
        options = {"host": parts["host"], "user": parts["user"], "database": parts["dbname"], "min_size": 1}
        made.append(asyncpg.create_pool(**options))
        if awaited:
            await made[0]

    maker = threading.Thread(target=lambda: asyncio.run(make()))
    maker.start()
    maker.join()

    @StarletteIdempotent(made[0], "setups")
    async def pay(request):
        return JSONResponse(await request.state.conn.fetchval("SELECT 1"))

    async def requests():
        transport = httpx.ASGITransport(Starlette(routes=[Route("/", pay, methods=["POST"])]))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            got = await asyncio.gather(*(client.post("/", headers=key(f"asyncpg-{n}-{awaited}")) for n in range(3)))
            assert [each.json() for each in got] == [1, 1, 1]
            await made[0].close()

    if awaited:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(requests())
    else:
        asyncio.run(requests())


# Answers


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, {"a": (1,)}, Text("x")], ids=repr)
def test_the_first_answer_of_run_has_the_types_of_a_replay(pool, value):
    name = uuid.uuid4().hex
    first, second = (idempotence.run(pool, "setups", name, None, lambda conn: value) for _ in range(2))
    assert repr(first.response) == repr(second.response) and second.replayed


def test_run_with_a_lease(pool):
    name, calls = uuid.uuid4().hex, []

    def charge(held):
        calls.append(held.token)
        return {"charged": 1}

    for replayed in (False, True):
        answer = idempotence.run(pool, "setups", name, {"a": 1}, charge, lease=30)
        assert (answer.status, answer.response, answer.replayed) == ("succeeded", {"charged": 1}, replayed)
    assert len(calls) == 1


def test_a_lease_has_a_token_only_with_a_claim(pool):
    name, calls = uuid.uuid4().hex, []
    with idempotence.lease(pool, "setups", name) as held:
        held.record({"charged": 1})
    again = idempotence.lease(pool, "setups", name)
    with pytest.raises(idempotence.Done) as done, again:
        calls.append(1)
    assert calls == [] and done.value.answer.response == {"charged": 1} and not hasattr(again, "token")


def test_an_error_of_a_card_processor_is_not_retried_with_a_lease(pool):
    calls = []

    @StarletteIdempotent(pool, "setups", lease=30)
    def pay(request):
        calls.append(1)
        raise ConnectionResetError("the card processor is away")

    app = Starlette(routes=[Route("/", pay, methods=["POST"])])
    assert TestClient(app, raise_server_exceptions=False).post("/", headers=key("card")).status_code == 500
    assert calls == [1]
