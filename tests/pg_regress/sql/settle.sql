-- Goal: a settled request is either done, and its outcome is told, or it is never executed: neither by a copy that comes
-- late nor by a holder whose lease ran out.
-- Method: settling before, after and amid all that may become of a request; then begins, records and looks that come
-- later. Each step is a transaction of its own.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('settle', ttl => '1 hour'), idem_create_session('settle payload', ttl => '1 hour', require_payload => true),
       idem_create_session('settle time', ttl => '1 hour', time_keys => true), idem_create_session('settle inbox', inbox => true);

-- done before it: a replay, whatever came of it
SELECT regress_show(idem_run('settle', 'done', 'SELECT 1'));
SELECT regress_show(idem_settle('settle', 'done')), regress_show(idem_settle('settle', 'done', response => '"too late"')), regress_show(idem_begin('settle', 'done'));
BEGIN;
SELECT status FROM idem_begin('settle', 'failed');
SELECT idem_record('settle', 'failed', '"no"', failed => true) IS NOT NULL;
SELECT regress_show(idem_settle('settle', 'failed'));
COMMIT;
SELECT regress_show(idem_settle('settle', 'failed'));
SELECT regress_claims();

-- never seen: cancelled, in this transaction; from its commit on for everyone
BEGIN;
SELECT regress_show(idem_settle('settle', 'lost', response => '{"why": "no answer"}'));
SELECT regress_show(idem_begin('settle', 'lost')), regress_show(idem_settle('settle', 'lost'));
SELECT regress_claims();
ROLLBACK;
SELECT regress_show(idem_lookup('settle', 'lost'));
SELECT regress_show(idem_settle('settle', 'lost', response => '{"why": "no answer"}'));
SELECT regress_claims();
SELECT regress_show(idem_lookup('settle', 'lost')), regress_show(idem_begin('settle', 'lost', payload => '1')), regress_show(idem_begin('settle', 'lost', lease => '1 hour')), regress_show(idem_settle('settle', 'lost', response => '2'));
SELECT regress_show(idem_run('settle', 'lost', 'SELECT 1'));
SELECT regress_error($$SELECT idem_claim('settle', 'lost')$$);
SELECT request, status, response, recorded_by = current_user AS by FROM idempotence.outcomes WHERE session = 'settle' ORDER BY request;
-- whoever does not look at the answer is told what it was
BEGIN;
SELECT regress_show(idem_begin('settle', 'lost'));
SELECT regress_error($$SELECT idem_record('settle', 'lost', '"done"')$$);
ROLLBACK;
SELECT regress_error($$SELECT idem_record('settle', 'lost', token => 7)$$);

