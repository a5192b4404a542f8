-- Goal: a request whose effect is outside the database: begun with a lease, completed with its token, taken over when
-- the lease has run out. Every rule about leases, and what a token that was superseded gets.
-- Method: each step is a transaction of its own; leases run out by hand. Tokens have names: a, b and so on.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('lease', ttl => '1 hour');

-- begun: committed with its transaction, and kept beyond
BEGIN;
SELECT regress_take('a', t), t.expires_at BETWEEN now() + interval '1 hour' AND clock_timestamp() + interval '1 hour'
FROM idem_begin('lease', 'order-1', payload => '{"amount": 10}', lease => '1 hour') t;
SELECT regress_show(idem_lookup('lease', 'order-1'));
COMMIT;
SELECT regress_claims(), regress_kept('lease');
SELECT regress_show(idem_lookup('lease', 'order-1'));
-- in the way of others, who are told until when
SELECT regress_show(idem_begin('lease', 'order-1', wait => '0'));
SELECT regress_show(idem_begin('lease', 'order-1', payload => '{"amount": 10.0}', wait => '1 ms', lease => '1 minute'));
SELECT (idem_begin('lease', 'order-1', wait => '0')).expires_at = leased_until AND (idem_lookup('lease', 'order-1')).expires_at = leased_until
FROM idempotence.unfinished WHERE session = 'lease';
SELECT regress_claims();
-- another payload: refused, whether the lease runs or has run out
SELECT regress_error($$SELECT idem_begin('lease', 'order-1', payload => '{"amount": 11}')$$);
SELECT regress_lease_ends('lease', 'order-1');
SELECT regress_message($$SELECT idem_begin('lease', 'order-1', payload => '{"amount": 11}')$$);
-- extended: later, never sooner; run out it is as good as before, until somebody takes over
SELECT regress_show(idem_lookup('lease', 'order-1'));
SELECT idem_extend('lease', 'order-1', regress_token('a'), '1 hour') > clock_timestamp() + interval '59 minutes';
SELECT idem_extend('lease', 'order-1', regress_token('a'), '10 ms') > clock_timestamp() + interval '59 minutes';
SELECT regress_show(idem_lookup('lease', 'order-1')), regress_kept('lease');
-- how far it got
SELECT idem_checkpoint('lease', 'order-1', 'sent', '{"id": 7}', token => regress_token('a'));
SELECT regress_show(idem_lookup('lease', 'order-1')), regress_show(idem_begin('lease', 'order-1', wait => '0'));
SELECT regress_kept('lease');
-- recorded, in a transaction with other work
BEGIN;
SELECT idem_record('lease', 'order-1', '{"id": 7}', token => regress_token('a')) = (idem_lookup('lease', 'order-1')).expires_at;
SELECT regress_show(idem_begin('lease', 'order-1'));
SELECT regress_message($$SELECT idem_record('lease', 'order-1')$$);
COMMIT;
SELECT regress_kept('lease'), regress_claims();
SELECT regress_show(idem_begin('lease', 'order-1', payload => '{"amount": 10}', lease => '1 minute')), regress_show(idem_lookup('lease', 'order-1'));
SELECT regress_message($$SELECT idem_begin('lease', 'order-1', payload => '{"amount": 11}')$$);
-- with the same token again: the same answer, whatever is sent
SELECT idem_record('lease', 'order-1', '"other"', failed => true, token => regress_token('a'), ttl => '1 minute') = (idem_lookup('lease', 'order-1')).expires_at;
SELECT regress_show(idem_lookup('lease', 'order-1'));
-- but there is nothing any more to extend, to checkpoint or to release
SELECT regress_error($$SELECT idem_extend('lease', 'order-1', regress_token('a'), '1 minute')$$);
SELECT regress_message($$SELECT idem_checkpoint('lease', 'order-1', 'p', token => regress_token('a'))$$), regress_message($$SELECT idem_release('lease', 'order-1', token => regress_token('a'))$$);
SELECT regress_error($$SELECT idem_record('lease', 'order-1', token => 7)$$);

