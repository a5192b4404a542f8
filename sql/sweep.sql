-- The sweep by hand: the steps that the background worker takes, each in a transaction of its own.
CREATE PROCEDURE idem_sweep()
LANGUAGE plpgsql
AS $sweep$
DECLARE
  step pg_catalog.text;
  more pg_catalog.bool;
BEGIN
  FOREACH step IN ARRAY '{empty,turn,close,long,restore,end,delete,checkpoints,owners,orphans,tombstones}'::pg_catalog.text[] LOOP
    LOOP
      -- Whatever the defaults of role and database are. Nothing may be evaluated between the two commands:
      -- it could take a snapshot. On a standby the step refuses.
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
  PERFORM idempotence.note_sweep();
END
$sweep$;
