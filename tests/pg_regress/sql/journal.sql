-- Goal: a session whose requests are kept in a table of its owner keeps all promises, and what is wrong with such a table
-- is said.
-- Method: a journal for each type of tenant, every step on it, and the table as a user sees it; then tables that do not fit.
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA kept;
SELECT idem_create_journal('kept.payment_request');
SELECT idem_create_session('journaled', ttl => '1 hour', journal => 'kept.payment_request');

-- One request through every state.
SELECT regress_show(idem_lookup('journaled', 'order-1', stream => 'anna'));
BEGIN;
SELECT regress_claims();
SELECT status, replayed FROM idem_begin('journaled', 'order-1', '{"amount": 10}', stream => 'anna');
SELECT tenant, session, request, status, recorded_at IS NULL, expires_at > now() FROM kept.payment_request;
SELECT status FROM idem_lookup('journaled', 'order-1', stream => 'anna');
SELECT regress_message($$ SELECT idem_begin('journaled', 'order-1', stream => 'anna') $$);
SELECT idem_record('journaled', 'order-1', '{"id": 1}', stream => 'anna') = (SELECT expires_at FROM kept.payment_request);
COMMIT;
SELECT tenant, session, request, status, response, fingerprint IS NOT NULL, recorded_by = current_user, token, attempt, point,
       expires_at - recorded_at BETWEEN interval '1 hour' AND interval '1 hour 1 minute'
FROM kept.payment_request;
SELECT status, replayed, response FROM idem_begin('journaled', 'order-1', '{"amount": 10.0}', stream => 'anna');
SELECT status, replayed, response FROM idem_lookup('journaled', 'order-1', stream => 'anna');
SELECT regress_message($$ SELECT idem_begin('journaled', 'order-1', '{"amount": 11}', stream => 'anna') $$);
SELECT regress_message($$ SELECT idem_claim('journaled', 'order-1', stream => 'anna') $$);
SELECT status FROM idem_settle('journaled', 'order-1', stream => 'anna');

-- A command is run once for a tenant.
SELECT status, replayed, response FROM idem_run('journaled', 'order-7', 'SELECT 42 AS n', stream => 'anna');
SELECT status, replayed, response FROM idem_run('journaled', 'order-7', 'SELECT 43 AS n', stream => 'anna');
SELECT status, replayed, response FROM idem_run('journaled', 'order-7', 'SELECT 1 / 0', stream => 'bert', on_error => 'record');
SELECT tenant, status, response ->> 'sqlstate' FROM kept.payment_request WHERE request = 'order-7' ORDER BY tenant;
DELETE FROM kept.payment_request WHERE request = 'order-7';

-- Another tenant's request of the same key is another request; without a stream it is that of the tenant ''.
SELECT status FROM idem_begin('journaled', 'order-1', lease => '1 hour', stream => 'bert');
SELECT status FROM idem_settle('journaled', 'order-1', stream => '');
SELECT status, replayed FROM idem_begin('journaled', 'order-1');
SELECT tenant, status, leased_until > now() AS leased, attempt FROM kept.payment_request ORDER BY tenant;

