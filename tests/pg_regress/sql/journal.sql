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
SELECT e.told #>> '{unfinished,state}', e.told #>> '{unfinished,holder}' = current_user FROM (SELECT idem_explain('journaled', 'order-3', stream => 'cleo')) e (told);
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
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SELECT level, regexp_split_to_table(detail, '; ') FROM idempotence.health WHERE name = 'journals';
ALTER TABLE kept.hidden RENAME TO payment_request;
SELECT status, replayed FROM idem_begin('journaled', 'order-1', stream => 'anna');

-- A column and an index of the owner's; a superuser's trigger that keeps rows back.
ALTER TABLE kept.payment_request ADD note text DEFAULT 'mine';
CREATE INDEX ON kept.payment_request (request);
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

-- An insertion that takes its time is not taken for somebody at work.
CREATE FUNCTION kept.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.pg_sleep(0.2); RETURN NEW; END';
CREATE TRIGGER slow BEFORE INSERT ON kept.payment_request FOR EACH ROW EXECUTE FUNCTION kept.slow();
SELECT status FROM idem_lookup('journaled', 'order-8', stream => 'anna');
SELECT e.told ->> 'begin_answers' FROM (SELECT idem_explain('journaled', 'order-8', stream => 'anna')) e (told);
BEGIN;
SELECT status FROM idem_begin('journaled', 'order-8', wait => '0', stream => 'anna');
ROLLBACK;
DROP TRIGGER slow ON kept.payment_request;

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

-- Whoever is called by his level needs no right to the table.
CREATE TABLE kept.tellers (LIKE kept.payment_request INCLUDING ALL);
ALTER TABLE kept.tellers OWNER TO regress_teller;
SELECT idem_create_session('tellers', ttl => '1 hour', journal => 'kept.tellers', owner => 'regress_teller');
SELECT status FROM idem_settle('tellers', 'c');
CREATE ROLE regress_on_call;
SELECT idem_grant('regress_on_call', 'admin');
SET ROLE regress_on_call;
SELECT e.told #>> '{outcome,status}' FROM (SELECT idem_explain('tellers', 'c')) e (told);
SELECT idem_redact('tellers', 'c', 'a test'), idem_force_release('tellers', 'c', 'a test');
SELECT idem_forget('tellers', 'c', 'a test');
RESET ROLE;
SELECT idem_revoke('regress_on_call');
DROP ROLE regress_on_call;

