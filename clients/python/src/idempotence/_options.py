"""How a route is protected, and how its requests are named."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from ._drivers import driver_of
from ._reply import DOCS, HEADERS, Answered, problem
from ._transactions import Driver

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
# A string of RFC 8941, and parameters behind it; or, where that is allowed, the key as it is.
_QUOTED = re.compile(r' *"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)?)* *')
_BARE = re.compile(r" *([!#-+\--:<-~]+) *")
O = TypeVar("O", bound="Options")  # noqa: E741


@dataclasses.dataclass
class Facts:
    """What an adapter reads from a request. `path` and `query` are as they were sent. `length` is Content-Length."""

    method: str
    path: str
    query: str
    keys: Sequence[str]
    content_type: str
    length: int | None


@dataclasses.dataclass(eq=False)
class Options:
    """The arguments of `Idempotent` in every framework.

    required: a request without a key is refused. strict: the key must be a quoted string, as the draft requires.
    methods: the methods that are protected, by default all except GET, HEAD, OPTIONS and TRACE. identity: a function of
    the request, plain or async, that returns the id of the authenticated caller (str, int or UUID); each caller has
    keys of its own. max_body: the largest body (bytes) that is protected; larger ones are refused, or executed without
    protection if `unprotectable` is "pass". wait: how long (seconds) a duplicate waits for the first request, without
    a connection. deadline: for how long errors that may pass are answered with another attempt. ttl: how long the
    answer is kept. handler_timeout: how long (seconds) the handler may take. lease: for effects outside the database;
    the handler receives a Lease instead of a connection. headers: the headers that a replay has. docs: the address of
    the page that explains the problem types."""

    refusals: ClassVar[tuple[type[Exception], ...]] = ()  # raised by the framework before it calls the handler

    pool: Any
    session: str
    _: dataclasses.KW_ONLY
    required: bool = True
    strict: bool = False
    methods: Sequence[str] | None = None
    identity: Callable[[Any], object] | None = None
    max_body: int = 1 << 20
    unprotectable: str = "refuse"
    wait: float = 0
    deadline: float = 5
    ttl: float | None = None
    handler_timeout: float = 60
    lease: float | None = None
    headers: Sequence[str] = HEADERS
    docs: str = DOCS
    known: tuple[Any, Driver] | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.session, str):
            raise TypeError(f"the session is the name of a session, and not {self.session!r}: pass the pool first")
        if self.identity is not None and not callable(self.identity):
            raise TypeError(f"identity is a function of the request, and not {self.identity!r}")
        if isinstance(self.methods, str) or isinstance(self.headers, str):
            raise TypeError("methods and headers are lists")
        if self.unprotectable not in ("refuse", "pass"):
            raise ValueError('unprotectable is "refuse" or "pass"')
        if "set-cookie" in map(str.lower, self.headers):
            raise ValueError("Set-Cookie is never replayed: a cookie belongs to one answer")
        self.driver()

    def but(self: O, **changes: Any) -> O:
        """The same options, some of them changed."""
        return dataclasses.replace(self, **changes)

    def driver(self) -> Driver:
        """The driver of the pool, which may be assigned later."""
        if self.known is None or self.known[0] is not self.pool:
            self.known = self.pool, driver_of(self.pool)
        return self.known[1]

    def problem(self, slug: str, **facts: object) -> Answered:
        return problem(self.docs, slug, **facts)

    def protects(self, method: str) -> bool:
        if self.methods is None:
            return method.upper() not in SAFE
        return method.upper() in map(str.upper, self.methods)

    def key(self, facts: Facts) -> str | None:
        """The key that was sent. None: there is none, and none is required."""
        if not facts.keys:
            if self.required:
                raise self.problem("key-missing")
            return None
        found = _QUOTED.fullmatch(facts.keys[0]) or (None if self.strict else _BARE.fullmatch(facts.keys[0]))
        key = re.sub(r"\\(.)", r"\1", found[1]) if found and found.re is _QUOTED else found and found[1]
        if len(facts.keys) > 1 or not key or len(key) > 255:
            raise self.problem("key-malformed")
        return key

    async def name(self, key: str, request: Any) -> str:
        """The request's name: the caller, a colon, the key. No caller can form the name of another caller's request."""
        identity = await self.caller(request)
        caller = quote(identity, safe="@").replace("~", "%7E")
        if len(caller) > 100:
            caller = "~" + hashlib.sha256(identity.encode()).hexdigest()
        name = f"{caller}:{key}"
        return name if len(name) <= 255 else f"{caller}~:{hashlib.sha256(key.encode()).hexdigest()}:{key}"[:255]

    async def caller(self, request: Any) -> str:
        if self.identity is None:
            return ""
        who = self.identity(request)
        if inspect.isawaitable(who):
            who = await who
        if isinstance(who, bool) or not isinstance(who, (str, int, uuid.UUID)) or who == "":
            raise TypeError(
                f"identity must return the principal's id, a str, an int or a UUID, and not {who!r}: authenticate in"
                " front of the adapter"
            )
        return str(who)
