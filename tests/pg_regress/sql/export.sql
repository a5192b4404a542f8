-- Goal: what an export gives is enough for the session to go on elsewhere: there every request is answered, refused, taken
-- over or goes on as it would be here. Nothing is exported that could still change here.
-- Method: sessions with requests in every state go over into sessions of other names, in each way that a program may take;
-- each refusal; each role.
\pset format unaligned
\pset tuples_only on
DELETE FROM idempotence.audit;
CREATE ROLE regress_export_owner;
CREATE ROLE regress_export_user;
CREATE ROLE regress_export_admin;
SELECT idem_grant('regress_export_owner'), idem_grant('regress_export_user'), idem_grant('regress_export_admin', 'admin');
SELECT idem_create_session('export', ttl => '1 hour', owner => 'regress_export_owner', usable_by => 'regress_export_user', max_attempts => 3),
       idem_create_session('export inbox', ttl => '1 hour', inbox => true), idem_create_session('export time', ttl => '1 hour', time_keys => true);

-- requests in every state
SELECT regress_show(idem_run('export', 't1/paid', 'SELECT $1', '{"amount": 1}')), regress_show(idem_run('export', 't1/bare', 'SELECT NULL::int')), regress_show(idem_run('export', 't2/paid', 'SELECT 2')),
       regress_show(idem_run('export', 't1/declined', 'SELECT 1/0', on_error => 'record')), regress_show(idem_settle('export', 't1/settled')), regress_show(idem_settle('export', 't1/answered', response => '{"answer": "no"}')), regress_show(idem_run('export', 't1/redacted', 'SELECT 3', ttl => '10 minutes')),
       regress_show(idem_run('export', 'T1/other', 'SELECT 4')), regress_show(idem_run('export', 't1/expires', 'SELECT 5'));
SELECT idem_redact('export', 't1/redacted', 'a test');
DO $$ BEGIN FOR n IN 0..2 LOOP EXECUTE format('UPDATE idempotence.outcome_%s SET expires_at = recorded_at + interval ''1 us'' WHERE key = ''t1/expires''', n); END LOOP; END $$;
SELECT regress_take('done', idem_begin('export', 't1/leased and done', lease => '1 hour'));
SELECT idem_record('export', 't1/leased and done', '"done"', token => regress_token('done')) IS NOT NULL;
SELECT idem_checkpoint('export', 't1/half', 'charged', '{"charge": 17}') FROM idem_begin('export', 't1/half', payload => '[1]');
SELECT regress_take('lost', idem_begin('export', 't1/lost', lease => '1 hour', payload => '[2]'));
SELECT idem_checkpoint('export', 't1/lost', 'shipped', token => regress_token('lost'));
SELECT regress_take('mute', idem_begin('export', 't2/mute', lease => '1 hour'));
SELECT idem_once_many('export inbox', '{m1,m2}');
SELECT regress_uuid7(now() - interval '10 minutes') AS id \gset
SELECT regress_show(idem_run('export time', :'id', 'SELECT 6'));

-- two sessions whose rules have changed since
SELECT idem_create_session('export brief', ttl => '1 hour'), idem_create_session('export any', ttl => '1 hour');
SELECT regress_show(idem_run('export brief', 'k', 'SELECT 1')), regress_show(idem_run('export any', 'k', 'SELECT 2')), regress_show(idem_run('export any', 'f', 'SELECT 1/0', on_error => 'record'));
SELECT idem_alter_session('export brief', ttl => '1 minute'), idem_alter_session('export any', require_payload => true);

