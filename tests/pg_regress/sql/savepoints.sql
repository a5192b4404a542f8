-- Goal: the open list follows savepoints in both directions, and so does the claim.
-- Method: each case ends in COMMIT, which ID008 refuses if, and only if, a request is still open.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('savepoints', ttl => '1 hour');
CREATE TABLE savepoints_effect (step text);

-- begun inside, rolled back: not begun, its lock is gone, and the transaction may commit
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '1'));
SELECT regress_claims();
ROLLBACK TO s;
SELECT regress_claims();
SELECT regress_show(idem_lookup('savepoints', '1'));
SELECT regress_message($$SELECT idem_record('savepoints', '1')$$);
COMMIT;
-- and may be begun again
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '1'));
ROLLBACK TO s;
SELECT regress_show(idem_begin('savepoints', '1'));
SELECT idem_record('savepoints', '1', '1') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '1'));

-- recorded inside, rolled back: open again
BEGIN;
SELECT regress_show(idem_begin('savepoints', '2'));
SAVEPOINT s;
SELECT idem_record('savepoints', '2', '"inside"') IS NOT NULL;
SELECT regress_show(idem_lookup('savepoints', '2'));
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '2'));
SELECT regress_claims();
COMMIT;
\echo :SQLSTATE
-- and may be recorded
BEGIN;
SELECT regress_show(idem_begin('savepoints', '2'));
SAVEPOINT s;
SELECT idem_record('savepoints', '2', '"inside"') IS NOT NULL;
ROLLBACK TO s;
SELECT idem_record('savepoints', '2', '"outside"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '2'));

-- a savepoint released: what happened inside is the transaction's
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '3'));
RELEASE s;
COMMIT;
\echo :SQLSTATE
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '3'));
RELEASE s;
SELECT regress_claims();
SAVEPOINT s;
SELECT idem_record('savepoints', '3', '3') IS NOT NULL;
RELEASE s;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '3'));

-- nested: released into one that is rolled back
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT regress_show(idem_begin('savepoints', '4'));
SAVEPOINT c;
SELECT idem_record('savepoints', '4', '4') IS NOT NULL;
RELEASE c;
RELEASE b;
SELECT regress_show(idem_lookup('savepoints', '4'));
ROLLBACK TO a;
SELECT regress_show(idem_lookup('savepoints', '4'));
SELECT regress_claims();
COMMIT;
-- nested: begun outside, recorded in the innermost, the middle one rolled back
BEGIN;
SELECT regress_show(idem_begin('savepoints', '4'));
SAVEPOINT a;
SAVEPOINT b;
SELECT idem_record('savepoints', '4', '4') IS NOT NULL;
RELEASE b;
ROLLBACK TO a;
SELECT regress_show(idem_lookup('savepoints', '4'));
RELEASE a;
COMMIT;
\echo :SQLSTATE
-- nested: the innermost rolled back after the record, which stays
BEGIN;
SELECT regress_show(idem_begin('savepoints', '4'));
SAVEPOINT a;
SELECT idem_record('savepoints', '4', '"kept"') IS NOT NULL;
SAVEPOINT b;
INSERT INTO savepoints_effect VALUES ('4, undone');
ROLLBACK TO b;
RELEASE a;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '4'));
-- one name twice: the newest savepoint counts
BEGIN;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '5'));
SAVEPOINT s;
SELECT idem_record('savepoints', '5') IS NOT NULL;
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '5'));
RELEASE s;
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '5'));
COMMIT;

