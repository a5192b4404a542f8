-- Goal: whoever records outcomes that live for next to no time has no sweep turn the ring without end.
-- Method: nearly all that is recorded lives for a microsecond, in both of the segments that tell how long the next is kept. Days
-- pass by setting the segments' moments back. A sweep is cancelled if it does not come to its end.
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SELECT idem_create_session('brief') \g /dev/null
CREATE PROCEDURE pass_days(turn integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..2000 LOOP
    PERFORM idem_begin('brief', turn || '.' || i), idem_record('brief', turn || '.' || i, ttl => '1 microsecond');
  END LOOP;
  UPDATE idempotence.segment SET opened_at = opened_at - interval '9 days',
    closed_at = CASE WHEN isfinite(closed_at) THEN closed_at - interval '9 days' ELSE closed_at END;
END $$;
CALL pass_days(1);
SET statement_timeout = '60s';
CALL idempotence.idem_sweep();
CALL pass_days(2);
CALL idempotence.idem_sweep();
CALL pass_days(3);
CALL idempotence.idem_sweep();
DO $$ BEGIN
  ASSERT (SELECT last_value FROM idempotence.ring) <= 12, 'the ring turned too often';
  ASSERT (SELECT count(*) FROM idempotence.outcome_long WHERE expires_at <= now()) = 0, 'what has expired is left';
END $$;
\echo ok - outcomes that live for next to no time turn no ring
