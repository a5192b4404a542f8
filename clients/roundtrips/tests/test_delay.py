"""delay.sh: how much later bytes arrive, in which order, and how connections end."""

import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import threading
import time

import psycopg
import pytest

DELAY = pathlib.Path(__file__).resolve().parents[1] / "delay.sh"
SERVER = f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ['PGPORT']}"


@contextlib.contextmanager
def proxy(upstream, delay_us):
    command = [DELAY, "--listen", "0", "--upstream", upstream, "--delay-us", str(delay_us)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())["port"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def peers():
    """Makes a pair of connected sockets with the proxy between them."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def make(delay_us):
            port = stack.enter_context(proxy(f"127.0.0.1:{listener.getsockname()[1]}", delay_us))
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            server = stack.enter_context(listener.accept()[0])
            for each in (client, server):
                each.settimeout(10)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return client, server

        yield make


@pytest.mark.parametrize("delay_us", [0, 500, 5000])
def test_a_round_trip_takes_twice_the_delay_longer(peers, delay_us):
    client, server = peers(delay_us)

    def echo():
        while data := server.recv(100):
            server.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    took = []
    for _ in range(300):
        began = time.perf_counter()
        client.sendall(b"x")
        client.recv(1)
        took.append((time.perf_counter() - began) * 1e6)
    client.shutdown(socket.SHUT_WR)
    thread.join()
    assert min(took) >= 2 * delay_us
    # On a busy machine single round trips take longer; most do not.
    assert statistics.quantiles(took, n=10)[0] <= 2 * delay_us + 400


def test_chunks_under_way_at_once_are_not_delayed_by_each_other(peers):
    client, server = peers(300_000)
    began = time.perf_counter()
    for number in range(10):
        client.sendall(bytes([number]))
        time.sleep(0.01)
    received = b""
    while len(received) < 10:
        received += server.recv(100)
    assert received == bytes(range(10))
    assert 0.3 <= time.perf_counter() - began < 1


def test_many_bytes_arrive_whole_and_in_order(peers):
    client, server = peers(500)
    data = os.urandom(8 << 20)
    threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)), daemon=True).start()
    received = bytearray()
    while part := server.recv(1 << 20):
        received += part
    assert received == data
    server.sendall(b"after the end of the other direction")
    assert client.recv(100) == b"after the end of the other direction"


def test_a_broken_connection_is_closed_on_the_other_side(peers):
    client, server = peers(500)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()  # sends RST
    with contextlib.suppress(ConnectionError):
        assert server.recv(1) == b""


def test_in_front_of_a_server():
    with (
        proxy(SERVER, 20_000) as port,
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", autocommit=True) as conn,
    ):
        began = time.perf_counter()
        conn.execute("SELECT 1")
        assert time.perf_counter() - began >= 0.04


@pytest.mark.parametrize("given", [[], ["--listen", "0", "--upstream", "nowhere", "--delay-us", "1"]])
def test_wrong_arguments_are_refused(given):
    process = subprocess.run([DELAY, *given], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("usage: delay --listen PORT")
