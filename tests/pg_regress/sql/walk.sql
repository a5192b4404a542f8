-- Goal: one request through every state there is, in order.
-- Method: each step is a transaction of its own; before and after it idem_lookup says where we are.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('walk', ttl => '1 hour');

-- unknown
SELECT regress_show(idem_lookup('walk', 'order-1'));

-- started: the claim is a lock of this transaction, and no row
BEGIN;
SELECT regress_claims();
SELECT regress_show(idem_begin('walk', 'order-1', payload => '{"amount": 10}'));
SELECT regress_claims();
SELECT regress_show(idem_lookup('walk', 'order-1'));
SELECT count(*) FROM idempotence.outcomes WHERE session = 'walk';

-- begun again by its holder: refused, and still begun
SAVEPOINT again;
SELECT idem_begin('walk', 'order-1', payload => '{"amount": 10}');
\echo :SQLSTATE
ROLLBACK TO again;
SELECT regress_show(idem_lookup('walk', 'order-1'));

-- recorded: an outcome at once for this transaction, for the others when it commits
SELECT idem_record('walk', 'order-1', '{"id": 1}')
       = (idem_lookup('walk', 'order-1')).expires_at;
SELECT regress_show(idem_lookup('walk', 'order-1'));
SELECT regress_claims();
COMMIT;
SELECT regress_claims();
SELECT regress_show(idem_lookup('walk', 'order-1'));

-- replayed, with the payload, with an equal one, without one, any number of times, and by number
SELECT regress_show(idem_begin('walk', 'order-1', payload => '{"amount": 10}'));
SELECT regress_show(idem_begin('walk', 'order-1', payload => '{"amount": 10.0}'));
SELECT regress_show(idem_begin('walk', 'order-1'));
SELECT regress_claims();

-- also in the transaction that recorded it, and beside other work
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-2'));
SELECT idem_record('walk', 'order-2', '2') IS NOT NULL;
SELECT regress_show(idem_begin('walk', 'order-2'));
SELECT regress_show(idem_begin('walk', 'order-1'));
COMMIT;

-- another payload: refused, and the outcome stands
SELECT idem_begin('walk', 'order-1', payload => '{"amount": 11}');
\echo :SQLSTATE
SELECT regress_show(idem_lookup('walk', 'order-1'));

-- failed for good: replayed like a success
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-3'));
SELECT idem_record('walk', 'order-3', '{"error": "no such account"}', failed => true) IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('walk', 'order-3'));
SELECT regress_show(idem_begin('walk', 'order-3'));

-- released: the transaction may commit, the lock stays until it does, a retry executes
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-4'));
SELECT idem_release('walk', 'order-4');
SELECT regress_claims();
COMMIT;
SELECT regress_claims();
SELECT regress_show(idem_lookup('walk', 'order-4'));

-- released and begun again in one transaction
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-4'));
SELECT idem_release('walk', 'order-4');
SELECT regress_show(idem_begin('walk', 'order-4'));
SELECT idem_record('walk', 'order-4', '4') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('walk', 'order-4'));

-- rolled back: as if it had never been begun
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-5'));
SELECT idem_record('walk', 'order-5', '5') IS NOT NULL;
ROLLBACK;
SELECT regress_show(idem_lookup('walk', 'order-5'));

-- checkpointed: commits step by step, and whoever begins it next goes on from there
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-6', payload => '[6]'));
SELECT idem_checkpoint('walk', 'order-6', 'reserved', '{"seat": "12A"}');
SELECT regress_show(idem_lookup('walk', 'order-6'));
COMMIT;
SELECT regress_show(idem_lookup('walk', 'order-6'));
SELECT idem_begin('walk', 'order-6', payload => '[7]');
\echo :SQLSTATE
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-6', payload => '[6]'));
SELECT idem_checkpoint('walk', 'order-6', 'charged');
COMMIT;
SELECT regress_show(idem_lookup('walk', 'order-6'));
-- released without a step further: it stays where it was
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-6'));
SELECT idem_release('walk', 'order-6');
COMMIT;
-- recorded, after one more step in the same transaction: the checkpoint goes with the outcome
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-6'));
SELECT idem_checkpoint('walk', 'order-6', 'sent');
SELECT idem_record('walk', 'order-6', '{"done": true}') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('walk', 'order-6'));
SELECT count(*) FROM idempotence.checkpoint;
-- the fingerprint came along from the first step, though the last two begins gave no payload
SELECT idem_begin('walk', 'order-6', payload => '[7]');
\echo :SQLSTATE

-- expired: absent, executed again, and its new outcome replayed
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-7', payload => '"first"'));
SELECT idem_record('walk', 'order-7', '"first"', ttl => '1 microsecond') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('walk', 'order-7'));
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-7', payload => '"second"'));
SELECT idem_record('walk', 'order-7', '"second"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('walk', 'order-7', payload => '"second"'));
SELECT request, response FROM idempotence.outcomes WHERE session = 'walk' AND request = 'order-7';

-- the execution that follows an expired one, rolled back: still unknown
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-8'));
SELECT idem_record('walk', 'order-8', '1', ttl => '1 microsecond') IS NOT NULL;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-8'));
SELECT idem_record('walk', 'order-8', '2') IS NOT NULL;
ROLLBACK;
SELECT regress_show(idem_lookup('walk', 'order-8'));

-- forgotten by an admin, who must say why: executed again
SELECT idem_forget('walk', 'order-7', 'the account was restored from last week''s backup');
SELECT regress_show(idem_lookup('walk', 'order-7'));
BEGIN;
SELECT regress_show(idem_begin('walk', 'order-7', payload => '"third"'));
SELECT idem_checkpoint('walk', 'order-7', 'half way');
COMMIT;
SELECT idem_forget('walk', 'order-7', 'the same again, half way');
SELECT regress_show(idem_lookup('walk', 'order-7'));
SELECT idem_forget('walk', 'order-3', 'the account was there after all');
SELECT idem_forget('walk', 'order-7', 'nothing is left of it');
SELECT by = current_user, action, session, request, reason, found FROM idempotence.audit ORDER BY at;

-- a number is a request like another, whichever overload meets it
BEGIN;
SELECT regress_show(idem_begin('walk', 42));
SELECT regress_show(idem_lookup('walk', '42'));
SELECT idem_checkpoint('walk', '42', 'here');
SELECT idem_release('walk', 42);
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('walk', '42'));
SELECT idem_checkpoint('walk', 42, 'there');
SELECT idem_record('walk', 42, '"by number"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('walk', 42));
SELECT regress_show(idem_begin('walk', '42'));
SELECT regress_show(idem_lookup('walk', 42));
SELECT regress_show(idem_begin('walk', '42 '));
SELECT idem_forget('walk', 42, 'by number');
SELECT regress_show(idem_lookup('walk', '42'));
SELECT regress_show(idem_lookup('walk', -9223372036854775808));

-- in PL/pgSQL, as a program would
CREATE FUNCTION walk_pay(key text, amount integer) RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
  ticket idem_ticket;
BEGIN
  ticket := idem_begin('walk', key, payload => jsonb_build_object('amount', amount));
  IF ticket.status <> 'started' THEN
    RETURN ticket.response;
  END IF;
  PERFORM idem_record('walk', key, jsonb_build_object('paid', amount));
  RETURN jsonb_build_object('paid', amount, 'now', true);
END
$$;
SELECT walk_pay('pay-1', 5);
SELECT walk_pay('pay-1', 5);
DROP FUNCTION walk_pay;
SELECT idem_drop_session('walk');
