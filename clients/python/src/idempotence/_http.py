"""The header Idempotency-Key, for any framework. What all adapters answer stands in clients/http_vectors.json."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from ._drivers import Driver, settle
from ._errors import InProgress, Interrupted, may_retry, sqlstate
from ._lease import Lease, Superseded
from ._run import Answer, Attempt

_DOCS = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header"
_HEADERS = ("content-type", "content-language", "content-disposition", "location", "etag", "last-modified", "link")
# A string of RFC 8941, and parameters behind it; or, where that is allowed, the key as it is.
_QUOTED = re.compile(r' *"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)?)* *')
_BARE = re.compile(r" *([!#-+\--:<-~]+) *")
_PROBLEMS = {
    "key-missing": (400, "this request needs a header Idempotency-Key"),
    "key-malformed": (400, "the header Idempotency-Key is not one string of 1 to 255 characters"),
    "key-reused": (422, "the key was used for another request: a new request needs a new key"),
    "in-progress": (409, "the first request with this key is still at work: send it again later, unchanged"),
    "interrupted": (409, "the first request with this key stopped in the middle: somebody must look what happened"),
    "superseded": (409, "somebody else has taken over the request with this key: send it again later, unchanged"),
    "cancelled": (410, "the request with this key was cancelled, and never takes effect"),
    "unknown": (404, "nothing is known of a request with this key"),
    "body-too-large": (413, "the body is too large to be protected"),
    "length-required": (411, "a body that is to be protected needs a Content-Length"),
    "unavailable": (503, "nobody knows what was done: send it again, unchanged"),
}
_NOT_FINAL = (408, 409, 425, 429)
R = TypeVar("R", bound="Rules")


@dataclasses.dataclass
class Reply:
    """An answer of HTTP, as it goes over the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def final(self) -> bool:
        """Whether it is kept. Else a retry executes the request."""
        return 200 <= self.status < 500 and self.status not in _NOT_FINAL

    def recorded(self, allowed: Iterable[str]) -> dict[str, Any]:
        """As jsonb, which has no character 0."""
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


@dataclasses.dataclass
class Facts:
    """What is asked of a request. `length` is None if the body has no told length."""

    method: str
    path: str
    query: str
    keys: Sequence[str]
    length: int | None


