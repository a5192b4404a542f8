"""An HTTP answer: what is recorded of it, and the problem documents. docs/http.md describes both."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

DOCS = "https://pgxn.org/dist/idempotence/docs/http.html"
HEADERS = (
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "location",
    "etag",
    "last-modified",
    "link",
    "retry-after",
)
NOT_RECORDED = (401, 405, 407, 408, 409, 415, 425, 429)
# Status, title, detail.
PROBLEMS = {
    "key-missing": (
        400,
        "This request needs an idempotency key",
        "Send the header Idempotency-Key with a new key for each new request, and the same key with each retry.",
    ),
    "key-malformed": (
        400,
        "The idempotency key is malformed",
        "The header Idempotency-Key must be sent once and contain one string of 1 to 255 visible ASCII characters.",
    ),
    "key-reused": (
        422,
        "The idempotency key was used for another request",
        "The method, the path, the query or the body differs from those of the first request with this key. A new"
        " request needs a new key.",
    ),
    "in-progress": (
        409,
        "The request is in progress",
        "The first request with this key has not been answered yet. Send the request again later, unchanged.",
    ),
    "interrupted": (
        409,
        "The request was interrupted",
        "The first request with this key stopped in the middle. It has to be taken over before it can be answered.",
    ),
    "superseded": (
        409,
        "The request was taken over",
        "Another process has taken over the request with this key. Send the request again later, unchanged.",
    ),
    "cancelled": (
        410,
        "The request was cancelled",
        "The request with this key was cancelled before it was executed. It never takes effect.",
    ),
    "unknown": (404, "The request is unknown", "No request with this key is known."),
    "body-too-large": (413, "The body is too large", "The body is larger than {limit} bytes, the limit of this route."),
    "body-incomplete": (
        400,
        "The body is incomplete",
        "Fewer bytes arrived than Content-Length announces. Nothing was executed. Send the request again, unchanged.",
    ),
    "body-unsupported": (
        415,
        "The body cannot be compared",
        "The server cannot compare this body with the body of a retry. Nothing was executed.",
    ),
    "response-too-large": (
        500,
        "The response is too large to be recorded",
        "{found} The limit is the setting idempotence.max_response of the database. The effects of the request were"
        " rolled back.",
    ),
    "unavailable": (
        503,
        "The service is unavailable",
        "It is not known whether the request took effect. Send the request again, unchanged.",
    ),
}
_FORBIDDEN = re.compile(r"[\r\n\0]")
_TOKEN = re.compile(r"[!#-'*+.^_`|~0-9A-Za-z-]+")


@dataclasses.dataclass
class Reply:
    """An answer as it is sent. The characters of a header value are the bytes of ISO 8859-1."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def final(self) -> bool:
        """Whether it is recorded. Otherwise a retry executes the request."""
        return 200 <= self.status < 500 and self.status not in NOT_RECORDED

    @property
    def refusal(self) -> bool:
        return self.status >= 400

    def check(self) -> None:
        """Called before COMMIT: a server would refuse such a header after it, or send a header that is not ours."""
        for name, value in self.headers:
            if not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value):
                raise ValueError(f"the response header {name!r} has a line break or a zero byte: {value!r}")
            value.encode("latin-1")

    def recorded(self, allowed: Iterable[str]) -> dict[str, Any]:
        """The value for idem_record. jsonb has no character 0."""
        kept = {name.lower() for name in allowed}
        headers = [[name.lower(), value] for name, value in self.headers if name.lower() in kept]
        with contextlib.suppress(UnicodeDecodeError):
            if b"\0" not in self.body:
                return {"status": self.status, "headers": headers, "body": self.body.decode()}
        return {"status": self.status, "headers": headers, "base64": base64.b64encode(self.body).decode()}

    @classmethod
    def replayed(cls, response: dict[str, Any]) -> Reply:
        body = base64.b64decode(response["base64"]) if "base64" in response else response.get("body", "").encode()
        headers = [(name, value) for name, value in response["headers"]]
        return cls(response["status"], [*headers, ("idempotent-replayed", "true")], body)


class Answered(Exception):
    """The request is answered without the handler."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def problem(docs: str, slug: str, **facts: object) -> Answered:
    status, title, detail = PROBLEMS[slug]
    document = {"type": f"{docs}#{slug}", "title": title, "status": status, "detail": detail.format(**facts)}
    headers = [("content-type", "application/problem+json"), ("link", f'<{docs}>; rel="describedby"')]
    if status in (409, 503):
        headers.append(("retry-after", "1"))
    return Answered(Reply(status, headers, json.dumps(document).encode()))
