-- Goal: a role that may use the edition, and controls its search_path, its settings, temporary objects and its own schemas,
-- gets nothing of another role's sessions, and executes nothing as another.
-- Method: what an attacker would try, each with the answer that refuses it. mallory attacks what alice has.
\set VERBOSITY sqlstate
\pset format unaligned
\pset tuples_only on
SET ROLE managed_alice;
SELECT idem_create_session('attack', ttl => '1 hour');
SELECT status, response FROM idem_run('attack', 'secret', $$SELECT '"the secret"'::jsonb$$);
SELECT status FROM idem_begin('attack', 'leased', lease => '1 hour');
SET ROLE managed_mallory;
-- nothing of it is seen, or can be used
SELECT count(*) FROM idempotence.outcomes;
SELECT count(*) FROM idempotence.kept;
SELECT count(*) FROM idempotence.own_pending;
SELECT count(*) FROM idempotence.sessions;
SELECT name, id, proof FROM idempotence.own_session;
SELECT idem_lookup('attack', 'secret');
SELECT idem_begin('attack', 'secret');
SELECT idem_settle('attack', 'secret');
SELECT idem_forget('attack', 'secret', 'because');
SELECT idem_drop_session('attack');
SELECT idem_alter_session('attack', owner => 'managed_mallory');
SELECT idem_create_session('attack');
SELECT idem_record('attack', 'leased', token => 1);
SELECT idem_record('attack', 'nothing', token => 1);
-- the door says who asks, whatever is written to it
UPDATE idempotence.door SET who = 'managed_alice', act = 'begin', session = 'attack', request = 'secret';
UPDATE idempotence.door SET ticket = NULL;
UPDATE idempotence.door SET act = 'begin', session = 'attack', request = 'secret' RETURNING ticket;
INSERT INTO idempotence.door (act) VALUES ('begin');
SELECT who FROM idempotence.door;
BEGIN;
LOCK TABLE idempotence.door IN ACCESS SHARE MODE;
ROLLBACK;
BEGIN;
LOCK TABLE idempotence.outcomes IN ACCESS EXCLUSIVE MODE;
ROLLBACK;
-- what the door calls does nothing for whoever calls it himself
SELECT idempotence._begin_request('managed_alice', 'attack', 'secret', NULL, NULL, NULL, NULL, 'begin');
SELECT idempotence._find(1, 'secret', now());
SELECT idempotence._session_of('managed_alice', 'attack', false, '');
SELECT idempotence.sweep_step();
SELECT idempotence._sweep_step();
CALL idempotence.idem_sweep();
SELECT * FROM idempotence.session;
SELECT * FROM idempotence.audit;
SELECT nextval('idempotence.ring');
TRUNCATE idempotence.outcome_0;
INSERT INTO idempotence.swept VALUES (now());
UPDATE idempotence.session SET owner = 'managed_mallory';
CREATE FUNCTION idempotence._move(who name, call idempotence.door) RETURNS idempotence.door LANGUAGE plpgsql AS 'BEGIN RETURN call; END';
-- its trigger believes only the door
CREATE VIEW managed_mallory.door AS SELECT 'managed_alice'::name AS who, 'begin'::text AS act, 'attack'::text AS session, 'secret'::text AS request;
CREATE TRIGGER enter INSTEAD OF UPDATE ON managed_mallory.door FOR EACH ROW EXECUTE FUNCTION idempotence._enter();
CREATE TABLE managed_mallory.outcome (class "char");
CREATE TRIGGER at_commit AFTER INSERT ON managed_mallory.outcome FOR EACH ROW EXECUTE FUNCTION idempotence._at_commit();
-- operators, functions, types and tables of his own, before pg_catalog, and temporary ones: none is executed as the owner
CREATE FUNCTION managed_mallory.trap() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'executed as %', CURRENT_USER USING ERRCODE = CASE WHEN CURRENT_USER = 'managed_mallory' THEN 'TR001' ELSE 'TR666' END;
END $$;
CREATE FUNCTION managed_mallory.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN true; END $$;
CREATE OPERATOR managed_mallory.= (LEFTARG = text, RIGHTARG = text, FUNCTION = managed_mallory.eq);
CREATE FUNCTION managed_mallory.ge(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN true; END $$;
CREATE OPERATOR managed_mallory.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = managed_mallory.ge);
CREATE FUNCTION managed_mallory.current_setting(text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN ''; END $$;
CREATE FUNCTION managed_mallory.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN now(); END $$;
CREATE FUNCTION managed_mallory.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN ''; END $$;
CREATE FUNCTION managed_mallory.pg_has_role(name, oid, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM managed_mallory.trap(); RETURN true; END $$;
CREATE DOMAIN managed_mallory.timestamptz AS pg_catalog.timestamptz;
CREATE TEMP TABLE session (name text, id integer);
CREATE TEMP TABLE pg_roles (oid oid, rolname name);
SET search_path = managed_mallory, pg_temp, pg_catalog, idempotence;
SELECT idempotence.idem_create_session('mallory', ttl => '1 hour');
BEGIN;
SELECT status FROM idempotence.idem_begin('mallory', 'k', payload => '{"a": 1.0}');
SELECT idempotence.idem_record('mallory', 'k', '1') IS NOT NULL;
COMMIT;
SELECT status, response FROM idempotence.idem_begin('mallory', 'k', payload => '{"a": 1}');
SELECT status FROM idempotence.idem_lookup('mallory', 'k');
SELECT status FROM idempotence.idem_begin('mallory', 'l', lease => '1 hour');
SELECT status FROM idempotence.idem_begin('mallory', 'l', wait => '10 ms');
SELECT idempotence.idem_begin('attack', 'secret');
RESET search_path;
-- what idem_run executes is executed as the caller
SELECT status, response FROM idem_run('mallory', 'who', 'SELECT to_jsonb(CURRENT_USER)');
-- settings: none lifts a limit or a check
SET idempotence.max_response = '1GB';
SET idempotence.max_payload = '1GB';
SET check_function_bodies = off;
DO $$ BEGIN
  -- PostgreSQL 19 has standard string literals only
  IF current_setting('server_version_num')::integer < 190000 THEN
    PERFORM set_config('standard_conforming_strings', 'off', false), set_config('escape_string_warning', 'off', false);
  END IF;
END $$;
SET transform_null_equals = on;
SET IntervalStyle = 'sql_standard';
SET DateStyle = 'German';
SET extra_float_digits = 0;
SET row_security = off;
SELECT status FROM idem_run('mallory', 'large', 'SELECT to_jsonb(repeat(''x'', 2000000))');
SELECT status FROM idem_begin('mallory', 'large', payload => to_jsonb(repeat('x', 2000000)));
SELECT status FROM idem_begin('mallory', 'k', payload => '{"a": 1.0}');
SELECT status FROM idem_begin('mallory', 'k', payload => '{"a": "1.0"}');
SELECT idem_begin('attack', 'secret');
SET session_replication_role = replica;
RESET ALL;
-- an open row is not committed, whatever is made of constraints
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT status FROM idem_begin('mallory', 'open');
COMMIT;
BEGIN;
SELECT status FROM idem_begin('mallory', 'open');
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT status FROM idem_begin('mallory', 'open');
SELECT idem_record('mallory', 'open') IS NOT NULL;
COMMIT;
SELECT status FROM idem_lookup('mallory', 'open');
-- what is undone by a savepoint is open again, and is not committed or prepared
BEGIN;
SELECT status FROM idem_begin('mallory', 'undone');
SAVEPOINT before_record;
SELECT idem_record('mallory', 'undone') IS NOT NULL;
ROLLBACK TO before_record;
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
BEGIN;
SELECT status FROM idem_begin('mallory', 'undone');
SAVEPOINT before_record;
SELECT idem_record('mallory', 'undone') IS NOT NULL;
ROLLBACK TO before_record;
PREPARE TRANSACTION 'managed_mallory';
BEGIN;
SAVEPOINT before_begin;
SELECT status FROM idem_begin('mallory', 'undone');
ROLLBACK TO before_begin;
SELECT idem_record('mallory', 'undone');
ROLLBACK;
-- the lock of a request is the transaction's: neither its holder nor anybody else lets go of it before the end
BEGIN;
SELECT status FROM idem_begin('mallory', 'locked');
SELECT pg_advisory_unlock_all();
DISCARD ALL;
ROLLBACK;
BEGIN;
SELECT status FROM idem_begin('mallory', 'locked');
SELECT pg_advisory_unlock_all();
DISCARD PLANS;
DISCARD TEMP;
RESET ALL;
SET search_path = public, idempotence;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND mode = 'ExclusiveLock' AND granted;
SELECT idem_release('mallory', 'locked');
COMMIT;
-- a statement that is cancelled at work leaves nothing
SET statement_timeout = '1 ms';
SELECT status FROM idem_run('mallory', 'slow', 'SELECT 1 FROM pg_sleep(1)');
RESET statement_timeout;
SELECT status FROM idem_lookup('mallory', 'slow');
-- a role that was changed in the transaction is who asks then
BEGIN;
SELECT status FROM idem_begin('mallory', 'changed');
RESET ROLE;
SET ROLE managed_alice;
SELECT status FROM idem_begin('mallory', 'changed too');
ROLLBACK;
SET ROLE managed_mallory;
-- nothing is hung onto what is the owner's, and nothing is copied into the door
COPY idempotence.door TO stdout;
CREATE RULE trap AS ON UPDATE TO idempotence.door DO INSTEAD NOTHING;
CREATE RULE trap AS ON SELECT TO idempotence.outcome DO INSTEAD SELECT NULL;
CREATE TRIGGER trap INSTEAD OF UPDATE ON idempotence.door FOR EACH ROW EXECUTE FUNCTION idempotence._enter();
CREATE OR REPLACE FUNCTION idempotence._enter() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
ALTER TABLE idempotence.outcome DISABLE TRIGGER unrecorded;
-- a lock whose number can be computed holds up neither the sweep nor who changes a session
SELECT pg_advisory_lock(idempotence._lock_of('00000000-0000-0000-0000-000000000000', of)) FROM unnest('{"",attack}'::text[]) of;
\! psql -XAtq -d attack -c 'CALL idempotence.idem_sweep()' -c 'SELECT count(*) FROM idempotence.swept'
\! psql -XAtq -d attack -c 'SET ROLE managed_alice' -c 'SET idempotence.wait = 0' -c "SELECT idem_alter_session('attack', ttl => '2 hours')"
SELECT pg_advisory_unlock_all();
SELECT pg_try_advisory_lock(idempotence._lock_of(secret, 'attack')) FROM idempotence.settings;
-- a function of another's runs with the rights of that one, and in it of nobody else: alice calls what mallory has made
CREATE FUNCTION managed_mallory.steal() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN (idempotence.idem_lookup('attack', 'secret')).response; END $$;
SET ROLE managed_alice;
SELECT managed_mallory.steal();
-- lent, it may be used, until it is taken back; and never altered
SELECT idem_alter_session('attack', usable_by => 'managed_mallory');
SET ROLE managed_mallory;
SELECT response FROM idem_lookup('attack', 'secret');
SELECT idem_drop_session('attack');
SELECT idem_forget('attack', 'secret', 'because');
-- what a borrower has noted down is of no use to it afterwards: neither a proof, which holds in its transaction only and for its own
-- name only, nor the number of a lock. No column shows the secret.
CREATE TABLE managed_mallory.noted AS SELECT s.*, NULL::bigint AS lock FROM idempotence.own_session s WHERE s.name = 'attack';
SELECT count(*) FROM information_schema.columns c WHERE c.table_schema = 'idempotence' AND c.column_name LIKE '%secret%';
SELECT idempotence._look_up(n.id, n.who, n.proof, 'secret') FROM managed_mallory.noted n;
BEGIN;
SELECT (l.o).response FROM idempotence.own_session s, idempotence._look_up(s.id, s.who, s.proof, 'secret') l WHERE s.name = 'attack';
SELECT idempotence._look_up(s.id, 'managed_alice', s.proof, 'secret') FROM idempotence.own_session s WHERE s.name = 'attack';
ROLLBACK;
\! psql -XAtq -d attack -c 'CALL idempotence.idem_sweep()' -c 'CALL idempotence.idem_sweep()'
BEGIN;
SELECT status FROM idem_begin('attack', 'watched');
UPDATE managed_mallory.noted SET lock = (SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.mode = 'ExclusiveLock' AND l.objsubid = 1);
SELECT idem_release('attack', 'watched');
COMMIT;
SET ROLE managed_alice;
SELECT idem_alter_session('attack', usable_by => '-');
RESET ROLE;
\! psql -XAtq -d attack -c 'CALL idempotence.idem_sweep()' -c 'CALL idempotence.idem_sweep()'
SELECT count(*) FROM idempotence.session WHERE former_secret IS NOT NULL;
SET ROLE managed_mallory;
SELECT response FROM idem_lookup('attack', 'secret');
SELECT idempotence._look_up(n.id, n.who, n.proof, 'secret') FROM managed_mallory.noted n;
SELECT idempotence._look_up(n.id, n.who, idempotence._proof('00000000-0000-0000-0000-000000000000', n.id, n.who), 'secret') FROM managed_mallory.noted n;
BEGIN;
SELECT pg_advisory_xact_lock(n.lock) FROM managed_mallory.noted n;
\! psql -XAtq -d attack -c 'SET ROLE managed_alice' -c "BEGIN; SELECT status FROM idem_begin('attack', 'watched', wait => '0'); ROLLBACK"
ROLLBACK;
-- a loan that is revoked within a transaction of the borrower ends there, too
RESET ROLE;
SELECT idem_alter_session('attack', usable_by => 'managed_mallory');
SET ROLE managed_mallory;
BEGIN;
CREATE TEMP TABLE within AS SELECT * FROM idempotence.own_session WHERE name = 'attack';
\! psql -XAtq -d attack -c "SELECT idem_alter_session('attack', usable_by => '-')"
SELECT idempotence._look_up(w.id, w.who, w.proof, 'secret') FROM within w;
ROLLBACK;
RESET ROLE;
-- what a function of another's has begun, its caller does not finish
CREATE FUNCTION public.begun(k text) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = idempotence AS $$ SELECT (idem_begin('attack', k)).status $$;
ALTER FUNCTION public.begun OWNER TO managed_alice;
SET ROLE managed_mallory;
BEGIN;
SELECT public.begun('begun');
SAVEPOINT a;
SELECT idem_record('attack', 'begun', '"forged"');
ROLLBACK TO a;
SELECT idem_release('attack', 'begun');
ROLLBACK TO a;
SELECT idem_checkpoint('attack', 'begun', 'forged');
ROLLBACK;
-- no plan looks at a condition of his before it is known which rows are his
CREATE FUNCTION managed_mallory.below(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE line text; n bigint := 0; below bigint := 0; BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
    n := n + 1;
    IF n > 3 AND line LIKE '%>=%bbb%' THEN below := below + 1; END IF;
  END LOOP;
  RETURN below; END $$;
SELECT view, managed_mallory.below(format('SELECT FROM idempotence.%s WHERE %s', view, condition)) FROM (VALUES ('outcomes', $$request >= 'bbb'$$), ('kept', $$request >= 'bbb'$$),
  ('own_session', $$proof >= 'bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb'$$), ('sessions', $$session >= 'bbb'$$), ('own_pending', $$request >= 'bbb'$$), ('unfinished', $$request >= 'bbb'$$)) v (view, condition);
SELECT idempotence._look_up(1, 'managed_alice', '00000000-0000-0000-0000-000000000000', 'secret');
SELECT idempotence._look_up(1, 'managed_alice', NULL, 'secret');
-- shut out again, what he has made while he was let in is of no use to him, nor to anybody
CREATE FUNCTION managed_mallory.enter() RETURNS text BEGIN ATOMIC UPDATE idempotence.door SET act = 'begin', session = 'mallory', request = 'shut out' RETURNING (ticket).status; END;
CREATE VIEW managed_mallory.seen AS SELECT * FROM idempotence.sessions;
SELECT count(*) > 0 FROM managed_mallory.seen;
RESET ROLE;
SELECT idem_revoke('managed_mallory');
SET ROLE managed_mallory;
SELECT managed_mallory.enter();
SELECT count(*) > 0 FROM managed_mallory.seen;
RESET ROLE;
-- who has no USAGE on the schema can do nothing
SET ROLE managed_nobody;
SELECT idempotence.idem_begin('attack', 'secret');
SELECT * FROM idempotence.outcomes;
RESET ROLE;
