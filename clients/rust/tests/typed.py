"""Types the quick start of README.md: typed.py URI CARGO. The program runs in a new folder and against a new database; it is
sent requests, killed in the middle of one, and sent that request again. Prints one line."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

SUPERUSER, CARGO = sys.argv[1:3]
CLIENT = pathlib.Path(__file__).resolve().parents[1]
README = (CLIENT / "README.md").read_text()
PARTS = conninfo_to_dict(SUPERUSER)
PORT = PARTS.get("port", "5432")
SHOP = make_conninfo(SUPERUSER, dbname="shop")
APP = f"postgresql:///shop?host={PARTS['host']}&port={PORT}&user=app"
ENV = {
    **os.environ,
    "PATH": f"{pathlib.Path(CARGO).parent}:{os.environ['PATH']}",
    "PGHOST": PARTS["host"],
    "PGPORT": PORT,
    "PGUSER": PARTS["user"],
}


def blocks(kind):
    """The blocks of code of the quick start."""
    section = next(part for part in re.split(r"^## ", README, flags=re.M) if part.startswith("Quick start"))
    return re.findall(rf"```{kind}\n(.*?)```", section, re.S)


CREATE, NEW, RUN, CURL = blocks("sh")


def drop():
    with psycopg.connect(SUPERUSER, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS shop (FORCE)")
        conn.execute("DROP ROLE IF EXISTS app")


def balance():
    with psycopg.connect(SHOP) as conn:
        return [int(row[0]) for row in conn.execute("SELECT balance FROM account ORDER BY id")]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def served(folder, port):
    command = RUN.strip().replace("postgresql://app@localhost/shop", f"'{APP}'")
    process = subprocess.Popen(
        ["bash", "-c", f"export {command.replace(' cargo', '; exec cargo')}"],
        cwd=folder,
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(2400):
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
                break
            assert process.poll() is None, f"{RUN} has ended"
            time.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def curl(port, key="order-1"):
    command = CURL.replace("localhost:8000", f"localhost:{port}").replace("order-1", key)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENV).stdout


def is_replay(answer):
    return "idempotent-replayed: true" in answer.lower()


def main(folder):
    began, port = time.monotonic(), free_port()
    drop()
    subprocess.run(["bash", "-ec", CREATE], env=ENV, check=True, stdout=subprocess.DEVNULL)
    new = NEW.replace("../idempotence/clients/rust", str(CLIENT))
    subprocess.run(["bash", "-ec", new], cwd=folder, env=ENV, check=True)
    # The versions that the client is tested with.
    shutil.copy(CLIENT / "Cargo.lock", shop := folder / "shop")
    source = blocks("rust,ignore")[0].replace(":8000", f":{port}")
    (program := shop / "src" / "main.rs").write_text(source)
    build = ["flock", os.environ["IDEM_BUILD_LOCK"]] if "IDEM_BUILD_LOCK" in os.environ else []
    subprocess.run([*build, "cargo", "build"], cwd=shop, env=ENV, check=True)
    try:
        with served(shop, port):
            first, second = curl(port), curl(port)
        assert " 201" in first.splitlines()[0] and not is_replay(first), first
        assert " 201" in second.splitlines()[0] and is_replay(second), second
        assert balance() == [70, 30], balance()
        sleep = re.search(r"`(tokio::time::sleep.*?;)`", README)[1]
        assert source.count("    Ok(StatusCode") == 1
        program.write_text(source.replace("    Ok(StatusCode", f"    {sleep}\n    Ok(StatusCode"))
        subprocess.run([*build, "cargo", "build"], cwd=shop, env=ENV, check=True)
        with served(shop, port) as process:
            ask = threading.Thread(target=curl, args=[port, "order-2"])
            ask.start()
            sleeping = "SELECT FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle in transaction'"
            with psycopg.connect(SHOP, autocommit=True) as conn:
                last = time.monotonic() + 20
                while not conn.execute(sleeping).rowcount:
                    assert time.monotonic() < last, "the request never slept"
                    time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
            ask.join()
        assert balance() == [70, 30], balance()
        program.write_text(source)
        subprocess.run([*build, "cargo", "build"], cwd=shop, env=ENV, check=True)
        with served(shop, port):
            # The server detects the end of the client at once or after a moment.
            for _ in range(50):
                third = curl(port, "order-2")
                if " 409" not in third.splitlines()[0]:
                    break
                time.sleep(0.1)
        assert " 201" in third.splitlines()[0] and balance() == [40, 60], (third, balance())
    finally:
        # The compiled dependencies are kept for the next time.
        subprocess.run(["cargo", "clean", "--package", "shop"], cwd=shop, env=ENV, check=True)
    print(f"ok README.md: two requests, a kill, one payment each: {time.monotonic() - began:.0f} s", flush=True)


with tempfile.TemporaryDirectory() as there:
    main(pathlib.Path(there))
drop()
