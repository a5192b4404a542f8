-- Goal: numbers in strict order, alone and in ranges: what is accepted, replayed, refused, and where a stream stands.
-- Method: each step is a transaction of its own; after it idem_position says what is expected next.
\pset format unaligned
\pset tuples_only on
SELECT regress_registered('strict', idem_register(ordering => 'strict', window_size => 3));
-- Executes a range in a transaction of its own, or tells what it is answered; and where its stream stands then.
CREATE PROCEDURE strict_send(first bigint, last bigint DEFAULT NULL, payload jsonb DEFAULT NULL, ack bigint DEFAULT NULL, stream text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
  ticket  idem_ticket;
  told    text;
BEGIN
  BEGIN
    ticket := idem_begin(regress_id('strict'), first, payload => payload, last => last, ack => ack, stream => stream);
    IF ticket.status = 'started' THEN
      PERFORM idem_record(regress_id('strict'), first, to_jsonb(concat('answer ', first, '..' || last, ' of ' || stream)), stream => stream);
    END IF;
    told := regress_show(ticket);
  EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS told = PG_EXCEPTION_DETAIL;
    told := SQLSTATE || ': ' || CASE WHEN SQLSTATE IN ('ID006', '22023') THEN told ELSE SQLERRM END;
  END;
  RAISE INFO '% %', regress_told(told), idem_position(regress_id('strict'), coalesce(stream, ''));
END
$$;

-- the first is 1, the next always the last plus 1
SELECT idem_position(regress_id('strict'));
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 2)$$);
CALL strict_send(2);
CALL strict_send(2, last => 3);
CALL strict_send(1);
CALL strict_send(3);
CALL strict_send(2);
-- repeats of the newest three are replayed, in any order; older ones are discarded
CALL strict_send(1);
CALL strict_send(3);
CALL strict_send(4);
CALL strict_send(2);
CALL strict_send(1);
SELECT regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(1, 5) n;
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 1)$$);
-- another payload, for which one was given
CALL strict_send(5, payload => '1');
CALL strict_send(5, payload => '1.0');
CALL strict_send(5, payload => '2');
CALL strict_send(5);

-- a range is one request, named by its first number
CALL strict_send(6, last => 8);
CALL strict_send(6, last => 8);
CALL strict_send(9, last => 9);
CALL strict_send(9);
-- only the very same range is a repeat: parts, overlaps and supersets are none
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 7, last => 8)$$);
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 9, last => 10)$$);
CALL strict_send(6);
CALL strict_send(6, last => 7);
CALL strict_send(7);
CALL strict_send(6, last => 9);
CALL strict_send(5, last => 6);
CALL strict_send(8, last => 12);
CALL strict_send(1, last => 12);
-- one that overlaps what is no longer kept, and one that lies wholly in it
CALL strict_send(10, last => 12);
CALL strict_send(4, last => 20);
CALL strict_send(4, last => 5);
CALL strict_send(5, last => 5);
SELECT request, last, status, response FROM idempotence.outcomes WHERE session = regress_id('strict') ORDER BY request::bigint;
-- a range is looked up by any of its numbers
SELECT n, regress_show(idem_lookup(regress_id('strict'), n)) FROM generate_series(5, 13) n;
-- so is it recorded, released and checkpointed
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 13, last => 20, payload => '13'));
SELECT regress_show(idem_lookup(regress_id('strict'), 13));
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 14)$$), regress_message($$SELECT idem_release(regress_id('strict'), 20)$$);
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 13)$$);
SELECT idem_checkpoint(regress_id('strict'), 13, 'half of them', '16');
COMMIT;
SELECT idem_position(regress_id('strict'));
SELECT regress_show(idem_lookup(regress_id('strict'), 13));
-- from there on as the same range, or not at all
CALL strict_send(13, last => 19);
CALL strict_send(13);
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 13, last => 20));
SELECT idem_release(regress_id('strict'), 13);
SELECT regress_show(idem_begin(regress_id('strict'), 13, last => 20));
SELECT idem_record(regress_id('strict'), 13, '"all of them"');
COMMIT;
SELECT regress_show(idem_begin(regress_id('strict'), 13, last => 20, payload => '13')), idem_position(regress_id('strict'));
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 13, last => 20, payload => '14')$$);

