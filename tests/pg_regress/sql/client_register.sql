-- Goal: registering: what a client asks for and gets, and what becomes of its former session.
-- Method: each way of registering in order; the former session's next call shows what it is told.
-- Needs max_prepared_transactions.
\pset format unaligned
\pset tuples_only on

-- with nothing said, the settings decide
SELECT regress_registered('plain', idem_register());
SET idempotence.session_timeout = 90;
SET idempotence.window_size = 7;
SELECT regress_registered('set', idem_register());
-- what is said goes before them
SELECT regress_registered('said', idem_register(timeout => '10 minutes', window_size => 3));
RESET idempotence.session_timeout;
RESET idempotence.window_size;
-- a session is named by a UUID of version 7, in lower case, and the node
SELECT split_part(regress_id('plain'), '@', 1) ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$', split_part(regress_id('plain'), '@', 2) = idem_node();
-- two registrations without a name are two sessions, in one statement too
SELECT count(DISTINCT (r).session) FROM (SELECT idem_register() AS r FROM generate_series(1, 3) OFFSET 0) registered;

-- what is asked for is clamped to the limits
SELECT regress_registered('short and wide', idem_register(timeout => '1 microsecond', window_size => 2147483647));
SELECT regress_registered('longest', idem_register(timeout => '178000000 years'));
SELECT regress_registered('long and narrow', idem_register(timeout => '10000 years', window_size => 1));
SELECT regress_registered('just so', idem_register(timeout => '2 seconds', window_size => 1024));
SELECT regress_registered('just over', idem_register(timeout => '7 days 1 second', window_size => 1025));
-- and holds for the session's life, whatever the settings say later
SET idempotence.window_size = 1;
BEGIN;
SELECT regress_show(idem_begin(regress_id('plain'), 5)), regress_message($$SELECT idem_begin(regress_id('plain'), 6)$$);
ROLLBACK;
RESET idempotence.window_size;

-- a client with a name: registered again it fences the former session, and stays the newest
SELECT regress_registered('first', idem_register(client => 'worker-1'));
SELECT regress_registered('second', idem_register(client => 'worker-1'));
SELECT regress_error($$SELECT idem_begin(regress_id('first'), 1)$$);
SELECT call, regress_message('SELECT ' || replace(call, 'ONE', 'regress_id(''first'')'))
FROM unnest(ARRAY['idem_begin(ONE, 1)', 'idem_begin(ONE, ''1'')', 'idem_run(ONE, ''1'', ''SELECT 1'')', 'idem_heartbeat(ONE)', 'idem_ack(ONE, 1)', 'idem_allocate(ONE, 1)', 'idem_close(ONE)'])
     WITH ORDINALITY AS c (call, place) ORDER BY place;
SELECT regress_show(idem_lookup(regress_id('first'), 1)), idem_position(regress_id('first'));
SELECT regress_session('first');
SELECT regress_session('second');
-- with an outcome or without one
BEGIN;
SELECT regress_show(idem_begin(regress_id('second'), 1));
SELECT idem_record(regress_id('second'), 1, '"of the second"');
COMMIT;
SELECT regress_session('second');
SELECT regress_registered('third', idem_register(client => 'worker-1'));
SELECT regress_session('second');
SELECT regress_message($$SELECT idem_begin(regress_id('second'), 1)$$), regress_show(idem_lookup(regress_id('second'), 1));
-- another client's session is not touched by it
SELECT regress_registered('other', idem_register(client => 'worker-2'));
SELECT regress_registered('fourth', idem_register(client => 'worker-1'));
SELECT idem_heartbeat(regress_id('other')) > now();
-- names count letter by letter, and go up to 255 characters, whatever their bytes
SELECT regress_registered('letters', idem_register(client => 'Worker-1'));
SELECT regress_registered('spaces', idem_register(client => 'worker-1 '));
SELECT regress_registered('long', idem_register(client => repeat('𝄞', 255)));
SELECT idem_heartbeat(regress_id('fourth')) > now();
SELECT regress_registered('long 2', idem_register(client => repeat('𝄞', 255)));
SELECT regress_message($$SELECT idem_heartbeat(regress_id('long'))$$);

