"""A request with a key: begin, work, record and COMMIT in one transaction, which is repeated until there is an
answer."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ._await import T, settle
from ._drivers import driver_of, transaction_of
from ._errors import RETRYABLE, Final, InProgress, Interrupted, of_driver, sqlstate
from ._transactions import Driver, Statement, Tx, closed

OUTCOMES = ("succeeded", "failed", "cancelled")
# Every argument is a string that the statement casts: all drivers pass strings alike, whatever codecs the application
# has registered.
KEY = "CAST($1 AS text), CAST($2 AS text)"
_ARGS = f"{KEY}, payload => CAST(CAST($3 AS text) AS jsonb), wait => CAST(CAST($4 AS text) AS interval)"
_TICKET = (
    "status, replayed, response::text, expires_at, point, state::text, token, attempt,"
    " pg_current_xact_id_if_assigned() IS NOT NULL AS wrote"
)
_BEGIN = f"SELECT {_TICKET} FROM idem_begin({_ARGS}"
_CLAIM = f"SELECT idem_claim({_ARGS})"
_OUTCOME = "response => CAST(CAST($3 AS text) AS jsonb), failed => CAST($4 AS boolean)"
_RECORD = f"SELECT idem_record({KEY}, {_OUTCOME}, ttl => CAST(CAST($5 AS text) AS interval))"
_LOOKUP = f"SELECT status, response::text FROM idem_lookup({KEY}, wait => CAST(CAST($3 AS text) AS interval))"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outcome of a request: `succeeded`, `failed` (for good) or `cancelled`, executed by this call or replayed.
    `lookup` returns other statuses, too."""

    status: str
    response: Any
    replayed: bool = False

    @property
    def failed(self) -> bool:
        return self.status != "succeeded"


class Ticket(NamedTuple):
    """The answer of idem_begin. `wrote`: its transaction has something to commit. It may have recorded that the request
    is given up, and the edition for managed services lets COMMIT wait until the outcome is durable."""

    status: str
    replayed: bool
    response: Any
    expires_at: Any
    point: str | None
    state: Any
    token: int | None
    attempt: int
    wrote: bool

    @classmethod
    def of(cls, row: Any) -> Ticket:
        ticket = cls(*row)
        expires = ticket.expires_at
        if isinstance(expires, str):
            expires = datetime.datetime.fromisoformat(expires)
        return ticket._replace(response=decoded(ticket.response), state=decoded(ticket.state), expires_at=expires)

    @property
    def answer(self) -> Answer | None:
        return Answer(self.status, self.response, self.replayed) if self.status in OUTCOMES else None


def decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def encoded(value: Any) -> str | None:
    """JSON. None stands for no payload and no response, and not for JSON's null."""
    return None if value is None else json.dumps(value, allow_nan=False)


def named(key: object) -> str:
    """The key as text. None in particular is refused: all requests without a key would be one request."""
    if isinstance(key, bool) or not isinstance(key, (str, int, uuid.UUID)):
        raise TypeError(f"the key of a request is a str, an int or a UUID, and not {key!r}")
    return str(key)


def interval(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds} seconds"


