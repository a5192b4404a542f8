-- Goal: after idem_claim the caller holds the claim; everything else is an error that tells what to do. So it is with
-- idem_run where somebody must look first.
-- Method: a claim of what is new, done, held, stopped and run out, by key and by number; then the same with idem_run.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('claim', ttl => '1 hour'), idem_create_session('claim payload', require_payload => true), idem_create_session('claim inbox', inbox => true);

-- new: the claim is as that of idem_begin
BEGIN;
SELECT pg_typeof(idem_claim('claim', 'new', payload => '1'));
SELECT regress_claims();
SELECT regress_message($$SELECT idem_claim('claim', 'new')$$), regress_message($$SELECT idem_begin('claim', 'new')$$);
SELECT idem_record('claim', 'new', '"done"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('claim', 'new'));
-- in one round trip
BEGIN\; SELECT idem_claim('claim', 'pipeline')\; SELECT idem_record('claim', 'pipeline') IS NOT NULL\; COMMIT;
\set VERBOSITY sqlstate
BEGIN\; SELECT idem_claim('claim', 'pipeline')\; SELECT idem_record('claim', 'pipeline') IS NOT NULL\; COMMIT;
\set VERBOSITY default
ROLLBACK;
-- neither recorded nor released
SELECT idem_claim('claim', 'open');
\echo :SQLSTATE
-- done: as the payload tells the same, or another
SELECT regress_error($$SELECT idem_claim('claim', 'new')$$);
SELECT regress_message($$SELECT idem_claim('claim', 'new', payload => '1.0')$$), regress_message($$SELECT idem_claim('claim', 'new', payload => '2')$$);
BEGIN;
SELECT idem_claim('claim', 'failed');
SELECT idem_record('claim', 'failed', '"no"', failed => true) IS NOT NULL;
SELECT regress_error($$SELECT idem_claim('claim', 'failed')$$);
COMMIT;
SELECT regress_error($$SELECT idem_claim('claim', 'failed')$$);
SELECT status FROM idem_settle('claim', 'settled', response => '"secret"');
SELECT regress_error($$SELECT idem_claim('claim', 'settled')$$);
-- the moment is that of the record
DO $$
DECLARE
  detail_ text;
BEGIN
  PERFORM idem_claim('claim', 'new');
EXCEPTION WHEN SQLSTATE 'ID011' THEN
  GET STACKED DIAGNOSTICS detail_ = PG_EXCEPTION_DETAIL;
  RAISE INFO '%', substring(detail_ FROM 'recorded at (.*)\.$')::timestamptz - (idem_lookup('claim', 'new')).recorded_at;
END
$$;
-- expired: new
BEGIN;
SELECT idem_claim('claim', 'expires');
SELECT idem_record('claim', 'expires', ttl => '1 microsecond') IS NOT NULL;
COMMIT;
BEGIN;
SELECT idem_claim('claim', 'expires');
SELECT idem_release('claim', 'expires');
COMMIT;
-- held by a transaction, by a lease
BEGIN;
SELECT idem_claim('claim', 'held'), idem_record('claim', 'held') IS NOT NULL;
PREPARE TRANSACTION 'regress_claim';
SELECT regress_error($$SELECT idem_claim('claim', 'held', wait => '0')$$);
SELECT regress_message($$SELECT idem_claim('claim', 'held', wait => '1 ms')$$);
ROLLBACK PREPARED 'regress_claim';
SELECT regress_take('a', idem_begin('claim', 'leased', payload => '1', lease => '1 hour'));
SELECT regress_error($$SELECT idem_claim('claim', 'leased', wait => '0')$$);
SELECT regress_message($$SELECT idem_claim('claim', 'leased', wait => '10 ms')$$), regress_message($$SELECT idem_claim('claim', 'leased', payload => '2')$$);
-- run out: somebody must look; nothing has changed for its holder
SELECT regress_lease_ends('claim', 'leased');
SELECT regress_error($$SELECT idem_claim('claim', 'leased')$$);
SELECT idem_checkpoint('claim', 'leased', 'sent', token => regress_token('a'));
SELECT regress_error($$SELECT idem_claim('claim', 'leased')$$);
SELECT regress_claims(), regress_kept('claim');
BEGIN;
SAVEPOINT s;
SELECT idem_claim('claim', 'leased');
ROLLBACK TO s;
SELECT regress_show(idem_begin('claim', 'leased'));
SELECT idem_record('claim', 'leased') IS NOT NULL;
COMMIT;
-- stopped at a checkpoint
BEGIN;
SELECT idem_claim('claim', 'half');
SELECT idem_checkpoint('claim', 'half', 'paid', '{"secret": 1}');
COMMIT;
SELECT regress_error($$SELECT idem_claim('claim', 'half')$$);
SELECT regress_claims();
-- all attempts used up: it is not given up by an error, which would take that back
SELECT idem_alter_session('claim', max_attempts => 1);
SELECT regress_take('a', idem_begin('claim', 'attempts', lease => '1 hour')), regress_lease_ends('claim', 'attempts');
SELECT regress_error($$SELECT idem_claim('claim', 'attempts')$$);
SELECT regress_show(idem_lookup('claim', 'attempts'));
SELECT regress_show(idem_begin('claim', 'attempts'));
SELECT regress_error($$SELECT idem_claim('claim', 'attempts')$$);

-- mistakes
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY['idem_claim(NULL, ''k'')', 'idem_claim(''claim'', NULL)', 'idem_claim(''claim'', NULL::bigint)', 'idem_claim(''claim'', NULL::uuid)', 'idem_claim(''claim'', '''')', 'idem_claim(''claim'', repeat(''k'', 256))',
  'idem_claim(''clam'', ''k'')', 'idem_claim(''claim payload'', ''k'')', 'idem_claim(''claim inbox'', ''k'')', 'idem_claim(''claim'', ''k'', wait => ''-1 s'')', 'idem_claim(''claim'', ''k'', stream => ''s'')',
  'idem_claim(''claim'', 1, last => 2)', 'idem_claim(''claim'', 1, ack => 1)', 'idem_claim(''01890a5d-ac96-774b-bcce-b302099a8057'', 1)']) WITH ORDINALITY c (call, place) ORDER BY place;
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_claim('claim', 'new')$$);
SELECT regress_error($$SELECT idem_claim('claim', 'never')$$);
ROLLBACK;

-- numbers and uuids
SELECT regress_registered('any', idem_register(window_size => 2)), regress_registered('strict', idem_register(ordering => 'strict'));
BEGIN;
SELECT idem_claim(regress_id('any'), 1), idem_claim(regress_id('any'), '2'), idem_claim(regress_id('strict'), 1, last => 3), idem_claim(regress_id('any'), 1, stream => 's'), idem_claim('claim', '01890a5d-ac96-774b-bcce-b302099a8057'::uuid);
SELECT idem_record(regress_id('any'), 1, '1'), idem_record(regress_id('any'), 2, '2'), idem_record(regress_id('strict'), 1, '3'), idem_record(regress_id('any'), 1, stream => 's'), idem_record('claim', '01890a5d-ac96-774b-bcce-b302099a8057') IS NULL;
COMMIT;
SELECT regress_error($$SELECT idem_claim(regress_id('any'), 1)$$);
SELECT regress_message($$SELECT idem_claim(regress_id('any'), 5)$$), regress_message($$SELECT idem_claim(regress_id('strict'), 1)$$), regress_message($$SELECT idem_claim(regress_id('strict'), 1, last => 3)$$), regress_message($$SELECT idem_claim(regress_id('any'), 1, stream => 's')$$),
       regress_message($$SELECT idem_claim('claim', '01890A5D-AC96-774B-BCCE-B302099A8057'::uuid)$$);
SELECT regress_take('a', idem_begin(regress_id('any'), 3, lease => '1 hour'));
SELECT regress_message($$SELECT idem_claim(regress_id('any'), 3, wait => '0')$$), regress_lease_ends(regress_id('any'), '3');
SELECT regress_error($$SELECT idem_claim(regress_id('any'), 3)$$);
SELECT idem_record(regress_id('any'), 3, token => regress_token('a')), regress_message($$SELECT idem_claim(regress_id('any'), 1)$$);
BEGIN;
SELECT idem_claim(regress_id('any'), 4, ack => 3), idem_record(regress_id('any'), 4);
COMMIT;
SELECT idem_position(regress_id('any'));

-- idem_run where somebody must look first: refused alike, with on_error => 'record', too
SELECT regress_take('a', idem_begin('claim', 'run', lease => '1 hour'));
SELECT regress_error($$SELECT idem_run('claim', 'run', 'SELECT 1', wait => '0')$$);
SELECT idem_alter_session('claim', max_attempts => 0);
SELECT regress_lease_ends('claim', 'run');
SELECT regress_error($$SELECT idem_run('claim', 'run', 'SELECT 1')$$);
SELECT regress_message($$SELECT idem_run('claim', 'run', 'SELECT 1', on_error => 'record')$$);
SELECT idem_checkpoint('claim', 'run', 'p', token => regress_token('a'));
SELECT regress_error($$SELECT idem_run('claim', 'run', 'SELECT 1')$$);
SELECT idem_record('claim', 'run', '"by its holder"', token => regress_token('a')) IS NOT NULL;
SELECT regress_show(idem_run('claim', 'run', 'SELECT 1'));

DELETE FROM idempotence.checkpoint;
SELECT regress_close();
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'claim%';
DELETE FROM regress_lease_token;
