-- Step 4 of docs/scaling.md, Moving a tenant: brings a tenant's requests and rows in, and opens its session here.

BEGIN;
SELECT 1 / (node IS DISTINCT FROM 'shard-2')::int AS is_not_open_yet FROM idempotence.sessions WHERE session = 'tenant-5';
CREATE TEMPORARY TABLE came (key text, status text, response jsonb, fingerprint uuid, token bigint,
  recorded_at timestamptz, expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz,
  point text, state jsonb) ON COMMIT DROP;
\copy came FROM outcomes
DELETE FROM payment WHERE tenant = 5;
\copy payment FROM rows
SELECT 1 / (count(*) = :requests)::int AS all_requests_came FROM came;
SELECT 1 / (count(*) = :rows)::int AS all_rows_came FROM payment WHERE tenant = 5;
SELECT * FROM idem_import('tenant-5', 'TABLE came', 'from shard 1');
SELECT idem_alter_session('tenant-5', node => 'shard-2');
COMMIT;
