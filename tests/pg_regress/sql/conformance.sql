-- Goal: the cases that other systems document of idempotency keys hold here, by their names:
-- I is the IETF's Idempotency-Key draft, S is Stripe's documentation.
-- Method: each sends what the case sends. I-04 and S-06 take two connections: see the isolation specs.
\pset format unaligned
\pset tuples_only on
CREATE TABLE conformance_effect (request text);
SELECT idem_create_session('conformance', ttl => '1 hour');
SELECT idem_create_session('conformance, other caller', ttl => '1 hour');
SELECT idem_create_session('conformance, payload required', ttl => '1 hour', require_payload => true);
-- An endpoint: refuses what is invalid before it begins, executes once, and answers as it answered.
CREATE FUNCTION conformance_post(session text, key text, body jsonb) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
  ticket idem_ticket;
BEGIN
  IF body ? 'malformed' THEN
    RETURN '400, not begun';
  END IF;
  ticket := idem_run(session, key, 'INSERT INTO conformance_effect SELECT $1->>''effect'' WHERE 1 / ($1->>''divisor'')::integer > 0 RETURNING request',
                     args => body, on_error => 'record');
  RETURN CASE WHEN ticket.replayed THEN 'REPLAY ' ELSE 'EXEC ' END || ticket.status || coalesce(' ' || (ticket.response->>'sqlstate'), ' ' || ticket.response::text, '');
END
$$;
CREATE FUNCTION conformance_effects() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM conformance_effect);

\echo I-01 a key never seen is executed
SELECT conformance_post('conformance', 'I-01', '{"effect": "I-01", "divisor": 1}'), conformance_effects();

\echo I-02 the same key and payload after success is answered with the result
SELECT conformance_post('conformance', 'I-01', '{"effect": "I-01", "divisor": 1}'), conformance_effects();

\echo I-03 the same key and payload after an error is answered with the error
SELECT conformance_post('conformance', 'I-03', '{"effect": "I-03", "divisor": 0}'), conformance_effects();
SELECT conformance_post('conformance', 'I-03', '{"effect": "I-03", "divisor": 0}'), conformance_effects();

\echo I-05 a key used before with another payload is refused
SELECT regress_error($$SELECT conformance_post('conformance', 'I-01', '{"effect": "I-05", "divisor": 1}')$$);
SELECT conformance_effects();

\echo I-06 a request without its key is refused
SELECT regress_error($$SELECT conformance_post('conformance', NULL, '{"effect": "I-06", "divisor": 1}')$$);
SELECT regress_message($$SELECT conformance_post('conformance', '', '{"effect": "I-06", "divisor": 1}')$$);
SELECT regress_message($$SELECT conformance_post('conformance, payload required', 'I-06', NULL)$$);

\echo I-07 a key is taken as it is: taking an HTTP header apart is left to the caller
SELECT conformance_post('conformance', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', '{"effect": "I-07", "divisor": 1}');
SELECT conformance_post('conformance', '8e03978e-40d5-43dd-bc93-6894a57f9324', '{"effect": "I-07", "divisor": 1}');
SELECT conformance_post('conformance', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', '{"effect": "I-07", "divisor": 1}');

\echo I-08 a key past its expiry is executed
DO $$ BEGIN
  PERFORM idem_run('conformance', 'I-08', 'INSERT INTO conformance_effect VALUES (''I-08'')', ttl => '1 microsecond');
END $$;
SELECT conformance_post('conformance', 'I-08', '{"effect": "I-08", "divisor": 1}');
SELECT count(*) FROM conformance_effect WHERE request = 'I-08';

\echo I-09 one key of two callers is two requests
SELECT conformance_post('conformance', 'I-09', '{"effect": "I-09", "divisor": 1}'), conformance_post('conformance, other caller', 'I-09', '{"effect": "I-09 of another", "divisor": 1}');
SELECT conformance_post('conformance', 'I-09', '{"effect": "I-09", "divisor": 1}'), conformance_post('conformance, other caller', 'I-09', '{"effect": "I-09 of another", "divisor": 1}');

\echo S-01 the same parameters after success: the same answer, marked as replayed
SELECT conformance_post('conformance', 'S-01', '{"effect": "S-01", "divisor": 1}');
SELECT t.replayed, t.response, t.recorded_at = l.recorded_at FROM idem_begin('conformance', 'S-01') t, idem_lookup('conformance', 'S-01') l;

\echo S-02 we choose otherwise: a server error (of ours, not for good) is not kept, and its retry executes
SELECT regress_message($$SELECT idem_run('conformance', 'S-02', 'DO $do$ BEGIN RAISE EXCEPTION ''disk full'' USING ERRCODE = ''53100''; END $do$', on_error => 'record')$$);
SELECT conformance_post('conformance', 'S-02', '{"effect": "S-02", "divisor": 1}');

\echo S-03 an error after execution began is kept; the corrected request needs a new key
SELECT conformance_post('conformance', 'S-03', '{"effect": "S-03", "divisor": 0}'), conformance_post('conformance', 'S-03', '{"effect": "S-03", "divisor": 0}');
SELECT regress_message($$SELECT conformance_post('conformance', 'S-03', '{"effect": "S-03", "divisor": 1}')$$);
SELECT conformance_post('conformance', 'S-03, corrected', '{"effect": "S-03", "divisor": 1}');

\echo S-04 other parameters, or another endpoint when it is in the payload, are refused
SELECT regress_message($$SELECT conformance_post('conformance', 'S-01', '{"effect": "S-01", "divisor": 2}')$$);
SELECT regress_message($$SELECT conformance_post('conformance', 'S-01', '{"effect": "S-01", "divisor": 1, "endpoint": "/refunds"}')$$);

\echo S-05 what fails validation before execution began is not kept
SELECT conformance_post('conformance', 'S-05', '{"malformed": true}'), (idem_lookup('conformance', 'S-05')).status;
SELECT conformance_post('conformance', 'S-05', '{"effect": "S-05", "divisor": 1}');

\echo S-07 what is refused before it is begun, for want of rights say, is not kept
CREATE ROLE regress_conformance;
SELECT idem_grant('regress_conformance');
SET ROLE regress_conformance;
SELECT regress_message($$SELECT conformance_post('conformance', 'S-07', '{"effect": "S-07", "divisor": 1}')$$);
RESET ROLE;
SELECT idem_revoke('regress_conformance');
DROP ROLE regress_conformance;
SELECT conformance_post('conformance', 'S-07', '{"effect": "S-07", "divisor": 1}');

\echo S-08 a key of 255 characters is accepted, one of 256 is not
SELECT conformance_post('conformance', repeat('8', 255), '{"effect": "S-08", "divisor": 1}');
SELECT regress_message($$SELECT conformance_post('conformance', repeat('8', 256), '{"effect": "S-08", "divisor": 1}')$$);

\echo S-09 within its lifetime a key is answered, after it executed: here the end is exact, not a floor
SELECT conformance_post('conformance', 'S-01', '{"effect": "S-01", "divisor": 1}');
SELECT idem_create_session('conformance, short', ttl => '1 second');
SELECT conformance_post('conformance, short', 'S-09', '{"effect": "S-09", "divisor": 1}');
SELECT pg_sleep(1.01);
SELECT conformance_post('conformance, short', 'S-09', '{"effect": "S-09", "divisor": 1}');

-- every effect once, but for the two keys of I-07 and the two outcomes that had expired
SELECT request, count(*) FROM conformance_effect GROUP BY request ORDER BY request COLLATE "C";
DROP FUNCTION conformance_post, conformance_effects;
DROP TABLE conformance_effect;
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'conformance%';
