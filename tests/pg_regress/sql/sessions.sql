-- Goal: standing sessions: made once, changed, dropped, made again; and each option at work.
-- Method: calls in the order of a session's life; the views and the next begin show the effect.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_sessions_owner;
CREATE ROLE regress_sessions_heir;
SELECT idem_grant('regress_sessions_owner'), idem_grant('regress_sessions_heir');

-- A session as the view shows it.
CREATE VIEW regress_sessions AS
SELECT session, owner = current_user::regrole AS mine, kind, extract(epoch FROM ttl)::bigint AS ttl_s, require_payload, time_keys
FROM idempotence.sessions WHERE session LIKE 'sessions%';

-- made, and made again: with the same options a notice, with others an error that says which
SELECT idem_create_session('sessions');
SELECT * FROM regress_sessions;
SELECT ttl = current_setting('idempotence.retention')::interval FROM idempotence.sessions WHERE session = 'sessions';
SELECT idem_create_session('sessions');
SELECT idem_create_session('sessions', owner => current_user::regrole);
SELECT regress_error($$SELECT idem_create_session('sessions', ttl => '1 day')$$);
SELECT regress_error($$SELECT idem_create_session('sessions', require_payload => true, inbox => true)$$);
SELECT regress_error($$SELECT idem_create_session('sessions', ttl => '90 minutes', time_keys => true)$$);
-- a role is told by its name
SELECT replace(e, current_user, 'the current user')
FROM regress_error($$SELECT idem_create_session('sessions', owner => 'regress_sessions_owner')$$) e;
SELECT created_at <= clock_timestamp() AND created_at > clock_timestamp() - interval '1 hour'
FROM idempotence.sessions WHERE session = 'sessions';
-- the same ttl in other units is the same
SELECT idem_create_session('sessions ttl', ttl => '1 day');
SELECT idem_create_session('sessions ttl', ttl => '24 hours');

-- undone with its transaction or savepoint, for the rest of this backend's life too
BEGIN;
SELECT idem_create_session('sessions undone');
SELECT regress_show(idem_lookup('sessions undone', 'k'));
ROLLBACK;
SELECT regress_error($$SELECT idem_lookup('sessions undone', 'k')$$);
BEGIN;
SAVEPOINT making;
SELECT idem_create_session('sessions undone');
SELECT regress_show(idem_lookup('sessions undone', 'k'));
ROLLBACK TO making;
SELECT regress_error($$SELECT idem_lookup('sessions undone', 'k')$$);
COMMIT;

-- altered: what is NULL stays as it is
SELECT idem_alter_session('sessions', ttl => '2 hours');
SELECT * FROM regress_sessions WHERE session = 'sessions';
SELECT idem_alter_session('sessions', require_payload => true);
SELECT idem_alter_session('sessions');
SELECT * FROM regress_sessions WHERE session = 'sessions';
SELECT regress_message($$SELECT idem_begin('sessions', 'k')$$);
SELECT idem_alter_session('sessions', require_payload => false);
BEGIN;
SELECT regress_show(idem_begin('sessions', 'k'));
SELECT idem_record('sessions', 'k', '"kept for two hours"') IS NOT NULL;
COMMIT;
-- a change of ttl is for what is recorded from then on
SELECT idem_alter_session('sessions', ttl => '1 hour');
SELECT regress_show(idem_lookup('sessions', 'k'));
BEGIN;
SELECT regress_show(idem_begin('sessions', 'k 2'));
SELECT idem_record('sessions', 'k 2') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_lookup('sessions', 'k 2'));
-- taken back with its transaction
BEGIN;
SELECT idem_alter_session('sessions', ttl => '5 hours');
ROLLBACK;
SELECT ttl_s FROM regress_sessions WHERE session = 'sessions';
BEGIN;
SAVEPOINT change;
SELECT idem_alter_session('sessions', require_payload => true);
SELECT regress_message($$SELECT idem_begin('sessions', 'k 3')$$);
ROLLBACK TO change;
SELECT regress_show(idem_begin('sessions', 'k 3'));
ROLLBACK;
-- inbox and time_keys are no arguments of it
SELECT regress_message($$SELECT idem_alter_session('sessions', inbox => true)$$);
SELECT regress_message($$SELECT idem_alter_session('sessions', time_keys => true)$$);

