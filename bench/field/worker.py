"""The processes that execute requests. They are forked from a server that has imported everything already."""

import logging
import multiprocessing
import time
import warnings

from contenders import VARIANTS
from work import InProgress, Stop, new_request

# The requests that are asked for again and again where replays are measured.
KNOWN_REQUESTS = 200

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["worker"])


class Worker:
    """A process at the other end of a pipe."""

    def __init__(self, target, *arguments):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def is_ready(self, seconds):
        return self.receive(seconds) == ("ready",)

    def send(self, *message):
        self.pipe.send(message)

    def receive(self, seconds):
        """The next message, or None if there is none in that time."""
        if not self.pipe.poll(seconds):
            return None
        try:
            return self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"a worker ended by itself: exit code {self.process.exitcode}") from None

    def kill(self):
        """SIGKILL: nothing is rolled back, closed or flushed by the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start(variant_id, place):
    """A worker that is ready. If one hangs in its first request, another is started."""
    for _ in range(3):
        worker = Worker(serve, variant_id, place)
        if worker.is_ready(40):
            return worker
        worker.kill()
    raise RuntimeError(f"three workers of {variant_id} do not get ready")


def make(variant_id, place):
    # What the contenders warn of here: deprecated names, and keys that look as if they were new for each attempt.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    return VARIANTS[variant_id].contender(place)


def serve(variant_id, place, pipe):
    """A worker: executes one request after the other, and stops at a place if it is told to."""
    contender = make(variant_id, place)
    # What is done only once (connections, plans) would be most of the time of the first request.
    execute(contender, new_request())
    Stop.tell = lambda: pipe.send(("stopped",))
    pipe.send(("ready",))
    while True:
        request, Stop.place = pipe.recv()
        pipe.send(execute(contender, request))


def execute(contender, request):
    try:
        return ("answer", contender.transfer(request))
    except InProgress:
        return ("in progress",)
    except Exception as error:
        return ("error", f"{type(error).__name__}: {error}")


def count(variant_id, place, replays, pipe):
    """A client: sends requests as fast as it can, and counts those that end between two moments."""
    contender = make(variant_id, place)
    known = [new_request() for _ in range(KNOWN_REQUESTS)] if replays else []
    for request in known or [new_request() for _ in range(20)]:
        contender.transfer(request)
    pipe.send(("ready",))
    start, end = pipe.recv()

    done, sent, cpu_at_start, now = 0, 0, None, 0
    while now < end:
        request = known[sent % len(known)] if known else new_request()
        contender.transfer(request)
        sent += 1
        now = time.monotonic()
        if cpu_at_start is None and now >= start:
            cpu_at_start = time.process_time()
        elif start <= now < end:
            done += 1
    pipe.send((done, time.process_time() - cpu_at_start))
    # The parent ends it.
    pipe.recv()
