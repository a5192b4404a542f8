-- Goal: a million outcomes are retired at the cost of ten thousand.
-- Method: the ring with a life of a second; a segment is filled, and the sweep that truncates it is timed, and beside it a
-- TRUNCATE of a plain table with as much in it, which is what the server itself takes to remove files of that size. The times are
-- told, and nothing is said of them; that nothing is left, and that what lives is still there, is asserted. A sweep leaves to the
-- next one what autovacuum has locked, so it is called until the segment is empty.
\set ON_ERROR_STOP on
\pset tuples_only on
\pset format unaligned
SELECT idem_create_session('retire', ttl => '1 second'), idem_create_session('stays', ttl => '1 hour') \g /dev/null
UPDATE idempotence.settings SET retention = '1 second';
UPDATE idempotence.segment SET keep = 1 WHERE number = 0;
SELECT setval('idempotence.keep', 1) \g /dev/null
SELECT idem_run('stays', 'k', 'SELECT 1') \g /dev/null
CREATE PROCEDURE retire(n integer) LANGUAGE plpgsql AS $$
DECLARE
  began timestamptz; took interval := '0'; bare interval; filled integer;
BEGIN
  -- An empty segment becomes the current one.
  FOR i IN 1..3 LOOP
    PERFORM pg_sleep(1.1);
    COMMIT;
    CALL idempotence.idem_sweep();
  END LOOP;
  SELECT last_value / 2 % 3 INTO filled FROM idempotence.ring;
  INSERT INTO idempotence.outcome SELECT s.id, filled, 's', clock_timestamp(), clock_timestamp() + interval '1 second', 'k' || k, 'x', NULL, NULL, '{"ok": true}'
  FROM generate_series(1, n) k, idempotence.session s WHERE s.name = 'retire';
  CREATE TABLE plain (LIKE idempotence.outcome INCLUDING ALL);
  INSERT INTO plain SELECT * FROM idempotence.outcome WHERE segment = filled;
  COMMIT;
  began := clock_timestamp();
  TRUNCATE plain;
  COMMIT;
  bare := clock_timestamp() - began;
  DROP TABLE plain;
  FOR i IN 1..30 LOOP
    PERFORM pg_sleep(1.1);
    COMMIT;
    began := clock_timestamp();
    CALL idempotence.idem_sweep();
    took := greatest(took, clock_timestamp() - began);
    EXIT WHEN i > 2 AND pg_relation_size(format('idempotence.outcome_%s', filled)::regclass) = 0;
  END LOOP;
  ASSERT (SELECT count(*) FROM idempotence.outcome o JOIN idempotence.session s ON s.id = o.session WHERE s.name = 'retire') = 0, 'something is left';
  ASSERT (idempotence.idem_lookup('stays', 'k')).status = 'succeeded', 'what lives is gone';
  RAISE INFO '% outcomes: the longest sweep took % ms, a plain TRUNCATE of as many % ms', n, round(extract(epoch FROM took) * 1000),
    round(extract(epoch FROM bare) * 1000);
END $$;
CALL retire(10000);
CALL retire(:n);
\echo ok - retired without a look at a row: see the two lines above