-- refused: open, dropped by this transaction, at work, leased
SELECT regress_error($$SELECT idem_export('export', 'a test')$$);
BEGIN;
SELECT idem_drop_session('export');
SELECT regress_error($$SELECT idem_export('export', 'a test')$$);
ROLLBACK;
BEGIN;
SELECT regress_show(idem_run('export', 't1/prepared', 'SELECT 7'));
PREPARE TRANSACTION 'regress_export';
BEGIN;
SELECT idem_once('export inbox', 'm3');
PREPARE TRANSACTION 'regress_export_inbox';
SELECT idem_drop_session('export'), idem_drop_session('export inbox'), idem_drop_session('export time');
SET idempotence.wait = '10 ms';
SELECT regress_message($$SELECT idem_export('export', 'a test')$$), regress_message($$SELECT idem_export('export inbox', 'a test')$$);
-- who is at work with the sessions of others is told to monitors (and, if preloaded, a request of this one to both)
CREATE FUNCTION export_at_work() RETURNS text LANGUAGE sql AS $$SELECT regexp_replace(regexp_replace(line, 'since [^.]*', 'since then'), 'At work is [^.]*[.] ', '') FROM regress_error('SELECT idem_export(''export'', ''a test'')') line WHERE line LIKE '%DETAIL%'$$;
SET ROLE regress_export_owner;
SELECT export_at_work();
SET ROLE regress_export_admin;
SELECT export_at_work();
RESET ROLE;
DROP FUNCTION export_at_work;
RESET idempotence.wait;
COMMIT PREPARED 'regress_export';
COMMIT PREPARED 'regress_export_inbox';
SELECT regress_error($$SELECT idem_export('export', 'a test')$$);
-- a prefix asks only for leases of its own
SELECT regress_error($$SELECT idem_export('export', 'a test', prefix => 't2/')$$);
SELECT regress_lease_ends('export', 't2/mute');
SELECT key FROM idem_export('export', 'a test', prefix => 't2/') ORDER BY key COLLATE "C";
-- a holder may still record in a dropped session, and then that is exported
SELECT regress_lease_ends('export', 't1/lost');
SELECT regress_message($$SELECT idem_record('export', 't1/lost', '1', token => regress_token('lost'))$$);

-- everything; the late holder is superseded by that
SET ROLE regress_export_owner;
SELECT key, status, response, fingerprint = idem_fingerprint('{"amount": 1}') AS print, token = regress_token('done') AS done, token > regress_token('lost') AS superseded, attempt, begun_at = leased_until AND leased_until < clock_timestamp() AS run_out,
       point, state, expires_at - recorded_at AS lives
FROM idem_export('export', 'the owner takes it along') ORDER BY key COLLATE "C";
RESET ROLE;
SELECT regress_message($$SELECT idem_record('export', 't1/lost', '1', token => regress_token('lost'))$$);
SET ROLE regress_export_admin;
CREATE TEMP TABLE export_rows AS SELECT * FROM idem_export('export', 'an admin moves it');
RESET ROLE;
SELECT key FROM idem_export('export', 'a test', 't1/%'), (SELECT 1) nothing;
SELECT key FROM idem_export('export', 'a test', E't1\\\'');
SELECT count(*) FROM idem_export('export', 'a test', '');
COPY (SELECT key, status FROM idem_export('export inbox', 'a test') ORDER BY key) TO STDOUT;
SELECT key = :'id', status, response FROM idem_export('export time', 'a test', upper(substr(:'id', 1, 8)));

-- the session and what it knows, in one transaction; again; from there to a third one in one statement
BEGIN;
SELECT idem_create_session('export there', ttl => '1 hour', max_attempts => 3);
SELECT * FROM idem_import('export there', 'TABLE export_rows', 'from the other server');
COMMIT;
SELECT * FROM idem_import('export there', 'TABLE export_rows', 'again');
SELECT regress_kept('export there');
SELECT regress_show(idem_begin('export there', 't1/paid', payload => '{"amount": 1}')), regress_message($$SELECT idem_begin('export there', 't1/paid', payload => '{"amount": 2}')$$), regress_show(idem_begin('export there', 't1/declined')),
       regress_show(idem_begin('export there', 't1/settled')), regress_show(idem_begin('export there', 't1/answered')), regress_show(idem_begin('export there', 't1/redacted')), regress_show(idem_begin('export there', 't1/prepared'));
