"""Drivers that send no pipelines, but several statements in one simple query: asyncpg and psycopg2.

The adapter's statements are collected as text and sent together. A simple query has no arguments, so they are written
into the text. What it returns is read in the way that each driver allows, see `Link`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from ._errors import Spoilt
from ._transactions import Fetch, Tx


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"'{value}'"
    text = str(value)
    if "\0" in text:
        raise ValueError("a text in PostgreSQL has no NUL character")
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def with_literals(sql: str, args: tuple[Any, ...]) -> str:
    return re.sub(r"\$(\d+)", lambda found: literal(args[int(found[1]) - 1]), sql)


def rows_of(sql: str, args: tuple[Any, ...]) -> str:
    """An expression: the rows of the statement as JSON."""
    return f"(SELECT coalesce(json_agg(row_to_json(r)), '[]')::text FROM ({with_literals(sql, args)}) r)"


def decoded(rows: str) -> list[Any]:
    return [tuple(row.values()) for row in json.loads(rows)]


class Link:
    """How a driver sends simple queries."""

    async def execute(self, sql: str) -> str:
        """Executes statements, and returns the command tag of the last one."""
        raise NotImplementedError

    async def evaluate(self, before: list[str], expression: str, after: list[str]) -> str:
        """Executes the statements `before`, evaluates the expression, and executes the statements `after`. Returns the
        value of the expression, a text."""
        raise NotImplementedError


class SimpleTx(Tx):
    """`collected`: the statements that are not sent yet, or None outside of `folded`. `place`: where the expression of
    the ticket is among them."""

    link: Link
    implicit = False  # whether the driver sends BEGIN and COMMIT by itself
    collected: list[str] | None = None
    place: int | None = None
    ticket = tag = ""

    @contextlib.asynccontextmanager
    async def folded(self) -> AsyncIterator[None]:
        self.collected, self.place = [], None
        try:
            yield
            await self.send_collected()
        finally:
            self.collected = None

    async def send_collected(self) -> None:
        statements, place = self.collected or [], self.place
        self.collected, self.place = [], None
        if place is not None:
            before, after = statements[:place], statements[place + 1 :]
            self.ticket = await self.link.evaluate(before, statements[place], after)
        elif statements:
            self.tag = await self.link.execute("; ".join(statements))

    async def control(self, sql: str) -> None:
        """Begins or ends the transaction, together with other statements where it is possible."""
        if self.collected is None:
            self.tag = await self.link.execute(sql)
        else:
            self.collected.append(sql)

    async def send(self, sql: str, *args: Any) -> Fetch:
        if self.collected is None:
            return await self.send_alone(sql, *args)
        self.collected.append(with_literals(sql, args))
        return nothing

    async def send_begin(self, sql: str, *args: Any) -> Fetch:
        assert self.collected is not None
        self.place = len(self.collected)
        self.collected.append(rows_of(sql, args))

        async def fetch() -> list[Any]:
            return decoded(self.ticket)

        return fetch

    def check_tag(self) -> None:
        """COMMIT of a transaction in which a statement has failed is answered with ROLLBACK, which is no error."""
        if self.tag != "COMMIT":
            raise Spoilt

    async def left(self, commit: bool) -> None:
        await super().left(commit and not self.implicit)  # psycopg2 would send RELEASE SAVEPOINT and COMMIT one by one

    async def send_alone(self, sql: str, *args: Any) -> Fetch:
        """Executes one statement now."""
        raise NotImplementedError

    async def single(self, sql: str, *args: Any) -> list[Any]:
        with self.noting_errors():
            if self.implicit:
                await self.start()
            rows = decoded(await self.link.evaluate([], rows_of(sql, args), []))
        if self.implicit:
            await self.ended()
        self.over = True
        return rows


async def nothing() -> list[Any]:
    return []
