#!/usr/bin/env python3
"""settings.py: every call answers the same under every setting of a session, as far as the setting is not about the
answer.

A scenario of some sixty calls is run once without any setting, twice to be sure that it is stable, and then under each
setting. The server of the environment is used, as a superuser, with a database that has the edition.
"""

import concurrent.futures
import os
import random
import re
import string
import sys

import psycopg

# DateStyle, TimeZone and the like change how PostgreSQL writes values; the edition neither reads nor writes them as
# text.
SETTINGS = r"""
DateStyle = 'German'; DateStyle = 'SQL, DMY'; DateStyle = 'Postgres, YMD'
IntervalStyle = 'sql_standard'; IntervalStyle = 'iso_8601'; IntervalStyle = 'postgres_verbose'
TimeZone = 'America/St_Johns'; TimeZone = 'Asia/Kathmandu'; TimeZone = '<-1137>+11:37'
extra_float_digits = -15; bytea_output = 'escape'; xmloption = 'document'
standard_conforming_strings = off; escape_string_warning = on; backslash_quote = off
standard_conforming_strings = off, escape_string_warning = off, backslash_quote = on
array_nulls = off; transform_null_equals = on; quote_all_identifiers = on
plpgsql.extra_errors = 'all'; plpgsql.extra_warnings = 'all'
plpgsql.variable_conflict = 'use_variable'; plpgsql.variable_conflict = 'use_column'
plpgsql.variable_conflict = 'error'
plpgsql.check_asserts = off; plpgsql.print_strict_params = on
check_function_bodies = off; plan_cache_mode = 'force_generic_plan'; plan_cache_mode = 'force_custom_plan'
enable_indexscan = off, enable_bitmapscan = off, enable_indexonlyscan = off; enable_seqscan = off
enable_partition_pruning = off; constraint_exclusion = on; enable_nestloop = off; enable_sort = off
enable_tidscan = off
enable_memoize = off, enable_material = off, enable_hashjoin = off, enable_mergejoin = off
jit = on, jit_above_cost = 0, jit_inline_above_cost = -1, jit_optimize_above_cost = -1
parallel_setup_cost = 0, parallel_tuple_cost = 0, min_parallel_table_scan_size = 0, min_parallel_index_scan_size = 0
from_collapse_limit = 1, join_collapse_limit = 1, geqo_threshold = 2
work_mem = '64kB'; temp_buffers = '800kB'; row_security = off; cursor_tuple_fraction = 1.0; hash_mem_multiplier = 1
default_transaction_deferrable = on; default_transaction_isolation = 'repeatable read'
default_transaction_isolation = 'serializable'; default_toast_compression = 'pglz'
session_replication_role = local; synchronous_commit = off; synchronous_commit = local
synchronous_commit = remote_apply
client_encoding = 'LATIN1'; lc_messages = 'C'; track_functions = 'all'; track_activities = off
lock_timeout = '1s'; deadlock_timeout = '10ms'; idle_in_transaction_session_timeout = '20s'; statement_timeout = '20s'
client_min_messages = 'debug5'; debug_print_plan = on, debug_print_parse = on; log_statement_stats = on
application_name = 'ÄÖÜ "x"'; commit_delay = 1000; max_stack_depth = '400kB'; zero_damaged_pages = on
search_path = 'idempotence, pg_catalog'; search_path = 'pg_temp, public, idempotence'
idempotence.wait = '5s'; idempotence.wait = -1; idempotence.max_response = '1MB'
"""
# PostgreSQL 19 has standard string literals only.
BEFORE_19 = ("standard_conforming_strings", "escape_string_warning")
CREATE = """
SELECT idem_create_session('{s}', ttl => '1 day 2 hours', max_attempts => 3)
SELECT idem_create_session('{s}', ttl => '26 hours', max_attempts => 3)
SELECT idem_create_session('{s}i', inbox => true, ttl => '90 minutes')
SELECT idem_create_session('{s}l', inbox => true, ttl => '9 days')
SELECT idem_create_session('{s}t', time_keys => true, ttl => '1 hour')
SELECT idem_create_session('{s}', ttl => '27 hours')
SELECT idem_alter_session('{s}', ttl => '36 hours')
SELECT extract(epoch FROM ttl) FROM idempotence.sessions WHERE session = '{s}'
"""
CALLS = r"""
BEGIN
SELECT status, replayed, response FROM idem_begin('{s}', 'a', payload => '{{"a": 1.0, "b": [1, null]}}')
SELECT idem_record('{s}', 'a', '{{"x": 1e3}}') IS NOT NULL
COMMIT
SELECT status, replayed, response::text, expires_at - recorded_at BETWEEN '35:59:59' AND '36:00:01' FROM
  idem_begin('{s}', 'a', payload => '{{"b": [1, null], "a": 1}}')
SELECT status FROM idem_begin('{s}', 'a', payload => '{{"b": [1]}}')
BEGIN; SELECT status FROM idem_begin('{s}', 't'); SELECT idem_record('{s}', 't', ttl => '1 hour') IS NOT NULL; COMMIT
SELECT expires_at - recorded_at BETWEEN '59:59' AND '1:00:01' FROM idem_lookup('{s}', 't')
SELECT idem_record('{s}', 't', ttl => '-1 hour')
SELECT status FROM idem_begin('{s}', 'b')
SELECT status FROM idem_begin('{s}', E'tab\t\u200b''"quote')
SELECT idem_claim('{s}', 'a')
BEGIN; SELECT idem_claim('{s}', 'claimed'); SELECT idem_record('{s}', 'claimed') IS NOT NULL; COMMIT
SELECT status, response::text FROM idem_run('{s}', 'r', 'SELECT $1', '{{"q": "\u00e4"}}')
SELECT status, replayed, response::text FROM idem_run('{s}', 'r', 'SELECT $1', '{{"q": "\u00e4"}}')
SELECT status, response::text FROM idem_run('{s}', 'rf', 'SELECT 1/0', on_error => 'record')
SELECT status FROM idem_run('{s}', 'rr', 'SELECT 1/0')
SELECT status FROM idem_run('{s}', 'rs', '/* a */ -- b{n} (SELECT 1)')
SELECT status FROM idem_run('{s}', '018f2b1c-7e2a-7000-8000-000000000001', 'SELECT now()::text IS NOT NULL')
SELECT idem_once('{s}i', 'm1'), idem_once('{s}i', 'm1')
SELECT idem_once('{s}l', 'm1'), idem_once('{s}l', 'm1')
SELECT ord, request FROM idem_once_many('{s}l', '{{m1,m2,m3,m2}}')
SELECT ord, request FROM idem_once_many('{s}i', ARRAY[1, 2, 1])
SELECT ord, request FROM idem_once_many('{s}i', ARRAY['x', NULL])
SELECT status FROM idem_lookup('{s}l', 'm1')
SELECT idem_once('{s}t', 'no uuid')
SELECT status FROM idem_begin('{s}t', '018f2b1c-7e2a-7000-8000-000000000001')
BEGIN; SELECT idem_claim('{s}t', idem_generate_id()); ROLLBACK
SELECT status, attempt FROM idem_begin('{s}', 'l', payload => '1', lease => '1 hour 30 minutes')
SELECT extract(epoch FROM leased_until - begun_at) FROM idempotence.own_pending WHERE session = '{s}' AND request =
  'l'
SELECT status FROM idem_begin('{s}', 'l', wait => '0')
SELECT status FROM idem_begin('{s}', 'l', wait => '0.1')
SELECT idem_extend('{s}', 'l', (SELECT token FROM idempotence.own_pending WHERE session = '{s}' AND request = 'l'),
  '2 hours') > now()
SELECT request, state, attempt, leased_until > now() FROM idempotence.unfinished WHERE session = '{s}' ORDER BY 1
BEGIN; SELECT status, point FROM idem_begin('{s}', 'c'); SELECT idem_checkpoint('{s}', 'c', 'half', '{{"s": 1}}');
  COMMIT
SELECT status, point, state::text FROM idem_lookup('{s}', 'c')
BEGIN; SELECT status, point, state::text FROM idem_begin('{s}', 'c'); SELECT idem_release('{s}', 'c'); COMMIT
SELECT status, replayed FROM idem_settle('{s}', 'gone', response => '{{}}')
SELECT status FROM idem_lookup('{s}', 'gone', wait => '10 ms')
SELECT status FROM idem_begin('{s}', 'sl', lease => '10 milliseconds')
SELECT pg_sleep(0.05)
BEGIN; SELECT status, attempt FROM idem_begin('{s}', 'sl'); SELECT idem_record('{s}', 'sl', failed => true) IS NOT
  NULL; COMMIT
SELECT request, status, response::text FROM idem_outcomes('{s}', most => 100) ORDER BY request COLLATE "C"
SELECT count(*) FROM idem_outcomes('{s}l', since => now() - interval '1 hour', before => now() + interval '1 hour')
SELECT count(*) FROM idem_outcomes('{s}', status => 'nonsense')
SELECT idem_forget('{s}', 'a', 'why')
SELECT status FROM idem_lookup('{s}', 'a')
SELECT idem_key($q${{"a": 1, "b": "\\ \""}}$q$), idem_fingerprint('{{"a": [1.50, "x"]}}') = idem_fingerprint('{{"a":
  [1.5, "x"]}}')
SELECT substr(idem_generate_id()::text, 15, 1)
BEGIN READ ONLY; SELECT status, replayed FROM idem_begin('{s}', 'r'); COMMIT
BEGIN READ ONLY; SELECT status, replayed FROM idem_begin('{s}', 'nothing'); COMMIT
CALL idempotence.idem_sweep()
SELECT count(*) FROM idempotence.health
SELECT idem_drop_session('{s}')
SELECT status FROM idem_lookup('{s}', 'r')
SELECT count(*) > 3 FROM idem_export('{s}', 'a test')
SELECT idem_create_session('{s}', ttl => '36 hours')
SELECT imported, present FROM idem_import('{s}', 'SELECT ''i'' AS key, now() AS recorded_at UNION ALL SELECT ''r'',
  now()', 'a test')
"""


