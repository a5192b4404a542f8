-- Goal: numbered requests follow the rules of transactions as keyed ones do: savepoints, checkpoints, the check before
-- COMMIT, and idem_run.
-- Method: each case in a transaction of its own, looked at inside and after it.
\pset format unaligned
\pset tuples_only on
SELECT regress_registered('steps', idem_register(window_size => 3));

-- open at COMMIT: refused, by the name of the first; nothing of it stays, nor of the session
\set VERBOSITY sqlstate
CREATE TABLE steps_effect (id integer);
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
INSERT INTO steps_effect VALUES (1);
COMMIT;
SELECT regress_told(:'LAST_ERROR_MESSAGE');
SELECT count(*) FROM steps_effect;
SELECT regress_show(idem_lookup(regress_id('steps'), 1)), regress_claims(), regress_session('steps');
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1, stream => 'a')), regress_show(idem_begin(regress_id('steps'), 2, stream => 'a')), regress_show(idem_begin(regress_id('steps'), 1));
SELECT idem_record(regress_id('steps'), 1, stream => 'a');
COMMIT;
SELECT regress_told(:'LAST_ERROR_MESSAGE');
-- in autocommit
SELECT idem_begin(regress_id('steps'), 1);
SELECT regress_told(:'LAST_ERROR_MESSAGE');
-- as a warning, and not at all
SET idempotence.unrecorded = 'warning';
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
COMMIT;
SET idempotence.unrecorded = 'off';
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
COMMIT;
RESET idempotence.unrecorded;
SELECT regress_show(idem_lookup(regress_id('steps'), 1)), regress_session('steps');
DROP TABLE steps_effect;

-- begun inside a savepoint that is rolled back: not begun, its slot free, the session not in use
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
ROLLBACK TO s;
SELECT regress_show(idem_lookup(regress_id('steps'), 1)), regress_claims();
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = x'1DE5'::int;
SELECT regress_message($$SELECT idem_record(regress_id('steps'), 1)$$);
COMMIT;
-- recorded inside one that is rolled back: open again, the session not saved
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
SAVEPOINT s;
SELECT idem_record(regress_id('steps'), 1, '"inside"');
SELECT regress_session('steps');
ROLLBACK TO s;
SELECT regress_session('steps');
SELECT regress_show(idem_lookup(regress_id('steps'), 1)), idem_position(regress_id('steps'));
COMMIT;
SELECT regress_told(:'LAST_ERROR_MESSAGE');
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 1));
SAVEPOINT s;
SELECT idem_record(regress_id('steps'), 1, '"inside"');
ROLLBACK TO s;
SELECT idem_record(regress_id('steps'), 1, '"outside"');
COMMIT;
SELECT regress_show(idem_begin(regress_id('steps'), 1)), regress_session('steps');
-- a savepoint released: what happened inside is the transaction's
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin(regress_id('steps'), 2));
RELEASE s;
SAVEPOINT s;
SELECT idem_record(regress_id('steps'), 2, '2');
RELEASE s;
COMMIT;
SELECT regress_show(idem_begin(regress_id('steps'), 2));
-- an answer written over inside, rolled back: it is there again, and its slot another's to take
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin(regress_id('steps'), 4, ack => 1));
SELECT idem_record(regress_id('steps'), 4, '"inside"');
SELECT regress_show(idem_lookup(regress_id('steps'), 1)), idem_position(regress_id('steps'));
ROLLBACK TO s;
SELECT regress_show(idem_begin(regress_id('steps'), 1)), idem_position(regress_id('steps'));
SELECT regress_show(idem_begin(regress_id('steps'), 4));
SELECT idem_record(regress_id('steps'), 4, '"outside"');
COMMIT;
SELECT regress_show(idem_begin(regress_id('steps'), 4)), regress_show(idem_lookup(regress_id('steps'), 1)), idem_position(regress_id('steps'));
-- the second number of a slot inside, rolled back: the first stands
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 7));
SELECT idem_record(regress_id('steps'), 7, '7');
SAVEPOINT s;
SELECT regress_show(idem_begin(regress_id('steps'), 10));
SELECT idem_record(regress_id('steps'), 10, '10');
SELECT regress_show(idem_lookup(regress_id('steps'), 7));
ROLLBACK TO s;
SELECT regress_show(idem_lookup(regress_id('steps'), 7)), regress_show(idem_lookup(regress_id('steps'), 10));
COMMIT;
SELECT regress_show(idem_begin(regress_id('steps'), 7));
-- released inside, rolled back: open as before
BEGIN;
SELECT regress_show(idem_begin(regress_id('steps'), 10));
SAVEPOINT s;
SELECT idem_release(regress_id('steps'), 10);
ROLLBACK TO s;
SELECT regress_message($$SELECT idem_begin(regress_id('steps'), 10)$$), regress_message($$SELECT idem_begin(regress_id('steps'), 13)$$);
SELECT idem_record(regress_id('steps'), 10, '10');
COMMIT;
-- PL/pgSQL's exception blocks are savepoints; an error of our own, caught, leaves the request as it was
DO $$ BEGIN
  PERFORM idem_begin(regress_id('steps'), 13);
  BEGIN
    PERFORM idem_record(regress_id('steps'), 13);
    RAISE EXCEPTION 'declined';
  EXCEPTION WHEN raise_exception THEN
    NULL;
  END;
  BEGIN
    PERFORM idem_begin(regress_id('steps'), 19);
  EXCEPTION WHEN SQLSTATE 'ID006' THEN
    PERFORM idem_record(regress_id('steps'), 13, to_jsonb(SQLSTATE), failed => true);
  END;
