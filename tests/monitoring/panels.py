"""The dashboard: each query of each panel is asked of Prometheus, and held against the driver's count."""

import json
import re
import time

from expected import WAITERS
from load import LINES
from stack import MONITORING
from told import tell


def expressions(panel, rate_interval="8s"):
    for target in panel["targets"]:
        text = target["expr"].replace("$__rate_interval", rate_interval)
        for variable in ("instance", "datname", "session"):
            text = text.replace(f"${variable}", ".*")
        yield target, text


def legend(target, labels):
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), target["legendFormat"])


def panels():
    return json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))["panels"]


def dashboard(check):
    """Each query of each panel has an answer. Where the driver has a count, the answer is that."""
    load, began = check.load, check.began
    total = lambda column, **but: sum(load.expected[line][column] for line in LINES if line[2] != but.get("kind"))
    # Two exporters ask the same server, so Prometheus has everything twice.
    twice = 2
    # What rates must come to over the whole time.
    sums = {"started": total("started"), "taken over": total("taken_over"), "replayed": total("replayed"),
            "in progress": total("in_progress"), "succeeded": total("recorded"), "failed": total("failed"),
            "cancelled": total("cancelled"), "released": total("released"),
            "other payload (ID001)": total("mismatched"),
            "discarded (ID003)": total("discarded"), "fenced (ID005)": total("fenced"),
            "out of sequence (ID006)": total("out_of_sequence"), "unrecorded (ID008)": total("unrecorded"),
            **{sqlstate: count for sqlstate, count in load.errors.items()},
            "calls that wait": sum(load.waited.values()), "waits a second": total("waits")}
    # What a panel must say at most.
    most = {"waiters for one request": WAITERS, "of prepared transactions": 1 * twice, 
            "that wait for a lock": 1 * twice, "at work, crew": 10 * twice, "inbox": 1 * twice,
            "shop: publications": 1}
    # What a panel must say at the end.
    last = {"run out": 2 * twice, "leased": 1 * twice, "suspended": 1 * twice}
    time.sleep(9)
    ended = time.time()
    seconds = round(ended - began)
    for panel in panels():
        wrong = []
        # A rate of a few scrapes is an estimate, and of one that is late a bad one: sums are held against one rate of all.
        for (target, expression), (_, whole) in zip(expressions(panel), expressions(panel, f"{seconds}s")):
            found = check.stack.query_range(expression, began, ended)
            values = [value for _, points in found for _, value in points if value == value]
            if not values:
                wrong.append(f"nothing: {expression}")
            if panel["type"] == "timeseries":
                for labels, [(_, rate)] in check.stack.query_range(whole, ended, ended):
                    if (name := legend(target, labels)) in sums:
                        expected, counted = sums.pop(name) * twice, rate * seconds
                        # What was counted before the first scrape is in no rate, and both ends are filled up by guess.
                        if abs(counted - expected) > 0.1 * expected + 0.5:
                            wrong.append(f"{name}: {counted:.1f} and not {expected}")
            for labels, points in found:
                name = legend(target, labels)
                points = [value for _, value in points if value == value]
                if name in most and panel["type"] != "stat":
                    expected = most.pop(name)
                    if max(points) != expected:
                        wrong.append(f"{name}: {max(points)} and not {expected}")
                elif name in last:
                    expected = last.pop(name)
                    if points[-1] != expected:
                        wrong.append(f"{name}: {points[-1]} at the end and not {expected}")
        tell(f"panel \"{panel['title']}\"", wrong)
    tell("no figure of the dashboard is left out", [*sums, *most, *last])


def unscraped(stack):
    """What the figures say that must be red: 3 is a level of health that there is not, and no count is below 0."""
    for panel in panels():
        if panel["type"] == "stat":
            for _, expression in expressions(panel):
                found = list(stack.query(expression).values())
                if found != [3 if panel["title"] == "Health" else -1]:
                    yield f"{panel['title']}: {found}"
