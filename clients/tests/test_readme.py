"""Follows the READMEs of the clients for Go and Java: their commands, their SQL and their programs."""

import contextlib
import http.client
import os
import pathlib
import re
import subprocess

import psycopg
import pytest
import servers
from ports import free_port, wait_until_listening
from test_agents import AGENTS, address

CLIENTS = pathlib.Path(__file__).resolve().parents[1]
BODIES = {"go": '{"item": "book"}', "java": "book"}
pytestmark = pytest.mark.skipif(bool(servers.MANAGED), reason="the READMEs create the extension")


def blocks(language):
    """The code blocks of a README, by their kind."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", (CLIENTS / language / "README.md").read_text(), re.M | re.S)
    return {kind: [text for other, text in found if other == kind] for kind, _ in found}


def database(sql):
    with psycopg.connect(servers.URI, autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
        server.execute("DROP ROLE IF EXISTS shop")
        server.execute("CREATE DATABASE shop")
    with psycopg.connect(servers.make_conninfo(servers.URI, dbname="shop"), autocommit=True) as shop:
        shop.execute(sql)


def shell(commands, folder):
    subprocess.run(["bash", "-euc", commands.replace("/path/to/checkout", str(CLIENTS.parent))], cwd=folder, check=True)


def go(found, folder, port):
    module = folder / "src" / "shop"
    module.mkdir(parents=True)
    # The packages of Debian take the place of the module proxy.
    shell("\n".join(line for line in found["sh"][0].splitlines() if not line.startswith("go ")), module)
    (module / "main.go").write_text(found["go"][0].replace(":8080", f":{port}"))
    environment = {**os.environ, "GOPATH": f"{folder}:{os.environ['GOPATH']}"}
    subprocess.run(["go", "vet", "shop"], env=environment, check=True)
    subprocess.run(["go", "build", "-o", folder / "program", "shop"], env=environment, check=True)
    return [folder / "program"], {"DATABASE_URL": address(dbname="shop", user="shop")}


def java(found, folder, port):
    sources = folder / "src/main/java/com/example/shop"
    sources.mkdir(parents=True)
    shell(found["sh"][0], folder)
    (sources / "Shop.java").write_text(found["java"][0].replace("8080", str(port)))
    path = os.environ["AGENT_JAVA"]
    subprocess.run(["javac", "-d", folder / "classes", "-cp", path, *sources.glob("*.java")], check=True)
    command = ["java", "-cp", f"{folder / 'classes'}:{path}", "com.example.shop.Shop"]
    return command, {"JDBC_URL": "jdbc:" + address(dbname="shop", user="shop")}


def ask(port, path, method="POST", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Idempotency-Key": '"order-1"'})
        response = connection.getresponse()
        return response.status, response.read(), response.headers["Location"], response.headers["Idempotent-Replayed"]


@pytest.mark.parametrize("language", AGENTS)
def test_the_quick_start(language, tmp_path):
    found, port = blocks(language), free_port()
    database(found["sql"][0])
    command, environment = {"go": go, "java": java}[language](found, tmp_path, port)
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        wait_until_listening(port, process)
        first = ask(port, "/orders", body=BODIES[language])
        assert (first[0], first[2], first[3]) == (201, "/orders/1", None)
        assert ask(port, "/orders", body=BODIES[language]) == (*first[:3], "true")
        assert ask(port, "/orders/answer", "GET") == (*first[:3], "true")
    finally:
        process.terminate()
        process.wait()
    with psycopg.connect(servers.make_conninfo(servers.URI, dbname="shop")) as shop:
        assert shop.execute("SELECT count(*) FROM orders").fetchone() == (1,)