class Attempt:
    """A request and the transaction that executes it, repeated if necessary. `deadline`: for how long (seconds) errors
    that may pass are answered with another attempt. `patience`: for how long the request is begun again while another
    process executes it. `wait`: how long each begin waits in the database."""

    def __init__(
        self,
        driver: Driver,
        session: str,
        key: object = "",
        payload: Any = None,
        *,
        wait: float | None = None,
        ttl: float | None = None,
        deadline: float = 30,
        patience: float | None = None,
    ) -> None:
        self.driver, self.session, self.key, self.payload = driver, session, key, payload
        self.wait, self.ttl = wait, ttl
        self.deadline, self.patience = deadline, deadline if patience is None else patience
        self.began, self.count = time.monotonic(), 0
        self.tx: Tx | None = None
        self.opening = False

    def left(self, within: float) -> float:
        return self.began + within - time.monotonic()

    async def open(self) -> Tx:
        self.opening = True
        # The last attempt may wait for a connection, too.
        self.tx = await self.driver.open(max(self.left(self.deadline), 2))
        self.opening = False
        return self.tx

    @property
    def arguments(self) -> tuple[str | None, ...]:
        return self.session, named(self.key), encoded(self.payload), interval(self.wait)

    async def begin(self) -> Answer | None:
        """The outcome; or None, and the claim is in a transaction that stays open."""
        tx = await self.open()
        ticket = Ticket.of(await tx.begin_with(_BEGIN + ")", *self.arguments))
        if ticket.status == "started" and ticket.point is None:
            return None
        if ticket.answer and ticket.wrote:
            await tx.commit()
        else:
            self.tx = None
            await tx.leave(commit=bool(ticket.answer))
        if ticket.answer:
            return ticket.answer
        if ticket.status == "in_progress":
            raise InProgress(self.key, ticket.expires_at)
        raise Interrupted(self.key, ticket.point, ticket.state)

    async def begin_lease(self, seconds: float) -> Ticket:
        """Begins and commits: a ticket with an outcome or with the token of a lease."""
        tx = await self.open()
        sql = _BEGIN + ", lease => CAST(CAST($5 AS text) AS interval))"
        ticket = Ticket.of((await tx.single(sql, *self.arguments, interval(seconds)))[0])
        if ticket.status == "in_progress":
            raise InProgress(self.key, ticket.expires_at)
        return ticket

    def record(self, response: Any, failed: bool = False) -> Statement:
        return _RECORD, (self.session, named(self.key), encoded(response), failed, interval(self.ttl))

    async def retryable(self, error: BaseException) -> bool:
        """Whether another attempt may succeed. See Tx.retryable."""
        if not isinstance(error, Exception):
            return False  # the request is cancelled, and must not wait for anything
        if self.opening:
            state = sqlstate(error)
            return bool(RETRYABLE.match(state)) if state else of_driver(error)
        return self.tx is not None and await self.tx.retryable(error)

    async def close(self, abandoned: bool = False) -> None:
        """Rolls back what is not committed, and returns the connection."""
        tx, self.tx, self.opening = self.tx, None, False
        if tx:
            await self.driver.uninterrupted(closed(tx, abandoned))

    async def after(self, error: BaseException, retryable: bool) -> None:
        """Waits before the next attempt. Raises the error if it is final, or if the time is over."""
        busy = isinstance(error, InProgress)
        left = self.left(self.patience if busy else self.deadline)
        if left <= 0 or not (busy or retryable):
            raise error
        self.count += 1
        await self.driver.sleep(min(random.uniform(0.5, 1) * min(0.025 * 2 ** min(self.count, 10), 2), left))

    async def answered(self, execute: Callable[[], Awaitable[T]]) -> T:
        """Executes until there is an answer: the same transaction again, with the same key and payload."""
        while True:
            try:
                answer = await execute()
                await self.close()
                return answer
            except BaseException as error:
                failed, retryable = error, await self.retryable(error)
                await self.close()
                if not isinstance(error, Exception):
                    raise
            await self.after(failed, retryable)

    async def executed(self, work: Callable[[Any], Any]) -> Answer:
        """Begins, calls the work, records and commits."""
        answer = await self.begin()
        if answer is None:
            answer = await self.worked(work)
            assert self.tx
            await self.tx.commit(self.record(answer.response, answer.failed))
        return answer

    async def worked(self, work: Callable[[Any], Any]) -> Answer:
        """The answer of the work, with the types that a replay has."""
        assert self.tx
        try:
            return Answer("succeeded", as_replayed(await settle(work(self.tx.conn))))
        except Final as final:
            return Answer("failed", as_replayed(final.response))

    async def claimed(self, work: Callable[[Any], Any]) -> Answer:
        """The same in one round trip."""
        tx = await self.open()
        try:
            async with tx.pipelined():
                await tx.start()
                await tx.send(_CLAIM, *self.arguments)
                answer = await self.worked(work)
                await tx.flush()
                await tx.release()
                record, arguments = self.record(answer.response, answer.failed)
                await tx.send(record, *arguments)
                await tx.end()
            await tx.ended()
            return answer
        except Exception as error:
            tx.errors.append(error)
            state, lost = sqlstate(error), tx.lost()
            if state in ("55P03", "55000"):
                raise (InProgress if state == "55P03" else Interrupted)(self.key) from error
            if state != "ID011" or lost:
                raise
            await self.close()
        done = await self.look_up()
        if done.status not in OUTCOMES:
            raise InProgress(self.key)
        return done

    async def look_up(self) -> Answer:
        tx = await self.open()
        rows = await tx.single(_LOOKUP, self.session, named(self.key), interval(self.wait))
        status, response = rows[0]
        return Answer(status, decoded(response), status in OUTCOMES)


