"""Django's own mechanisms: on_commit, TestCase, login_required, REST framework, servers of WSGI."""

import gzip
import json
import socket
import subprocess
import sys
import time
import unittest
import uuid

import pytest

pytest.importorskip("django")

import drivers
import servers

drivers.django_setup()

from django.contrib.auth.decorators import login_required, permission_required  # noqa: E402
from django.core.exceptions import ImproperlyConfigured, PermissionDenied  # noqa: E402
from django.db import IntegrityError, OperationalError, connection, transaction  # noqa: E402
from django.http import Http404, HttpResponse, JsonResponse  # noqa: E402
from django.test import Client, RequestFactory, TestCase, TransactionTestCase, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.decorators import method_decorator  # noqa: E402
from django.views.decorators.gzip import gzip_page  # noqa: E402
from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.decorators import api_view, authentication_classes, permission_classes  # noqa: E402
from rest_framework.exceptions import AuthenticationFailed, ValidationError  # noqa: E402
from rest_framework.permissions import BasePermission, IsAuthenticated  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.throttling import BaseThrottle  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from rest_framework.viewsets import ViewSet  # noqa: E402

import idempotence  # noqa: E402
from idempotence.django import idempotent  # noqa: E402
from idempotence.rest_framework import IdempotentMixin  # noqa: E402

RUN = uuid.uuid4().hex[:8]
hooks = []
calls = []


@pytest.fixture(scope="module", autouse=True)
def prepared():
    servers.prepare(["SELECT idem_create_session('framework')"])


@pytest.fixture(autouse=True)
def forgotten():
    hooks.clear()
    calls.clear()
    yield
    connection.close()


def effects(name):
    with servers.psycopg.connect(servers.uri()) as conn:
        return conn.execute("SELECT count(*) FROM client_effect WHERE run = %s", (f"{name}-{RUN}",)).fetchone()[0]


def work(name):
    calls.append(name)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO client_effect VALUES (%s, 1)", [f"{name}-{RUN}"])
    transaction.on_commit(lambda: hooks.append((name, effects(name))))


def ask(view, name, **headers):
    """The answer of a view. An exception that no view answers is raised."""
    headers = {"Idempotency-Key": f"{name}-{RUN}", **headers}
    request = RequestFactory().post("/", b'{"a": 1}', content_type="application/json", headers=headers)
    response = view(request)
    return response.render() if hasattr(response, "render") else response


# on_commit


@idempotent("framework")
def pays(request):
    work("pays")
    return JsonResponse({}, status=201)


@idempotent("framework")
def returns_402(request):
    work("returns_402")
    return JsonResponse({}, status=402)


@idempotent("framework")
def raises_404(request):
    work("raises_404")
    raise Http404


@idempotent("framework")
def raises_403(request):
    work("raises_403")
    raise PermissionDenied


@idempotent("framework")
def asks_for_a_rollback(request):
    work("asks_for_a_rollback")
    transaction.set_rollback(True)
    return JsonResponse({}, status=400)


@idempotent("framework")
def catches_outside_a_savepoint(request):
    work("catches_outside_a_savepoint")
    try:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO client_effect VALUES ('x', 5000)")
    except IntegrityError:
        return JsonResponse({}, status=422)