-- by number, by uuid, where a payload is asked for, where keys tell their age, in a session of which none is asked
SELECT regress_show(idem_settle('settle', 42)), regress_show(idem_begin('settle', '42'));
SELECT regress_show(idem_settle('settle', '01890A5D-AC96-774B-BCCE-B302099A8057'::uuid)), regress_show(idem_lookup('settle', '01890a5d-ac96-774b-bcce-b302099a8057'));
SELECT regress_show(idem_settle('settle payload', 'k')), regress_show(idem_begin('settle payload', 'k', payload => '1'));
SELECT regress_uuid7(now()) AS young, regress_uuid7(now() - interval '61 minutes') AS old, regress_uuid7(now() + interval '1 hour') AS ahead \gset
SELECT status FROM idem_settle('settle time', upper(:'young')) UNION ALL SELECT status FROM idem_begin('settle time', :'young');
SELECT regexp_replace(regress_message(format('SELECT idem_settle(''settle time'', %L)', key)), '"[0-9a-f-]{36}"', '"…"') FROM unnest(ARRAY[:'old', :'ahead', 'no uuid']) key;
SELECT regress_error($$SELECT idem_settle('settle inbox', 'k')$$);
SELECT regress_message($$SELECT idem_settle('settle', '')$$), regress_message($$SELECT idem_settle('settle', 'k', stream => 's')$$), regress_message($$SELECT idem_settle('settle', 'k', wait => '-1 s')$$), regress_message($$SELECT idem_settle('setle', 'k')$$);
SET idempotence.max_response = 64;
SELECT regress_message($$SELECT idem_settle('settle', 'k', response => to_jsonb(repeat('x', 64)))$$);
RESET idempotence.max_response;
BEGIN READ ONLY;
SELECT regress_show(idem_settle('settle', 'lost')), regress_show(idem_settle('settle', 'done'));
SELECT regress_error($$SELECT idem_settle('settle', 'k')$$);
ROLLBACK;
-- begun by the same transaction
BEGIN;
SELECT regress_show(idem_begin('settle', 'own'));
SELECT regress_error($$SELECT idem_settle('settle', 'own')$$);
SELECT idem_release('settle', 'own');
SELECT regress_show(idem_settle('settle', 'own'));
SELECT regress_message($$SELECT idem_record('settle', 'own')$$);
COMMIT;
SELECT regress_show(idem_begin('settle', 'own'));
-- expired it is as any: it may be executed
BEGIN;
SELECT idem_alter_session('settle', ttl => '1 second');
SELECT regress_show(idem_settle('settle', 'expires'));
COMMIT;
SELECT idem_alter_session('settle', ttl => '1 hour');
UPDATE idempotence.outcome_0 SET expires_at = recorded_at WHERE key = 'expires';
SELECT regress_show(idem_run('settle', 'expires', 'SELECT 1'));
-- in flight: not settled
BEGIN;
SELECT regress_show(idem_begin('settle', 'busy'));
SELECT idem_record('settle', 'busy', '"done"') IS NOT NULL;
PREPARE TRANSACTION 'regress_settle';
SELECT regress_show(idem_settle('settle', 'busy', wait => '0')), regress_show(idem_settle('settle', 'busy', wait => '1 ms'));
COMMIT PREPARED 'regress_settle';
SELECT regress_show(idem_settle('settle', 'busy'));
BEGIN;
SELECT regress_show(idem_settle('settle', 'in doubt'));
PREPARE TRANSACTION 'regress_settle';
SELECT regress_show(idem_settle('settle', 'in doubt', wait => '0')), regress_show(idem_begin('settle', 'in doubt', wait => '0')), regress_show(idem_lookup('settle', 'in doubt'));
ROLLBACK PREPARED 'regress_settle';
SELECT regress_show(idem_lookup('settle', 'in doubt'));

-- stopped at a checkpoint: cancelled, with how far it was; nothing goes on from there
BEGIN;
SELECT status FROM idem_begin('settle', 'half', payload => '1');
SELECT idem_checkpoint('settle', 'half', 'paid', '{"id": 7}');
COMMIT;
SELECT regress_show(idem_settle('settle', 'half')), regress_kept('settle');
SELECT regress_show(idem_begin('settle', 'half', payload => '1')), regress_show(idem_settle('settle', 'half'));
SELECT regress_message($$SELECT idem_begin('settle', 'half', payload => '2')$$);

-- leased: in the way while it lives; run out it is superseded
SELECT regress_take('a', idem_begin('settle', 'leased', payload => '1', lease => '1 hour'));
SELECT regress_show(idem_settle('settle', 'leased', wait => '0')), regress_show(idem_settle('settle', 'leased', wait => '10 ms'));
SELECT idem_checkpoint('settle', 'leased', 'sent', '[1]', token => regress_token('a')), regress_lease_ends('settle', 'leased');
BEGIN;
SELECT regress_show(idem_settle('settle', 'leased', response => '"given up"'));
ROLLBACK;
SELECT idem_extend('settle', 'leased', regress_token('a'), '10 ms') > now();
SELECT pg_sleep(0.02);
SELECT regress_take('b', idem_begin('settle', 'leased', lease => '1 hour')), regress_lease_ends('settle', 'leased');
SELECT regress_show(idem_settle('settle', 'leased', response => '"given up"')), regress_kept('settle');
SELECT regress_error($$SELECT idem_record('settle', 'leased', '"late"', token => regress_token('b'))$$);
SELECT regress_message($$SELECT idem_checkpoint('settle', 'leased', 'p', token => regress_token('b'))$$), regress_message($$SELECT idem_extend('settle', 'leased', regress_token('b'), '1 hour')$$), regress_message($$SELECT idem_release('settle', 'leased', token => regress_token('b'))$$), regress_message($$SELECT idem_record('settle', 'leased', token => regress_token('a'))$$);
SELECT regress_show(idem_begin('settle', 'leased', payload => '1', lease => '1 hour'));
SELECT regress_message($$SELECT idem_begin('settle', 'leased', payload => '2')$$);
-- recorded by its late holder first: then that is the verdict
SELECT regress_take('a', idem_begin('settle', 'late', lease => '1 hour')), regress_lease_ends('settle', 'late');
SELECT idem_record('settle', 'late', '"late, but done"', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_settle('settle', 'late'));
-- max_attempts does not make it a failure: it is settled
SELECT idem_alter_session('settle', max_attempts => 1);
SELECT regress_take('a', idem_begin('settle', 'attempts', lease => '1 hour')), regress_lease_ends('settle', 'attempts');
SELECT regress_show(idem_settle('settle', 'attempts'));
-- forgotten by an admin it may be executed after all
SELECT idem_forget('settle', 'attempts', 'a test');
SELECT found FROM idempotence.audit ORDER BY at;
DELETE FROM idempotence.audit;
SELECT regress_show(idem_run('settle', 'attempts', 'SELECT 1'));

