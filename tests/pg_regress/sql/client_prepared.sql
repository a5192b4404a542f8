-- Goal: two-phase commit of numbered requests: a prepared transaction keeps its slot, its stream and its session,
-- and the answer comes with its commit.
-- Method: prepared, looked at from transactions of their own, then committed or rolled back.
-- Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on
SELECT regress_registered('any', idem_register(client => 'prepared', window_size => 3));
SELECT regress_registered('strict', idem_register(ordering => 'strict'));

-- the first outcome of a session, prepared: nobody else can be the first before it is decided
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '1'));
SELECT idem_record(regress_id('any'), 1, '"one"');
PREPARE TRANSACTION 'regress_client_prepared';
SELECT mode, objsubid - x'1DE0'::int AS class, bool_and(pid IS NULL) FROM pg_locks WHERE locktype = 'advisory' GROUP BY 1, 2 ORDER BY 2;
SELECT regress_session('any'), idem_position(regress_id('any'));
SELECT regress_show(idem_lookup(regress_id('any'), 1)), regress_show(idem_begin(regress_id('any'), 1, wait => '0')), regress_show(idem_begin(regress_id('any'), 1, payload => '2', wait => '1 ms'));
-- the next number of its slot is told to come later, not that it is out of sequence
SELECT regress_show(idem_begin(regress_id('any'), 4, wait => '0')), regress_show(idem_lookup(regress_id('any'), 4));
SELECT regress_message($$SELECT idem_run(regress_id('any'), '4', 'SELECT 1', wait => '0')$$);
SET idempotence.wait = 10;
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 2), idem_record(regress_id('any'), 2)$$);
SELECT regress_message($$SELECT idem_ack(regress_id('any'), 1)$$), regress_message($$SELECT idem_allocate(regress_id('any'), 1)$$);
RESET idempotence.wait;
-- what saves nothing goes on
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 2));
SELECT idem_release(regress_id('any'), 2);
COMMIT;
SELECT idem_heartbeat(regress_id('any')) > now();
COMMIT PREPARED 'regress_client_prepared';
SELECT regress_session('any'), regress_show(idem_begin(regress_id('any'), 1, payload => '1')), regress_message($$SELECT idem_begin(regress_id('any'), 1, payload => '2')$$);

-- a later one, rolled back: its slot is as it was
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 4));
SELECT idem_record(regress_id('any'), 4, '"four"');
SAVEPOINT s;
SELECT regress_show(idem_begin(regress_id('any'), 7));
ROLLBACK TO s;
PREPARE TRANSACTION 'regress_client_prepared';
-- a replay does not wait for the slot: until it is decided, 1 is still there
SELECT regress_show(idem_begin(regress_id('any'), 1)), regress_show(idem_lookup(regress_id('any'), 1)), regress_show(idem_lookup(regress_id('any'), 4));
-- what is given up while it is at work in the slot keeps its answer until then
SELECT idem_ack(regress_id('any'), 1);
SELECT request, response FROM idempotence.outcomes WHERE session = regress_id('any');
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 1, wait => '0')$$), regress_show(idem_lookup(regress_id('any'), 1));
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 2)), regress_show(idem_begin(regress_id('any'), 3));
SELECT idem_record(regress_id('any'), 2, '"two"'), idem_record(regress_id('any'), 3, '"three"');
COMMIT;
ROLLBACK PREPARED 'regress_client_prepared';
SELECT regress_show(idem_lookup(regress_id('any'), n)) FROM generate_series(1, 4) n;
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 4));
SELECT idem_record(regress_id('any'), 4, '"four, at last"');
COMMIT;

-- open at PREPARE: refused, and nothing is prepared
\set VERBOSITY sqlstate
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 5));
PREPARE TRANSACTION 'regress_client_prepared';
SELECT regress_told(:'LAST_ERROR_MESSAGE');
\set VERBOSITY default
SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database();
SELECT regress_claims(), regress_show(idem_lookup(regress_id('any'), 5));

-- a stream in strict order, prepared: all its numbers wait, another stream's do not
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 1));
SELECT idem_record(regress_id('strict'), 1, '"one"');
COMMIT;
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 2, last => 3));
SELECT idem_record(regress_id('strict'), 2, '"two and three"');
PREPARE TRANSACTION 'regress_client_prepared';
SELECT n, regress_show(idem_begin(regress_id('strict'), n, wait => '0')), regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(1, 4) n;
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 1, stream => 'other'));
SELECT idem_record(regress_id('strict'), 1, '"of the other"', stream => 'other');
COMMIT;
SELECT idem_position(regress_id('strict')), idem_position(regress_id('strict'), 'other');
COMMIT PREPARED 'regress_client_prepared';
SELECT idem_position(regress_id('strict')), regress_show(idem_begin(regress_id('strict'), 2, last => 3));
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 4));
SELECT idem_record(regress_id('strict'), 4, '"four"');
PREPARE TRANSACTION 'regress_client_prepared';
ROLLBACK PREPARED 'regress_client_prepared';
SELECT idem_position(regress_id('strict')), regress_show(idem_lookup(regress_id('strict'), 4));