-- a registration that is undone fences nobody
BEGIN;
SELECT regress_registered('undone', idem_register(client => 'worker-1'));
SELECT regress_message($$SELECT idem_heartbeat(regress_id('fourth'))$$);
SELECT regress_show(idem_begin(regress_id('undone'), 1));
ROLLBACK;
SELECT idem_heartbeat(regress_id('fourth')) > now();
BEGIN;
SAVEPOINT s;
SELECT session AS undone FROM idem_register(client => 'worker-1') \gset
ROLLBACK TO s;
SELECT idem_heartbeat(regress_id('fourth')) > now();
SELECT replace(regress_message(format('SELECT idem_heartbeat(%L)', :'undone')), :'undone', 'undone');
ROLLBACK;
-- used and fenced in one transaction, with a sign of life due: fenced
SELECT regress_fall_silent('fourth', '4 minutes');
BEGIN;
SELECT idem_heartbeat(regress_id('fourth')) > now();
SELECT regress_registered('fifth', idem_register(client => 'worker-1'));
COMMIT;
SELECT regress_message($$SELECT idem_heartbeat(regress_id('fourth'))$$);
SELECT regress_session('fourth');

-- resume: the live session, as it is, whatever else is asked for
SELECT regress_registered('never', idem_register(client => 'worker-1', resume => true, window_size => 9, timeout => '1 hour', ordering => 'strict'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('fifth'), 4));
SELECT idem_record(regress_id('fifth'), 4, '4');
COMMIT;
SELECT regress_registered('never', idem_register(client => 'worker-1', resume => true));
SELECT regress_show(idem_begin(regress_id('fifth'), 4));
-- it gives a sign of life
SELECT regress_fall_silent('fifth', '5 minutes');
SELECT regress_session('fifth');
SELECT regress_registered('never', idem_register(client => 'worker-1', resume => true));
SELECT regress_session('fifth');
-- none to resume: a new one; one that ran out, was closed or fenced is none
SELECT regress_registered('first to come', idem_register(client => 'resume', resume => true, timeout => '2 seconds'));
SELECT regress_run_out('first to come');
SELECT regress_registered('second to come', idem_register(client => 'resume', resume => true));
SELECT regress_message($$SELECT idem_heartbeat(regress_id('first to come'))$$), regress_session('first to come');
SELECT idem_close(regress_id('second to come'));
SELECT regress_registered('third to come', idem_register(client => 'resume', resume => true));
-- without a name there is nothing to resume
SELECT regress_registered('nameless', idem_register(resume => true));