SELECT regress_message($$SELECT idem_record('export there', 't1/leased and done', '2', token => regress_token('done'))$$), regress_message($$SELECT idem_record('export there', 't1/lost', '1', token => regress_token('lost'))$$);
SELECT regress_show(idem_lookup('export there', 't1/half')), regress_show(idem_lookup('export there', 't1/lost')), regress_show(idem_lookup('export there', 't2/mute'));
BEGIN;
SELECT regress_message($$SELECT idem_begin('export there', 't1/half', payload => '[0]')$$), regress_show(idem_begin('export there', 't1/half', payload => '[1]'));
SELECT regress_message($$SELECT idem_begin('export there', 't1/lost', payload => '[0]')$$), regress_show(idem_begin('export there', 't1/lost', payload => '[2]', lease => '1 hour')), regress_show(idem_begin('export there', 't2/mute', lease => '1 hour'));
SELECT regress_show(idem_run('export there', 't1/expires', 'SELECT 8')), regress_show(idem_run('export there', 't3/new', 'SELECT 9'));
ROLLBACK;
SELECT idem_drop_session('export there'), idem_create_session('export third', ttl => '1 hour', require_payload => true);
SELECT * FROM idem_import('export third', $$SELECT * FROM idem_export('export there', 'on it goes')$$, 'in one statement');
SELECT regress_kept('export third'), regress_show(idem_lookup('export third', 't1/paid')), regress_show(idem_lookup('export third', 't1/settled'));
-- what was kept is kept, also where it would not be recorded so today: without a payload, for longer, by another clock
SELECT idem_drop_session('export brief'), idem_drop_session('export any'), idem_create_session('export brief there', ttl => '1 minute'), idem_create_session('export any there', ttl => '1 hour', require_payload => true);
SELECT * FROM idem_import('export brief there', $$SELECT * FROM idem_export('export brief', 'moves')$$, 'a test');
SELECT * FROM idem_import('export any there', $$SELECT * FROM idem_export('export any', 'moves')$$, 'a test');
SELECT request, expires_at - recorded_at AS lives FROM idempotence.outcomes WHERE session = 'export brief there';
SELECT regress_show(idem_begin('export brief there', 'k')), regress_show(idem_begin('export any there', 'k', payload => '1')), regress_show(idem_begin('export any there', 'f', payload => '1'));
SELECT * FROM idem_import('export any there', $$SELECT 'ahead' AS key, 'succeeded' AS status, now() + interval '1 day' AS recorded_at, now() + interval '1 day 1 hour' AS expires_at$$, 'a test');
SELECT request, recorded_at <= clock_timestamp() AS recorded, date_trunc('hour', expires_at - recorded_at) AS lives FROM idempotence.outcomes WHERE session = 'export any there' AND request = 'ahead';
SELECT idem_drop_session('export brief there'), idem_drop_session('export any there');
-- made again, the session is as it was, but for the leases that ran out
SELECT idem_create_session('export', ttl => '1 hour', max_attempts => 3), regress_kept('export'), regress_show(idem_lookup('export', 't1/paid'));

-- bound to another node it is closed, too; a holder completes until the export; the other end is a signpost until it is filled
SELECT idem_create_session('export bound', ttl => '1 hour'), idem_create_session('export signpost', ttl => '1 hour', node => 'elsewhere');
SELECT regress_show(idem_run('export bound', 'k', 'SELECT 1')), regress_take('bound', idem_begin('export bound', 'lost', lease => '1 hour')), idem_alter_session('export bound', node => 'elsewhere');
SELECT regress_message($$SELECT idem_begin('export bound', 'k')$$), regress_message($$SELECT idem_export('export bound', 'a test')$$);
SELECT regress_lease_ends('export bound', 'lost'), regress_message($$SELECT idem_record('export bound', 'lost', '1', token => regress_token('bound'))$$);
SELECT * FROM idem_import('export signpost', $$SELECT * FROM idem_export('export bound', 'moves')$$, 'a test');
SELECT regress_message($$SELECT idem_record('export bound', 'lost', '1', token => regress_token('bound'))$$), regress_message($$SELECT idem_begin('export signpost', 'k')$$);
SELECT idem_alter_session('export signpost', node => idem_node()), regress_show(idem_begin('export signpost', 'k')), regress_show(idem_lookup('export signpost', 'lost'));
SELECT idem_alter_session('export bound', node => '-'), regress_show(idem_begin('export bound', 'k')), idem_drop_session('export bound'), idem_drop_session('export signpost');

