-- Goal: a session tells where it lives. A client session has the name of its node in its own, and a standing session may
-- be bound to a node. On another server each use of it is ID012, and what is here is answered whatever a name says.
-- Method: this server stays what it is. Names of sessions that nothing is known of here stand for those of others, and a
-- session that is bound to another name is a signpost here. (Two servers, and a name that is set: cluster test nodes.)
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
-- Without the name of this server.
CREATE FUNCTION node_error(statement text) RETURNS SETOF text LANGUAGE sql
AS $$SELECT replace(line, idem_node(), 'HERE') FROM regress_error(statement) line$$;
CREATE FUNCTION node_message(statement text) RETURNS text LANGUAGE sql
AS $$SELECT line FROM node_error(statement) WITH ORDINALITY AS e (line, place) ORDER BY place LIMIT 1$$;
-- What comes of each of these calls, with S for the session.
CREATE FUNCTION node_calls(session text, calls text[]) RETURNS TABLE (call text, told text) LANGUAGE sql
AS $$SELECT c.call, node_message('SELECT ' || replace(c.call, 'S', quote_literal(session))) FROM unnest(calls) WITH ORDINALITY AS c (call, place) ORDER BY c.place$$;
-- The message as it is, with the names that the server gives.
CREATE FUNCTION node_sqlerrm(statement text) RETURNS text LANGUAGE plpgsql
AS $$BEGIN EXECUTE statement; RETURN 'no error'; EXCEPTION WHEN OTHERS THEN RETURN SQLERRM; END$$;
CREATE ROLE regress_node;
CREATE ROLE regress_node_other;
SELECT idem_grant('regress_node'), idem_grant('regress_node_other');

-- the name of this server: the setting, or the system's identifier
SELECT idem_node() = coalesce(nullif(current_setting('idempotence.node'), ''), lpad(to_hex(system_identifier), 16, '0')) FROM pg_control_system();
-- only the server's configuration may set it, to a name
\set refused '^55P02: parameter "idempotence.node" cannot be changed (now|without restarting the server)$'
SELECT statement, regress_message(statement) ~ :'refused' FROM unnest(ARRAY[$$SET idempotence.node = 'mine'$$, $$SELECT set_config('idempotence.node', 'mine', true)$$, $$ALTER ROLE regress_node SET idempotence.node = 'mine'$$,
  $$ALTER DATABASE contrib_regression SET idempotence.node = 'mine'$$]) statement;
SET ROLE regress_node;
SELECT regress_message($$SET idempotence.node = 'mine'$$) ~ :'refused';
RESET ROLE;
ALTER SYSTEM SET idempotence.node = 'two words';
ALTER SYSTEM SET idempotence.node = 'a@b';
ALTER SYSTEM SET idempotence.node = '-';
ALTER SYSTEM SET idempotence.node = 'größe';
ALTER SYSTEM SET idempotence.node = '123456789012345678901234567890123';
SELECT idem_node() = coalesce(nullif(current_setting('idempotence.node'), ''), lpad(to_hex(system_identifier), 16, '0')) FROM pg_control_system();

-- a client session's name is its id and the node
SELECT regress_registered('any', idem_register(client => 'c')), regress_registered('strict', idem_register(ordering => 'strict'));
SELECT regress_id('any') = regress_uuid('any') || '@' || idem_node();
SELECT session = regress_id('any'), resumed FROM idem_register(client => 'c', resume => true);
-- the id alone means the same session, and so does any spelling of it, and any node behind it
SELECT regress_uuid('any')::text AS id \gset
SELECT regress_id('any') AS named \gset
BEGIN;
SELECT regress_show(idem_begin(:'id', 1)), regress_told(regress_message(format('SELECT idem_begin(%L, 1)', :'named')));
SELECT regress_told(regress_message(format('SELECT idem_begin(%L, 1)', upper(:'id') || '@elsewhere')));
SELECT idem_record(:'named', 1, '1');
SELECT regress_show(idem_begin(upper(:'id'), 2)), regress_show(idem_lookup(:'named', 2));
SELECT idem_checkpoint('{' || :'id' || '}@elsewhere', 2, 'half');
SELECT idem_release(:'id', 2);
COMMIT;
SELECT regress_show(idem_begin(s, 1)), regress_show(idem_lookup(s, 1)), idem_position(s), idem_heartbeat(s) > now()
FROM unnest(ARRAY[:'named', :'id', upper(:'id'), replace(:'id', '-', ''), '{' || :'id' || '}@x', :'id' || '@elsewhere', :'id' || '@', :'id' || '@two words', :'id' || '@a@b', :'id' || '@' || repeat('n', 100)]) WITH ORDINALITY n (s, place) ORDER BY place;
-- the views show one name
SELECT session = :'named', node = idem_node() FROM idempotence.sessions WHERE client = 'c' AND ended IS NULL;
SELECT session = :'named', request, status FROM idempotence.outcomes WHERE session LIKE :'id' || '%';
SELECT session = :'named', request, state, point FROM idempotence.unfinished WHERE session LIKE :'id' || '%';
SELECT idem_explain(:'id', 1) #>> '{of,session}' = :'named', idem_explain(:'id', 1) #>> '{of,node}' = idem_node(), idem_explain(:'id', 1) #>> '{of,session_node}' = idem_node();
SELECT count(*) FROM idem_outcomes(upper(:'id'));
-- an error names the session as it is called
SELECT node_sqlerrm(format('SELECT idem_begin(%L, 99)', :'id')) = format('request "99" of session "%s" is out of sequence', :'named');
-- a repair is noted and found under that name
SELECT idem_redact(:'id', 1, 'a test'), idem_explain(:'named', 1) #>> '{audit_trail,0,action}';
SELECT session = :'named' FROM idempotence.audit WHERE action = 'redact' ORDER BY at DESC LIMIT 1;
-- ended here, it has ended, whatever node is asked for
SELECT idem_close(:'id');
SELECT regress_told(node_message(format('SELECT idem_begin(%L, 2)', s))), regress_show(idem_lookup(s, 1)), idem_close(s) FROM unnest(ARRAY[:'named', :'id', :'id' || '@elsewhere']) s;

