-- What a while of use does to the accounts: their pages are full of versions that each update has to clear away. Otherwise
-- the transactions that are measured last would find fuller pages than the first ones, and cost more.
DO $$
DECLARE
  chosen integer;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', false);
  FOR n IN 1..300000 LOOP
    chosen := 1 + floor(random() * 100000);
    UPDATE account SET balance = balance + 1 WHERE id = chosen;
    IF n % 20 = 0 THEN
      COMMIT;
    END IF;
  END LOOP;
END
$$;
