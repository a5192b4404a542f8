-- Goal: outcomes come over from any query as if they had been recorded here: each counts as long as it says, and what is here
-- already is left as it is. What may be at work, or is unfinished, is refused.
-- Method: queries with each column and without, in all kinds of sessions; replays of what came; each mistake, with the row
-- named; each role.
\pset format unaligned
\pset tuples_only on
DELETE FROM idempotence.audit;
CREATE ROLE regress_import_owner;
CREATE ROLE regress_import_admin;
SELECT idem_grant('regress_import_owner'), idem_grant('regress_import_admin', 'admin');
SELECT idem_create_session('import', ttl => '1 hour', owner => 'regress_import_owner'), idem_create_session('import strict', ttl => '1 hour', require_payload => true),
       idem_create_session('import inbox', ttl => '1 hour', inbox => true), idem_create_session('import time', ttl => '1 hour', time_keys => true), idem_create_session('import dropped');
SELECT idem_drop_session('import dropped');
CREATE TABLE import_from (key text, response jsonb, failed boolean, recorded_at timestamptz, expires_at timestamptz, payload jsonb);
INSERT INTO import_from VALUES
  ('paid', '{"ok": true}', false, now() - interval '10 minutes', NULL, '{"amount": 1}'),
  ('declined', '"no funds"', true, now() - interval '59 minutes', NULL, NULL),
  ('bare', NULL, NULL, NULL, NULL, NULL),
  ('brief', '1', false, now() - interval '10 minutes', now() + interval '1 minute', NULL),
  ('late', '1', false, now() - interval '10 minutes', now() + interval '59 minutes', NULL),
  ('old', '1', false, now() - interval '61 minutes', NULL, NULL),
  ('gone', '1', false, now() - interval '10 minutes', now() - interval '1 minute', NULL),
  ('large', (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 500) n), false, NULL, NULL, NULL);
GRANT SELECT ON import_from TO regress_import_admin;

SET ROLE regress_import_admin;
SELECT * FROM idem_import('import', 'SELECT * FROM import_from', 'from the former table');
SELECT * FROM idem_import('import', 'SELECT * FROM import_from;  ', 'again');
RESET ROLE;
SELECT request, status, length(response::text), fingerprint = idem_fingerprint('{"amount": 1}') AS fingerprint, recorded_by, date_trunc('minute', now() - recorded_at) AS since, date_trunc('minute', expires_at - recorded_at) AS lives
FROM idempotence.outcomes WHERE session = 'import' ORDER BY request;
SELECT action, session, request, reason, found FROM idempotence.audit ORDER BY at;
SET ROLE regress_import_owner;
SELECT regress_show(idem_begin('import', 'paid', payload => '{"amount": 1}')), regress_message($$SELECT idem_begin('import', 'paid', payload => '{"amount": 2}')$$), regress_message($$SELECT idem_claim('import', 'declined')$$);
SELECT regress_show(idem_lookup('import', 'bare')), regress_show(idem_run('import', 'old', 'SELECT 2')), regress_show(idem_run('import', 'gone', 'SELECT 2'));
RESET ROLE;

-- only what the query gives, in any order and of any type that has a cast; a comment at the end; twice in one query
SELECT regress_message($$SELECT idem_import('import', 'VALUES (1)', 'no name')$$), regress_message($$SELECT idem_import('import', 'SELECT 1 AS key, 2 AS response', 'no jsonb')$$);
SELECT * FROM idem_import('import', 'SELECT ''{"a": 1}'' AS response, n AS key, 0::bool AS failed FROM generate_series(1, 3) n -- three', 'a test');
SELECT * FROM idem_import('import', 'SELECT 1 AS failed, ''f'' AS key', 'a test');
SELECT * FROM idem_import('import', 'TABLE import_from', 'a table'), regress_show(idem_lookup('import', '2'));
SELECT * FROM idem_import('import', 'WITH k AS (SELECT ''twice'' AS key) SELECT key FROM k, generate_series(1, 2)', 'a test');
SELECT * FROM idem_import('import', 'SELECT ''none'' AS key WHERE false', 'a test');
SELECT * FROM idem_import('import', format('SELECT ''print'' AS key, %L AS fingerprint', idem_fingerprint('[1]')), 'a test');
SELECT regress_show(idem_begin('import', 'print', payload => '[1]')), regress_message($$SELECT idem_begin('import', 'print', payload => '[2]')$$);