-- of another node's session nothing is known here, nor of what was done in it
SELECT node_error($$SELECT idem_begin('01890a5d-ac96-774b-bcce-b302099a8057@elsewhere', 1)$$);
SELECT * FROM node_calls('01890a5d-ac96-774b-bcce-b302099a8057@elsewhere', ARRAY[
  'idem_begin(S, 1)', 'idem_begin(S, ''1'')', 'idem_begin(S, 1, lease => ''1 s'')', 'idem_claim(S, 1)', 'idem_run(S, ''1'', ''select 1'')',
  'idem_record(S, 1)', 'idem_record(S, 1, token => 1)', 'idem_checkpoint(S, 1, ''p'')', 'idem_extend(S, 1, 1, ''1 s'')', 'idem_release(S, 1)', 'idem_release(S, 1, token => 1)',
  'idem_settle(S, 1)', 'idem_lookup(S, 1)', 'idem_heartbeat(S)', 'idem_ack(S, 1)', 'idem_allocate(S, 1)', 'idem_position(S)', 'idem_close(S)',
  'idem_once(S, 1)', 'idem_once_many(S, ''{1}'')', 'idem_explain(S, 1)', 'idem_outcomes(S)', 'idem_redact(S, 1, ''why'')', 'idem_redact_prefix(S, ''1'', ''why'')',
  'idem_force_release(S, 1, ''why'')', 'idem_force_record(S, 1, ''why'')', 'idem_import(S, ''select 1'', ''why'')', 'idem_alter_session(S)', 'idem_drop_session(S)',
  'idem_forget(S, 1, ''why'')']);
-- of this node's, or without a node, it has ended
SELECT node_message(format('SELECT idem_begin(%L, 1)', s)), node_message(format('SELECT idem_lookup(%L, 1)', s)), idem_close(s)
FROM unnest(ARRAY['01890a5d-ac96-774b-bcce-b302099a8057', '01890a5d-ac96-774b-bcce-b302099a8057@' || idem_node()]) s;
-- nodes are told apart letter by letter
SELECT node_message(format('SELECT idem_begin(%L, 1)', '01890a5d-ac96-774b-bcce-b302099a8057@' || idem_node() || '.'));
SELECT node_message(format('SELECT idem_begin(%L, 1)', '01890a5d-ac96-774b-bcce-b302099a8057@' || overlay(idem_node() PLACING 'Z' FROM 1))) ~ '^ID012: ';
-- what is no name of a node is no name of a session
SELECT node_error($$SELECT idem_begin('01890a5d-ac96-774b-bcce-b302099a8057@', 1)$$);
SELECT name, node_message(format('SELECT idem_begin(%L, 1)', '01890a5d-ac96-774b-bcce-b302099a8057' || name)) FROM unnest('{@-,@two words,@a@b,@größe,@12345678901234567890123456789012,@123456789012345678901234567890123}'::text[]) name;
SELECT left(node_message(format('SELECT idem_begin(%L, 1)', '01890a5d-ac96-774b-bcce-b302099a8057@' || repeat('n', 300))), 60);
SELECT name, node_message(format('SELECT idem_begin(%L, 1)', name)) FROM unnest('{@,@elsewhere,@@,01890a5d-ac96-774b-bcce@elsewhere,"01890a5d-ac96-774b-bcce-b302099a8057 @elsewhere"}'::text[]) name;
-- no standing session may be named so
SELECT node_message(format('SELECT idem_create_session(%L)', '01890a5d-ac96-774b-bcce-b302099a8057' || name)) FROM unnest('{@elsewhere,@,"@two words"}'::text[]) name;
-- a standing session that is bound to this node is an ordinary one
SET ROLE regress_node;
SELECT idem_create_session('node here', ttl => '1 hour', node => idem_node()), idem_create_session('node free', ttl => '1 hour', node => '-'), idem_create_session('node there', ttl => '1 hour', node => 'elsewhere'),
       idem_create_session('node inbox', ttl => '1 hour', inbox => true, node => 'elsewhere');
