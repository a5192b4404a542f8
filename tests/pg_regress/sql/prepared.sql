-- Goal: two-phase commit: a prepared transaction keeps its claim, and its outcome comes with its commit.
-- Method: prepared, looked at from a transaction of its own, then committed or rolled back.
-- Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('prepared', ttl => '1 hour');

-- recorded, prepared, committed
BEGIN;
SELECT regress_show(idem_begin('prepared', '1', payload => '1'));
SELECT idem_record('prepared', '1', '"done"') IS NOT NULL;
PREPARE TRANSACTION 'regress_prepared_1';
-- the claim is nobody's but the prepared transaction's
SELECT count(*), bool_and(pid IS NULL) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = x'1DE1'::int;
SELECT regress_show(idem_lookup('prepared', '1'));
SELECT regress_show(idem_begin('prepared', '1', wait => '0'));
SELECT regress_show(idem_begin('prepared', '1', wait => '10 ms'));
SELECT regress_message($$SELECT idem_run('prepared', '1', 'SELECT 1', wait => '0')$$);
SELECT regress_message($$SELECT idem_record('prepared', '1')$$);
-- others are not in its way
SELECT regress_show(idem_run('prepared', '2', 'SELECT 2'));
-- the open list of this connection is empty again
BEGIN;
COMMIT;
COMMIT PREPARED 'regress_prepared_1';
SELECT regress_claims();
SELECT regress_show(idem_begin('prepared', '1', payload => '1'));
SELECT regress_message($$SELECT idem_begin('prepared', '1', payload => '2')$$);

-- recorded, prepared, rolled back: executed again
BEGIN;
SELECT regress_show(idem_begin('prepared', '3'));
SELECT idem_record('prepared', '3', '"never"') IS NOT NULL;
PREPARE TRANSACTION 'regress_prepared_3';
SELECT regress_show(idem_lookup('prepared', '3'));
ROLLBACK PREPARED 'regress_prepared_3';
SELECT regress_claims();
SELECT regress_show(idem_lookup('prepared', '3'));
SELECT regress_show(idem_run('prepared', '3', 'SELECT 3'));

-- open at PREPARE: refused, and nothing is prepared
BEGIN;
SELECT regress_show(idem_begin('prepared', '4'));
PREPARE TRANSACTION 'regress_prepared_4';
\echo :SQLSTATE
SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database();
SELECT regress_claims();
SELECT regress_show(idem_lookup('prepared', '4'));
-- let pass by the setting
SET idempotence.unrecorded = 'warning';
BEGIN;
SELECT regress_show(idem_begin('prepared', '4'));
PREPARE TRANSACTION 'regress_prepared_4';
RESET idempotence.unrecorded;
SELECT regress_show(idem_lookup('prepared', '4'));
COMMIT PREPARED 'regress_prepared_4';
SELECT regress_show(idem_lookup('prepared', '4'));

-- released or checkpointed at PREPARE: no outcome, but the claim stays until it is decided
BEGIN;
SELECT regress_show(idem_begin('prepared', '5')), regress_show(idem_begin('prepared', '6'));
SELECT idem_release('prepared', '5');
SELECT idem_checkpoint('prepared', '6', 'half way');
PREPARE TRANSACTION 'regress_prepared_5';
SELECT regress_show(idem_lookup('prepared', '5')), regress_show(idem_lookup('prepared', '6'));
COMMIT PREPARED 'regress_prepared_5';
SELECT regress_show(idem_lookup('prepared', '5')), regress_show(idem_lookup('prepared', '6'));

-- recorded in a savepoint, one rolled back
BEGIN;
SELECT regress_show(idem_begin('prepared', '7'));
SAVEPOINT s;
SELECT idem_record('prepared', '7', '"inside"') IS NOT NULL;
ROLLBACK TO s;
PREPARE TRANSACTION 'regress_prepared_7';
\echo :SQLSTATE
BEGIN;
SELECT regress_show(idem_begin('prepared', '7'));
SAVEPOINT s;
SELECT idem_record('prepared', '7', '"inside"') IS NOT NULL;
RELEASE s;
PREPARE TRANSACTION 'regress_prepared_7';
COMMIT PREPARED 'regress_prepared_7';
SELECT regress_show(idem_begin('prepared', '7'));

-- a replay in a prepared transaction holds nothing
BEGIN;
SELECT regress_show(idem_begin('prepared', '7'));
CREATE TABLE prepared_effect ();
PREPARE TRANSACTION 'regress_prepared_8';
SELECT regress_claims();
SELECT regress_show(idem_begin('prepared', '7'));
ROLLBACK PREPARED 'regress_prepared_8';

-- an inbox: seen when it is committed
SELECT idem_create_session('prepared inbox', inbox => true);
BEGIN;
SELECT idem_once('prepared inbox', '1');
PREPARE TRANSACTION 'regress_prepared_9';
SET idempotence.wait = '10 ms';
SELECT regress_message($$SELECT idem_once('prepared inbox', '1')$$);
SELECT idem_once('prepared inbox', '2');
RESET idempotence.wait;
COMMIT PREPARED 'regress_prepared_9';
SELECT idem_once('prepared inbox', '1');
BEGIN;
SELECT idem_once('prepared inbox', '3');
PREPARE TRANSACTION 'regress_prepared_9';
ROLLBACK PREPARED 'regress_prepared_9';
SELECT idem_once('prepared inbox', '3');

-- a session made in a prepared transaction is there when it is committed
BEGIN;
SELECT idem_create_session('prepared session');
PREPARE TRANSACTION 'regress_prepared_10';
SELECT regress_message($$SELECT idem_lookup('prepared session', 'k')$$);
COMMIT PREPARED 'regress_prepared_10';
SELECT regress_show(idem_lookup('prepared session', 'k'));

SELECT idem_drop_session('prepared'), idem_drop_session('prepared inbox'), idem_drop_session('prepared session');