-- a checkpoint or a release inside, rolled back: open again, and the point is the former one
BEGIN;
SELECT regress_show(idem_begin('savepoints', '6'));
SAVEPOINT s;
SELECT idem_checkpoint('savepoints', '6', 'inside');
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '6'));
COMMIT;
\echo :SQLSTATE
BEGIN;
SELECT regress_show(idem_begin('savepoints', '6'));
SELECT idem_checkpoint('savepoints', '6', 'outside');
SAVEPOINT s;
SELECT idem_checkpoint('savepoints', '6', 'inside');
SELECT regress_show(idem_lookup('savepoints', '6'));
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '6'));
COMMIT;
SELECT regress_show(idem_lookup('savepoints', '6'));
-- a record that took the checkpoint along, rolled back: the checkpoint is there again
BEGIN;
SELECT regress_show(idem_begin('savepoints', '6'));
SAVEPOINT s;
SELECT idem_record('savepoints', '6') IS NOT NULL;
ROLLBACK TO s;
SELECT regress_show(idem_lookup('savepoints', '6'));
SELECT idem_record('savepoints', '6', '6') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('savepoints', '6'));
SELECT count(*) FROM idempotence.checkpoint;
BEGIN;
SELECT regress_show(idem_begin('savepoints', '7'));
SAVEPOINT s;
SELECT idem_release('savepoints', '7');
ROLLBACK TO s;
SELECT regress_message($$SELECT idem_begin('savepoints', '7')$$);
COMMIT;
\echo :SQLSTATE
-- released outside, begun again inside, rolled back: released
BEGIN;
SELECT regress_show(idem_begin('savepoints', '7'));
SELECT idem_release('savepoints', '7');
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '7'));
ROLLBACK TO s;
SELECT regress_message($$SELECT idem_record('savepoints', '7')$$);
SELECT regress_claims();
COMMIT;
-- released and begun again inside, rolled back: open as before
BEGIN;
SELECT regress_show(idem_begin('savepoints', '7'));
SAVEPOINT s;
SELECT idem_release('savepoints', '7');
SELECT regress_show(idem_begin('savepoints', '7'));
SELECT idem_record('savepoints', '7', '"inside"') IS NOT NULL;
ROLLBACK TO s;
SELECT idem_record('savepoints', '7', '"outside"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '7'));

-- a replay inside a savepoint that is rolled back leaves nothing, and takes nothing away
BEGIN;
SELECT regress_show(idem_begin('savepoints', '8'));
SELECT idem_record('savepoints', '8', '8') IS NOT NULL;
SAVEPOINT s;
SELECT regress_show(idem_begin('savepoints', '8'));
ROLLBACK TO s;
SELECT regress_claims();
COMMIT;
SELECT regress_show(idem_begin('savepoints', '8'));

-- an expired outcome deleted inside, rolled back: the record that follows deletes it again
BEGIN;
SELECT regress_show(idem_begin('savepoints', '9'));
SELECT idem_record('savepoints', '9', '"old"', ttl => '1 microsecond') IS NOT NULL;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('savepoints', '9'));
SAVEPOINT s;
SELECT idem_record('savepoints', '9', '"inside"') IS NOT NULL;
ROLLBACK TO s;
SELECT idem_record('savepoints', '9', '"outside"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '9'));

-- PL/pgSQL's exception blocks are savepoints
DO $$ BEGIN
  BEGIN
    PERFORM idem_begin('savepoints', '10');
    INSERT INTO savepoints_effect VALUES ('10');
    RAISE EXCEPTION 'declined';
  EXCEPTION WHEN raise_exception THEN
    NULL;
  END;
END $$;
SELECT regress_show(idem_lookup('savepoints', '10'));
DO $$ BEGIN
  PERFORM idem_begin('savepoints', '10');
  BEGIN
    INSERT INTO savepoints_effect VALUES ('10');
    PERFORM idem_record('savepoints', '10');
    RAISE EXCEPTION 'declined';
  EXCEPTION WHEN raise_exception THEN
    PERFORM idem_record('savepoints', '10', to_jsonb(SQLERRM), failed => true);
  END;
END $$;
SELECT regress_show(idem_begin('savepoints', '10'));
DO $$ BEGIN
  PERFORM idem_begin('savepoints', '11');
  BEGIN
    PERFORM idem_record('savepoints', '11');
    RAISE EXCEPTION 'declined';
  EXCEPTION WHEN raise_exception THEN
    NULL;
  END;
END $$;
\echo :SQLSTATE
-- an error of our own, caught: the request is as it was
DO $$ BEGIN
  PERFORM idem_begin('savepoints', '11');
  BEGIN
    PERFORM idem_begin('savepoints', '11');
  EXCEPTION WHEN SQLSTATE 'ID002' THEN
    PERFORM idem_record('savepoints', '11', '11');
  END;
END $$;
SELECT regress_show(idem_begin('savepoints', '11'));

-- a cursor that is closed, or fails inside a later savepoint: what it began is open, and locked
BEGIN;
SAVEPOINT s;
DECLARE c CURSOR FOR SELECT CASE n WHEN 1 THEN regress_show(idem_begin('savepoints', '12')) ELSE (1 / (2 - n))::text END FROM generate_series(1, 3) n;
FETCH c;
SELECT regress_claims();
CLOSE c;
SELECT regress_claims();
SELECT regress_show(idem_lookup('savepoints', '12'));
COMMIT;
\echo :SQLSTATE
BEGIN;
SAVEPOINT outside;
DECLARE c CURSOR FOR SELECT CASE n WHEN 1 THEN regress_show(idem_begin('savepoints', '12')) ELSE (1 / (2 - n))::text END FROM generate_series(1, 3) n;
FETCH c;
SAVEPOINT inside;
FETCH c;
\echo :SQLSTATE
ROLLBACK TO inside;
FETCH c;
\echo :SQLSTATE
ROLLBACK TO inside;
SELECT regress_claims();
SELECT regress_show(idem_lookup('savepoints', '12'));
COMMIT;
\echo :SQLSTATE
BEGIN;
DECLARE c CURSOR FOR SELECT CASE n WHEN 1 THEN regress_show(idem_begin('savepoints', '12')) ELSE (1 / (2 - n))::text END FROM generate_series(1, 3) n;
FETCH c;
SAVEPOINT inside;
FETCH c;
ROLLBACK TO inside;
SELECT regress_claims();
SELECT idem_record('savepoints', '12', '12') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('savepoints', '12'));
-- a cursor declared outside that begins inside: its claim goes with the savepoint
BEGIN;
DECLARE c CURSOR FOR SELECT regress_show(idem_begin('savepoints', '13-' || n)) FROM generate_series(1, 2) n;
FETCH c;
SAVEPOINT inside;
FETCH c;
SELECT regress_claims();
ROLLBACK TO inside;
SELECT regress_claims();
SELECT regress_show(idem_lookup('savepoints', '13-1')), regress_show(idem_lookup('savepoints', '13-2'));
CLOSE c;
SELECT regress_claims();
SELECT idem_record('savepoints', '13-1') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('savepoints', '13-1')), regress_show(idem_lookup('savepoints', '13-2'));

