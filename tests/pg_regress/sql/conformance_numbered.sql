-- Goal: the cases that other systems have of numbered requests hold here, by their names: K is Apache Kafka (an
-- idempotent producer's epochs and sequence numbers), L is LogCabin (a Raft log's client sessions).
-- Method: each sends what the case sends. Kafka's numbers start at 0 and ours at 1, so its n is our n + 1; its epochs
-- are our registrations. LogCabin's first outstanding number n is our ack of n - 1.
-- Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on
CREATE TABLE conformance_effect (id bigint GENERATED ALWAYS AS IDENTITY, session text, first bigint, last bigint);
-- A server that takes what a client sends: executes once, and answers with the place that the effect got.
CREATE FUNCTION conformance_send(name text, first bigint, last bigint DEFAULT NULL, ack bigint DEFAULT NULL, payload jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
  ticket idem_ticket;
  answer bigint;
BEGIN
  ticket := idem_begin(regress_id(name), first, payload => payload, last => last, ack => ack, wait => '0');
  IF ticket.status = 'in_progress' THEN
    RETURN 'BUSY';
  ELSIF ticket.status <> 'started' THEN
    RETURN 'REPLAY ' || ticket.response::text;
  END IF;
  INSERT INTO conformance_effect (session, first, last) VALUES (name, conformance_send.first, coalesce(conformance_send.last, conformance_send.first)) RETURNING id INTO answer;
  PERFORM idem_record(regress_id(name), first, to_jsonb(answer));
  RETURN 'EXEC ' || answer;
EXCEPTION
  WHEN SQLSTATE 'ID001' THEN RETURN 'MISMATCH';
  WHEN SQLSTATE 'ID003' THEN RETURN 'OLD';
  WHEN SQLSTATE 'ID004' THEN RETURN 'GONE';
  WHEN SQLSTATE 'ID005' THEN RETURN 'FENCED';
  WHEN SQLSTATE 'ID006' THEN RETURN 'GAP';
  WHEN invalid_parameter_value THEN RETURN 'BADKEY';
END
$$;
-- The numbers of the answers that are kept, in their order.
CREATE FUNCTION conformance_kept(name text) RETURNS text LANGUAGE sql
RETURN (SELECT string_agg(concat_ws('..', request, nullif(last, request::bigint)), ' ' ORDER BY last) FROM idempotence.outcomes o
        WHERE CASE WHEN session = regress_id(name) THEN (idem_lookup(session, request)).status <> 'discarded' END);

\echo K-01 numbers one after the other are executed
SELECT regress_registered('K epoch 0', idem_register(client => 'K', ordering => 'strict'));
SELECT conformance_send('K epoch 0', 1), conformance_send('K epoch 0', 2);

\echo K-02 a number ahead of the next is refused, and changes nothing
SELECT conformance_send('K epoch 0', 6), idem_position(regress_id('K epoch 0'));

\echo K-03 we have no way past the kept answers; once the answer is dropped, a repeat is refused
SELECT regress_registered('K-03', idem_register(ordering => 'strict'));
SELECT conformance_send('K-03', 1), conformance_send('K-03', 2), conformance_send('K-03', 2);
SELECT idem_ack(regress_id('K-03'), 2);
SELECT conformance_send('K-03', 2), idem_position(regress_id('K-03'));

\echo K-04 a new registration starts at 1 and fences the former one
SELECT regress_registered('K epoch 1', idem_register(client => 'K', ordering => 'strict'));
SELECT conformance_send('K epoch 1', 1), conformance_send('K epoch 0', 1);

\echo K-05 the former one is fenced for what it has done too
SELECT conformance_send('K epoch 0', 1), conformance_send('K epoch 0', 2), conformance_send('K epoch 0', 3);

\echo K-06 a new registration must start at 1
SELECT conformance_send('K epoch 1', 2), conformance_send('K epoch 1', 3);
SELECT regress_registered('K epoch 2', idem_register(client => 'K', ordering => 'strict'));
SELECT conformance_send('K epoch 2', 6), conformance_send('K epoch 2', 1);

\echo K-07 K-08 K-09 K-10 we choose otherwise: numbers do not wrap around, they go up to 2 to the power of 62
SELECT regress_registered('K-07', idem_register(ordering => 'strict'));
SELECT idem_ack(regress_id('K-07'), 4611686018427387903);
-- K-09 a range past the end
SELECT conformance_send('K-07', 4611686018427387904, last => 4611686018427387905), conformance_send('K-07', 4611686018427387904, last => 10);
-- K-07 the first number after the last one
SELECT conformance_send('K-07', 4611686018427387904), conformance_send('K-07', 4611686018427387904), conformance_send('K-07', 0);
-- K-08 the second
SELECT conformance_send('K-07', 1);
-- K-10 the next number is the last plus 1
SELECT idem_position(regress_id('K-07')), conformance_send('K-07', 4611686018427387905);

\echo K-11 what is not committed is not visible: looked at from outside, before and after each commit
SELECT regress_registered('K-11', idem_register(ordering => 'strict'));
BEGIN;
SELECT conformance_send('K-11', 1, last => 6);
PREPARE TRANSACTION 'regress_conformance';
SELECT idem_position(regress_id('K-11')), conformance_kept('K-11');
COMMIT PREPARED 'regress_conformance';
SELECT idem_position(regress_id('K-11')), conformance_kept('K-11');
BEGIN;
SELECT conformance_send('K-11', 7, last => 11);
PREPARE TRANSACTION 'regress_conformance';
SELECT idem_position(regress_id('K-11')), conformance_kept('K-11');
COMMIT PREPARED 'regress_conformance';
SELECT idem_position(regress_id('K-11')), conformance_kept('K-11');

\echo K-12 a range sent again is answered as the first time
SELECT regress_registered('K-12', idem_register(ordering => 'strict', window_size => 5));
SELECT conformance_send('K-12', n) FROM generate_series(1, 6) n;
SELECT conformance_send('K-12', 7, last => 9), conformance_send('K-12', 7, last => 9);

\echo K-13 a part of it is no repeat
SELECT conformance_send('K-12', 8, last => 9), conformance_send('K-12', 7, last => 8), conformance_send('K-12', 9), idem_position(regress_id('K-12'));

\echo K-14 the five newest are answered, the sixth is not
SELECT conformance_kept('K-12');
SELECT conformance_send('K-12', 3), conformance_send('K-12', 2);

\echo K-15 the next one, and again
SELECT conformance_send('K-12', 10), conformance_send('K-12', 10);

\echo K-16 we choose otherwise: a repeat with another payload is refused; without one it is a repeat
SELECT conformance_send('K-12', 11, last => 13, payload => '"bytes"'), conformance_send('K-12', 11, last => 13, payload => '"other bytes"'),
       conformance_send('K-12', 11, last => 13, payload => '"bytes"'), conformance_send('K-12', 11, last => 13);

\echo K-17 we choose otherwise: each request is answered by itself, the repeated by its answer and the new by its execution
SELECT conformance_send('K-12', 11, last => 13), conformance_send('K-12', 14, last => 15), conformance_send('K-12', 16);

-- every effect of Kafka's cases, once
SELECT session, string_agg(concat_ws('..', first, nullif(last, first)), ' ' ORDER BY id) FROM conformance_effect GROUP BY session ORDER BY session COLLATE "C";

\echo L-01 a session that was just registered has done nothing; its id is made up by the server, a UUID rather than a log index
SELECT regress_registered('L', idem_register());
SELECT idem_position(regress_id('L')), conformance_kept('L') IS NULL, regress_session('L');

\echo L-02 a command of a session that is not known is not applied, and makes no session
INSERT INTO regress_client_session VALUES ('L unknown', '01890a5d-ac96-774b-bcce-b302099a8057');
SELECT conformance_send('L unknown', 3, ack => 1);
SELECT count(*) FROM idempotence.sessions WHERE session = regress_id('L unknown');

\echo L-03 the first number need not be 1: there is no check for gaps within the window
SELECT regress_fall_silent('L', '3 minutes');
SELECT conformance_send('L', 3, ack => 1);
SELECT idem_position(regress_id('L')), regress_session('L');

\echo L-04 sent again it is answered, its effect, undone by hand, is not made again
DELETE FROM conformance_effect WHERE session = 'L';
SELECT conformance_send('L', 3, ack => 1);
SELECT count(*) FROM conformance_effect WHERE session = 'L';

\echo L-05 below the first outstanding one it is over; the code is one of its own, not that of an ended session
SELECT idem_ack(regress_id('L'), 3);
SELECT conformance_send('L', 3);
SELECT count(*) FROM conformance_effect WHERE session = 'L';

\echo L-06 the first outstanding one never moves back
SELECT regress_registered('L-06', idem_register());
SELECT conformance_send('L-06', n) FROM unnest('{1,2,4,5}'::int[]) n;
SELECT idem_ack(regress_id('L-06'), 3);
SELECT conformance_kept('L-06'), (idem_position(regress_id('L-06'))).acked;
SELECT idem_ack(regress_id('L-06'), 2);
SELECT conformance_kept('L-06'), (idem_position(regress_id('L-06'))).acked;

\echo L-07 gone are those that were silent for longer than their timeout, and an eighth of it at most
SELECT regress_registered('L-07 at ' || at, idem_register(timeout => '2 seconds')) FROM unnest('{100,400,200,201,0}'::int[]) at;
-- one unit there is a second and a half here
SELECT regress_run_out('L-07 at ' || at, (202 - at) * interval '1.5 seconds') FROM unnest('{100,200,0,201}'::int[]) at;
SELECT at, regress_message(format('SELECT idem_heartbeat(regress_id(%L))', 'L-07 at ' || at)) FROM unnest('{100,400,200,201,0}'::int[]) at;

\echo L-08 a request that is a little late renews its session; we choose otherwise if it is later: it is refused, swept or not
SELECT regress_registered('L-08 late', idem_register(timeout => '1 hour')), regress_registered('L-08 later', idem_register(timeout => '2 seconds')), regress_registered('L-08 silent', idem_register(timeout => '2 seconds'));
SELECT regress_fall_silent('L-08 late', '67 minutes'), regress_run_out('L-08 later'), regress_run_out('L-08 silent');
SELECT conformance_send('L-08 late', 1);
SELECT regress_session('L-08 late');
SELECT conformance_send('L-08 later', 1), regress_message($$SELECT idem_heartbeat(regress_id('L-08 silent'))$$);

\echo L-09 a replay renews nothing; we choose otherwise as to its payload: it is compared when both times one was given
SELECT conformance_send('L-08 late', 2, payload => '1');
SELECT regress_fall_silent('L-08 late', '40 minutes');
SELECT conformance_send('L-08 late', 2, payload => '1');
SELECT regress_session('L-08 late');
SELECT conformance_send('L-08 late', 2, payload => '2'), conformance_send('L-08 late', 2);

\echo L-10 closed, a session is gone, and to close it again does nothing; we have no older version that ignores it
SELECT regress_registered('L-10 ' || n, idem_register()) FROM generate_series(2, 4) n;
SELECT idem_close(regress_id('L-10 3')), idem_close(regress_id('L-10 3'));
SELECT n, conformance_send('L-10 ' || n, 1) FROM generate_series(2, 4) n;

\echo L-11 what was saved comes back as it was: sessions, marks and answers
CREATE VIEW conformance_state AS
SELECT c.alias, p.*, conformance_kept(c.alias), regress_session(c.alias) FROM regress_client_session c, LATERAL (SELECT (idem_position(c.session)).*) p
WHERE c.alias IN ('L', 'L-06', 'L-08 late');
CREATE TABLE conformance_saved AS TABLE conformance_state;
BEGIN;
SELECT conformance_send('L', 4), conformance_send('L-06', 6), idem_close(regress_id('L-08 late'));
SELECT idem_ack(regress_id('L-06'), 4);
SELECT count(*) FROM (TABLE conformance_saved EXCEPT TABLE conformance_state) changed;
ROLLBACK;
SELECT count(*) FROM conformance_saved;
TABLE conformance_saved EXCEPT TABLE conformance_state;
DROP VIEW conformance_state;
DROP TABLE conformance_saved;

\echo L-12 a client that says with each number which is its first outstanding one: (1,1) (2,1) (3,2) (4,2) (5,4)
SELECT regress_registered('L-12', idem_register());
BEGIN;
SELECT (idem_begin(regress_id('L-12'), 1, ack => 0)).status, (idem_begin(regress_id('L-12'), 2, ack => 0)).status;
SELECT idem_record(regress_id('L-12'), 1), (idem_begin(regress_id('L-12'), 3, ack => 1)).status;
SELECT idem_record(regress_id('L-12'), 3), (idem_begin(regress_id('L-12'), 4, ack => 1)).status;
SELECT idem_record(regress_id('L-12'), 2), (idem_begin(regress_id('L-12'), 5, ack => 3)).status;
SELECT idem_record(regress_id('L-12'), 4), idem_record(regress_id('L-12'), 5);
COMMIT;
SELECT idem_position(regress_id('L-12')), conformance_kept('L-12');

\echo L-13 we choose otherwise: no keepalives of their own, whoever is silent sends a heartbeat, and at most eight a timeout are written
SELECT regress_registered('L-13', idem_register(timeout => '80 minutes'));
SELECT regress_fall_silent('L-13', '9 minutes');
SELECT ctid AS at FROM idempotence.session_live WHERE id = regress_uuid('L-13') \gset
SELECT idem_heartbeat(regress_id('L-13')) > now();
SELECT ctid = :'at' AS unchanged FROM idempotence.session_live WHERE id = regress_uuid('L-13');
SELECT regress_fall_silent('L-13', '1 minute');
SELECT ctid AS at FROM idempotence.session_live WHERE id = regress_uuid('L-13') \gset
SELECT idem_heartbeat(regress_id('L-13')) > now();
SELECT ctid = :'at' AS unchanged FROM idempotence.session_live WHERE id = regress_uuid('L-13');

SELECT session, string_agg(first::text, ' ' ORDER BY id) FROM conformance_effect WHERE session LIKE 'L%' GROUP BY session ORDER BY session COLLATE "C";
DROP FUNCTION conformance_send, conformance_kept;
DROP TABLE conformance_effect;
SELECT regress_close();
