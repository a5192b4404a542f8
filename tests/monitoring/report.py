"""The report of `make report`: its width, and its figures."""

import re

from load import CREW, MAIL, ORDERS, PAYMENTS, REFUNDS, REPORTS
from stack import ROOT
from told import run, tell
from watch import DATABASE


def report(check):
    """Eighty columns, whatever the names are, and the figures of the driver."""
    load = check.load
    names = ["ein sehr langer Name für eine Sitzung, der nicht in die Zeile passt " + "x" * 150,
             "注文の受付" * 20]
    load.admin(*[f"SELECT idem_create_session('{name}', owner => 'app')" for name in names])
    with load.connect() as conn:
        for name in names:
            for _ in range(20):
                load.begin(conn, (name,), "k" * 200, "started", lease="10 ms")
                conn.rollback()
            load.begin(conn, (name,), "鍵" * 200, "started", lease="10 ms")
            conn.commit()
    done = run("make", "-s", "-C", ROOT, "report", "HOURS=2", env={
        "PATH": f"{check.programs}:/usr/bin:/bin", "PGHOST": load.where["host"], "PGUSER": "prometheus",
        "PGDATABASE": DATABASE, "LC_ALL": "C.UTF-8"})
    for name in names:
        load.admin(f"SELECT idem_force_release('{name}', '{'鍵' * 200}', 'the test of the report')",
                   f"SELECT idem_drop_session('{name}')")
    tell("the report runs", [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines())
    tell("no line of the report is longer than 80 columns", 
         [line for line in done.stdout.splitlines() if width(line) > 80])

    wrong = []
    def row(title, *cells):
        pattern = r"^\s*" + r"\s*\|\s*".join(re.escape(str(cell)) for cell in cells)
        part = done.stdout.partition(title)[2].partition("\n\n")[0]
        if title not in done.stdout or not re.search(pattern, part, re.M):
            wrong.append(f"{title}: no row {cells} in\n{part}")

    for line in (PAYMENTS, REFUNDS, ORDERS, REPORTS, MAIL, CREW):
        of = load.expected[line]
        refused = sum(of[name] for name in ("mismatched", "discarded", "fenced", "out_of_sequence", "unrecorded"))
        row("Counted since", line[0] or "(client) crew", of["started"] + of["taken_over"], of["replayed"],
            of["recorded"], of["failed"], of["in_progress"], refused)
    for sqlstate, times in load.errors.items():
        row("Errors of class ID", sqlstate, times)
    row("In flight", "refunds", check.held_key)
    row("Unfinished, in numbers", "leased", 1)
    row("Unfinished, in numbers", "suspended", 1)
    row("Health:", "publications", "warning")
    recorded = re.findall(r"^ \d{4}-\d\d-\d\d \d\d:00 \| +(\d+) \| +(\d+) \| +(\d+)", done.stdout, re.M)
    kept = dict(check.sql("SELECT status, count(*) FROM idempotence.outcomes GROUP BY status"))
    if len(recorded) != 2 or [sum(int(hour[i]) for hour in recorded) for i in range(3)] != \
            [kept.get(status, 0) for status in ("succeeded", "failed", "cancelled")]:
        wrong.append(f"recorded: {recorded} and not {kept}")
    tell("the report has the driver's figures", wrong)


def width(line):
    """Columns of a terminal: a wide character takes two."""
    return sum(2 if character >= "\u1100" else 1 for character in line)