-- an inbox, time keys
SELECT idem_create_session('export inbox there', ttl => '1 hour', inbox => true), idem_create_session('export time there', ttl => '1 hour', time_keys => true);
SELECT * FROM idem_import('export inbox there', $$SELECT * FROM idem_export('export inbox', 'moves')$$, 'a test');
SELECT * FROM idem_import('export time there', $$SELECT * FROM idem_export('export time', 'moves')$$, 'a test');
SELECT idem_once('export inbox there', 'm3'), idem_once('export inbox there', 'm4'), regress_show(idem_begin('export time there', :'id'));

-- a time key by another clock; one whose session had a shorter ttl there is kept until it is too old here
SELECT regress_uuid7(now() + interval '10 minutes') AS ahead, regress_uuid7(now() - interval '9 minutes') AS nine \gset
SELECT * FROM idem_import('export time there', format($$SELECT %L AS key, 'succeeded' AS status, now() + interval '10 minutes' AS recorded_at, now() + interval '70 minutes' AS expires_at
  UNION ALL SELECT %L, 'failed', now() - interval '9 minutes', now() + interval '1 minute'$$, :'ahead', :'nine'), 'a test');
SELECT request = :'ahead' AS ahead, recorded_at <= clock_timestamp() AS recorded, date_trunc('minute', expires_at - now() + interval '10 seconds') AS lives FROM idempotence.outcomes WHERE session = 'export time there' AND request IN (:'ahead', :'nine') ORDER BY 1;
SELECT status, replayed FROM idem_begin('export time there', :'nine');

-- refused: wrong sessions, roles, transactions
SELECT regress_registered('export any', idem_register());
SELECT regress_error(format('SELECT idem_export(%L, ''why'')', regress_id('export any')));
SELECT call, regress_message('SELECT ' || call) FROM unnest(ARRAY['idem_export(NULL, ''why'')', 'idem_export(''export third'', NULL)', 'idem_export(''export there'', '' '')', 'idem_export(''export none'', ''why'')']) call;
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_export('export there', 'why')$$);
COMMIT;
BEGIN;
SELECT regress_show(idem_run('export third', 'mine', 'SELECT 1', '0'));
SELECT regress_error($$SELECT idem_export('export there', 'why')$$);
ROLLBACK;
SELECT idem_drop_session('export');
SET ROLE regress_export_user;
SELECT regress_message($$SELECT idem_export('export', 'why')$$), regress_message($$SELECT idem_export('export third', 'why')$$);
RESET ROLE;
-- a token that was written by hand is not given twice, and the way out is to release it
SELECT idem_create_session('export token', ttl => '1 hour'), regress_take('last', idem_begin('export token', 'k', lease => '1 hour'));
UPDATE idempotence.lease SET token = 9223372036854775807 WHERE request = 'k';
SELECT regress_message($$SELECT idem_force_release('export token', 'k', 'why', live => true)$$);
SELECT regress_lease_ends('export token', 'k'), regress_error($$SELECT idem_begin('export token', 'k', lease => '1 hour')$$);
SELECT regress_message($$SELECT idem_begin('export token', 'k')$$), idem_drop_session('export token');
SELECT regress_message($$SELECT idem_export('export token', 'why')$$);
SELECT idem_create_session('export token', ttl => '1 hour'), idem_force_release('export token', 'k', 'a test');
SELECT regress_show(idem_begin('export token', 'k', lease => '1 hour'));
SELECT idem_force_release('export token', 'k', 'a test', live => true);
-- no token of 2^53 comes from outside, and none is handed out: a client that keeps numbers as doubles would take it for another
SELECT token, regress_message(format($$SELECT idem_import('export token', 'SELECT ''x'' AS key, ''unfinished'' AS status, %s AS token, 1 AS attempt, now() AS begun_at, now() AS leased_until', 'why')$$, token)),
       regress_message(format($$SELECT idem_import('export token', 'SELECT ''x'' AS key, ''succeeded'' AS status, %s AS token', 'why')$$, token))
FROM unnest('{0,9007199254740991,9007199254740992,4611686018427387904}'::bigint[]) token;
SELECT (i).imported FROM (SELECT idem_import('export token', format('SELECT %s AS key, ''unfinished'' AS status, %s AS token, 1 AS attempt, now() AS begun_at, now() AS leased_until', token, token), 'a test') AS i
                          FROM unnest('{9007199254740990,9007199254740991}'::bigint[]) token) i;
