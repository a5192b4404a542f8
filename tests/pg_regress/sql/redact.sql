-- Goal: a redaction takes the response and the state of a request away and nothing else: the request is not executed again,
-- and its payload still counts. Whoever owns the session may redact, and an admin; the audit tells it of both.
-- Method: outcomes of each class and in each table, checkpoints, dead letters, replies; what a begin answers after it; each
-- mistake; each role.
\pset format unaligned
\pset tuples_only on
DELETE FROM idempotence.audit;
CREATE ROLE regress_redact_owner;
CREATE ROLE regress_redact_user;
CREATE ROLE regress_redact_other;
CREATE ROLE regress_redact_admin;
SELECT idem_grant('regress_redact_owner'), idem_grant('regress_redact_user'), idem_grant('regress_redact_other'), idem_grant('regress_redact_admin', 'admin');
SET ROLE regress_redact_owner;
SELECT idem_create_session('redact', ttl => '1 hour', usable_by => 'regress_redact_user'), idem_create_session('redact inbox', inbox => true),
       idem_create_session('redact attempts', max_attempts => 1);

-- an outcome of each class; all that is kept of each but its response is as it was
BEGIN;
SELECT regress_show(idem_begin('redact', 'paid', payload => '1')), regress_show(idem_begin('redact', 'declined')), regress_show(idem_begin('redact', 'empty'));
SELECT idem_record('redact', 'paid', '{"card": "4111"}') IS NOT NULL, idem_record('redact', 'declined', '{"name": "Ada"}', failed => true) IS NOT NULL, idem_record('redact', 'empty') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_settle('redact', 'settled', response => '"by Ada"'));
SELECT regress_take('a', idem_begin('redact', 'leased', lease => '1 hour'));
SELECT idem_record('redact', 'leased', '"of a lease"', token => regress_token('a')) IS NOT NULL;
RESET ROLE;
CREATE TEMP TABLE redact_before AS SELECT * FROM idempotence.outcome_0 WHERE response IS NOT NULL AND session = (SELECT id FROM idempotence.session WHERE name = 'redact')
  UNION ALL SELECT * FROM idempotence.outcome_1 WHERE response IS NOT NULL AND session = (SELECT id FROM idempotence.session WHERE name = 'redact')
  UNION ALL SELECT * FROM idempotence.outcome_2 WHERE response IS NOT NULL AND session = (SELECT id FROM idempotence.session WHERE name = 'redact');
CREATE TEMP VIEW redact_now AS TABLE idempotence.outcome_0 UNION ALL TABLE idempotence.outcome_1 UNION ALL TABLE idempotence.outcome_2 UNION ALL TABLE idempotence.outcome_long;
SELECT key, class, response FROM redact_before ORDER BY key;
SET ROLE regress_redact_owner;
SELECT r, idem_redact('redact', r, 'asked for by its customer') FROM unnest('{paid,declined,settled,leased,empty,never}'::text[]) r;
SELECT r, idem_redact('redact', r, 'again') FROM unnest('{paid,declined,settled,leased}'::text[]) r;
RESET ROLE;
SELECT b.key, n.response IS NULL, (to_jsonb(b) - 'response') = (to_jsonb(n) - 'response') AS same FROM redact_before b LEFT JOIN redact_now n USING (digest) ORDER BY b.key;
SELECT by, action, session, request, reason, found FROM idempotence.audit ORDER BY at;
SELECT r, idem_explain('redact', r) -> 'outcome' ->> 'redacted' FROM unnest('{paid,settled}'::text[]) r;
DELETE FROM idempotence.audit;
SET ROLE regress_redact_owner;
SELECT r, regress_show(idem_begin('redact', r)), regress_show(idem_lookup('redact', r)), regress_show(idem_settle('redact', r)) FROM unnest('{paid,declined,settled,empty}'::text[]) r;
SELECT regress_show(idem_begin('redact', 'paid', payload => '1')), regress_message($$SELECT idem_begin('redact', 'paid', payload => '2')$$), regress_message($$SELECT idem_claim('redact', 'paid')$$);
SELECT idem_record('redact', 'leased', '"once more"', token => regress_token('a')) IS NOT NULL, regress_show(idem_lookup('redact', 'leased'));