-- numbers, in any order: the number is used up, its slot says so, and the one a window later may follow
SELECT regress_registered('any', idem_register(window_size => 2)), regress_registered('strict', idem_register(ordering => 'strict', window_size => 2));
SELECT regress_show(idem_settle(regress_id('any'), 1, response => '"never"')), idem_position(regress_id('any')), regress_session('any');
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '1')), regress_show(idem_lookup(regress_id('any'), 1)), regress_show(idem_settle(regress_id('any'), 1));
SELECT regress_message($$SELECT idem_claim(regress_id('any'), 1)$$), regress_message($$SELECT idem_settle(regress_id('any'), 4)$$);
SELECT regress_error($$SELECT idem_settle(regress_id('any'), 5)$$);
SELECT regress_show(idem_run(regress_id('any'), '3', 'SELECT 3')), regress_show(idem_settle(regress_id('any'), 3)), regress_show(idem_lookup(regress_id('any'), 1));
-- discarded: nobody can tell any more
SELECT regress_error($$SELECT idem_settle(regress_id('any'), 1)$$);
SELECT idem_ack(regress_id('any'), 4);
SELECT regress_message(format('SELECT idem_settle(regress_id(''any''), %s)', n)) FROM generate_series(3, 4) n;
-- over a lease that lives, and that ran out
SELECT regress_take('a', idem_begin(regress_id('any'), 5, lease => '1 hour'));
SELECT regress_show(idem_settle(regress_id('any'), 5, wait => '10 ms'));
SELECT idem_checkpoint(regress_id('any'), 5, 'sent', '5', token => regress_token('a')), regress_lease_ends(regress_id('any'), '5');
SELECT regress_show(idem_settle(regress_id('any'), 5)), regress_kept(regress_id('any'));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 5, token => regress_token('a'))$$), regress_show(idem_run(regress_id('any'), '7', 'SELECT 7'));
-- in a stream
SELECT regress_show(idem_settle(regress_id('any'), 1, stream => 's')), regress_show(idem_begin(regress_id('any'), 1, stream => 's')), idem_position(regress_id('any'), 's');
SELECT session = regress_id('any'), stream, request, status FROM idempotence.outcomes WHERE status = 'cancelled' AND stream IS NOT NULL;

-- in strict order: the stream goes on after it; a range is settled by its first number, as the range it was begun as
SELECT regress_message($$SELECT idem_settle(regress_id('strict'), 2)$$);
SELECT regress_show(idem_settle(regress_id('strict'), 1)), idem_position(regress_id('strict'));
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 1, last => 2)$$), regress_show(idem_begin(regress_id('strict'), 1));
BEGIN;
SELECT status FROM idem_begin(regress_id('strict'), 2, last => 4);
SELECT idem_checkpoint(regress_id('strict'), 2, 'half');
COMMIT;
SELECT regress_message($$SELECT idem_settle(regress_id('strict'), 3)$$);
SELECT regress_show(idem_settle(regress_id('strict'), 2)), idem_position(regress_id('strict'));
SELECT regress_show(idem_begin(regress_id('strict'), 2, last => 4)), regress_message($$SELECT idem_begin(regress_id('strict'), 2)$$);
SELECT n, regress_show(idem_settle(regress_id('strict'), n)), regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(1, 4) n;
SELECT regress_take('a', idem_begin(regress_id('strict'), 5, last => 9, lease => '1 hour')), regress_lease_ends(regress_id('strict'), '5');
SELECT regress_message($$SELECT idem_settle(regress_id('strict'), 10)$$);
-- by any of its numbers
BEGIN;
SELECT regress_show(idem_settle(regress_id('strict'), 7));
SELECT regress_show(idem_lookup(regress_id('strict'), 5)), idem_position(regress_id('strict'));
ROLLBACK;
SELECT idem_extend(regress_id('strict'), 5, regress_token('a'), '1 hour') > now();
SELECT regress_show(idem_settle(regress_id('strict'), 7, wait => '0')), regress_lease_ends(regress_id('strict'), '5');
SELECT regress_show(idem_settle(regress_id('strict'), 5)), idem_position(regress_id('strict')), regress_kept(regress_id('strict'));
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 5, token => regress_token('a'))$$);
-- a range that was done
BEGIN;
SELECT status FROM idem_begin(regress_id('strict'), 10, last => 12);
SELECT idem_record(regress_id('strict'), 10, '"10..12"');
COMMIT;
SELECT n, regress_show(idem_settle(regress_id('strict'), n)) FROM generate_series(10, 12) n;
SELECT regress_message($$SELECT idem_settle(regress_id('strict'), 3)$$);