SELECT (idem_begin('export token', 9007199254740990, lease => '1 hour')).token;
SELECT regress_message($$SELECT idem_begin('export token', 9007199254740991, lease => '1 hour')$$), regress_message($$SELECT idem_force_release('export token', 9007199254740990, 'a test', live => true)$$);
SELECT regress_lease_ends('export token', '9007199254740990'), idem_force_release('export token', 9007199254740990, 'a test'), idem_force_release('export token', 9007199254740991, 'a test');
SELECT idem_drop_session('export token');
-- mistakes in what is imported, with the request named
SELECT query, regress_message(format('SELECT idem_import(''export third'', %L, ''why'')', format('SELECT ''k'' AS key, %s', query))) FROM unnest(ARRAY[
  '''done'' AS status', '''succeeded'' AS status, false AS failed', '''succeeded'' AS status, ''x'' AS point', '''failed'' AS status, 1 AS attempt', '''cancelled'' AS status, timestamptz ''infinity'' AS recorded_at', '''cancelled'' AS status, timestamptz ''infinity'' AS expires_at', '''cancelled'' AS status, now() + interval ''3651 days'' AS expires_at',
  '''unfinished'' AS status', '''unfinished'' AS status, 7 AS token', '''unfinished'' AS status, 9223372036854775807 AS token, 1 AS attempt, now() AS begun_at, now() AS leased_until', '''unfinished'' AS status, 7 AS token, 0 AS attempt, now() AS begun_at, now() AS leased_until',
  '''unfinished'' AS status, 7 AS token, 1 AS attempt, now() AS begun_at, now() - interval ''1 s'' AS leased_until', '''unfinished'' AS status, ''1''::jsonb AS state', '''unfinished'' AS status, ''x'' AS point, ''1''::jsonb AS response',
  '''unfinished'' AS status, repeat(''x'', 256) AS point', '''unfinished'' AS status, ''x'' AS point, to_jsonb(repeat(''x'', 1100000)) AS state', '''succeeded'' AS status, to_jsonb(repeat(''x'', 1100000)) AS response', 'false AS failed']) query;
SELECT regress_message($$SELECT idem_import('export inbox there', 'SELECT 1 AS key, ''unfinished'' AS status, ''x'' AS point', 'why')$$), regress_message($$SELECT idem_import('export inbox there', 'SELECT 1 AS key, ''failed'' AS status', 'why')$$);
-- another clock may be ahead; what is unfinished here otherwise is not written over; what is too old is left out
SELECT * FROM idem_import('export third', $$SELECT 'ahead' AS key, 'cancelled' AS status, now() + interval '1 minute' AS recorded_at, now() + interval '61 minutes' AS expires_at$$, 'a test');
SELECT regress_message($$SELECT idem_import('export third', 'SELECT ''far'' AS key, 0 AS failed, ''1''::jsonb AS payload, now() + interval ''70 minutes'' AS expires_at', 'why')$$);
SELECT regress_message($$SELECT idem_import('export third', 'SELECT ''t1/half'' AS key, ''unfinished'' AS status, ''elsewhere'' AS point', 'why')$$), regress_message($$SELECT idem_import('export third', 'SELECT ''t1/half'' AS key, ''cancelled'' AS status', 'why')$$);
SELECT * FROM idem_import('export third', $$SELECT 'old' AS key, 'unfinished' AS status, 'x' AS point, now() - interval '61 minutes' AS recorded_at UNION ALL SELECT 't1/paid', 'unfinished', 'x', now()$$, 'a test');
SELECT action, session, replace(request, substr(:'id', 1, 8), 'the time'), reason, replace(found, idem_node(), 'here') FROM idempotence.audit ORDER BY at;
SELECT regress_claims();

SET client_min_messages = warning;
SELECT regress_close(), idem_drop_session('export third'), idem_drop_session('export inbox there'), idem_drop_session('export time there');
DELETE FROM idempotence.lease;
DELETE FROM idempotence.checkpoint;
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
DROP TABLE export_rows;
DROP OWNED BY regress_export_owner, regress_export_user, regress_export_admin;
CALL idem_sweep();
RESET client_min_messages;
DROP ROLE regress_export_owner, regress_export_user, regress_export_admin;