-- A journal carries nobody's code but superusers' triggers: it is refused when a session is made, at each use, and by the sweep.
GRANT CREATE ON SCHEMA kept TO regress_teller;
SET ROLE regress_teller;
CREATE FUNCTION kept.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION kept.truth(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
CREATE OPERATOR kept.@@@ (RIGHTARG = text, FUNCTION = kept.truth);
CREATE DOMAIN kept.short AS text CHECK (kept.truth(VALUE));
CREATE FUNCTION kept.refused(change text, undo text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE change;
  RETURN QUERY SELECT e FROM regress_error('SELECT idem_lookup(''tellers'', ''c'')') e OFFSET 1 LIMIT 1;
  EXECUTE undo;
END
$$;
CREATE TRIGGER mine BEFORE DELETE ON kept.tellers FOR EACH ROW EXECUTE FUNCTION kept.mine();
SELECT regress_error($$ SELECT idem_begin('tellers', 'c') $$);
SELECT regress_message($$ SELECT idem_create_session('more', journal => 'kept.tellers') $$);
SELECT regress_message($$ SELECT idem_create_journal('kept.tellers') $$);
RESET ROLE;
SELECT regress_message($$ SELECT idem_lookup('tellers', 'c') $$);
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SELECT detail LIKE '%journal kept.tellers of tellers (role regress_teller) cannot be swept: A journal carries nobody''s code: %' FROM idempotence.health WHERE name = 'journals';
SET ROLE regress_teller;
DROP TRIGGER mine ON kept.tellers;
SELECT kept.refused('CREATE TRIGGER mine BEFORE INSERT ON kept.tellers FOR EACH ROW WHEN (kept.truth(NEW.request)) EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'DROP TRIGGER mine ON kept.tellers');
SELECT kept.refused('CREATE RULE mine AS ON INSERT TO kept.tellers WHERE false DO ALSO NOTHING', 'DROP RULE mine ON kept.tellers');
SELECT kept.refused('CREATE POLICY mine ON kept.tellers USING (true)', 'DROP POLICY mine ON kept.tellers');
SELECT kept.refused('CREATE STATISTICS kept.mine ON (kept.truth(request)), status FROM kept.tellers', 'DROP STATISTICS kept.mine');
SELECT kept.refused('CREATE INDEX mine ON kept.tellers (status) WHERE kept.truth(request)', 'DROP INDEX kept.mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD CONSTRAINT mine CHECK (xpath_exists(request, NULL::xml))', 'ALTER TABLE kept.tellers DROP CONSTRAINT mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD CONSTRAINT mine CHECK (kept.truth(request))', 'ALTER TABLE kept.tellers DROP CONSTRAINT mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD CONSTRAINT mine CHECK (OPERATOR(kept.@@@) request)', 'ALTER TABLE kept.tellers DROP CONSTRAINT mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine boolean DEFAULT kept.truth(NULL)', 'ALTER TABLE kept.tellers DROP mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine text, ALTER mine SET DEFAULT (idem_run(''tellers'', ''e'', ''SELECT 1'')).status', 'ALTER TABLE kept.tellers DROP mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine text, ALTER mine SET DEFAULT set_config(''search_path'', ''kept'', false)', 'ALTER TABLE kept.tellers DROP mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine bigserial', 'ALTER TABLE kept.tellers DROP mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD CONSTRAINT mine CHECK (xml_is_well_formed_document(request))', 'ALTER TABLE kept.tellers DROP CONSTRAINT mine');
SELECT kept.refused('CREATE TRIGGER mine BEFORE INSERT ON kept.tellers FOR EACH ROW WHEN ((idem_run(''tellers'', ''w'', ''SELECT 1'')).replayed) EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'DROP TRIGGER mine ON kept.tellers');
SELECT kept.refused('ALTER TABLE kept.tellers ADD CONSTRAINT mine CHECK (current_setting(''role'') IS NOT NULL)', 'ALTER TABLE kept.tellers DROP CONSTRAINT mine');
SELECT kept.refused('CREATE TABLE kept.mine (tenant text, session text, request text, FOREIGN KEY (tenant, session, request) REFERENCES kept.tellers)', 'DROP TABLE kept.mine');
CREATE TABLE kept.referred (id int PRIMARY KEY);
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine int REFERENCES kept.referred', 'ALTER TABLE kept.tellers DROP mine');
ALTER TABLE kept.tellers ADD harmless uuid DEFAULT gen_random_uuid(), ADD number bigint GENERATED ALWAYS AS IDENTITY, ADD made_at timestamptz DEFAULT now();
SELECT status FROM idem_lookup('tellers', 'c');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine kept.short', 'ALTER TABLE kept.tellers DROP mine');
SELECT kept.refused('ALTER TABLE kept.tellers ADD mine text GENERATED ALWAYS AS (upper(request)) STORED', 'ALTER TABLE kept.tellers DROP mine');
SELECT status FROM idem_lookup('tellers', 'c');
RESET ROLE;

-- A superuser's function that the owner may call himself is no superuser's trigger: the owner can have hung it there.
CREATE FUNCTION kept.asks() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := current_user; RETURN NEW; END';
SET ROLE regress_teller;
CREATE TRIGGER asks BEFORE INSERT ON kept.tellers FOR EACH ROW EXECUTE FUNCTION kept.asks();
SELECT regress_error($$ SELECT idem_settle('tellers', 'd') $$);
DROP TRIGGER asks ON kept.tellers;
RESET ROLE;

-- What a superuser's trigger calls must be a superuser's too; and so must what no catalog tells of.
CREATE FUNCTION kept.calls() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM kept.truth(NEW.request); RETURN NEW; END';
REVOKE EXECUTE ON FUNCTION kept.calls(), kept.asks() FROM PUBLIC;
CREATE TRIGGER calls BEFORE UPDATE ON kept.tellers FOR EACH ROW EXECUTE FUNCTION kept.calls();
SELECT regress_error($$ SELECT idem_settle('tellers', 'd') $$);
DROP TRIGGER calls ON kept.tellers;
CREATE TRIGGER asks BEFORE INSERT ON kept.tellers FOR EACH ROW EXECUTE FUNCTION kept.asks();
SELECT status FROM idem_settle('tellers', 'd');
SELECT note = current_user FROM kept.tellers WHERE request = 'd';
DROP TRIGGER asks ON kept.tellers;
CREATE TABLE kept.of_tellers (tenant text, session text, request text, FOREIGN KEY (tenant, session, request) REFERENCES kept.tellers ON DELETE CASCADE);
CREATE TRIGGER mine BEFORE DELETE ON kept.of_tellers FOR EACH ROW EXECUTE FUNCTION kept.mine();
INSERT INTO kept.of_tellers VALUES ('', 'tellers', 'd');
SELECT regress_message($$ SELECT idem_forget('tellers', 'd', 'a test') $$), count(*) FROM kept.of_tellers;
DROP TABLE kept.of_tellers;
SELECT idem_forget('tellers', 'd', 'a test');
REVOKE CREATE ON SCHEMA kept FROM regress_teller;

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

-- A superuser's trigger that takes its time, that brings back what is deleted, or that begins a request, keeps the sweep from no other journal.
CREATE FUNCTION kept.sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN OLD; END $$;
CREATE TABLE kept.asleep (LIKE kept.payment_request INCLUDING ALL);
CREATE TRIGGER sleep BEFORE DELETE ON kept.asleep FOR EACH ROW EXECUTE FUNCTION kept.sleep();
CREATE FUNCTION kept.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO kept.back (SELECT OLD.*); RETURN OLD; END $$;
CREATE TABLE kept.back (LIKE kept.payment_request INCLUDING ALL);
CREATE TRIGGER again AFTER DELETE ON kept.back FOR EACH ROW EXECUTE FUNCTION kept.again();
CREATE FUNCTION kept.begins() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.idem_begin('begins', gen_random_uuid()::text); RETURN OLD; END $$;
CREATE TABLE kept.begun (LIKE kept.payment_request INCLUDING ALL);
CREATE TRIGGER begins BEFORE DELETE ON kept.begun FOR EACH ROW EXECUTE FUNCTION kept.begins();
SELECT idem_create_session('asleep', journal => 'kept.asleep'), idem_create_session('back', journal => 'kept.back'), idem_create_session('begun', journal => 'kept.begun'), idem_create_session('begins');
SELECT session, (idem_settle(session, 'a')).status FROM unnest('{asleep,back,begun,tellers}'::text[]) session;
UPDATE kept.begun SET expires_at = now() - interval '1 hour';
UPDATE kept.asleep SET expires_at = now() - interval '1 hour';
UPDATE kept.back SET expires_at = now() - interval '1 hour';
UPDATE kept.tellers SET expires_at = now() - interval '1 hour';
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SELECT (SELECT count(*) FROM kept.asleep), (SELECT count(*) FROM kept.back), (SELECT count(*) FROM kept.begun), (SELECT count(*) FROM kept.tellers);
SELECT told FROM idempotence.health, regexp_split_to_table(detail, '; ') told WHERE name = 'journals' AND told LIKE '%kept.begun%';
SELECT idem_drop_session(session) FROM unnest('{asleep,back,begun,begins,tellers}'::text[]) session;

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
