-- Goal: each row of the view health tells of what it is for, and is ok again afterwards; a row that is new cannot be
-- forgotten here. idem_ready() says whether a request can be begun, and raises no error.
-- Method: each state is brought about and looked at. The rows restarts, waiters, standby and deadlocks, and what takes
-- locks of others, a standby or a restore, are in the cluster test health.
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
CREATE ROLE regress_health;
CREATE ROLE regress_health_monitor;
CREATE ROLE regress_health_nobody;
SELECT idem_grant('regress_health'), idem_grant('regress_health_monitor', 'monitor');
SELECT idem_create_session('health', owner => 'regress_health');
-- Which levels were seen of each row. A sequence keeps that over a rollback.
SELECT format('CREATE SEQUENCE %I', 'health seen ' || name) FROM idempotence.health \gexec
-- What the view says of a row; levels are noted.
CREATE FUNCTION health(name_ text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  told idempotence.health;
  seen text := quote_ident('health seen ' || name_);
  bits bigint;
BEGIN
  SELECT * INTO STRICT told FROM idempotence.health h WHERE h.name = name_;
  EXECUTE format('SELECT last_value FROM %s', seen) INTO bits;
  PERFORM setval(seen, ((bits - 1) | CASE told.level WHEN 0 THEN 1 ELSE 2 END) + 1);
  RETURN NEXT concat(told.level, ' ', told.status, ': ', regexp_replace(regexp_replace(regexp_replace(regexp_replace(told.detail,
    '(since|at|first since|first at) [A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]+ [0-9:]{8} [0-9]+ [A-Z]+', '\1 some time', 'g'),
    'process [0-9]+ \([^)]*\)', 'process N (who)', 'g'), '[0-9]+ (bytes|kB|MB|GB|TB|PB)', 'N bytes', 'g'), '[0-9]+ (of [0-9]+ places)', 'N of N places'));
  IF told.hint IS NOT NULL THEN
    RETURN NEXT '  ' || told.hint;
  END IF;
END $$;
-- Only the level.
CREATE FUNCTION health_level(name_ text) RETURNS text LANGUAGE sql AS $$SELECT split_part(told, ':', 1) FROM health(name_) told LIMIT 1$$;
-- Settings as if they were set for the server.
CREATE TABLE health_setting (name text, value text);
CREATE PROCEDURE health_set(name_ text, value_ text) LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO health_setting VALUES (name_, value_);
  CREATE OR REPLACE FUNCTION idempotence.setting(name text) RETURNS text LANGUAGE sql STABLE AS
    'SELECT coalesce((SELECT h.value FROM public.health_setting h WHERE h.name = setting.name), (SELECT s.setting FROM pg_settings s WHERE s.name = setting.name))';
END $$;
CALL idem_sweep();
-- in a database where nothing is wrong, to which the moment of the last sweep and sizes belong
SELECT name, level FROM idempotence.health WHERE level <> 0;

-- worker, sweep
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.launcher() RETURNS integer LANGUAGE sql AS 'SELECT 0';
SELECT health('worker');
CREATE OR REPLACE FUNCTION idempotence.launcher() RETURNS integer LANGUAGE sql AS 'SELECT NULL::integer';
CREATE OR REPLACE FUNCTION idempotence.is_visited() RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OR REPLACE FUNCTION idempotence.last_sweep() RETURNS timestamptz LANGUAGE sql AS $$SELECT clock_timestamp() - interval '26 hours'$$;
CREATE OR REPLACE FUNCTION idempotence.swept_instead() RETURNS timestamptz LANGUAGE sql AS 'SELECT idempotence.last_sweep()';
SELECT health('worker');
SELECT health('sweep');
CREATE OR REPLACE FUNCTION idempotence.last_sweep() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()';
SELECT level FROM idempotence.health WHERE name = 'sweep';
SELECT health('worker');
CREATE OR REPLACE FUNCTION idempotence.swept_instead() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
SELECT health('worker');
ROLLBACK;
SELECT health_level('sweep');

-- ring: overdue, and late by its whole keep although it was swept
BEGIN;
UPDATE idempotence.segment SET closed_at = now() - interval '9 days' WHERE number = 2;
INSERT INTO idempotence.outcome_2 SELECT gen_random_uuid(), id, now(), now(), 's', 'k', owner FROM idempotence.session WHERE name = 'health';
UPDATE idempotence.segment SET keep_us = 0;
CREATE OR REPLACE FUNCTION idempotence.last_sweep() RETURNS timestamptz LANGUAGE sql AS $$SELECT now() - interval '2 days'$$;
SELECT regexp_replace(health('ring'), '@ .* ago', 'some time ago');
UPDATE idempotence.segment SET closed_at = now() - interval '20 days' WHERE number = 2;
SELECT health_level('ring');
ROLLBACK;
SELECT health('ring');
-- without its rows; and as the hint says, all that was recorded is known again
SELECT status FROM idem_run('health', 'in the ring', 'SELECT 1');
CREATE TABLE health_ring AS TABLE idempotence.segment;
DELETE FROM idempotence.segment;
-- read anew, as in a new connection
ALTER TABLE idempotence.segment RESET (fillfactor);
SELECT health('ring');
SELECT regress_error($$SELECT idem_begin('health', 'in the ring')$$);
INSERT INTO idempotence.segment (number, current, opened_at, keep_us) SELECT n, n = 0, now(), 0 FROM generate_series(0, 2) n;
SELECT health('ring');
SELECT status, replayed FROM idem_run('health', 'in the ring', 'SELECT 1');
DELETE FROM idempotence.segment;
INSERT INTO idempotence.segment TABLE health_ring;
DROP TABLE health_ring;
SELECT idem_forget('health', 'in the ring', 'a test');

-- holders: by name, with what they hold
BEGIN;
CALL health_set('idempotence.warn_holder', '0');
SELECT count(b.status) FROM generate_series(1, 2) n, idem_begin('health', 'held ' || n) b;
SELECT health('holders');
-- an application's name that looks like the end of what is told of it
SET LOCAL application_name = 'till, active), since yesterday';
SELECT FROM pg_stat_clear_snapshot();
SELECT detail LIKE '%, "till, active), since yesterday", %' FROM idempotence.health WHERE name = 'holders';
CALL health_set('idempotence.warn_holder', '3600');
TRUNCATE health_setting;
SELECT health('holders');
ROLLBACK;

-- prepared transactions
BEGIN;
SELECT status FROM idem_begin('health', 'prepared');
SELECT idem_release('health', 'prepared');
PREPARE TRANSACTION 'regress_health';
BEGIN;
SELECT health('prepared transactions');
CALL health_set('idempotence.warn_holder', '0');
SELECT health('prepared transactions');
ROLLBACK;
COMMIT PREPARED 'regress_health';

-- lock table
BEGIN;
SET LOCAL idempotence.max_lock_share = 100;
SELECT count(b.status) > 0 FROM generate_series(1, idempotence.lock_table_size() * 55 / 100) n, idem_begin('health', 'many ' || n) b;
SELECT health_level('lock table');
ROLLBACK;
SELECT health_level('lock table');

-- tables: with a column that is none of the extension's, at once, though the ring has not come to it; and without one of its own
BEGIN;
ALTER TABLE idempotence.outcome_2 ADD COLUMN more text;
SELECT health('tables');
ROLLBACK;
BEGIN;
ALTER TABLE idempotence.reply DROP COLUMN token;
SELECT health('tables');
ROLLBACK;
-- without the key of the current segment
BEGIN;
ALTER TABLE idempotence.outcome_0 DROP CONSTRAINT outcome_0_pkey;
SELECT idem_ready();
ROLLBACK;
-- unlogged, under another name, without its key
BEGIN;
ALTER TABLE idempotence.outcome_1 SET UNLOGGED;
ALTER TABLE idempotence.checkpoint RENAME TO former;
ALTER TABLE idempotence.lease DROP CONSTRAINT lease_pkey;
ALTER TABLE idempotence.secret SET UNLOGGED;
SELECT health('tables');
SELECT regress_error($$SELECT idem_begin('health', 'without')$$);
SELECT idem_ready();
ROLLBACK;
SELECT health('tables');
-- a trigger that a load of data has left disabled
BEGIN;
ALTER TABLE idempotence.session DISABLE TRIGGER ALL;
SELECT health('tables');
ROLLBACK;

-- lock table: who has taken most of it
BEGIN;
SELECT FROM generate_series(1, idempotence.lock_table_size() / 2) n WHERE pg_advisory_xact_lock(n) IS NULL;
SELECT regexp_replace(split_part(health('lock table'), chr(10), 1), ' [0-9]+', ' N', 'g');
ROLLBACK;
SELECT health_level('lock table');

-- leases, run out, suspended
SELECT status FROM idem_begin('health', 'leased', lease => '1 hour');
UPDATE idempotence.lease SET attempt = 4;
SELECT health('leases');
SET idempotence.max_leases_per_role = 1;
SELECT regexp_replace(health('leases'), 'have: role [^ ;]+', 'have: role N');
RESET idempotence.max_leases_per_role;
UPDATE idempotence.lease SET attempt = 3, leased_until = now() - interval '6 minutes';
SELECT health('leases');
SELECT health('run out');
-- so many by the last VACUUM that health does not look at each
BEGIN;
UPDATE pg_class SET reltuples = 2000000 WHERE oid = 'idempotence.lease'::regclass;
SELECT health(name) FROM unnest('{leases,run out,suspended}'::text[]) name;
ROLLBACK;
SELECT idem_force_release('health', 'leased', 'a test');
SELECT health('run out');
BEGIN; SELECT status FROM idem_begin('health', 'suspended'); SELECT idem_checkpoint('health', 'suspended', 'p'); COMMIT;
SELECT health('suspended');
UPDATE idempotence.checkpoint SET written_at = now() - interval '25 hours';
SELECT health('suspended');
SELECT status FROM idem_settle('health', 'suspended');
SELECT health('suspended');

-- given up: what idem_force_record() repairs
SELECT idem_create_session('health once', ttl => '1 day', owner => 'regress_health', max_attempts => 1);
SELECT health('given up');
SELECT status FROM idem_begin('health once', 'dead', lease => '10 ms');
SELECT pg_sleep(0.05);
SELECT status, replayed, response FROM idem_begin('health once', 'dead');
SELECT status FROM idem_begin('health once', 'decided'), LATERAL (SELECT idem_record('health once', 'decided', '{"cause": 1}', failed => true)) r;
-- a failure that looks like that
SELECT status FROM idem_begin('health once', 'forged'), LATERAL (SELECT idem_record('health once', 'forged', '{"attempts": 1}', failed => true)) r;
SELECT health('given up');
SELECT idem_force_record('health once', 'dead', 'the bank shows the charge', '{"charge": "ch_2"}') IS NOT NULL;
SELECT status, replayed, response FROM idem_begin('health once', 'dead');
SELECT health('given up');

-- client sessions: near the limit, and at it, also at one of the role's own; ended ones that are known for their end count too
SET ROLE regress_health;
SELECT count(regress_registered('health ' || n, idem_register())) FROM generate_series(1, 9) n;
RESET ROLE;
SET idempotence.max_sessions_per_role = 10;
SELECT regexp_replace(health('client sessions'), '[0-9]+ at work', 'some at work');
SET idempotence.max_sessions_per_role = 9;
SELECT health_level('client sessions');
RESET idempotence.max_sessions_per_role;
ALTER ROLE regress_health SET idempotence.max_sessions_per_role = 9;
SELECT regexp_replace(health('client sessions'), '[0-9]+ at work', 'some at work');
ALTER ROLE regress_health RESET ALL;
SELECT bool_and(idem_close(regress_id('health ' || n))) FROM generate_series(1, 9) n;
SELECT health_level('client sessions');
BEGIN;
INSERT INTO idempotence.session (id, owner, created_at, client, ended, ended_at, ordering, window_size, timeout, node, require_payload, inbox, time_keys)
  SELECT gen_random_uuid(), 'regress_health', now(), 'a client', 'F', now(), 'a', 5, '1 min', idem_node(), false, false, false FROM generate_series(1, 10);
SET LOCAL idempotence.max_sessions_per_role = 11;
SELECT regexp_replace(health('client sessions'), '[0-9]+ at work', 'some at work');
SET LOCAL idempotence.max_sessions_per_role = 10;
SELECT health_level('client sessions');
ROLLBACK;

-- standing sessions: many of them, and at the limit
SELECT count(idem_create_session('health ' || n, owner => 'regress_health')) FROM generate_series(1, 9) n;
SELECT count(idem_drop_session('health ' || n)) FROM generate_series(8, 9) n;
BEGIN;
CALL health_set('idempotence.warn_standing_sessions', '9');
SELECT regexp_replace(health('standing sessions'), '[0-9]+ (standing|are)', 'N \1', 'g');
SET idempotence.max_standing_sessions_per_role = 10;
SELECT health_level('standing sessions');
RESET idempotence.max_standing_sessions_per_role;
ALTER ROLE regress_health SET idempotence.max_standing_sessions_per_role = 10;
SELECT health_level('standing sessions');
ROLLBACK;
SELECT health_level('standing sessions');
-- ... and those that keep outcomes for less than retries take
BEGIN;
SELECT idem_alter_session('health 1', ttl => '1 second');
SELECT regexp_replace(health('standing sessions'), '[0-9]+ (standing|are)', 'N \1', 'g');
ROLLBACK;

-- owners
CREATE ROLE regress_health_gone;
SELECT idem_create_session('health orphan', owner => 'regress_health_gone');
DROP ROLE regress_health_gone;
SELECT health('owners');
SELECT idem_alter_session('health orphan', owner => 'regress_health');
SELECT health('owners');

-- rights: of a role that has lost one, and of a role that is gone
SELECT health('rights');
BEGIN;
REVOKE EXECUTE ON FUNCTION idem_node() FROM regress_health;
SELECT health('rights');
UPDATE idempotence.granted SET role = 'regress_gone' WHERE role = 'regress_health';
SELECT health('rights');
ROLLBACK;
-- restore: not looked through, without sessions, without tables; the cluster test half_restore restores in earnest
BEGIN;
INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_1 WHERE false;
SELECT health('restore');
UPDATE idempotence.restore SET orphans = 1;
SELECT health('restore');
INSERT INTO idempotence.secret SELECT * FROM idempotence.secret WHERE false;
SELECT health('restore');
ROLLBACK;
SELECT health('restore');
-- sessions that were deleted while they had outcomes
BEGIN;
SELECT status FROM idem_run('health', 'without a session', 'SELECT 1');
DELETE FROM idempotence.session WHERE name = 'health';
SELECT regexp_replace(health('restore'), '[0-9]+ (outcomes|have)', 'N \1', 'g');
ROLLBACK;

-- secret: none in use, two in use, none at all, another one than that of the outcomes
SELECT regress_show(idem_run('health', 'k', 'SELECT 1'));
SELECT health('secret');
BEGIN;
UPDATE idempotence.secret SET in_use_since = NULL;
SELECT health('secret'), idem_ready();
ROLLBACK;
BEGIN;
INSERT INTO idempotence.secret VALUES (now(), decode(repeat('00', 32), 'hex'));
SELECT regress_message($$SELECT idem_accept_restore('a test')$$);
SELECT health('secret'), idem_ready();
SELECT health('restore');
ROLLBACK;
BEGIN;
DELETE FROM idempotence.secret;
SELECT health_level('secret'), idem_ready();
ROLLBACK;
BEGIN;
UPDATE idempotence.secret SET key = decode(repeat('00', 32), 'hex');
SELECT health('secret'), idem_ready();
SELECT regress_message($$SELECT idem_accept_restore('a test')$$);
-- a request is refused as well, as long as a restore is in question; without a session an outcome can be nobody's
INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_1 WHERE false;
SELECT regress_message($$SELECT idem_begin('health', 'k')$$);
SELECT health('restore');
DELETE FROM idempotence.session;
SELECT health_level('secret'), idem_ready();
ROLLBACK;
SELECT health('secret');

-- unrecorded: wherever it is set, for roles that may begin requests
ALTER ROLE regress_health SET idempotence.unrecorded = 'off';
ALTER ROLE regress_health_nobody SET idempotence.unrecorded = 'off';
SELECT health('unrecorded');
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idempotence.unrecorded = warning', current_database()); END $$;
DO $$ BEGIN EXECUTE format('ALTER ROLE regress_health IN DATABASE %I SET idempotence.unrecorded = error', current_database()); END $$;
SELECT health('unrecorded');
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET idempotence.unrecorded', current_database()); END $$;
SELECT health('unrecorded');
ALTER ROLE regress_health RESET ALL;
ALTER ROLE regress_health_nobody RESET ALL;
DO $$ BEGIN EXECUTE format('ALTER ROLE regress_health IN DATABASE %I RESET ALL', current_database()); END $$;
SELECT health('unrecorded');

-- coordinator: one that is asked, and one that is not; Citus, where it cannot be asked
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.coordinator() RETURNS text LANGUAGE sql AS $$SELECT 'some_coordinator'$$;
SELECT health('coordinator');
ALTER ROLE regress_health SET idempotence.coordinate = 'off';
SELECT health('coordinator');
CREATE OR REPLACE FUNCTION idempotence.coordinator() RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
SELECT health('coordinator');
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
  SELECT 1, 'citus', extowner, extnamespace, false, '1' FROM pg_extension WHERE extname = 'plpgsql';
SELECT health('coordinator');
ROLLBACK;
SELECT health('coordinator');

-- journals: none, one, and one that is gone
SELECT health('journals');
BEGIN;
SELECT idem_create_journal('health_journal');
SELECT idem_create_session('health journaled', journal => 'health_journal');
SELECT health('journals');
ALTER TABLE health_journal RENAME TO hidden;
SELECT health('journals');
ROLLBACK;

-- settings: a wait that something else ends before
SELECT health('settings');
ALTER ROLE regress_health SET statement_timeout = '3s';
SELECT health('settings');
ALTER ROLE regress_health SET idempotence.wait = '2999 ms';
SELECT health('settings');
ALTER ROLE regress_health RESET statement_timeout;
ALTER ROLE regress_health SET lock_timeout = '1min';
ALTER ROLE regress_health SET idempotence.wait = -1;
SELECT health('settings');
ALTER ROLE regress_health SET idempotence.wait = 0;
SELECT health('settings');
ALTER ROLE regress_health SET default_transaction_read_only = on;
SELECT health('settings');
ALTER ROLE regress_health RESET ALL;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$;
SELECT health('settings');
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$;
BEGIN;
CALL health_set('idempotence.retention', '100');
CALL health_set('idempotence.max_ttl', '99');
CALL health_set('idempotence.naptime', '301');
CREATE OR REPLACE FUNCTION idempotence.lock_table_size() RETURNS bigint LANGUAGE sql AS 'SELECT 9::bigint';
SELECT regexp_replace(health('settings'), '; ', E'\n', 'g');
ROLLBACK;

-- publications, persistence
SET client_min_messages = error;
CREATE PUBLICATION regress_health FOR TABLE idempotence.audit;
SELECT health('publications');
DROP PUBLICATION regress_health;
RESET client_min_messages;
SELECT health('publications');
BEGIN;
INSERT INTO idempotence.persistence (what, unlogged) VALUES ('claims', true);
SELECT health('persistence');
ROLLBACK;
SELECT health('persistence');

-- clock: something was noted in the future; it was set a while ago, and more than a day ago
BEGIN;
UPDATE idempotence.segment SET looked_at = now() + interval '2 minutes' WHERE number = 2;
SELECT health('clock');
ROLLBACK;
BEGIN;
UPDATE idempotence.outcome_0 SET recorded_at = now() + interval '2 minutes';
SELECT health_level('clock');
ROLLBACK;
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.clock_jump() RETURNS timestamptz LANGUAGE sql AS $$SELECT now() - interval '23 hours'$$;
CREATE OR REPLACE FUNCTION idempotence.clock_jump_by() RETURNS interval LANGUAGE sql AS $$SELECT interval '-1 hour'$$;
SELECT health('clock');
CREATE OR REPLACE FUNCTION idempotence.clock_jump_by() RETURNS interval LANGUAGE sql AS $$SELECT interval '61 minutes'$$;
SELECT health_level('clock');
CREATE OR REPLACE FUNCTION idempotence.clock_jump() RETURNS timestamptz LANGUAGE sql AS $$SELECT now() - interval '25 hours'$$;
SELECT health_level('clock');
ROLLBACK;

-- databases: a name that is misspelt, this database failed, another one failed; the cluster test health has real visits
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.launcher() RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE FUNCTION idempotence.databases() RETURNS text[] LANGUAGE sql AS $$SELECT ARRAY['postgres', 'regress misspelt', 'template1']$$;
CREATE OR REPLACE FUNCTION idempotence.is_visited() RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OR REPLACE FUNCTION idempotence.visits(OUT database oid, OUT swept_at timestamptz, OUT failed_at timestamptz, OUT error text) RETURNS SETOF record
  LANGUAGE sql AS 'SELECT NULL::oid, NULL::timestamptz, NULL::timestamptz, NULL::text WHERE false';
SELECT health('databases');
CREATE OR REPLACE FUNCTION idempotence.databases() RETURNS text[] LANGUAGE sql AS $$SELECT '{}'::text[]$$;
SELECT health('databases');
CREATE OR REPLACE FUNCTION idempotence.databases() RETURNS text[] LANGUAGE sql AS 'SELECT NULL::text[]';
CREATE OR REPLACE FUNCTION idempotence.is_visited() RETURNS boolean LANGUAGE sql AS 'SELECT false';
SELECT health('databases');
CREATE OR REPLACE FUNCTION idempotence.visits(OUT database oid, OUT swept_at timestamptz, OUT failed_at timestamptz, OUT error text) RETURNS SETOF record
  LANGUAGE sql AS $$SELECT oid, NULL::timestamptz, now(), 'broken' FROM pg_database WHERE datname = 'template1'$$;
SELECT health_level('databases');
CREATE OR REPLACE FUNCTION idempotence.visits(OUT database oid, OUT swept_at timestamptz, OUT failed_at timestamptz, OUT error text) RETURNS SETOF record
  LANGUAGE sql AS $$SELECT oid, NULL::timestamptz, now(), 'broken' FROM pg_database WHERE datname = current_database()$$;
SELECT regexp_replace(replace(health('databases'), current_database(), 'here'), 'failed at [^:]*:[0-9:]{5}[^:]*', 'failed at some time');
ROLLBACK;
SELECT health_level('databases');

-- growth: more than is free, and within a day; unknown what is free; next to nothing is free, whatever the rate
SELECT health_level('growth');
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.free_space() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2;
SELECT health('growth');
ROLLBACK;
-- growth: the rate. What comes in 10 minutes is six times as much in an hour, also with an old outcome on its first page; what was
-- imported with old moments counts for nothing; and a burst late in an old segment is seen
CREATE FUNCTION health_rate(moments text, relation text DEFAULT NULL) RETURNS TABLE (rate text, lately text) LANGUAGE plpgsql AS $$
BEGIN
  TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2, idempotence.outcome_long;
  UPDATE idempotence.segment SET opened_at = now() - CASE WHEN current THEN interval '10 days' ELSE '40 days' END;
  EXECUTE format('INSERT INTO idempotence.%s (digest, session, key, class, recorded_by, recorded_at, expires_at)
    SELECT gen_random_uuid(), s.id, ''k'' || n, ''s'', 10, now() - (%s), now() + interval ''365 days'' FROM idempotence.session s, generate_series(1, 8000) n
    WHERE s.name = ''health'' ORDER BY n', COALESCE(relation, (SELECT 'outcome_' || number FROM idempotence.segment WHERE current)), moments);
  -- in MB an hour for each MB that there is
  RETURN QUERY SELECT round(g.rate * 3600 / g.present)::text, round(g.lately * 3600 / g.present)::text FROM idempotence.growth g;
END $$;
BEGIN;
SELECT health_rate($$(8000 - n) * interval '75 ms'$$);
ROLLBACK;
BEGIN;
SELECT health_rate($$CASE n WHEN 1 THEN '9 days' ELSE (8000 - n) * interval '75 ms' END$$);
ROLLBACK;
BEGIN;
SELECT health_rate($$interval '60 days'$$);
ROLLBACK;
BEGIN;
SELECT health_rate($$CASE WHEN n < 4000 THEN (8000 - n) * interval '75 s' ELSE (8000 - n) * interval '150 ms' END$$);
ROLLBACK;
-- growth, retention: outcomes that outlive the segments count, for as long as they live; imported ones are only told of
BEGIN;
SELECT health_rate($$(8000 - n) * interval '75 ms'$$, 'outcome_long');
SELECT round(needed / present / 24 / 365) FROM idempotence.growth;
SELECT health('retention');
ROLLBACK;
BEGIN;
SELECT health_rate($$interval '60 days'$$, 'outcome_long');
SELECT health('retention');
ROLLBACK;
BEGIN;
UPDATE idempotence.segment SET keep_us = 2000000000000000000 WHERE current;
CREATE OR REPLACE FUNCTION idempotence.retention() RETURNS interval LANGUAGE sql AS $$SELECT interval '20000000 days'$$;
SELECT health('growth');
CREATE OR REPLACE FUNCTION idempotence.free_space() RETURNS bigint LANGUAGE sql AS 'SELECT 1000::bigint';
SELECT health_level('growth');
CREATE OR REPLACE FUNCTION idempotence.free_space() RETURNS bigint LANGUAGE sql AS 'SELECT NULL::bigint';
SELECT health('growth');
ROLLBACK;

-- retention: nothing tells yet, and most live longer
BEGIN;
UPDATE idempotence.segment SET keep_us = 9223372036854775807 WHERE current;
SELECT health('retention');
UPDATE idempotence.segment SET keep_us = (30 * 86400 + 360) * 1000000::bigint WHERE current;
SELECT health('retention');
ROLLBACK;
SELECT health('retention');

-- every row was seen both ways
SELECT name FROM idempotence.health h, LATERAL (SELECT last_value - 1 AS bits FROM pg_sequences s WHERE s.sequencename = 'health seen ' || h.name) s
WHERE bits IS DISTINCT FROM 3 AND name NOT IN ('node', 'size')    -- they tell, and warn of nothing
  AND name NOT IN ('restarts', 'waiters', 'standby', 'deadlocks');    -- in the cluster test health

-- one row that fails takes no other with it
BEGIN;
CREATE OR REPLACE FUNCTION idempotence.deadlocks() RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = 'AB001'; END$$;
SELECT name, level, detail, hint FROM idempotence.health WHERE level > 0;
ROLLBACK;
BEGIN;
ALTER TABLE idempotence.lease RENAME TO lost;
SELECT detail FROM idempotence.health WHERE name = 'growth';
SELECT count(*) > 10 FROM idempotence.health WHERE level = 0;
SELECT idem_ready();
ROLLBACK;

-- where every request is refused it is critical
BEGIN;
UPDATE pg_extension SET extversion = '1.0.0' WHERE extname = 'idempotence';
ALTER TABLE idempotence.audit SET (fillfactor = 99);
SELECT level, regexp_replace(detail, 'version [0-9.]+', 'version N', 'g'), hint FROM idempotence.health WHERE name = 'growth';
ROLLBACK;

-- idem_ready: for users and monitors
SET ROLE regress_health;
SELECT idem_ready();
SET ROLE regress_health_monitor;
SELECT idem_ready();
SELECT count(*) > 20 FROM idempotence.health;
SET ROLE regress_health_nobody;
SELECT regress_message('SELECT idem_ready()');
RESET ROLE;
-- where nothing can be written
BEGIN READ ONLY;
SELECT idem_ready();
ROLLBACK;
-- where the tables are those of another version, or were changed, or a restore is not complete
BEGIN;
UPDATE pg_extension SET extversion = '1.0.0' WHERE extname = 'idempotence';
SELECT idem_ready();
ROLLBACK;
BEGIN;
ALTER TABLE idempotence.reply ADD COLUMN more text;
SELECT idem_ready();
ROLLBACK;
-- a segment matters from when the ring comes to it
BEGIN;
TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2;
UPDATE idempotence.segment SET closed_at = now(), opening = false WHERE NOT current;
SELECT format('ALTER TABLE idempotence.outcome_%s ADD COLUMN more text', (number + 1) % 3) FROM idempotence.segment WHERE current \gexec
SELECT idem_ready();
SELECT format('ALTER TABLE idempotence.outcome_%s ADD COLUMN more text', number) FROM idempotence.segment WHERE current \gexec
SELECT idem_ready();
ROLLBACK;
BEGIN;
INSERT INTO idempotence.secret SELECT * FROM idempotence.secret WHERE false;
SELECT idem_ready();
ROLLBACK;
SELECT idem_ready();

SELECT format('DROP SEQUENCE %I', sequencename) FROM pg_sequences WHERE sequencename LIKE 'health seen %' ORDER BY sequencename \gexec
DROP FUNCTION health_rate;
DROP FUNCTION health_level;
DROP FUNCTION health;
DROP PROCEDURE health_set;
DROP TABLE health_setting;
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'health%';
SELECT idem_revoke('regress_health'), idem_revoke('regress_health_monitor');
TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2, idempotence.checkpoint, idempotence.lease, idempotence.audit;
DELETE FROM idempotence.session WHERE owner = 'regress_health'::regrole;
DROP ROLE regress_health, regress_health_monitor, regress_health_nobody;
