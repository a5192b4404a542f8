-- Goal: every SQLSTATE of the extension, with its message, DETAIL and HINT, to be caught by its code.
-- Method: each is provoked once to be read and once inside PL/pgSQL's EXCEPTION WHEN SQLSTATE.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('errors', ttl => '1 hour');
SELECT idem_create_session('errors needs payload', require_payload => true);
SELECT idem_create_session('errors inbox', inbox => true);
SELECT idem_create_session('errors old', ttl => '1 hour', time_keys => true);
DO $$ BEGIN
  PERFORM idem_begin('errors', 'done', payload => '1');
  PERFORM idem_record('errors', 'done', '"answer"');
END $$;

-- Does what the text says and tells by which handler the error was caught.
CREATE FUNCTION errors_caught(statement text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION
  WHEN SQLSTATE 'ID001' THEN RETURN 'ID001 payload_mismatch';
  WHEN SQLSTATE 'ID002' THEN RETURN 'ID002 already_begun';
  WHEN SQLSTATE 'ID003' THEN RETURN 'ID003 outcome_discarded';
  WHEN SQLSTATE 'ID004' THEN RETURN 'ID004 session_ended';
  WHEN SQLSTATE 'ID005' THEN RETURN 'ID005 fenced';
  WHEN SQLSTATE 'ID006' THEN RETURN 'ID006 out_of_sequence';
  WHEN SQLSTATE 'ID007' THEN RETURN 'ID007 not_begun';
  WHEN SQLSTATE 'ID008' THEN RETURN 'ID008 unrecorded';
  WHEN SQLSTATE 'ID009' THEN RETURN 'ID009 limit_exceeded';
  WHEN SQLSTATE 'ID010' THEN RETURN 'ID010 key_too_old';
  WHEN SQLSTATE 'ID011' THEN RETURN 'ID011 already_done';
  WHEN SQLSTATE 'ID012' THEN RETURN 'ID012 elsewhere';
  WHEN null_value_not_allowed THEN RETURN 'null_value_not_allowed';
  WHEN invalid_parameter_value THEN RETURN 'invalid_parameter_value';
  WHEN undefined_object THEN RETURN 'undefined_object';
  WHEN duplicate_object THEN RETURN 'duplicate_object';
  WHEN insufficient_privilege THEN RETURN 'insufficient_privilege';
  WHEN read_only_sql_transaction THEN RETURN 'read_only_sql_transaction';
  WHEN object_not_in_prerequisite_state THEN RETURN 'object_not_in_prerequisite_state';
  WHEN cardinality_violation THEN RETURN 'cardinality_violation';
END
$$;

-- ID001 payload_mismatch, of a key and of a number
\set do 'SELECT idem_begin(\'errors\', \'done\', payload => \'2\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

SELECT regress_registered('numbers', idem_register());
DO $$ BEGIN
  PERFORM idem_begin(regress_id('numbers'), 1, payload => '1'), idem_record(regress_id('numbers'), 1);
END $$;
\set do 'SELECT idem_begin(regress_id(\'numbers\'), 1, payload => \'2\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- ID002 already_begun: by two calls, and by one that is written as if it were one
\set do 'SELECT idem_begin(\'errors\', \'twice\'), idem_begin(\'errors\', \'twice\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT (idem_begin(\'errors\', \'twice\')).*'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
-- every client can read it, whatever its encoding
SET client_encoding = 'LATIN1';
\set VERBOSITY sqlstate
SELECT (idem_begin('errors', 'twice')).*;
\set VERBOSITY default
RESET client_encoding;

-- ID003 outcome_discarded
SELECT regress_registered('discards', idem_register(window_size => 1)), regress_registered('line', idem_register(ordering => 'strict'));
DO $$ BEGIN
  PERFORM idem_begin(regress_id('discards'), n), idem_record(regress_id('discards'), n) FROM generate_series(1, 2) n;
END $$;
\set do 'SELECT idem_begin(regress_id(\'discards\'), 1)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- ID004 session_ended: never registered, silent, closed
\set do 'SELECT idem_begin(\'01890a5d-ac96-774b-bcce-b302099a8057\', \'done\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
SELECT regress_registered('silent', idem_register(timeout => '2 seconds')), regress_registered('closed', idem_register());
SELECT regress_run_out('silent');
\set do 'SELECT idem_begin(regress_id(\'silent\'), 1)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
DO $$ BEGIN
  PERFORM idem_run(regress_id('closed'), '1', 'SELECT 1'), idem_close(regress_id('closed'));
END $$;
\set do 'SELECT idem_heartbeat(regress_id(\'closed\'))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- ID005 fenced: a token, a session
\set do 'SELECT idem_record(\'errors\', \'new\', token => 7)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
-- one that was taken over, one whose request another caller has recorded, one that has recorded itself
SELECT regress_take('a', idem_begin('errors', 'taken over', lease => '1 hour')), regress_take('b', idem_begin('errors', 'recorded', lease => '1 hour'));
SELECT regress_lease_ends('errors', 'taken over'), regress_lease_ends('errors', 'recorded');
SELECT regress_take('c', idem_begin('errors', 'taken over', lease => '1 hour')), regress_show(idem_settle('errors', 'recorded'));
\set do 'SELECT idem_record(\'errors\', \'taken over\', token => regress_token(\'a\'))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_release(\'errors\', \'recorded\', token => regress_token(\'b\'))'
SELECT regress_error(:'do');
SELECT idem_record('errors', 'taken over', token => regress_token('c')) IS NOT NULL;
\set do 'SELECT idem_extend(\'errors\', \'taken over\', regress_token(\'c\'), \'1 hour\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
SELECT regress_registered('former', idem_register(client => 'errors'));
SELECT regress_registered('newer', idem_register(client => 'errors'));
\set do 'SELECT idem_begin(regress_id(\'former\'), 1)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- ID006 out_of_sequence: the window is full, the next is another, overlaps one or more, the slot or the stream is taken
\set do 'SELECT idem_begin(regress_id(\'discards\'), 4)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_begin(regress_id(\'line\'), 2)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
DO $$ BEGIN
  PERFORM idem_begin(regress_id('line'), 1, last => 3), idem_record(regress_id('line'), 1), idem_begin(regress_id('line'), 4), idem_record(regress_id('line'), 4);
END $$;
\set do 'SELECT idem_begin(regress_id(\'line\'), 2, last => 3)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_begin(regress_id(\'line\'), 4, last => 5)'
SELECT regress_error(:'do');
\set do 'SELECT idem_begin(regress_id(\'discards\'), 1, stream => \'s\'), idem_begin(regress_id(\'discards\'), 2, stream => \'s\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_begin(regress_id(\'line\'), 5), idem_begin(regress_id(\'line\'), 6)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- ID007 not_begun: never, in another transaction, recorded, released; and from each function
\set do 'SELECT idem_record(\'errors\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_record(\'errors\', \'done\')'
SELECT regress_error(:'do');
\set do 'SELECT idem_checkpoint(\'errors\', \'new\', \'here\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_release(\'errors\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
BEGIN;
SELECT regress_show(idem_begin('errors', 'new'));
SELECT idem_record('errors', 'new') IS NOT NULL;
SELECT regress_error($$SELECT idem_record('errors', 'new')$$);
SELECT regress_error($$SELECT idem_checkpoint('errors', 'new', 'here')$$);
SELECT regress_error($$SELECT idem_release('errors', 'new')$$);
ROLLBACK;
BEGIN;
SELECT regress_show(idem_begin('errors', 'new'));
SELECT idem_release('errors', 'new');
SELECT regress_error($$SELECT idem_record('errors', 'new')$$);
SELECT regress_error($$SELECT idem_checkpoint('errors', 'new', 'here')$$);
SELECT regress_error($$SELECT idem_release('errors', 'new')$$);
ROLLBACK;
-- begun with a lease, so that it takes the token
BEGIN;
SELECT regress_show(idem_begin('errors', 'with a token', lease => '1 hour'));
SELECT regress_error($$SELECT idem_record('errors', 'with a token')$$);
SELECT regress_error($$SELECT idem_checkpoint('errors', 'with a token', 'here')$$);
SELECT regress_error($$SELECT idem_release('errors', 'with a token')$$);
ROLLBACK;
-- what begin had answered instead is told; of a number too, and where it was asked again
BEGIN;
SELECT regress_show(idem_begin('errors', 'final'));
SELECT idem_record('errors', 'final', '"no"', failed => true) IS NOT NULL;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('errors', 'prepared'));
SELECT idem_record('errors', 'prepared') IS NOT NULL;
PREPARE TRANSACTION 'regress_errors';
BEGIN;
SELECT regress_show(idem_begin('errors', k, wait => '0')) FROM unnest('{done,final,prepared}'::text[]) k;
SELECT regress_error($$SELECT idem_record('errors', 'done')$$);
SELECT regress_error($$SELECT idem_release('errors', 'final')$$);
SELECT regress_error($$SELECT idem_checkpoint('errors', 'prepared', 'here')$$);
SELECT regress_error($$SELECT idem_record('errors', 'other')$$);
ROLLBACK;
ROLLBACK PREPARED 'regress_errors';
BEGIN;
SELECT regress_error($$SELECT idem_record('errors', 'done')$$);
SAVEPOINT s;
SELECT regress_show(idem_begin('errors', 'prepared'));
SELECT idem_release('errors', 'prepared');
ROLLBACK TO SAVEPOINT s;
SELECT regress_error($$SELECT idem_record('errors', 'prepared')$$);
ROLLBACK;
SELECT regress_registered('answered', idem_register());
BEGIN; SELECT regress_show(idem_begin(regress_id('answered'), 1)); SELECT idem_record(regress_id('answered'), 1); COMMIT;
BEGIN;
SELECT regress_show(idem_begin(regress_id('answered'), 1)), regress_show(idem_begin(regress_id('answered'), 6));
SELECT regress_error($$SELECT idem_record(regress_id('answered'), 1)$$);
SELECT idem_record(regress_id('answered'), 6);
ROLLBACK;
SELECT idem_close(regress_id('answered'));

