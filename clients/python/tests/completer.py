"""A completer that test_complete.py kills. completer.py URI SESSION DRIVER"""

import asyncio
import signal
import sys
import threading

import drivers
import psycopg
import servers

import idempotence

uri, session, driver = sys.argv[1:]


def pay(held):
    """The other side recognizes keys, as a card processor does."""
    with psycopg.connect(uri, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO client_charge VALUES (%s) ON CONFLICT (key) DO UPDATE SET asked = client_charge.asked + 1",
            (held.key,),
        )
    return {"charged": held.key}


async def pay_asynchronously(held):
    return await asyncio.to_thread(pay, held)


OPTIONS = {"lease": 1, "interval": 0.1, "grace": 0.05}


def main():
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print(idempotence.complete(uri, session, pay, stop=stop, **OPTIONS))


async def main_asynchronously():
    servers.POOLS["owner"] = uri
    pools, stop = drivers.Pools(driver), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with pools.stack:
        print(await idempotence.complete(await pools.get(), session, pay_asynchronously, stop=stop, **OPTIONS))


asyncio.run(main_asynchronously()) if drivers.asynchronous(driver) else main()
