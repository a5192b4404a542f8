-- The sweep by hand. It takes the steps that the background worker takes, each in one or more transactions of its own.
CREATE PROCEDURE idem_sweep()
LANGUAGE plpgsql
AS $sweep$
#variable_conflict error
DECLARE
  step pg_catalog.text;
  more pg_catalog.bool;
BEGIN
  FOREACH step IN ARRAY '{empty,turn,close,long,restore,end,delete,checkpoints,leases,persistence,owners,orphans,tombstones,journals}'::pg_catalog.text[] LOOP
    -- Before the tables of users, which may take all the time there is.
    IF step OPERATOR(pg_catalog.=) 'journals' THEN
      PERFORM idempotence.note_sweep();
    END IF;
    LOOP
      -- The step needs this isolation level and, on a primary, READ WRITE, whatever the defaults of role and database
      -- are. Nothing may be evaluated between the two commands, since it could take a snapshot. On a standby READ
      -- WRITE would be an error here; the step itself says that it cannot run there.
      IF pg_catalog.pg_is_in_recovery() THEN
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      ELSE
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
      END IF;
      more := idempotence.sweep_step(step);
      IF more IS NULL THEN
        RAISE NOTICE 'another sweep is at work in this database';
        RETURN;
      END IF;
      EXIT WHEN NOT more;
    END LOOP;
  END LOOP;
END
$sweep$;