-- ID008 unrecorded, at COMMIT. It cannot be caught in PL/pgSQL: no block there outlives a commit.
CREATE TABLE errors_effect (id integer);
BEGIN;
SELECT regress_show(idem_begin('errors', 'open'));
INSERT INTO errors_effect VALUES (1);
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM errors_effect;
SELECT regress_show(idem_lookup('errors', 'open'));
SELECT regress_claims();
-- more than one: the first is named, the others are counted
BEGIN;
SELECT regress_show(idem_begin('errors', 'open-1')), regress_show(idem_begin('errors', 'open-2'));
COMMIT;
\echo :SQLSTATE
BEGIN;
SELECT regress_show(idem_begin('errors', 'open-1')), regress_show(idem_begin('errors', 'open-2')),
       regress_show(idem_begin('errors', 'open-3'));
SELECT idem_record('errors', 'open-1') IS NOT NULL;
SELECT regress_show(idem_begin('errors', 'open-4'));
COMMIT;
\echo :SQLSTATE
-- in autocommit, where a statement is a transaction
INSERT INTO errors_effect SELECT 2 FROM idem_begin('errors', 'open');
\echo :SQLSTATE
SELECT idem_begin('errors', 'open');
\echo :SQLSTATE
DO $$ BEGIN PERFORM idem_begin('errors', 'open'); END $$;
\echo :SQLSTATE
-- by COMMIT inside a procedure
DO $$ BEGIN
  INSERT INTO errors_effect VALUES (3);
  PERFORM idem_begin('errors', 'open');
  COMMIT;
