-- Goal: what was begun, committed and is not done is listed until it is done or counts no more; admins release or record
-- what nobody asks for any more, with a reason that the audit keeps, and never what somebody may still be at.
-- Method: the view after each step; repairs of what is new, done, held, leased, run out and stopped, by key and by number.
\pset format unaligned
\pset tuples_only on
DELETE FROM idempotence.audit;
CREATE ROLE regress_unfinished_owner;
CREATE ROLE regress_unfinished_monitor;
CREATE ROLE regress_unfinished_admin;
SELECT idem_grant('regress_unfinished_owner'), idem_grant('regress_unfinished_monitor', 'monitor'), idem_grant('regress_unfinished_admin', 'admin');
CREATE VIEW unfinished_shown AS
SELECT regress_told(session) AS session, stream, request, last, state, attempt, point, holder, application, date_trunc('minute', leased_until - now()) AS lasts, since BETWEEN now() - interval '3 hours' AND clock_timestamp() AS since
FROM idempotence.unfinished ORDER BY session COLLATE "C", stream COLLATE "C", request COLLATE "C";
SET ROLE regress_unfinished_owner;
SET application_name = 'regress/worker';
SELECT idem_create_session('unfinished', ttl => '1 hour'), idem_create_session('unfinished inbox', inbox => true), idem_create_session('unfinished attempts', max_attempts => 9);
SELECT regress_registered('any', idem_register()), regress_registered('strict', idem_register(ordering => 'strict'));

-- leased, run out, stopped; each with how far it got; a transaction that is open is not among them
SELECT regress_take('leased', idem_begin('unfinished', 'leased', payload => '1', lease => '90 minutes'));
SELECT regress_take('a', idem_begin('unfinished', 'run out', payload => '1', lease => '1 hour')), regress_take('b', idem_begin('unfinished', 'half', payload => '1', lease => '1 hour'));
SELECT idem_checkpoint('unfinished', 'run out', 'sent', '{"secret": 1}', token => regress_token('a'));
SELECT idem_checkpoint('unfinished', 'half', 'paid', token => regress_token('b')), idem_release('unfinished', 'half', token => regress_token('b'));
SELECT regress_take('c', idem_begin(regress_id('strict'), 1, last => 3, stream => 's', lease => '1 hour'));
RESET ROLE;
SELECT regress_lease_ends('unfinished', 'run out');
SET ROLE regress_unfinished_owner;
SET application_name = 'regress/another';
SELECT regress_take('b', idem_begin('unfinished', 'run out', lease => '1 hour'));
BEGIN;
SELECT status FROM idem_begin('unfinished', 'open');
SELECT idem_record('unfinished', 'open') IS NOT NULL;
SELECT idem_checkpoint(regress_id('any'), 1, 'half') FROM idem_begin(regress_id('any'), 1);
SELECT status FROM idem_begin('unfinished', 'open lease', lease => '1 hour');
PREPARE TRANSACTION 'regress_unfinished';
RESET ROLE;
SELECT regress_lease_ends('unfinished', 'run out', '59 minutes');
TABLE unfinished_shown;
ROLLBACK PREPARED 'regress_unfinished';
-- monitors see all of it, users what is theirs; nobody sees a payload's fingerprint or a state by it
SET ROLE regress_unfinished_monitor;
SELECT count(*) FROM idempotence.unfinished;
SELECT regress_message($$TABLE idempotence.lease$$), regress_message($$TABLE idempotence.checkpoint$$);
SELECT count(*) FROM idempotence.leases() l WHERE to_jsonb(l) ->> 'fingerprint' IS NOT NULL;
SET ROLE regress_unfinished_owner;
SELECT count(*), count(*) FILTER (WHERE session = 'unfinished') FROM idempotence.unfinished;
RESET ROLE;
-- health tells of those who run out again and again, and of those whom nobody has taken over for five minutes
SELECT name, status, regexp_replace(detail, 'at [^"]*: request', 'at some time: request') FROM idempotence.health WHERE name IN ('leases', 'run out') ORDER BY name;
UPDATE idempotence.lease SET attempt = 4 WHERE request = 'leased';
UPDATE idempotence.lease SET leased_until = now() - interval '4 minutes' WHERE request = 'run out';
SELECT name, status, detail, hint FROM idempotence.health WHERE name IN ('leases', 'run out') ORDER BY name;
UPDATE idempotence.lease SET attempt = 1, leased_until = '2001-01-01 00:00:00.5+00' WHERE request = 'leased';
UPDATE idempotence.session SET ttl = '100 years' WHERE name = 'unfinished';
SELECT name, status, regexp_replace(detail, 'at [^"]*: request', 'at some time: request'), hint FROM idempotence.health WHERE name IN ('leases', 'run out') ORDER BY name;
UPDATE idempotence.session SET ttl = '1 hour' WHERE name = 'unfinished';
\c
SET application_name = 'regress/admin';
-- what counts no more is not listed: by its age, or acknowledged, or its session forgotten
SELECT regress_lease_ends('unfinished', 'leased', '59 minutes');
SELECT request, state FROM idempotence.unfinished WHERE session = 'unfinished' ORDER BY 1;
SELECT regress_lease_ends('unfinished', 'leased', '61 minutes');
UPDATE idempotence.checkpoint SET written_at = written_at - interval '61 minutes' WHERE request = 'half';
SELECT request, state FROM idempotence.unfinished WHERE session = 'unfinished' ORDER BY 1;
-- whose lease counts no more, but whose checkpoint does, is stopped there
SELECT regress_lease_ends('unfinished', 'run out', '61 minutes');
SELECT regress_show(idem_lookup('unfinished', 'run out'));
SELECT request, state, point FROM idempotence.unfinished WHERE session = 'unfinished' ORDER BY 1;
SELECT regress_lease_ends('unfinished', 'leased'), regress_lease_ends('unfinished', 'run out');
UPDATE idempotence.checkpoint SET written_at = now();
SELECT request, state FROM idempotence.unfinished WHERE session = 'unfinished' ORDER BY 1;
-- dropped and made again
SELECT idem_drop_session('unfinished');
SELECT request, state FROM idempotence.unfinished WHERE session = 'unfinished' ORDER BY 1;
SELECT idem_create_session('unfinished', ttl => '1 hour');
SELECT idem_alter_session('unfinished', owner => 'regress_unfinished_owner');