def as_replayed(response: Any) -> Any:
    """The response as a replay returns it: with JSON's types."""
    return decoded(encoded(response))


async def ask(driver: Driver, deadline: float, sql: str, *args: Any) -> Any:
    """The first row, in a transaction of its own, which is tried again."""
    attempt = Attempt(driver, "", deadline=deadline)

    async def once() -> Any:
        tx = await attempt.open()
        rows = await tx.single(sql, *args)
        return rows[0] if rows else (None,)

    return await attempt.answered(once)


def run(
    pool: Any,
    session: str,
    key: object,
    payload: Any,
    work: Callable[[Any], Any],
    *,
    wait: float = 0.2,
    deadline: float = 30,
    ttl: float | None = None,
    lease: float | None = None,
    claim: bool = False,
) -> Any:
    """Executes a request once: calls work(conn) in the transaction that records what it returns, and answers after
    COMMIT.

    pool: of psycopg or asyncpg; an engine or session factory of SQLAlchemy; a Django alias; a function that connects.
    With an asynchronous one the result is awaited, and the work may be a coroutine. An exception of the work rolls
    everything back, except `Final`, whose response is recorded as a failure. Errors that may pass are retried until
    `deadline` (seconds). `wait`: how long each attempt waits in the database, on its connection. `lease`: for an effect
    outside the database; the claim is committed first, and the work receives a `Lease` instead of a connection.
    `claim`: psycopg sends everything at once; the work must not read the results of its statements."""
    driver = working_driver(pool, session, work)
    if lease is not None:
        from ._lease import run_with_lease

        return driver.do(run_with_lease(driver, session, key, payload, work, lease, wait, deadline))
    attempt = Attempt(driver, session, key, payload, wait=wait, ttl=ttl, deadline=deadline)
    return driver.do(attempt.answered(lambda: (attempt.claimed if claim else attempt.executed)(work)))


def working_driver(pool: Any, session: object, work: object) -> Driver:
    """The driver, after a check of arguments that are easily mixed up."""
    if not isinstance(session, str):
        raise TypeError(f"the session is the name of a session, and not {session!r}: pass the pool first")
    if not callable(work):
        raise TypeError(f"the work is a function, and not {work!r}")
    return driver_of(pool)


def lookup(pool: Any, session: str, key: object, *, wait: float | None = None, deadline: float = 30) -> Any:
    """What is known of a request: an Answer with any status. It begins nothing. `wait`: how long it waits for a process
    that executes the request."""
    attempt = Attempt(driver_of(pool), session, key, wait=wait, deadline=deadline)
    return attempt.driver.do(attempt.answered(attempt.look_up))


def once(conn: Any, session: str, keys: Sequence[Any]) -> Any:
    """Those of the keys that the inbox sees for the first time, in the caller's transaction, on the caller's connection
    (of psycopg, asyncpg, SQLAlchemy, or a Django alias). Do the work for them, commit, and then acknowledge."""
    tx = transaction_of(conn)
    return tx.driver.do(_once(tx, session, list(keys)))


async def _once(tx: Tx, session: str, keys: list[Any]) -> list[Any]:
    sql = "SELECT ord FROM idem_once_many(CAST($1 AS text), CAST($2 AS text[])) ORDER BY ord"
    return [keys[row[0] - 1] for row in await tx.query(sql, session, [named(key) for key in keys])]
