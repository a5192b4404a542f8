-- Goal: idem_sweep is for admins, to be called by itself, and tells what it did; monitors see how the ring
-- and the sweep stand; the three tables are turned through and emptied.
-- Method: as each role; a lap of the ring, time being passed by hand.
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
CREATE ROLE regress_sweep_user;
CREATE ROLE regress_sweep_monitor;
CREATE ROLE regress_sweep_admin;
SELECT idem_grant('regress_sweep_user'), idem_grant('regress_sweep_monitor', 'monitor'), idem_grant('regress_sweep_admin', 'admin');

-- who may
SET ROLE regress_sweep_user;
CALL idem_sweep();
\echo :SQLSTATE
SELECT regress_message($$SELECT idempotence.sweep_step('turn')$$), regress_message($$TABLE idempotence.segments$$), left(regress_message($$TABLE idempotence.health$$), 5);
SET ROLE regress_sweep_monitor;
CALL idem_sweep();
\echo :SQLSTATE
SELECT segment, state, keep, due_at, outcomes, bytes > 0 AS bytes, held_by FROM idempotence.segments;
SELECT name, status, hint FROM idempotence.health WHERE name NOT IN ('worker', 'sweep', 'owners');
SET ROLE regress_sweep_admin;
CALL idem_sweep();
SELECT segment, state, keep FROM idempotence.segments;
SELECT name, status, hint FROM idempotence.health WHERE name <> 'owners';

-- not inside a transaction, which it would have to commit
BEGIN;
CALL idem_sweep();
\echo :SQLSTATE
ROLLBACK;
DO $$ BEGIN CALL idem_sweep(); END $$;
-- whatever the defaults are; the steps by themselves keep to them
SET default_transaction_isolation = 'serializable';
SET default_transaction_read_only = on;
SET default_transaction_deferrable = on;
CALL idem_sweep();
SELECT regress_error($$SELECT idempotence.sweep_step('turn')$$);
RESET default_transaction_deferrable;
RESET default_transaction_read_only;
RESET default_transaction_isolation;
SELECT regress_error($$SELECT idempotence.sweep_step('rest')$$);
SELECT regress_message($$SELECT idempotence.sweep_step(NULL)$$);
RESET ROLE;

-- a lap: three requests, each recorded in another segment; the first is gone when its time has passed
SELECT idem_create_session('sweep', ttl => '1 hour');
CREATE PROCEDURE sweep_time_passes() LANGUAGE sql AS $$
  UPDATE idempotence.segment SET opened_at = opened_at - interval '35 minutes', closed_at = closed_at - interval '35 minutes', ends_at = ends_at - interval '35 minutes';
  UPDATE idempotence.outcome_0 SET recorded_at = recorded_at - interval '35 minutes', expires_at = expires_at - interval '35 minutes';
  UPDATE idempotence.outcome_1 SET recorded_at = recorded_at - interval '35 minutes', expires_at = expires_at - interval '35 minutes';
  UPDATE idempotence.outcome_2 SET recorded_at = recorded_at - interval '35 minutes', expires_at = expires_at - interval '35 minutes';
  UPDATE idempotence.outcome_long SET recorded_at = recorded_at - interval '35 minutes', expires_at = expires_at - interval '35 minutes';
  -- all read anew where the ring stands
  ALTER TABLE idempotence.segment RESET (fillfactor);
$$;
CREATE VIEW sweep_ring AS
SELECT s.segment, s.state, s.keep, o.keys FROM idempotence.segments s
JOIN (SELECT 0 AS segment, (SELECT string_agg(key, ',' ORDER BY key) FROM idempotence.outcome_0) AS keys
      UNION ALL SELECT 1, (SELECT string_agg(key, ',' ORDER BY key) FROM idempotence.outcome_1)
      UNION ALL SELECT 2, (SELECT string_agg(key, ',' ORDER BY key) FROM idempotence.outcome_2)) o USING (segment) ORDER BY segment;