-- idem_force_release: what ran out, and nothing else; the next begin starts anew, from the last point
SET ROLE regress_unfinished_admin;
SELECT idem_force_release('unfinished', 'run out', 'its worker was replaced');
SELECT idem_force_release('unfinished', 'run out', 'again'), idem_force_release('unfinished', 'half', 'only stopped'), idem_force_release('unfinished', 'never', 'never begun');
RESET ROLE;
SELECT regress_kept('unfinished'), regress_show(idem_lookup('unfinished', 'run out')), regress_message($$SELECT idem_record('unfinished', 'run out', token => regress_token('b'))$$);
SELECT regress_take('d', idem_begin('unfinished', 'run out', payload => '1', lease => '1 hour'));
SET ROLE regress_unfinished_admin;
SELECT regress_error($$SELECT idem_force_release('unfinished', 'run out', 'too soon')$$);
SELECT regress_error($$SELECT idem_force_record('unfinished', 'run out', 'too soon')$$);
SELECT regress_error($$SELECT idem_forget('unfinished', 'run out', 'too soon')$$);
RESET ROLE;
-- idem_force_record: what ran out or stopped; its outcome is then as any
SELECT regress_lease_ends('unfinished', 'run out');
SET ROLE regress_unfinished_admin;
SELECT date_trunc('minute', idem_force_record('unfinished', 'run out', 'the carrier says that it was sent', '{"sent": true}') - now());
SELECT idem_force_record('unfinished', 'half', 'paid back by hand', failed => true) IS NOT NULL;
SELECT regress_error($$SELECT idem_force_record('unfinished', 'half', 'again')$$);
SELECT regress_error($$SELECT idem_force_record('unfinished', 'never', 'never begun')$$);
RESET ROLE;
SELECT regress_message($$SELECT idem_record('unfinished', 'run out', token => regress_token('d'))$$), regress_show(idem_begin('unfinished', 'run out', payload => '1')), regress_show(idem_begin('unfinished', 'half')), regress_kept('unfinished');
SELECT regress_message($$SELECT idem_begin('unfinished', 'run out', payload => '2')$$);
-- idem_forget: what ran out as well
SELECT regress_lease_ends('unfinished', 'leased');
SET ROLE regress_unfinished_admin;
SELECT idem_forget('unfinished', 'leased', 'a duplicate');
RESET ROLE;
SELECT regress_message($$SELECT idem_record('unfinished', 'leased', token => regress_token('leased'))$$), regress_show(idem_lookup('unfinished', 'leased'));
-- a checkpoint beside it goes along, and is what the audit names
SELECT regress_take('a', idem_begin('unfinished', 'leased', lease => '1 hour'));
SELECT idem_checkpoint('unfinished', 'leased', 'p', token => regress_token('a')), regress_lease_ends('unfinished', 'leased');
SELECT idem_forget('unfinished', 'leased', 'with a checkpoint'), regress_kept('unfinished');
-- without regard to max_attempts
SELECT idem_alter_session('unfinished attempts', max_attempts => 1);
SELECT regress_take('a', idem_begin('unfinished attempts', 'k', lease => '1 hour')), regress_lease_ends('unfinished attempts', 'k');
SELECT idem_force_record('unfinished attempts', 'k', 'done after all', '1') IS NOT NULL, regress_show(idem_begin('unfinished attempts', 'k'));

