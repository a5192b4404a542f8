-- Goal: what a caller can get wrong in an argument is refused with a clear error, never with a NULL.
-- Method: one call for each mistake; DETAIL and HINT too for one of each kind.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('bad input', ttl => '1 hour');
SELECT idem_create_session('bad input inbox', ttl => '1 hour', inbox => true);

-- NULL in every argument that must be given, of every function that has such; elsewhere it is the default
SELECT regress_error($$SELECT idem_begin(NULL, 'k')$$);
SELECT regress_error($$SELECT idem_begin('bad input', NULL)$$);
SELECT regress_error($$SELECT idem_grant(NULL)$$);
SELECT regress_error($$SELECT idem_revoke(NULL)$$);
SELECT regress_error($$SELECT idem_grant(current_user::regrole, NULL)$$);
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY[
  'idem_begin(NULL, NULL)', 'idem_begin(NULL, 1)',
  'idem_record(NULL, ''k'')', 'idem_record(''bad input'', NULL)', 'idem_record(NULL, 1)', 'idem_record(''bad input'', NULL::bigint)',
  'idem_record(''bad input'', ''k'', failed => NULL)',
  'idem_checkpoint(NULL, ''k'', ''p'')', 'idem_checkpoint(''bad input'', NULL, ''p'')', 'idem_checkpoint(''bad input'', ''k'', NULL)',
  'idem_checkpoint(NULL, 1, ''p'')', 'idem_checkpoint(''bad input'', NULL::bigint, ''p'')', 'idem_checkpoint(''bad input'', 1, NULL)',
  'idem_release(NULL, ''k'')', 'idem_release(''bad input'', NULL)', 'idem_release(NULL, 1)', 'idem_release(''bad input'', NULL::bigint)',
  'idem_extend(NULL, ''k'', 1, ''1 s'')', 'idem_extend(''bad input'', NULL, 1, ''1 s'')', 'idem_extend(''bad input'', ''k'', NULL, ''1 s'')', 'idem_extend(''bad input'', ''k'', 1, NULL)',
  'idem_extend(''bad input'', NULL::bigint, 1, ''1 s'')', 'idem_extend(''bad input'', NULL::uuid, 1, ''1 s'')',
  'idem_settle(NULL, ''k'')', 'idem_settle(''bad input'', NULL)', 'idem_settle(''bad input'', NULL::bigint)', 'idem_settle(''bad input'', NULL::uuid)',
  'idem_lookup(NULL, ''k'')', 'idem_lookup(''bad input'', NULL)', 'idem_lookup(NULL, 1)', 'idem_lookup(''bad input'', NULL::bigint)',
  'idem_once(NULL, ''k'')', 'idem_once(''bad input inbox'', NULL)', 'idem_once(NULL, 1)', 'idem_once(''bad input inbox'', NULL::bigint)',
  'idem_once_many(NULL, ''{k}'')', 'idem_once_many(''bad input inbox'', NULL)', 'idem_once_many(''bad input inbox'', ''{a,NULL,b}'')',
  'idem_run(NULL, ''k'', ''SELECT 1'')', 'idem_run(''bad input'', NULL, ''SELECT 1'')', 'idem_run(''bad input'', ''k'', NULL)',
  'idem_run(''bad input'', ''k'', ''SELECT 1'', on_error => NULL)',
  'idem_forget(NULL, ''k'', ''why'')', 'idem_forget(''bad input'', NULL, ''why'')', 'idem_forget(''bad input'', ''k'', NULL)',
  'idem_forget(NULL, 1, ''why'')', 'idem_forget(''bad input'', NULL::bigint, ''why'')', 'idem_forget(''bad input'', 1, NULL)',
  'idem_create_session(NULL)', 'idem_create_session(''bad input 2'', require_payload => NULL)',
  'idem_create_session(''bad input 2'', inbox => NULL)', 'idem_create_session(''bad input 2'', time_keys => NULL)',
  'idem_alter_session(NULL)', 'idem_drop_session(NULL)',
  'idem_generate_ids(NULL)', 'idem_key(NULL)', 'idem_fingerprint(NULL)',
  'idem_grant(NULL)', 'idem_grant(current_user::regrole, NULL)', 'idem_revoke(NULL)'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;

-- no function is STRICT, and so silent
SELECT p.oid::regprocedure
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence')
  AND p.proisstrict AND p.pronargs > 0;

-- empty
SELECT regress_error($$SELECT idem_begin('', 'k')$$);
SELECT regress_error($$SELECT idem_begin('bad input', '')$$);
SELECT regress_error($$SELECT idem_lookup('bad input', '')$$);
SELECT regress_error($$SELECT idem_once('bad input inbox', '')$$);
SELECT regress_error($$SELECT idem_once_many('bad input inbox', '{a,""}')$$);
SELECT regress_error($$SELECT idem_run('bad input', '', 'SELECT 1')$$);
SELECT regress_error($$SELECT idem_create_session('')$$);
SELECT regress_error($$SELECT idem_forget('bad input', 'k', ' ')$$);
SELECT count(*) FROM idem_once_many('bad input inbox', '{}');

-- 255 characters, whatever their bytes, and 256
BEGIN;
SELECT regress_show(idem_begin('bad input', repeat('k', 255)));
SELECT regress_show(idem_begin('bad input', repeat('€', 255)));
SELECT regress_show(idem_begin('bad input', repeat('𝄞', 255)));
SELECT idem_checkpoint('bad input', repeat('k', 255), repeat('€', 255));
SELECT idem_record('bad input', repeat('€', 255)) IS NOT NULL, idem_record('bad input', repeat('𝄞', 255)) IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('bad input', repeat('𝄞', 255)));
SELECT regress_show(idem_lookup('bad input', repeat('𝄞', 254)));
SELECT idem_once('bad input inbox', repeat('€', 255)), idem_once('bad input inbox', repeat('€', 255));
SELECT regress_error($$SELECT idem_begin('bad input', repeat('k', 256))$$);
SELECT regress_error($$SELECT idem_begin('bad input', repeat('€', 256))$$);
SELECT regress_error($$SELECT idem_lookup('bad input', repeat('𝄞', 256))$$);
SELECT regress_error($$SELECT idem_once('bad input inbox', repeat('k', 256))$$);
SELECT regress_error($$SELECT idem_once_many('bad input inbox', ARRAY['k', repeat('k', 256)])$$);
SELECT regress_error($$SELECT idem_run('bad input', repeat('k', 256), 'SELECT 1')$$);
SELECT regress_error($$SELECT idem_forget('bad input', repeat('k', 256), 'why')$$);
SELECT regress_error($$SELECT idem_forget('bad input', 'k', repeat('y', 1001))$$);
SELECT regress_error($$SELECT idem_begin('bad input', 'p'), idem_checkpoint('bad input', 'p', repeat('€', 256))$$);
SELECT idem_create_session(repeat('€', 255));
SELECT idem_drop_session(repeat('€', 255));
SELECT regress_error($$SELECT idem_create_session(repeat('k', 256))$$);

