-- The sweep by hand: the steps that the background worker takes, each in a transaction of its own.
CREATE PROCEDURE idem_sweep()
LANGUAGE plpgsql
AS $sweep$
DECLARE
  step pg_catalog.text;
  more pg_catalog.bool;
BEGIN
  FOREACH step IN ARRAY '{empty,turn,close,restore,end,delete,checkpoints,owners}'::pg_catalog.text[] LOOP
    LOOP
      COMMIT;
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
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
