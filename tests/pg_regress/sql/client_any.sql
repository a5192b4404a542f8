-- Goal: numbers in any order: each state of a number and of its slot, in order, and what is refused.
-- Method: each step is a transaction of its own; idem_lookup, idem_position and the views say where we are.
\pset format unaligned
\pset tuples_only on
SELECT regress_registered('any', idem_register(window_size => 3));
-- Executes a number in a transaction of its own, or tells what it is answered.
CREATE PROCEDURE any_send(number bigint, payload jsonb DEFAULT NULL, ack bigint DEFAULT NULL, stream text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
  ticket idem_ticket;
BEGIN
  ticket := idem_begin(regress_id('any'), number, payload => payload, ack => ack, stream => stream);
  IF ticket.status = 'started' THEN
    PERFORM idem_record(regress_id('any'), number, to_jsonb('answer ' || number || coalesce(' of ' || stream, '')), stream => stream);
  END IF;
  RAISE INFO '%', regress_show(ticket);
EXCEPTION WHEN OTHERS THEN
  RAISE INFO '%: %', SQLSTATE, regress_told(SQLERRM);
END
$$;

-- unknown; looking saves nothing
SELECT regress_show(idem_lookup(regress_id('any'), 1));
SELECT idem_position(regress_id('any'));
SELECT regress_session('any');

-- started: two locks, of the slot and of the session in use, and no row
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '{"amount": 10}'));
SELECT objsubid = x'1DE5'::int AS session, mode, count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1, 2 ORDER BY 1;
SELECT regress_show(idem_lookup(regress_id('any'), 1));
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 1)$$), regress_message($$SELECT idem_begin(regress_id('any'), '01')$$);
SELECT regress_session('any');
-- recorded: an answer at once for this transaction, for the others when it commits; no moment at which it expires
SELECT idem_record(regress_id('any'), 1, '{"id": 1}') IS NULL;
SELECT regress_show(idem_lookup(regress_id('any'), 1));
SELECT regress_show(idem_begin(regress_id('any'), 1));
SELECT regress_message($$SELECT idem_record(regress_id('any'), 1)$$);
COMMIT;
SELECT regress_session('any');
SELECT regress_show(idem_lookup(regress_id('any'), 1));
-- replayed, by each name of the number, any number of times, and no lock is left of it
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '{"amount": 10.0}'));
SELECT regress_show(idem_begin(regress_id('any'), '1'));
SELECT regress_show(idem_begin(regress_id('any'), '0001', stream => '', last => 1, ack => 0));
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;
-- another payload: refused, and the answer stands; so it is by a session's other spellings
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 1, payload => '{"amount": 11}')$$);
SELECT regress_show(idem_begin(upper(regress_id('any')), 1)), regress_show(idem_lookup('{' || regress_uuid('any') || '}', 1)), regress_show(idem_lookup(replace(regress_uuid('any')::text, '-', ''), 1));
SELECT regress_message($$SELECT idem_begin(upper(regress_id('any')), 1, payload => '{"amount": 11}')$$);
BEGIN;
SELECT regress_show(idem_begin(upper(regress_id('any')), 2));
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 2)$$);
SELECT idem_record(regress_id('any'), '02', '{"id": 2}');
COMMIT;

-- failed for good: replayed like a success
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 3));
SELECT idem_record(regress_id('any'), 3, '{"error": "no such account"}', failed => true);
COMMIT;
SELECT regress_show(idem_begin(regress_id('any'), 3)), regress_show(idem_lookup(regress_id('any'), 3));

