-- A role whose begin always writes, as a begin does in the edition for managed services while an outcome is not flushed
-- yet. Tests connect as this role to show that COMMIT is waited for also where the answer is a replay. Can be repeated.
SELECT pg_advisory_lock(hashtext('client_writer'));
DO $$
BEGIN
  IF to_regrole('client_writer') IS NULL THEN
    CREATE ROLE client_writer LOGIN SUPERUSER;
  END IF;
  CREATE SCHEMA IF NOT EXISTS writing_begin;
  EXECUTE format(
    'CREATE OR REPLACE FUNCTION writing_begin.idem_begin(session text, key text, payload jsonb, wait interval)
     RETURNS %1$s.idem_ticket LANGUAGE plpgsql AS $begin$
     BEGIN
       PERFORM pg_current_xact_id();
       RETURN %1$s.idem_begin(session, key, payload => payload, wait => wait);
     END $begin$',
    (SELECT p.pronamespace::regnamespace FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE p.proname = 'idem_begin' AND n.nspname <> 'writing_begin' LIMIT 1));
  EXECUTE format('ALTER ROLE client_writer SET search_path = writing_begin, %s', current_setting('search_path'));
END $$;
SELECT pg_advisory_unlock(hashtext('client_writer'));