-- what has expired here makes way
SELECT regress_show(idem_run('import', 'import expires', 'SELECT 1'));
DO $$ BEGIN FOR n IN 0..2 LOOP EXECUTE format('UPDATE idempotence.outcome_%s SET expires_at = recorded_at + interval ''1 us'' WHERE key = ''import expires''', n); END LOOP; END $$;
SELECT * FROM idem_import('import', 'SELECT ''import expires'' AS key, ''2'' AS response', 'a test');
SELECT regress_show(idem_begin('import', 'import expires')), (SELECT count(*) FROM (TABLE idempotence.outcome_0 UNION ALL TABLE idempotence.outcome_1 UNION ALL TABLE idempotence.outcome_2) o WHERE key = 'import expires');

-- an inbox; renewed where it has expired
SELECT idem_once('import inbox', 'seen'), idem_once('import inbox', 'import was seen');
DO $$ BEGIN FOR n IN 0..2 LOOP EXECUTE format('UPDATE idempotence.outcome_%s SET expires_at = recorded_at + interval ''1 us'' WHERE key = ''import was seen''', n); END LOOP; END $$;
SELECT * FROM idem_import('import inbox', $$SELECT key, now() - since AS recorded_at FROM (VALUES ('seen', '1 min'::interval), ('m1', '2 min'), ('m2', '30 min'), ('m3', '61 min'), ('import was seen', '0')) m (key, since)$$, 'processed there');
SELECT k, idem_once('import inbox', k) FROM unnest('{seen,m1,m2,m3,import was seen}'::text[]) k;
SELECT request, date_trunc('minute', now() - recorded_at) AS since, date_trunc('minute', expires_at - recorded_at) AS lives FROM idempotence.outcomes WHERE session = 'import inbox' ORDER BY 1;
SELECT regress_error($$SELECT idem_import('import inbox', 'SELECT 1 AS key, ''2'' AS response', 'why')$$);
SELECT regress_message($$SELECT idem_import('import inbox', 'SELECT 1 AS key, ''2''::jsonb AS payload', 'why')$$), regress_message($$SELECT idem_import('import inbox', 'SELECT 1 AS key, true AS failed', 'why')$$);

-- time keys: in any case, none from the future, none kept too short; payloads that the session requires
SELECT regress_uuid7(now() - interval '10 minutes') AS id, regress_uuid7(now() - interval '9 minutes') AS nine, regress_uuid7(now() - interval '2 hours') AS old, regress_uuid7(now() + interval '1 hour') AS ahead \gset
SELECT * FROM idem_import('import time', format('SELECT upper(%L) AS key, ''1'' AS response UNION ALL SELECT %L, ''2''', :'id', :'old'), 'a test');
SELECT regress_show(idem_begin('import time', :'id'));
SELECT replace(regress_message(format('SELECT idem_import(''import time'', %L, ''why'')', format('SELECT %L AS key', :'ahead'))), :'ahead', '…');
SELECT replace(regress_message(format('SELECT idem_import(''import time'', %L, ''why'')', format('SELECT %L AS key, now() + interval ''1 minute'' AS expires_at', :'nine'))), :'nine', '…');
SELECT regress_message($$SELECT idem_import('import time', 'SELECT 1 AS key', 'why')$$);
SELECT regress_message($$SELECT idem_import('import strict', 'SELECT 1 AS key', 'why')$$);
SELECT * FROM idem_import('import strict', 'SELECT 1 AS key, ''3''::jsonb AS payload', 'a test');