-- the window is full: 6 waits for 3, which is in; 7 for 4, which is not
SELECT idem_position(regress_id('any'));
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 7)$$);
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 4611686018427387904)$$);
SELECT regress_show(idem_lookup(regress_id('any'), 7));
CALL any_send(6);
SELECT idem_position(regress_id('any'));
-- 3 gave its slot to 6: discarded
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 3)$$);
SELECT regress_show(idem_lookup(regress_id('any'), 3));
-- the others are in their slots
SELECT regress_show(idem_begin(regress_id('any'), 1)), regress_show(idem_begin(regress_id('any'), 2));
-- in any order
CALL any_send(5);
CALL any_send(4);
CALL any_send(4);
CALL any_send(1);
CALL any_send(2);
SELECT request, status, response, stream, last, segment, recorded_by = current_user, expires_at IS NULL FROM idempotence.outcomes WHERE session = regress_id('any') ORDER BY request::bigint;

-- released, rolled back: as if it had never been begun
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 7));
SELECT idem_release(regress_id('any'), 7);
SELECT regress_claims();
SELECT regress_message($$SELECT idem_record(regress_id('any'), 7)$$);
COMMIT;
SELECT regress_show(idem_lookup(regress_id('any'), 7)), regress_show(idem_lookup(regress_id('any'), 4));
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 7));
SELECT idem_record(regress_id('any'), 7, '7');
SELECT regress_show(idem_lookup(regress_id('any'), 7)), regress_show(idem_lookup(regress_id('any'), 4));
ROLLBACK;
SELECT regress_show(idem_lookup(regress_id('any'), 7)), regress_show(idem_begin(regress_id('any'), 4));
-- released and begun again in one transaction
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 7));
SELECT idem_release(regress_id('any'), 7);
SELECT regress_show(idem_begin(regress_id('any'), 7));
SELECT idem_record(regress_id('any'), 7, '7');
COMMIT;

-- two numbers of one slot in one transaction: the second when the first is recorded
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 8)), regress_show(idem_begin(regress_id('any'), 9));
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 11)$$);
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 11, wait => '0')$$), regress_message($$SELECT idem_begin(regress_id('any'), 14)$$);
SELECT idem_record(regress_id('any'), 8, '8');
SELECT regress_show(idem_begin(regress_id('any'), 11));
-- 8 is still there until 11 is recorded
SELECT regress_show(idem_lookup(regress_id('any'), 8));
SELECT idem_record(regress_id('any'), 11, '11');
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 8)$$);
SELECT idem_record(regress_id('any'), 9, '9');
COMMIT;
SELECT regress_show(idem_lookup(regress_id('any'), n)) FROM generate_series(7, 12) n;
-- released, the first leaves the slot to nobody: the second builds on what was recorded
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 12));
SELECT idem_release(regress_id('any'), 12);
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 15)$$);
SELECT regress_show(idem_begin(regress_id('any'), 12));
SELECT idem_record(regress_id('any'), 12, '12');
SELECT regress_show(idem_begin(regress_id('any'), 15));
SELECT idem_record(regress_id('any'), 15, '15');
COMMIT;

