"""What the handler of the test's applications does: the actions of http_vectors.json."""

import asyncio
import base64
import collections
import contextlib
import json
import threading
import time

import psycopg
from servers import POOLS, raising, uri

from idempotence._await import finish
from idempotence._drivers import transaction_of

calls = collections.Counter()
lock = threading.Lock()


class Refused(Exception):
    """Of the application."""


class Outside:
    """What a handler with a lease works on: connections of its own."""

    def __init__(self, asynchronous):
        self.asynchronous = asynchronous

    async def query(self, sql, *args):
        return await asyncio.to_thread(self.ask, sql, args) if self.asynchronous else self.ask(sql, args)

    def ask(self, sql, args):
        with psycopg.connect(uri(), autocommit=True) as conn:
            if args:
                return conn.execute("INSERT INTO client_effect VALUES (%s, %s)", args)
            return conn.execute(sql)


def fail_elsewhere(kind):
    """Raises an error of another connection."""
    with psycopg.connect(POOLS["unreachable"] if kind == "unreachable" else uri()) as conn:
        conn.execute(raising(kind))


async def perform(body, conn, refuse):
    """Does what the body says. Returns status, headers and body of the answer; refuse(status) raises the framework's
    exception."""
    with lock:
        calls[body["run"]] += 1
        attempts = body["work"]
        actions = attempts[min(calls[body["run"]], len(attempts)) - 1]
    tx = Outside(conn.driver.asynchronous) if hasattr(conn, "taken_over") else transaction_of(conn)
    asynchronous = tx.asynchronous if hasattr(conn, "taken_over") else tx.driver.asynchronous
    for action in actions:
        if "effect" in action:
            await tx.query("INSERT INTO client_effect VALUES ($1, CAST($2 AS int))", body["run"], action["effect"])
        elif "sql" in action:
            await tx.query(action["sql"])
        elif "caught" in action:
            with contextlib.suppress(Exception):
                await tx.query(action["caught"])
                raise AssertionError("the statement has not failed")
        elif "foreign" in action:
            fail_elsewhere(action["foreign"])
        elif "sleep" in action:
            await asyncio.sleep(action["sleep"]) if asynchronous else time.sleep(action["sleep"])
        elif "raise" in action:
            if action["raise"] == "application":
                raise Refused
            refuse(int(action["raise"]))
        elif "respond" in action:
            return answer(**action["respond"])
    raise AssertionError("no answer")


def answer(status, headers=None, text=None, base64=None, json=None, fill=None):
    headers = dict(headers or {})
    if json is not None:
        headers.setdefault("Content-Type", "application/json")
        body = dumps(json)
    elif base64 is not None:
        body = decode(base64)
    else:
        body = ("x" * fill if fill else text or "").encode()
    return status, headers, body


def dumps(value):
    return json.dumps(value).encode()


decode = base64.b64decode


def perform_now(*args):
    return finish(perform(*args))
