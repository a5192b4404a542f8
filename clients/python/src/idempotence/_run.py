"""A request with a key: begin, work, record and COMMIT in one transaction, sent again until there is an answer."""

from __future__ import annotations

import dataclasses
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ._drivers import Driver, T, Tx, driver_of, settle, transaction_of
from ._errors import Final, InProgress, Interrupted, may_retry, sqlstate

_OUTCOMES = ("succeeded", "failed", "cancelled")
# Strings and their casts: every driver passes a string in the same way, whatever codecs somebody has set.
_KEY = "CAST($1 AS text), CAST($2 AS text)"
_ARGS = f"{_KEY}, payload => CAST(CAST($3 AS text) AS jsonb), wait => CAST(CAST($4 AS text) AS interval)"
_TICKET = "status, replayed, response::text, expires_at, point, state::text, token, attempt"
_BEGIN = f"SELECT {_TICKET} FROM idem_begin({_ARGS}"
_CLAIM = f"SELECT idem_claim({_ARGS})"
_OUTCOME = "response => CAST(CAST($3 AS text) AS jsonb), failed => CAST($4 AS boolean)"
_RECORD = f"SELECT idem_record({_KEY}, {_OUTCOME}, ttl => CAST(CAST($5 AS text) AS interval))"
_LOOKUP = f"SELECT status, response::text FROM idem_lookup({_KEY}, wait => CAST(CAST($3 AS text) AS interval))"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of a request: `succeeded`, `failed` (for good) or `cancelled`, executed by this call or replayed.
    From `lookup` any other status, too."""

    status: str
    response: Any
    replayed: bool = False

    @property
    def failed(self) -> bool:
        return self.status != "succeeded"


class Ticket(NamedTuple):
    """The answer of idem_begin."""

    status: str
    replayed: bool
    response: Any
    expires_at: Any
    point: str | None
    state: Any
    token: int | None
    attempt: int


def decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def encoded(value: Any) -> str | None:
    """As JSON. None is no payload and no response, and not JSON's null."""
    return None if value is None else json.dumps(value, allow_nan=False)


def named(key: object) -> str:
    """A key as the database has it. None, above all, is none: all requests without a key would be one."""
    if isinstance(key, bool) or not isinstance(key, (str, int, uuid.UUID)):
        raise TypeError(f"the key of a request is a str, an int or a UUID, and not {key!r}")
    return str(key)


def interval(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds} seconds"


class Attempt:
    """A request and the transaction in which it is tried, again and again. `deadline`: until when what may be retried
    is. `patience`: how long it is asked again while somebody else is at work on it. `wait`: how long each time in the
    database."""

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
        self.driver, self.session, self.key, self.payload, self.wait, self.ttl = (
            driver,
            session,
            key,
            payload,
            wait,
            ttl,
        )
        self.deadline, self.patience = deadline, deadline if patience is None else patience
        self.began, self.count = time.monotonic(), 0
        self.tx: Tx | None = None
        self.ticket: Ticket | None = None

    def left(self, within: float) -> float:
        return self.began + within - time.monotonic()

    async def open(self) -> Tx:
        # The last attempt may wait for a connection, too.
        self.tx = await self.driver.open(max(self.left(self.deadline), 2))
        return self.tx

    async def query(self, sql: str, *args: Any) -> list[Any]:
        assert self.tx, "the transaction is not open"
        return await self.tx.query(sql, *args)

    async def begin(self, lease: float | None = None) -> Answer | None:
        """The answer, or None with the claim, in a transaction that stays open."""
        await self.open()
        args = (self.session, named(self.key), encoded(self.payload), interval(self.wait))
        sql, more = (
            (")", ()) if lease is None else (", lease => CAST(CAST($5 AS text) AS interval))", (interval(lease),))
        )
        ticket = Ticket(*(await self.query(_BEGIN + sql, *args, *more))[0])
        self.ticket = ticket = ticket._replace(response=decoded(ticket.response), state=decoded(ticket.state))
        if ticket.status == "in_progress":
            raise InProgress(self.key, ticket.expires_at)
        if ticket.status in _OUTCOMES:
            # The begin may have recorded that the request is given up, and COMMIT may wait until the answer is durable.
            await self.commit()
            return Answer(ticket.status, ticket.response, ticket.replayed)
        if lease is None and (ticket.status != "started" or ticket.point is not None):
            raise Interrupted(self.key, ticket.point, ticket.state)
        return None

    async def record(self, response: Any, failed: bool = False) -> None:
        await self.query(_RECORD, self.session, named(self.key), encoded(response), failed, interval(self.ttl))

    async def commit(self) -> None:
        assert self.tx
        await self.tx.commit()

    def lost(self, error: BaseException) -> bool:
        return self.tx is None or self.tx.lost(error)

    async def close(self) -> None:
        """Rolls back what is not committed. An error of that says nothing: the transaction has not happened."""
        tx, self.tx = self.tx, None
        try:
            if tx:
                await tx.close()
        except Exception as error:
            if sqlstate(error) is None and not (tx and tx.lost(error)):
                raise

    async def after(self, error: BaseException, lost: bool) -> None:
        """Waits a little. Raises the error if it is final, or if the time is over."""
        busy = isinstance(error, InProgress)
        left = self.left(self.patience if busy else self.deadline)
        if left <= 0 or not (busy or may_retry(error, lost)):
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
                failed, lost = error, self.lost(error)
                await self.close()
                if not isinstance(error, Exception):
                    raise
            await self.after(failed, lost)

    async def executed(self, work: Callable[[Any], Any]) -> Answer:
        """Begins, works, records, commits."""
        answer = await self.begin()
        if answer is None:
            answer = await self.working(work)
            await self.commit()
        return answer

    async def working(self, work: Callable[[Any], Any]) -> Answer:
        """Does the work and records what it says."""
        assert self.tx
        try:
            answer = Answer("succeeded", await settle(work(self.tx.conn)))
        except Final as final:
            answer = Answer("failed", final.response)
        await self.record(answer.response, answer.failed)
        return answer

    async def claimed(self, work: Callable[[Any], Any]) -> Answer:
        """The same in one round trip."""
        tx = await self.open()
        try:
            async with tx.pipeline():
                await self.query(_CLAIM, self.session, named(self.key), encoded(self.payload), interval(self.wait))
                answer = await self.working(work)
                await self.commit()
            return answer
        except Exception as error:
            state, lost = sqlstate(error), self.lost(error)
            await self.close()
            if state in ("55P03", "55000"):
                raise (InProgress if state == "55P03" else Interrupted)(self.key) from error
            if state != "ID011" or lost:
                raise
        await self.open()
        done = await self.looked_up()
        if done.status not in _OUTCOMES:
            raise InProgress(self.key)
        return done

    async def looked_up(self) -> Answer:
        status, response = (await self.query(_LOOKUP, self.session, named(self.key), interval(self.wait)))[0]
        await self.commit()
        return Answer(status, decoded(response), status in _OUTCOMES)

    async def look_up(self) -> Answer:
        await self.open()
        return await self.looked_up()