END $$;
SELECT regress_show(idem_begin(regress_id('steps'), 13));
-- an ack and an allocation inside one that is rolled back are undone
BEGIN;
SAVEPOINT s;
SELECT idem_ack(regress_id('steps'), 13), idem_allocate(regress_id('steps'), 10);
SELECT idem_position(regress_id('steps'));
ROLLBACK TO s;
SELECT idem_position(regress_id('steps'));
SELECT idem_allocate(regress_id('steps'), 1);
COMMIT;
SELECT idem_position(regress_id('steps'));
-- a cursor that is closed: what it began is open, and locked
BEGIN;
SAVEPOINT s;
DECLARE c CURSOR FOR SELECT regress_show(idem_begin(regress_id('steps'), n, stream => 'cursor')) FROM generate_series(1, 2) n;
FETCH c;
CLOSE c;
SELECT regress_claims();
SELECT idem_record(regress_id('steps'), 1, stream => 'cursor');
COMMIT;

-- a checkpoint: the first thing that saves a session; whoever begins the number next goes on from there
SELECT regress_registered('points', idem_register(window_size => 3));
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 1, payload => '[1]'));
SELECT idem_checkpoint(regress_id('points'), 1, 'reserved', '{"seat": "12A"}');
SELECT regress_show(idem_lookup(regress_id('points'), 1));
COMMIT;
SELECT regress_session('points'), regress_show(idem_lookup(regress_id('points'), 1)), idem_position(regress_id('points'));
SELECT regress_message($$SELECT idem_begin(regress_id('points'), 1, payload => '[2]')$$);
-- it is no outcome: the next number of its slot waits for it, and never gets its point
SELECT regress_message($$SELECT idem_begin(regress_id('points'), 4)$$), regress_show(idem_lookup(regress_id('points'), 4));
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 1, payload => '[1]'));
SELECT idem_checkpoint(regress_id('points'), 1, 'charged');
SELECT idem_release(regress_id('points'), 1);
COMMIT;
SELECT regress_show(idem_lookup(regress_id('points'), '01'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 1));
SELECT idem_record(regress_id('points'), 1, '"done"');
COMMIT;
SELECT regress_show(idem_begin(regress_id('points'), 1)), count(*) FROM idempotence.checkpoint;
SELECT regress_message($$SELECT idem_begin(regress_id('points'), 1, payload => '[2]')$$);
-- given up by an ack, it stays behind with its number alone
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 2));
SELECT idem_checkpoint(regress_id('points'), 2, 'never continued');
COMMIT;
SELECT idem_ack(regress_id('points'), 2);
SELECT regress_message($$SELECT idem_begin(regress_id('points'), 2)$$), regress_show(idem_lookup(regress_id('points'), 2));
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 5));
SELECT idem_checkpoint(regress_id('points'), 5, 'its own');
COMMIT;
SELECT regress_show(idem_lookup(regress_id('points'), 5));
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 5, stream => 'other', ack => 2));
SELECT idem_release(regress_id('points'), 5, stream => 'other');
COMMIT;
-- rolled back inside a savepoint: the former point counts
BEGIN;
SELECT regress_show(idem_begin(regress_id('points'), 5));
SAVEPOINT s;
SELECT idem_checkpoint(regress_id('points'), 5, 'inside');
SELECT regress_show(idem_lookup(regress_id('points'), 5));
ROLLBACK TO s;
COMMIT;
SELECT regress_told(:'LAST_ERROR_MESSAGE');
SELECT regress_show(idem_lookup(regress_id('points'), 5));
\set VERBOSITY default
-- when its session has ended it still tells that its first steps are done
SELECT idem_close(regress_id('points'));
SELECT regress_show(idem_lookup(regress_id('points'), 5)), regress_show(idem_lookup(regress_id('points'), 4)), regress_message($$SELECT idem_begin(regress_id('points'), 5)$$);