-- Leases: extended, checkpointed, taken over, recorded with the token, and again.
SELECT regress_take('bert', ROW('started', false, NULL, token, NULL, NULL, NULL, NULL, NULL)::idem_ticket) FROM kept.payment_request WHERE tenant = 'bert';
SELECT idem_extend('journaled', 'order-1', regress_token('bert'), '2 hours', stream => 'bert') > now() + interval '1 hour';
SELECT idem_checkpoint('journaled', 'order-1', 'charged', '{"n": 1}', token => regress_token('bert'), stream => 'bert');
SELECT status, point, state, attempt FROM idem_lookup('journaled', 'order-1', stream => 'bert');
UPDATE kept.payment_request SET leased_until = now() - interval '1 second' WHERE tenant = 'bert';
SELECT status, point, state, attempt, token IS NULL FROM idem_begin('journaled', 'order-1', stream => 'bert', lease => '1 hour');
SELECT regress_message($$ SELECT idem_record('journaled', 'order-1', '1', token => regress_token('bert'), stream => 'bert') $$);
SELECT regress_message($$ SELECT idem_release('journaled', 'order-1', token => 1, stream => 'bert') $$);
SELECT idem_force_release('journaled', 'order-1', 'a test', stream => 'bert', live => true);
SELECT regress_take('bert', idem_begin('journaled', 'order-1', stream => 'bert', lease => '1 hour'));
SELECT idem_record('journaled', 'order-1', '"done"', token => regress_token('bert'), stream => 'bert') IS NOT NULL;
SELECT idem_record('journaled', 'order-1', '"done"', token => regress_token('bert'), stream => 'bert') IS NOT NULL;
SELECT status, response, token IS NOT NULL, attempt, leased_until, holder, point FROM kept.payment_request WHERE tenant = 'bert';
SELECT idem_redact('journaled', 'order-1', 'a test', stream => 'bert');
SELECT status, replayed, response FROM idem_begin('journaled', 'order-1', stream => 'bert');

-- What is released, rolled back or not recorded leaves nothing.
BEGIN;
SELECT status FROM idem_begin('journaled', 'order-2', stream => 'anna');
SELECT idem_release('journaled', 'order-2', stream => 'anna');
COMMIT;
BEGIN;
SAVEPOINT a;
SELECT status FROM idem_begin('journaled', 'order-2', stream => 'anna');
ROLLBACK TO a;
SELECT status FROM idem_begin('journaled', 'order-2', stream => 'anna');
COMMIT;
SELECT count(*) FROM kept.payment_request WHERE request = 'order-2';

-- A lease released with its token goes, and a checkpoint stays.
SELECT regress_take('cleo', idem_begin('journaled', 'order-3', stream => 'cleo', lease => '1 hour'));
SELECT idem_release('journaled', 'order-3', token => regress_token('cleo'), stream => 'cleo');
SELECT count(*) FROM kept.payment_request WHERE tenant = 'cleo';
BEGIN;
SELECT status FROM idem_begin('journaled', 'order-3', stream => 'cleo');
SELECT idem_checkpoint('journaled', 'order-3', 'half', stream => 'cleo');
COMMIT;
SELECT status, point FROM idem_lookup('journaled', 'order-3', stream => 'cleo');
BEGIN;
SELECT status, point, attempt FROM idem_begin('journaled', 'order-3', stream => 'cleo');
SELECT idem_release('journaled', 'order-3', stream => 'cleo');
COMMIT;
SELECT status, point FROM idem_lookup('journaled', 'order-3', stream => 'cleo');

-- Expired: executed again, and deleted by the sweep.
UPDATE kept.payment_request SET expires_at = now() - interval '1 hour', leased_until = NULL;
SELECT status FROM idem_lookup('journaled', 'order-1', stream => 'anna');
BEGIN;
SELECT status, replayed FROM idem_begin('journaled', 'order-1', '{"amount": 11}', stream => 'anna');
SELECT idem_record('journaled', 'order-1', '2', stream => 'anna') > now();
COMMIT;
CALL idem_sweep();
SELECT tenant, request, response FROM kept.payment_request;

-- Explained, counted, shown.
SELECT e.told -> 'outcome' ->> 'status', e.told ->> 'stream', e.told ->> 'what_to_do_next' FROM (SELECT idem_explain('journaled', 'order-1', stream => 'anna')) e (told);
SELECT session, kind, journal FROM idempotence.sessions WHERE session = 'journaled';

