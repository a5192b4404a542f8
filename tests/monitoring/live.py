"""A healthy time, mistakes, a still life, trouble: a server that is watched while the driver counts."""

import contextlib
import re
import time

import psycopg
import yaml
from expected import SERVICES, WAITERS, gauges, nagios_expected
from load import CREW, LINES, PAYMENTS, REFUNDS, REPORTS, Load
from panels import dashboard, unscraped
from report import report
from stack import QUERIES, RULES, Stack, get, parse, series, short_rules, until
from told import alert_names, metrics, tell
from watch import DATABASE, Watch

# Alerts that are brought about at the end, since what they are for gets in the way of the rest.
LATE = ["IdempotenceHealthCritical", "IdempotenceScrapeFails", "IdempotenceMetricsMissing", "IdempotenceStatsLinesFull",
        "IdempotenceStalled", "IdempotenceExporterDown"]
# It fires once the library is not preloaded any more.
UNPRELOADED = "IdempotenceNotPreloaded"


def live(host, superuser, programs):
    load = Load(host, DATABASE, superuser)
    load.set_up()
    # A database without the extension.
    load.admin("CREATE DATABASE bare")
    with Stack(host, DATABASE) as stack:
        check = Watch(stack, load, programs)
        check.postgres_port = stack.start_postgres_exporter()
        check.sql_port = stack.start_sql_exporter()
        stack.start_prometheus(short_rules(RULES.read_text(encoding="utf-8")), check.postgres_port, check.sql_port)
        try:
            load.first()
            healthy_time(check)
            mistakes(check)
            still_life(check)
            dashboard(check)
            trouble(check)
        finally:
            load.stopping.set()


def healthy_time(check):
    """Twenty seconds in which nothing is wrong, which stand for twenty minutes."""
    # From here on Prometheus sees each call: both exporters have told of each line.
    until("the counters are known", lambda: check.stack.query(f"count(idempotence_started_total) == {2 * len(LINES)}"))
    check.load.spawn(check.load.healthy)
    until("the counters have a history", lambda: check.stack.query("idempotence:started:increase15m"))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        check.look(healthy=True)
        time.sleep(0.5)
    tell("no alert is near in a healthy time", sorted(check.early))
    check.check_nagios("all services are OK in a healthy time",
                       {**{service: (0,) for service in SERVICES}, "unfinished": (0, "run_out=0"), "waiters": (0, "waiters=0")})


def mistakes(check):
    """Each mistake, beside a load that goes on. What it brings about is counted by the driver."""
    load = check.load
    # A transaction that keeps a segment from being closed.
    hold = contextlib.ExitStack()
    check.holder, check.held_key = hold.enter_context(load.held(REFUNDS))
    check.hold = hold
    load.record_open = load.connect()
    key = load.key()
    load.begin(load.record_open, PAYMENTS, key, "started")
    load.record(load.record_open, PAYMENTS, key)
    load.count(PAYMENTS, started=1, recorded=1)
    load.admin("UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current",
               "CALL idem_sweep()")

    check.held_since = time.monotonic()
    for _ in range(WAITERS):
        load.spawn(load.wait_for, REFUNDS, check.held_key)
    # A request of a prepared transaction, and one of a client session.
    check.prepared = load.connect(autocommit=True)
    check.prepared_key = load.key()
    check.prepared.execute("BEGIN")
    load.begin(check.prepared, PAYMENTS, check.prepared_key, "started")
    load.record(check.prepared, PAYMENTS, check.prepared_key)
    check.prepared.execute("PREPARE TRANSACTION 'left'")
    load.count(PAYMENTS, started=1, recorded=1)

    load.spawn(load.storm)
    load.spawn(load.rollbacks)
    load.spawn(load.contention)
    load.fill(PAYMENTS, 800, 1000)
    load.mismatches(12)
    load.failed(8)
    load.recorded_and_rolled_back(3)
    load.unrecorded(REFUNDS, 3)
    load.unrecorded(REPORTS, 6)
    load.released(2)
    load.cancelled(3)
    load.left_behind(2)
    load.late(2)
    load.taken_over_again(4)
    load.dead_letters(2)
    load.suspended(1)
    load.messages()
    load.numbers()
    load.program_mistakes(2)
    load.strangers(6)
    check.blocker = load.connect(load.superuser)
    check.blocker.execute("SELECT pg_advisory_lock(1)")
    load.spawn(load.blocked)
    # One of the client sessions that are at work, and what may be at most.
    load.admin("ALTER SYSTEM SET idempotence.max_sessions_per_role = 10", "SELECT pg_reload_conf()")
    with load.connect() as conn:
        until("the limit is known",
              lambda: conn.execute("SHOW idempotence.max_sessions_per_role").fetchone()[0] == "10")
    load.register(9)
    load.admin("CREATE PUBLICATION everything FOR ALL TABLES")
    load.busy(check.held_key, 30)
    check.wait_for_alerts(set(alert_names()) - {*LATE, UNPRELOADED}, 45)


