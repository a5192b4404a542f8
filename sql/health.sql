-- The view health, and idem_ready.

-- Where nobody is going to sweep, CREATE EXTENSION says so. It keeps the notices of its script from the client, unless the
-- script asks for them.
DO $$
BEGIN
  IF idempotence.launcher() IS NULL AND pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'warning' THEN
    PERFORM pg_catalog.set_config('client_min_messages', 'notice', true);
    RAISE NOTICE 'nobody sweeps this database yet, since the library is not preloaded'
      USING HINT = 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep() at least once an hour.';
  END IF;
END $$;

-- What one check finds. It does not wait long for a table that somebody has locked.
CREATE FUNCTION idempotence.look_at(name text, OUT level integer, OUT detail text, OUT hint text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET lock_timeout = '100ms'
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $look_at$
#variable_conflict error
BEGIN
  EXECUTE pg_catalog.format('SELECT c.level, c.detail, c.hint FROM idempotence.%I c', pg_catalog.concat('check_', pg_catalog.replace(name, ' ', '_')))
    INTO STRICT level, detail, hint;
END
$look_at$;

-- All checks, in their order. Each is looked at by itself, so that one that fails takes no other with it: a table may be
-- locked for long (VACUUM FULL), or be broken. The checks run with the rights of the extension's owner, since a monitor
-- may neither read the tables nor see what the backends of other roles do.
CREATE FUNCTION idempotence.checks(OUT name text, OUT level integer, OUT detail text, OUT hint text) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $checks$
#variable_conflict error
BEGIN
  PERFORM idempotence.refuse_parallel_query('idempotence.checks');
  -- From here on all settings are known.
  PERFORM idempotence.setting('idempotence.wait');
  FOREACH name IN ARRAY '{worker,restarts,sweep,databases,ring,holders,waiters,standby,prepared transactions,deadlocks,lock table,tables,leases,run out,suspended,given up,client sessions,standing sessions,owners,restore,rights,secret,unrecorded,coordinator,node,journals,settings,publications,persistence,clock,growth,retention,size}'::pg_catalog.text[] LOOP
    BEGIN
      IF name OPERATOR(pg_catalog.=) 'settings' THEN
        -- It looks at the lock_timeout of the session, too. Nobody locks for long what it reads.
        SELECT c.level, c.detail, c.hint INTO STRICT level, detail, hint FROM idempotence.check_settings c;
      ELSE
        SELECT c.level, c.detail, c.hint INTO STRICT level, detail, hint FROM idempotence.look_at(name) c;
      END IF;
    EXCEPTION
      WHEN lock_not_available THEN
        level := 1;
        detail := pg_catalog.concat_ws(': ', 'could not be looked at', COALESCE(idempotence.locked_by(), 'a table was locked'));
        hint := 'Calls that need the table wait, too: docs/operations.md, Somebody has locked a table.';
      WHEN object_not_in_prerequisite_state OR data_corrupted THEN
        -- The tables are those of another version than the library, or do not fit together: every request is refused.
        level := 2;
        detail := pg_catalog.format('could not be looked at: %s (%s)', SQLERRM, SQLSTATE);
        hint := 'Requests meet the same error. Was the library replaced? Then ALTER EXTENSION idempotence UPDATE. Else see docs/operations.md, Troubleshooting.';
      WHEN OTHERS THEN
        level := 1;
        detail := pg_catalog.format('could not be looked at: %s (%s)', SQLERRM, SQLSTATE);
        hint := 'Calls may meet the same error: docs/operations.md, Troubleshooting.';
    END;
    -- Names are chosen by users, and the detail is shown by tools that know nothing of that.
    detail := idempotence.legible(detail);
    RETURN NEXT;
  END LOOP;
END
$checks$;

CREATE VIEW idempotence.health WITH (security_barrier) AS
SELECT c.name,
       CASE WHEN c.level OPERATOR(pg_catalog.=) 0 THEN 'ok' WHEN c.level OPERATOR(pg_catalog.=) 1 THEN 'warning' ELSE 'critical' END AS status,
       c.detail,
       CASE WHEN c.level OPERATOR(pg_catalog.>) 0 THEN c.hint END AS hint,
       c.level
FROM idempotence.checks() c;

CREATE FUNCTION idem_ready() RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $ready$
#variable_conflict error
BEGIN
  PERFORM idempotence.refuse_parallel_query('idem_ready');
  IF pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
    RETURN false;
  END IF;
  BEGIN
    PERFORM idempotence.look_whether_ready();
    RETURN true;
  EXCEPTION
    -- An error would tell a probe nothing.
    WHEN OTHERS THEN
      RETURN false;
  END;
END
$ready$;
