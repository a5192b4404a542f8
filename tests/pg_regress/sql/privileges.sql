-- Goal: nobody but the owner reads, replays, blocks, deletes or learns of a session's requests, and
-- nobody executes anything without a grant.
-- Method: the lists of functions and tables come from the catalog, so that none can be forgotten.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_privileges_owner;
CREATE ROLE regress_privileges_member IN ROLE regress_privileges_owner;
CREATE ROLE regress_privileges_member_without NOINHERIT IN ROLE regress_privileges_owner;
CREATE ROLE regress_privileges_other;
CREATE ROLE regress_privileges_monitor;
CREATE ROLE regress_privileges_admin;
CREATE ROLE regress_privileges_nobody;
CREATE ROLE regress_privileges_reader IN ROLE pg_read_all_data;
-- Every function of the extension.
CREATE VIEW regress_functions AS
SELECT p.oid::regprocedure AS function, p.* FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence');
-- Every table and view of the extension.
CREATE VIEW regress_relations AS
SELECT c.oid::regclass AS relation, c.* FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence');

-- PUBLIC has nothing: no function, no table or view nor a column of one, no schema
SELECT count(*) > 20 FROM regress_functions;
SELECT function FROM regress_functions WHERE has_function_privilege('public', oid, 'EXECUTE');
SELECT relation FROM regress_relations
WHERE has_table_privilege('public', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
   OR has_any_column_privilege('public', oid, 'SELECT, INSERT, UPDATE, REFERENCES');
SELECT has_schema_privilege('public', 'idempotence', 'USAGE, CREATE');
-- no function works with more rights than its caller's, but for those that read for a view what its reader may not
SELECT function, proconfig FROM regress_functions WHERE prosecdef ORDER BY function::text COLLATE "C";

-- what each level may execute, and read
SELECT idem_grant('regress_privileges_owner'), idem_grant('regress_privileges_other', 'user'), idem_grant('regress_privileges_monitor', 'monitor'), idem_grant('regress_privileges_admin', 'admin');
SELECT function, role FROM (VALUES ('regress_privileges_nobody'), ('regress_privileges_reader')) r (role), regress_functions WHERE has_function_privilege(role, oid, 'EXECUTE');
SELECT function FROM regress_functions WHERE NOT has_function_privilege('regress_privileges_other', oid, 'EXECUTE') ORDER BY function::text COLLATE "C";
SELECT function FROM regress_functions WHERE has_function_privilege('regress_privileges_monitor', oid, 'EXECUTE') ORDER BY function::text COLLATE "C";
SELECT function FROM regress_functions WHERE NOT has_function_privilege('regress_privileges_admin', oid, 'EXECUTE') ORDER BY function::text COLLATE "C";
SELECT role, relation, p FROM (VALUES ('regress_privileges_other'), ('regress_privileges_monitor'), ('regress_privileges_admin'), ('regress_privileges_nobody')) r (role),
  regress_relations, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
WHERE relkind IN ('r', 'v') AND has_table_privilege(role, oid, p) ORDER BY role, relation::text COLLATE "C", p;
SELECT role, s FROM (VALUES ('regress_privileges_other'), ('regress_privileges_monitor'), ('regress_privileges_admin'), ('regress_privileges_nobody')) r (role),
  unnest('{USAGE,CREATE}'::text[]) s WHERE has_schema_privilege(role, 'idempotence', s) ORDER BY 1;
-- granted twice is granted once
SELECT idem_grant('regress_privileges_other');
-- only the extension's owner hands out levels
SET ROLE regress_privileges_admin;
SELECT idem_grant('regress_privileges_nobody');
\echo :SQLSTATE
RESET ROLE;

-- a role without a grant
SET ROLE regress_privileges_nobody;
SELECT regress_message($$SELECT idem_begin('privileges', 'k')$$);
SELECT regress_message($$SELECT idem_generate_id()$$);
SELECT regress_message($$SELECT idem_create_session('privileges')$$);
SELECT regress_message($$TABLE idempotence.sessions$$);
SELECT regress_message($$TABLE idempotence.outcome_0$$);
SELECT regress_message($$SELECT idempotence.retention()$$);
RESET ROLE;

-- another role's session answers 42501 from every function that takes one, in the same words whether
-- the request is known, unknown or open
SET ROLE regress_privileges_owner;
SELECT idem_create_session('privileges', ttl => '1 hour', require_payload => true), idem_create_session('privileges inbox', ttl => '1 hour', inbox => true),
       idem_create_session('privileges time', ttl => '1 hour', time_keys => true);
BEGIN;
SELECT regress_show(idem_begin('privileges', 'known', payload => '1'));
SELECT idem_record('privileges', 'known', '"secret answer"') IS NOT NULL;
SELECT idem_once('privileges inbox', 'known');
COMMIT;
RESET ROLE;
-- the calls: each function with a session in its arguments, those of admins aside
CREATE FUNCTION regress_calls(session_ text, request_ text) RETURNS TABLE (function regprocedure, statement text)
LANGUAGE sql SECURITY DEFINER
AS $$
  SELECT f.function,
         format('SELECT %s.%s(%s)', f.pronamespace::regnamespace, f.proname, string_agg(format('%I => %s', a.name,
           CASE a.name WHEN 'session' THEN quote_literal(session_)
                       WHEN 'request' THEN CASE a.type WHEN 'bigint'::regtype THEN '42'
                                                   WHEN 'uuid'::regtype THEN '''01890a5d-ac96-774b-bcce-b302099a8057''::uuid'
                                                   ELSE quote_literal(request_) END
                       WHEN 'requests' THEN quote_literal(ARRAY[request_])
                       WHEN 'point' THEN '''p'''
                       WHEN 'command' THEN '''SELECT 1'''
                       WHEN 'failed' THEN 'false'
                       WHEN 'upto' THEN '1'
                       WHEN 'n' THEN '1'
                       WHEN 'prefix' THEN quote_literal(left(request_, 2))
                       WHEN 'reason' THEN '''why'''
                       ELSE 'NULL' END), ', ' ORDER BY a.place))
  FROM regress_functions f,
       unnest(f.proargnames[:f.pronargs], f.proargtypes::oid[]) WITH ORDINALITY a (name, type, place)
  WHERE 'session' = ANY (f.proargnames[:f.pronargs])
    AND f.oid IN (SELECT l.function FROM idempotence.function_level l WHERE l.level IN ('all', 'user'))
    AND a.place <= f.pronargs - f.pronargdefaults
  GROUP BY f.function, f.pronamespace, f.proname
$$;
SELECT function FROM regress_calls('s', 'k') ORDER BY function::text COLLATE "C";
-- held open by a prepared transaction, so that whoever asked for its lock would wait
SET ROLE regress_privileges_owner;
BEGIN;
SELECT regress_show(idem_begin('privileges', 'open', payload => '1'));
SELECT idem_record('privileges', 'open') IS NOT NULL;
SELECT idem_once('privileges inbox', 'open');
PREPARE TRANSACTION 'regress_privileges';
RESET ROLE;
SET ROLE regress_privileges_other;
SELECT count(DISTINCT function) = (SELECT count(*) FROM regress_calls('s', 'k')), count(*), array_agg(DISTINCT error)
FROM unnest('{privileges,privileges inbox,privileges time}'::text[]) s, unnest('{known,unknown,open,01890a5d-ac96-774b-bcce-b302099a8057}'::text[]) k,
     regress_calls(s, k) c, LATERAL (SELECT replace(regress_message(c.statement), s, '…') AS error) e;
SELECT regress_error($$SELECT idem_lookup('privileges', 'known')$$);
-- a mistake in the arguments is told after the right to the session
SELECT regress_message($$SELECT idem_begin('privileges', '')$$);
SELECT regress_message($$SELECT idem_begin('privileges', repeat('k', 300))$$);
SELECT regress_message($$SELECT idem_begin('privileges', 'known', payload => '2', wait => '-1 s', stream => 's')$$);
SELECT regress_message($$SELECT idem_record('privileges', 'known', token => 1)$$);
SELECT regress_message($$SELECT idem_checkpoint('privileges', 'known', NULL)$$);
SELECT regress_message($$SELECT idem_once('privileges', 'known')$$);
SELECT regress_message($$SELECT idem_begin('privileges time', 'known')$$);
SELECT regress_message($$SELECT idem_once_many('privileges inbox', '{}')$$);
SELECT regress_message($$SELECT idem_alter_session('privileges time', ttl => '2 hours')$$);
BEGIN READ ONLY;
SELECT regress_message($$SELECT idem_begin('privileges', 'known')$$);
SELECT regress_message($$SELECT idem_drop_session('privileges')$$);
COMMIT;
SELECT regress_claims() = 1;
RESET ROLE;
COMMIT PREPARED 'regress_privileges';

-- another role's client session, in whatever state it is, answers 42501 too, whatever is asked of it
SET ROLE regress_privileges_owner;
SELECT regress_registered('live', idem_register(client => 'live', request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d')), regress_registered('saved', idem_register(client => 'saved', ordering => 'strict'));
SELECT regress_registered('fenced', idem_register(client => 'fenced')), regress_registered('closed', idem_register()), regress_registered('run out', idem_register(timeout => '2 seconds'));
BEGIN;
SELECT regress_show(idem_begin(regress_id(s), 42, ack => 41)), idem_record(regress_id(s), 42, '"secret answer"') FROM unnest('{saved,fenced,closed,run out}'::text[]) s;
COMMIT;
SELECT regress_registered('newer', idem_register(client => 'fenced'));
SELECT idem_close(regress_id('closed'));
RESET ROLE;
SELECT regress_run_out('run out');
SET ROLE regress_privileges_owner;
BEGIN;
SELECT regress_show(idem_begin(regress_id('saved'), 43)), idem_record(regress_id('saved'), 43);
PREPARE TRANSACTION 'regress_privileges';
RESET ROLE;
SET ROLE regress_privileges_other;
SELECT error, count(*), string_agg(DISTINCT split_part(c.function::text, '(', 1), ' ' ORDER BY split_part(c.function::text, '(', 1)) AS functions
FROM unnest('{live,saved,fenced,closed,run out,newer}'::text[]) s, unnest('{42,43,1000,no number}'::text[]) k, regress_calls(regress_id(s), k) c,
     LATERAL (SELECT replace(regress_message(c.statement), '"' || s || '"', '"…"') AS error) e
GROUP BY error ORDER BY error;
SELECT regress_error($$SELECT idem_heartbeat(regress_id('live'))$$);
-- a mistake in the arguments is told after the right to the session
SELECT call, regress_message('SELECT ' || replace(call, 'ONE', 'regress_id(''saved'')'))
FROM unnest(ARRAY[
  'idem_begin(ONE, '''')', 'idem_begin(ONE, -1)', 'idem_begin(ONE, 42, payload => ''2'', wait => ''-1 s'', stream => repeat(''s'', 256), last => 0, ack => -1)', 'idem_begin(upper(ONE), 42)',
  'idem_record(ONE, 42, token => 1, ttl => ''1 hour'')', 'idem_checkpoint(ONE, 42, NULL)', 'idem_release(ONE, 42, token => 1)', 'idem_lookup(ONE, 0)',
  'idem_ack(ONE, -1)', 'idem_ack(ONE, 42, repeat(''s'', 256))', 'idem_allocate(ONE, 0)', 'idem_position(ONE, repeat(''s'', 256))'
]) WITH ORDINALITY AS c (call, place) ORDER BY place;
BEGIN READ ONLY;
SELECT call, regress_message('SELECT ' || replace(call, 'ONE', 'regress_id(''saved'')'))
FROM unnest('{"idem_begin(ONE, 42)","idem_heartbeat(ONE)","idem_ack(ONE, 1)","idem_allocate(ONE, 1)","idem_close(ONE)"}'::text[]) WITH ORDINALITY AS c (call, place) ORDER BY place;
COMMIT;
-- names of clients and ids of registrations are per owner: another's are neither fenced nor resumed nor found
SELECT regress_registered('of other', idem_register(client => 'live'));
SELECT regress_registered('of other too', idem_register(client => 'saved', resume => true, wait => '0'));
SELECT regress_registered('of other by id', idem_register(request_id => '6c0ee8f5-1b0c-4b43-9f3c-0d3e1a2b4c5d'));
RESET ROLE;
COMMIT PREPARED 'regress_privileges';
SET ROLE regress_privileges_owner;
SELECT idem_heartbeat(regress_id('live')) > now(), idem_heartbeat(regress_id('saved')) > now();
SELECT regress_message($$SELECT idem_heartbeat(regress_id('of other'))$$);
RESET ROLE;
-- a member of the owner uses its sessions, also ended ones, but registers sessions of its own
SET ROLE regress_privileges_member;
SELECT regress_show(idem_begin(regress_id('saved'), 42)), regress_show(idem_lookup(regress_id('closed'), 42)), idem_position(regress_id('run out'));
SELECT regress_registered('of member', idem_register(client => 'live'));
RESET ROLE;
SELECT owner FROM idempotence.sessions WHERE session = regress_id('of member');
SET ROLE regress_privileges_owner;
SELECT idem_heartbeat(regress_id('live')) > now();
SELECT regress_message($$SELECT idem_heartbeat(regress_id('of member'))$$);
RESET ROLE;
-- a superuser may use any, and registers its own
SELECT regress_show(idem_begin(regress_id('saved'), 42));
SELECT regress_registered('of superuser', idem_register(client => 'live'));
SELECT idem_heartbeat(regress_id('live')) > now();

-- membership in the owner, inherited, gives access; without inheritance only SET ROLE does
SELECT idem_grant('regress_privileges_member_without');
SET ROLE regress_privileges_member;
SELECT regress_show(idem_begin('privileges', 'known', payload => '1'));
SELECT idem_alter_session('privileges', require_payload => false);
RESET ROLE;
SET ROLE regress_privileges_member_without;
SELECT regress_message($$SELECT idem_begin('privileges', 'known', payload => '1')$$);
RESET ROLE;
-- taken away, it is gone at once, whatever a backend remembers
REVOKE regress_privileges_owner FROM regress_privileges_member;
SELECT idem_grant('regress_privileges_member');
SET ROLE regress_privileges_member;
SELECT regress_message($$SELECT idem_begin('privileges', 'known')$$);
RESET ROLE;
GRANT regress_privileges_owner TO regress_privileges_member;
SET ROLE regress_privileges_member;
SELECT regress_show(idem_begin('privileges', 'known'));
RESET ROLE;

-- SECURITY DEFINER: the definer's rights count, and the outcome is recorded by it
CREATE FUNCTION privileges_pay(request text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_catalog
AS $$
BEGIN
  RETURN regress_show(idem_run('privileges', request, 'SELECT current_user::text'));
END
$$;
ALTER FUNCTION privileges_pay OWNER TO regress_privileges_owner;
SET ROLE regress_privileges_other;
SELECT privileges_pay('definer'), privileges_pay('definer');
SELECT regress_message($$SELECT idem_lookup('privileges', 'definer')$$);
RESET ROLE;
SELECT recorded_by FROM idempotence.outcomes WHERE session = 'privileges' AND request = 'definer';
DROP FUNCTION privileges_pay;
-- begun as one role, recorded as another: each step has the right or not
BEGIN;
SET LOCAL ROLE regress_privileges_owner;
SELECT regress_show(idem_begin('privileges', 'two roles'));
SET LOCAL ROLE regress_privileges_other;
SELECT regress_message($$SELECT idem_record('privileges', 'two roles')$$);
SELECT regress_message($$SELECT idem_release('privileges', 'two roles')$$);
SET LOCAL ROLE regress_privileges_member;
SELECT idem_record('privileges', 'two roles') IS NOT NULL;
COMMIT;
SELECT recorded_by FROM idempotence.outcomes WHERE session = 'privileges' AND request = 'two roles';

-- the tables are nobody's, also for who owns a session, watches or repairs; but for the audit
SET ROLE regress_privileges_owner;
SELECT relation, regress_message('SELECT FROM ' || relation) FROM unnest('{idempotence.session,idempotence.session_live,idempotence.reply,idempotence.stream,idempotence.outcome_0,idempotence.checkpoint,idempotence.segment,idempotence.secret,idempotence.audit,idempotence.segments,idempotence.health}'::text[]) relation;
SELECT regress_message($$DELETE FROM idempotence.outcome_0$$);
RESET ROLE;
SET ROLE regress_privileges_admin;
SELECT regress_message($$SELECT FROM idempotence.secret$$), regress_message($$UPDATE idempotence.audit SET reason = ''$$), regress_message($$DELETE FROM idempotence.audit$$);
RESET ROLE;
-- pg_read_all_data reads all but the secret
SET ROLE regress_privileges_reader;
SELECT count(*) > 0 FROM idempotence.outcome_0;
SELECT count(*) FROM idempotence.secret;
-- the views take the level of those who watch as well
SELECT regress_message($$SELECT FROM idempotence.sessions$$), regress_message($$SELECT FROM idempotence.at_work()$$), regress_message($$SELECT idempotence.holders('{1}', NULL)$$), regress_message($$SELECT idempotence.advisory_holders(7651)$$);
RESET ROLE;

-- monitors see what there is, but no response of a session that they have no right to
SET ROLE regress_privileges_monitor;
SELECT session, owner, kind, require_payload, time_keys FROM idempotence.sessions WHERE session LIKE 'privileges%' ORDER BY session;
SELECT request, status, response, response_bytes > 0 AS measured, recorded_by FROM idempotence.outcomes WHERE session = 'privileges' AND request = 'known';
SELECT regress_told(session), owner, client, ordering, saved, ended FROM idempotence.sessions WHERE kind = 'client' AND owner = 'regress_privileges_owner'::regrole ORDER BY regress_told(session);
SELECT DISTINCT request, status, response, response_bytes > 0 AS measured, recorded_by FROM idempotence.outcomes WHERE stream IS NOT NULL AND recorded_by = 'regress_privileges_owner' ORDER BY request;
SELECT regress_message($$SELECT FROM idempotence.audit$$);
SELECT regress_message($$SELECT idem_lookup('privileges', 'known')$$), regress_message($$SELECT idem_lookup(regress_id('saved'), 42)$$), regress_message($$SELECT idem_register()$$);
-- nor by a function that is evaluated before the right is looked at
CREATE FUNCTION pg_temp.leak(response jsonb) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE INFO 'leaked %', response; RETURN true; END $$;
SELECT count(*) > 0 FROM idempotence.outcomes WHERE pg_temp.leak(response) AND response IS NOT NULL;
DROP FUNCTION pg_temp.leak(jsonb);
RESET ROLE;

-- an admin forgets in a session that is not the admin's, and reads of it in the audit only
SET ROLE regress_privileges_admin;
SELECT idem_forget('privileges', 'definer', 'asked for by its owner');
SELECT by, session, request, reason, found FROM idempotence.audit WHERE session = 'privileges' ORDER BY at;
SELECT regress_message($$SELECT idem_begin('privileges', 'known')$$), regress_message($$SELECT idem_lookup(regress_id('saved'), 42)$$), regress_message($$SELECT idem_close(regress_id('live'))$$);
RESET ROLE;
SET ROLE regress_privileges_other;
SELECT regress_message($$SELECT idem_forget('privileges', 'known', 'why')$$);
RESET ROLE;

-- an owner that is gone leaves its sessions to superusers
SET ROLE regress_privileges_other;
SELECT idem_create_session('privileges orphan');
SELECT regress_show(idem_run('privileges orphan', 'k', 'SELECT 1')), regress_show(idem_run(regress_id('of other'), '1', 'SELECT 1'));
RESET ROLE;
SELECT idem_revoke('regress_privileges_other');
SELECT count(*) FROM regress_functions WHERE has_function_privilege('regress_privileges_other', oid, 'EXECUTE');
DROP ROLE regress_privileges_other;
SELECT owner::text ~ '^\d+$' FROM idempotence.sessions WHERE session = 'privileges orphan';
SELECT regress_show(idem_lookup('privileges orphan', 'k')), regress_show(idem_lookup(regress_id('of other'), 1)), idem_heartbeat(regress_id('of other')) > now();
SELECT recorded_by, response FROM idempotence.outcomes WHERE session = 'privileges orphan';
SET ROLE regress_privileges_admin;
SELECT regress_message($$SELECT idem_lookup('privileges orphan', 'k')$$), regress_message($$SELECT idem_lookup(regress_id('of other'), 1)$$);
SELECT regress_message($$SELECT idem_create_session('privileges orphan')$$);
RESET ROLE;
SET ROLE regress_privileges_monitor;
SELECT response, status FROM idempotence.outcomes WHERE session = 'privileges orphan';
RESET ROLE;
SELECT idem_alter_session('privileges orphan', owner => 'regress_privileges_owner');
SET ROLE regress_privileges_owner;
SELECT regress_show(idem_lookup('privileges orphan', 'k'));
RESET ROLE;

-- revoked: all that was granted is taken away, and nothing keeps the role from being dropped
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'privileges%';
SELECT regress_close();
DROP FUNCTION regress_calls;
SELECT idem_revoke('regress_privileges_owner'), idem_revoke('regress_privileges_monitor'), idem_revoke('regress_privileges_admin'),
       idem_revoke('regress_privileges_member'), idem_revoke('regress_privileges_member_without'), idem_revoke('regress_privileges_nobody');
SELECT role, function::text FROM (VALUES ('regress_privileges_owner'), ('regress_privileges_monitor'), ('regress_privileges_admin')) r (role), regress_functions WHERE has_function_privilege(role, oid, 'EXECUTE');
SELECT role, relation::text FROM (VALUES ('regress_privileges_owner'), ('regress_privileges_monitor'), ('regress_privileges_admin')) r (role), regress_relations WHERE has_table_privilege(role, oid, 'SELECT');
DROP VIEW regress_functions, regress_relations;
DROP ROLE regress_privileges_member, regress_privileges_member_without, regress_privileges_owner, regress_privileges_monitor, regress_privileges_admin,
          regress_privileges_nobody, regress_privileges_reader;