-- all in one transaction is allowed as well
BEGIN;
SELECT regress_take('a', idem_begin('lease', 'order-2', lease => '1 hour'));
SELECT idem_extend('lease', 'order-2', regress_token('a'), '2 hours') > now() + interval '119 minutes';
SELECT idem_checkpoint('lease', 'order-2', 'p', token => regress_token('a'));
-- but not without the token; and it is begun
SELECT regress_error($$SELECT idem_record('lease', 'order-2')$$);
SELECT regress_message($$SELECT idem_checkpoint('lease', 'order-2', 'p')$$), regress_message($$SELECT idem_release('lease', 'order-2')$$);
SELECT regress_error($$SELECT idem_begin('lease', 'order-2', lease => '1 minute')$$);
SELECT regress_message($$SELECT idem_settle('lease', 'order-2')$$);
SELECT idem_record('lease', 'order-2', '2', failed => true, token => regress_token('a'), ttl => '1 minute') IS NOT NULL;
SELECT regress_message($$SELECT idem_record('lease', 'order-2')$$);
COMMIT;
SELECT regress_show(idem_begin('lease', 'order-2')), regress_kept('lease');
-- in a later transaction record without a token does not know of the lease
SELECT regress_take('a', idem_begin('lease', 'order-3', lease => '1 hour'));
SELECT regress_error($$SELECT idem_record('lease', 'order-3')$$);
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-3', wait => '0'));
SELECT regress_error($$SELECT idem_record('lease', 'order-3')$$);
ROLLBACK;

-- released: the next one starts anew, with the point that was reached
SELECT idem_release('lease', 'order-3', token => regress_token('a'));
SELECT regress_show(idem_lookup('lease', 'order-3')), regress_kept('lease');
SELECT regress_error($$SELECT idem_record('lease', 'order-3', token => regress_token('a'))$$);
SELECT regress_take('b', idem_begin('lease', 'order-3', lease => '1 hour')), regress_token('b') > regress_token('a');
SELECT idem_checkpoint('lease', 'order-3', 'half way', '[3]', token => regress_token('b'));
SELECT idem_release('lease', 'order-3', token => regress_token('b'));
SELECT regress_show(idem_lookup('lease', 'order-3'));
SELECT regress_take('c', idem_begin('lease', 'order-3', lease => '1 hour'));
SELECT idem_record('lease', 'order-3', token => regress_token('c')) IS NOT NULL;
SELECT regress_kept('lease');

-- run out, for real: nobody challenges its holder, who may still do everything
SELECT regress_take('a', idem_begin('lease', 'order-4', lease => '10 ms')) IS NOT NULL;
SELECT pg_sleep(0.02);
SELECT regress_show(idem_lookup('lease', 'order-4'));
SELECT idem_checkpoint('lease', 'order-4', 'late', token => regress_token('a'));
SELECT regress_show(idem_lookup('lease', 'order-4'));
SELECT idem_extend('lease', 'order-4', regress_token('a'), '1 hour') > now();
SELECT regress_show(idem_lookup('lease', 'order-4'));
SELECT regress_lease_ends('lease', 'order-4');
SELECT idem_record('lease', 'order-4', '"late"', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_begin('lease', 'order-4'));
SELECT regress_take('a', idem_begin('lease', 'order-5', lease => '1 hour')), regress_lease_ends('lease', 'order-5');
SELECT idem_release('lease', 'order-5', token => regress_token('a'));
SELECT regress_show(idem_lookup('lease', 'order-5')), regress_kept('lease');

