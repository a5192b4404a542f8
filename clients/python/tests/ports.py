"""Ports of programs that the tests start."""

import contextlib
import socket
import time


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_until_listening(port, process, seconds=20):
    """Fails if the process ends before it accepts connections, or does not accept any in time."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, f"the program has ended with status {process.returncode}"
        assert time.monotonic() < end, f"the program does not listen on port {port}"
        time.sleep(0.05)
