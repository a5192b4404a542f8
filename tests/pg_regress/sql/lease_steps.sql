-- Goal: leases follow savepoints, two-phase commit and snapshots: what was rolled back did not happen, what was
-- prepared happens when it is committed, and nobody builds on what the snapshot does not see.
-- Method: as in savepoints and prepared, with what is kept looked at after each. Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('lease steps', ttl => '1 hour');

-- begun in a savepoint and rolled back: nobody has a lease
BEGIN;
SAVEPOINT s;
SELECT regress_take('a', idem_begin('lease steps', '1', lease => '1 hour'));
SELECT regress_token('a') AS gone \gset
ROLLBACK TO s;
SELECT regress_kept('lease steps'), regress_show(idem_lookup('lease steps', '1'));
SELECT regress_message(format('SELECT idem_record(''lease steps'', ''1'', token => %s)', :gone)) LIKE 'ID005: %';
SELECT regress_take('a', idem_begin('lease steps', '1', lease => '1 hour')), regress_token('a') > :gone;
COMMIT;
SELECT regress_kept('lease steps');
-- recorded in a savepoint and rolled back: the lease stands again
BEGIN;
SAVEPOINT s;
SELECT idem_record('lease steps', '1', '"inside"', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_lookup('lease steps', '1')), regress_kept('lease steps');
ROLLBACK TO s;
SELECT regress_show(idem_lookup('lease steps', '1')), regress_kept('lease steps');
SAVEPOINT s;
SELECT idem_checkpoint('lease steps', '1', 'inside', token => regress_token('a'));
SELECT idem_release('lease steps', '1', token => regress_token('a'));
SELECT regress_show(idem_lookup('lease steps', '1'));
ROLLBACK TO s;
SELECT regress_show(idem_lookup('lease steps', '1')), regress_kept('lease steps');
SAVEPOINT s;
SELECT idem_extend('lease steps', '1', regress_token('a'), '2 days') > now() + interval '1 day';
ROLLBACK TO s;
SELECT (idem_lookup('lease steps', '1')).expires_at < now() + interval '1 day';
SAVEPOINT s;
SELECT idem_record('lease steps', '1', '"released"', token => regress_token('a')) IS NOT NULL;
RELEASE s;
COMMIT;
SELECT regress_show(idem_begin('lease steps', '1')), regress_kept('lease steps');
-- begun, recorded and rolled back in one transaction, step by step
BEGIN;
SELECT regress_take('a', idem_begin('lease steps', '2', lease => '1 hour'));
SAVEPOINT s;
SELECT idem_record('lease steps', '2', '"inside"', token => regress_token('a')) IS NOT NULL;
ROLLBACK TO s;
SELECT regress_message($$SELECT idem_record('lease steps', '2')$$), regress_message($$SELECT idem_begin('lease steps', '2')$$);
SAVEPOINT s;
SELECT idem_release('lease steps', '2', token => regress_token('a'));
SELECT regress_show(idem_begin('lease steps', '2'));
SELECT regress_message($$SELECT idem_record('lease steps', '2', token => regress_token('a'))$$);
SELECT idem_record('lease steps', '2', '"without"') IS NOT NULL;
ROLLBACK TO s;
COMMIT;
SELECT regress_show(idem_lookup('lease steps', '2')), regress_kept('lease steps');
-- begun without a lease, released, begun with one: only that counts
BEGIN;
SELECT regress_show(idem_begin('lease steps', '3'));
SELECT idem_release('lease steps', '3');
SELECT regress_take('b', idem_begin('lease steps', '3', lease => '1 hour'));
COMMIT;
SELECT regress_show(idem_lookup('lease steps', '3'));
SELECT idem_record('lease steps', '3', '3', token => regress_token('b')) IS NOT NULL;
-- taken over in a savepoint and rolled back: the former holder has it
SELECT regress_lease_ends('lease steps', '2');
BEGIN;
SAVEPOINT s;
SELECT regress_take('b', idem_begin('lease steps', '2', lease => '1 hour'));
ROLLBACK TO s;
SAVEPOINT s;
SELECT regress_show(idem_begin('lease steps', '2'));
SELECT idem_record('lease steps', '2', '"another"') IS NOT NULL;
ROLLBACK TO s;
SAVEPOINT s;
SELECT regress_show(idem_settle('lease steps', '2'));
ROLLBACK TO s;
SELECT idem_checkpoint('lease steps', '2', 'still mine', token => regress_token('a'));
COMMIT;
SELECT regress_kept('lease steps');
-- in a block of PL/pgSQL that is caught
DO $$
BEGIN
  PERFORM idem_record('lease steps', '2', '"caught"', token => regress_token('a'));
  RAISE 'rolled back';