-- taken over: a higher token, one attempt more, the last checkpoint; and the former holder is refused everything
SELECT regress_take('a', idem_begin('lease', 'order-6', payload => '6', lease => '1 hour'));
SELECT idem_checkpoint('lease', 'order-6', 'sent', '{"id": 6}', token => regress_token('a'));
SELECT regress_lease_ends('lease', 'order-6');
BEGIN;
SELECT regress_take('b', idem_begin('lease', 'order-6', lease => '1 hour')), regress_token('b') > regress_token('a');
SELECT regress_show(idem_lookup('lease', 'order-6'));
COMMIT;
SELECT regress_kept('lease');
SELECT regress_error($$SELECT idem_record('lease', 'order-6', token => regress_token('a'))$$);
SELECT regress_message($$SELECT idem_checkpoint('lease', 'order-6', 'p', token => regress_token('a'))$$), regress_message($$SELECT idem_extend('lease', 'order-6', regress_token('a'), '1 hour')$$),
       regress_message($$SELECT idem_release('lease', 'order-6', token => regress_token('a'))$$);
-- the payload came along, though the last begin gave none
SELECT regress_message($$SELECT idem_begin('lease', 'order-6', payload => '7', wait => '0')$$);
-- and again
SELECT regress_lease_ends('lease', 'order-6');
SELECT regress_take('c', idem_begin('lease', 'order-6', lease => '1 hour')), regress_token('c') > regress_token('b');
SELECT idem_record('lease', 'order-6', '"by c"', token => regress_token('c')) IS NOT NULL;
SELECT regress_error($$SELECT idem_record('lease', 'order-6', token => regress_token('b'))$$);
SELECT regress_message($$SELECT idem_begin('lease', 'order-6', payload => '7')$$), regress_show(idem_begin('lease', 'order-6', payload => '6')), regress_kept('lease');
-- tokens rise, however fast one follows the other; only the last one holds
DO $$
DECLARE
  token  bigint;
  former bigint := 0;
BEGIN
  FOR n IN 1..50 LOOP
    token := (idem_begin('lease', 'often', lease => '1 hour')).token;
    ASSERT token > former, format('%s after %s', token, former);
    former := token;
    COMMIT;
    PERFORM regress_lease_ends('lease', 'often');
  END LOOP;
  PERFORM idem_record('lease', 'often', token => token);
END
$$;
SELECT regress_show(idem_lookup('lease', 'often')), regress_kept('lease');

-- a begin without a lease takes over as well, in its transaction
SELECT regress_take('a', idem_begin('lease', 'order-7', payload => '7', lease => '1 hour'));
SELECT idem_checkpoint('lease', 'order-7', 'sent', '7', token => regress_token('a'));
SELECT regress_lease_ends('lease', 'order-7');
-- rolled back: nobody took over
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-7'));
SELECT regress_message($$SELECT idem_record('lease', 'order-7', token => regress_token('a'))$$);
ROLLBACK;
SELECT regress_kept('lease');
BEGIN;
SELECT idem_checkpoint('lease', 'order-7', 'still at it', token => regress_token('a'));
COMMIT;
-- released: taken over, and left to the next; the former holder is fenced
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-7'));
SELECT idem_release('lease', 'order-7');
COMMIT;
SELECT regress_message($$SELECT idem_record('lease', 'order-7', token => regress_token('a'))$$), regress_kept('lease');
SELECT regress_show(idem_lookup('lease', 'order-7'));
-- checkpointed: its steps are done, so that there is no lease any more
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-7'));
SELECT idem_checkpoint('lease', 'order-7', 'further');
COMMIT;
SELECT regress_message($$SELECT idem_record('lease', 'order-7', token => regress_token('a'))$$), regress_kept('lease');
SELECT regress_show(idem_lookup('lease', 'order-7'));
-- recorded
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-7'));
SELECT idem_record('lease', 'order-7', '"done"') IS NOT NULL;
COMMIT;
SELECT regress_error($$SELECT idem_record('lease', 'order-7', token => regress_token('a'))$$);
SELECT regress_message($$SELECT idem_begin('lease', 'order-7', payload => '8')$$), regress_kept('lease');
-- recorded at once
SELECT regress_take('a', idem_begin('lease', 'order-8', lease => '1 hour')), regress_lease_ends('lease', 'order-8');
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-8'));
SELECT idem_record('lease', 'order-8', '"by another"') IS NOT NULL;
COMMIT;
SELECT regress_message($$SELECT idem_record('lease', 'order-8', token => regress_token('a'))$$), regress_show(idem_begin('lease', 'order-8')), regress_kept('lease');
-- neither: refused
SELECT regress_take('a', idem_begin('lease', 'order-9', lease => '1 hour')), regress_lease_ends('lease', 'order-9');
SELECT regress_message($$SELECT idem_begin('lease', 'order-9')$$);
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-9'));
COMMIT;
\echo :SQLSTATE
SELECT idem_record('lease', 'order-9', token => regress_token('a')) IS NOT NULL;

