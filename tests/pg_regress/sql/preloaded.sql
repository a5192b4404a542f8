-- Goal: the view health tells who sweeps this database. (What it says where nobody does: sweep.)
-- Method: before and after a sweep by hand. Where the library is preloaded, something else is expected
-- (preloaded_1.out): the worker sweeps by itself, some ten seconds after the extension came. And again
-- where the setting idempotence.databases leaves this database out (preloaded_2.out).
\pset format unaligned
\pset tuples_only on
SELECT idempotence.launcher() IS NOT NULL AS preloaded, idempotence.is_visited();
-- Nothing is late that was made just now; but where no worker comes, somebody has to begin.
SELECT name, status, hint FROM idempotence.health WHERE name IN ('worker', 'sweep');
DO $$ BEGIN
  FOR try IN 1 .. 6000 LOOP
    EXIT WHEN NOT idempotence.is_visited() OR idempotence.last_sweep() IS NOT NULL;
    PERFORM pg_sleep(0.01);
  END LOOP;
END $$;
SELECT name, status, hint FROM idempotence.health WHERE name IN ('worker', 'sweep');
SET client_min_messages = warning;
CALL idem_sweep();
SELECT name, status, hint FROM idempotence.health WHERE name IN ('worker', 'sweep');

-- From here on the worker stays away, for the tests that follow look at what nobody has tidied up yet: it
-- does not visit templates, and a visit that has begun ends within a second. teardown takes it back.
ALTER DATABASE contrib_regression IS_TEMPLATE true;
DO $$ BEGIN
  PERFORM pg_sleep(CASE WHEN idempotence.launcher() > 0 THEN 1 ELSE 0 END);
  WHILE EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'idempotence worker') LOOP
    PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
  END LOOP;
END $$;
-- and the ring is as it was made
UPDATE idempotence.segment SET current = number = 0, restored = true, keep_us = 0, ends_at = NULL, looked_to = 0, opened_at = now(), closed_at = NULL;
TRUNCATE idempotence.sweep;
