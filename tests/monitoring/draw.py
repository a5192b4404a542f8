"""Draws panels of the dashboard for docs/operations.md, from a run against a server with the library preloaded.

Usage: draw.py HOST SUPERUSER DIRECTORY [SECONDS]

The run is a day in a few minutes: a quiet time, clients that do not get their answers, a hot request, and workers that
die and are dealt with. What is drawn is what Prometheus answers to the queries of monitoring/grafana.json.
"""

import io
import pathlib
import sys
import time

import matplotlib
from load import ORDERS, REFUNDS, Load
from panels import expressions, legend, panels
from stack import RULES, Stack, short_rules
from watch import DATABASE

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402, once the backend is chosen
from PIL import Image  # noqa: E402, comes with matplotlib

PICTURES = {
    "monitoring-requests.png": ["Answers", "Outcomes", "Refused", "Waiting"],
    "monitoring-now.png": ["In flight", "Oldest in flight, longest wait", "Unfinished", "Leases run out: for how long"],
    "monitoring-health.png": ["Health, row by row", "Alerts"],
}
COLOURS = ["#4472a8", "#e0892f", "#55a05a", "#c44e52", "#8566a9", "#7f6a5a", "#d27fb0", "#7a7a7a", "#b3a633", "#3fa9b5"]
LEVELS = {0: "#9ccf9f", 1: "#f2c94c", 2: "#d9534f"}
SMALL = {"font.size": 8, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.spines.top": False,
         "axes.spines.right": False, "axes.grid": True, "grid.color": "#e5e5e5", "axes.axisbelow": True}


class Story:
    """What happens, and when: parts of the whole time."""

    def __init__(self, load, seconds):
        self.load, self.seconds, self.began = load, seconds, time.time()

    def at(self, part):
        time.sleep(max(0, self.began + part * self.seconds - time.time()))

    def during(self, part, *works):
        """Lets these go on until then. Healthy work goes on all the time."""
        for work in works:
            self.load.spawn(work)
        self.load.spawn(self.load.healthy)
        self.at(part)
        self.load.stop()

    def tell(self):
        load = self.load
        self.during(0.20, self.orders)
        self.during(0.36, self.orders, load.storm)
        load.mismatches(9)
        self.during(0.44, self.orders, load.rollbacks)
        with load.held(REFUNDS) as (holder, key):
            for _ in range(12):
                load.spawn(load.wait_for, REFUNDS, key)
            time.sleep(0.04 * self.seconds)
            load.record(holder, REFUNDS, key)
            holder.commit()
        load.join()
        self.during(0.58, self.orders, load.contention)
        load.left_behind(4)
        load.suspended(1)
        load.failed(8)
        load.admin("CREATE PUBLICATION everything FOR ALL TABLES")
        self.during(0.82, self.orders)
        # A DBA looks at what the dead workers left behind, and decides.
        load.admin("SELECT idem_force_record(session, request, 'looked it up')"
                   " FROM idempotence.unfinished WHERE state = 'run out'", "DROP PUBLICATION everything")
        self.during(1, self.orders)

    def orders(self):
        """Requests with a lease, and an effect elsewhere that takes a while."""
        load = self.load
        with load.connect() as conn:
            while not load.stopping.is_set():
                key = load.key()
                token = load.lease(conn, ORDERS, key, lease="1 min")
                time.sleep(0.15)
                load.record(conn, ORDERS, key, token)
                conn.commit()


def ask(stack, panel, began, ended):
    """The series of a panel: legend, times in seconds since the beginning, values."""
    for target, text in expressions(panel):
        for labels, points in stack.query_range(text, began, ended):
            points = [(at - began, value) for at, value in points if value == value]
            if points:
                yield legend(target, labels), [at for at, _ in points], [value for _, value in points]


def with_gaps(ats, values):
    """A line ends where Prometheus has nothing for more than a few seconds."""
    for place in range(len(ats) - 1, 0, -1):
        if ats[place] - ats[place - 1] > 5:
            ats.insert(place, ats[place - 1] + 1)
            values.insert(place, float("nan"))
    return ats, values


def draw_lines(axes, panel, found):
    # What is zero all the time is left out, unless nothing else is there.
    found = [one for one in found if any(one[2])] or found
    if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal":
        times = sorted({at for _, ats, _ in found for at in ats})
        rows = [[dict(zip(ats, values)).get(at, 0) for at in times] for _, ats, values in found]
        axes.stackplot(times, rows, labels=[name for name, *_ in found], colors=COLOURS, alpha=0.85, linewidth=0)
    else:
        for number, (name, ats, values) in enumerate(found):
            axes.plot(*with_gaps(ats, values), label=name, color=COLOURS[number % len(COLOURS)], linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False, ncol=4, loc="upper center", bbox_to_anchor=(0.5, -0.1))


def draw_states(axes, found):
    """A row for each series: a bar in the colour of its level."""
    found = sorted(found, key=lambda one: one[0], reverse=True)
    for row, (_, ats, values) in enumerate(found):
        for at, value in zip(ats, values):
            axes.barh(row, 1.1, left=at, height=0.7, color=LEVELS[int(value)], linewidth=0)
    axes.set_yticks(range(len(found)), [name for name, *_ in found])
    axes.grid(axis="y", visible=False)


def alerts(stack, began, ended):
    for labels, points in stack.query_range('max by (alertname, severity) (ALERTS{alertstate="firing"})', began, ended):
        level = 2 if labels["severity"] == "critical" else 1
        yield (labels["alertname"].removeprefix("Idempotence"), [at - began for at, _ in points], [level] * len(points))


def draw(stack, directory, began, ended):
    by_title = {}
    for panel in panels():
        if panel["type"] != "stat":
            by_title[panel["title"]] = panel
    for name, titles in PICTURES.items():
        wide = len(titles) == 2
        figure, grid = pyplot.subplots(1 if wide else 2, 2, figsize=(10, 4.2 if wide else 5.2), layout="constrained")
        for axes, title in zip(grid.flat, titles):
            axes.set_title(title, loc="left")
            axes.set_xlim(0, ended - began)
            axes.xaxis.set_major_formatter("{x:.0f} s")
            if title == "Alerts":
                draw_states(axes, list(alerts(stack, began, ended)))
            elif by_title[title]["type"] == "state-timeline":
                draw_states(axes, list(ask(stack, by_title[title], began, ended)))
            else:
                draw_lines(axes, by_title[title], list(ask(stack, by_title[title], began, ended)))
        save(figure, directory / name)
        pyplot.close(figure)


def save(figure, path):
    """As a PNG with few colours, which is small."""
    raw = io.BytesIO()
    figure.savefig(raw, dpi=100)
    Image.open(raw).convert("RGB").quantize(64).save(path, optimize=True)


def main():
    host, superuser, directory, *rest = sys.argv[1:]
    load = Load(host, DATABASE, superuser)
    load.set_up()
    with Stack(host, DATABASE) as stack:
        port = stack.start_postgres_exporter()
        stack.start_prometheus(short_rules(RULES.read_text(encoding="utf-8")), port)
        load.first()
        # The counters of sessions that are new are no rates yet.
        time.sleep(8)
        story = Story(load, float(rest[0]) if rest else 240)
        story.tell()
        with pyplot.rc_context(SMALL):
            draw(stack, pathlib.Path(directory), story.began, time.time())


main()