def still_life(check):
    """Everything stands still: what the driver has counted, and what is open now."""
    load = check.load
    load.stopping.set()
    for thread in load.threads:
        if thread.name not in ("wait_for", "blocked"):
            thread.join()
    check.wait_for_alerts(["IdempotenceStalled"], 30)
    client = load.connect("crew")
    client.execute("SELECT FROM idem_begin(%s, 1)", (load.client,))
    load.count(CREW, started=1)

    check.compare("counters", lambda: {key: value for key, value in check.counters().items()
                                       if "wait_seconds" not in key[0] or dict(key[1]).get("session") != "refunds"})
    # What an exporter serves is some seconds old, and ages only grow: all of them soon reach what they must be now.
    held = time.monotonic() - check.held_since
    check.compare("gauges", lambda: gauges(check, held))
    health = dict(check.sql("SELECT name, level FROM idempotence.health"))
    check.compare("health", lambda: {series("idempotence_health_level", {"datname": DATABASE, "name": name}): level
                                     for name, level in health.items()})
    check.check_nagios("services tell what is wrong", nagios_expected(check, health))
    report(check)
    cost(check)
    without_sessions(check)
    multi(check)

    # The waiters get their answer.
    check.blocker.close()
    client.execute("SELECT idem_record(%s, 1)", (load.client,))
    client.commit()
    load.record(check.holder, REFUNDS, check.held_key)
    check.holder.commit()
    check.hold.close()
    load.record_open.commit()
    check.prepared.execute("COMMIT PREPARED 'left'")
    load.join()
    load.stopping.clear()
    load.count(REFUNDS, recorded=1)
    load.count(CREW, recorded=1)
    check.compare("counters, after the waits", check.counters)

    missing = set(alert_names()) - {*LATE, UNPRELOADED} - set(check.seen)
    for name in sorted(set(alert_names()) - {*LATE, UNPRELOADED}):
        tell(f"{name} fires", ["it has not"] if name in missing else [])
    for name, alert in sorted(check.seen.items()):
        print(f"# {name}: {alert['annotations']['description']}")
    tell("what alerts say is complete",
         [f"{name}: {text}" for name, alert in check.seen.items() for text in alert["annotations"].values()
          if "<error" in text or "%!" in text or "<no value>" in text])