-- Tenants of other types, by any text of the same value; the column has the owner's name.
SELECT idem_create_journal('kept.by_number', 'account no', 'int'), idem_create_journal('kept.by_uuid', 'id', 'uuid');
SELECT idem_create_session('by number', journal => 'kept.by_number'), idem_create_session('by uuid', journal => 'kept.by_uuid');
BEGIN;
SELECT status FROM idem_begin('by number', 'a', stream => '007');
SELECT regress_message($$ SELECT idem_begin('by number', 'a', stream => '7') $$);
SELECT idem_record('by number', 'a', stream => '+7') IS NOT NULL;
COMMIT;
SELECT "account no", request, status FROM kept.by_number;
SELECT status FROM idem_settle('by uuid', 'a', stream => 'F47AC10B-58CC-4372-A567-0E02B2C3D479');
SELECT status FROM idem_lookup('by uuid', 'a', stream => 'f47ac10b58cc4372a5670e02b2c3d479');
-- What this transaction has begun is found by any text of the tenant, though its session is gone for others.
BEGIN;
SELECT status FROM idem_begin('by number', 'b', stream => '007');
SELECT idem_drop_session('by number');
SELECT idem_record('by number', 'b', stream => '07') IS NOT NULL;
ROLLBACK;
SELECT regress_error($$ SELECT idem_begin('by number', 'a') $$);
SELECT regress_error($$ SELECT idem_begin('by number', 'a', stream => 'seven') $$);
SELECT regress_error($$ SELECT idem_begin('by uuid', 'a', stream => '7') $$);
SELECT regress_error($$ SELECT idem_begin('by number', 'a', stream => '7', ack => 1) $$);

-- Keys that tell their age, in the journal too.
SELECT idem_create_session('aged', ttl => '1 hour', time_keys => true, journal => 'kept.payment_request');
SELECT left(regress_message(format($$ SELECT idem_begin('aged', %L) $$, regress_uuid7(now() - interval '2 hours'))), 14);
SELECT status FROM idem_settle('aged', upper(regress_uuid7(now())));
SELECT count(*) FROM kept.payment_request WHERE session = 'aged' AND request = lower(request);

-- Forgotten by an admin, whatever it is.
SELECT idem_forget('by uuid', 'a', 'a test', stream => 'f47ac10b-58cc-4372-a567-0e02b2c3d479'), idem_forget('by uuid', 'a', 'a test', stream => 'f47ac10b-58cc-4372-a567-0e02b2c3d479');
SELECT status FROM idem_begin('by uuid', 'a', stream => 'f47ac10b-58cc-4372-a567-0e02b2c3d479', lease => '1 hour');
SELECT regress_message($$ SELECT idem_forget('by uuid', 'a', 'a test', stream => 'f47ac10b-58cc-4372-a567-0e02b2c3d479') $$);
SELECT request, found FROM idempotence.audit WHERE session = 'by uuid';

-- Made again, and what never changes.
SELECT idem_create_journal('kept.payment_request');
SELECT idem_create_session('journaled', ttl => '1 hour', journal => 'kept.payment_request');
SELECT regress_error($$ SELECT idem_create_session('journaled', ttl => '1 hour') $$);
SELECT regress_error($$ SELECT idem_create_journal('kept.payment_request', 'other') $$);
SELECT idem_drop_session('journaled');
SELECT regress_message($$ SELECT idem_create_session('journaled', ttl => '1 hour') $$);
SELECT regress_message($$ SELECT idem_create_session('journaled', ttl => '1 hour', journal => 'kept.by_number') $$);
SELECT idem_create_session('journaled', ttl => '1 hour', journal => 'kept.payment_request');
SELECT status FROM idem_begin('journaled', 'order-1', stream => 'anna');

-- Not for journals.
SELECT regress_error($$ SELECT idem_create_session('in', inbox => true, journal => 'kept.payment_request') $$);
SELECT regress_error($$ SELECT idem_forget_prefix('journaled', 'order', 'a test') $$);
SELECT regress_message($$ SELECT idem_redact_prefix('journaled', 'order', 'a test') $$);
SELECT regress_message($$ SELECT * FROM idem_import('journaled', 'SELECT 1 AS key', 'a test') $$);
SELECT regress_message($$ SELECT * FROM idem_outcomes('journaled') $$);
SELECT regress_message($$ SELECT * FROM idem_export('journaled', 'a test') $$);

