"""Types what README.md says, from nothing: typed.py URI PYTHON. Its programs run in a new folder and against a new
database. They are sent requests, killed in the middle, and sent the same requests again. PYTHON has what the README
installs. Prints one line for each part."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import psycopg
from ports import free_port
from psycopg.conninfo import conninfo_to_dict, make_conninfo

SUPERUSER, PYTHON = sys.argv[1:3]
README = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()
PARTS = conninfo_to_dict(SUPERUSER)
SHOP = make_conninfo(SUPERUSER, dbname="shop")
APP = f"postgresql:///shop?host={PARTS['host']}&port={PARTS.get('port', '5432')}&user=app"
ENV = {
    **os.environ,
    "PATH": f"{pathlib.Path(PYTHON).parent}:{os.environ['PATH']}",
    "DATABASE_URL": APP,
    "PGPORT": PARTS.get("port", "5432"),
}


def blocks(title, kind):
    """The blocks of code of a section."""
    section = re.split(r"^## ", README, flags=re.M)
    text = next(part for part in section if part.startswith(title)) if title else section[0]
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def drop():
    with psycopg.connect(SUPERUSER, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS shop (FORCE)")
        conn.execute("DROP ROLE IF EXISTS app")


def fresh_database():
    drop()
    with psycopg.connect(SUPERUSER, autocommit=True) as conn:
        conn.execute("CREATE DATABASE shop")
    with psycopg.connect(SHOP, autocommit=True) as conn:
        conn.execute(re.search(r"```sql\n(.*?)```", README, re.S)[1])


def balance():
    with psycopg.connect(SHOP) as conn:
        return [int(row[0]) for row in conn.execute("SELECT balance FROM account ORDER BY id")]


@contextlib.contextmanager
def served(command, port, folder):
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
                break
            assert process.poll() is None, f"{command} has ended"
            time.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def curl(port, key="order-1"):
    command = re.search(r"```sh\n(curl .*?)```", README, re.S)[1].replace("localhost:8000", f"localhost:{port}")
    return subprocess.run(
        ["bash", "-c", command.replace("order-1", key)], capture_output=True, text=True, env=ENV
    ).stdout


def played(name, folder, program, end, sleep, command, port):
    """Two curls and a kill, while it sleeps in front of its end."""
    began, source = time.monotonic(), program.read_text()
    with served(command, port, folder):
        first, second = curl(port), curl(port)
    assert " 201" in first.splitlines()[0] and "idempotent-replayed: true" not in first.lower(), first
    assert " 201" in second.splitlines()[0] and "idempotent-replayed: true" in second.lower(), second
    assert first.splitlines()[-1] == second.splitlines()[-1] and balance() == [70, 30], balance()
    assert source.count(end) == 1
    indent = re.search(rf"^ *(?={re.escape(end)})", source, re.M)[0]
    program.write_text(source.replace(end, f"{sleep}\n{indent}{end}"))
    with served(command, port, folder) as process:
        ask = threading.Thread(target=curl, args=[port, "order-2"])
        ask.start()
        with psycopg.connect(SHOP, autocommit=True) as conn:
            last = time.monotonic() + 20
            while not conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle in transaction'"
            ).fetchone()[0]:
                assert time.monotonic() < last, "the request never slept"
                time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        ask.join()
    assert balance() == [70, 30], balance()
    program.write_text(source)
    with served(command, port, folder):
        # The server notices the dead client at once, or within a moment.
        for _ in range(50):
            third = curl(port, "order-2")
            if " 409" not in third.splitlines()[0]:
                break
            time.sleep(0.1)
    assert " 201" in third.splitlines()[0] and balance() == [40, 60], (third, balance())
    lines = [line for line in source.splitlines() if re.search(r"(#|//) \d$", line)]
    assert 0 < len(lines) <= 4
    print(
        f"ok {name}: {len(lines)} lines, two curls, a kill, one payment each: {time.monotonic() - began:.0f} s",
        flush=True,
    )


def asgi(title, name):
    """A program that uvicorn serves."""

    def part(folder):
        fresh_database()
        (program := folder / name).write_text(blocks(title, "python")[0])
        port, serve = free_port(), blocks(title, "sh")
        command = next(line for block in serve for line in block.splitlines() if line.startswith("uvicorn "))
        end = 'return {"moved"' if "FastAPI" in title else 'return JSONResponse({"moved"'
        sleep = "import asyncio; await asyncio.sleep(60)"
        played(title, folder, program, end, sleep, f"{command} --port {port}", port)

    return part


def django(title):
    """A project of Django, with the urls.py of a section."""

    def part(folder):
        fresh_database()
        section = "Quick start: Django\n"
        make = blocks(section, "sh")[0].replace('"HOST": "localhost"', f'"HOST": "{PARTS["host"]}"')
        make = "\n".join(line for line in make.splitlines() if not line.startswith("pip"))
        subprocess.run(["bash", "-ec", make], cwd=folder, env=ENV, check=True)
        (program := folder / "shop" / "urls.py").write_text(blocks(title, "python")[0])
        port, command = free_port(), blocks(section, "sh")[1].strip()
        end = 'return JsonResponse({"moved"' if title == section else 'return Response({"moved"'
        played(title.strip(), folder, program, end, "import time; time.sleep(60)", f"{command} {port}", port)

    return part


def plain(folder):
    fresh_database()
    (program := folder / "plain.py").write_text(blocks("Without a web framework", "python")[0])
    assert [ran(program) for _ in range(2)] == [
        "[]\nsucceeded {'moved': 30} False\n",
        "[]\nsucceeded {'moved': 30} True\n",
    ]
    print("ok without a framework", flush=True)


def ran(program):
    command = [PYTHON, program, APP]
    return subprocess.run(command, cwd=program.parent, env=ENV, capture_output=True, text=True, check=True).stdout


def completer(folder):
    fresh_database()
    (program := folder / "finish.py").write_text(blocks("The completer", "python")[0])
    with psycopg.connect(APP) as conn:
        conn.execute("SELECT idem_begin('payments', 'order-5', lease => '10 ms')")
    time.sleep(0.05)
    assert [ran(program) for _ in range(2)] == ["completes order-5 None None\n1\n", "0\n"]
    print("ok completer", flush=True)


README_PARTS = (
    asgi("Quick start: FastAPI", "shop.py"),
    asgi("Quick start: Starlette", "starlette_shop.py"),
    django("Quick start: Django\n"),
    django("Quick start: Django REST framework"),
    plain,
    completer,
)

for part in README_PARTS:
    with tempfile.TemporaryDirectory() as there:
        part(pathlib.Path(there))
drop()
