-- Goal: leases of numbers: what they keep of a slot, a stream and a session, live or run out, and what comes of them.
-- Method: each step is a transaction of its own; leases run out by hand. Tokens have names: a, b and so on.
\pset format unaligned
\pset tuples_only on
SET idempotence.wait = 10;
SELECT regress_registered('any', idem_register(window_size => 3)), regress_registered('strict', idem_register(ordering => 'strict', window_size => 3));

-- in any order: begun, extended, checkpointed and recorded; a session is saved by a lease
SELECT regress_take('a', idem_begin(regress_id('any'), 1, payload => '1', lease => '1 hour'));
SELECT s.saved, s.expires_at = u.leased_until FROM idempotence.sessions s JOIN idempotence.unfinished u USING (session) WHERE s.session = regress_id('any');
SELECT regress_show(idem_lookup(regress_id('any'), 1)), regress_show(idem_begin(regress_id('any'), 1)), regress_show(idem_begin(regress_id('any'), '01', lease => '1 hour')), regress_kept(regress_id('any'));
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 1, payload => '2')$$);
SELECT idem_extend(regress_id('any'), '01', regress_token('a'), '2 hours') > now() + interval '119 minutes';
SELECT idem_checkpoint(regress_id('any'), 1, 'sent', '1', token => regress_token('a'));
SELECT regress_show(idem_lookup(regress_id('any'), 1)), idem_position(regress_id('any'));
SELECT idem_record(regress_id('any'), 1, '"one"', token => regress_token('a')) IS NULL;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '1')), regress_kept(regress_id('any')), idem_position(regress_id('any'));
SELECT idem_record(regress_id('any'), 1, '"again"', token => regress_token('a')) IS NULL, regress_show(idem_lookup(regress_id('any'), 1));
SELECT regress_error($$SELECT idem_release(regress_id('any'), 1, token => regress_token('a'))$$);
-- the next number of its slot waits for a live lease as it waits for a transaction
SELECT regress_take('b', idem_begin(regress_id('any'), 2, lease => '1 hour')), regress_take('c', idem_begin(regress_id('any'), 3, lease => '1 hour'));
SELECT regress_show(idem_begin(regress_id('any'), 5));
SELECT regress_show(idem_settle(regress_id('any'), 5));
SELECT regress_show(idem_begin(regress_id('any'), 5, ack => 2));
-- whoever would give it up with a lease of another slot waits no longer than told to
SET idempotence.wait = '1 h';
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 4, ack => 2, lease => '1 hour', wait => '0')$$);
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 4, ack => 2, lease => '1 hour', wait => '10 ms')$$);
SET idempotence.wait = 10;
-- other slots go on
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 4));
SELECT idem_record(regress_id('any'), 4, '"four"');
COMMIT;
-- it is given up by nobody while it lives; run out it is out of the way once it was acknowledged
SELECT regress_error($$SELECT idem_ack(regress_id('any'), 2)$$);
SELECT regress_lease_ends(regress_id('any'), '2');
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 5)$$);
-- with its number: 5 may follow, and the holder of 2 is fenced when that commits
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 5, ack => 2));
SELECT idem_record(regress_id('any'), 5, '"five"');
ROLLBACK;
SELECT idem_checkpoint(regress_id('any'), 2, 'still mine', token => regress_token('b')), regress_kept(regress_id('any'));
SELECT idem_ack(regress_id('any'), 2), regress_kept(regress_id('any')), idem_position(regress_id('any'));
SELECT regress_error($$SELECT idem_record(regress_id('any'), 2, token => regress_token('b'))$$);
SELECT regress_message($$SELECT idem_extend(regress_id('any'), 2, regress_token('b'), '1 hour')$$), regress_message($$SELECT idem_begin(regress_id('any'), 2)$$), regress_show(idem_lookup(regress_id('any'), 2));
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 5));
SELECT idem_record(regress_id('any'), 5, '"five"');
COMMIT;
-- given up by the lease that follows, which stores the mark
SELECT regress_lease_ends(regress_id('any'), '3');
SELECT regress_take('d', idem_begin(regress_id('any'), 6, ack => 3, lease => '1 hour')), idem_position(regress_id('any')), regress_kept(regress_id('any'));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 3, token => regress_token('c'))$$), regress_show(idem_lookup(regress_id('any'), 3));
-- a number is not given up by the very transaction that begins it
BEGIN;
SELECT regress_message($$SELECT idem_ack(regress_id('any'), 6)$$);
SELECT regress_take('e', idem_begin(regress_id('any'), 7, stream => 's', ack => 6, lease => '1 hour'));
SELECT regress_error($$SELECT idem_ack(regress_id('any'), 7, 's')$$);
ROLLBACK;
-- an acknowledgement below it waits for nothing
SELECT idem_ack(regress_id('any'), 5);
SELECT idem_record(regress_id('any'), 6, '"six"', token => regress_token('d')), idem_position(regress_id('any'));
-- acknowledged, its answer is kept no more, also for its holder
SELECT idem_ack(regress_id('any'), 6), idem_position(regress_id('any'));
SELECT regress_error($$SELECT idem_record(regress_id('any'), 6, token => regress_token('d'))$$);
-- taken over, by a lease and without one
SELECT regress_take('a', idem_begin(regress_id('any'), 7, payload => '7', lease => '1 hour')), regress_lease_ends(regress_id('any'), '7');
SELECT regress_take('b', idem_begin(regress_id('any'), 7, lease => '1 hour')), regress_token('b') > regress_token('a'), regress_kept(regress_id('any'));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 7, token => regress_token('a'))$$), regress_lease_ends(regress_id('any'), '7');
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 7));
SELECT idem_record(regress_id('any'), 7, '"seven"');
COMMIT;
SELECT regress_message($$SELECT idem_record(regress_id('any'), 7, token => regress_token('b'))$$), regress_kept(regress_id('any')), regress_message($$SELECT idem_begin(regress_id('any'), 7, payload => '8')$$);
-- a token is one number's, also where another has the slot
SELECT regress_take('a', idem_begin(regress_id('any'), 8, lease => '1 hour'));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 5, token => regress_token('a'))$$), regress_message($$SELECT idem_record(regress_id('any'), 11, token => regress_token('a'))$$), regress_message($$SELECT idem_record(regress_id('any'), 8, token => regress_token('a'), stream => 's')$$);
SELECT idem_release(regress_id('any'), 8, token => regress_token('a')), regress_kept(regress_id('any'));
-- in a stream
SELECT regress_take('a', idem_begin(regress_id('any'), 1, stream => 's', lease => '1 hour')), regress_kept(regress_id('any'));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 1, token => regress_token('a'))$$);
SELECT idem_checkpoint(regress_id('any'), 1, 'p', token => regress_token('a'), stream => 's'), idem_extend(regress_id('any'), 1, regress_token('a'), '1 hour', stream => 's') > now();
SELECT session = regress_id('any'), stream, request, state, attempt, point, last FROM idempotence.unfinished;
SELECT idem_record(regress_id('any'), 1, '"of s"', token => regress_token('a'), stream => 's'), regress_kept(regress_id('any'));

