-- Goal: an explanation tells all that is known of a request, in a shape that never changes, and foresees what a begin
-- answers; to whoever may use the session, and without secrets.
-- Method: requests in every state, of sessions of every kind. After each explanation the same transaction begins the
-- request, and the answer is compared with what was foreseen.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_explain_owner;
CREATE ROLE regress_explain_borrower;
CREATE ROLE regress_explain_other;
CREATE ROLE regress_explain_monitor;
CREATE ROLE regress_explain_admin;
SELECT idem_grant(('regress_explain_' || r)::regrole) FROM unnest('{owner,borrower,other}'::text[]) r;
SELECT idem_grant('regress_explain_monitor', 'monitor'), idem_grant('regress_explain_admin', 'admin');
-- Without clock values, processes and the server's names.
CREATE FUNCTION regress_plain(told text) RETURNS text
LANGUAGE sql
RETURN regexp_replace(regexp_replace(replace(replace(regress_told(told), '"' || idem_node() || '"', '"here"'), '"role": "' || session_user, '"role": "whoever is connected'), '\d{4}-\d\d-\d\dT[0-9:.]+[+-]\d\d:\d\d', 'a moment', 'g'), '("pid": |process |backend\()\d+', '\1N', 'g');
-- An explanation, without what is null; then whether a begin does what it foresees.
CREATE FUNCTION regress_explain(session text, request text, stream text DEFAULT NULL) RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
  told    jsonb := idem_explain(session, request, stream);
  section text;
  answer  idem_ticket;
  begun   text;
