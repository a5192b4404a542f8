"""The application of Django that http_vectors.json runs. django_app.py PORT"""

import json
import socketserver
import sys
import wsgiref.simple_server

import drivers

drivers.django_setup()

from actions import perform_now  # noqa: E402
from django.core.exceptions import BadRequest, PermissionDenied  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection  # noqa: E402
from django.http import Http404, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from servers import CLIENTS  # noqa: E402

from idempotence.django import idempotent  # noqa: E402

ROUTES = json.loads((CLIENTS / "http_vectors.json").read_text())["routes"]
OPTIONS = ("required", "strict", "max_body", "unprotectable", "wait", "lease")
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
    return path(where, rules.answer if "answer" in route else rules(view))


urlpatterns = [pattern(route) for route in ROUTES]


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 100


class Handler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        """Nothing."""


def serve(port):
    wsgiref.simple_server.make_server("127.0.0.1", port, get_wsgi_application(), Server, Handler).serve_forever()


if __name__ == "__main__":
    sys.modules["django_app"] = sys.modules["__main__"]
    serve(int(sys.argv[1]))