-- Tables that are no journal.
SELECT regress_error($$ SELECT idem_create_session('none', journal => 'kept.nothing') $$);
SELECT regress_error($$ SELECT idem_create_session('none', journal => 'a.b.c.d') $$);
SELECT regress_error($$ SELECT idem_create_journal('kept.x', 'session') $$);
SELECT regress_error($$ SELECT idem_create_journal('kept.x', 'tenant', 'numeric') $$);
SELECT regress_error($$ SELECT idem_create_journal(NULL) $$);
CREATE VIEW kept.seen AS TABLE kept.payment_request;
SELECT regress_error($$ SELECT idem_create_session('none', journal => 'kept.seen') $$);
CREATE TABLE kept.unfit (LIKE kept.payment_request);
SELECT regress_error($$ SELECT idem_create_session('none', journal => 'kept.unfit') $$);
CREATE UNIQUE INDEX ON kept.unfit (tenant, request, session);
CREATE UNIQUE INDEX ON kept.unfit (tenant, session, request) WHERE tenant <> '';
SELECT regress_message($$ SELECT idem_create_session('none', journal => 'kept.unfit') $$);
ALTER TABLE kept.unfit ADD UNIQUE (tenant, session, request) DEFERRABLE;
SELECT regress_message($$ SELECT idem_create_session('none', journal => 'kept.unfit') $$);
CREATE UNIQUE INDEX ON kept.unfit (tenant, session, request) INCLUDE (status);
SELECT idem_create_session('none', journal => 'kept.unfit');
ALTER TABLE kept.unfit ALTER token TYPE integer;
SELECT regress_error($$ SELECT idem_begin('none', 'a') $$);
ALTER TABLE kept.unfit DROP token;
SELECT regress_error($$ SELECT idem_begin('none', 'a') $$);

-- A claim is a row of which nothing else is set, so that no column is set by itself.
CREATE TABLE kept.preset (LIKE kept.payment_request INCLUDING ALL);
ALTER TABLE kept.preset ALTER status SET DEFAULT 'succeeded';
SELECT regress_error($$ SELECT idem_create_session('preset', journal => 'kept.preset') $$);
ALTER TABLE kept.preset ALTER status DROP DEFAULT;
SELECT idem_create_session('preset', journal => 'kept.preset');
ALTER TABLE kept.preset ALTER attempt SET NOT NULL, ALTER attempt ADD GENERATED ALWAYS AS IDENTITY;
SELECT regress_message($$ SELECT idem_begin('preset', 'a') $$);

-- A journal that goes away under its session says so, and comes back with all that it has kept.
ALTER TABLE kept.payment_request RENAME TO hidden;
SELECT regress_error($$ SELECT idem_begin('journaled', 'order-1', stream => 'anna') $$);
CALL idem_sweep();
ALTER TABLE kept.hidden RENAME TO payment_request;
SELECT status, replayed FROM idem_begin('journaled', 'order-1', stream => 'anna');

-- A column, an index and a trigger of the owner's; a trigger that keeps rows back, and a policy that hides them.
ALTER TABLE kept.payment_request ADD note text DEFAULT 'mine';
CREATE INDEX ON kept.payment_request (lower(request));
SELECT status FROM idem_settle('journaled', 'order-4', stream => 'anna');
SELECT note FROM kept.payment_request WHERE request = 'order-4';
CREATE FUNCTION kept.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER nothing BEFORE INSERT ON kept.payment_request FOR EACH ROW EXECUTE FUNCTION kept.nothing();
SELECT regress_error($$ SELECT idem_begin('journaled', 'order-5', stream => 'anna') $$);
DROP TRIGGER nothing ON kept.payment_request;
CREATE TRIGGER nothing BEFORE UPDATE ON kept.payment_request FOR EACH ROW EXECUTE FUNCTION kept.nothing();
BEGIN;
SELECT status FROM idem_begin('journaled', 'order-5', stream => 'anna');
SELECT regress_message($$ SELECT idem_record('journaled', 'order-5', stream => 'anna') $$);
ROLLBACK;
DROP TRIGGER nothing ON kept.payment_request;

-- What a trigger does to lock_timeout ends with the trigger's transaction, and so does what a bounded wait does.
CREATE FUNCTION kept.hurry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_catalog.set_config('lock_timeout', '7s', true);
  RETURN NEW;
