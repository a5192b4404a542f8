-- Goal: whoever decides something by hand leaves a row that names the role, the role of the connection, and the client,
-- and these stay what they were when the roles are dropped.
-- Method: each call that changes what others rely on; then the roles go.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_audit_owner;
CREATE ROLE regress_audit_boss;
DELETE FROM idempotence.audit;
SET application_name = 'a desk';

-- who was granted what, and from whom it was taken
SELECT idem_grant('regress_audit_owner'), idem_grant('regress_audit_boss', 'admin');
SELECT regress_message($$SELECT idem_grant('regress_audit_owner', 'none')$$);

-- a session is changed and dropped, as its owner; who the connection is of is told too
SET ROLE regress_audit_owner;
SELECT idem_create_session('audit', ttl => '1 day', owner => 'regress_audit_owner');
SELECT regress_show(idem_run('audit', 'k', 'SELECT 1'));
SELECT status FROM idem_begin('audit', 'leased', lease => '1 hour');
SELECT idem_alter_session('audit', ttl => '1 second', usable_by => 'regress_audit_boss', max_attempts => 3);
-- nothing was changed
SELECT idem_alter_session('audit', ttl => '1 second'), idem_alter_session('audit');
SELECT regress_message($$SELECT idem_alter_session('audit', ttl => '-1 second')$$);
BEGIN;
SELECT idem_drop_session('audit');
ROLLBACK;
SELECT idem_alter_session('audit', require_payload => true, ttl => '2 days');
SELECT idem_redact('audit', 'k', 'asked for');
-- what has found nothing leaves no row
SELECT idem_redact('audit', 'k', 'once more'), idem_forget('audit', 'never', 'a guess'), idem_redact_prefix('audit', 'never', 'a guess');
RESET ROLE;
SELECT idem_drop_session('audit');
-- to become somebody else by SET SESSION AUTHORIZATION hides nothing either
SET SESSION AUTHORIZATION regress_audit_boss;
SELECT idem_set_persistence('sessions', 'unlogged'), idem_force_release('audit', 'never', 'a guess'), idem_force_release_prefix('audit', 'never', 'a guess'), idem_purge_audit('-infinity', 'a guess');
RESET SESSION AUTHORIZATION;
SELECT idem_revoke('regress_audit_owner'), idem_revoke('regress_audit_boss');

-- the roles go, and the names stay
SELECT idem_create_session('audit', ttl => '2 days', require_payload => true, max_attempts => 3);
SELECT idem_alter_session('audit', owner => current_user::regrole, usable_by => '-');
DROP ROLE regress_audit_owner, regress_audit_boss;
SELECT CASE WHEN by = session_user THEN 'the user' ELSE by END AS by, login = session_user AS login, application, client_addr IS NULL AS local, action, session, request, reason,
  replace(found, session_user, 'the user') FROM idempotence.audit ORDER BY at;
SELECT request, recorded_by FROM idempotence.outcomes WHERE session = 'audit';
SELECT request, recorded_by FROM idem_outcomes('audit');
SELECT request, holder FROM idempotence.unfinished WHERE session = 'audit';
SELECT idem_explain('audit', 'k') -> 'outcome' ->> 'recorded_by',
  (SELECT string_agg(concat_ws(' ', r ->> 'by', r ->> 'login' = session_user, r ->> 'action', r ->> 'reason'), ', ') FROM jsonb_array_elements(idem_explain('audit', 'k') -> 'audit_trail') r);

RESET application_name;
-- who had the lease is still told when it is gone
SELECT idem_force_release('audit', 'leased', 'the end of the test', live => true), idem_forget('audit', 'leased', 'the end of the test');
SELECT action, found FROM idempotence.audit WHERE reason = 'the end of the test' ORDER BY at;
SELECT idem_drop_session('audit');
DELETE FROM idempotence.audit;
