-- Goal: what keeps a client session alive, when it ends, and what is told of it afterwards.
-- Method: regress_fall_silent lets time pass; regress_session shows the last sign of life written.
-- Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on
-- Uses the session as each function does, in a transaction of its own.
CREATE FUNCTION liveness_uses(name text) RETURNS TABLE (use text, told text) LANGUAGE plpgsql AS $$
BEGIN
  FOREACH use IN ARRAY ARRAY['idem_begin(ONE, 1)', 'idem_begin(ONE, 2)', 'idem_record(ONE, 1)', 'idem_checkpoint(ONE, 1, ''p'')', 'idem_release(ONE, 1)', 'idem_lookup(ONE, 1)', 'idem_lookup(ONE, 2)',
    'idem_run(ONE, ''1'', ''SELECT 1'')', 'idem_heartbeat(ONE)', 'idem_ack(ONE, 1)', 'idem_allocate(ONE, 1)', 'idem_position(ONE)', 'idem_close(ONE)'] LOOP
    told := regress_message(replace('SELECT ' || use, 'ONE', quote_literal(regress_id(name))));
    told := CASE WHEN told = 'RE000: no error' THEN 'answered' ELSE told END;
    RETURN NEXT;
  END LOOP;
END
$$;

-- a heartbeat says when the session would end now; the sign is written with the commit, when the last is older
-- than an eighth of the timeout
SELECT regress_registered('heart', idem_register(timeout => '80 minutes'));
BEGIN;
SELECT idem_heartbeat(regress_id('heart')) BETWEEN now() + interval '80 minutes' AND clock_timestamp() + interval '80 minutes';
COMMIT;
SELECT regress_fall_silent('heart', '9 minutes 30 seconds');
SELECT idem_heartbeat(regress_id('heart')) > now() + interval '79 minutes';
SELECT regress_session('heart');
SELECT regress_fall_silent('heart', '30 seconds');
BEGIN;
SELECT idem_heartbeat(regress_id('heart')) > now();
SELECT regress_session('heart');
COMMIT;
SELECT regress_session('heart');
-- undone with its transaction
SELECT regress_fall_silent('heart', '40 minutes');
BEGIN;
SELECT idem_heartbeat(regress_id('heart')) > now();
ROLLBACK;
SELECT regress_session('heart');
BEGIN;
SAVEPOINT s;
SELECT idem_heartbeat(regress_id('heart')) > now();
ROLLBACK TO s;
COMMIT;
SELECT regress_session('heart');
-- every use gives one: an execution, an ack, an allocation
BEGIN;
SELECT regress_show(idem_begin(regress_id('heart'), 1));
SELECT idem_record(regress_id('heart'), 1, '1');
COMMIT;
SELECT regress_session('heart');
SELECT regress_fall_silent('heart', '40 minutes');
SELECT idem_ack(regress_id('heart'), 0);
SELECT regress_session('heart');
SELECT regress_fall_silent('heart', '40 minutes');
SELECT idem_allocate(regress_id('heart'), 1);
SELECT regress_session('heart');
-- what only reads gives none: a replay, a look, a refusal
SELECT regress_fall_silent('heart', '40 minutes');
SELECT regress_show(idem_begin(regress_id('heart'), 1)), regress_show(idem_lookup(regress_id('heart'), 1)), idem_position(regress_id('heart')), regress_message($$SELECT idem_begin(regress_id('heart'), 7)$$);
BEGIN READ ONLY;
SELECT regress_show(idem_begin(regress_id('heart'), 1));
COMMIT;
SELECT regress_session('heart');
-- a transaction that was made read-only at its end gives none either, and commits
BEGIN;
SELECT idem_heartbeat(regress_id('heart')) > now();
SET TRANSACTION READ ONLY;
COMMIT;
SELECT regress_session('heart');
-- two sessions in one transaction
SELECT regress_registered('lung', idem_register(timeout => '80 minutes'));
SELECT regress_fall_silent('lung', '40 minutes');
SELECT idem_heartbeat(regress_id('heart')) > now(), idem_heartbeat(regress_id('lung')) > now();
SELECT regress_session('heart'), regress_session('lung');

-- silent for longer than the timeout, and an eighth of it, it has ended at that moment
SELECT regress_registered('silent', idem_register(timeout => '2 seconds'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('silent'), 1));
SELECT idem_record(regress_id('silent'), 1, '1');
COMMIT;
SELECT use, told FROM liveness_uses('silent');
SELECT regress_run_out('silent');
SELECT use, told FROM liveness_uses('silent');
SELECT regress_error($$SELECT idem_begin(regress_id('silent'), 1)$$);
SELECT regress_error($$SELECT idem_heartbeat(regress_id('silent'))$$);
-- a replay inside a read-only transaction is refused alike, and a look is answered
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_begin(regress_id('silent'), 1)$$);
SELECT regress_show(idem_lookup(regress_id('silent'), 1));
COMMIT;
-- one without an outcome is told the same as long as its row is there
SELECT regress_registered('silent unsaved', idem_register(timeout => '2 seconds'));
SELECT regress_run_out('silent unsaved');
SELECT use, told FROM liveness_uses('silent unsaved');