END $$;
\echo :SQLSTATE
SELECT count(*) FROM errors_effect;
-- what a deferred trigger or a cursor WITH HOLD begins, while the transaction is committing already
CREATE FUNCTION errors_deferred() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem_begin('errors', 'deferred');
  IF NEW.id = 5 THEN
    PERFORM idem_record('errors', 'deferred', '5');
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON errors_effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION errors_deferred();
INSERT INTO errors_effect VALUES (4);
\echo :SQLSTATE
INSERT INTO errors_effect VALUES (5);
SELECT regress_show(idem_begin('errors', 'deferred'));
DELETE FROM errors_effect;
DROP TRIGGER deferred ON errors_effect;
DROP FUNCTION errors_deferred;
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT regress_show(idem_begin('errors', 'open'));
COMMIT;
\echo :SQLSTATE
-- ROLLBACK and a failed transaction are no commit
BEGIN;
SELECT regress_show(idem_begin('errors', 'open'));
ROLLBACK;
BEGIN;
SELECT regress_show(idem_begin('errors', 'open'));
SELECT 1 / 0;
COMMIT;
\echo :SQLSTATE

-- the same as a warning, and not at all
\set open 'SELECT regress_show(idem_begin(\'errors\', \'open\')); INSERT INTO errors_effect VALUES (4);'
SET idempotence.unrecorded = 'warning';
BEGIN;
:open
COMMIT;
\echo :SQLSTATE
\set VERBOSITY sqlstate
BEGIN;
:open
COMMIT;
\set VERBOSITY default
SET idempotence.unrecorded = 'off';
BEGIN;
:open
COMMIT;
\echo :SQLSTATE
SELECT count(*) FROM errors_effect;
RESET idempotence.unrecorded;
SHOW idempotence.unrecorded;
SET idempotence.unrecorded = 'never';
\echo :SQLSTATE
DROP TABLE errors_effect;

-- ID009 limit_exceeded: a key, and what else has a limit; how many sessions a role may have is one
\set do 'SELECT idem_begin(\'errors\', repeat(\'k\', 256))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

SET idempotence.max_sessions_per_role = 1;
\set do 'SELECT idem_register()'
SELECT regexp_replace(replace(regress_error(:'do'), '"' || current_user || '"', '"…"'), 'Found \d+', 'Found …');
SELECT errors_caught(:'do');
RESET idempotence.max_sessions_per_role;

