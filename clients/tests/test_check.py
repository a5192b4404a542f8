"""check() of the clients for Java and Go on a server that does not preload the library, for a role that was granted
nothing and for one that was. IDEM_URI is of such a server: see run.sh."""

import json

import servers
from test_agents import POOLS, calls  # noqa: F401 (calls is a fixture)

SESSION = """SELECT idem_create_session('checked', ttl => '1 hour')
    WHERE NOT EXISTS (SELECT FROM idempotence.sessions WHERE session = 'checked')"""


def checked(process, pool, session):
    process.stdin.write(json.dumps({"call": "check", "session": session, "run": session, "uri": POOLS[pool]}) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())["problems"]


def test_a_role_that_was_granted_nothing(calls):  # noqa: F811
    (problem,) = checked(calls, "ungranted", "checked")
    assert problem.startswith("rights: ") and "SELECT idem_grant('client_nobody') as postgres" in problem


def test_a_server_that_does_not_preload_the_library(calls):  # noqa: F811
    servers.prepare([SESSION])
    (problem,) = checked(calls, "owner", "checked")
    assert problem.startswith("preload: ") and "add idempotence to shared_preload_libraries and restart" in problem