-- in use it neither runs out nor is closed, whatever its clock says
SELECT regress_registered('used', idem_register());
SELECT regress_fall_silent('used', '4 minutes');
BEGIN;
SELECT regress_show(idem_begin(regress_id('used'), 1));
SELECT regress_fall_silent('used', '1 hour');
SELECT regress_show(idem_begin(regress_id('used'), 2));
SELECT regress_error($$SELECT idem_close(regress_id('used'))$$);
SELECT idem_record(regress_id('used'), 1, '1'), idem_release(regress_id('used'), 2);
COMMIT;
SELECT regress_session('used');
-- a transaction of another's: waited for
BEGIN;
SELECT regress_show(idem_begin(regress_id('used'), 2));
SELECT idem_record(regress_id('used'), 2, '2');
PREPARE TRANSACTION 'regress_client_liveness';
SELECT regress_fall_silent('used', '1 hour');
SELECT regress_show(idem_begin(regress_id('used'), 1)), regress_show(idem_lookup(regress_id('used'), 2)), regress_show(idem_begin(regress_id('used'), 2, wait => '0'));
SELECT idem_heartbeat(regress_id('used')) > now();
SELECT regress_session('used');
SET idempotence.wait = 10;
SELECT regress_error($$SELECT idem_close(regress_id('used'))$$);
RESET idempotence.wait;
COMMIT PREPARED 'regress_client_liveness';

-- closed: at once and for good; whether it was alive
SELECT idem_close(regress_id('used')), idem_close(regress_id('used')), regress_session('used');
SELECT use, told FROM liveness_uses('used');
SELECT regress_error($$SELECT idem_begin(regress_id('used'), 1)$$);
SELECT regress_show(idem_lookup(regress_id('used'), 2)), idem_position(regress_id('used'));
-- undone with its transaction
SELECT regress_registered('closed', idem_register(client => 'closed'));
BEGIN;
SELECT idem_close(regress_id('closed')), idem_close(regress_id('closed'));
SELECT regress_message($$SELECT idem_heartbeat(regress_id('closed'))$$);
ROLLBACK;
SELECT idem_heartbeat(regress_id('closed')) > now();
-- in the transaction that used it last, also when a sign of life is due
SELECT regress_fall_silent('closed', '4 minutes');
BEGIN;
SELECT regress_show(idem_begin(regress_id('closed'), 1));
SELECT idem_record(regress_id('closed'), 1, '1');
SELECT idem_close(regress_id('closed'));
COMMIT;
SELECT regress_session('closed'), regress_message($$SELECT idem_begin(regress_id('closed'), 2)$$);
SELECT count(*) FROM idempotence.session_live WHERE id = regress_uuid('closed');
-- one that ran out is closed already
SELECT regress_registered('late', idem_register(timeout => '2 seconds'));
SELECT regress_run_out('late');
SELECT idem_close(regress_id('late'));
-- never used, it leaves no trace for others
SELECT regress_registered('unused', idem_register());
SELECT idem_close(regress_id('unused')), idem_close(regress_id('unused')), regress_session('unused') IS NULL;
\c
SELECT use, told FROM liveness_uses('unused');

-- saved and not at work, as after a crash: it counts as seen when the server came up, or the extension was made
SELECT regress_registered('crashed', idem_register(client => 'crashed', timeout => '7 days'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('crashed'), 1));
SELECT idem_record(regress_id('crashed'), 1, '1');
COMMIT;
SELECT regress_registered('crashed unsaved', idem_register());
DELETE FROM idempotence.session_live WHERE id IN (regress_uuid('crashed'), regress_uuid('crashed unsaved'));
SELECT regress_session('crashed');
SELECT regress_show(idem_begin(regress_id('crashed'), 1)), regress_show(idem_lookup(regress_id('crashed'), 2)), idem_position(regress_id('crashed'));
SELECT regress_message($$SELECT idem_begin(regress_id('crashed unsaved'), 1)$$);
BEGIN;
SELECT regress_show(idem_begin(regress_id('crashed'), 2));
SELECT idem_record(regress_id('crashed'), 2, '2');
COMMIT;
-- resumed, it is at work again; fenced or closed, it stays so
SELECT regress_registered('never', idem_register(client => 'crashed', resume => true));
SELECT regress_session('crashed');
DELETE FROM idempotence.session_live WHERE id = regress_uuid('crashed');
SELECT regress_registered('after', idem_register(client => 'crashed'));
SELECT regress_session('crashed'), regress_message($$SELECT idem_begin(regress_id('crashed'), 3)$$);
SELECT idem_ack(regress_id('after'), 1);
DELETE FROM idempotence.session_live WHERE id = regress_uuid('after');
SELECT idem_close(regress_id('after')), regress_message($$SELECT idem_begin(regress_id('after'), 2)$$);

DROP FUNCTION liveness_uses;
SELECT regress_close();