-- in whichever table it is, it comes to the current segment; a large one goes with its TOAST
RESET ROLE;
BEGIN;
SELECT count(idem_run('redact', 'in ' || n, 'SELECT string_agg(md5(n::text), '''') FROM generate_series(1, 500) n')) FROM unnest('{0,1,2,long}'::text[]) n;
COMMIT;
CREATE PROCEDURE redact_move(place text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('WITH moved AS (DELETE FROM idempotence.outcome_%s WHERE key = %L RETURNING *) INSERT INTO idempotence.outcome_%s TABLE moved',
    (SELECT number FROM idempotence.segment WHERE current), 'in ' || place, place);
END $$;
SELECT number AS current FROM idempotence.segment WHERE current \gset
SELECT string_agg(format('CALL redact_move(%L)', place), ';') AS moves FROM unnest('{0,1,2,long}'::text[]) place WHERE place <> :'current' \gset
:moves;
SELECT idem_redact('redact', 'in ' || n, 'a test') FROM unnest('{0,1,2,long}'::text[]) n;
SELECT regress_show(idem_begin('redact', 'in ' || n)) FROM unnest('{0,1,2,long}'::text[]) n;
SELECT count(*), count(o.response) FROM idempotence.outcomes o WHERE o.session = 'redact' AND o.request LIKE 'in %' AND o.segment = :current;
DROP PROCEDURE redact_move;
SELECT idem_accept_restore('these rows were moved by hand');

-- one that has expired and is still there: a begin that came before the expiry may still replay it
BEGIN;
SELECT regress_show(idem_run('redact', 'expired', 'SELECT ''secret'''));
COMMIT;
UPDATE idempotence.outcome_0 SET expires_at = recorded_at + interval '1 us' WHERE key = 'expired';
UPDATE idempotence.outcome_1 SET expires_at = recorded_at + interval '1 us' WHERE key = 'expired';
UPDATE idempotence.outcome_2 SET expires_at = recorded_at + interval '1 us' WHERE key = 'expired';
SELECT idem_redact('redact', 'expired', 'a test');
SELECT n.key, n.response FROM redact_now n JOIN idempotence.session s ON s.id = n.session WHERE s.name = 'redact' AND n.key = 'expired';
SELECT regress_show(idem_run('redact', 'expired', 'SELECT 2'));

-- the state of a checkpoint; a lease that runs is in the way, one that ran out is not
SET ROLE regress_redact_owner;
SELECT idem_checkpoint('redact', 'half', 'charged', '{"card": "4111"}') FROM idem_begin('redact', 'half', payload => '1');
SELECT idem_redact('redact', 'half', 'a test'), idem_redact('redact', 'half', 'a test');
SELECT regress_show(idem_lookup('redact', 'half')), regress_message($$SELECT idem_begin('redact', 'half', payload => '2')$$);
SELECT regress_take('a', idem_begin('redact', 'at work', lease => '1 hour'));
SELECT idem_checkpoint('redact', 'at work', 'charged', '"secret"', token => regress_token('a'));
SELECT regress_error($$SELECT idem_redact('redact', 'at work', 'a test')$$);
SELECT regress_lease_ends('redact', 'at work');
SELECT idem_redact('redact', 'at work', 'a test');
SELECT regress_take('b', idem_begin('redact', 'at work', lease => '1 hour'));
SELECT idem_release('redact', 'at work', token => regress_token('b')), regress_show(idem_lookup('redact', 'at work'));
-- a dead letter tells the state in its response
SELECT regress_take('a', idem_begin('redact attempts', 'dead', lease => '1 hour'));
SELECT idem_checkpoint('redact attempts', 'dead', 'charged', '"secret"', token => regress_token('a'));
SELECT regress_lease_ends('redact attempts', 'dead');
SELECT regress_show(idem_begin('redact attempts', 'dead', lease => '1 hour'));
SELECT idem_redact('redact attempts', 'dead', 'a test'), regress_show(idem_begin('redact attempts', 'dead'));