-- numbers: of a session that lives, and of one that has ended
SELECT regress_message($$SELECT idem_force_release(regress_id('strict'), 1, 'too soon', stream => 's')$$), regress_message($$SELECT idem_force_record(regress_id('strict'), 1, 'too soon', stream => 's')$$), regress_lease_ends(regress_id('strict'), '1');
SET ROLE regress_unfinished_admin;
SELECT idem_force_release(regress_id('strict'), 1, 'another stream'), regress_message($$SELECT idem_force_record(regress_id('strict'), 1, 'another stream')$$);
SELECT idem_force_record(regress_id('strict'), 1, 'sent, says the carrier', '"1..3"', stream => 's');
RESET ROLE;
SELECT n, regress_show(idem_lookup(regress_id('strict'), n, stream => 's')), idem_position(regress_id('strict'), 's') FROM generate_series(1, 4) n;
SELECT regress_take('a', idem_begin(regress_id('any'), 1, lease => '1 hour')), regress_take('b', idem_begin(regress_id('any'), 2, lease => '1 hour')), regress_take('c', idem_begin(regress_id('any'), 3, lease => '1 hour'));
SELECT regress_lease_ends(regress_id('any'), n::text) FROM generate_series(1, 3) n;
SELECT idem_force_release(regress_id('any'), 1, 'its worker is gone'), regress_message($$SELECT idem_record(regress_id('any'), 1, token => regress_token('a'))$$), (idem_begin(regress_id('any'), 1, lease => '10 ms')).status;
SELECT idem_close(regress_id('any'));
SELECT regress_error($$SELECT idem_force_record(regress_id('any'), 2, 'a session that has ended')$$);
SELECT idem_force_release(regress_id('any'), 2, 'a session that has ended');
SELECT idem_force_release(regress_id('any'), 3, 'a session that has ended');
SELECT regress_show(idem_lookup(regress_id('any'), 2)), regress_show(idem_settle(regress_id('any'), 2));
SELECT regress_error($$SELECT idem_forget(regress_id('any'), 1, 'a number')$$);