-- a step without a lease, then one with; a lease, then a step without
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-10', payload => '10'));
SELECT idem_checkpoint('lease', 'order-10', 'reserved', '10');
COMMIT;
SELECT regress_message($$SELECT idem_begin('lease', 'order-10', payload => '11', lease => '1 hour')$$);
SELECT regress_take('a', idem_begin('lease', 'order-10', lease => '1 hour')), regress_kept('lease');
SELECT idem_checkpoint('lease', 'order-10', 'paid', token => regress_token('a'));
SELECT idem_release('lease', 'order-10', token => regress_token('a'));
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-10', payload => '10'));
SELECT idem_record('lease', 'order-10') IS NOT NULL;
COMMIT;
SELECT regress_kept('lease'), regress_show(idem_lookup('lease', 'order-10'));

-- an outcome that has expired counts no more than none; a lease that has, neither
SELECT regress_take('a', idem_begin('lease', 'order-11', payload => '1', lease => '1 hour'));
SELECT idem_record('lease', 'order-11', token => regress_token('a'), ttl => '1 microsecond') IS NOT NULL;
SELECT regress_message($$SELECT idem_record('lease', 'order-11', token => regress_token('a'))$$);
SELECT regress_take('b', idem_begin('lease', 'order-11', payload => '2', lease => '1 hour'));
SELECT idem_checkpoint('lease', 'order-11', 'p', token => regress_token('b'));
SELECT regress_lease_ends('lease', 'order-11', '59 minutes');
SELECT regress_show(idem_lookup('lease', 'order-11'));
SELECT regress_message($$SELECT idem_begin('lease', 'order-11', payload => '3')$$);
SELECT regress_lease_ends('lease', 'order-11', '61 minutes');
SELECT regress_show(idem_lookup('lease', 'order-11'));
UPDATE idempotence.checkpoint SET written_at = written_at - interval '61 minutes' WHERE request = 'order-11';
SELECT regress_show(idem_lookup('lease', 'order-11'));
SELECT regress_take('c', idem_begin('lease', 'order-11', payload => '3', lease => '1 hour')), regress_token('c') > regress_token('b');
SELECT regress_message($$SELECT idem_record('lease', 'order-11', token => regress_token('b'))$$);
SELECT idem_release('lease', 'order-11', token => regress_token('c'));
DELETE FROM idempotence.checkpoint WHERE request = 'order-11';

-- nor does it bind the next one to its payload
SELECT regress_take('a', idem_begin('lease', 'order-13', payload => '1', lease => '1 hour')), regress_lease_ends('lease', 'order-13', '61 minutes');
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-13'));
SELECT idem_record('lease', 'order-13') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('lease', 'order-13', payload => '2'));
-- a checkpoint counts as long as the lease beside it does
SELECT regress_take('a', idem_begin('lease', 'order-14', lease => '2 hours'));
SELECT idem_checkpoint('lease', 'order-14', 'charged', '14', token => regress_token('a'));
UPDATE idempotence.checkpoint SET written_at = written_at - interval '61 minutes' WHERE request = 'order-14';
SELECT regress_show(idem_lookup('lease', 'order-14')), regress_lease_ends('lease', 'order-14');
SELECT regress_show(idem_lookup('lease', 'order-14'));
SELECT regress_take('b', idem_begin('lease', 'order-14', lease => '1 hour'));
SELECT idem_record('lease', 'order-14', token => regress_token('b')) IS NOT NULL;