@dataclasses.dataclass(eq=False)
class Rules:
    """How routes are protected: the arguments of `Idempotent` in each framework.

    required: a key must be there. strict: only the draft's quoted string is one. methods: the others pass by. identity:
    a function that tells the caller of a request, whose keys are its own. max_body: the most bytes that are protected;
    larger bodies, and those of no told length, are refused, or with `unprotectable="pass"` executed without protection.
    wait: how long (seconds) a duplicate waits for the first, without a connection. deadline: how long errors that may
    pass are met with another attempt. ttl: how long the answer is kept. lease: for effects elsewhere; the handler then
    gets a Lease in the place of the connection. headers: those that a replay has. docs: where the problems' types are
    explained."""

    refusals: ClassVar[
        tuple[type[Exception], ...]
    ] = ()  # by the framework, before the handler: nothing is kept of them

    pool: Any
    session: str
    _: dataclasses.KW_ONLY
    required: bool = True
    strict: bool = False
    methods: Sequence[str] = ("POST", "PATCH")
    identity: Callable[[Any], object] | None = None
    max_body: int = 1 << 20
    unprotectable: str = "refuse"
    wait: float = 0
    deadline: float = 5
    ttl: float | None = None
    lease: float | None = None
    headers: Sequence[str] = _HEADERS
    docs: str = _DOCS

    def __post_init__(self) -> None:
        if self.unprotectable not in ("refuse", "pass") or "set-cookie" in map(str.lower, self.headers):
            raise ValueError('unprotectable is "refuse" or "pass", and no Set-Cookie is ever replayed')

    def but(self: R, **changes: Any) -> R:
        """The same rules, some of them changed."""
        return dataclasses.replace(self, **changes)

    def problem(self, slug: str) -> Answered:
        status, title = _PROBLEMS[slug]
        body = json.dumps({"type": f"{self.docs}#{slug}", "title": title, "status": status})
        headers = [("content-type", "application/problem+json"), ("link", f'<{self.docs}>; rel="describedby"')]
        if status in (409, 503):
            headers.append(("retry-after", "1"))
        return Answered(Reply(status, headers, body.encode()))

    def key(self, facts: Facts) -> str | None:
        """The key that was sent. None: there is none, and none is needed."""
        if facts.method not in self.methods:
            return None
        if not facts.keys:
            if self.required:
                raise self.problem("key-missing")
            return None
        found = _QUOTED.fullmatch(facts.keys[0]) or (None if self.strict else _BARE.fullmatch(facts.keys[0]))
        key = re.sub(r"\\(.)", r"\1", found[1]) if found and found.re is _QUOTED else found and found[1]
        if len(facts.keys) > 1 or not key or len(key) > 255:
            raise self.problem("key-malformed")
        return key

    def protectable(self, facts: Facts) -> bool:
        """Whether the body can be. False: it is passed by."""
        if facts.length is not None and facts.length <= self.max_body:
            return True
        if self.unprotectable == "refuse":
            raise self.problem("length-required" if facts.length is None else "body-too-large")
        return False

    def name(self, key: str, request: Any) -> str:
        """The request's: the caller, a colon, the key. No caller can make it the name of another's request."""
        who = self.identity(request) if self.identity else None
        identity = "" if who is None else str(who)
        caller = quote(identity, safe="@").replace("~", "%7E")
        if len(caller) > 100:
            caller = "~" + hashlib.sha256(identity.encode()).hexdigest()
        name = f"{caller}:{key}"
        return name if len(name) <= 255 else f"{caller}~:{hashlib.sha256(key.encode()).hexdigest()}:{key}"[:255]