EXCEPTION WHEN raise_exception THEN
  RAISE INFO '%', regress_show(idem_lookup('lease steps', '2'));
END
$$;
SELECT idem_record('lease steps', '2', '"a"', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_lookup('lease steps', '2'));

-- a begin with a lease, prepared: nobody can tell yet, then it is leased, or never was
BEGIN;
SELECT regress_take('a', idem_begin('lease steps', '4', payload => '4', lease => '1 hour'));
PREPARE TRANSACTION 'regress_lease';
SELECT regress_claims(), regress_show(idem_lookup('lease steps', '4')), regress_show(idem_begin('lease steps', '4', wait => '0')), regress_show(idem_settle('lease steps', '4', wait => '1 ms'));
COMMIT PREPARED 'regress_lease';
SELECT regress_claims(), regress_show(idem_lookup('lease steps', '4')), regress_show(idem_begin('lease steps', '4', wait => '0'));
-- its completion, prepared
BEGIN;
SELECT idem_record('lease steps', '4', '"prepared"', token => regress_token('a')) IS NOT NULL;
PREPARE TRANSACTION 'regress_lease';
SELECT regress_show(idem_lookup('lease steps', '4')), regress_show(idem_begin('lease steps', '4', wait => '0'));
SET idempotence.wait = 10;
SELECT regress_error($$SELECT idem_record('lease steps', '4', token => regress_token('a'))$$);
SELECT regress_message($$SELECT idem_extend('lease steps', '4', regress_token('a'), '1 hour')$$), regress_message($$SELECT idem_forget('lease steps', '4', 'a test')$$),
       regress_message($$SELECT idem_force_release('lease steps', '4', 'a test')$$), regress_message($$SELECT idem_force_record('lease steps', '4', 'a test')$$);
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_lease';
SELECT regress_show(idem_lookup('lease steps', '4')), regress_kept('lease steps');
BEGIN;
SELECT idem_record('lease steps', '4', '"prepared"', token => regress_token('a')) IS NOT NULL;
PREPARE TRANSACTION 'regress_lease';
COMMIT PREPARED 'regress_lease';
SELECT regress_show(idem_begin('lease steps', '4', payload => '4')), idem_record('lease steps', '4', token => regress_token('a')) IS NOT NULL, regress_kept('lease steps');
-- a begin that is rolled back instead
BEGIN;
SELECT regress_show(idem_begin('lease steps', '5', lease => '1 hour'));
PREPARE TRANSACTION 'regress_lease';
ROLLBACK PREPARED 'regress_lease';
SELECT regress_show(idem_lookup('lease steps', '5')), regress_kept('lease steps');
-- a take-over, prepared: until it is decided the former holder waits, then it is fenced, or goes on
SELECT regress_take('a', idem_begin('lease steps', '6', lease => '1 hour')), regress_lease_ends('lease steps', '6');
BEGIN;
SELECT regress_show(idem_begin('lease steps', '6', lease => '1 hour'));
PREPARE TRANSACTION 'regress_lease';
SET idempotence.wait = 10;
SELECT regress_message($$SELECT idem_checkpoint('lease steps', '6', 'p', token => regress_token('a'))$$), regress_message($$SELECT idem_release('lease steps', '6', token => regress_token('a'))$$);
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_lease';
SELECT idem_checkpoint('lease steps', '6', 'p', token => regress_token('a'));
BEGIN;
SELECT regress_show(idem_begin('lease steps', '6', lease => '1 hour'));
PREPARE TRANSACTION 'regress_lease';
COMMIT PREPARED 'regress_lease';
SELECT regress_message($$SELECT idem_record('lease steps', '6', token => regress_token('a'))$$), regress_kept('lease steps');
-- one that neither records nor has a lease
SELECT regress_lease_ends('lease steps', '6');
\set VERBOSITY sqlstate
BEGIN;
SELECT regress_show(idem_begin('lease steps', '6'));
PREPARE TRANSACTION 'regress_lease';
\set VERBOSITY default
SELECT regress_kept('lease steps');