END
$$;
CREATE TRIGGER hurry BEFORE INSERT ON kept.payment_request FOR EACH ROW EXECUTE FUNCTION kept.hurry();
SELECT status FROM idem_lookup('journaled', 'order-5', stream => 'anna');
SHOW lock_timeout;
SELECT status FROM idem_settle('journaled', 'order-5', stream => 'anna');
SHOW lock_timeout;
DROP TRIGGER hurry ON kept.payment_request;

-- The rights of the caller count: to the session, and to the table.
CREATE ROLE regress_teller;
SELECT idem_grant('regress_teller');
SELECT idem_alter_session('journaled', usable_by => 'regress_teller');
GRANT USAGE ON SCHEMA kept TO regress_teller;
SET ROLE regress_teller;
SELECT regress_message($$ SELECT idem_begin('journaled', 'order-6', stream => 'anna') $$);
RESET ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON kept.payment_request TO regress_teller;
SET ROLE regress_teller;
SELECT status FROM idem_settle('journaled', 'order-6', stream => 'anna');
SELECT regress_message($$ SELECT idem_begin('aged', 'x') $$);
SELECT regress_message($$ SELECT idem_create_journal('kept.mine') $$);
RESET ROLE;
SELECT recorded_by FROM kept.payment_request WHERE request = 'order-6';

-- Nobody keeps requests in another role's table: what has expired there would be deleted.
SET ROLE regress_teller;
SELECT regress_error($$ SELECT idem_create_session('stolen', journal => 'kept.payment_request') $$);
RESET ROLE;

-- Triggers are the owner's, also where a superuser calls or sweeps, and change nothing for these.
CREATE TABLE kept.tellers (LIKE kept.payment_request INCLUDING ALL);
ALTER TABLE kept.tellers OWNER TO regress_teller;
CREATE FUNCTION kept.trick() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE NOTICE '% as %', TG_OP, current_user;
  PERFORM pg_catalog.set_config('search_path', 'kept', false), pg_catalog.set_config('idempotence.wait', '1s', false);
  RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER trick BEFORE INSERT OR DELETE ON kept.tellers FOR EACH ROW EXECUTE FUNCTION kept.trick();
SELECT idem_create_session('tellers', ttl => '1 hour', journal => 'kept.tellers', owner => 'regress_teller');
SELECT status FROM idem_settle('tellers', 'a');
UPDATE kept.tellers SET expires_at = now() - interval '1 hour';
CALL idem_sweep();
SHOW search_path;
SHOW idempotence.wait;
SELECT status FROM idem_lookup('tellers', 'b');
SELECT count(*) FROM kept.tellers;