SELECT session, replace(node, idem_node(), 'HERE') FROM idempotence.sessions WHERE session LIKE 'node%' ORDER BY session;
SELECT status FROM idem_run('node here', 'k', 'SELECT 1');
SELECT regress_show(idem_begin('node here', 'k')), regress_show(idem_lookup('node here', 'k'));
-- and one that is bound to another is a signpost
SELECT node_error($$SELECT idem_begin('node there', 'k')$$);
SELECT * FROM node_calls('node there', ARRAY[
  'idem_begin(S, ''k'')', 'idem_begin(S, 1)', 'idem_begin(S, ''k'', lease => ''1 s'')', 'idem_claim(S, ''k'')', 'idem_run(S, ''k'', ''select 1'')',
  'idem_record(S, ''k'')', 'idem_record(S, ''k'', token => 1)', 'idem_checkpoint(S, ''k'', ''p'')', 'idem_checkpoint(S, ''k'', ''p'', token => 1)', 'idem_extend(S, ''k'', 1, ''1 s'')',
  'idem_release(S, ''k'')', 'idem_release(S, ''k'', token => 1)', 'idem_settle(S, ''k'')', 'idem_lookup(S, ''k'')', 'idem_outcomes(S)', 'idem_redact(S, ''k'', ''why'')', 'idem_redact_prefix(S, ''k'', ''why'')',
  'idem_once(S, ''k'')', 'idem_heartbeat(S)', 'idem_ack(S, 1)', 'idem_allocate(S, 1)', 'idem_position(S)', 'idem_close(S)']);
SELECT * FROM node_calls('node inbox', ARRAY['idem_once(S, ''k'')', 'idem_once_many(S, ''{k,l}'')', 'idem_begin(S, ''k'')', 'idem_lookup(S, ''k'')']);
RESET ROLE;
SELECT * FROM node_calls('node there', ARRAY['idem_forget(S, ''k'', ''why'')', 'idem_forget_prefix(S, ''k'', ''why'')', 'idem_force_release(S, ''k'', ''why'')', 'idem_force_record(S, ''k'', ''why'')']);
-- the right to it comes first
SET ROLE regress_node_other;
SELECT node_message($$SELECT idem_begin('node there', 'k')$$), node_message($$SELECT idem_alter_session('node there', node => 'x')$$);
RESET ROLE;
-- somebody on call is told
SELECT jsonb_pretty(replace(e::text, idem_node(), 'HERE')::jsonb - 'version') FROM idem_explain('node there', 'k') e;
SELECT replace((e -> 'begin_answers')::text, idem_node(), 'HERE'), replace(e ->> 'what_to_do_next', idem_node(), 'HERE') FROM idem_explain('node inbox', 'k') e;
SELECT replace(detail, idem_node(), 'HERE') ~ '^this is node "HERE"(, a name made from the system''s identifier)?; 1 standing sessions are bound to it, 2 to other nodes$', level, hint FROM idempotence.health WHERE name = 'node';

-- made again with the same node, or with none, it stays; and what is no name is refused
SET ROLE regress_node;
SELECT idem_create_session('node there', ttl => '1 hour', node => 'elsewhere'), idem_create_session('node there', ttl => '1 hour');
SELECT node_error($$SELECT idem_create_session('node there', ttl => '1 hour', node => 'Elsewhere')$$);
SELECT node_error($$SELECT idem_create_session('node there', ttl => '1 hour', node => '-')$$);
SELECT node_error($$SELECT idem_create_session('node here', ttl => '2 hours', node => 'elsewhere')$$);
SELECT node_error($$SELECT idem_create_session('node free', ttl => '1 hour', node => 'elsewhere')$$);
SELECT name, node_error(format('SELECT idem_create_session(%L, node => %L)', 'node new', name)) FROM unnest('{"",two words,@,größe,123456789012345678901234567890123}'::text[]) name;
SELECT name, node_message(format('SELECT idem_alter_session(%L, node => %L)', 'node free', name)) FROM unnest('{"",two words,@,größe,123456789012345678901234567890123}'::text[]) name;
SELECT node_message($$SELECT idem_alter_session('node free', node => E'a\nb')$$), node_message($$SELECT idem_alter_session('node free', node => E'a\tb')$$);
-- dropped and made again too
SELECT idem_drop_session('node there');
SELECT node_message($$SELECT idem_begin('node there', 'k')$$);
SELECT idem_create_session('node there', ttl => '1 hour');
SELECT node_message($$SELECT idem_begin('node there', 'k')$$);
SELECT idem_drop_session('node there'), idem_create_session('node there', ttl => '1 hour', node => 'far');
SELECT node_message($$SELECT idem_begin('node there', 'k')$$);
SELECT idem_drop_session('node there'), idem_create_session('node there', ttl => '1 hour', node => '-');
SELECT regress_show(idem_lookup('node there', 'k'));
-- altered, it goes away and comes back
SELECT idem_alter_session('node there', node => 'elsewhere'), node_message($$SELECT idem_lookup('node there', 'k')$$);
SELECT idem_alter_session('node there', require_payload => true), node_message($$SELECT idem_lookup('node there', 'k')$$);
SELECT idem_alter_session('node there', require_payload => false, node => idem_node()), regress_show(idem_lookup('node there', 'k'));
SELECT idem_alter_session('node there', node => '-'), regress_show(idem_lookup('node there', 'k'));

