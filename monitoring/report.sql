-- What happened with requests in the last hours, in one database, for a terminal of 80 columns: make report HOURS=6, or
--   psql -X -v hours=6 -f monitoring/report.sql
-- It needs idem_grant(role, 'monitor'). It reads all outcomes once: seconds, where there are millions.
\set QUIET on
\set ON_ERROR_STOP on
\if :{?hours}
\else
\set hours 6
\endif
\pset pager off
\pset footer off
\pset border 1
\pset linestyle ascii
\pset null ''
\pset expanded off
\pset tuples_only off
-- What would be wider is wrapped.
\pset format wrapped
\pset columns 80

BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT idempotence.launcher() IS NOT NULL AS preloaded,
       date_trunc('hour', clock_timestamp()) - make_interval(hours => greatest(:'hours'::int, 1) - 1) AS since \gset

SELECT v.name AS "idempotence", v.value AS " "
FROM (SELECT idempotence.last_sweep() AS swept) s,
LATERAL (VALUES ('database', current_database()::text),
                ('version', (SELECT extversion FROM pg_extension WHERE extname = 'idempotence')
                            || ', PostgreSQL ' || current_setting('server_version')),
                ('now', date_trunc('second', clock_timestamp())::text),
                ('server up since', date_trunc('second', pg_postmaster_start_time())::text),
                ('preloaded', CASE WHEN :'preloaded' THEN 'yes'
                                   ELSE 'no: counters, in flight and errors are missing' END),
                ('last sweep', COALESCE(date_trunc('second', clock_timestamp() - s.swept) || ' ago',
                                        'not known'))) v (name, value);

\echo Health: what is not ok
SELECT h.name, h.status, h.detail FROM idempotence.health h WHERE h.status <> 'ok'
UNION ALL
SELECT 'all', 'ok', (SELECT count(*) FROM idempotence.health) || ' checks'
WHERE NOT EXISTS (SELECT FROM idempotence.health h WHERE h.status <> 'ok');

\echo Recorded, hour by hour: outcomes that have not expired yet
-- Each outcome is looked at once: what is counted is joined with the hours, and not each hour with all outcomes.
SELECT to_char(h.hour, 'YYYY-MM-DD HH24:MI') AS hour,
       COALESCE(sum(o.succeeded), 0) AS succeeded,
       COALESCE(sum(o.failed), 0) AS failed,
       COALESCE(sum(o.cancelled), 0) AS cancelled,
       count(o.session) AS sessions,
       pg_size_pretty(COALESCE(sum(o.bytes), 0)) AS responses
FROM generate_series(:'since'::timestamptz, clock_timestamp(), interval '1 hour') h (hour)
LEFT JOIN (SELECT floor(extract(epoch FROM recorded_at - :'since'::timestamptz) / 3600) AS nth, session,
                  count(*) FILTER (WHERE status = 'succeeded') AS succeeded,
                  count(*) FILTER (WHERE status = 'failed') AS failed,
                  count(*) FILTER (WHERE status = 'cancelled') AS cancelled, sum(response_bytes) AS bytes
           FROM idempotence.outcomes WHERE recorded_at >= :'since'::timestamptz GROUP BY 1, 2) o
       ON o.nth = extract(epoch FROM h.hour - :'since'::timestamptz) / 3600
GROUP BY h.hour ORDER BY h.hour;

\if :preloaded
SELECT format('Counted since %s: the busiest sessions; (client): those of a role',
              to_char(min(since), 'YYYY-MM-DD HH24:MI')) AS title FROM idempotence.stats \gset
\echo :title
-- Numbers of more than six digits in millions (M) and billions (G).
SELECT left(CASE WHEN s.kind = 'other' THEN '(other)' WHEN s.kind = 'client' THEN '(client) ' || s.owner::text
                 ELSE idempotence.legible(s.session) END, 19) AS session,
       n.n[1] AS start, n.n[2] AS replay, n.n[3] AS record, n.n[4] AS fail, n.n[5] AS busy, n.n[6] AS refuse,
       n.n[7] AS "wait s"
FROM (SELECT *, started + taken_over AS begun, mismatched + discarded + fenced + out_of_sequence + unrecorded AS refused
      FROM idempotence.stats) s
CROSS JOIN LATERAL (
  SELECT array_agg(CASE WHEN v.n < 1e6 THEN v.n::text WHEN v.n < 1e9 THEN round(v.n / 1e6, 1) || 'M'
                        ELSE round(v.n / 1e9, 1) || 'G' END ORDER BY v.place)
  FROM unnest(ARRAY[s.begun, s.replayed, s.recorded, s.failed, s.in_progress, s.refused, round(s.wait_ms / 1000.0)])
       WITH ORDINALITY v (n, place)) n (n)
ORDER BY s.begun + s.replayed + s.recorded DESC, s.session LIMIT 15;

\echo Errors of class ID in these hours, as far as they are kept
SELECT e.sqlstate, count(*) AS errors, count(DISTINCT e.session) AS sessions,
       left(idempotence.legible(mode() WITHIN GROUP (ORDER BY e.session)), 22) AS "most of them in",
       to_char(max(e.at), 'MM-DD HH24:MI:SS') AS last
FROM idempotence.errors e WHERE e.at >= :'since'::timestamptz
GROUP BY e.sqlstate ORDER BY count(*) DESC, e.sqlstate;

\echo In flight: the oldest, and those with most waiters
SELECT left(idempotence.legible(f.session), 18) AS session, left(idempotence.legible(f.request), 18) AS request, COALESCE('pid ' || f.pid, 'prepared') AS holder,
       f.state, date_trunc('second', clock_timestamp() - f.since) AS age, f.waiters AS wait
FROM idempotence.in_flight f ORDER BY f.waiters DESC NULLS LAST, f.since LIMIT 10;
\endif

\echo Unfinished: begun, committed, and not done; the oldest
SELECT left(idempotence.legible(u.session), 16) AS session, left(idempotence.legible(u.request), 16) AS request, u.state, left(u.holder::text, 12) AS holder,
       u.attempt AS try, date_trunc('second', clock_timestamp() - u.since) AS age
FROM idempotence.unfinished u ORDER BY (u.state = 'run out') DESC, u.since LIMIT 10;

\echo Unfinished, in numbers
SELECT u.state, count(*) AS requests, date_trunc('second', clock_timestamp() - min(u.since)) AS oldest,
       max(u.attempt) AS "most attempts"
FROM idempotence.unfinished u GROUP BY u.state ORDER BY u.state;

\echo Segments
SELECT s.segment AS n, s.state, to_char(s.opened_at, 'MM-DD HH24:MI') AS opened,
       to_char(s.due_at, 'MM-DD HH24:MI') AS due,
       s.outcomes, pg_size_pretty(s.bytes) AS size, s.held_by AS "held by"
FROM idempotence.segments s ORDER BY s.segment;
COMMIT;