-- in strict order: a range is leased as a whole, and named by its first number
SELECT regress_take('a', idem_begin(regress_id('strict'), 1, last => 3, payload => '1', lease => '1 hour')), regress_kept(regress_id('strict')), idem_position(regress_id('strict'));
SELECT regress_show(idem_begin(regress_id('strict'), 1, last => 3)), regress_message($$SELECT idem_begin(regress_id('strict'), 1, last => 4)$$), regress_message($$SELECT idem_begin(regress_id('strict'), 1)$$);
SELECT n, regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(1, 4) n;
-- what follows waits for it, as for a transaction
SELECT regress_show(idem_begin(regress_id('strict'), 4));
SELECT regress_message($$SELECT idem_ack(regress_id('strict'), 2)$$), regress_message($$SELECT idem_ack(regress_id('strict'), 3)$$);
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 2, token => regress_token('a'))$$);
SELECT idem_checkpoint(regress_id('strict'), 1, 'half of them', token => regress_token('a')), regress_kept(regress_id('strict'));
SELECT idem_record(regress_id('strict'), 1, '"1..3"', token => regress_token('a')), idem_position(regress_id('strict'));
-- with the same token again: the same answer
SELECT idem_record(regress_id('strict'), 1, '"again"', token => regress_token('a')), regress_show(idem_lookup(regress_id('strict'), 1));
SELECT n, regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(1, 4) n;
SELECT regress_show(idem_begin(regress_id('strict'), 1, last => 3, payload => '1'));
-- run out, it goes on as the same range or not at all
SELECT regress_take('a', idem_begin(regress_id('strict'), 4, last => 6, lease => '1 hour')), regress_lease_ends(regress_id('strict'), '4');
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 4, last => 5)$$), regress_message($$SELECT idem_begin(regress_id('strict'), 4)$$), regress_message($$SELECT idem_begin(regress_id('strict'), 7)$$);
SELECT regress_take('b', idem_begin(regress_id('strict'), 4, last => 6, lease => '1 hour'));
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 4, token => regress_token('a'))$$);
-- with another stream beside it
SELECT regress_take('c', idem_begin(regress_id('strict'), 1, stream => 's', lease => '1 hour')), regress_kept(regress_id('strict'));
SELECT idem_record(regress_id('strict'), 4, '"4..6"', token => regress_token('b')), idem_position(regress_id('strict')), idem_position(regress_id('strict'), 's');
SELECT idem_record(regress_id('strict'), 1, '"of s"', token => regress_token('c'), stream => 's'), idem_position(regress_id('strict'), 's');
-- given up in the middle of the range, and after it
SELECT regress_take('a', idem_begin(regress_id('strict'), 7, last => 9, lease => '1 hour')), regress_lease_ends(regress_id('strict'), '7');
SELECT idem_ack(regress_id('strict'), 8), idem_position(regress_id('strict')), regress_kept(regress_id('strict'));
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 7, token => regress_token('a'))$$), regress_message($$SELECT idem_begin(regress_id('strict'), 7, last => 9)$$);
SELECT regress_take('a', idem_begin(regress_id('strict'), 9, lease => '1 hour')), regress_lease_ends(regress_id('strict'), '9');
SELECT regress_take('b', idem_begin(regress_id('strict'), 12, ack => 11, lease => '1 hour')), regress_kept(regress_id('strict')), idem_position(regress_id('strict'));
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 9, token => regress_token('a'))$$);
SELECT idem_release(regress_id('strict'), 12, token => regress_token('b')), idem_position(regress_id('strict'));