-- in a session that has ended: nothing is executed any more, so nothing need be written
SELECT regress_take('a', idem_begin(regress_id('any'), 6, lease => '1 hour'));
SELECT idem_checkpoint(regress_id('any'), 6, 'sent', '6', token => regress_token('a')), regress_lease_ends(regress_id('any'), '6');
BEGIN;
SELECT status FROM idem_begin(regress_id('any'), 9);
SELECT idem_checkpoint(regress_id('any'), 9, 'half', '9');
COMMIT;
SELECT idem_close(regress_id('any'));
SELECT n, regress_show(idem_settle(regress_id('any'), n, response => '"ignored"')) FROM unnest('{6,7,9,10,11,1000}'::bigint[]) n;
SELECT regress_message(format('SELECT idem_settle(regress_id(''any''), %s)', n)) FROM unnest('{3,5}'::bigint[]) n;
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 9)$$), regress_show(idem_lookup(regress_id('any'), 9)), regress_show(idem_lookup(regress_id('any'), 6)), regress_show(idem_lookup(regress_id('any'), 10));
BEGIN READ ONLY;
SELECT regress_show(idem_settle(regress_id('any'), 10)), regress_show(idem_settle(regress_id('any'), 7));
COMMIT;
-- no claim is left of it
BEGIN;
SELECT regress_show(idem_settle(regress_id('any'), 10)), regress_claims();
COMMIT;
-- fenced; run out, which is written down first
SELECT regress_registered('former', idem_register(client => 'settle'));
SELECT regress_show(idem_run(regress_id('former'), '1', 'SELECT 1'));
SELECT regress_registered('newer', idem_register(client => 'settle', timeout => '2 seconds'));
SELECT n, regress_show(idem_settle(regress_id('former'), n)) FROM generate_series(1, 2) n;
SELECT regress_show(idem_run(regress_id('newer'), '1', 'SELECT 1'));
SELECT regress_run_out('newer');
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_settle(regress_id('newer'), 2)$$);
ROLLBACK;
SELECT regress_show(idem_settle(regress_id('newer'), 2)), ended FROM idempotence.sessions WHERE session = regress_id('newer');
SELECT ended FROM idempotence.sessions WHERE session = regress_id('newer');
SELECT regress_show(idem_settle(regress_id('newer'), 1)), regress_message($$SELECT idem_begin(regress_id('newer'), 2)$$);
-- of a session that nothing is known of nothing can be said
SELECT regress_error($$SELECT idem_settle('01890a5d-ac96-774b-bcce-b302099a8057', 1)$$);
-- by whoever may use the session, and nobody else
CREATE ROLE regress_settle;
SELECT idem_grant('regress_settle');
SELECT idem_alter_session('settle', usable_by => 'regress_settle');
SET ROLE regress_settle;
SELECT regress_show(idem_settle('settle', 'lent'));
SELECT regress_message($$SELECT idem_settle('settle payload', 'lent')$$), regress_message($$SELECT idem_settle(regress_id('strict'), 13)$$);
RESET ROLE;
SELECT idem_alter_session('settle', usable_by => '-');
SELECT regress_show(idem_begin('settle', 'lent'));
SELECT idem_revoke('regress_settle');
DROP ROLE regress_settle;

TRUNCATE idempotence.lease, idempotence.checkpoint;
SELECT regress_close();
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'settle%';
DELETE FROM regress_lease_token;