-- the owner: given away only by whom it is, to whom the giver is
SELECT idem_create_session('sessions owned', owner => 'regress_sessions_owner');
SELECT session, owner FROM idempotence.sessions WHERE session = 'sessions owned';
SET ROLE regress_sessions_owner;
SELECT regress_show(idem_lookup('sessions owned', 'k'));
SELECT regress_error($$SELECT idem_create_session('sessions gift', owner => 'regress_sessions_heir')$$);
SELECT regress_error($$SELECT idem_alter_session('sessions owned', owner => 'regress_sessions_heir')$$);
SELECT regress_error($$SELECT idem_alter_session('sessions owned', owner => '4000000000'::regrole)$$);
SELECT idem_alter_session('sessions owned', ttl => '3 hours');
SELECT idem_create_session('sessions made by owner');
RESET ROLE;
SELECT session, owner FROM idempotence.sessions WHERE session = 'sessions made by owner';
SELECT idem_alter_session('sessions owned', owner => 'regress_sessions_heir');
SET ROLE regress_sessions_owner;
SELECT regress_error($$SELECT idem_lookup('sessions owned', 'k')$$);
SELECT regress_message($$SELECT idem_alter_session('sessions owned')$$);
SELECT regress_message($$SELECT idem_drop_session('sessions owned')$$);
-- making a session that is another's is no way to learn its options
SELECT regress_message($$SELECT idem_create_session('sessions owned', ttl => '3 hours')$$);
SELECT regress_message($$SELECT idem_create_session('sessions owned')$$);
RESET ROLE;
SET ROLE regress_sessions_heir;
SELECT regress_show(idem_lookup('sessions owned', 'k'));
RESET ROLE;

-- how many a role may have, dropped ones included
CREATE ROLE regress_sessions_many;
CREATE ROLE regress_sessions_more;
SELECT idem_grant('regress_sessions_many'), idem_grant('regress_sessions_more');
GRANT regress_sessions_more TO regress_sessions_many;
SET idempotence.max_standing_sessions_per_role = 3;
SET ROLE regress_sessions_many;
SET idempotence.max_standing_sessions_per_role = 4;
SELECT idem_create_session('sessions many 1'), idem_create_session('sessions many 2'), idem_create_session('sessions many 3');
-- client sessions are none of them
SELECT idem_close((idem_register()).session);
SELECT regress_error($$SELECT idem_create_session('sessions many 4')$$);
SELECT idem_drop_session('sessions many 1');
SELECT regress_message($$SELECT idem_create_session('sessions many 4')$$);
SELECT idem_create_session('sessions many 1'), idem_create_session('sessions many 2');
SELECT idem_alter_session('sessions many 2', ttl => '1 hour', owner => 'regress_sessions_many');
-- given away, it is the other's; and that one has its own limit
SELECT idem_create_session('sessions more 1', owner => 'regress_sessions_more'), idem_create_session('sessions more 2', owner => 'regress_sessions_more');
SELECT idem_alter_session('sessions many 3', owner => 'regress_sessions_more');
SELECT regress_message($$SELECT idem_alter_session('sessions many 2', owner => 'regress_sessions_more')$$);
SELECT idem_drop_session('sessions many 2');
SELECT regress_message($$SELECT idem_create_session('sessions many 2', ttl => '1 hour', owner => 'regress_sessions_more')$$);
SELECT idem_create_session('sessions many 4');
SELECT regress_message($$SELECT idem_create_session('sessions many 5')$$);
RESET ROLE;
RESET idempotence.max_standing_sessions_per_role;
DELETE FROM idempotence.session WHERE name LIKE 'sessions many%' OR name LIKE 'sessions more%';
SELECT idem_revoke('regress_sessions_many'), idem_revoke('regress_sessions_more');
DROP ROLE regress_sessions_many, regress_sessions_more;