-- a lease keeps its session: it is neither closed, fenced nor run out
SELECT regress_registered('kept', idem_register(client => 'kept', timeout => '2 seconds'));
SELECT regress_take('a', idem_begin(regress_id('kept'), 1, lease => '1 hour'));
SELECT regress_error($$SELECT idem_close(regress_id('kept'))$$);
SELECT regress_error($$SELECT idem_register(client => 'kept', wait => '10 ms')$$);
SELECT regress_message($$SELECT idem_register(client => 'kept', wait => '0')$$);
SELECT regress_run_out('kept');
BEGIN;
SELECT regress_show(idem_begin(regress_id('kept'), 2)), idem_heartbeat(regress_id('kept')) > now();
ROLLBACK;
SELECT regress_run_out('kept');
CALL idem_sweep();
SELECT ended FROM idempotence.sessions WHERE session = regress_id('kept');
-- resumed it is handed over with its lease
SELECT regress_registered('kept', idem_register(client => 'kept', resume => true));
SELECT idem_record(regress_id('kept'), 1, '"done"', token => regress_token('a')), regress_show(idem_lookup(regress_id('kept'), 1));
-- with a lease that has run out it ends as any, and the holder is too late
SELECT regress_take('a', idem_begin(regress_id('kept'), 2, lease => '1 hour')), regress_lease_ends(regress_id('kept'), '2');
SELECT idem_extend(regress_id('kept'), 2, regress_token('a'), '1 hour') > now(), regress_message($$SELECT idem_close(regress_id('kept'))$$), regress_lease_ends(regress_id('kept'), '2');
SELECT regress_registered('newer', idem_register(client => 'kept', timeout => '2 seconds'));
SELECT regress_error($$SELECT idem_record(regress_id('kept'), 2, token => regress_token('a'))$$);
SELECT n, regress_show(idem_lookup(regress_id('kept'), n)) FROM generate_series(1, 3) n;
SELECT regress_take('a', idem_begin(regress_id('newer'), 1, lease => '1 hour'));
SELECT idem_checkpoint(regress_id('newer'), 1, 'half', token => regress_token('a')), regress_lease_ends(regress_id('newer'), '1'), regress_run_out('newer');
SELECT regress_error($$SELECT idem_record(regress_id('newer'), 1, token => regress_token('a'))$$);
SELECT regress_message($$SELECT idem_extend(regress_id('newer'), 1, regress_token('a'), '1 hour')$$), regress_message($$SELECT idem_begin(regress_id('newer'), 1)$$), regress_show(idem_lookup(regress_id('newer'), 1));
SELECT regress_registered('closed', idem_register());
SELECT regress_take('a', idem_begin(regress_id('closed'), 1, lease => '1 hour')), regress_lease_ends(regress_id('closed'), '1');
SELECT idem_close(regress_id('closed'));
SELECT regress_error($$SELECT idem_record(regress_id('closed'), 1, token => regress_token('a'))$$);
SELECT regress_show(idem_lookup(regress_id('closed'), 1)), regress_kept(regress_id('closed'));
-- a lease that runs out while it is waited for: then it is closed
SELECT regress_registered('short', idem_register());
SELECT regress_take('a', idem_begin(regress_id('short'), 1, lease => '100 ms')) IS NOT NULL;
SET idempotence.wait = '1 min';
SELECT idem_close(regress_id('short')), regress_message($$SELECT idem_record(regress_id('short'), 1, token => regress_token('a'))$$);
SELECT regress_registered('fenced', idem_register(client => 'short'));
SELECT regress_take('a', idem_begin(regress_id('fenced'), 1, lease => '100 ms')) IS NOT NULL;
SELECT regress_registered('fences', idem_register(client => 'short')), regress_message($$SELECT idem_record(regress_id('fenced'), 1, token => regress_token('a'))$$);
SELECT regress_take('a', idem_begin(regress_id('fences'), 1, lease => '100 ms')) IS NOT NULL;
SELECT idem_ack(regress_id('fences'), 1), regress_message($$SELECT idem_record(regress_id('fences'), 1, token => regress_token('a'))$$);

-- nothing but the client's own word gives a lease up: it is kept while its session is known
SELECT regress_told(session), request, state, attempt, point FROM idempotence.unfinished ORDER BY 1, 2;
TRUNCATE idempotence.lease, idempotence.checkpoint;
SELECT regress_close();
RESET idempotence.wait;
DELETE FROM regress_lease_token;
