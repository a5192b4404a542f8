"""The application of Django that http_vectors.json runs. django_app.py wsgi|asgi PORT"""

import json
import sys

import drivers

drivers.django_setup()

from actions import perform_now  # noqa: E402
from django.core.exceptions import BadRequest, PermissionDenied  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection  # noqa: E402
from django.http import Http404, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from gunicorn.app.base import BaseApplication  # noqa: E402
from servers import CLIENTS  # noqa: E402

from idempotence.django import idempotent  # noqa: E402

ROUTES = json.loads((CLIENTS / "http_vectors.json").read_text())["routes"]
OPTIONS = ("required", "strict", "max_body", "unprotectable", "wait", "lease", "methods", "handler_timeout")
KINDS = {400: BadRequest, 403: PermissionDenied, 404: Http404}


def refuse(status):
    raise KINDS[status]


def refuse_before(get_response):
    def middleware(request):
        status = request.headers.get("X-Refuse")
        return HttpResponse("refused", status=int(status)) if status else get_response(request)

    return middleware


def view(request):
    conn = request.idempotence
    status, headers, body = perform_now(json.loads(request.body), conn, refuse)
    response = HttpResponse(body, status=status)
    if "Content-Type" not in headers:
        del response["Content-Type"]
    for name, value in headers.items():
        response[name] = value
    return response


def other(request):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("1")


def pattern(route):
    where = route["path"][1:]
    if "sql" in route:
        return path(where, other)
    options = {name: route[name] for name in OPTIONS if name in route}
    if "identity" in route:
        options["identity"] = lambda request: request.headers.get(route["identity"], "")
    rules = idempotent(route["session"], **options)
    if route.get("prefix"):
        return path(where + "<path:rest>", rules(lambda request, rest: view(request)))
    return path(where, rules.answer if "answer" in route else rules(view))


urlpatterns = [pattern(route) for route in ROUTES]


class Gunicorn(BaseApplication):
    """One process with as many threads as the tests send requests at once."""

    def __init__(self, port):
        self.port = port
        super().__init__()

    def load_config(self):
        options = {"bind": f"127.0.0.1:{self.port}", "worker_class": "gthread", "threads": 50, "loglevel": "critical"}
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self):
        return get_wsgi_application()


def serve(port):
    Gunicorn(port).run()


def serve_asgi(port):
    import uvicorn
    from django.core.asgi import get_asgi_application

    uvicorn.run(get_asgi_application(), port=port, log_level="error", lifespan="off")


if __name__ == "__main__":
    sys.modules["django_app"] = sys.modules["__main__"]
    (serve_asgi if sys.argv[1] == "asgi" else serve)(int(sys.argv[-1]))
