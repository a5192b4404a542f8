-- Goal: the errors for what others hold at the moment: the request, its lease, the session, a table (55006 and 55P03).
-- Method: as in errors. A prepared transaction holds what is asked for, or a lease.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('errors busy', ttl => '1 hour'), idem_create_session('errors busy inbox', inbox => true);
SELECT regress_registered('newer', idem_register(client => 'errors busy'));
CREATE FUNCTION errors_caught(statement text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
  EXECUTE statement;
  RETURN 'no error';
EXCEPTION
  WHEN lock_not_available THEN RETURN 'lock_not_available';
  WHEN object_in_use THEN RETURN 'object_in_use';
END
$$;

-- 55006 object_in_use: this transaction is at work in the session
\set do 'SELECT idem_begin(regress_id(\'newer\'), 1), idem_close(regress_id(\'newer\'))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_begin(regress_id(\'newer\'), 1), idem_register(client => \'errors busy\')'
SELECT regress_error(:'do');
\set do 'SELECT idem_begin(regress_id(\'newer\'), 1), idem_register(client => \'errors busy\', resume => true)'
SELECT regress_error(:'do');

\set do 'SELECT idem_begin(regress_id(\'newer\'), 1), idem_ack(regress_id(\'newer\'), 2)'
SELECT regress_error(:'do');

\set do 'SELECT idem_begin(regress_id(\'newer\'), 1, lease => \'1 hour\'), idem_ack(regress_id(\'newer\'), 2)'
SELECT regress_error(:'do');
-- and a table that another transaction uses is not rewritten
BEGIN;
SELECT regress_show(idem_begin('errors busy', 'uses the table', lease => '1 hour'));
PREPARE TRANSACTION 'regress_errors';
\set do 'SELECT idem_set_persistence(\'claims\', \'unlogged\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
ROLLBACK PREPARED 'regress_errors';

-- 55P03 lock_not_available: a lease keeps the request, and the session
SELECT regress_registered('leased', idem_register(client => 'errors busy leased'));
SELECT regress_take('a', idem_begin('errors busy', 'leased', lease => '1 hour')), regress_take('b', idem_begin(regress_id('leased'), 1, lease => '1 hour'));
SET idempotence.wait = 1;
\set do 'SELECT idem_claim(\'errors busy\', \'leased\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_run(\'errors busy\', \'leased\', \'SELECT 1\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_forget(\'errors busy\', \'leased\', \'a test\')'
SELECT regress_error(:'do');
\set do 'SELECT idem_ack(regress_id(\'leased\'), 1)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_close(regress_id(\'leased\'))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_register(client => \'errors busy leased\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
RESET idempotence.wait;
SELECT idem_release('errors busy', 'leased', token => regress_token('a')), idem_release(regress_id('leased'), 1, token => regress_token('b'));

-- 55P03 lock_not_available: a prepared transaction holds the request, the session, a mark, a registration
BEGIN;
SELECT regress_show(idem_begin('errors busy', 'busy'));
SELECT idem_record('errors busy', 'busy') IS NOT NULL;
PREPARE TRANSACTION 'regress_errors';
SELECT regress_show(idem_begin('errors busy', 'busy', wait => '0'));
\set do 'SELECT idem_run(\'errors busy\', \'busy\', \'SELECT 1\', wait => \'1 ms\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
SET idempotence.wait = 1;
\set do 'SELECT idem_forget(\'errors busy\', \'busy\', \'a test\')'
SELECT regress_error(:'do');
RESET idempotence.wait;
-- the user's own bound, when it is the shorter one
SET lock_timeout = 1;
SELECT regress_error($$SELECT idem_begin('errors busy', 'busy')$$);
RESET lock_timeout;
ROLLBACK PREPARED 'regress_errors';
BEGIN;
SELECT idem_once('errors busy inbox', 'busy');
PREPARE TRANSACTION 'regress_errors';
SET idempotence.wait = 1;
\set do 'SELECT idem_once(\'errors busy inbox\', \'busy\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_errors';
BEGIN;
SELECT idem_drop_session('errors busy inbox');
PREPARE TRANSACTION 'regress_errors';
SET idempotence.wait = 1;
SELECT regress_error($$SELECT idem_drop_session('errors busy inbox')$$);
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_errors';
BEGIN;
SELECT idem_allocate(regress_id('newer'), 1);
PREPARE TRANSACTION 'regress_errors';
SET idempotence.wait = 1;
\set do 'SELECT idem_allocate(regress_id(\'newer\'), 1)'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_close(regress_id(\'newer\'))'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
\set do 'SELECT idem_register(client => \'errors busy\')'
SELECT regress_error(:'do');
SELECT errors_caught(:'do');
RESET idempotence.wait;
COMMIT PREPARED 'regress_errors';
BEGIN;
SELECT idem_ack(regress_id('newer'), 1);
PREPARE TRANSACTION 'regress_errors';
SET idempotence.wait = 1;
\set do 'SELECT idem_ack(regress_id(\'newer\'), 2)'
SELECT regress_error(:'do');
\set do 'SELECT idem_allocate(regress_id(\'newer\'), 1)'
SELECT regress_error(:'do');
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_errors';
BEGIN;
SELECT regress_registered('newest', idem_register(client => 'errors busy'));
PREPARE TRANSACTION 'regress_errors';
SET idempotence.wait = 1;
\set do 'SELECT idem_register(client => \'errors busy\')'
SELECT regress_error(:'do');
\set do 'SELECT idem_heartbeat(regress_id(\'newer\'))'
SELECT regress_error(:'do');
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_errors';

DROP FUNCTION errors_caught;
DELETE FROM regress_lease_token;
SELECT regress_close();
SELECT idem_drop_session('errors busy'), idem_drop_session('errors busy inbox');