-- dropped: unknown to all; made again it is the same series with the same outcomes
SELECT idem_drop_session('sessions');
SELECT regress_error($$SELECT idem_begin('sessions', 'k')$$);
SELECT regress_message($$SELECT idem_lookup('sessions', 'k')$$);
SELECT regress_message($$SELECT idem_drop_session('sessions')$$);
SELECT regress_message($$SELECT idem_alter_session('sessions')$$);
SELECT count(*) FROM regress_sessions WHERE session = 'sessions';
SELECT idem_create_session('sessions', ttl => '10 minutes', require_payload => true);
SELECT * FROM regress_sessions WHERE session = 'sessions';
SELECT regress_show(idem_lookup('sessions', 'k'));
SELECT regress_show(idem_begin('sessions', 'k', payload => '1'));
-- a session whose making again was rolled back stays dropped
BEGIN;
SELECT idem_drop_session('sessions');
ROLLBACK;
SELECT regress_show(idem_lookup('sessions', 'k'));
SELECT idem_drop_session('sessions');
BEGIN;
SELECT idem_create_session('sessions');
ROLLBACK;
SELECT regress_message($$SELECT idem_lookup('sessions', 'k')$$);
-- inbox and time_keys belong to the series, dropped or not
SELECT regress_message($$SELECT idem_create_session('sessions', inbox => true)$$);
SELECT regress_message($$SELECT idem_create_session('sessions', ttl => '1 hour', time_keys => true)$$);
-- and so does the owner: others get nothing by making it again
SET ROLE regress_sessions_owner;
SELECT regress_error($$SELECT idem_create_session('sessions')$$);
RESET ROLE;
SET ROLE regress_sessions_heir;
SELECT idem_drop_session('sessions owned');
RESET ROLE;
SET ROLE regress_sessions_owner;
SELECT regress_message($$SELECT idem_create_session('sessions owned')$$);
RESET ROLE;
SET ROLE regress_sessions_heir;
SELECT idem_create_session('sessions owned');
RESET ROLE;
SELECT idem_drop_session('sessions owned');
-- an admin may, and it stays its former owner's
SELECT idem_create_session('sessions owned');
SELECT owner FROM idempotence.sessions WHERE session = 'sessions owned';

-- require_payload
SELECT idem_create_session('sessions payload', require_payload => true);
SELECT regress_message($$SELECT idem_begin('sessions payload', 'k')$$);
SELECT regress_message($$SELECT idem_run('sessions payload', 'k', 'SELECT 1')$$);
BEGIN;
SELECT regress_show(idem_begin('sessions payload', 'k', payload => 'null'));
SELECT idem_record('sessions payload', 'k') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('sessions payload', 'k', payload => 'null'));
SELECT regress_message($$SELECT idem_begin('sessions payload', 'k')$$);
SELECT regress_show(idem_lookup('sessions payload', 'k'));

-- ttl: at its end a request is unknown, and executed again
SELECT idem_create_session('sessions short', ttl => '1 second');
BEGIN;
SELECT regress_show(idem_begin('sessions short', 'k'));
SELECT idem_record('sessions short', 'k', '1') IS NOT NULL;
COMMIT;
SELECT pg_sleep(1.01);
SELECT regress_show(idem_lookup('sessions short', 'k'));
SELECT count(*) FROM idempotence.outcomes WHERE session = 'sessions short';
BEGIN;
SELECT regress_show(idem_begin('sessions short', 'k'));
SELECT idem_record('sessions short', 'k', '2') IS NOT NULL;
COMMIT;
-- a longer ttl for what comes does not bring an outcome back
SELECT pg_sleep(1.01);
SELECT idem_alter_session('sessions short', ttl => '1 hour');
SELECT regress_show(idem_lookup('sessions short', 'k'));