SELECT regress_show(idem_run('sweep', 'a', 'SELECT 1'));
CALL idem_sweep();
TABLE sweep_ring;
CALL sweep_time_passes();
CALL idem_sweep();
SELECT regress_show(idem_run('sweep', 'b', 'SELECT 2'));
CALL sweep_time_passes();
CALL idem_sweep();
SELECT regress_show(idem_run('sweep', 'c', 'SELECT 3'));
TABLE sweep_ring;
SELECT regress_show(idem_lookup('sweep', k)) FROM unnest('{a,b,c}'::text[]) k;
-- the first segment is emptied, and turned to; how long it is kept follows what was recorded
SELECT idem_alter_session('sweep', ttl => '10 minutes');
CALL sweep_time_passes();
CALL idem_sweep();
TABLE sweep_ring;
SELECT regress_show(idem_lookup('sweep', k)) FROM unnest('{a,b,c}'::text[]) k;
-- what a session is promised changes nothing, whoever drops it
SELECT idem_alter_session('sweep', ttl => '1 hour');
SELECT idem_create_session('sweep long', ttl => '3650 days'), idem_drop_session('sweep long');
CALL idem_sweep();
TABLE sweep_ring;

-- a clock that was ahead for a moment is told of, until the next sweep puts it right; nobody is to blame
BEGIN;
UPDATE idempotence.segment SET opened_at = opened_at + interval '2 days' WHERE current;
UPDATE idempotence.sweep SET done_at = done_at + interval '2 days';
SELECT name, status, regexp_replace(detail, 'at .*,? by', 'at some time, by'), hint FROM idempotence.health WHERE name IN ('sweep', 'ring');
ROLLBACK;
UPDATE idempotence.segment SET opened_at = opened_at + interval '2 days' WHERE current;
CALL idem_sweep();
SELECT name, status, detail FROM idempotence.health WHERE name = 'ring';
-- what is late since before a sweep came by is critical
BEGIN;
UPDATE idempotence.segment SET closed_at = closed_at - interval '3 days', ends_at = ends_at - interval '3 days' WHERE number = 1;
SELECT status, regexp_replace(detail, '@ .* ago', 'some time ago'), hint FROM idempotence.health WHERE name = 'ring';
ROLLBACK;