-- acked: what was answered is discarded, and what is missing is given up
SELECT idem_position(regress_id('any'));
SELECT idem_ack(regress_id('any'), 12);
SELECT idem_position(regress_id('any'));
SELECT regress_show(idem_lookup(regress_id('any'), n)) FROM generate_series(9, 15) n;
SELECT n, regress_message(format('SELECT idem_begin(regress_id(''any''), %s)', n)) FROM generate_series(9, 12) n;
SELECT request FROM idempotence.outcomes WHERE session = regress_id('any') ORDER BY request::bigint;
-- the mark moves forward only
SELECT idem_ack(regress_id('any'), 10), idem_ack(regress_id('any'), 12), idem_ack(regress_id('any'), 0);
SELECT (idem_position(regress_id('any'))).acked;
-- far ahead: all below is given up, and the window starts there
SELECT idem_ack(regress_id('any'), 100);
SELECT idem_position(regress_id('any'));
CALL any_send(99);
CALL any_send(103);
CALL any_send(104);
CALL any_send(101);
CALL any_send(104);
SELECT idem_position(regress_id('any'));
-- said along with a number: it counts for that one at once, for the others when that is recorded
CALL any_send(105, ack => 101);
CALL any_send(105, ack => 102);
SELECT idem_position(regress_id('any'));
CALL any_send(101);
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 108, ack => 105));
SELECT (idem_position(regress_id('any'))).acked;
SELECT idem_record(regress_id('any'), 108);
SELECT (idem_position(regress_id('any'))).acked;
ROLLBACK;
SELECT (idem_position(regress_id('any'))).acked;
-- along with a replay it is not noted
CALL any_send(105, ack => 104);
SELECT (idem_position(regress_id('any'))).acked;
-- a number that is itself acked is over
CALL any_send(105, ack => 105);
CALL any_send(106, ack => 106);
SELECT (idem_position(regress_id('any'))).acked;
-- acked in the transaction that is at work on it: not before it is recorded, and then it is over
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 106));
SELECT regress_message($$SELECT idem_ack(regress_id('any'), 106)$$);
SELECT regress_show(idem_lookup(regress_id('any'), 106));
SELECT idem_record(regress_id('any'), 106, '106');
SELECT idem_ack(regress_id('any'), 106);
COMMIT;
SELECT regress_show(idem_lookup(regress_id('any'), 106)), idem_position(regress_id('any'));
-- undone with its transaction
BEGIN;
SELECT idem_ack(regress_id('any'), 1000);
SELECT idem_position(regress_id('any'));
ROLLBACK;
SELECT idem_position(regress_id('any'));

-- allocated: numbers handed out once, after all that was recorded, acked or handed out
SELECT idem_allocate(regress_id('any'), 3), idem_allocate(regress_id('any'), 1);
SELECT idem_position(regress_id('any'));
CALL any_send(111);
CALL any_send(107);
CALL any_send(110);
SELECT idem_position(regress_id('any'));
SELECT idem_allocate(regress_id('any'), 10000);
SELECT idem_position(regress_id('any'));
-- not handed out when undone
BEGIN;
SELECT idem_allocate(regress_id('any'), 5);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_allocate(regress_id('any'), 5);
ROLLBACK TO s;
SELECT idem_allocate(regress_id('any'), 5);
COMMIT;
SELECT idem_ack(regress_id('any'), 20000);
SELECT idem_allocate(regress_id('any'), 1), idem_position(regress_id('any'));

-- streams: each its own numbering, in the same session
CALL any_send(1, stream => 'a');
CALL any_send(2, stream => 'a');
CALL any_send(1, stream => 'b');
CALL any_send(1, stream => 'a');
CALL any_send(4, stream => 'b');
CALL any_send(4, stream => 'a');
CALL any_send(7, stream => 'b');
SELECT stream, idem_position(regress_id('any'), stream) FROM unnest('{a,b,c,A}'::text[]) stream;
SELECT idem_ack(regress_id('any'), 4, 'a');
SELECT idem_allocate(regress_id('any'), 2, 'b'), idem_allocate(regress_id('any'), 2, 'c');
SELECT stream, idem_position(regress_id('any'), stream) FROM unnest('{"",a,b,c}'::text[]) stream;
CALL any_send(1, stream => 'a');
CALL any_send(1, stream => 'b');
SELECT regress_show(idem_lookup(regress_id('any'), 4, stream => 'a')), regress_show(idem_lookup(regress_id('any'), 4, stream => 'b')), regress_show(idem_lookup(regress_id('any'), 4, stream => 'c'));
-- one number of two streams in one transaction are two requests
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 5, stream => 'a')), regress_show(idem_begin(regress_id('any'), 3, stream => 'b')), regress_show(idem_begin(regress_id('any'), 3, stream => repeat('€', 255)));
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 5, stream => 'a')$$);
SELECT regress_error($$SELECT idem_record(regress_id('any'), 5)$$);
SELECT regress_message($$SELECT idem_record(regress_id('any'), 5, stream => 'b')$$);
SELECT idem_record(regress_id('any'), 5, '5', stream => 'a'), idem_record(regress_id('any'), 3, '3', stream => 'b'), idem_release(regress_id('any'), 3, stream => repeat('€', 255));
COMMIT;
SELECT request, stream, response FROM idempotence.outcomes WHERE session = regress_id('any') AND stream <> '' ORDER BY stream COLLATE "C", request;