-- no such session; its name is told back, and nobody starts afresh because of a slip
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY[
  'idem_begin(''bad_input'', ''k'')', 'idem_record(''bad_input'', ''k'')', 'idem_checkpoint(''bad_input'', ''k'', ''p'')',
  'idem_release(''bad_input'', ''k'')', 'idem_begin(''bad_input'', ''k'', lease => ''1 s'')', 'idem_record(''bad_input'', ''k'', token => 1)', 'idem_checkpoint(''bad_input'', ''k'', ''p'', token => 1)',
  'idem_release(''bad_input'', ''k'', token => 1)', 'idem_extend(''bad_input'', ''k'', 1, ''1 s'')', 'idem_settle(''bad_input'', ''k'')', 'idem_claim(''bad_input'', ''k'')',
  'idem_lookup(''bad_input'', ''k'')', 'idem_once(''bad_input'', ''k'')',
  'idem_once_many(''bad_input'', ''{}'')', 'idem_run(''bad_input'', ''k'', ''SELECT 1'')', 'idem_forget(''bad_input'', ''k'', ''why'')',
  'idem_alter_session(''bad_input'')', 'idem_drop_session(''bad_input'')'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;
-- names count letter by letter
SELECT regress_error($$SELECT idem_begin('Bad input', 'k')$$);
SELECT regress_error($$SELECT idem_begin('bad input ', 'k')$$);

-- a session's name in the form of a UUID is a client session's
SELECT regress_error($$SELECT idem_create_session('01890a5d-ac96-774b-bcce-b302099a8057')$$);
SELECT regress_error($$SELECT idem_create_session('{01890A5D-AC96-774B-BCCE-B302099A8057}')$$);
SELECT regress_error($$SELECT idem_create_session('01890a5dac96774bbcceb302099a8057')$$);
SELECT call, regress_message('SELECT ' || replace(call, 'U', '''01890a5d-ac96-774b-bcce-b302099a8057'''))
FROM unnest(ARRAY[
  'idem_begin(U, 1)', 'idem_begin(U, 1, lease => ''1 s'')', 'idem_extend(U, 1, 1, ''1 s'')', 'idem_record(U, 1, token => 1)', 'idem_settle(U, 1)', 'idem_claim(U, 1)', 'idem_record(U, 1)', 'idem_checkpoint(U, 1, ''p'')', 'idem_release(U, 1)', 'idem_lookup(U, 1)',
  'idem_once(U, 1)', 'idem_once_many(U, ''{1}'')', 'idem_run(U, ''1'', ''SELECT 1'')', 'idem_forget(U, 1, ''why'')',
  'idem_alter_session(U)', 'idem_drop_session(U)'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;

-- waits: not negative
SELECT regress_error($$SELECT idem_begin('bad input', 'k', wait => '-1 second')$$);
SELECT regress_error($$SELECT idem_begin('bad input', 'k', wait => '1 second -1 day')$$);
SELECT regress_error($$SELECT idem_run('bad input', 'k', 'SELECT 1', wait => '-1 microsecond')$$);
BEGIN;
SELECT regress_show(idem_begin('bad input', 'waits', wait => '0'));
ROLLBACK;

-- lifetimes: of a session one second to ten years, of a record more than nothing and at most its session's
SELECT regress_error($$SELECT idem_create_session('bad input ttl', ttl => '0')$$);
SELECT ttl, regress_message(format('SELECT idem_create_session(''bad input ttl'', ttl => %L)', ttl))
FROM unnest('{-1 hour,0,999 milliseconds,3650 days 1 microsecond,11 years,100000000 years}'::text[]) WITH ORDINALITY AS t (ttl, place) ORDER BY place;
SELECT regress_error($$SELECT idem_alter_session('bad input', ttl => '0')$$);
SELECT ttl, idem_create_session('bad input ttl ' || ttl, ttl => ttl::interval)
FROM unnest('{1 second,3650 days,1 month -1 day}'::text[]) WITH ORDINALITY AS t (ttl, place) ORDER BY place;
SELECT session, extract(epoch FROM ttl)::bigint FROM idempotence.sessions WHERE session LIKE 'bad input ttl %' ORDER BY session;
BEGIN;
SELECT regress_show(idem_begin('bad input', 'ttl'));
SELECT regress_error($$SELECT idem_record('bad input', 'ttl', ttl => '2 hours')$$);
SELECT ttl, regress_message(format('SELECT idem_record(''bad input'', ''ttl'', ttl => %L)', ttl))
FROM unnest('{-1 hour,0,1 hour 1 microsecond,61 minutes,100000000 years}'::text[]) WITH ORDINALITY AS t (ttl, place) ORDER BY place;
SELECT idem_record('bad input', 'ttl', ttl => '60 minutes') IS NOT NULL;
SELECT regress_show(idem_lookup('bad input', 'ttl'));
ROLLBACK;
SELECT regress_error($$SELECT idem_run('bad input', 'ttl', 'SELECT 1', ttl => '2 hours')$$);

-- the two sorts of sessions
SELECT regress_error($$SELECT idem_once('bad input', 'k')$$);
SELECT regress_error($$SELECT idem_begin('bad input inbox', 'k')$$);
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY[
  'idem_once(''bad input'', ''k'')', 'idem_once(''bad input'', 1)', 'idem_once_many(''bad input'', ''{k}'')', 'idem_once_many(''bad input'', ''{}'')',
  'idem_begin(''bad input inbox'', ''k'')', 'idem_begin(''bad input inbox'', 1)', 'idem_record(''bad input inbox'', ''k'')',
  'idem_checkpoint(''bad input inbox'', ''k'', ''p'')', 'idem_release(''bad input inbox'', ''k'')', 'idem_run(''bad input inbox'', ''k'', ''SELECT 1'')'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;

-- what belongs to client sessions
SELECT regress_error($$SELECT idem_begin('bad input', 'k', stream => '')$$);
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY[
  'idem_begin(''bad input'', ''k'', stream => '''')', 'idem_begin(''bad input'', 1, stream => ''s'')',
  'idem_begin(''bad input'', 1, last => 2)', 'idem_begin(''bad input'', ''k'', last => 2)',
  'idem_begin(''bad input'', 1, ack => 0)', 'idem_begin(''bad input'', ''k'', ack => 0)',
  'idem_record(''bad input'', 1, stream => ''s'')', 'idem_record(''bad input'', ''k'', stream => ''s'')',
  'idem_checkpoint(''bad input'', 1, ''p'', stream => ''s'')', 'idem_release(''bad input'', 1, stream => ''s'')',
  'idem_lookup(''bad input'', 1, stream => ''s'')'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;

-- leases: from 10 milliseconds to 7 days
SELECT regress_error($$SELECT idem_begin('bad input', 'lease', lease => '9 ms')$$);
SELECT regress_error($$SELECT idem_begin('bad input', 'lease', lease => '7 days 1 microsecond')$$);
SELECT lease, regress_message(format('SELECT idem_begin(''bad input'', ''lease'', lease => %L)', lease)), regress_message(format('SELECT idem_extend(''bad input'', ''lease'', 1, %L)', lease))
FROM unnest('{-1 hour,0,1 microsecond,9999 microseconds,8 days,1 month,1 month -29 days,100000000 years,-100000000 years}'::text[]) WITH ORDINALITY AS t (lease, place) ORDER BY place;
SELECT regress_registered('bad input', idem_register());
SELECT regress_message($$SELECT idem_begin(regress_id('bad input'), 1, lease => '0')$$), regress_message($$SELECT idem_extend(regress_id('bad input'), 1, 1, '8 days')$$), regress_message($$SELECT idem_extend(regress_id('bad input'), 1, NULL, '1 day')$$);
SELECT idem_close(regress_id('bad input'));
DELETE FROM regress_client_session;
BEGIN;
SELECT regress_take('a', idem_begin('bad input', 'lease', lease => '10 ms')) IS NOT NULL, regress_take('b', idem_begin('bad input', 'lease 2', lease => '7 days'));
SELECT idem_extend('bad input', 'lease', regress_token('a'), '7 days') > now() + interval '6 days 23 hours', idem_extend('bad input', 'lease 2', regress_token('b'), '10 ms') > now() + interval '6 days 23 hours';
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY['idem_extend(''bad input'', ''lease'', regress_token(''a''), ''9 ms'')', 'idem_checkpoint(''bad input'', ''lease'', NULL, token => regress_token(''a''))', 'idem_checkpoint(''bad input'', ''lease'', repeat(''p'', 256), token => regress_token(''a''))',
  'idem_record(''bad input'', ''lease'', failed => NULL, token => regress_token(''a''))', 'idem_record(''bad input'', ''lease'', token => regress_token(''a''), ttl => ''2 hours'')', 'idem_record(''bad input'', ''lease'', token => regress_token(''a''), ttl => ''0'')',
  'idem_record(''bad input'', ''lease'', token => regress_token(''a''), stream => ''s'')', 'idem_record(''bad input'', ''lease'', to_jsonb(repeat(''x'', 1048569)), token => regress_token(''a''))', 'idem_record(''bad input'', ''lease'', token => regress_token(''b''))']) WITH ORDINALITY c (call, place) ORDER BY place;
ROLLBACK;
-- attempts: from 1; 0 only where a limit is taken away
SELECT regress_error($$SELECT idem_create_session('bad input 2', max_attempts => -1)$$);
SELECT call, regress_message('SELECT ' || call)
FROM unnest('{"idem_create_session(''bad input 2'', max_attempts => 0)","idem_create_session(''bad input 2'', inbox => true, max_attempts => 3)","idem_alter_session(''bad input'', max_attempts => -1)","idem_alter_session(''bad input inbox'', max_attempts => 3)"}'::text[]) WITH ORDINALITY c (call, place) ORDER BY place;

-- a token, where no lease gave one, also for a request that this transaction holds
BEGIN;
SELECT regress_show(idem_begin('bad input', 'token'));
SELECT regress_error($$SELECT idem_record('bad input', 'token', token => 1)$$);
SELECT regress_error($$SELECT idem_checkpoint('bad input', 'token', 'p', token => -1)$$);
SELECT regress_error($$SELECT idem_release('bad input', 'token', token => 9223372036854775807)$$);
ROLLBACK;

-- sizes, at the limit and one byte more; a jsonb string of n bytes takes n + 8
SET idempotence.max_payload = 100;
SET idempotence.max_response = 200;
SELECT pg_column_size(to_jsonb(repeat('x', 92))) - 4, pg_column_size(to_jsonb(repeat('x', 192))) - 4;
BEGIN;
SELECT regress_show(idem_begin('bad input', 'sizes', payload => to_jsonb(repeat('x', 92))));
SELECT idem_record('bad input', 'sizes', to_jsonb(repeat('x', 192))) IS NOT NULL;
ROLLBACK;
BEGIN;
SELECT regress_show(idem_begin('bad input', 'sizes'));
SELECT idem_checkpoint('bad input', 'sizes', 'p', to_jsonb(repeat('x', 192)));
SELECT regress_error($$SELECT idem_checkpoint('bad input', 'sizes', 'p', to_jsonb(repeat('x', 193)))$$);
SELECT regress_error($$SELECT idem_record('bad input', 'sizes', to_jsonb(repeat('x', 193)))$$);
SELECT regress_error($$SELECT idem_record('bad input', 'sizes', to_jsonb(repeat('x', 193)), failed => true)$$);
ROLLBACK;
SELECT regress_error($$SELECT idem_begin('bad input', 'sizes', payload => to_jsonb(repeat('x', 93)))$$);
SELECT regress_error($$SELECT idem_run('bad input', 'sizes', 'SELECT 1', args => to_jsonb(repeat('x', 93)))$$);
SELECT regress_error($$SELECT idem_run('bad input', 'sizes', 'SELECT repeat(''x'', 193)')$$);
RESET idempotence.max_payload;
RESET idempotence.max_response;
-- levels of arrays and objects, as many as may be and one more, wherever a jsonb comes in: what is deeper could be dumped and not restored
CREATE FUNCTION bad_input_deep(levels integer) RETURNS jsonb LANGUAGE sql AS $$ SELECT (repeat('[', levels) || repeat(']', levels))::jsonb $$;
BEGIN;
SELECT regress_show(idem_begin('bad input', 'deep', payload => bad_input_deep(1000)));
SELECT idem_record('bad input', 'deep', jsonb_build_object('a', bad_input_deep(999), 'b', repeat('x', 10000), 'c', bad_input_deep(999))) IS NOT NULL;
ROLLBACK;
BEGIN;
SELECT regress_show(idem_begin('bad input', 'deep'));
SELECT idem_checkpoint('bad input', 'deep', 'p', bad_input_deep(1000));
SELECT regress_error($$SELECT idem_checkpoint('bad input', 'deep', 'p', bad_input_deep(1001))$$);
SELECT regress_error($$SELECT idem_record('bad input', 'deep', bad_input_deep(1001))$$);
SELECT regress_message($$SELECT idem_record('bad input', 'deep', jsonb_build_object('a', 1, 'b', bad_input_deep(1000)), failed => true)$$);
COMMIT;
SELECT regress_error($$SELECT idem_begin('bad input', 'deeper', payload => bad_input_deep(1001))$$);
SELECT regress_message($$SELECT idem_run('bad input', 'deeper', 'SELECT 1', args => bad_input_deep(5000))$$), regress_message($$SELECT idem_run('bad input', 'deeper', 'SELECT bad_input_deep(5000)')$$);
SELECT regress_message($$SELECT idem_settle('bad input', 'deeper', response => bad_input_deep(1001))$$), regress_message($$SELECT idem_force_record('bad input', 'deep', 'a test', response => bad_input_deep(1001))$$);
SELECT column_name, regress_message(format($$SELECT idem_import('bad input', %L, 'a test')$$, format('SELECT ''deeper'' AS key, %s, bad_input_deep(1001) AS %I', other, column_name)))
FROM (VALUES ('response', '''succeeded'' AS status'), ('payload', 'false AS failed'), ('state', '''unfinished'' AS status, ''p'' AS point')) v (column_name, other);
-- the state stays out of the last words of a request that is given up, where it would be one level too deep in them
SELECT idem_alter_session('bad input', max_attempts => 1), regress_take('deep', idem_begin('bad input', 'given up', lease => '1 hour'));
SELECT idem_checkpoint('bad input', 'given up', 'p', bad_input_deep(1000), token => regress_token('deep')), regress_lease_ends('bad input', 'given up');
SELECT regress_show(idem_begin('bad input', 'given up', lease => '1 hour'));
SELECT idem_alter_session('bad input', max_attempts => 0), idem_forget('bad input', 'given up', 'a test'), idem_forget('bad input', 'deep', 'a test');
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
DROP FUNCTION bad_input_deep;
-- the sizes as they come, a little under and over one megabyte
BEGIN;
SELECT regress_show(idem_begin('bad input', 'sizes', payload => to_jsonb(repeat('x', 1048568))));
SELECT idem_record('bad input', 'sizes', to_jsonb(repeat('x', 1048568))) IS NOT NULL;
ROLLBACK;
SELECT regress_error($$SELECT idem_begin('bad input', 'sizes', payload => to_jsonb(repeat('x', 1048569)))$$);
SELECT regress_error($$SELECT idem_begin('bad input', 'sizes'), idem_record('bad input', 'sizes', to_jsonb(repeat('x', 1048569)))$$);

-- how many at once
SELECT regress_error($$SELECT count(*) FROM idem_once_many('bad input inbox', (SELECT array_agg(n::text) FROM generate_series(1, 10001) n))$$);
SELECT count(*) FROM idem_once_many('bad input inbox', (SELECT array_agg(n::text) FROM generate_series(1, 10000) n));
SELECT regress_error($$SELECT idem_generate_ids(10001)$$);
-- an array of two dimensions is taken element by element; one that starts elsewhere counts from 1 too
SELECT * FROM idem_once_many('bad input inbox', '{{aa,bb},{cc,aa}}');
SELECT * FROM idem_once_many('bad input inbox', '[5:6]={dd,ee}');

-- a read-only transaction: a replay and a look, but nothing to start with or to note
SELECT regress_show(idem_run('bad input', 'read only', 'SELECT 1'));
SELECT idem_once('bad input inbox', 'read only');
BEGIN READ ONLY;
SELECT regress_show(idem_begin('bad input', 'read only'));
SELECT regress_show(idem_run('bad input', 'read only', 'SELECT 1'));
SELECT regress_show(idem_lookup('bad input', 'read only'));
SELECT regress_show(idem_lookup('bad input', 'read only 2'));
SELECT idem_once('bad input inbox', 'read only');
SELECT count(*) FROM idem_once_many('bad input inbox', '{1,2,read only}');
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY[
  'idem_begin(''bad input'', ''read only 2'')', 'idem_begin(''bad input'', 2)', 'idem_run(''bad input'', ''read only 2'', ''SELECT 1'')',
  'idem_record(''bad input'', ''read only 2'')', 'idem_checkpoint(''bad input'', ''read only 2'', ''p'')', 'idem_release(''bad input'', ''read only 2'')',
  'idem_once(''bad input inbox'', ''read only 2'')', 'idem_once_many(''bad input inbox'', ''{1,read only 2}'')',
  'idem_forget(''bad input'', ''read only'', ''why'')', 'idem_create_session(''bad input 2'')', 'idem_alter_session(''bad input'')',
  'idem_drop_session(''bad input'')'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;
SELECT regress_error($$SELECT idem_begin('bad input', 'read only 2')$$);
SELECT regress_error($$SELECT idem_once('bad input inbox', 'read only 2')$$);
COMMIT;
-- read-only from the middle on
BEGIN;
SELECT regress_show(idem_begin('bad input', 'read only 2'));
SET TRANSACTION READ ONLY;
SELECT regress_error($$SELECT idem_record('bad input', 'read only 2')$$);
SELECT regress_error($$SELECT idem_checkpoint('bad input', 'read only 2', 'p')$$);
ROLLBACK;

-- idem_run's own
SELECT regress_error($$SELECT idem_run('bad input', 'run', 'SELECT 1', on_error => 'ignore')$$);

-- owners and levels that are none
SELECT regress_error($$SELECT idem_create_session('bad input 2', owner => 'regress_nobody')$$);
SELECT regress_error($$SELECT idem_alter_session('bad input', owner => 'regress_nobody')$$);
SELECT regress_error($$SELECT idem_grant(current_user::regrole, 'root')$$);

-- none of it left anything behind
SELECT session FROM idempotence.sessions WHERE session LIKE 'bad input 2%';
SELECT request FROM idempotence.outcomes WHERE session = 'bad input' AND length(request) < 255;
SELECT regress_claims();
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'bad input%';
-- a name that no session can have, and arguments in the wrong order
SELECT regress_error($$SELECT idem_begin(repeat('x', 256), 'a')$$);
SELECT regress_error($$SELECT idem_begin('order-1', 'bad input')$$);

-- What a name has that would move a terminal's cursor or begin another line is shown, and not done.
SELECT regress_message($$ SELECT idem_begin(E'no\x1b[2J\r\nsession', 'k') $$);