@pytest.mark.parametrize(
    "view, status, ran",
    [
        (pays, 201, 1),
        (returns_402, 402, 1),
        (raises_404, 404, 0),
        (raises_403, 403, 0),
        (asks_for_a_rollback, 400, 0),
        (catches_outside_a_savepoint, 422, 0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_hooks_run_after_commit_and_only_with_their_effects(view, status, ran):
    name = view.__name__
    first, second = ask(view, name), ask(view, name)
    assert (first.status_code, second.status_code) == (status, status)
    assert second.headers["Idempotent-Replayed"] == "true" and len(calls) == 1
    assert hooks == [(name, 1)] * ran and effects(name) == ran


def test_hooks_of_a_failed_request_do_not_run():
    @idempotent("framework")
    def fails(request):
        work("fails")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        ask(fails, "fails")
    ask(pays, "after-fails")
    assert [name for name, _ in hooks] == ["pays"]


@pytest.mark.parametrize("error", [ValueError, OperationalError])
def test_a_hook_that_fails_is_logged_and_the_answer_stands(error, caplog):
    name = f"hook-{error.__name__}"

    @idempotent("framework")
    def view(request):
        def fail():
            raise error("the mail server is away")

        transaction.on_commit(fail)
        work(name)
        return JsonResponse({}, status=201)

    assert ask(view, name).status_code == 201 and hooks == [(name, 1)]
    assert "the mail server is away" in caplog.text


def test_an_error_that_the_view_ignores_is_not_201():
    @idempotent("framework")
    def view(request):
        work("ignores")
        try:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO client_effect VALUES ('x', 5000)")
        except IntegrityError:
            return JsonResponse({}, status=201)

    with pytest.raises(Exception, match="savepoint"):
        ask(view, "ignores")
    assert effects("ignores") == 0 and hooks == []


# TestCase


class InTestCase(TestCase):
    __test__ = False  # run by test_cases_of_django
    databases = ["default"]

    def test_requests_and_the_orm(self):
        committed = effects("pays")
        first, second = ask(pays, "testcase"), ask(pays, "testcase")
        self.assertEqual((first.status_code, second.status_code), (201, 201))
        self.assertEqual(second.headers["Idempotent-Replayed"], "true")
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM client_effect WHERE run = %s", [f"pays-{RUN}"])
            self.assertEqual(cursor.fetchone(), (committed + 1,))
        self.assertEqual(ask(raises_404, "testcase-404").status_code, 404)
        self.assertEqual(ask(raises_404, "testcase-404").headers["Idempotent-Replayed"], "true")

    def test_the_client_of_django(self):
        with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]), self.captureOnCommitCallbacks(execute=True):
            for _ in range(2):
                answer = Client().post("/pays", headers={"Idempotency-Key": f"client-{RUN}"})
                self.assertEqual(answer.status_code, 201)
        self.assertEqual(len(hooks), 1)

    def test_run(self):
        for _ in range(2):
            answer = idempotence.run("default", "framework", f"run-{RUN}", {"a": 1}, lambda conn: {"n": 1})
            self.assertEqual(answer.response, {"n": 1})


class InTransactionTestCase(TransactionTestCase):
    __test__ = False
    available_apps = []

    def _fixture_teardown(self):
        """The tables of these tests are not Django's."""

    def test_requests(self):
        first, second = ask(pays, "transactiontestcase"), ask(pays, "transactiontestcase")
        self.assertEqual((first.status_code, second.status_code), (201, 201))
        self.assertEqual(second.headers["Idempotent-Replayed"], "true")


urlpatterns = [path("pays", pays)]


@pytest.mark.parametrize("case", [InTestCase, InTransactionTestCase])
def test_cases_of_django(case):
    result, committed = unittest.TestResult(), effects("pays")
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = [text for _, text in result.errors + result.failures]
    assert not problems and result.testsRun, problems[0]
    if case is InTestCase:
        assert effects("pays") == committed, "a TestCase rolls back"


def test_pytest_django(tmp_path):
    """Its own process: pytest-django configures Django when pytest starts."""
    (tmp_path / "test_shop.py").write_text(
        f"""
import pytest, sys
sys.path.insert(0, {str(servers.CLIENTS / "python" / "tests")!r})
import test_django_framework as framework
from django.db import connection

@pytest.mark.django_db
def test_twice():
    for _ in range(2):
        assert framework.ask(framework.pays, "pytest-django").status_code == 201
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")

@pytest.fixture(scope="session")
def django_db_setup():
    pass
"""
    )
    (tmp_path / "conftest.py").write_text("import drivers\ndrivers.django_setup()\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


# Authentication


@pytest.mark.parametrize("check", [login_required, permission_required("pay")], ids=["login", "permission"])
def test_login_required_below_the_adapter_is_refused(check):
    @check
    def view(request):
        return HttpResponse()

    with pytest.raises(TypeError, match="above @idempotent"):
        idempotent("framework")(view)
    assert callable(check(idempotent("framework")(lambda request: HttpResponse())))


def test_the_middleware_refuses_views_that_authenticate_inside():
    options = {"session": "framework"}
    with override_settings(
        MIDDLEWARE=["idempotence.django.Middleware"], IDEMPOTENCE=options, ROOT_URLCONF="test_django_framework_urls"
    ):
        for where in ("login", "rest"):
            with pytest.raises(ImproperlyConfigured):
                Client().post(f"/{where}", headers={"Idempotency-Key": f"middleware-{RUN}"})
        answer = Client().post("/mixin", headers={"Idempotency-Key": f"middleware-{RUN}", "Authorization": "alice"})
        assert answer.status_code == 201


class User:
    is_authenticated = True

    def __init__(self, name):
        self.pk = name


class Token(BaseAuthentication):
    def authenticate(self, request):
        token = request.headers.get("Authorization")
        if token == "expired":
            raise AuthenticationFailed("the token has expired")
        return (User(token.removeprefix("renewed ")), token) if token else None

    def authenticate_header(self, request):
        return "Bearer"


class ReadsTheBody(BasePermission):
    def has_permission(self, request, view):
        return "a" in request.data or "b" in request.data


class Wait(BaseThrottle):
    def allow_request(self, request, view):
        return "X-Throttled" not in request.headers


def pay_as(request):
    work("rest")
    if "invalid" in request.headers.get("X-Work", ""):
        raise ValidationError({"amount": "too much"})
    return Response({"paid_by": request.user.pk, "n": len(calls)}, status=201)


class Pay(IdempotentMixin, APIView):
    authentication_classes = [Token]
    permission_classes = [IsAuthenticated, ReadsTheBody]
    throttle_classes = [Wait]
    idempotent = idempotent("framework", identity=lambda request: request.user.pk)

    def post(self, request):
        return pay_as(request)


class Decorated(APIView):
    authentication_classes = [Token]
    permission_classes = [IsAuthenticated]

    @method_decorator(idempotent("framework", identity=lambda request: request.user.pk))
    def post(self, request):
        return pay_as(request)


class Payments(IdempotentMixin, ViewSet):
    authentication_classes = [Token]
    permission_classes = [IsAuthenticated]
    idempotent = idempotent("framework", identity=lambda request: request.user.pk)

    def create(self, request):
        return pay_as(request)


@api_view(["POST"])
@authentication_classes([Token])
@permission_classes([IsAuthenticated])
@idempotent("framework", identity=lambda request: request.user.pk)
def pay_function(request):
    return pay_as(request)


REST = {
    "mixin": Pay.as_view(),
    "method": Decorated.as_view(),
    "viewset": Payments.as_view({"post": "create"}),
    "function": pay_function,
}


@pytest.mark.parametrize("name", REST)
def test_rest_framework_authenticates_first(name):
    view, key = REST[name], f"auth-{name}"
    assert ask(view, key).status_code == 401
    assert ask(view, key, Authorization="expired").status_code == 401
    first = ask(view, key, Authorization="alice")
    assert (first.status_code, json.loads(first.content)["paid_by"]) == (201, "alice")
    replay = ask(view, key, Authorization="renewed alice")
    assert replay.content == first.content and replay.headers["Idempotent-Replayed"] == "true"
    assert ask(view, key).status_code == 401, "an anonymous caller gets no replay"
    assert json.loads(ask(view, key, Authorization="bob").content)["paid_by"] == "bob"
    assert len(calls) == 2


@pytest.mark.parametrize("name", REST)
def test_rest_framework_records_what_the_view_refuses_without_effects(name):
    headers = {"Authorization": "alice", "X-Work": "invalid"}
    before = effects("rest")
    first, second = (ask(REST[name], f"invalid-{name}", **headers) for _ in range(2))
    assert (first.status_code, second.status_code, second.content) == (400, 400, first.content)
    assert second.headers["Idempotent-Replayed"] == "true" and len(calls) == 1
    assert hooks == [] and effects("rest") == before


def test_rest_framework_throttles_first():
    assert ask(REST["mixin"], "throttled", Authorization="alice", **{"X-Throttled": "1"}).status_code == 429
    assert ask(REST["mixin"], "throttled", Authorization="alice").status_code == 201


@pytest.mark.parametrize("around", ["class", "function"])
def test_the_decorator_around_a_view_of_rest_framework_is_refused(around):
    class Plain(APIView):
        def post(self, request):
            return Response()

    view = Plain.as_view() if around == "class" else api_view(["POST"])(lambda request: Response())
    with pytest.raises(TypeError, match="IdempotentMixin"):
        idempotent("framework")(view)


def test_a_mixin_without_options_is_refused():
    class Forgets(IdempotentMixin, APIView):
        pass

    with pytest.raises(ImproperlyConfigured, match="idempotent = idempotent"):
        ask(Forgets.as_view(), "forgets")


# The rest


def test_gzip_inside_the_view():
    @idempotent("framework")
    @gzip_page
    def view(request):
        return JsonResponse({"fill": "x" * 1000}, status=201)

    first, second = (ask(view, "gzip", **{"Accept-Encoding": "gzip"}) for _ in range(2))
    assert second.headers["Idempotent-Replayed"] == "true"
    for answer in (first, second):
        assert answer.headers["Content-Encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.content)) == {"fill": "x" * 1000}


async def identity(request):
    return request.headers["X-User"]


def test_an_identity_that_is_a_coroutine():
    @idempotent("framework", identity=identity)
    def view(request):
        calls.append(request.headers["X-User"])
        return HttpResponse(calls[-1])

    got = [ask(view, "identity", **{"X-User": user}).content for user in ("alice", "bob", "alice")]
    assert got == [b"alice", b"bob", b"alice"] and calls == ["alice", "bob"]


def test_a_view_that_exceeds_its_time_limit_releases_its_claim():
    slow = True

    @idempotent("framework", handler_timeout=0.5)
    def view(request):
        work("limit")
        if slow:
            time.sleep(1)
        return HttpResponse("paid", status=201)

    began = time.monotonic()
    assert ask(view, "limit").status_code == 503 and time.monotonic() - began < 2
    slow = False
    assert ask(view, "limit").status_code == 201 and effects("limit") == 1


def received(conn):
    """The answer, up to its end or that of the connection."""
    answer = b""
    while b"}" not in answer and (part := conn.recv(9999)):
        answer += part
    return answer.decode()


def test_a_body_in_chunks_is_not_taken_for_an_empty_one():
    """Django does not read it under WSGI."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = servers.CLIENTS / "python" / "tests"
    servers.prepare(json.loads((servers.CLIENTS / "http_vectors.json").read_text())["setup"])
    process = subprocess.Popen([sys.executable, "django_app.py", "wsgi", str(port)], cwd=here)
    try:
        for _ in range(200):
            with socket.socket() as conn:
                if conn.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        head = f"POST /plain HTTP/1.1\r\nHost: x\r\nIdempotency-Key: chunks-{RUN}\r\n"
        with socket.create_connection(("127.0.0.1", port)) as conn:
            conn.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode())
            answer = received(conn)
        assert " 415 " in answer.splitlines()[0] and "body-unsupported" in answer
        # A body that breaks off.
        with socket.create_connection(("127.0.0.1", port)) as conn:
            conn.sendall(f"{head}Content-Length: 18\r\n\r\nto=bob&amount=10".encode())
            conn.shutdown(socket.SHUT_WR)
            answer = received(conn)
        assert " 400 " in answer.splitlines()[0] and "body-incomplete" in answer
    finally:
        process.terminate()
        process.wait()