-- tokens that no lease has
SELECT regress_error($$SELECT idem_record('lease', 'never', token => 7)$$);
SELECT regress_message($$SELECT idem_extend('lease', 'never', 7, '1 hour')$$), regress_message($$SELECT idem_release('lease', 'order-1', token => -1)$$);
-- under a claim of this transaction none is needed, and none is there
BEGIN;
SELECT regress_show(idem_begin('lease', 'order-12'));
SELECT regress_message($$SELECT idem_record('lease', 'order-12', token => 7)$$), regress_message($$SELECT idem_extend('lease', 'order-12', 7, '1 hour')$$);
SELECT idem_record('lease', 'order-12') IS NOT NULL;
COMMIT;

-- max_attempts: then it is given up, for good
SELECT idem_create_session('lease attempts', ttl => '1 hour', max_attempts => 2);
SELECT regress_take('a', idem_begin('lease attempts', 'k', payload => '1', lease => '1 hour')), regress_lease_ends('lease attempts', 'k');
SELECT regress_take('b', idem_begin('lease attempts', 'k', lease => '1 hour'));
SELECT regress_show(idem_begin('lease attempts', 'k', wait => '0', lease => '1 hour')), regress_lease_ends('lease attempts', 'k');
-- looking changes nothing, nor does what cannot write, or does not commit
SELECT regress_show(idem_lookup('lease attempts', 'k'));
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_begin('lease attempts', 'k')$$);
ROLLBACK;
BEGIN;
SELECT regress_show(idem_begin('lease attempts', 'k', lease => '1 hour'));
ROLLBACK;
SELECT regress_message($$SELECT idem_begin('lease attempts', 'k', payload => '2')$$);
SELECT regress_kept('lease attempts');
-- without a limit it would be taken over again
BEGIN;
SELECT idem_alter_session('lease attempts', max_attempts => 0);
SELECT regress_show(idem_begin('lease attempts', 'k', lease => '1 hour'));
ROLLBACK;
BEGIN;
SELECT idem_alter_session('lease attempts', max_attempts => 3);
SELECT regress_show(idem_begin('lease attempts', 'k', lease => '1 hour'));
ROLLBACK;
SELECT regress_show(idem_begin('lease attempts', 'k', payload => '1')), regress_kept('lease attempts');
SELECT regress_show(idem_begin('lease attempts', 'k', payload => '1', lease => '1 hour')), regress_message($$SELECT idem_begin('lease attempts', 'k', payload => '2')$$);
SELECT regress_error($$SELECT idem_record('lease attempts', 'k', token => regress_token('b'))$$);
-- recorded, released or extended in time it is none
SELECT regress_take('a', idem_begin('lease attempts', 'l', lease => '1 hour')), regress_lease_ends('lease attempts', 'l');
SELECT regress_take('b', idem_begin('lease attempts', 'l', lease => '1 hour'));
SELECT idem_release('lease attempts', 'l', token => regress_token('b'));
SELECT regress_take('a', idem_begin('lease attempts', 'l', lease => '1 hour')), regress_lease_ends('lease attempts', 'l');
SELECT regress_take('b', idem_begin('lease attempts', 'l', lease => '1 hour')), regress_lease_ends('lease attempts', 'l');
SELECT idem_record('lease attempts', 'l', '"after all"', token => regress_token('b')) IS NOT NULL;
SELECT regress_show(idem_begin('lease attempts', 'l'));
-- by idem_run too, with a checkpoint behind it; one attempt is enough for some
SELECT idem_alter_session('lease attempts', max_attempts => 1);
SELECT session, max_attempts FROM idempotence.sessions WHERE session LIKE 'lease%' ORDER BY session;
SELECT regress_take('a', idem_begin('lease attempts', 'm', lease => '1 hour'));
SELECT idem_checkpoint('lease attempts', 'm', 'p', token => regress_token('a'));
SELECT regress_lease_ends('lease attempts', 'm');
SELECT regress_show(idem_run('lease attempts', 'm', 'SELECT 1')), regress_kept('lease attempts');
SELECT regress_show(idem_run('lease attempts', 'm', 'SELECT 1'));

