-- Goal: the name of a dropped session is anybody's once none of its outcomes can be left, and not before.
-- Method: the step of the sweep, again and again; the ring's moments are set instead of waited for.
\pset format unaligned
\pset tuples_only on
-- Other tests have left tombstones, too; how many there are is not told.
SET client_min_messages = warning;
CREATE ROLE regress_other;
SELECT idem_grant('regress_other');
SELECT idem_create_session('tombstone'), idem_create_session('tombstone long'), idem_create_session('tombstone timed', ttl => '1 hour', time_keys => true);
CREATE PROCEDURE tombstones_fill() LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN 1..2 LOOP
    PERFORM idem_begin((ARRAY['tombstone', 'tombstone long'])[n], 'k'), idem_record((ARRAY['tombstone', 'tombstone long'])[n], 'k', '1');
  END LOOP;
  PERFORM idem_begin('tombstone', 'c'), idem_checkpoint('tombstone', 'c', 'p');
  PERFORM idem_begin('tombstone long', 'l', lease => '10 ms');
END
$$;
CALL tombstones_fill();
SELECT idem_drop_session('tombstone'), idem_drop_session('tombstone long'), idem_drop_session('tombstone timed');
-- Each is taken on as far as it goes; once an hour otherwise. A process of autovacuum may be older for a moment.
CREATE PROCEDURE tombstones_sweep(tries integer DEFAULT 100) LANGUAGE plpgsql AS $$
DECLARE
  stages text;
BEGIN
  FOR n IN 1..tries LOOP
    DELETE FROM idempotence.sweep WHERE step = 'tombstones';
    COMMIT;
    PERFORM idempotence.sweep_step('tombstones');
    COMMIT;
    SELECT string_agg(concat(name, ': ', coalesce(ended::text, 'dropped')), ', ' ORDER BY name) INTO stages
    FROM idempotence.session WHERE name LIKE 'tombstone%';
    EXIT WHEN stages NOT LIKE '%: d%' OR n >= 3 AND stages NOT LIKE '%: d,%';
    PERFORM pg_sleep(0.02);
  END LOOP;
  RAISE INFO '%', replace(stages, 'tombstone timed: dropped', 'timed stays');
END
$$;
-- What stopped at a checkpoint, or has a lease, may still be recorded.
CALL tombstones_sweep(10);
DELETE FROM idempotence.checkpoint c USING idempotence.session s WHERE s.id = c.session AND s.name = 'tombstone';
CALL tombstones_sweep();
DELETE FROM idempotence.lease l USING idempotence.session s WHERE s.id = l.session AND s.name = 'tombstone long';
CALL tombstones_sweep();
-- The segment that their outcomes are in was opened before.
CALL tombstones_sweep();
-- Made again meanwhile it is the same session, with its outcome, and dropped again it begins anew.
SELECT idem_create_session('tombstone');
SELECT regress_show(idem_begin('tombstone', 'k'));
SELECT ended FROM idempotence.session WHERE name = 'tombstone';
SELECT idem_drop_session('tombstone');
CALL tombstones_sweep();
-- As after a turn of the whole ring, with one outcome that outlived it.
CREATE PROCEDURE tombstones_turn() LANGUAGE plpgsql AS $$
BEGIN
  FOR segment IN 0..2 LOOP
    EXECUTE format('INSERT INTO idempotence.outcome_long SELECT o.* FROM idempotence.outcome_%s o
                    JOIN idempotence.session s ON s.id = o.session WHERE s.name = %L', segment, 'tombstone long');
    EXECUTE format('DELETE FROM idempotence.outcome_%s o USING idempotence.session s
                    WHERE s.id = o.session AND s.name IN (%L, %L)', segment, 'tombstone', 'tombstone long');
  END LOOP;
  -- It was no restore.
  DELETE FROM idempotence.restore;
END
$$;
CALL tombstones_turn();
CREATE TABLE tombstones_ring AS SELECT number, opened_at, restored FROM idempotence.segment;
UPDATE idempotence.segment SET opened_at = clock_timestamp(), restored = false;
CALL tombstones_sweep();
-- The name of the first is anybody's, and what was done under the former one is another's.
SET ROLE regress_other;
SELECT idem_create_session('tombstone');
SELECT regress_show(idem_lookup('tombstone', 'k'));
SELECT idem_create_session('tombstone long');
RESET ROLE;
-- As it was.
DELETE FROM idempotence.outcome_long o USING idempotence.session s WHERE s.id = o.session AND s.name = 'tombstone long';
UPDATE idempotence.segment s SET opened_at = r.opened_at, restored = r.restored FROM tombstones_ring r WHERE r.number = s.number;
DROP TABLE tombstones_ring;
SELECT idem_drop_session('tombstone');
SELECT idem_revoke('regress_other');
DROP OWNED BY regress_other;
DELETE FROM idempotence.session WHERE owner = 'regress_other'::regrole;
DROP ROLE regress_other;
DROP PROCEDURE tombstones_fill, tombstones_sweep, tombstones_turn;