-- in a transaction that keeps its snapshot, which sees its own steps
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT regress_take('a', idem_begin('lease steps', '7', lease => '1 hour'));
SELECT idem_extend('lease steps', '7', regress_token('a'), '2 hours') > now();
SELECT idem_checkpoint('lease steps', '7', 'p', token => regress_token('a'));
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT regress_show(idem_begin('lease steps', '7'));
SELECT idem_record('lease steps', '7', '7', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_begin('lease steps', '7'));
COMMIT;

-- what is begun by a cursor that outlives its transaction, while that is committing
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT regress_take('a', idem_begin('lease steps', '8', lease => '1 hour'));
COMMIT;
FETCH held;
CLOSE held;
SELECT idem_record('lease steps', '8', '8', token => regress_token('a')) IS NOT NULL, regress_show(idem_lookup('lease steps', '8'));
-- read-only: nothing is begun, completed or settled; a look is free
SELECT regress_take('a', idem_begin('lease steps', '9', lease => '1 hour'));
BEGIN READ ONLY;
SELECT regress_show(idem_lookup('lease steps', '9')), regress_show(idem_begin('lease steps', '8', lease => '1 hour'));
SELECT regress_error($$SELECT idem_record('lease steps', '9', token => regress_token('a'))$$);
SELECT call, regress_message('SELECT ' || call)
FROM unnest('{"idem_begin(''lease steps'', ''9'', lease => ''1 hour'')","idem_begin(''lease steps'', ''10'', lease => ''1 hour'')","idem_checkpoint(''lease steps'', ''9'', ''p'', token => 1)","idem_release(''lease steps'', ''9'', token => 1)","idem_extend(''lease steps'', ''9'', 1, ''1 hour'')","idem_settle(''lease steps'', ''9'')","idem_claim(''lease steps'', ''9'')","idem_force_release(''lease steps'', ''9'', ''why'')","idem_force_record(''lease steps'', ''9'', ''why'')","idem_set_persistence(''claims'', ''logged'')"}'::text[]) WITH ORDINALITY AS c (call, place) ORDER BY place;
COMMIT;
SELECT idem_record('lease steps', '9', token => regress_token('a')) IS NOT NULL;

-- a claim's table may be made unlogged, and back, while nobody uses it
SELECT idem_set_persistence('claims', 'unlogged');
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.lease'::regclass;
SELECT regress_kept('lease steps'), regress_show(idem_lookup('lease steps', '6'));
SELECT regress_take('a', idem_begin('lease steps', '10', lease => '1 hour'));
SELECT name, status, detail FROM idempotence.health WHERE name = 'persistence';
SELECT idem_set_persistence('claims', 'unlogged');
BEGIN;
SELECT regress_show(idem_begin('lease steps', '11', lease => '1 hour'));
PREPARE TRANSACTION 'regress_lease';
SELECT regress_error($$SELECT idem_set_persistence('claims', 'logged')$$);
ROLLBACK PREPARED 'regress_lease';
BEGIN;
SELECT idem_set_persistence('claims', 'logged');
ROLLBACK;
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.lease'::regclass;
SELECT idem_set_persistence('claims', 'logged');
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.lease'::regclass;
SELECT idem_record('lease steps', '10', token => regress_token('a')) IS NOT NULL;
SELECT regress_registered('live', idem_register());
SELECT idem_set_persistence('sessions', 'logged');
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.session_live'::regclass;
SELECT idem_heartbeat(regress_id('live')) > now(), regress_registered('logged', idem_register());
SELECT idem_set_persistence('sessions', 'unlogged');
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.session_live'::regclass;
SELECT idem_heartbeat(regress_id('live')) > now(), idem_heartbeat(regress_id('logged')) > now();
SELECT what, unlogged FROM idempotence.persistence ORDER BY what;
-- the sweep makes the tables what was chosen, as after a restore
UPDATE idempotence.persistence SET unlogged = true WHERE what = 'claims';
SELECT name, status, detail, hint FROM idempotence.health WHERE name = 'persistence';
UPDATE idempotence.sweep SET done_at = done_at - interval '1 day';
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SELECT relpersistence FROM pg_class WHERE oid = 'idempotence.lease'::regclass;
SELECT idem_set_persistence('claims', 'logged');
DELETE FROM idempotence.persistence;

SELECT regress_lease_ends('lease steps', '6');
SELECT idem_forget('lease steps', '6', 'a test');
DELETE FROM idempotence.audit;
SELECT regress_close();
SELECT idem_drop_session('lease steps');
DELETE FROM regress_lease_token;