-- require_payload: asked for by each begin, not by what follows; time_keys: whoever began in time may be late
SELECT idem_create_session('lease payload', ttl => '1 hour', require_payload => true), idem_create_session('lease time', ttl => '1 hour', time_keys => true);
SELECT regress_message($$SELECT idem_begin('lease payload', 'k', lease => '1 hour')$$);
SELECT regress_take('a', idem_begin('lease payload', 'k', payload => '1', lease => '1 hour'));
SELECT idem_record('lease payload', 'k', token => regress_token('a')) IS NOT NULL;
SELECT regress_uuid7(now() - interval '59 minutes') AS key \gset
SELECT regress_take('a', idem_begin('lease time', upper(:'key'), lease => '1 hour'));
SELECT regress_show(idem_lookup('lease time', :'key')), regress_show(idem_begin('lease time', :'key'::uuid, wait => '0'));
UPDATE idempotence.session SET ttl = '58 minutes' WHERE name = 'lease time';
\c
-- the key is too old by now, but somebody is at work on it
SELECT regress_show(idem_begin('lease time', :'key', wait => '0')), regress_show(idem_settle('lease time', :'key', wait => '0')), regress_show(idem_lookup('lease time', :'key'));
SELECT idem_checkpoint('lease time', :'key'::uuid, 'p', token => regress_token('a'));
SELECT idem_record('lease time', :'key', token => regress_token('a')) IS NOT NULL, regress_kept('lease time');

-- a session that is dropped under a lease: its holder still records; others find no session, and later the outcome
SELECT regress_take('a', idem_begin('lease', 'dropped', lease => '1 hour')), regress_take('b', idem_begin('lease', 'dropped too', lease => '1 hour'));
SELECT idem_drop_session('lease');
SELECT regress_message($$SELECT idem_begin('lease', 'dropped')$$), regress_message($$SELECT idem_lookup('lease', 'dropped')$$), regress_message($$SELECT idem_record('lease', 'dropped')$$), regress_message($$SELECT idem_settle('lease', 'dropped')$$);
SELECT idem_extend('lease', 'dropped', regress_token('a'), '2 hours') > now();
SELECT idem_checkpoint('lease', 'dropped', 'p', token => regress_token('a'));
SELECT regress_kept('lease');
SELECT regress_message($$SELECT idem_record('lease', 'dropped', token => 7)$$);
SELECT idem_record('lease', 'dropped', '"after the drop"', token => regress_token('a')) IS NOT NULL;
SELECT idem_record('lease', 'dropped', '"again"', token => regress_token('a')) IS NOT NULL;
SELECT idem_create_session('lease', ttl => '1 hour');
SELECT regress_show(idem_begin('lease', 'dropped')), regress_show(idem_lookup('lease', 'dropped too')), regress_kept('lease');
SELECT idem_release('lease', 'dropped too', token => regress_token('b'));

DELETE FROM idempotence.checkpoint;
SELECT idem_drop_session('lease'), idem_drop_session('lease attempts'), idem_drop_session('lease payload'), idem_drop_session('lease time');
DELETE FROM regress_lease_token;