-- what was begun here is completed here
BEGIN;
SELECT regress_show(idem_begin('node free', 'open')), regress_show(idem_begin('node free', 'half'));
SELECT idem_alter_session('node free', node => 'elsewhere');
SELECT node_message($$SELECT idem_begin('node free', 'new')$$);
SELECT idem_record('node free', 'open', '"here"') IS NOT NULL, idem_checkpoint('node free', 'half', 'p'), idem_release('node free', 'half');
COMMIT;
SELECT idem_alter_session('node free', node => '-');
SELECT regress_take('a', idem_begin('node free', 'leased', lease => '1 hour')), regress_take('b', idem_begin('node free', 'released', lease => '1 hour'));
SELECT idem_alter_session('node free', node => 'elsewhere');
SELECT node_message($$SELECT idem_begin('node free', 'leased')$$), node_message($$SELECT idem_lookup('node free', 'leased')$$);
SELECT idem_extend('node free', 'leased', regress_token('a'), '2 hours') > now() + interval '1 hour', idem_checkpoint('node free', 'leased', 'p', token => regress_token('a'));
SELECT idem_record('node free', 'leased', '"here"', token => regress_token('a')) IS NOT NULL, idem_record('node free', 'leased', '"here"', token => regress_token('a')) IS NOT NULL;
SELECT idem_release('node free', 'released', token => regress_token('b'));
SELECT node_message($$SELECT idem_record('node free', 'released', token => regress_token('b'))$$), node_message($$SELECT idem_record('node free', 'leased', token => -1)$$);
-- and what was recorded here is listed and mended here
SELECT request, status, response FROM idem_outcomes('node free') ORDER BY request;
SELECT count(*) FROM idempotence.outcomes WHERE session = 'node free';
SELECT node_message($$SELECT idem_outcomes('node free', prefix => 'x')$$), idem_redact('node free', 'leased', 'a test');
SELECT idem_explain('node free', 'open') #>> '{outcome,status}', idem_explain('node free', 'open') #>> '{begin_answers,sqlstate}';
RESET ROLE;
SELECT idem_forget('node free', 'leased', 'a test'), node_message($$SELECT idem_forget('node free', 'leased', 'a test')$$), idem_forget_prefix('node free', 'o', 'a test');
-- outcomes can be brought before the session is
SELECT imported FROM idem_import('node there', 'SELECT 1 AS key', 'a test');
SELECT idem_alter_session('node there', node => 'elsewhere');
SELECT imported, present FROM idem_import('node there', 'SELECT g AS key, to_jsonb(g) AS response FROM generate_series(1, 3) g', 'a test');
SELECT node_message($$SELECT idem_begin('node there', '3')$$);
-- and be taken away once it is bound elsewhere, and not before
SELECT key, status, response FROM idem_export('node there', 'a test') ORDER BY key;
SELECT node_error($$SELECT idem_export('node here', 'a test')$$);
BEGIN;
SELECT idem_alter_session('node here', node => 'elsewhere');
SELECT node_error($$SELECT idem_export('node here', 'a test')$$);
ROLLBACK;
SELECT idem_alter_session('node there', node => idem_node()), regress_show(idem_begin('node there', '3'));

SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'node %';
DELETE FROM idempotence.audit;
DELETE FROM regress_lease_token;
SELECT regress_close();
DROP FUNCTION node_error, node_message, node_calls, node_sqlerrm;
SELECT idem_revoke('regress_node'), idem_revoke('regress_node_other');
-- its sessions are forgotten at some time, and until then they have an owner
DELETE FROM idempotence.session WHERE owner = 'regress_node'::regrole;
DROP ROLE regress_node, regress_node_other;
