"""What the checks tell, and what they read from the files of monitoring/."""

import subprocess

import yaml
from stack import QUERIES, RULES

failed = False


def tell(name, wrong):
    """One line for each check, and before it what is wrong."""
    global failed
    for line in wrong:
        print(f"# {line}")
    print(f"{'not ok' if wrong else 'ok'} {name}", flush=True)
    failed = failed or bool(wrong)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def check_run(name, *command, **options):
    done = run(*command, **options)
    tell(name, [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines())


def rules():
    group, = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def alert_names():
    return [rule["alert"] for rule in rules() if "alert" in rule]


def metrics():
    """The metrics that the queries make: name, type, labels."""
    for query, what in yaml.safe_load(QUERIES.read_text(encoding="utf-8")).items():
        columns = [next(iter(column.items())) for column in what["metrics"]]
        labels = [name for name, column in columns if column["usage"] == "LABEL"]
        for name, column in columns:
            if column["usage"] != "LABEL":
                yield f"{query}_{name}", column["usage"].lower(), labels