-- time_keys: with a ttl that is fixed
SELECT regress_error($$SELECT idem_create_session('sessions time', time_keys => true)$$);
SELECT idem_create_session('sessions time', ttl => '1 hour', time_keys => true);
SELECT regress_error($$SELECT idem_alter_session('sessions time', ttl => '2 hours')$$);
SELECT regress_message($$SELECT idem_alter_session('sessions time', ttl => '59 minutes')$$);
SELECT idem_alter_session('sessions time', ttl => '60 minutes', require_payload => true);
SELECT idem_alter_session('sessions time', require_payload => false);
-- keys are UUIDs of version 7, in the form that the server writes
SELECT key, regress_message(format('SELECT idem_begin(''sessions time'', %L)', key))
FROM unnest('{order-1,42,919108f7-52d1-4320-9bac-f847db4148a8,\{017f22e2-79b0-7cc3-98c4-dc0c0c07398f\},017f22e279b07cc398c4dc0c0c07398f,017f22e2-79b0-7cc3-18c4-dc0c0c07398f}'::text[]) AS key;
SELECT regress_error($$SELECT idem_begin('sessions time', 42)$$);
SELECT regress_message($$SELECT idem_lookup('sessions time', 'order-1')$$);
-- upper case is the same request
SELECT idem_generate_id() AS id \gset
BEGIN;
SELECT regress_show(idem_begin('sessions time', :'id'));
SELECT regexp_replace(regress_message(format('SELECT idem_begin(''sessions time'', %L)', upper(:'id'))), '[0-9a-f-]{36}', '…');
SELECT idem_record('sessions time', upper(:'id'), '1') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('sessions time', upper(:'id')));
SELECT regress_show(idem_lookup('sessions time', upper(:'id')));
SELECT request = lower(:'id') FROM idempotence.outcomes WHERE session = 'sessions time';
-- to forget it, too
SELECT idem_forget('sessions time', upper(:'id'), 'a test');
SELECT regress_show(idem_lookup('sessions time', :'id'));
-- a record may not shorten the ttl
BEGIN;
SELECT regress_show(idem_begin('sessions time', :'id'));
SELECT regexp_replace(regress_error(format('SELECT idem_record(''sessions time'', %L, ttl => ''59 minutes'')', :'id')), '[0-9a-f-]{36}', '…');
ROLLBACK;
-- a key from the future is refused when it is more than five minutes ahead; its seconds are left out
SELECT regexp_replace(regexp_replace(e, '[0-9a-f-]{36}', '…'), '\d{9,} seconds', '… seconds')
FROM regress_error($$SELECT idem_begin('sessions time', 'ffffffff-ffff-7fff-bfff-ffffffffffff')$$) e;
SELECT regexp_replace(regress_message($$SELECT idem_begin('sessions time', regress_uuid7(clock_timestamp() + interval '5 min 10 s'))$$), '[0-9a-f-]{36}', '…');
-- one a little ahead lives until its own time and the ttl
SELECT regress_uuid7(clock_timestamp() + interval '4 min') AS ahead \gset
BEGIN;
SELECT regress_show(idem_begin('sessions time', :'ahead'));
SELECT idem_record('sessions time', :'ahead') IS NOT NULL;
COMMIT;
SELECT t.expires_at - t.recorded_at BETWEEN interval '1 hour 3 min' AND interval '1 hour 4 min' FROM idem_lookup('sessions time', :'ahead') t;
-- one in the past lives from its recording on
SELECT regress_uuid7(clock_timestamp() - interval '50 min') AS behind \gset
BEGIN;
SELECT regress_show(idem_begin('sessions time', :'behind'));
SELECT idem_record('sessions time', :'behind', '"late"') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('sessions time', :'behind'));
-- too old to tell: more than the ttl ago, and nothing is kept
SELECT regress_uuid7(clock_timestamp() - interval '61 min') AS old \gset
SELECT regexp_replace(regress_error(format('SELECT idem_begin(''sessions time'', %L)', :'old')), '[0-9a-f-]{36}', '…');
SELECT regexp_replace(regress_message(format('SELECT idem_run(''sessions time'', %L, ''SELECT 1'')', :'old')), '[0-9a-f-]{36}', '…');
SELECT regress_claims();
-- dropped and made again it is the same series: its ttl stays, and what was too old stays too old
SELECT idem_drop_session('sessions time');
SELECT regress_message($$SELECT idem_create_session('sessions time', ttl => '2 hours', time_keys => true)$$);
SELECT regress_message($$SELECT idem_create_session('sessions time', ttl => '30 minutes', time_keys => true)$$);
SELECT idem_create_session('sessions time', ttl => '1 hour', time_keys => true);
SELECT regexp_replace(regress_message(format('SELECT idem_begin(''sessions time'', %L)', :'old')), '[0-9a-f-]{36}', '…');
-- an outcome that is kept is replayed however old its key is
DO $$ BEGIN
  PERFORM set_config('regress.id', regress_uuid7(clock_timestamp() - interval '59 min 58 s'), false);
  PERFORM idem_begin('sessions time', current_setting('regress.id'));
  PERFORM idem_record('sessions time', current_setting('regress.id'), '"kept"');