-- where no sweep is known, a database is late only when there was time for it: since the server came up, and
-- since its tables were made or restored. On any server: what it tells of itself is put in its place.
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.last_sweep() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
CREATE OR REPLACE FUNCTION idempotence.swept_instead() RETURNS timestamptz LANGUAGE sql AS 'SELECT idempotence.last_sweep()';
CREATE OR REPLACE FUNCTION idempotence.launcher() RETURNS integer LANGUAGE sql AS $$SELECT CASE WHEN current_setting('regress.preloaded')::bool THEN 1 END$$;
CREATE OR REPLACE FUNCTION idempotence.is_visited() RETURNS boolean LANGUAGE sql AS $$SELECT current_setting('regress.visited')::bool$$;
CREATE OR REPLACE FUNCTION idempotence.up_since() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT current_setting('regress.up_since')::timestamptz$$;
CREATE FUNCTION sweep_unknown(preloaded boolean, visited boolean, up interval, made interval) RETURNS TABLE (told text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('regress.preloaded', preloaded::text, true), set_config('regress.visited', visited::text, true),
          set_config('regress.up_since', (now() - up)::text, true);
  UPDATE idempotence.segment SET sessions_at = now() - made WHERE number = 0;
  RETURN QUERY SELECT concat_ws(', ', name, status, replace(detail, date_trunc('second', now() - up)::text, 'it came up'), hint) FROM idempotence.health
               WHERE name IN ('worker', 'sweep');
END
$$;
-- the worker visits it: both just now; made just now; the server, just now; nothing since long, a clock that was ahead aside
SELECT sweep_unknown(true, true, '1 minute', '2 minutes');
SELECT v.up, v.made, split_part(t.told, ', ', 2)
FROM (VALUES (interval '1 minute', interval '20 days'), ('20 days', '1 minute'), ('20 days', '21 days'), ('20 days', '-1 day')) v (up, made),
     sweep_unknown(true, true, v.up, v.made) t
WHERE t.told LIKE 'sweep, %';
SELECT sweep_unknown(true, true, '20 days', '21 days');
-- the setting leaves it out; the library is not preloaded
SELECT sweep_unknown(true, false, '24 hours', '2 days');
SELECT sweep_unknown(true, false, '26 hours', '2 days');
SELECT sweep_unknown(false, false, '24 hours', '2 days');
SELECT sweep_unknown(false, false, '26 hours', '2 days');
ROLLBACK;

-- who is in the way is told to monitors: whoever restores something once the turn is due, and whoever has a
-- lock on a closed one
SELECT regress_show(idem_run('sweep', 'd', 'SELECT 4'));
BEGIN;
LOCK TABLE idempotence.outcome_1 IN ACCESS SHARE MODE;
PREPARE TRANSACTION 'regress_sweep';
PREPARE sweep_held AS
SELECT segment, state, due_at < clock_timestamp() AS due, regexp_replace(held_by, ', since \w.*', ', since then') AS held_by FROM idempotence.segments;
SET ROLE regress_sweep_monitor;
EXECUTE sweep_held;
RESET ROLE;
COMMIT PREPARED 'regress_sweep';
CALL sweep_time_passes();
CALL sweep_time_passes();
CALL sweep_time_passes();
BEGIN;
INSERT INTO idempotence.outcome_2 SELECT * FROM idempotence.outcome_1 WHERE false;
PREPARE TRANSACTION 'regress_sweep';
SET ROLE regress_sweep_monitor;
EXECUTE sweep_held;
SELECT regress_message($$TABLE idempotence.locks$$);
RESET ROLE;
COMMIT PREPARED 'regress_sweep';
DEALLOCATE sweep_held;

-- one with a ttl of a month among many of an hour outlives the segments, and is what it was
SELECT idem_create_session('sweep long', ttl => '3650 days');
SELECT idem_alter_session('sweep long', ttl => '30 days');
CREATE TABLE sweep_seen AS SELECT session, request, status, response, fingerprint, recorded_by, recorded_at, expires_at FROM idempotence.outcomes WHERE false;
CREATE VIEW sweep_changed AS
SELECT s.request, o.segment, (o.status, o.response, o.fingerprint, o.recorded_by) IS NOT DISTINCT FROM (s.status, s.response, s.fingerprint, s.recorded_by) AS same,
       s.expires_at - o.expires_at AS passed, s.recorded_at - o.recorded_at AS passed_too
FROM sweep_seen s LEFT JOIN idempotence.outcomes o USING (session, request) ORDER BY s.request;
SELECT count(idem_run('sweep', 'short ' || n, 'SELECT 1')) FROM generate_series(1, 40) n;
BEGIN;
SELECT status FROM idem_begin('sweep long', 'large', payload => '{"a": 1}');
SELECT idem_record('sweep long', 'large', (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 1000) n), failed => true) IS NOT NULL;
COMMIT;
SELECT regress_show(idem_run('sweep long', 'forgotten', 'SELECT 1')), regress_show(idem_run('sweep long', 'again', 'SELECT 1'));
INSERT INTO sweep_seen SELECT session, request, status, response, fingerprint, recorded_by, recorded_at, expires_at FROM idempotence.outcomes WHERE session = 'sweep long';
CALL sweep_time_passes();
CALL idem_sweep();
CALL sweep_time_passes();
CALL idem_sweep();
CALL sweep_time_passes();
CALL idem_sweep();
CALL sweep_time_passes();
CALL idem_sweep();
SELECT segment, state, keep FROM idempotence.segments ORDER BY segment;
TABLE sweep_changed;
SELECT key FROM idempotence.outcome_long ORDER BY key;
SELECT status, replayed, jsonb_array_length(response) FROM idem_begin('sweep long', 'large', payload => '{"a": 1}');
SELECT regress_error($$SELECT idem_begin('sweep long', 'large', payload => '{"a": 2}')$$);
SELECT regress_show(idem_lookup('sweep long', 'again')), regress_show(idem_run('sweep long', 'again', 'SELECT 2'));
SELECT idem_forget('sweep long', 'forgotten', 'a test');
SELECT regress_show(idem_run('sweep long', 'forgotten', 'SELECT 3'));
SELECT name, regexp_replace(detail, '[0-9]+ [a-zA-Z]+', 'N', 'g') FROM idempotence.health WHERE name = 'size';
-- expired there it is executed anew, and the table is truncated once nothing is left in it
UPDATE idempotence.outcome_long SET expires_at = clock_timestamp() - interval '10 seconds' WHERE key = 'again';
CALL idem_sweep();
SELECT key FROM idempotence.outcome_long ORDER BY key;
SELECT regress_show(idem_run('sweep long', 'again', 'SELECT 4'));
SELECT key FROM idempotence.outcome_long ORDER BY key;
UPDATE idempotence.outcome_long SET expires_at = clock_timestamp() - interval '61 seconds';
CALL idem_sweep();
SELECT pg_relation_size('idempotence.outcome_long');
SELECT status, replayed, response FROM idem_run('sweep long', 'large', 'SELECT 5');
-- what is restored there counts at once, also for who found nothing there before
CREATE TEMP TABLE sweep_kept AS SELECT * FROM idempotence.outcome_long WHERE key = 'large';
TRUNCATE idempotence.outcome_long;
SELECT regress_show(idem_lookup('sweep long', 'large'));
INSERT INTO idempotence.outcome_long (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
SELECT digest, session, recorded_at, expires_at, recorded_by, class, key, '"restored"' FROM sweep_kept;
DROP TABLE sweep_kept;
SELECT regress_show(idem_run('sweep long', 'large', 'SELECT 6'));
TRUNCATE idempotence.outcome_long;
CALL idem_sweep();
-- the snapshot of a step may not be older than its locks
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT regress_error($$SELECT idempotence.sweep_step('empty')$$);
ROLLBACK;
-- the most that a session may be promised; what it has is not asked for
SET idempotence.max_ttl = '20 d';
SELECT regress_error($$SELECT idem_create_session('sweep longer', ttl => '21 days')$$);
SELECT regress_error($$SELECT idem_alter_session('sweep', ttl => '21 days')$$);
SELECT idem_create_session('sweep long', ttl => '30 days');
SELECT idem_alter_session('sweep long', ttl => '30 days', require_payload => false), idem_drop_session('sweep long');
SELECT regress_error($$SELECT idem_create_session('sweep long', ttl => '40 days')$$);
SELECT idem_create_session('sweep longer');
SELECT idem_drop_session('sweep longer');
RESET idempotence.max_ttl;
DROP VIEW sweep_changed;
DROP TABLE sweep_seen;

-- abandoned checkpoints go, but for that of a request at work
BEGIN; SELECT status FROM idem_begin('sweep', 'left'); SELECT idem_checkpoint('sweep', 'left', 'p'); COMMIT;
BEGIN; SELECT status FROM idem_begin('sweep', 'at work'); SELECT idem_checkpoint('sweep', 'at work', 'p'); COMMIT;
BEGIN; SELECT status FROM idem_begin('sweep', 'fresh'); SELECT idem_checkpoint('sweep', 'fresh', 'p'); COMMIT;
UPDATE idempotence.checkpoint SET written_at = written_at - interval '8 days' WHERE request IN ('left', 'at work');
UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
BEGIN;
SELECT status FROM idem_begin('sweep', 'at work');
SELECT idem_checkpoint('sweep', 'at work', 'p');
UPDATE idempotence.checkpoint SET written_at = written_at - interval '8 days' WHERE request = 'at work';
PREPARE TRANSACTION 'regress_sweep';
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
COMMIT PREPARED 'regress_sweep';
UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
DELETE FROM idempotence.checkpoint;

-- a checkpoint counts as long as an outcome in its place would: for its session's ttl, in a client session
-- until it is given up, and as long as the session is known
SELECT idem_create_session('sweep month', ttl => '30 days');
SELECT regress_registered('sweep points', idem_register());
BEGIN;
SELECT status FROM idem_begin('sweep month', 'k');
SELECT idem_checkpoint('sweep month', 'k', 'p');
SELECT status, idem_checkpoint(regress_id('sweep points'), n, 'p') FROM generate_series(1, 2) n, idem_begin(regress_id('sweep points'), n);
COMMIT;
SELECT idem_ack(regress_id('sweep points'), 1);
CREATE PROCEDURE sweep_after(pause interval) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE idempotence.checkpoint SET written_at = written_at - pause;
  UPDATE idempotence.session SET ended_at = ended_at - pause WHERE id = regress_uuid('sweep points');
  UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
END $$;
CALL sweep_after('8 days');
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
SELECT regress_show(idem_lookup('sweep month', 'k')), regress_show(idem_lookup(regress_id('sweep points'), 2));
CALL sweep_after('22 days');
SELECT regress_show(idem_lookup('sweep month', 'k')), regress_show(idem_lookup(regress_id('sweep points'), 2));
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
SELECT idem_close(regress_id('sweep points'));
CALL sweep_after('6 days');
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
CALL sweep_after('1 day');
CALL idem_sweep();
SELECT request FROM idempotence.checkpoint ORDER BY request;
DROP PROCEDURE sweep_after;
SELECT idem_drop_session('sweep month');

-- so it is with a lease that has run out: it counts for its session's ttl, in a client session until it is given up,
-- and as long as the session is known. One that lives is never deleted, nor one that somebody is at.
SELECT idem_create_session('sweep month', ttl => '30 days'), idem_create_session('sweep leases');
SELECT regress_registered('sweep leases', idem_register());
SELECT regress_take(k, idem_begin(s, k, lease => '1 hour'))
FROM (VALUES ('sweep month', 'month'), ('sweep leases', 'left'), ('sweep leases', 'at work'), ('sweep leases', 'alive'), (regress_id('sweep leases'), '1'), (regress_id('sweep leases'), '2')) v (s, k);
CREATE PROCEDURE sweep_after(pause interval) LANGUAGE plpgsql AS $$
BEGIN
  UPDATE idempotence.lease SET leased_until = clock_timestamp() - pause, begun_at = clock_timestamp() - pause - interval '1 hour' WHERE request <> 'alive';
  UPDATE idempotence.session SET ended_at = ended_at - pause WHERE id = regress_uuid('sweep leases');
  UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
END $$;
CALL sweep_after('1 second');
SELECT idem_ack(regress_id('sweep leases'), 1);
SELECT request FROM idempotence.lease ORDER BY request COLLATE "C";
CALL sweep_after('6 days 23 hours');
CALL idem_sweep();
SELECT request FROM idempotence.lease ORDER BY request COLLATE "C";
CALL sweep_after('7 days 1 hour');
BEGIN;
SELECT regress_show(idem_begin('sweep leases', 'at work', lease => '1 hour'));
PREPARE TRANSACTION 'regress_sweep';
CALL idem_sweep();
SELECT request FROM idempotence.lease ORDER BY request COLLATE "C";
ROLLBACK PREPARED 'regress_sweep';
SELECT regress_message($$SELECT idem_record('sweep leases', 'left', token => regress_token('left'))$$), regress_show(idem_lookup('sweep leases', 'left'));
SELECT idem_record('sweep leases', 'alive', token => regress_token('alive')) IS NOT NULL;
SELECT idem_release('sweep month', 'month', token => regress_token('month'));
CALL sweep_after('31 days');
CALL idem_sweep();
SELECT request, regress_show(idem_lookup(regress_id('sweep leases'), request)) FROM idempotence.lease ORDER BY request COLLATE "C";
SELECT idem_close(regress_id('sweep leases'));
CALL sweep_after('8 days');
CALL idem_sweep();
CALL sweep_after('8 days');
CALL idem_sweep();
SELECT request FROM idempotence.lease ORDER BY request COLLATE "C";
DROP PROCEDURE sweep_after;
SELECT idem_drop_session('sweep month'), idem_drop_session('sweep leases');
DELETE FROM regress_lease_token;

-- a saved client session that is not at work, as after a crash or a restore: put back once an hour, and
-- at once where the crash emptied what the sweep remembers, too
SELECT session FROM idem_register('sweep', timeout => '1 hour') \gset
BEGIN; SELECT status FROM idem_begin(:'session', 1); SELECT idem_record(:'session', 1, '1'); COMMIT;
DELETE FROM idempotence.session_live;
CALL idem_sweep();
UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
CALL idem_sweep();
TRUNCATE idempotence.session_live, idempotence.sweep;
CALL idem_sweep();
SELECT client, saved, last_seen >= (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'walwriter') AS seen, ended
FROM idempotence.sessions WHERE session = :'session';
-- a role that is near its limit is named
SET idempotence.max_sessions_per_role = 1;
SELECT status, substring(detail, '; .*$') = format('; role %s has 1 of at most 1', current_user) AS named, hint
FROM idempotence.health WHERE name = 'client sessions';
RESET idempotence.max_sessions_per_role;
SELECT idem_close(:'session');

-- an owner that is gone is cleared
CREATE ROLE regress_sweep_gone;
SELECT idem_create_session('sweep orphan', owner => 'regress_sweep_gone');
DROP ROLE regress_sweep_gone;
UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
CALL idem_sweep();
SELECT owner FROM idempotence.sessions WHERE session = 'sweep orphan';
SELECT name, status, detail FROM idempotence.health WHERE name = 'owners';

-- tables of ours that are published are told of, however they came to be; they take updates all the same
SET client_min_messages = error;
BEGIN;
CREATE PUBLICATION regress_sweep_all FOR ALL TABLES;
CREATE PUBLICATION regress_sweep_schema FOR TABLES IN SCHEMA idempotence;
CREATE PUBLICATION regress_sweep_table FOR TABLE idempotence.audit;
CREATE PUBLICATION regress_sweep_other FOR TABLE regress_client_session;
SET LOCAL ROLE regress_sweep_admin;
SELECT status, detail, hint FROM idempotence.health WHERE name = 'publications';
RESET ROLE;
UPDATE idempotence.secret SET in_use_since = in_use_since;
DELETE FROM idempotence.audit;
ROLLBACK;
RESET client_min_messages;
SELECT status, detail, hint FROM idempotence.health WHERE name = 'publications';
SELECT idem_alter_session('sweep orphan', owner => 'regress_sweep_admin');
SELECT owner FROM idempotence.sessions WHERE session = 'sweep orphan';

SELECT idem_drop_session('sweep'), idem_drop_session('sweep orphan');
DROP VIEW sweep_ring;
DROP PROCEDURE sweep_time_passes;
SELECT idem_revoke('regress_sweep_user'), idem_revoke('regress_sweep_monitor'), idem_revoke('regress_sweep_admin');
DROP ROLE regress_sweep_user, regress_sweep_monitor;
SELECT idem_create_session('sweep orphan', owner => CURRENT_USER::regrole), idem_drop_session('sweep orphan');
DROP ROLE regress_sweep_admin;
-- as it was: the other tests look into the first segment
TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2, idempotence.outcome_long;
UPDATE idempotence.segment SET current = number = 0, restored = true, keep_us = 0, ends_at = NULL, opened_at = now(), closed_at = NULL, looked_at = NULL, looked_to = 0;
DELETE FROM idempotence.checkpoint;
DELETE FROM idempotence.audit;