-- request_id: the same registration sent twice is one, and the second fences nobody
SELECT regress_registered('by id', idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d'));
SELECT regress_registered('never', idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d'));
SELECT idem_heartbeat(regress_id('by id')) > now();
-- the id alone decides, and gives the session as it is
SELECT regress_registered('never', idem_register(request_id => '6C0EE8F5-1B0C-4B43-9F3C-0D3E1A2B4C5D', window_size => 100));
SELECT regress_registered('never', idem_register(client => 'worker-1', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d', resume => true));
BEGIN;
SELECT regress_show(idem_begin(regress_id('by id'), 1));
SELECT idem_record(regress_id('by id'), 1, '1');
COMMIT;
SELECT regress_registered('never', idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d'));
-- without a client's name too
SELECT regress_registered('by id alone', idem_register(request_id => '00000000-0000-0000-0000-000000000000'));
SELECT regress_registered('never', idem_register(request_id => '00000000-0000-0000-0000-000000000000'));
-- fenced since, it comes late: it fences nobody and is told so
SELECT regress_registered('by the next id', idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5e'));
SELECT regress_error($$SELECT idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d')$$);
SELECT idem_heartbeat(regress_id('by the next id')) > now();
-- fenced before it had any outcome: the same
SELECT regress_registered('by no id', idem_register(client => 'worker-3'));
SELECT regress_message($$SELECT idem_register(client => 'worker-3', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5e')$$);
-- closed and run out: no second session under one id
SELECT idem_close(regress_id('by id alone'));
SELECT regress_error($$SELECT idem_register(request_id => '00000000-0000-0000-0000-000000000000')$$);
SELECT regress_registered('run out by id', idem_register(request_id => '00000000-0000-0000-0000-000000000001', timeout => '2 seconds'));
SELECT regress_run_out('run out by id');
SELECT regress_error($$SELECT idem_register(request_id => '00000000-0000-0000-0000-000000000001')$$);
-- undone with its transaction, the id is free
BEGIN;
SELECT regress_registered('undone by id', idem_register(request_id => '00000000-0000-0000-0000-000000000002'));
SELECT regress_registered('never', idem_register(request_id => '00000000-0000-0000-0000-000000000002'));
ROLLBACK;
SELECT regress_registered('done by id', idem_register(request_id => '00000000-0000-0000-0000-000000000002'));

-- an id with a time in it tells which registration came first, where nothing else is left: a late one fences nobody
SELECT regress_registered('in time', idem_register(client => 'worker-4', request_id => regress_uuid7(now() - interval '1 minute')::uuid));
SELECT regress_error($$SELECT idem_register(client => 'worker-4', request_id => regress_uuid7(now() - interval '2 minutes')::uuid)$$);
SELECT regress_registered('never', idem_register(client => 'worker-4', request_id => regress_uuid7(now() - interval '2 minutes')::uuid, resume => true));
SELECT regress_registered('next in time', idem_register(client => 'worker-4', request_id => regress_uuid7(now() - interval '30 seconds')::uuid));
SELECT regress_message($$SELECT idem_heartbeat(regress_id('in time'))$$), idem_heartbeat(regress_id('next in time')) > now(), regress_session('next in time');
-- measured by the session's own time where that was registered without such an id, or by one from the future
SELECT regress_registered('without time', idem_register(client => 'worker-4'));
SELECT regress_message($$SELECT idem_register(client => 'worker-4', request_id => regress_uuid7(now() - interval '1 second')::uuid)$$);
SELECT regress_registered('from the future', idem_register(client => 'worker-4', request_id => regress_uuid7(now() + interval '1 hour')::uuid));
SELECT regress_registered('now', idem_register(client => 'worker-4', request_id => idem_generate_id()));
-- without a time that tells the session is saved at once, where it has a client to be taken for
SELECT regress_session('from the future'), regress_session('now');
SELECT regress_registered('at once', idem_register(client => 'worker-5', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5f')), regress_registered('later', idem_register(request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c60'));
SELECT regress_session('at once'), regress_session('later');

-- the former one's transactions are waited for: a prepared one keeps it
BEGIN;
SELECT regress_show(idem_begin(regress_id('fifth'), 5));
SELECT idem_record(regress_id('fifth'), 5, '5');
PREPARE TRANSACTION 'regress_client_register';
SELECT regress_error($$SELECT idem_register(client => 'worker-1', wait => '0')$$);
SELECT regress_message($$SELECT idem_register(client => 'worker-1', wait => '10 ms')$$), regress_message($$SELECT idem_register(client => 'worker-1', wait => '10 ms', resume => true)$$);
SET idempotence.wait = 10;
SELECT regress_message($$SELECT idem_register(client => 'worker-1')$$);
RESET idempotence.wait;
-- it did not harm the former one
BEGIN;
SELECT regress_show(idem_begin(regress_id('fifth'), 2));
SELECT idem_record(regress_id('fifth'), 2, '2');
COMMIT;
-- nor does the former one run out as long as it is in use
SELECT regress_fall_silent('fifth', '1 hour');
SELECT idem_heartbeat(regress_id('fifth')) > now();
COMMIT PREPARED 'regress_client_register';
SELECT regress_registered('never', idem_register(client => 'worker-1', wait => '0', resume => true));
SELECT regress_registered('sixth', idem_register(client => 'worker-1', wait => '0'));
-- one's own transaction is not waited for
BEGIN;
SELECT regress_show(idem_begin(regress_id('sixth'), 1));
SELECT regress_error($$SELECT idem_register(client => 'worker-1')$$);
SELECT regress_message($$SELECT idem_register(client => 'worker-1', resume => true)$$);
SELECT idem_record(regress_id('sixth'), 1, '1');
SELECT regress_registered('never', idem_register(client => 'worker-1', resume => true));
SELECT regress_registered('seventh', idem_register(client => 'worker-1'));
COMMIT;
SELECT regress_message($$SELECT idem_begin(regress_id('sixth'), 1)$$), regress_show(idem_lookup(regress_id('sixth'), 1));
-- two registrations of one client: one after the other
BEGIN;
SELECT regress_registered('eighth', idem_register(client => 'worker-1', request_id => '00000000-0000-0000-0000-000000000008'));
PREPARE TRANSACTION 'regress_client_register';
SELECT regress_error($$SELECT idem_register(client => 'worker-1', wait => '10 ms')$$);
SELECT regress_message($$SELECT idem_register(request_id => '00000000-0000-0000-0000-000000000008', wait => '0')$$);
SET idempotence.wait = 10;
SELECT regress_message($$SELECT idem_heartbeat(regress_id('seventh'))$$);
RESET idempotence.wait;
ROLLBACK PREPARED 'regress_client_register';
SELECT idem_heartbeat(regress_id('seventh')) > now();

-- how many a role may have at work: the setting is a superuser's
CREATE ROLE regress_client_register;
CREATE ROLE regress_client_register_2;
SELECT idem_grant('regress_client_register'), idem_grant('regress_client_register_2');
SET idempotence.max_sessions_per_role = 3;
SET ROLE regress_client_register;
SET idempotence.max_sessions_per_role = 4;
\echo :SQLSTATE
SELECT regress_registered('limited 1', idem_register(client => 'limited'));
SELECT regress_registered('limited 2', idem_register());
SELECT regress_registered('limited 3', idem_register(timeout => '2 seconds'));
SELECT regress_error($$SELECT idem_register()$$);
SELECT regress_message($$SELECT idem_register(client => 'another')$$);
-- nobody was ended for it, and who registers anew takes the former one's place
SELECT idem_heartbeat(regress_id(s)) > now() FROM unnest('{limited 1,limited 2,limited 3}'::text[]) s;
SELECT regress_registered('never', idem_register(client => 'limited', resume => true));
SELECT regress_registered('limited 4', idem_register(client => 'limited'));
SELECT regress_message($$SELECT idem_register()$$);
-- closed, one makes room
SELECT idem_close(regress_id('limited 2'));
SELECT regress_registered('limited 5', idem_register());
SELECT regress_message($$SELECT idem_register()$$);
-- and so does one that ran out
SELECT regress_run_out('limited 3');
SELECT regress_registered('limited 6', idem_register());
SELECT regress_message($$SELECT idem_register()$$);
RESET ROLE;
-- other roles have their own
SET ROLE regress_client_register_2;
SELECT regress_registered('of another 1', idem_register(client => 'limited'));
RESET ROLE;
SET ROLE regress_client_register;
SELECT idem_heartbeat(regress_id('limited 4')) > now();
RESET ROLE;
-- those that ended without an outcome, and left a row for it, have the same limit of their own
SET ROLE regress_client_register_2;
SELECT regress_registered('restless 1', idem_register(client => 'restless'));
SELECT regress_registered('restless 2', idem_register(client => 'restless'));
SELECT regress_registered('restless 3', idem_register(client => 'restless'));
SELECT idem_close((idem_register(request_id => '00000000-0000-0000-0000-000000000003')).session);
SELECT regress_error($$SELECT idem_register(client => 'restless')$$);
SELECT regress_message($$SELECT idem_register(request_id => '00000000-0000-0000-0000-000000000004')$$);
SELECT idem_close((idem_register()).session), idem_heartbeat(regress_id('restless 3')) > now();
RESET ROLE;
UPDATE idempotence.session SET ended_at = ended_at - interval '8 days' WHERE ended IN ('C', 'F');
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
SET ROLE regress_client_register_2;
SELECT regress_registered('restless 4', idem_register(client => 'restless'));
RESET ROLE;
RESET idempotence.max_sessions_per_role;

SELECT regress_close();
SELECT idem_revoke('regress_client_register'), idem_revoke('regress_client_register_2');
DROP ROLE regress_client_register, regress_client_register_2;