-- a window of one: one after the other
SELECT regress_registered('narrow', idem_register(window_size => 1));
BEGIN;
SELECT regress_show(idem_begin(regress_id('narrow'), 1));
SELECT regress_message($$SELECT idem_begin(regress_id('narrow'), 2)$$);
SELECT idem_record(regress_id('narrow'), 1);
SELECT regress_show(idem_begin(regress_id('narrow'), 2));
SELECT idem_record(regress_id('narrow'), 2);
COMMIT;
SELECT regress_show(idem_lookup(regress_id('narrow'), n)) FROM generate_series(1, 3) n;
-- as many rows as the windows of the streams are wide, whatever was sent
DO $$ BEGIN
  FOR n IN 3..1000 LOOP
    PERFORM idem_begin(regress_id('narrow'), n), idem_record(regress_id('narrow'), n, to_jsonb(n));
  END LOOP;
END $$;
SELECT stream, count(*) FROM idempotence.outcomes WHERE session = regress_id('narrow') GROUP BY stream;
SELECT regress_show(idem_begin(regress_id('narrow'), 1000)), regress_message($$SELECT idem_begin(regress_id('narrow'), 999)$$);

-- named streams have a limit, whichever way one comes; those that there are go on, and so does the session's own numbering
SELECT regress_registered('streams', idem_register());
SET idempotence.max_streams = 3;
SELECT idem_ack(regress_id('streams'), 1, 's1'), idem_allocate(regress_id('streams'), 1, 's2');
BEGIN;
SELECT regress_show(idem_begin(regress_id('streams'), 1, stream => 's3'));
SELECT idem_checkpoint(regress_id('streams'), 1, 'half way', stream => 's3');
COMMIT;
BEGIN;
SELECT regress_show(idem_begin(regress_id('streams'), 1, stream => 's4'));
SELECT regress_error($$SELECT idem_record(regress_id('streams'), 1, stream => 's4')$$);
SELECT regress_message($$SELECT idem_checkpoint(regress_id('streams'), 1, 'half way', stream => 's4')$$);
ROLLBACK;
SELECT regress_message($$SELECT idem_ack(regress_id('streams'), 1, 's4')$$), regress_message($$SELECT idem_allocate(regress_id('streams'), 1, 's4')$$);
SELECT s, n, (idem_begin(regress_id('streams'), n, stream => s)).status, idem_record(regress_id('streams'), n, stream => s)
FROM unnest('{"",s1,s2,s3}'::text[]) s, generate_series(2, 3) n;
SELECT point, idem_record(regress_id('streams'), 1, stream => 's3') FROM idem_begin(regress_id('streams'), 1, stream => 's3');
-- rolled back it was none
SET idempotence.max_streams = 4;
BEGIN;
SELECT idem_ack(regress_id('streams'), 1, 's4');
ROLLBACK;
SELECT idem_ack(regress_id('streams'), 1, 's5');
SELECT regress_message($$SELECT idem_ack(regress_id('streams'), 1, 's6')$$);
RESET idempotence.max_streams;

-- the last number there is
SELECT idem_ack(regress_id('narrow'), 4611686018427387903);
SELECT idem_position(regress_id('narrow'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('narrow'), 4611686018427387904));
SELECT idem_record(regress_id('narrow'), 4611686018427387904, '"the last"');
COMMIT;
SELECT regress_show(idem_begin(regress_id('narrow'), '4611686018427387904'));
SELECT regress_error($$SELECT idem_begin(regress_id('narrow'), 4611686018427387905)$$);
SELECT regress_error($$SELECT idem_allocate(regress_id('narrow'), 1)$$);
SELECT idem_position(regress_id('narrow'));

DROP PROCEDURE any_send;
SELECT regress_close();