-- an ack and an allocation, prepared: others wait with theirs, and so does who wants a slot that was emptied; but a
-- number brings its ack along without waiting
BEGIN;
SELECT idem_ack(regress_id('any'), 3), idem_allocate(regress_id('any'), 10);
PREPARE TRANSACTION 'regress_client_prepared';
SET idempotence.wait = 10;
SELECT regress_error($$SELECT idem_allocate(regress_id('any'), 1)$$);
SELECT regress_message($$SELECT idem_ack(regress_id('any'), 4)$$);
RESET idempotence.wait;
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 6, wait => '0'));
SELECT regress_show(idem_begin(regress_id('any'), 7, ack => 4));
SELECT idem_record(regress_id('any'), 7, '"seven"');
COMMIT;
SELECT idem_position(regress_id('any'));
ROLLBACK PREPARED 'regress_client_prepared';
SELECT idem_position(regress_id('any')), idem_allocate(regress_id('any'), 1), regress_show(idem_begin(regress_id('any'), 7));

-- no sign of life at PREPARE, nor when it is decided
SELECT regress_fall_silent('any', '4 minutes');
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 5));
SELECT idem_record(regress_id('any'), 5, '"five"');
PREPARE TRANSACTION 'regress_client_prepared';
COMMIT PREPARED 'regress_client_prepared';
SELECT regress_session('any');
-- in use in between, a session does not run out
SELECT regress_registered('silent', idem_register(timeout => '2 seconds'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('silent'), 1));
SELECT idem_record(regress_id('silent'), 1, '"one"');
PREPARE TRANSACTION 'regress_client_prepared';
SELECT regress_run_out('silent');
BEGIN;
SELECT regress_show(idem_begin(regress_id('silent'), 2)), regress_show(idem_begin(regress_id('silent'), 1, wait => '0'));
ROLLBACK;
COMMIT PREPARED 'regress_client_prepared';
SELECT regress_message($$SELECT idem_begin(regress_id('silent'), 2)$$), regress_show(idem_lookup(regress_id('silent'), 1));

-- fenced, prepared: the former one waits, to be told what became of it
SELECT regress_registered('former', idem_register(client => 'to be fenced'));
BEGIN;
SELECT regress_registered('newer', idem_register(client => 'to be fenced'));
PREPARE TRANSACTION 'regress_client_prepared';
SELECT regress_show(idem_begin(regress_id('former'), 1, wait => '0')), regress_show(idem_begin(regress_id('former'), 1, wait => '1 ms'));
SET idempotence.wait = 10;
SELECT regress_error($$SELECT idem_heartbeat(regress_id('former'))$$);
SELECT regress_message($$SELECT idem_close(regress_id('former'))$$);
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_client_prepared';
SELECT idem_heartbeat(regress_id('former')) > now();
BEGIN;
SELECT regress_registered('newest', idem_register(client => 'to be fenced'));
PREPARE TRANSACTION 'regress_client_prepared';
COMMIT PREPARED 'regress_client_prepared';
SELECT regress_message($$SELECT idem_begin(regress_id('former'), 1)$$);
SELECT idem_heartbeat(regress_id('newest')) > now();

-- saved by a prepared transaction alone, and not at work since a crash: nobody can tell yet
SELECT regress_registered('in doubt', idem_register(timeout => '7 days'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('in doubt'), 1));
SELECT idem_record(regress_id('in doubt'), 1, '1');
PREPARE TRANSACTION 'regress_client_prepared';
DELETE FROM idempotence.session_live WHERE id = regress_uuid('in doubt');
\c
SELECT regress_show(idem_begin(regress_id('in doubt'), 1)), regress_show(idem_lookup(regress_id('in doubt'), 1));
SELECT regress_error($$SELECT idem_heartbeat(regress_id('in doubt'))$$);
SELECT call, regress_message('SELECT ' || replace(call, 'ONE', 'regress_id(''in doubt'')'))
FROM unnest(ARRAY['idem_record(ONE, 1)', 'idem_ack(ONE, 1)', 'idem_allocate(ONE, 1)', 'idem_position(ONE)', 'idem_close(ONE)', 'idem_run(ONE, ''1'', ''SELECT 1'', wait => ''0'')']) WITH ORDINALITY AS c (call, place) ORDER BY place;
COMMIT PREPARED 'regress_client_prepared';
SELECT regress_show(idem_begin(regress_id('in doubt'), 1)), idem_position(regress_id('in doubt'));

SELECT regress_claims();
SELECT regress_close();