-- a cursor that records inside a savepoint that is released, and fails in the next one: what it recorded
-- stands, and so does the lock on the segment that it was recorded in
BEGIN;
SAVEPOINT first;
DECLARE c CURSOR FOR
  SELECT CASE n WHEN 1 THEN regress_show(idem_begin('savepoints', '14'))
                WHEN 2 THEN (idem_record('savepoints', '14', '14') IS NOT NULL)::text
                ELSE (1 / (3 - n))::text END FROM generate_series(1, 3) n;
FETCH 2 FROM c;
RELEASE first;
SAVEPOINT second;
FETCH c;
ROLLBACK TO second;
SELECT l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'outcome\__' AND l.mode = 'RowExclusiveLock';
COMMIT;
SELECT regress_show(idem_begin('savepoints', '14'));

-- a thousand blocks one after the other, every second one rolled back
DO $$
BEGIN
  FOR n IN 1..1000 LOOP
    BEGIN
      PERFORM idem_begin('savepoints', 'deep-' || n);
      PERFORM idem_record('savepoints', 'deep-' || n);
      IF n % 2 = 0 THEN
        RAISE EXCEPTION 'declined';
      END IF;
    EXCEPTION WHEN raise_exception THEN
      NULL;
    END;
  END LOOP;
END $$;
SELECT count(*) FROM idempotence.outcomes WHERE session = 'savepoints' AND request LIKE 'deep-%';
SELECT * FROM savepoints_effect;
SELECT regress_claims();
DROP TABLE savepoints_effect;
SELECT idem_drop_session('savepoints');
