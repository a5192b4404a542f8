"""check() on servers that lack something."""

import os
import subprocess
import tempfile

import psycopg
import pytest
import servers

import idempotence


def test_a_role_without_a_grant_is_told_which_one():
    servers.prepare(["SELECT idem_create_session('checked')"])
    (problem,) = idempotence.check(servers.uri(servers.NOBODY), "checked")
    assert "SELECT idem_grant('client_nobody') as postgres" in problem


@pytest.mark.skipif(servers.MANAGED is not None, reason="the edition for managed services is not preloaded")
def test_a_server_that_does_not_preload_the_library():
    with psycopg.connect(servers.URI) as conn:
        programs = os.path.dirname(conn.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()[0])
    programs = os.path.join(programs, "bin")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        if as_user:
            subprocess.run(["chown", "postgres:", folder], check=True)
        data = f"{folder}/data"
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        control = [*as_user, f"{programs}/pg_ctl", "-D", data, "-s", "-w"]
        subprocess.run(
            [*as_user, f"{programs}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"],
            check=True,
            cwd="/",
            stdout=subprocess.DEVNULL,
        )
        subprocess.run([*control, "-l", f"{folder}/log", "-o", options, "start"], check=True, cwd="/")
        try:
            uri = f"postgresql:///postgres?host={folder}&user=postgres"
            with psycopg.connect(uri, options="-c client_min_messages=warning") as conn:
                conn.execute("CREATE EXTENSION idempotence; CREATE ROLE app LOGIN; SELECT idem_grant('app')")
                conn.execute("SELECT idem_create_session('checked', owner => 'app')")
            (problem,) = idempotence.check(uri.replace("user=postgres", "user=app"), "checked")
            assert problem.startswith("preload: ") and "shared_preload_libraries" in problem
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd="/")
