"""ATOMIC_REQUESTS, atomic() around it, the middleware, coroutines, connections that are closed or kept."""

import contextlib
import threading
import time
import uuid

import pytest

pytest.importorskip("django")

import drivers
import servers

drivers.django_setup()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import InterfaceError, connection, connections, transaction  # noqa: E402
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.test import Client, RequestFactory, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.decorators import api_view  # noqa: E402
from rest_framework.exceptions import ValidationError  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from rest_framework.viewsets import ViewSet  # noqa: E402

import idempotence  # noqa: E402
from idempotence import _transactions  # noqa: E402
from idempotence.django import idempotent  # noqa: E402
from idempotence.rest_framework import IdempotentMixin  # noqa: E402

RUN = uuid.uuid4().hex[:8]
calls = []


@pytest.fixture(scope="module", autouse=True)
def prepared():
    servers.prepare(["SELECT idem_create_session('traps')"])


@idempotent("traps")
def pay(request):
    calls.append(request.path)
    assert connection.in_atomic_block
    return JsonResponse({"n": len(calls)}, status=201)


@idempotent("traps")
def streamed(request):
    return StreamingHttpResponse(iter(["a"]))


def plain(request):
    calls.append(request.path)
    if request.path.endswith("missing"):
        raise Http404
    return HttpResponse(str(len(calls)), status=201)


def insert(name):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO client_effect VALUES (%s, 1)", [f"{name}-{RUN}"])


def effects(name):
    with servers.psycopg.connect(servers.uri()) as conn:
        return conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (f"{name}-{RUN}",)).fetchone()[0]


def pay_by_rest(request):
    calls.append(request.path)
    insert(request.headers["X-Effect"])
    if "X-Refused" in request.headers:
        raise ValidationError("refused")
    return Response({"n": len(calls), "atomic": connection.in_atomic_block}, status=201)


class Pay(IdempotentMixin, APIView):
    idempotent = idempotent("traps")

    def post(self, request):
        return pay_by_rest(request)

    def get(self, request):
        return pay_by_rest(request)


class Payments(IdempotentMixin, ViewSet):
    idempotent = idempotent("traps")

    def create(self, request):
        return pay_by_rest(request)


@api_view(["POST"])
@idempotent("traps")
def pay_function(request):
    return pay_by_rest(request)


@transaction.non_atomic_requests
@api_view(["POST"])
@idempotent("traps")
def pay_non_atomic_function(request):
    return pay_by_rest(request)


urlpatterns = [
    path("pay", pay),
    path("api/plain", plain),
    path("api/missing", plain),
    path("rest/mixin", Pay.as_view()),
    path("rest/viewset", Payments.as_view({"post": "create"})),
    path("rest/function", pay_function),
    path("rest/non-atomic-function", pay_non_atomic_function),
]


def asked(name):
    headers = {"Idempotency-Key": f"{name}-{RUN}"}
    return RequestFactory().post("/pay", b"{}", content_type="application/json", headers=headers)


@pytest.fixture
def client():
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]):
        yield Client(raise_request_exception=False)


@pytest.fixture
def atomic_requests():
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


def post(client, where, key, **headers):
    headers = {"Idempotency-Key": f'"{key}-{RUN}"', **headers}
    return client.post(where, b"{}", content_type="application/json", headers=headers)


def test_atomic_requests_does_not_wrap_a_protected_view(client, atomic_requests):
    first, second = post(client, "/pay", "atomic"), post(client, "/pay", "atomic")
    assert (first.status_code, second.status_code, first.content) == (201, 201, second.content)
    assert second.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("name", ["mixin", "viewset", "non-atomic-function"])
def test_atomic_requests_does_not_wrap_a_protected_view_of_rest_framework(client, atomic_requests, name):
    for key, headers, status, kept in [("paid", {}, 201, 1), ("refused", {"X-Refused": "1"}, 400, 0)]:
        key = f"rest-{name}-{key}"
        first, second = (post(client, f"/rest/{name}", key, **{"X-Effect": key}, **headers) for _ in range(2))
        assert (first.status_code, second.status_code, first.content) == (status, status, second.content)
        assert second.headers["Idempotent-Replayed"] == "true" and effects(key) == kept


def test_atomic_requests_wraps_the_other_methods_of_a_view_with_the_mixin(client, atomic_requests):
    answer = client.get("/rest/mixin", headers={"X-Effect": "get"})
    assert (answer.status_code, answer.json()["atomic"], effects("get")) == (201, True, 1)
    answer = client.get("/rest/mixin", headers={"X-Effect": "get-refused", "X-Refused": "1"})
    assert (answer.status_code, effects("get-refused")) == (400, 0)


def test_atomic_requests_around_api_view_is_told_with_what_to_do(atomic_requests):
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]), pytest.raises(ImproperlyConfigured, match="non_atom"):
        post(Client(), "/rest/function", "rest-function")