-- ID010 key_too_old; the key carries a clock value, so it is left out
\set do 'SELECT idem_begin(\'errors old\', regress_uuid7(now() - interval \'61 minutes\'))'
SELECT regexp_replace(regress_error(:'do'), '"[0-9a-f-]{36}"', '"…"');
SELECT errors_caught(:'do');

-- ID011 already_done
\set do 'SELECT idem_claim(\'errors\', \'done\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_claim(\'errors\', \'recorded\')'
SELECT regress_error(:'do');

-- ID012 elsewhere: of a session that is bound to another node, and of a client session with the name of another one
SELECT idem_create_session('errors elsewhere', node => 'paris');
\set do 'SELECT idem_begin(\'errors elsewhere\', \'new\')'
SELECT replace(told, idem_node(), 'HERE') FROM regress_error(:'do') told;
SELECT errors_caught(:'do');
\set do 'SELECT idem_begin(\'01890a5d-ac96-774b-bcce-b302099a8057@paris\', 1)'
SELECT replace(told, idem_node(), 'HERE') FROM regress_error(:'do') told;
SELECT errors_caught(:'do');

-- 55000 object_not_in_prerequisite_state: somebody must look first, by either function; nothing is there to be repaired
SELECT regress_take('a', idem_begin('errors', 'run out', lease => '1 hour')), regress_lease_ends('errors', 'run out');
BEGIN; SELECT regress_show(idem_begin('errors', 'half')); SELECT idem_checkpoint('errors', 'half', 'here'); COMMIT;
\set do 'SELECT idem_claim(\'errors\', \'run out\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_claim(\'errors\', \'half\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_run(\'errors\', \'run out\', \'SELECT 1\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_run(\'errors\', \'half\', \'SELECT 1\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_force_record(\'errors\', \'new\', \'a test\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- 22004 null_value_not_allowed
\set do 'SELECT idem_begin(\'errors needs payload\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- 22023 invalid_parameter_value
\set do 'SELECT idem_begin(\'errors inbox\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- 42704 undefined_object
\set do 'SELECT idem_begin(\'erors\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- 42710 duplicate_object
\set do 'SELECT idem_create_session(\'errors\', ttl => \'2 hours\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- 42501 insufficient_privilege
CREATE ROLE regress_errors;
SELECT idem_grant('regress_errors');
SET ROLE regress_errors;
\set do 'SELECT idem_begin(\'errors\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
RESET ROLE;
SELECT idem_revoke('regress_errors');
DROP ROLE regress_errors;

-- 25006 read_only_sql_transaction
SET default_transaction_read_only = on;
\set do 'SELECT idem_begin(\'errors\', \'new\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
RESET default_transaction_read_only;

-- 21000 cardinality_violation
\set do 'SELECT idem_run(\'errors\', \'rows\', \'VALUES (1), (2)\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');

-- XX001 data_corrupted: a second secret in use, as by a restore over sessions that were there, is noticed
-- by a backend that remembers the first one, and undone with it
BEGIN;
INSERT INTO idempotence.secret (in_use_since, key) VALUES (now(), decode(repeat('ab', 32), 'hex'));
SELECT regress_error($$SELECT idem_begin('errors', 'done')$$);
SELECT regress_error($$SELECT idem_lookup('errors', 'done')$$);
ROLLBACK;
SELECT status FROM idem_lookup('errors', 'done');
-- one that is not in use does not matter, and the same one is refused
BEGIN;
INSERT INTO idempotence.secret (key) VALUES (decode(repeat('00', 32), 'hex'));
SAVEPOINT once;
INSERT INTO idempotence.secret SELECT now(), key FROM idempotence.secret WHERE in_use_since IS NOT NULL;
ROLLBACK TO once;
-- as if the tables had been restored as well
DELETE FROM idempotence.restore;
SELECT status FROM idem_lookup('errors', 'done');
ROLLBACK;

-- a handler finds the fields of the error where those of any error are
DO $$
DECLARE
  state_ text;
  detail_ text;
  hint_ text;
BEGIN
  PERFORM idem_begin('errors', 'done', payload => '[]');
EXCEPTION WHEN SQLSTATE 'ID001' THEN
  GET STACKED DIAGNOSTICS state_ = RETURNED_SQLSTATE, detail_ = PG_EXCEPTION_DETAIL, hint_ = PG_EXCEPTION_HINT;
  RAISE INFO '% % / % / %', state_, SQLERRM, detail_, hint_;
END
$$;

-- the next error, which is none of ours, has its own SQLSTATE
SELECT regress_error($$SELECT idem_begin('errors', 'done', payload => '2')$$);
SELECT regress_error($$SELECT 1 / 0$$);
SELECT 1 / 0;
\echo :SQLSTATE

DROP FUNCTION errors_caught;
SELECT idem_force_release('errors', 'run out', 'a test'), idem_forget('errors', 'half', 'a test');
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
SELECT regress_close();
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'errors%';