async def ask(driver: Driver, deadline: float, sql: str, *args: Any) -> Any:
    """The first row, in a transaction of its own, which is tried again."""
    attempt = Attempt(driver, "", deadline=deadline)

    async def once() -> Any:
        await attempt.open()
        rows = await attempt.query(sql, *args)
        await attempt.commit()
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
    claim: bool = False,
) -> Any:
    """Executes a request once: calls work(conn) in the transaction that records what it returns, and answers after
    COMMIT.

    pool: of psycopg or asyncpg; an engine or session factory of SQLAlchemy; a Django alias; a function that connects.
    An asynchronous one makes this a coroutine, and the work may be one. An exception of the work takes all back, but
    for `Final`, whose response is recorded as a failure. What may be retried is, until `deadline` (seconds). `wait`:
    how long each attempt waits in the database, on its connection. With `claim` psycopg sends everything at once: the
    work must not look at what its statements return."""
    attempt = Attempt(driver_of(pool), session, key, payload, wait=wait, ttl=ttl, deadline=deadline)
    return attempt.driver.do(attempt.answered(lambda: (attempt.claimed if claim else attempt.executed)(work)))


def lookup(pool: Any, session: str, key: object, *, wait: float | None = None, deadline: float = 30) -> Any:
    """What is known of a request: an Answer with any status. Begins nothing; waits up to `wait` for who is at work."""
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


class Problems(list[str]):
    """One sentence for each fault. edition: what was found, "extension 1.2.0" or "managed 1.2.0"."""

    edition: str | None = None


# What stands in the way of every request, in the same words in each client: '' if nothing does.
FAULT = """
SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')
"""


def check(pool: Any, session: str | None = None) -> Any:
    """What stands in the way of requests in this session: one sentence for each fault, none if all is well.

    The attribute `edition` of the list says what was found."""
    driver = driver_of(pool)
    return driver.do(_check(driver, session))


async def _check(driver: Driver, session: str | None) -> Problems:
    async def asked(sql: str, *args: Any) -> Any:
        """The first value, or the error."""
        try:
            return (await ask(driver, 0, sql, *args))[0]
        except Exception as error:
            return error

    fault = await asked(FAULT)
    if isinstance(fault, Exception):
        fault = f"unreachable: no connection to the database can be had: {fault}"
    problems = Problems([fault] if fault else [])
    if problems:
        return problems
    edition = await asked(
        "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'),"
        " 'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))"
    )
    if isinstance(edition, str):
        problems.edition = edition
        if tuple(int(n) for n in edition.split()[1].split(".")[:2] if n.isdigit()) < (1, 2):
            problems.append(f"version: this client needs idempotence 1.2, and here is {edition}: update it")
            return problems
    # The edition for managed services has no readiness to ask for.
    ready = await asked("SELECT idem_ready()") if str(edition).startswith("extension") else True
    if ready is not True:
        problems.append("ready: no request can be begun here now: SELECT * FROM idempotence.health tells why")
    found = (
        await asked("SELECT status FROM idem_lookup(CAST($1 AS text), 'idempotence check')", session)
        if session
        else None
    )
    sentences = {
        "42704": f"session: there is none of the name {session}: SELECT idem_create_session('{session}')",
        "42501": f"rights: this role may not use the session {session}:"
        " its owner lends it by idem_alter_session(…, usable_by => …)",
        "ID012": f"session: the session {session} lives on another server: {found}",
    }
    if isinstance(found, Exception) and (state := sqlstate(found)) in sentences and not problems:
        problems.append(sentences[state])
    # Of the extension, who is no monitor cannot see whether somebody sweeps.
    swept = await asked("SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0")
    if isinstance(swept, str):
        problems.append(f"sweep: {swept}")
    return problems