END $$;
SELECT pg_sleep(2.01);
SELECT regress_show(idem_begin('sessions time', current_setting('regress.id')));
-- one that is kept no more is refused
SELECT idem_create_session('sessions time short', ttl => '1 second', time_keys => true);
DO $$ BEGIN
  PERFORM set_config('regress.id', regress_uuid7(clock_timestamp() + interval '1 second'), false);
  PERFORM idem_begin('sessions time short', current_setting('regress.id'));
  PERFORM idem_record('sessions time short', current_setting('regress.id'));
END $$;
SELECT pg_sleep(2.01);
SELECT regexp_replace(regress_message(format('SELECT idem_begin(''sessions time short'', %L)', current_setting('regress.id'))), '[0-9a-f-]{36}', '…');
SELECT regress_show(idem_lookup('sessions time short', current_setting('regress.id')));
-- an inbox with time_keys
SELECT idem_create_session('sessions time inbox', ttl => '1 hour', inbox => true, time_keys => true);
SELECT idem_once('sessions time inbox', :'ahead'), idem_once('sessions time inbox', upper(:'ahead'));
SELECT count(*) FROM idem_once_many('sessions time inbox', ARRAY[:'behind', upper(:'behind'), :'ahead']);
SELECT regexp_replace(regress_message(format('SELECT idem_once(''sessions time inbox'', %L)', :'old')), '[0-9a-f-]{36}', '…');
SELECT regexp_replace(regress_message($$SELECT idem_once('sessions time inbox', 'ffffffff-ffff-7fff-bfff-ffffffffffff')$$), '[0-9a-f-]{36}', '…');
SELECT regress_message($$SELECT idem_once('sessions time inbox', 'message-1')$$);
SELECT * FROM regress_sessions ORDER BY session;

-- what was begun goes on under the rules of its begin; what is begun or looked up, under those of now
BEGIN;
SELECT idem_create_session('sessions rules', ttl => '2 hours');
SELECT regress_show(idem_begin('sessions rules', 'a')), regress_show(idem_begin('sessions rules', 'b')), regress_show(idem_begin('sessions rules', 'c'));
SELECT idem_record('sessions rules', 'a') > now() + interval '1 hour 59 minutes';
SELECT idem_alter_session('sessions rules', ttl => '1 hour', require_payload => true);
SELECT idem_record('sessions rules', 'b') > now() + interval '1 hour 59 minutes';
SELECT regress_message($$SELECT idem_begin('sessions rules', 'd')$$);
SELECT idem_drop_session('sessions rules');
SELECT idem_record('sessions rules', 'c') > now() + interval '1 hour 59 minutes';
SELECT regress_message($$SELECT idem_begin('sessions rules', 'e')$$);
SELECT regress_message($$SELECT idem_lookup('sessions rules', 'a')$$);
COMMIT;
SELECT idem_create_session('sessions rules');
SELECT regress_show(idem_lookup('sessions rules', key)) FROM unnest('{a,b,c,d}'::text[]) key;

SELECT count(idem_drop_session(session)) FROM idempotence.sessions WHERE session LIKE 'sessions%';
DROP VIEW regress_sessions;
SELECT idem_revoke('regress_sessions_owner'), idem_revoke('regress_sessions_heir');
DROP ROLE regress_sessions_owner, regress_sessions_heir;
