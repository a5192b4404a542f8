"""What needs no server: the rules by promtool, the files made from others, the page."""

import pathlib
import re
import sys

import yaml
from panels import panels
from stack import MONITORING, QUERIES, ROOT, RULES
from told import alert_names, check_run, metrics, rules, run, tell

HERE = pathlib.Path(__file__).parent


def static():
    check_run("promtool finds the rules in order", "promtool", "check", "rules", RULES)
    check_run("promtool finds the configuration in order", "promtool", "check", "config", MONITORING / "prometheus.yml")
    check_run("each alert fires in its state, and not before or otherwise", "promtool", "test", "rules",
              HERE / "rules.test.yml")

    tests = yaml.safe_load((HERE / "rules.test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {re.search(r'alertname="(\w+)"', sample["labels"])[1]
             for test in tests for one in test["promql_expr_test"] for sample in one.get("exp_samples", [])}
    tell("no alert is left out of the tests", sorted(set(alert_names()) - fired))

    made = run(sys.executable, HERE / "sql_exporter.py", QUERIES).stdout
    shipped = (MONITORING / "sql_exporter.yml").read_text(encoding="utf-8")
    tell("sql_exporter.yml is made from postgres_exporter.yaml",
         [] if made == shipped else ["make it: tests/monitoring/sql_exporter.py monitoring/postgres_exporter.yaml"])

    tell("the dashboard is in order", sorted(disorder()))

    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    parts = {"operations.md#" + re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
             for title in re.findall(r"^#+ (.*)", page, re.M)}
    tell("each alert names a part of the page", [rule["alert"] for rule in rules() if "alert" in rule
                                                 and rule["annotations"].get("runbook_url") not in parts])
    documented = page[page.index("## Monitoring"):]
    tell("each alert is documented", [name for name in alert_names() if f"`{name}`" not in documented])
    tell("each metric is documented, with its type and labels", sorted(wrongly_documented(documented)))


def disorder():
    """What Grafana would not show, or show twice."""
    taken, ids = {}, set()
    for panel in panels():
        place, title = panel["gridPos"], f"{panel['title']} ({panel['id']})"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if x >= 24 or taken.setdefault((x, y), title) != title:
                    yield f"{title} has no room, or {taken[x, y]} is there"
        if panel["id"] in ids or not panel["description"]:
            yield f"{title}: its id is taken, or it has no description"
        ids.add(panel["id"])
        if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
            yield f"{title}: two queries have one name"


def wrongly_documented(page):
    """The table has a row for each metric: | `name` | type | labels | meaning |."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].startswith("`idempotence_"):
            for name in re.findall(r"`(\w+)`", cells[1]):
                rows[name] = (cells[2], re.findall(r"\w+", cells[3]))
    for name, kind, labels in metrics():
        told = rows.pop(name, None)
        if told != (kind, [label for label in labels if label != "datname"]):
            yield f"{name}: {told} and not {kind}, {labels}"
    for name in rows:
        yield f"{name} is documented, and is not there"
