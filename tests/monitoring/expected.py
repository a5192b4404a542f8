"""What is open in the middle of the mistakes, as the driver knows it."""

from stack import series
from watch import DATABASE

# How many calls wait for the request that is held.
WAITERS = 14

SERVICES = ["health", "ready", "unfinished", "overdue", "attempts", "suspended", "waiters", "wait", "in_flight",
            "segments", "sweep", "sessions", "growth", "errors"]


def gauges(check, held):
    """What is open now, as the driver knows it."""
    load = check.load
    of = lambda **labels: {"datname": DATABASE, **labels}
    expected = {}
    for session, requests, prepared, waiters in [("refunds", 1, 0, WAITERS), ("payments", 2, 1, 0),
                                                 ("reports", 1, 0, 0), ("", 1, 0, 0)]:
        for name, value in [("requests", requests), ("prepared_requests", prepared), ("waiters", waiters),
                            ("most_waiters", waiters), ("blocked_requests", int(session == "reports"))]:
            expected[series(f"idempotence_in_flight_{name}", of(session=session))] = value
    expected[series("idempotence_in_flight_oldest_seconds", of(session="refunds"))] = (held, held + 60)
    expected[series("idempotence_in_flight_longest_wait_seconds", of(session="refunds"))] = (held - 3, held + 60)
    expected[series("idempotence_in_flight_longest_wait_seconds", of(session="payments"))] = 0
    for state, session, requests, attempts in [("run out", "orders", 2, 1), ("leased", "orders", 1, 4),
                                               ("suspended", "orders", 1, 0), ("run out", "", 0, 0),
                                               ("leased", "", 0, 0)]:
        expected[series("idempotence_unfinished_requests", of(session=session, state=state))] = requests
        expected[series("idempotence_unfinished_most_attempts", of(session=session, state=state))] = attempts
    expected[series("idempotence_unfinished_overdue_seconds", of(session="orders", state="run out"))] = (5, 200)
    expected[series("idempotence_unfinished_overdue_seconds", of(session="orders", state="leased"))] = 0
    expected[series("idempotence_client_sessions_at_work", of(role="crew"))] = 10
    expected[series("idempotence_client_sessions_silent", of(role="crew"))] = 0
    expected[series("idempotence_limit_client_sessions_per_role", of())] = 10
    expected[series("idempotence_standing_sessions_count", of(role="app", kind="standing"))] = 5
    expected[series("idempotence_standing_sessions_count", of(role="app", kind="inbox"))] = 1
    for number in range(1, 13):
        sqlstate = f"ID{number:03}"
        expected[series("idempotence_errors_total", of(sqlstate=sqlstate))] = load.errors[sqlstate]
    for segment, size in check.sql("SELECT segment, bytes FROM idempotence.segments"):
        expected[series("idempotence_segment_bytes", of(segment=str(segment)))] = size
    sizes = dict(check.sql("SELECT relname::text, pg_total_relation_size(oid) FROM pg_class"
                           " WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'r'"))
    for name, size in sizes.items():
        if name.startswith("outcome"):
            expected[series("idempotence_table_bytes", of(relname=name))] = size
    version, = check.sql("SELECT extversion FROM pg_extension WHERE extname = 'idempotence'")
    expected[series("idempotence_extension_info", of(version=version[0], preloaded="yes"))] = 1
    lines, = check.sql("SELECT count(*) FROM idempotence.stats")
    expected[series("idempotence_stats_lines", of())] = lines[0]
    return expected


def nagios_expected(check, health):
    errors = sum(check.load.errors.values())
    return {
        "health": (max(health.values()), "'publications'=1"),
        "health -n sweep": (0, "'sweep'=0"),
        "health -n publications": (1,),
        "health -n nothing": (3,),
        "ready": (0,),
        "unfinished": (1, "run_out=2", "leased=1", "suspended=1"),
        "unfinished -w 3": (0, "run_out=2"),
        "unfinished -w 1 -c 2": (2,),
        "overdue -w 1s -c 1day": (1,),
        "overdue": (0,),
        "attempts": (1, "attempts=4"),
        "suspended -w 1s": (1, "requests=1"),
        "waiters": (1, f"waiters={WAITERS}", f"all={WAITERS}"),
        "waiters -c 14": (2,),
        "wait -w 1 -c 2": (2,),
        "in_flight -w 1 -c 1day": (1, "requests=5"),
        "segments -w 1s": (1,),
        "sweep": (0,),
        "sessions": (2, "share=100%", "sessions=10"),
        "growth -w 1kB": (1,),
        "growth -w 1kB -c 100kB": (2,),
        "errors": (1, f"errors={errors}", f"ID001={check.load.errors['ID001']}"),
        "errors -n ID009 -w 1": (1, "errors=1"),
        "errors -x ID001 -w 1 -c 1000": (1, f"errors={errors - check.load.errors['ID001']}"),
        "errors -w many": (3,),
        "nonsense": (3,),
        "ready -h /nowhere": (2,),
        "ready -d bare": (2,),
        "ready -d bare --timeout=soon": (3,),
        "health -h /nowhere": (3,),
        "health -U app": (3,),
    }