-- idem_run over a number: executed once, replayed, failed for good, and refused in the words of a number
SELECT regress_registered('run', idem_register(window_size => 2));
SELECT regress_show(idem_run(regress_id('run'), '1', 'SELECT $1->>''a''', args => '{"a": "b"}'));
SELECT regress_show(idem_run(regress_id('run'), '1', 'SELECT $1->>''a''', args => '{"a": "b"}')), regress_show(idem_begin(regress_id('run'), 1));
SELECT regress_message($$SELECT idem_run(regress_id('run'), '1', 'SELECT 1', args => '{"a": "c"}')$$);
SELECT regress_show(idem_run(regress_id('run'), '2', 'SELECT 1 / 0', on_error => 'record'));
SELECT regress_show(idem_run(regress_id('run'), '2', 'SELECT 1', on_error => 'record'));
SELECT regress_message($$SELECT idem_run(regress_id('run'), '3', 'SELECT 1 / 0')$$), regress_show(idem_lookup(regress_id('run'), 3));
SELECT call, regress_message('SELECT idem_run(regress_id(''run''), ' || call || ')')
FROM unnest(ARRAY['''5'', ''SELECT 1''', '''k'', ''SELECT 1''', '''3'', ''SELECT 1'', ttl => ''1 hour''']) WITH ORDINALITY AS c (call, place) ORDER BY place;
CREATE TABLE steps_effect (id integer);
SELECT regress_show(idem_run(regress_id('run'), '3', 'INSERT INTO steps_effect VALUES (3)')), regress_show(idem_run(regress_id('run'), '3', 'INSERT INTO steps_effect VALUES (3)'));
SELECT count(*) FROM steps_effect;
DROP TABLE steps_effect;
SELECT regress_message($$SELECT idem_run(regress_id('run'), '1', 'SELECT 1')$$);
SELECT request, status, response FROM idempotence.outcomes WHERE session = regress_id('run') ORDER BY request::bigint;
-- a number begun in the command itself is another request
SELECT regress_show(idem_run(regress_id('run'), '4', $$SELECT regress_message('SELECT idem_begin(regress_id(''run''), 4)')$$));
SELECT regress_show(idem_run(regress_id('run'), '5', $$SELECT jsonb_build_array((idem_begin(regress_id('run'), 6)).status, idem_record(regress_id('run'), 6, '"inner"'))$$)), regress_show(idem_lookup(regress_id('run'), 6));
-- a checkpoint of a number is continued by hand
BEGIN;
SELECT regress_show(idem_begin(regress_id('run'), 7));
SELECT idem_checkpoint(regress_id('run'), 7, 'half way');
COMMIT;
SELECT regress_error($$SELECT idem_run(regress_id('run'), '7', 'SELECT 1')$$);

SELECT regress_claims();
SELECT regress_close();
