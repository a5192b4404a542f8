"""One protected request and its answer, for any framework. clients/http_vectors.json fixes what is answered."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ._await import settle
from ._body import signature
from ._errors import InProgress, Interrupted, Superseded, detail, sqlstate
from ._lease import Done, Lease
from ._options import Facts, Options
from ._reply import Answered, Reply
from ._run import Answer, Attempt
from ._transactions import Driver

log = logging.getLogger("idempotence")


class HandlerTimeout(Exception):
    """The handler has exceeded its time limit. Its transaction was rolled back."""


class Exchange:
    """The adapter calls `begin` before the handler, passes `handed` to it, and calls `finish` with its answer.

    begun: the transaction or the lease has been begun. working: the handler has been called, so an exception is its
    own, and not one of authentication or validation in front of it."""

    handed: Any = None
    lease: Lease | None = None
    begun = working = False

    def __init__(self, options: Options, driver: Driver, name: str | None, payload: Any) -> None:
        self.options, self.driver, self.protected = options, driver, name is not None
        self.attempt = Attempt(
            driver,
            options.session,
            name or "",
            payload,
            wait=0,
            ttl=options.ttl,
            deadline=options.deadline,
            patience=options.wait,
        )

    @classmethod
    async def of(
        cls, options: Options, driver: Driver, facts: Facts, request: Any, read: Callable[[], Any]
    ) -> Exchange:
        """`read` returns the body, or None for one that is too large. A request without a key, or whose body passes
        unprotected, gets a transaction and no more."""
        key = options.key(facts) if options.protects(facts.method) else None
        body = None
        if key is not None:
            name = await options.name(key, request)
            body = await settle(read())
            if body is None and options.unprotectable == "refuse":
                raise options.problem("body-too-large", limit=options.max_body)
        if key is None or body is None:
            return cls(options, driver, None, None)
        return cls(options, driver, name, signature(facts, body))

    async def begin(self) -> Any:
        if not self.protected:
            await (await self.attempt.open()).begin()
        elif self.options.lease is not None:
            await self.begin_lease(self.options.lease)
        elif answer := await self.attempt.begin():
            raise self.answer(answer)
        self.begun, self.handed = True, self.lease or (self.attempt.tx and self.attempt.tx.conn)
        return self.handed

    async def begin_lease(self, seconds: float) -> None:
        mine = self.attempt
        # A driver that blocks is used as such, although it is served by threads: the handler blocks, too.
        driver: Driver = getattr(self.driver, "blocking", self.driver)
        held = Lease(driver, mine.session, mine.key, mine.payload, seconds, 0, self.options.deadline, 0)
        try:
            _ = await held.__aenter__() if driver.asynchronous else await self.driver.call(held.__enter__)
        except Done as done:
            raise self.answer(done.answer) from None
        self.lease = held

    def answer(self, answer: Answer) -> Answered:
        response = answer.response
        if answer.status == "cancelled":
            return self.options.problem("cancelled")
        if not isinstance(response, dict) or "headers" not in response:
            return self.options.problem("interrupted")  # given up after max_attempts
        return Answered(Reply.replayed(response))

    async def finish(self, reply: Reply, raised: bool) -> None:
        """Records and commits the handler's answer. `raised`: the answer comes from an exception, so its effects are
        rolled back."""
        if not self.begun:
            raise RuntimeError("the handler of a protected route has answered, but its request was not begun")
        reply.check()
        if self.lease:
            return await self.finish_lease(self.lease, reply)
        undo = raised and not self.protected
        if reply.final and not undo:
            try:
                await self.commit(reply, raised)
            except Exception as error:
                raise self.too_large(error) or error from None
        await self.close(None)

    async def commit(self, reply: Reply, undo: bool) -> None:
        tx = self.attempt.tx
        assert tx
        if not undo and reply.refusal and await tx.failed():
            if not self.protected:
                return
            undo = True
        if not self.protected:
            return await tx.commit()
        await tx.commit(self.attempt.record(reply.recorded(self.options.headers), reply.refusal), undo)

    async def finish_lease(self, held: Lease, reply: Reply) -> None:
        if reply.final and held.answer is None and not held.released:
            response = reply.recorded(self.options.headers)
            try:
                await settle(await self.driver.call(lambda: held.record(response, reply.refusal)))
            except Exception as error:
                raise self.too_large(error) or error from None
        # What is not final leaves the lease to expire.
        await self.close(None if held.answer or held.released else Answered(reply))

    def too_large(self, error: Exception) -> Answered | None:
        if sqlstate(error) != "ID009":
            return None
        log.error("the response of a request is too large to be recorded", exc_info=error)
        return self.options.problem("response-too-large", found=detail(error))

    async def close(self, error: BaseException | None, abandoned: bool = False) -> None:
        """Ends what is open. Without a COMMIT before it nothing is kept."""
        held, self.lease = self.lease, None
        try:
            if held:
                await self.driver.uninterrupted(self.end_lease(held, error))
        finally:
            await self.attempt.close(abandoned)

    async def end_lease(self, held: Lease, error: BaseException | None) -> None:
        end = held.__aexit__ if held.driver.asynchronous else held.__exit__
        await settle(await self.driver.call(lambda: end(None, error, None)))

    async def serve(self, invoke: Callable[[], Awaitable[Any]], made: Callable[[Reply], Any]) -> Any:
        """Calls `invoke`, which begins, calls the handler and finishes, until there is an answer."""
        while True:
            try:
                return await invoke()
            except Answered as answered:
                await self.close(answered)
                return made(answered.reply)
            except HandlerTimeout as error:
                await self.close(error, abandoned=True)
                log.error("a handler has exceeded its time limit of %s s", self.options.handler_timeout)
                return made(self.options.problem("unavailable").reply)
            except BaseException as error:
                failed, retryable = error, await self.attempt.retryable(error)
                try:
                    await self.close(error, abandoned=not isinstance(error, Exception))
                except Superseded as superseded:
                    failed = superseded
                # A request without a key, or whose body was not kept, is not executed a second time.
                if failed is error and not (self.protected and isinstance(error, Exception)):
                    raise
            try:
                await self.attempt.after(failed, retryable)
            except Exception as final:
                slug = self.slug(final, retryable)
                if slug is None:
                    raise
                if slug == "unavailable":
                    log.warning("a request is answered with 503", exc_info=final)
                return made(self.options.problem(slug).reply)

    def slug(self, error: Exception, retryable: bool) -> str | None:
        """The problem that an error stands for. None: it is an error of the application."""
        kinds = {InProgress: "in-progress", Interrupted: "interrupted", Superseded: "superseded"}
        if type(error) in kinds:
            return kinds[type(error)]
        if sqlstate(error) == "ID001" and not self.begun:
            return "key-reused"
        return "unavailable" if retryable else None


async def look_up(options: Options, driver: Driver, facts: Facts, request: Any) -> Reply:
    """The answer to the request with this key, for GET: waits for a process that executes it, and never executes."""
    try:
        key = options.but(required=True).key(facts)
        assert key is not None
        exchange = Exchange(options, driver, await options.name(key, request), None)

        async def look() -> Reply:
            found = await exchange.attempt.look_up()
            if found.status == "in_progress":
                raise InProgress(key)
            if not found.replayed:
                kinds = {"suspended": "interrupted", "not_here": "unavailable"}
                raise options.problem(kinds.get(found.status, "unknown"))
            raise exchange.answer(found)

        reply: Reply = await exchange.serve(look, lambda reply: reply)
    except Answered as answered:
        reply = answered.reply
    # A cache would hand the answer for one key to the owner of another.
    return dataclasses.replace(
        reply, headers=[*reply.headers, ("cache-control", "no-store"), ("vary", "Idempotency-Key")]
    )