class Exchange:
    """One request and its answer. The adapter calls `begin` before the handler, and gives it `handed`."""

    handed: Any = None
    body: bytes | None = None
    lease: Lease | None = None
    begun = False

    def __init__(self, rules: Rules, driver: Driver, name: str | None, payload: Any) -> None:
        self.rules, self.driver, self.protected = rules, driver, name is not None
        self.attempt = Attempt(
            driver, rules.session, name, payload, wait=0, ttl=rules.ttl, deadline=rules.deadline, patience=rules.wait
        )

    @classmethod
    async def of(cls, rules: Rules, driver: Driver, facts: Facts, request: Any, read: Callable[[], Any]) -> Exchange:
        """Without a key, or a body that can be read, one that is not protected: a transaction and no more."""
        key = rules.key(facts)
        if key is None or not rules.protectable(facts):
            return cls(rules, driver, None, None)
        body = await settle(read())
        payload = {"method": facts.method, "path": facts.path, "query": facts.query}
        payload["body"] = hashlib.sha256(body).hexdigest()
        exchange = cls(rules, driver, rules.name(key, request), payload)
        exchange.body = body
        return exchange

    async def begin(self) -> Any:
        if not self.protected:
            await self.attempt.open()
        elif self.rules.lease is not None:
            await self.begin_lease(self.rules.lease)
        else:
            if answer := await self.attempt.begin():
                raise self.answer(answer)
            await self.attempt.query("SAVEPOINT idempotence_work")
        self.begun, self.handed = True, self.lease or (self.attempt.tx and self.attempt.tx.conn)
        return self.handed

    async def begin_lease(self, seconds: float) -> None:
        mine = self.attempt
        # Of a driver that blocks also where it is served by threads: so the handler blocks, too.
        driver: Driver = getattr(self.driver, "blocking", self.driver)
        held = Lease(driver, mine.session, mine.key, mine.payload, seconds, 0, self.rules.deadline, 0)
        _ = await held.__aenter__() if held.driver.asynchronous else await self.driver.call(held.__enter__)
        if held.answer:
            raise self.answer(held.answer)
        self.lease = held

    def answer(self, answer: Answer) -> Answered:
        response = answer.response
        if answer.status == "cancelled" or not isinstance(response, dict) or "headers" not in response:
            return self.rules.problem("cancelled" if answer.status == "cancelled" else "interrupted")
        return Answered(Reply.replayed(response))

    async def finish(self, reply: Reply, raised: bool) -> None:
        """Records and commits what the handler has answered. `raised`: by an exception, so its effects are taken
        back."""
        if not self.begun:
            raise RuntimeError("the handler of a protected route has answered, and its request was never begun")
        if not reply.final or (raised and not self.protected):
            return await self.close(None)
        response = reply.recorded(self.rules.headers)
        if self.lease:
            if self.lease.answer is None:
                held = self.lease
                await settle(await self.driver.call(lambda: held.record(response, reply.status >= 400)))
            return await self.close(None)
        if self.protected:
            if raised:
                await self.attempt.query("ROLLBACK TO SAVEPOINT idempotence_work")
            await self.attempt.record(response, reply.status >= 400)
        await self.attempt.commit()
        await self.close(None)

    async def close(self, error: BaseException | None) -> None:
        """Ends what is open. Without a COMMIT before it nothing is kept."""
        held, self.lease = self.lease, None
        if held:
            end = held.__aexit__ if held.driver.asynchronous else held.__exit__
            await settle(await self.driver.call(lambda: end(None, error, None)))
        await self.attempt.close()

    async def serve(self, invoke: Callable[[], Awaitable[Any]], made: Callable[[Reply], Any]) -> Any:
        """Calls `invoke`, which begins, calls the handler and finishes, until there is an answer."""
        while True:
            try:
                return await invoke()
            except Answered as answered:
                await self.close(answered)
                return made(answered.reply)
            except BaseException as error:
                failed, lost = error, self.attempt.lost(error)
                try:
                    await self.close(error)
                except Superseded as superseded:
                    failed = superseded
                # Who sent no key, or a body that is not kept, cannot be asked a second time.
                if failed is error and not (self.protected and isinstance(error, Exception)):
                    raise
            try:
                await self.attempt.after(failed, lost)
            except Exception as final:
                slug = self.slug(final, lost)
                if slug is None:
                    raise
                if slug == "unavailable":
                    logging.getLogger("idempotence").warning("a request is answered with 503", exc_info=final)
                return made(self.rules.problem(slug).reply)

    def slug(self, error: Exception, lost: bool) -> str | None:
        """The problem that an error is. None: it is none of the request's."""
        kinds = {InProgress: "in-progress", Interrupted: "interrupted", Superseded: "superseded"}
        if type(error) in kinds:
            return kinds[type(error)]
        if sqlstate(error) == "ID001":
            return "key-reused"
        return "unavailable" if may_retry(error, lost) else None


async def look_up(rules: Rules, driver: Driver, facts: Facts, request: Any) -> Reply:
    """The answer to the request that has this key, for a GET: waits for whoever is at work, and never executes."""
    try:
        key = rules.key(dataclasses.replace(facts, method=rules.methods[0]))
        if key is None:
            raise rules.problem("key-missing")
        exchange = Exchange(rules, driver, rules.name(key, request), None)

        async def look() -> Reply:
            found = await exchange.attempt.look_up()
            if found.status == "in_progress":
                raise InProgress(key)
            if not found.replayed:
                raise rules.problem(
                    {"suspended": "interrupted", "not_here": "unavailable"}.get(found.status, "unknown")
                )
            raise exchange.answer(found)

        reply: Reply = await exchange.serve(look, lambda reply: reply)
        return reply
    except Answered as answered:
        return answered.reply
