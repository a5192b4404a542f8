-- The outcomes that are kept when a measurement begins. They are the same in each table. The setting
-- bench.kept gives the number of outcomes under keys like UUIDv7, and there are as many under random keys.

CREATE TABLE kept AS
SELECT kept_key(n) AS key FROM generate_series(1, current_setting('bench.kept')::bigint) n
UNION ALL
SELECT kept_random_key(n) FROM generate_series(1, current_setting('bench.kept')::bigint) n;

INSERT INTO request (scope, key, fingerprint, response, expires_at)
SELECT 'payments', key, sha256(key::bytea), '{"status": "booked", "transfer": 4711}', now() + interval '7 days'
FROM kept;

INSERT INTO leased_request (scope, key, fingerprint, leased_until, response, expires_at)
SELECT 'payments', key, sha256(key::bytea), now(), '{"status": "booked", "transfer": 4711}', now() + interval '7 days'
FROM kept;

INSERT INTO outcome (id, session, recorded_at, expires_at, recorded_by, class, key, response)
SELECT key::uuid, '01990000-0000-7000-8000-000000000000', now(), now() + interval '7 days', 10, 's', key,
       '{"status": "booked", "transfer": 4711}'
FROM kept;

SET synchronous_commit = off;
DO $$
DECLARE
  kept_row record;
  n        bigint := 0;
BEGIN
  FOR kept_row IN SELECT key FROM kept LOOP
    PERFORM idem_begin('payments', kept_row.key, '{"account": 4711, "amount": 250, "note": "rent for May"}');
    PERFORM idem_record('payments', kept_row.key, '{"status": "booked", "transfer": 4711}');
    n := n + 1;
    IF n % 100 = 0 THEN
      COMMIT;
    END IF;
  END LOOP;
END
$$;

DROP TABLE kept;
VACUUM (FREEZE, ANALYZE);
