"""Runs the programs of docs/consumers.md: consumers.py URI. Every message is sent twice, the programs are killed while
they work, and each message is delivered once. The broker of Kafka is the one that librdkafka has for tests; RabbitMQ is
a server of its own, and is left out where it is not installed."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psycopg
from ports import free_port
from psycopg.conninfo import conninfo_to_dict

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "consumers.md").read_text()
SUPERUSER = sys.argv[1]
PARTS = conninfo_to_dict(SUPERUSER)
URI = f"postgresql:///consumers?host={PARTS['host']}&port={PARTS.get('port', '5432')}&user={PARTS['user']}"
COUNT, KILLS = 1000, 4


def program(title):
    section = next(part for part in re.split(r"^## ", PAGE, flags=re.M) if part.startswith(title))
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    assert len(code.splitlines()) <= 26
    return code


def fresh_database():
    with psycopg.connect(SUPERUSER, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS consumers (FORCE)")
        conn.execute("CREATE DATABASE consumers")
    with psycopg.connect(URI, autocommit=True) as conn:
        conn.execute(re.search(r"```sql\n(.*?)```", PAGE, re.S)[1])


def ask(sql):
    with psycopg.connect(URI) as conn:
        return conn.execute(sql).fetchone()[0]


def worked(folder, title, broker, count, progress):
    """Runs a program, kills it KILLS times in the middle, and lets it come to the end."""
    (path := folder / "program.py").write_text(program(title))
    log = open(folder / "log", "a")
    killed, last = 0, time.monotonic() + 120
    process = subprocess.Popen([sys.executable, path, URI, broker], stdout=log, stderr=log)
    try:
        while progress() < count:
            assert time.monotonic() < last, f"{title}: {progress()} of {count}\n{(folder / 'log').read_text()[-2000:]}"
            if killed < KILLS and progress() >= count * killed / KILLS:
                time.sleep(random.uniform(0, 0.3))
                process.kill()
                process.wait()
                killed += 1
            if process.poll() is not None:
                process = subprocess.Popen([sys.executable, path, URI, broker], stdout=log, stderr=log)
            time.sleep(0.02)
        time.sleep(1)  # what comes again comes now
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()
    return killed


def delivered():
    return ask("SELECT count(DISTINCT message) FROM delivery")


def judge(title, killed):
    total, distinct = ask("SELECT count(*) FROM delivery"), delivered()
    good = total == distinct == COUNT and killed > 1
    print(
        f"{'ok' if good else 'not ok'} {title}: {COUNT} messages, {total} delivered, {distinct} different;"
        f" {killed} kills",
        flush=True,
    )
    return good


def kafka(folder):
    from confluent_kafka import Producer

    fresh_database()
    # Is the broker, too.
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    for number in 2 * list(range(COUNT)):
        producer.produce("mail", f"message {number}".encode(), headers={"id": f"id-{number}"})
    producer.flush(20)
    return judge("Kafka", worked(folder, "Kafka", f"{broker.host}:{broker.port}", COUNT, delivered))


def outbox(folder):
    from confluent_kafka import Producer

    fresh_database()
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    with psycopg.connect(URI) as conn:
        conn.execute("INSERT INTO outbox (message) SELECT 'message ' || n FROM generate_series(1, %s) n", (COUNT,))
    there = f"{broker.host}:{broker.port}"
    killed = worked(
        folder, "An outbox", there, COUNT, lambda: ask("SELECT count(*) FROM outbox WHERE sent_at IS NOT NULL")
    )
    return judge("outbox", killed + worked(folder, "Kafka", there, COUNT, delivered))


@contextlib.contextmanager
def rabbit(folder):
    """A server of our own, which knows nothing of another one."""
    port, distribution = free_port(), free_port()
    env = {
        **os.environ,
        "HOME": str(folder),
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_NODENAME": f"clients{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
    }
    server = next(iter(pathlib.Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server")))
    with open(folder / "rabbit.log", "w") as log:
        process = subprocess.Popen([server], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        last = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None and time.monotonic() < last, (folder / "rabbit.log").read_text()[-2000:]
            time.sleep(0.2)
        yield f"amqp://guest:guest@127.0.0.1:{port}/"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(
            ["epmd", "-port", env["ERL_EPMD_PORT"], "-kill"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def rabbitmq(folder):
    import pika

    fresh_database()
    with rabbit(folder) as broker:
        channel = pika.BlockingConnection(pika.URLParameters(broker)).channel()
        channel.queue_declare("mail", durable=True)
        for number in 2 * list(range(COUNT)):
            properties = pika.BasicProperties(message_id=f"id-{number}", delivery_mode=2)
            channel.basic_publish("", "mail", f"message {number}".encode(), properties)
        return judge("RabbitMQ", worked(folder, "RabbitMQ", broker, COUNT, delivered))


def main():
    parts = [kafka, outbox]
    if shutil.which("epmd") and pathlib.Path("/usr/lib/rabbitmq/lib").exists():
        parts.append(rabbitmq)
    else:
        print("skipped RabbitMQ: there is no rabbitmq-server", flush=True)
    good = True
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            good = part(pathlib.Path(folder)) and good
    with psycopg.connect(SUPERUSER, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS consumers (FORCE)")
    sys.exit(not good)


main()