def answered(connection, statement, session):
    """The answers of a statement, or its error, without what differs from run to run."""
    rows = []
    try:
        cursor = connection.execute(statement)
        while True:
            rows += (
                [tuple(str(value) for value in row) for row in cursor.fetchall()]
                if cursor.description
                else [cursor.statusmessage]
            )
            if not cursor.nextset():
                break
    except psycopg.Error as error:
        if "BEGIN;" in statement:
            connection.rollback()
        rows.append(
            f"{error.sqlstate}: {error.diag.message_primary} / {error.diag.message_detail} / {error.diag.message_hint}"
        )
    text = re.sub(r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-][\d:]+)?|\d{13,}", "TIME", str(rows))
    return text.replace(session, "S")


def scenario(setting):
    session = "s" + "".join(random.choices(string.ascii_lowercase, k=12))
    with psycopg.connect("", autocommit=True) as connection:
        connection.execute("SET search_path = public, idempotence")
        for one in setting:
            name, _, value = one.partition(" = ")
            connection.execute("SELECT set_config(%s, %s, false)", (name, value.strip("'")))
        # A line that is indented continues the one before.
        lines = re.sub(r"\n  +", " ", CREATE + CALLS).splitlines()
        calls = [line.format(s=session, n="\n") for line in lines if line]
        return [(call.replace(session, "S"), answered(connection, call, session)) for call in calls]


def main():
    settings = [re.split(r", (?=\w+ = )", one) for line in SETTINGS.splitlines() for one in line.split("; ") if one]
    with psycopg.connect("") as connection:
        if connection.info.server_version >= 190000:
            settings = [setting for setting in settings if not any(one.startswith(BEFORE_19) for one in setting)]
    usual = scenario([])
    assert usual == scenario([]), [pair for pair in zip(usual, scenario([])) if pair[0] != pair[1]]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("IDEM_JOBS", "4"))) as pool:
        for setting, found in zip(settings, pool.map(scenario, settings)):
            different = [(call, wanted, got) for (call, wanted), (_, got) in zip(usual, found) if wanted != got]
            if different:
                failed += 1
                print("not ok - SET", ", ".join(setting))
            for call, wanted, got in different[:5]:
                print(f"#   {call}\n#     usually {wanted}\n#     here    {got}")
    print(
        f"{'not ok' if failed else 'ok'} - {len(usual)} calls under {len(settings)} settings,"
        f" {failed} of which change an answer"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