def test_a_transaction_around_it_is_told_with_what_to_do():
    request = RequestFactory().post(
        "/pay", b"{}", content_type="application/json", headers={"Idempotency-Key": f"around-{RUN}"}
    )
    with transaction.atomic(), pytest.raises(ImproperlyConfigured, match="non_atomic_requests"):
        pay(request)


def test_the_middleware_protects_what_is_below_its_paths(client):
    options = {"session": "traps", "paths": "/api/"}
    with override_settings(MIDDLEWARE=["idempotence.django.Middleware"], IDEMPOTENCE=options):
        first, second = post(client, "/api/plain", "middle"), post(client, "/api/plain", "middle")
        assert first.content == second.content and second.headers["Idempotent-Replayed"] == "true"
        assert post(client, "/api/missing", "gone").status_code == 404
        assert post(client, "/api/missing", "gone").headers["Idempotent-Replayed"] == "true"
        assert client.post("/api/plain", b"{}", content_type="application/json").status_code == 400


def test_the_middleware_is_the_last_one(client):
    middleware = ["idempotence.django.Middleware", "django.middleware.common.CommonMiddleware"]
    with (
        override_settings(MIDDLEWARE=middleware, IDEMPOTENCE={"session": "traps"}),
        pytest.raises(ImproperlyConfigured),
    ):
        Client().get("/pay")


def test_a_view_that_is_a_coroutine_is_refused():
    with pytest.raises(TypeError, match="plain function"):

        @idempotent("traps")
        async def view(request):
            return HttpResponse()


def test_an_answer_that_is_streamed_keeps_nothing():
    request = RequestFactory().post(
        "/s", b"{}", content_type="application/json", headers={"Idempotency-Key": f"stream-{RUN}"}
    )
    with pytest.raises(TypeError, match="must be whole"):
        streamed(request)
    assert idempotence.lookup("default", "traps", f":stream-{RUN}").status == "unknown"


@pytest.mark.parametrize(
    "close",
    [lambda: connection.close(), lambda: connections.close_all(), lambda: connection.connection.close()],
    ids=["close", "close_all", "driver"],
)
def test_a_view_that_closes_its_connection_is_refused(client, close, request):
    name = f"closes-{request.node.callspec.id}"
    called = []

    @idempotent("traps")
    def view(request):
        called.append(name)
        insert(name)
        close()
        return HttpResponse(status=201)

    with pytest.raises((RuntimeError, InterfaceError), match="must not close the connection|already closed"):
        view(asked(name))
    assert called == [name] and effects(name) == 0
    connection.close()  # after the request it can be closed
    assert post(client, "/pay", name).status_code == 201


@pytest.mark.parametrize("status", [201, 404, 500])
def test_a_cursor_that_a_view_keeps_is_refused_after_the_answer(status):
    """Its statement would be committed by the next request that uses this connection."""
    name, kept = f"kept-{status}", []

    @idempotent("traps")
    def view(request):
        kept.extend([connection.cursor(), connection.cursor(), connection.connection])
        kept[0].execute("INSERT INTO client_effect VALUES (%s, 1)", [f"{name}-{RUN}"])
        transaction.on_commit(lambda: late(kept[0]))
        if status == 404:
            raise Http404
        return HttpResponse(status=status)

    def late(cursor):
        try:
            cursor.execute("INSERT INTO client_effect VALUES (%s, 1)", [f"{name}-late-{RUN}"])
        except Exception as error:
            refused.append(error)

    refused = []
    assert view(asked(name)).status_code == status
    late(kept[0])
    thread = threading.Thread(target=late, args=[kept[1]])
    thread.start()
    thread.join()
    if drivers.DJANGO == "psycopg":
        late(kept[2])
    insert(f"{name}-next")
    kind = idempotence.TransactionEnded if drivers.DJANGO == "psycopg" else InterfaceError
    assert [type(error) for error in refused] == [kind] * (2 + (status == 201) + (drivers.DJANGO == "psycopg"))
    assert effects(f"{name}-late") == 0 and effects(f"{name}-next") == 1
    assert effects(name) == (status == 201)


def test_a_statement_that_a_thread_executes_after_the_view_is_broken_off(monkeypatch):
    monkeypatch.setattr(_transactions, "PATIENCE", 0.2)
    name, threads = "outlives", []

    @idempotent("traps")
    def view(request):
        insert(name)
        cursor = connection.cursor()
        threads.append(threading.Thread(target=sleep, args=[cursor]))
        threads[0].start()
        time.sleep(0.2)
        return HttpResponse(status=201)

    def sleep(cursor):
        with contextlib.suppress(Exception):
            cursor.execute("SELECT pg_sleep(20)")

    began = time.monotonic()
    with pytest.raises(TimeoutError, match="still executing a statement"):
        view(asked(name))
    threads[0].join()
    assert time.monotonic() - began < 5 and effects(name) == 0