def cost(check):
    """How long a scrape takes. Each query on its own goes to the output."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        get(f"http://127.0.0.1:{check.postgres_port}/metrics")
        times.append((time.perf_counter() - began) * 1000)
    print(f"# a scrape takes {sorted(times)[2]:.0f} ms")
    with check.load.connect("prometheus") as conn:
        for name, what in yaml.safe_load(QUERIES.read_text(encoding="utf-8")).items():
            took = []
            for _ in range(5):
                began = time.perf_counter()
                conn.execute(what["query"]).fetchall()
                took.append((time.perf_counter() - began) * 1000)
            print(f"#   {name}: {sorted(took)[2]:.1f} ms")
    tell("a scrape takes less than the ten seconds of Prometheus", [] if sorted(times)[2] < 10000 else [str(times)])


def without_sessions(check):
    """The queries as docs/operations.md changes them for many tenants: one series, with the same sum."""
    wrong = []
    for name, what in yaml.safe_load(QUERIES.read_text(encoding="utf-8")).items():
        query, found = re.subn(r"\S.* AS session,", "'' AS session,", what["query"])
        if not found:
            continue
        with check.load.connect("prometheus", row_factory=psycopg.rows.dict_row) as conn:
            before, after = conn.execute(what["query"]).fetchall(), conn.execute(query).fetchall()
        if {row["session"] for row in after} != {""} or len(after) >= len(before):
            wrong.append(f"{name}: {len(after)} rows in the place of {len(before)}")
        column = next(column for column in ("started_total", "requests") if column in before[0])
        if sum(row[column] for row in before) != sum(row[column] for row in after):
            wrong.append(f"{name}: another sum of {column}")
    tell("the label session can be dropped", wrong)


def multi(check):
    """Databases that the exporter discovers: each with the extension is asked, and the others do no harm."""
    load, stack = check.load, check.stack
    load.admin("CREATE DATABASE branch")
    with psycopg.connect(host=load.where["host"], dbname="branch", user=load.superuser) as conn:
        conn.execute("CREATE EXTENSION idempotence")
        conn.execute("SELECT idem_grant('prometheus', 'monitor')")
    port = stack.start_postgres_exporter(
        "discovering", ["--auto-discover-databases", "--include-databases=shop,branch"], "postgres")
    samples, types = parse(get(f"http://127.0.0.1:{port}/metrics"))
    found = {dict(labels).get("datname") for name, labels in samples if name == "idempotence_extension_info"}
    tell("databases are discovered", [] if found == {"shop", "branch"} else [str(found)])
    wrong = [f"{name}: {types.get(name)} and not {kind}" for name, kind, _ in metrics()
             if name in {key[0] for key in samples} and types.get(name) != kind]
    tell("metrics have their types", wrong)
    never = {name for name, _, _ in metrics()} - {key[0] for key in samples}
    tell("every metric is there", sorted(never))
    stack.stop("discovering")
    # Databases that have no extension are asked in vain.
    port = stack.start_postgres_exporter("too many", ["--auto-discover-databases"], "postgres")
    samples, _ = parse(get(f"http://127.0.0.1:{port}/metrics"))
    found = {dict(labels).get("datname") for name, labels in samples if name == "idempotence_extension_info"}
    error = samples[series("pg_exporter_last_scrape_error", {})]
    tell("a database without the extension is told, and the others are there",
         [] if (found, error) == ({"shop", "branch"}, 1) else [f"{found}, {error}"])
    stack.stop("too many")


def trouble(check):
    """Half a restore, more sessions than lines, a right that is gone, exporters that are gone."""
    load = check.load
    with load.connect() as conn:
        for number in range(30):
            conn.execute("SELECT idem_create_session(%s)", (f"tenant-{number}",))
            load.begin(conn, (f"tenant-{number}",), "k", "started")
            load.record(conn, (f"tenant-{number}",), "k")
            conn.commit()
    check.wait_for_alerts(["IdempotenceStatsLinesFull"], 20)
    load.admin("INSERT INTO idempotence.restore (noted_at, brought) VALUES (now(), 'secret')")
    check.wait_for_alerts(["IdempotenceHealthCritical"], 20)
    check.check_nagios("health is critical", {"health": (2, "'restore'=2"), "ready": (2,)})
    load.admin("DELETE FROM idempotence.restore")
    load.admin("SELECT idem_revoke('prometheus')")
    check.wait_for_alerts(["IdempotenceScrapeFails"], 20)
    check.wait_for_alerts(["IdempotenceMetricsMissing"], 30)
    load.admin("SELECT idem_grant('prometheus', 'monitor')")
    until("the metrics are back", lambda: check.stack.query("idempotence_extension_info"))
    check.stack.stop("postgres_exporter")
    check.stack.stop("sql_exporter")
    check.wait_for_alerts(["IdempotenceExporterDown"], 30)
    # A rate is known as long as its interval has two samples.
    with contextlib.suppress(TimeoutError):
        until("nothing is known", lambda: not list(unscraped(check.stack)))
    tell("the figures of the dashboard say that nothing is scraped", list(unscraped(check.stack)))
    for name in LATE:
        tell(f"{name} fires", [] if name in check.seen else ["it has not"])


def unpreloaded(host):
    """Without preloading there are no counters, and nothing fails."""
    with Stack(host, DATABASE) as stack:
        port = stack.start_postgres_exporter()
        stack.start_prometheus(short_rules(RULES.read_text(encoding="utf-8")), port)
        samples, _ = parse(get(f"http://127.0.0.1:{port}/metrics"))
        names = {key[0] for key in samples}
        wrong = [f"no {name}" for name in ("idempotence_health_level", "idempotence_unfinished_requests",
                                           "idempotence_table_bytes") if name not in names]
        wrong += [f"{name} is there" for name in ("idempotence_started_total", "idempotence_in_flight_requests",
                                                  "idempotence_errors_total") if name in names]
        if samples[series("pg_exporter_last_scrape_error", {})] != 0:
            wrong.append("the scrape failed")
        info = [dict(labels)["preloaded"] for name, labels in samples if name == "idempotence_extension_info"]
        if info != ["no"]:
            wrong.append(f"preloaded: {info}")
        tell("without preloading nothing fails, and the counters are missing", wrong)
        watch = Watch(stack, None, None)
        watch.wait_for_alerts([UNPRELOADED], 30)
        tell(f"{UNPRELOADED} fires", [] if UNPRELOADED in watch.seen else ["it has not"])