-- two in one transaction: the second when the first is recorded, and released it is not
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 21));
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 22)$$);
SELECT idem_record(regress_id('strict'), 21, '21');
SELECT regress_show(idem_begin(regress_id('strict'), 22, last => 23));
SELECT idem_release(regress_id('strict'), 22);
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 24)$$);
SELECT regress_show(idem_begin(regress_id('strict'), 22));
SELECT idem_record(regress_id('strict'), 22, '22');
SELECT idem_position(regress_id('strict'));
ROLLBACK;
SELECT idem_position(regress_id('strict'));
-- failed is accepted as well: the next one follows it
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 21));
SELECT idem_record(regress_id('strict'), 21, '"no such account"', failed => true);
SELECT regress_show(idem_begin(regress_id('strict'), 22));
SELECT idem_record(regress_id('strict'), 22);
COMMIT;
CALL strict_send(21);
CALL strict_send(22);

-- acked: answers are discarded; below the last accepted nothing else changes
SELECT idem_ack(regress_id('strict'), 21);
SELECT idem_position(regress_id('strict'));
CALL strict_send(13, last => 20);
CALL strict_send(21);
CALL strict_send(22);
CALL strict_send(23, last => 25);
-- in the middle of a range it is still answered
SELECT idem_ack(regress_id('strict'), 24);
CALL strict_send(23, last => 25);
CALL strict_send(26, ack => 25);
CALL strict_send(23, last => 25);
-- ahead of the last accepted it gives up what lies between
SELECT idem_ack(regress_id('strict'), 30);
SELECT idem_position(regress_id('strict'));
CALL strict_send(27);
CALL strict_send(30, last => 31);
CALL strict_send(32);
CALL strict_send(31);
CALL strict_send(40, ack => 38);
CALL strict_send(40, ack => 39);
CALL strict_send(32);

-- streams: each its own line, in one session and one transaction
CALL strict_send(1, stream => 'a');
CALL strict_send(2, stream => 'b');
CALL strict_send(1, last => 100, stream => 'b');
CALL strict_send(101, stream => 'b');
CALL strict_send(101, stream => 'a');
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 2, last => 4, stream => 'a')), regress_show(idem_begin(regress_id('strict'), 102, stream => 'b')), regress_show(idem_begin(regress_id('strict'), 1, stream => 'c'));
SELECT regress_message($$SELECT idem_begin(regress_id('strict'), 5, stream => 'a')$$);
SELECT idem_record(regress_id('strict'), 2, '"2..4"', stream => 'a');
SELECT idem_release(regress_id('strict'), 102, stream => 'b');
SELECT regress_message($$SELECT idem_record(regress_id('strict'), 1)$$), regress_message($$SELECT idem_record(regress_id('strict'), 1, stream => 'a')$$);
SELECT idem_record(regress_id('strict'), 1, '"1"', stream => 'c');
SELECT regress_show(idem_begin(regress_id('strict'), 5, stream => 'a'));
SELECT idem_record(regress_id('strict'), 5, '"5"', stream => 'a');
COMMIT;
SELECT stream, idem_position(regress_id('strict'), stream) FROM unnest('{"",a,b,c,d}'::text[]) stream;
SELECT idem_ack(regress_id('strict'), 101, 'b');
CALL strict_send(1, last => 100, stream => 'b');
CALL strict_send(1, stream => 'c');
SELECT idem_ack(regress_id('strict'), 7, 'd');
CALL strict_send(8, stream => 'd');
SELECT stream, request, last FROM idempotence.outcomes WHERE session = regress_id('strict') ORDER BY stream COLLATE "C", request::bigint;

-- numbers are not handed out: there is only one next
SELECT regress_error($$SELECT idem_allocate(regress_id('strict'), 1)$$);

DROP PROCEDURE strict_send;
SELECT regress_close();