-- mistakes: without a reason, within the very transaction, of sessions and requests that are none
BEGIN;
SELECT regress_take('a', idem_begin('unfinished', 'own', lease => '1 hour'));
SELECT regress_error($$SELECT idem_force_release('unfinished', 'own', 'my own')$$);
SELECT regress_message($$SELECT idem_force_record('unfinished', 'own', 'my own')$$), regress_message($$SELECT idem_forget('unfinished', 'own', 'my own')$$);
ROLLBACK;
SELECT call, regress_message('SELECT ' || call)
FROM unnest(ARRAY['idem_force_release(NULL, ''k'', ''why'')', 'idem_force_release(''unfinished'', NULL, ''why'')', 'idem_force_release(''unfinished'', ''k'', NULL)', 'idem_force_release(''unfinished'', ''k'', '' '')', 'idem_force_release(''unfinished'', ''k'', repeat(''y'', 1001))',
  'idem_force_release(''unfinished'', NULL::bigint, ''why'')', 'idem_force_release(''unfinished'', NULL::uuid, ''why'')', 'idem_force_release(''unfinshed'', ''k'', ''why'')', 'idem_force_release(''unfinished inbox'', ''k'', ''why'')', 'idem_force_release(''unfinished'', ''k'', ''why'', stream => ''s'')',
  'idem_force_release(''01890a5d-ac96-774b-bcce-b302099a8057'', 1, ''why'')', 'idem_force_release(regress_id(''strict''), ''k'', ''why'')',
  'idem_force_record(NULL, ''k'', ''why'')', 'idem_force_record(''unfinished'', NULL, ''why'')', 'idem_force_record(''unfinished'', ''k'', NULL)', 'idem_force_record(''unfinished'', ''k'', '''')', 'idem_force_record(''unfinished'', ''k'', ''why'', failed => NULL)',
  'idem_force_record(''unfinished'', NULL::bigint, ''why'')', 'idem_force_record(''unfinished'', NULL::uuid, ''why'')', 'idem_force_record(''unfinshed'', ''k'', ''why'')', 'idem_force_record(''unfinished inbox'', ''k'', ''why'')', 'idem_force_record(''01890a5d-ac96-774b-bcce-b302099a8057'', 1, ''why'')',
  'idem_set_persistence(NULL, ''logged'')', 'idem_set_persistence(''claims'', NULL)', 'idem_set_persistence(''outcomes'', ''unlogged'')', 'idem_set_persistence(''claims'', ''permanent'')']) WITH ORDINALITY c (call, place) ORDER BY place;
SELECT regress_error($$SELECT idem_set_persistence('claims', 'temporary')$$);
-- by uuid and by number, in the same words
SELECT regress_take('a', idem_begin('unfinished', 42, lease => '1 hour')), regress_take('b', idem_begin('unfinished', '01890a5d-ac96-774b-bcce-b302099a8057'::uuid, lease => '1 hour'));
SELECT regress_lease_ends('unfinished', '42'), regress_lease_ends('unfinished', '01890a5d-ac96-774b-bcce-b302099a8057');
SELECT idem_force_release('unfinished', 42, 'by number'), idem_force_record('unfinished', '01890A5D-AC96-774B-BCCE-B302099A8057'::uuid, 'by uuid') IS NOT NULL;
-- an admin ends a lease that has not run out: its holder is refused, and the next begin is told to look
SELECT regress_take('a', idem_begin('unfinished', 'live', lease => '1 hour'));
SELECT idem_checkpoint('unfinished', 'live', 'sent', token => regress_token('a'));
SELECT regress_message($$SELECT idem_force_release('unfinished', 'live', 'its worker is dead')$$), idem_force_release('unfinished', 'live', 'its worker is dead', live => true);
SELECT regress_message($$SELECT idem_record('unfinished', 'live', token => regress_token('a'))$$), state, since < leased_until, attempt, point FROM idempotence.unfinished WHERE request = 'live';
SELECT status, attempt, point FROM idem_begin('unfinished', 'live', lease => '1 hour');
-- the arguments in the order of idem_record
SELECT regress_error($$SELECT idem_force_record('unfinished', 'live', '{"charge": "ch_9"}')$$);
-- users may do none of it
SET ROLE regress_unfinished_owner;
SELECT regress_message($$SELECT idem_force_release('unfinished', 'k', 'why')$$), regress_message($$SELECT idem_force_record('unfinished', 'k', 'why')$$), regress_message($$SELECT idem_set_persistence('claims', 'unlogged')$$);
SET ROLE regress_unfinished_monitor;
SELECT regress_message($$SELECT idem_force_release('unfinished', 'k', 'why')$$);
RESET ROLE;
-- what was taken back with its transaction is not in the audit; all else is
BEGIN;
SELECT regress_take('a', idem_begin('unfinished', 'undone', lease => '1 hour')), regress_lease_ends('unfinished', 'undone');
COMMIT;
BEGIN;
SELECT idem_force_release('unfinished', 'undone', 'taken back');
ROLLBACK;
SELECT idem_record('unfinished', 'undone', token => regress_token('a')) IS NOT NULL;
SELECT CASE WHEN by = current_user THEN 'the current user' ELSE by END AS by, action, regress_told(session), request, reason, found FROM idempotence.audit ORDER BY at;

DELETE FROM idempotence.audit;
TRUNCATE idempotence.lease, idempotence.checkpoint;
SELECT regress_close();
-- how many leases a role may have, those that ran out included; to take one over makes none more, and the limit is each role's own
RESET ROLE;
DELETE FROM idempotence.lease;
SELECT idem_create_session('unfinished bound', ttl => '1 hour', owner => 'regress_unfinished_owner');
SET idempotence.max_leases_per_role = 2;
SET ROLE regress_unfinished_owner;
SELECT regress_take('a', idem_begin('unfinished bound', 'a', lease => '1 hour'));
SELECT regress_take('b', idem_begin('unfinished bound', 'b', lease => '1 hour'));
SELECT regress_error($$SELECT idem_begin('unfinished bound', 'c', lease => '1 hour')$$);
RESET ROLE;
SELECT regress_lease_ends('unfinished bound', 'a'), regress_show(idem_begin('unfinished bound', 'of another', lease => '1 hour'));
SET ROLE regress_unfinished_owner;
SELECT regress_message($$SELECT idem_begin('unfinished bound', 'c', lease => '1 hour')$$), regress_show(idem_run('unfinished bound', 'd', 'SELECT 1'));
SELECT regress_take('c', idem_begin('unfinished bound', 'a', lease => '1 hour')), idem_release('unfinished bound', 'b', token => regress_token('b'));
SELECT regress_show(idem_begin('unfinished bound', 'c', lease => '1 hour'));
RESET ROLE;
RESET idempotence.max_leases_per_role;
DELETE FROM idempotence.lease;
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'unfinished%';
DROP VIEW unfinished_shown;
SELECT idem_revoke('regress_unfinished_owner'), idem_revoke('regress_unfinished_monitor'), idem_revoke('regress_unfinished_admin');
DROP OWNED BY regress_unfinished_owner, regress_unfinished_monitor, regress_unfinished_admin;
DROP ROLE regress_unfinished_owner, regress_unfinished_monitor, regress_unfinished_admin;
DELETE FROM regress_lease_token;
