"""ATOMIC_REQUESTS, atomic() around it, the middleware, coroutines."""

import uuid

import pytest

pytest.importorskip("django")

import drivers
import servers

drivers.django_setup()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.test import Client, RequestFactory, override_settings  # noqa: E402
from django.urls import path  # noqa: E402

import idempotence  # noqa: E402
from idempotence.django import idempotent  # noqa: E402

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


urlpatterns = [path("pay", pay), path("api/plain", plain), path("api/missing", plain)]


@pytest.fixture
def client():
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]):
        yield Client(raise_request_exception=False)


def post(client, where, key):
    return client.post(where, b"{}", content_type="application/json", headers={"Idempotency-Key": f'"{key}-{RUN}"'})


def test_atomic_requests_does_not_wrap_a_protected_view(client):
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        first, second = post(client, "/pay", "atomic"), post(client, "/pay", "atomic")
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert (first.status_code, second.status_code, first.content) == (201, 201, second.content)
    assert second.headers["Idempotent-Replayed"] == "true"


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