BEGIN
  FOR section IN SELECT key FROM jsonb_each(told) WHERE key NOT IN ('of', 'version') AND value NOT IN ('null', '[]') LOOP
    RETURN NEXT regress_plain(section || ': ' || (jsonb_strip_nulls(told -> section))::text);
  END LOOP;
  BEGIN
    answer := idem_begin(session, told #>> '{of,request}', stream => stream, wait => '0', last => CASE WHEN told #>> '{of,kind}' = 'client' THEN (told #>> '{of,last}')::bigint END);
    begun := concat_ws(' ', answer.status, answer.replayed);
    RAISE EXCEPTION USING ERRCODE = 'RE001';
  EXCEPTION WHEN SQLSTATE 'RE001' THEN
  WHEN OTHERS THEN
    begun := SQLSTATE || ' f';
  END;
  IF begun <> concat_ws(' ', coalesce(told #>> '{begin_answers,status}', told #>> '{begin_answers,sqlstate}'), (told #>> '{begin_answers,replayed}')::boolean) THEN
    RETURN NEXT 'BUT IT ANSWERS ' || begun;
  END IF;
END
$$;
SET ROLE regress_explain_owner;
SET application_name = 'regress/explain';
SELECT idem_create_session('explain', ttl => '1 hour', usable_by => 'regress_explain_borrower'), idem_create_session('explain inbox', inbox => true),
       idem_create_session('explain time', ttl => '1 day', time_keys => true), idem_create_session('explain once', max_attempts => 1);

-- the whole shape, once
SELECT regress_plain(jsonb_pretty(idem_explain('explain', 'unknown')));
SELECT regress_explain('explain', 'unknown');
-- done, in each way
SELECT status FROM idem_run('explain', 'done', 'SELECT 1');
SELECT status FROM idem_begin('explain', 'failed', payload => '"secret payload"'), LATERAL (SELECT idem_record('explain', 'failed', '"secret answer"', failed => true)) r;
SELECT status FROM idem_settle('explain', 'settled');
SELECT regress_explain('explain', r) FROM unnest('{done,failed,settled}'::text[]) r;
-- its response redacted, alone and with others of its prefix; another request of that prefix had none
SELECT idem_redact('explain', 'failed', 'asked for by its customer');
SELECT regress_explain('explain', 'failed');
SELECT status FROM idem_run('explain', 'many 1', 'SELECT 1');
SELECT idem_redact_prefix('explain', 'many ', 'the same');
SELECT status FROM idem_run('explain', 'many 2', 'DO $x$ BEGIN END $x$');
SELECT r, idem_explain('explain', r) #>> '{outcome,redacted}', jsonb_array_length(idem_explain('explain', r) -> 'audit_trail') FROM unnest('{many 1,many 2,done}'::text[]) r;
-- expired: it counts as new
RESET ROLE;
UPDATE idempotence.outcome_0 SET expires_at = now() WHERE key = 'done' AND session = (SELECT id FROM idempotence.session WHERE name = 'explain');
UPDATE idempotence.outcome_1 SET expires_at = now() WHERE key = 'done' AND session = (SELECT id FROM idempotence.session WHERE name = 'explain');
UPDATE idempotence.outcome_2 SET expires_at = now() WHERE key = 'done' AND session = (SELECT id FROM idempotence.session WHERE name = 'explain');
SET ROLE regress_explain_owner;
SELECT regress_explain('explain', 'done');
-- in flight: by this transaction, and by one that is prepared; recorded but not yet committed, too
BEGIN;
SELECT status FROM idem_begin('explain', 'own');
SELECT regress_explain('explain', 'own');
ROLLBACK;
BEGIN;
SELECT status FROM idem_begin('explain', 'prepared');
SELECT FROM idem_record('explain', 'prepared', '1');
PREPARE TRANSACTION 'regress_explain';
SELECT regress_explain('explain', 'prepared');
ROLLBACK PREPARED 'regress_explain';
SELECT regress_explain('explain', 'prepared');
-- stopped at a checkpoint
BEGIN;
SELECT status FROM idem_begin('explain', 'half');
SELECT idem_checkpoint('explain', 'half', 'card charged', '"secret state"'), idem_release('explain', 'half');
COMMIT;
SELECT regress_explain('explain', 'half');
-- leased, run out, and given up
SELECT regress_take('a', idem_begin('explain', 'leased', lease => '1 hour'));
SELECT regress_explain('explain', 'leased');
SELECT idem_checkpoint('explain', 'leased', 'mail sent', token => regress_token('a'));
RESET ROLE;
SELECT regress_lease_ends('explain', 'leased');
SET ROLE regress_explain_owner;
SELECT regress_explain('explain', 'leased');
SELECT regress_show(idem_begin('explain once', 'dead', lease => '1 hour'));
RESET ROLE;
SELECT regress_lease_ends('explain once', 'dead');
SET ROLE regress_explain_owner;
SELECT regress_explain('explain once', 'dead');
SELECT regress_show(idem_begin('explain once', 'dead'));
SELECT regress_explain('explain once', 'dead');
-- sessions of other kinds
SELECT regexp_replace(regress_explain('explain time', regress_uuid7(now() + age)), '"[0-9a-f-]{36}\\"|\d{5}', '…', 'g') FROM unnest('{-2 days,1 day}'::interval[]) age;
SELECT regress_explain('explain time', upper(regress_uuid7(now())));
SELECT regress_message($$SELECT idem_explain('explain time', 'k')$$);
SELECT idem_once('explain inbox', 'm');
SELECT regress_explain('explain inbox', 'm');
SELECT regress_explain('explain inbox', 'n');
-- in the hands of a transaction, and of a part of one
BEGIN;
SAVEPOINT a;
SELECT idem_once('explain inbox', 'o');
RELEASE a;
PREPARE TRANSACTION 'regress_explain';
SELECT regress_explain('explain inbox', 'o');
ROLLBACK PREPARED 'regress_explain';

-- numbered requests, in any order: due, done, given up, too early, and the slot taken by another number
SELECT regress_registered('any', idem_register(window_size => 2));
SELECT FROM idem_run(regress_id('any'), '1', 'SELECT 1');
SELECT n, regress_explain(regress_id('any'), n) FROM unnest('{1,2,3,5}'::text[]) n;
SELECT idem_ack(regress_id('any'), 1);
SELECT regress_explain(regress_id('any'), '1');
BEGIN;
SELECT status FROM idem_begin(regress_id('any'), 2);
SELECT FROM idem_record(regress_id('any'), 2);
PREPARE TRANSACTION 'regress_explain';
SELECT regress_explain(regress_id('any'), '2');
SELECT regress_explain(regress_id('any'), '4');
ROLLBACK PREPARED 'regress_explain';
-- in strict order: a range is found by any of its numbers, done, stopped and leased
SELECT regress_registered('strict', idem_register(ordering => 'strict'));
SELECT status FROM idem_begin(regress_id('strict'), 1, last => 3, stream => 's'), LATERAL (SELECT idem_record(regress_id('strict'), 1, stream => 's')) r;
SELECT regress_plain(idem_explain(regress_id('strict'), 2, 's') ->> 'of');
SELECT regress_explain(regress_id('strict'), '2', 's');
SELECT regress_take('c', idem_begin(regress_id('strict'), 4, last => 6, stream => 's', lease => '1 hour'));
SELECT regress_explain(regress_id('strict'), n, 's') FROM unnest('{5,7}'::text[]) n;
SELECT idem_checkpoint(regress_id('strict'), 4, 'p', token => regress_token('c'), stream => 's'), idem_release(regress_id('strict'), 4, token => regress_token('c'), stream => 's');
SELECT regress_explain(regress_id('strict'), '4', 's');
SELECT regress_explain(regress_id('strict'), '5', 's');
-- in a session that has ended: closed, fenced, run out; and one of which nothing is known
SELECT idem_close(regress_id('any'));
SELECT regress_explain(regress_id('any'), '2');
SELECT regress_plain(idem_explain(regress_id('any'), 2) ->> 'of');
SELECT regress_registered('first', idem_register(client => 'explain')), regress_registered('second', idem_register(client => 'explain'));
SELECT regress_explain(regress_id('first'), '1');
SELECT regress_registered('silent', idem_register(timeout => '2 seconds'));
SELECT FROM idem_run(regress_id('silent'), '1', 'SELECT 1');
RESET ROLE;
SELECT regress_run_out('silent');
SET ROLE regress_explain_owner;
SELECT regress_explain(regress_id('silent'), '1');
SELECT idem_explain(regress_id('silent'), 1) #>> '{of,session_ended}';
SELECT regress_message($$SELECT idem_explain('01890a5d-ac96-774b-bcce-b302099a8057', 1)$$);
SELECT regress_message($$SELECT idem_explain('no such session', '1')$$);
SELECT regress_message($$SELECT idem_explain(NULL, '1')$$);
SELECT regress_message($$SELECT idem_explain('explain', NULL::text)$$);

-- in a transaction that only reads, and under a snapshot that does not see the outcome
BEGIN READ ONLY;
SELECT idem_explain('explain', 'failed') #>> '{begin_answers,status}', idem_explain('explain', 'unknown') #>> '{begin_answers,status}';
COMMIT;
SELECT idem_explain('explain', 42) #>> '{of,request}', idem_explain('explain', '6C0EE8F5-1B0C-4B43-9F3C-0D3E1A2B4C5D'::uuid) #>> '{of,request}';

-- to whom: repairs are told to whoever may use the session, and why to whoever may read the audit
SET ROLE regress_explain_admin;
SELECT idem_forget('explain', 'settled', 'by mistake');
SELECT regress_plain(idem_explain('explain', 'settled') ->> 'audit_trail');
RESET ROLE;
-- and not those of a session that had the name before
BEGIN;
UPDATE idempotence.audit a SET at = s.created_at - interval '1 second' FROM idempotence.session s WHERE s.name = a.session AND a.request = 'settled';
SELECT idem_explain('explain', 'settled') -> 'audit_trail';
ROLLBACK;
DROP FUNCTION regress_explain;
SET ROLE regress_explain_borrower;
SELECT regress_plain(idem_explain('explain', 'settled') ->> 'audit_trail');
SET ROLE regress_explain_monitor;
SELECT idem_explain('explain', 'settled') -> 'audit_trail', idem_explain('explain', 'failed') #>> '{outcome,status}', idem_explain('explain', 'half') #>> '{unfinished,point}';
SET ROLE regress_explain_other;
SELECT regress_error($$SELECT idem_explain('explain', 'failed')$$);
SELECT regress_message($$SELECT idem_explain(regress_id('strict'), 1)$$), regress_message($$SELECT idem_explain('explain', '')$$);
RESET ROLE;
-- no secrets, whoever asks
SELECT count(*) FROM unnest('{failed,half,leased}'::text[]) r, LATERAL (SELECT idem_explain('explain', r)::text AS told) e
WHERE told LIKE '%secret%' OR told LIKE '%' || regress_token('a') || '%';
-- a token is a fence: it can be computed from what is told, and serves only those who may use the session
SET ROLE regress_explain_borrower;
SELECT regress_show(idem_begin('explain', 'fence', lease => '1 hour'));
SET ROLE regress_explain_monitor;
SELECT (extract(epoch FROM since) * 1000000)::bigint - 946684800000000 AS computed FROM idempotence.unfinished WHERE request = 'fence' \gset
SET ROLE regress_explain_other;
SELECT regress_message(format($$SELECT idem_extend('explain', 'fence', %s, '2 hours')$$, :computed)), regress_message(format($$SELECT idem_record('explain', 'fence', token => %s)$$, :computed));
SET ROLE regress_explain_owner;
SELECT idem_extend('explain', 'fence', :computed, '2 hours') > now() AS extended, idem_release('explain', 'fence', token => :computed);
RESET ROLE;
-- a session that was dropped
SELECT idem_drop_session('explain');
SELECT regress_plain(idem_explain('explain', 'failed') ->> s) FROM unnest('{of,outcome,begin_answers,what_to_do_next}'::text[]) s;
SELECT idem_force_release('explain', 'leased', 'the test is over');

SELECT idem_drop_session(s) FROM unnest('{explain inbox,explain time,explain once}'::text[]) s;
SELECT regress_close();
DELETE FROM regress_lease_token;
DROP FUNCTION regress_plain;
SELECT idem_revoke(('regress_explain_' || r)::regrole) FROM unnest('{owner,borrower,other,monitor,admin}'::text[]) r;
DROP ROLE regress_explain_owner, regress_explain_borrower, regress_explain_other, regress_explain_monitor, regress_explain_admin;