-- what is begun here and not done: nothing is imported then
SELECT regress_take('a', idem_begin('import', 'leased', lease => '1 hour')), regress_take('b', idem_begin('import', 'run out', lease => '1 hour'));
SELECT regress_lease_ends('import', 'run out');
SELECT idem_checkpoint('import', 'half', 'charged') FROM idem_begin('import', 'half');
BEGIN;
SELECT regress_show(idem_run('import', 'prepared', 'SELECT 1'));
PREPARE TRANSACTION 'regress_import';
SET idempotence.wait = '10 ms';
SELECT regress_error($$SELECT idem_import('import', 'SELECT unnest(''{z1,z2,prepared,z3}''::text[]) AS key', 'why')$$);
RESET idempotence.wait;
COMMIT PREPARED 'regress_import';
SELECT regress_error($$SELECT idem_import('import', 'SELECT unnest(''{z1,leased}''::text[]) AS key', 'why')$$);
SELECT regress_error($$SELECT idem_import('import', 'SELECT unnest(''{z1,run out}''::text[]) AS key', 'why')$$);
SELECT regress_error($$SELECT idem_import('import', 'SELECT unnest(''{z1,half}''::text[]) AS key', 'why')$$);
BEGIN;
SELECT regress_show(idem_begin('import', 'mine'));
SELECT regress_error($$SELECT idem_import('import', 'SELECT unnest(''{z1,mine}''::text[]) AS key', 'why')$$);
ROLLBACK;
SELECT regress_show(idem_lookup('import', 'z1'));
SELECT * FROM idem_import('import', 'SELECT unnest(''{prepared,z1}''::text[]) AS key', 'a test');
-- mistakes, with the row named
SELECT query, regress_message(format('SELECT idem_import(''import'', %L, ''why'')', query)) FROM unnest(ARRAY[
  'SELECT 1 AS key, 2 AS kay', 'SELECT 1 AS key, 2 AS key', 'SELECT 2 AS response', 'SELECT', 'DELETE FROM import_from RETURNING key', 'SELECT 1 AS key; SELECT 2 AS key', '', 'SELECT nothing FROM nowhere',
  'SELECT unnest(ARRAY[''ok'', NULL]) AS key', 'SELECT '''' AS key', 'SELECT repeat(''k'', 256) AS key', 'SELECT 1 AS key, now() + interval ''1 day'' AS recorded_at',
  'SELECT 1 AS key, timestamptz ''-infinity'' AS recorded_at', 'SELECT 1 AS key, now() + interval ''66 minutes'' AS expires_at', 'SELECT 1 AS key, timestamptz ''infinity'' AS expires_at',
  'SELECT 1 AS key, ''1''::jsonb AS payload, gen_random_uuid() AS fingerprint', 'SELECT 1 AS key, ''not json'' AS response', 'SELECT 1 / 0 AS key',
  'SELECT ''big'' AS key, to_jsonb(repeat(''x'', 1100000)) AS response', 'SELECT ''big'' AS key, to_jsonb(repeat(''x'', 11000000)) AS payload', 'SELECT (idem_import(''import'', ''SELECT 1 AS key'', ''why'')).imported AS key']) query;
CREATE FUNCTION import_fails() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'my own' USING ERRCODE = 'AB123'; END $$;
SELECT regress_error($$SELECT idem_import('import', 'SELECT import_fails() AS key', 'why')$$);
SELECT regress_error($$SELECT idem_import('import', 'SELECT 1 AS key, 2 AS kay', 'why')$$);
SELECT call, regress_message('SELECT ' || call) FROM unnest(ARRAY['idem_import(NULL, ''SELECT 1 AS key'', ''why'')', 'idem_import(''import'', NULL, ''why'')', 'idem_import(''import'', ''SELECT 1 AS key'', NULL)',
  'idem_import(''import'', ''SELECT 1 AS key'', '' '')', 'idem_import(''import none'', ''SELECT 1 AS key'', ''why'')', 'idem_import(''import dropped'', ''SELECT 1 AS key'', ''why'')']) call;
SELECT regress_registered('any', idem_register());
SELECT regress_error(format('SELECT idem_import(%L, ''SELECT 1 AS key'', ''why'')', regress_id('any')));
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_import('import', 'SELECT 1 AS key', 'why')$$);
COMMIT;
CREATE FUNCTION import_by_hand(number bigint, key text) RETURNS integer LANGUAGE sql
AS $$SELECT idempotence.import_row(number, key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)$$;
SET ROLE regress_import_owner;
SELECT regress_message($$SELECT idem_import('import', 'SELECT 1 AS key', 'why')$$), regress_message($$SELECT idempotence.import_begin('import', 'SELECT 1 AS key', 'why')$$);
SET ROLE regress_import_admin;
-- the query has its caller's rights; the parts do nothing by themselves
SELECT regress_message($$SELECT idem_import('import', 'SELECT alias AS key FROM regress_client_session', 'why')$$);
SELECT regress_message($$SELECT idempotence.import_row(1, 'key', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)$$), regress_message($$SELECT idempotence.import_row(NULL, 'key', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)$$);
BEGIN;
SAVEPOINT s;
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
SELECT import_by_hand(:number, 'by hand'), regress_message(format('SELECT import_by_hand(%s, ''by hand'')', :number - 1));
ROLLBACK TO SAVEPOINT s;
SELECT regress_message(format('SELECT import_by_hand(%s, ''by hand'')', :number));
ROLLBACK;
-- an import by hand has to end in its own transaction, and the audit has what the library has counted
BEGIN;
SAVEPOINT s;
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
SELECT regress_message($$SELECT idempotence.import_begin('import', 'SELECT 1 AS key', 'why')$$), import_by_hand(:number, 'by hand');
SELECT idempotence.import_end();
SELECT regress_message('SELECT idempotence.import_end()'), regress_message(format('SELECT import_by_hand(%s, %L)', :number, 'too late'));
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
ROLLBACK TO SAVEPOINT s;
SELECT regress_message(format('SELECT import_by_hand(%s, %L)', :number, 'by hand'));
SAVEPOINT t;
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
RELEASE SAVEPOINT t;
SELECT import_by_hand(:number, 'by hand');
ROLLBACK TO SAVEPOINT s;
SELECT regress_message(format('SELECT import_by_hand(%s, %L)', :number, 'by hand'));
SAVEPOINT t;
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
RELEASE SAVEPOINT t;
SELECT import_by_hand(:number, 'by hand');
COMMIT;
BEGIN;
SELECT regress_message(format('SELECT import_by_hand(%s, %L)', :number, 'by hand')), regress_message('SELECT idempotence.import_end()');
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'why') FROM 'import_row\((\d+),') AS number \gset
SELECT import_by_hand(:number, 'by hand');
PREPARE TRANSACTION 'regress_import';
BEGIN;
SELECT substring(idempotence.import_begin('import', 'SELECT 1 AS key', 'by hand') FROM 'import_row\((\d+),') AS number \gset
SELECT import_by_hand(:number, k) FROM unnest('{by hand,by hand,and more}'::text[]) k;
SELECT idempotence.import_end(), regress_message(format('SELECT import_by_hand(%s, %L)', :number, 'too late'));
COMMIT;
RESET ROLE;
SELECT action, session, reason, found FROM idempotence.audit ORDER BY at DESC LIMIT 1;
SELECT regress_show(idem_lookup('import', 'by hand')), regress_show(idem_lookup('import', 'too late'));

DROP FUNCTION import_by_hand;
DROP FUNCTION import_fails;
SELECT idem_release('import', 'leased', token => regress_token('a')), idem_force_release('import', 'run out', 'a test');
SELECT regress_close(), idem_drop_session('import'), idem_drop_session('import strict'), idem_drop_session('import inbox'), idem_drop_session('import time');
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
DROP TABLE import_from;
DROP OWNED BY regress_import_owner, regress_import_admin;
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
DROP ROLE regress_import_owner, regress_import_admin;