-- in client sessions: a number, any number of a range, a stream; checkpoints; a session that has ended
SELECT regress_registered('any', idem_register()), regress_registered('strict', idem_register(ordering => 'strict'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '1')), regress_show(idem_begin(regress_id('any'), 2)), regress_show(idem_begin(regress_id('strict'), 1, last => 3, stream => 's'));
SELECT idem_record(regress_id('any'), 1, '"one"'), idem_record(regress_id('any'), 2, '"two"'), idem_record(regress_id('strict'), 1, '"one to three"', stream => 's');
SELECT regress_show(idem_begin(regress_id('strict'), 4, last => 5, stream => 's'));
SELECT idem_checkpoint(regress_id('strict'), 4, 'half', '"secret"', stream => 's');
COMMIT;
SELECT idem_redact(regress_id('any'), 1, 'a test'), idem_redact(regress_id('any'), '1', 'again'), idem_redact(regress_id('any'), 6, 'its slot has another number'),
       idem_redact(regress_id('strict'), 2, 'a test', stream => 's'), idem_redact(regress_id('strict'), 4, 'a test', 's'), idem_redact(regress_id('strict'), 1, 'another stream');
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => '1')), regress_message(format('SELECT idem_begin(%L, 1, payload => ''2'')', regress_id('any'))), regress_show(idem_begin(regress_id('any'), 2));
SELECT regress_show(idem_begin(regress_id('strict'), 1, last => 3, stream => 's')), regress_show(idem_lookup(regress_id('strict'), 4, stream => 's'));
BEGIN;
SELECT regress_show(idem_begin(regress_id('strict'), 4, last => 5, stream => 's'));
SELECT idem_record(regress_id('strict'), 4, '"four"', stream => 's');
COMMIT;
SELECT idem_close(regress_id('strict'));
SELECT idem_redact(regress_id('strict'), 5, 'a test', stream => 's'), regress_show(idem_lookup(regress_id('strict'), 4, stream => 's'));

-- whoever owns the session, also of a dropped one, and an admin; not who only uses it
SELECT regress_show(idem_run('redact', 'mine', 'SELECT 1')), regress_show(idem_run('redact', 'theirs', 'SELECT 1'));
SET ROLE regress_redact_user;
SELECT regress_show(idem_lookup('redact', 'mine')), regress_error($$SELECT idem_redact('redact', 'mine', 'why')$$);
SET ROLE regress_redact_other;
SELECT regress_message($$SELECT idem_redact('redact', 'mine', 'why')$$), regress_message(format('SELECT idem_redact(%L, 2, ''why'')', regress_id('any')));
SET ROLE regress_redact_admin;
SELECT idem_redact('redact', 'theirs', 'the court says so'), idem_redact(regress_id('any'), 2, 'and so here');
SET ROLE regress_redact_owner;
SELECT idem_drop_session('redact');
SET ROLE regress_redact_other;
SELECT regress_message($$SELECT idem_redact('redact', 'mine', 'why')$$);
SET ROLE regress_redact_owner;
SELECT idem_redact('redact', 'mine', 'the session is over, its answers are still there');
RESET ROLE;
SELECT by, action, regress_told(session), request, reason, found FROM idempotence.audit WHERE request !~ '^(in |expired$|$)' ORDER BY at;

-- mistakes
SET ROLE regress_redact_owner;
SELECT regress_error($$SELECT idem_redact('redact inbox', 'k', 'why')$$);
SELECT regress_message($$SELECT idem_redact('redact attempts', 'dead', NULL)$$), regress_message($$SELECT idem_redact('redact attempts', NULL, 'why')$$), regress_message($$SELECT idem_redact(NULL, 'k', 'why')$$);
SELECT regress_message($$SELECT idem_redact('redact attempts', 'dead', ' ')$$), regress_message($$SELECT idem_redact('no session', 'k', 'why')$$), regress_message($$SELECT idem_redact('redact attempts', 'dead', 'why', 's')$$);
SELECT regress_message($$SELECT idem_redact('redact attempts', 'dead', repeat('y', 1001))$$);
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_redact('redact attempts', 'dead', 'why')$$);
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('redact attempts', 'mine'));
SELECT regress_error($$SELECT idem_redact('redact attempts', 'mine', 'why')$$);
SELECT idem_record('redact attempts', 'mine', '1') IS NOT NULL, idem_redact('redact attempts', 'mine', 'why'), regress_show(idem_begin('redact attempts', 'mine'));
COMMIT;
SELECT regress_show(idem_begin('redact attempts', 'mine'));
-- what is rolled back never was
BEGIN;
SELECT regress_show(idem_run('redact attempts', 'kept', 'SELECT 1'));
COMMIT;
BEGIN;
SELECT idem_redact('redact attempts', 'kept', 'why'), regress_show(idem_begin('redact attempts', 'kept'));
ROLLBACK;
SELECT regress_show(idem_begin('redact attempts', 'kept'));
SELECT idem_drop_session('redact inbox'), idem_drop_session('redact attempts');
RESET ROLE;
SELECT regress_close();
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
DROP OWNED BY regress_redact_owner, regress_redact_user, regress_redact_other, regress_redact_admin;
SET client_min_messages = warning;
CALL idem_sweep();
RESET client_min_messages;
DROP ROLE regress_redact_owner, regress_redact_user, regress_redact_other, regress_redact_admin;