-- And where somebody calls whose right comes from a level: neither policies nor triggers are executed as that role.
CREATE FUNCTION kept.told(request text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RAISE NOTICE 'a policy as %', current_user;
  RETURN true;
END
$$;
ALTER TABLE kept.tellers ENABLE ROW LEVEL SECURITY;
CREATE POLICY told ON kept.tellers USING (kept.told(request));
GRANT ALL ON kept.tellers TO PUBLIC;
CREATE ROLE regress_on_call;
SELECT idem_grant('regress_on_call', 'admin');
SELECT status FROM idem_settle('tellers', 'c');
SET ROLE regress_on_call;
SELECT e.told #>> '{outcome,status}' FROM (SELECT idem_explain('tellers', 'c')) e (told);
SELECT idem_redact('tellers', 'c', 'a test'), idem_force_release('tellers', 'c', 'a test');
SELECT idem_forget('tellers', 'c', 'a test');
RESET ROLE;
SELECT idem_revoke('regress_on_call');
DROP ROLE regress_on_call;
DROP POLICY told ON kept.tellers;

-- A table that others have inherited from is a journal again without them.
CREATE TABLE kept.child_of_tellers () INHERITS (kept.tellers);
SELECT regress_message($$ SELECT idem_lookup('tellers', 'c') $$);
DROP TABLE kept.child_of_tellers;
SELECT status FROM idem_lookup('tellers', 'c');
ALTER TABLE kept.tellers OWNER TO CURRENT_USER;

-- A table that has changed hands, or that has taken the journal's place, knows of no request.
SET ROLE regress_teller;
SELECT regress_error($$ SELECT idem_begin('tellers', 'a') $$);
RESET ROLE;
SELECT regress_message($$ SELECT idem_alter_session('journaled', owner => 'regress_teller') $$);
ALTER TABLE kept.tellers OWNER TO regress_teller;
DROP TRIGGER trick ON kept.tellers;

-- A trigger that takes its time, or that brings back what is deleted, keeps the sweep from no other journal.
CREATE FUNCTION kept.sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN OLD; END $$;
CREATE TABLE kept.asleep (LIKE kept.payment_request INCLUDING ALL);
CREATE TRIGGER sleep BEFORE DELETE ON kept.asleep FOR EACH ROW EXECUTE FUNCTION kept.sleep();
CREATE FUNCTION kept.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO kept.back (SELECT OLD.*); RETURN OLD; END $$;
CREATE TABLE kept.back (LIKE kept.payment_request INCLUDING ALL);
CREATE TRIGGER again AFTER DELETE ON kept.back FOR EACH ROW EXECUTE FUNCTION kept.again();
SELECT idem_create_session('asleep', journal => 'kept.asleep'), idem_create_session('back', journal => 'kept.back');
SELECT session, (idem_settle(session, 'a')).status FROM unnest('{asleep,back,tellers}'::text[]) session;
UPDATE kept.asleep SET expires_at = now() - interval '1 hour';
UPDATE kept.back SET expires_at = now() - interval '1 hour';
UPDATE kept.tellers SET expires_at = now() - interval '1 hour';
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SELECT (SELECT count(*) FROM kept.asleep), (SELECT count(*) FROM kept.back), (SELECT count(*) FROM kept.tellers);
SELECT idem_drop_session(session) FROM unnest('{asleep,back,tellers}'::text[]) session;

-- Not for keeps: unlogged, temporary, inherited from, or with a unique index by another collation.
CREATE UNLOGGED TABLE kept.unlogged (LIKE kept.payment_request INCLUDING ALL);
SELECT regress_message($$ SELECT idem_create_session('none', journal => 'kept.unlogged') $$);
CREATE TEMP TABLE temporary (LIKE kept.payment_request INCLUDING ALL);
SELECT left(regress_message($$ SELECT idem_create_session('none', journal => 'pg_temp.temporary') $$), 5);
CREATE TABLE kept.parent (LIKE kept.payment_request INCLUDING ALL);
CREATE TABLE kept.child () INHERITS (kept.parent);
SELECT regress_message($$ SELECT idem_create_session('none', journal => 'kept.parent') $$);
CREATE TABLE kept.collated (LIKE kept.payment_request);
CREATE UNIQUE INDEX ON kept.collated (tenant, session COLLATE "POSIX", request);
SELECT regress_message($$ SELECT idem_create_session('none', journal => 'kept.collated') $$);

-- Partitioned by tenant, as an owner may make it.
CREATE TABLE kept.parts (LIKE kept.by_number INCLUDING DEFAULTS, PRIMARY KEY ("account no", session, request)) PARTITION BY LIST ("account no");
CREATE TABLE kept.parts_1 PARTITION OF kept.parts FOR VALUES IN (1);
SELECT idem_create_session('parts', journal => 'kept.parts');
SELECT status FROM idem_settle('parts', 'a', stream => '1');
SELECT regress_message($$ SELECT idem_begin('parts', 'a', stream => '2') $$);
SELECT tableoid::regclass, status FROM kept.parts;

SELECT count(idem_drop_session(session)) FROM idempotence.sessions WHERE journal IS NOT NULL;
SET client_min_messages = warning;
DROP SCHEMA kept CASCADE;
RESET client_min_messages;
SELECT idem_revoke('regress_teller');
DROP ROLE regress_teller;
