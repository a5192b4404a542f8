"""Runs the example for several servers, which is to find the right one by itself and to execute nothing on another.

Usage: check_nodes.py NAME URI COMMAND...; two servers are made from the programs of the one at URI. The command is given
sessions and keys, and the names and addresses of both servers. Each request is sent several times, to any of them: it
must take effect once, on its own server, also while its key is held there by somebody else whose connection is then
cut, and while its session moves. If the address of its server is missing, the example must say so, and nothing may be
executed.
"""

import json
import re
import subprocess
import sys
import time
import uuid

import psycopg
from guide_parts import DEADLINE_S, ROOT, Server, until

# How long a session moves. Without a pause, the example would have spent its attempts by then.
MOVE_S = 4

# Cuts off whoever waits for a request.
CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def prepared(server, others):
    """A connection to the server, which has sessions for these nodes."""
    conn = psycopg.connect(server.uri, autocommit=True)
    conn.execute((ROOT / "docs/snippets/setup.sql").read_text())
    for node in others:
        conn.execute(f"SELECT idem_create_session('payments of {node}', ttl => '24 hours', node => '{node}')")
    return conn


def node_of(server):
    with psycopg.connect(server.uri, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION idempotence")
        return conn.execute("SELECT idem_node()").fetchone()[0]


def run(command, *arguments):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)


def check(uri, command):
    """Raises SystemExit or AssertionError unless the example does what it should."""
    with Server(uri) as first, Server(uri) as second:
        servers = {node_of(server): server for server in (first, second)}
        assert len(servers) == 2, "both servers have one name"
        addresses = [f"{node}={server.uri}" for node, server in servers.items()]
        conns = {node: prepared(server, servers) for node, server in servers.items()}
        for home in 2 * list(servers):
            session, key = f"payments of {home}", str(uuid.uuid4())
            done = run(command, session, key, *addresses)
            assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
            lines = done.stdout.splitlines()
            paid = [re.fullmatch(r"payments of (\S+) succeeded (\w+) (.*)", line) for line in lines[:4]]
            assert [line[2] for line in paid] == ["executed"] + 3 * ["replayed"], done.stdout
            assert all(line[1] == home and json.loads(line[3]) == {"paid": "10.00"} for line in paid), done.stdout
            delivered = [re.fullmatch(r"number (\d) on (\S+) succeeded (\w+) (.*)", line) for line in lines[4:]]
            found = [(line[1], line[3], line[4]) for line in delivered]
            expected = [
                ("1", "executed", f'"{key}/1"'),
                ("2", "executed", f'"{key}/2"'),
                ("2", "replayed", f'"{key}/2"'),
                ("1", "replayed", f'"{key}/1"'),
            ]
            assert found == expected, done.stdout
            for node, conn in conns.items():
                outcomes = conn.execute("SELECT count(*) FROM idempotence.outcomes WHERE request = %s", [key]).fetchone()[0]
                assert outcomes == (node == home), f"{node} has {outcomes} outcomes of a request of {home}"
                deliveries = conn.execute("SELECT count(*) FROM delivery WHERE message LIKE %s", [f"{key}/%"]).fetchone()[0]
                assert deliveries == 2 * (node == delivered[0][2]), f"{node} has made {deliveries} deliveries"
        held_and_cut(command, conns, servers, addresses)
        moves(command, conns, addresses)

        # Only the address of one server: for a request of the other there is no answer, and nothing is executed.
        before = [conn.execute("SELECT sum(balance * id) FROM account").fetchone() for conn in conns.values()]
        conns[home].execute("SELECT idem_alter_session(%s, node => 'far')", [f"payments of {home}"])
        lost = run(command, session, key, f"{home}={servers[home].uri}")
        assert lost.returncode != 0 and "the address of node far is not known here" in lost.stderr, lost.stderr
        after = [conn.execute("SELECT sum(balance * id) FROM account").fetchone() for conn in conns.values()]
        assert before == after, "something was executed"
        for conn in conns.values():
            conn.close()


def held_and_cut(command, conns, servers, addresses):
    """The example waits for its key where somebody else has it, is cut off, and goes on there."""
    home, server = list(servers.items())[0]
    session, key = f"payments of {home}", str(uuid.uuid4())
    holder = psycopg.connect(server.uri)
    holder.execute("SELECT idem_begin(%s, %s)", [session, key])
    program = subprocess.Popen([*command, session, key, *addresses], stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: conns[home].execute(CUT).fetchone()[0], "the example waits for its key")
        holder.close()
        output, _ = program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
    assert program.returncode == 0, f"exit code {program.returncode}: {output}"
    assert outcomes_of(conns, key) == {home: [session]}, f"the outcomes are {outcomes_of(conns, key)}"


def moves(command, conns, addresses):
    """Each of two servers says that the session is on the other one; a while later it is open on one of them."""
    home, other = conns
    session, key = f"payments of {home}", str(uuid.uuid4())
    conns[home].execute("SELECT idem_alter_session(%s, node => %s)", [session, other])
    program = subprocess.Popen([*command, session, key, *addresses], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(MOVE_S)
        assert program.poll() is None, f"it has given up on a session that moves, with exit code {program.returncode}"
        conns[other].execute("SELECT idem_alter_session(%s, node => %s)", [session, other])
        output, _ = program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
    assert program.returncode == 0, f"exit code {program.returncode}: {output}"
    assert outcomes_of(conns, key) == {other: [session]}, f"the outcomes are {outcomes_of(conns, key)}"


def outcomes_of(conns, key):
    """The sessions with an outcome of the key, by the nodes that have any."""
    query = "SELECT session FROM idempotence.outcomes WHERE request = %s"
    found = {node: [row[0] for row in conn.execute(query, [key])] for node, conn in conns.items()}
    return {node: sessions for node, sessions in found.items() if sessions}


def main():
    name, uri, *command = sys.argv[1:]
    try:
        check(uri, command)
    except (AssertionError, SystemExit, psycopg.Error, subprocess.TimeoutExpired) as error:
        print(f"not ok snippet {name}: {error}")
        sys.exit(1)
    print(f"ok snippet {name}")


main()
