"""Both files of vectors, with the files for Java and Go: AGENTS are the programs that are told the calls."""

import contextlib
import json
import os
import subprocess
import time

import pytest
import servers
import test_http_vectors as http_vectors
from ports import free_port, wait_until_listening
from psycopg.conninfo import conninfo_to_dict

CALLS, CASES = servers.load("vectors.json")
AGENTS = {"java": ["java", "-cp", os.environ["AGENT_JAVA"], "Agent"], "go": [os.environ["AGENT_GO"]]}
# What these clients do not have. Cases that need it are left out, and no others.
NO_CALLS = {"lease": "no lease", "client": "no client sessions"}
NO_ROUTES = {
    "/passing": "no option to let bodies pass by",
    "/leased": "no lease",
    "/validated": "no validation",
}
NO_NEEDS = {"status exceptions", "any status exceptions"}


def address(**changes):
    """As a URI with a host, which JDBC wants."""
    parts = {**conninfo_to_dict(servers.URI), "user": servers.OWNER, **changes}
    return "postgresql://127.0.0.1:{port}/{dbname}?user={user}".format(**parts)


POOLS = {
    "owner": address(),
    "stranger": address(user=servers.STRANGER),
    "ungranted": address(user=servers.NOBODY),
    "hidden": address(user=servers.NOBODY, **servers.HIDDEN),
    "empty": address(dbname="client_empty"),
    "unreachable": address(port="1"),
}


@contextlib.contextmanager
def agent(name, *arguments, environment=None, **options):
    routes = json.dumps(http_vectors.FILE["routes"])
    environment = {**os.environ, "IDEM_OWNER": address(), "IDEM_ROUTES": routes, **(environment or {})}
    process = subprocess.Popen([*AGENTS[name], *arguments], env=environment, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module", params=AGENTS)
def calls(request):
    servers.prepare(CALLS["setup"])
    with agent(request.param, "calls", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture(scope="module", params=AGENTS)
def port(request):
    servers.prepare(http_vectors.FILE["setup"])
    number = free_port()
    with agent(request.param, "http", str(number)) as process:
        wait_until_listening(number, process)
        yield number


def call(process, step, run):
    """Makes the call, and compares all that is expected."""
    asked = {"session": run, "run": run, **step, "uri": POOLS[step.get("pool", "owner")]}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    got = json.loads(process.stdout.readline())
    if "problems" in got:
        got = servers.checked(step, got["problems"] or [], got["edition"])
    assert "error" in step["expect"] or "error" not in got, got
    for name, value in step["expect"].items():
        assert got.get(name) == value, f"{name} of {got}"


def lacking(case):
    steps = case["steps"]
    found = [NO_CALLS[step["call"]] for step in steps if step.get("call") in NO_CALLS]
    found += ["no claim" for step in steps if "claim" in step]
    found += [NO_ROUTES[step["path"]] for step in steps if step.get("path") in NO_ROUTES]
    found += [f"no {need}" for need in case.get("needs", []) if need in NO_NEEDS]
    return found and found[0]


def covered(cases):
    return [case for case in cases if not lacking(case)]


@pytest.mark.parametrize("case", covered(CASES), ids=servers.identifier)
def test_calls(case, calls):
    run, case = servers.begin(case)
    with contextlib.closing(servers.Helpers()) as helpers:
        for sql in case.get("setup", []):
            helpers.connection().execute(sql)
        for step in case["steps"]:
            if "sleep" in step:
                time.sleep(step["sleep"])
            elif not helpers.step(step):
                call(calls, step, run)
        if "effects" in case:
            assert helpers.effects(run) == case["effects"]


def test_an_unprotected_method_runs_in_a_transaction(port):
    """There is no begin that could refuse the COMMIT of a failure."""
    for failure in [{"raise": "application"}, {"respond": {"status": 500}}]:
        run, case = servers.begin(
            {
                "steps": [
                    {
                        "request": "PUT",
                        "path": "/posting",
                        "headers": {},
                        "expect": {"status": 500},
                        "json": {"run": "{run}", "work": [[{"effect": 5}, failure]]},
                    }
                ],
                "effects": 0,
            }
        )
        with contextlib.closing(servers.Helpers()) as helpers:
            http_vectors.perform(port, case, run, helpers)


def test_the_body_limit_does_not_apply_to_unprotected_methods(port):
    actions = [{"effect": 5}, {"pad": "x" * (1 << 20)}, {"respond": {"status": 201}}]
    run, case = servers.begin(
        {
            "steps": [
                {
                    "request": "PUT",
                    "path": "/posting",
                    "headers": {"Idempotency-Key": "{run}"},
                    "expect": {"status": 201},
                    "json": {"run": "{run}", "work": [actions]},
                }
            ],
            "effects": 1,
        }
    )
    with contextlib.closing(servers.Helpers()) as helpers:
        http_vectors.perform(port, case, run, helpers)


@pytest.mark.parametrize("case", covered(http_vectors.CASES), ids=servers.identifier)
def test_http(case, port):
    run, case = servers.begin(case)
    with contextlib.closing(servers.Helpers()) as helpers:
        http_vectors.perform(port, case, run, helpers)


def test_most_cases_are_covered():
    """A mistake in what is left out would leave out all."""
    assert len(covered(CASES)) > 60 and len(covered(http_vectors.CASES)) > 60
