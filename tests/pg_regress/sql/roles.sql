-- Goal: the tables in docs/reference.md that say who may call and read what are what happens, for each function and each
-- view, those of the future too.
-- Method: the lists come from the catalog. Each function is called by each kind of role, each with the session that
-- it is for, and the answer goes into a table. Short tables have those in a row that are answered alike, without what is
-- internal. scripts/roles.sh copies the short ones into the reference, and make lint compares them.
\pset format unaligned
\pset tuples_only on
-- no call waits
SET idempotence.wait = '0';
CREATE ROLE regress_roles_owner;
CREATE ROLE regress_roles_borrower;
CREATE ROLE regress_roles_other;
CREATE ROLE regress_roles_monitor;
CREATE ROLE regress_roles_admin;
CREATE ROLE regress_roles_nobody;
SELECT idem_grant(('regress_roles_' || r)::regrole) FROM unnest('{owner,borrower,other}'::text[]) r;
SELECT idem_grant('regress_roles_monitor', 'monitor'), idem_grant('regress_roles_admin', 'admin');
SET ROLE regress_roles_owner;
SELECT idem_create_session('roles standing', usable_by => 'regress_roles_borrower'), idem_create_session('roles inbox', inbox => true, usable_by => 'regress_roles_borrower');
SELECT regress_registered('client', idem_register());
SELECT FROM idem_run('roles standing', '1', 'SELECT 1');
SELECT FROM idem_run(regress_id('client'), '1', 'SELECT 1');
SELECT FROM idem_begin('roles standing', 'leased', lease => '1 hour');
SELECT FROM idem_begin(regress_id('client'), '2', lease => '1 hour');
RESET ROLE;
CREATE TABLE regress_roles (role text, place int, heading text);
INSERT INTO regress_roles VALUES ('owner', 1, 'owner'), ('borrower', 2, 'borrower'), ('other', 3, 'another role'), ('monitor', 4, '`monitor`'), ('admin', 5, '`admin`'), ('nobody', 6, 'no level');

-- The call of a function with one session: its arguments without a default, by their names and types.
CREATE FUNCTION regress_roles_call(function oid, session text) RETURNS text
LANGUAGE sql
AS $$
  SELECT format('%s %s.%s(%s)', CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.pronamespace::regnamespace, quote_ident(p.proname),
           coalesce(string_agg(format('%I => %s', a.name,
             CASE WHEN a.name = 'session' AND a.type = 'text'::regtype THEN quote_literal($2)
                  WHEN a.name = 'request' AND a.type = 'text'::regtype THEN quote_literal(CASE WHEN $2 LIKE 'roles%' THEN 'a request' ELSE '7' END)
                  WHEN a.name = 'request' AND a.type = 'bigint'::regtype THEN '7'
                  WHEN a.name = 'role' THEN quote_literal('regress_roles_nobody')
                  WHEN a.name IN ('command', 'query') THEN quote_literal('SELECT 1')
                  WHEN a.name = 'what' THEN quote_literal('claims')
                  WHEN a.name = 'persistence' THEN quote_literal('logged')
                  WHEN a.name = 'answer' THEN 'ROW(1)'
                  WHEN a.name = 'requests' THEN quote_literal(ARRAY['a request']) || '::text[]'
                  WHEN a.type = 'uuid'::regtype THEN quote_literal('01890a5d-ac96-774b-bcce-b302099a8057') || '::uuid'
                  WHEN a.type IN ('bigint'::regtype, 'integer'::regtype) THEN '1'
                  WHEN a.type = 'boolean'::regtype THEN 'false'
                  WHEN a.type = 'interval'::regtype THEN quote_literal('1 hour')
                  WHEN a.type = 'jsonb'::regtype THEN quote_literal('{"a": 1}')
                  WHEN a.type = 'timestamptz'::regtype THEN 'now()'
                  WHEN a.type IN ('oid[]'::regtype, 'text[]'::regtype) THEN quote_literal('{}')
                  WHEN a.type = 'regclass'::regtype THEN quote_literal('pg_class')
                  ELSE quote_literal('a word') END), ', ' ORDER BY a.place) FILTER (WHERE a.name IS NOT NULL), ''))
  FROM pg_proc p LEFT JOIN unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY a (name, type, place)
                   ON a.place <= p.pronargs - p.pronargdefaults
  WHERE p.oid = $1 GROUP BY p.oid
$$;
-- What a role is answered: may it call the function, and may it use the session? Any other error comes after both. All
-- that the call does is undone.
CREATE FUNCTION regress_roles_answer(role text, call text) RETURNS text
LANGUAGE sql
AS $$
  SELECT CASE WHEN answer ~ '^42501: permission denied for (function|procedure|view|table|schema)' THEN '–'
              WHEN answer ~ '^42501: permission denied for session' THEN 'no'
              -- Another right is missing, or the call was made wrongly.
              WHEN answer ~ '^(42501|42883|42601|22P02|22007)' THEN answer ELSE 'yes' END
  FROM regress_message(format('SET LOCAL ROLE regress_roles_%s; %s', role, call)) answer
$$;
-- The sessions that a function is for: those of which the owner is not told that they are of another kind.
CREATE FUNCTION regress_roles_sessions(function oid) RETURNS SETOF text
LANGUAGE sql
AS $$
  SELECT s FROM unnest(ARRAY['roles standing', 'roles inbox', regress_id('client')]) WITH ORDINALITY k (s, place)
  WHERE (SELECT 'session' = ANY (proargnames[:pronargs]) FROM pg_proc WHERE oid = $1)
    AND regress_message('SET LOCAL ROLE regress_roles_owner; ' || regress_roles_call($1, s)) !~ '^22023: session .* is (not )?(a client session|an inbox)$'
  ORDER BY place
$$;
SET client_min_messages = warning;
CREATE TABLE regress_roles_answers AS
SELECT l.function, p.proname, p.pronamespace = 'idempotence'::regnamespace AS is_internal, coalesce(l.level, 'the extension''s owner') AS level,
       coalesce('session' = ANY (p.proargnames[:p.pronargs]), false) AS has_session, s.session, r.role, r.place,
       regress_roles_answer(r.role, regress_roles_call(l.function, s.session)) AS answer
FROM idempotence.function_level l JOIN pg_proc p ON p.oid = l.function CROSS JOIN regress_roles r
CROSS JOIN LATERAL (SELECT session FROM regress_roles_sessions(l.function) session
                    UNION ALL SELECT 'no session' WHERE NOT coalesce('session' = ANY (p.proargnames[:p.pronargs]), false)) s
-- What only the planner can call is left out.
WHERE p.prorettype <> 'internal'::regtype;
-- each function was called by each role, and those that take a session with one at least
SELECT count(DISTINCT (function, role)) = (SELECT count(*) - 1 FROM idempotence.function_level) * 6 FROM regress_roles_answers;
-- whether a role may call a function is what its level says; whether it may use the session follows the level
SELECT function::regprocedure, role, answer FROM regress_roles_answers a
WHERE (answer = '–') IS DISTINCT FROM CASE level WHEN 'all' THEN role = 'nobody' WHEN 'user' THEN role IN ('monitor', 'nobody') WHEN 'monitor' THEN role NOT IN ('monitor', 'admin')
                                           WHEN 'admin' THEN role <> 'admin' ELSE true END;
SELECT function::regprocedure, role, answer FROM regress_roles_answers WHERE answer NOT IN ('yes', 'no', '–') OR (answer = 'no' AND NOT has_session);
-- the overloads of a function answer alike; a client session is its owner's alone
SELECT proname, session, role FROM regress_roles_answers WHERE session <> 'no session' GROUP BY proname, session, role HAVING count(DISTINCT answer) > 1;
SELECT proname, session, role, answer FROM regress_roles_answers b WHERE session = regress_id('client') AND role = 'borrower'
  AND answer <> (SELECT min(answer) FROM regress_roles_answers o WHERE (o.function, o.session, o.role) = (b.function, b.session, 'other'));

-- Each function. Of one that is for several kinds of session, the first one tells: only a standing
-- session can be lent.
SELECT '| function | level | ' || string_agg(heading, ' | ' ORDER BY place) || ' |' FROM regress_roles;
SELECT '|---|---|' || repeat('---|', 6);
SELECT format('| `%s%s` | %s | %s |', CASE WHEN is_internal THEN 'idempotence.' END, proname, CASE WHEN level IN ('user', 'monitor', 'admin') THEN '`' || level || '`' ELSE level END,
              string_agg(answer, ' | ' ORDER BY place))
FROM (SELECT DISTINCT ON (proname, place) proname, is_internal, level, place, answer FROM regress_roles_answers
      ORDER BY proname, place, array_position(ARRAY['roles standing', 'roles inbox', regress_id('client')], session)) a
GROUP BY proname, is_internal, level
ORDER BY is_internal, array_position('{all,user,monitor,admin}', level), bool_or(answer = 'no') DESC, proname COLLATE "C";

CREATE TABLE regress_roles_relations AS
SELECT l.relation::regclass, coalesce(l.level, 'the extension''s owner') AS level, r.role, r.place, r.heading, regress_roles_answer(r.role, 'SELECT FROM ' || l.relation::regclass) AS answer
FROM idempotence.relation_level l CROSS JOIN regress_roles r WHERE r.role <> 'borrower';
SELECT relation, role, answer FROM regress_roles_relations
WHERE (answer = '–') IS DISTINCT FROM CASE level WHEN 'all' THEN role = 'nobody' WHEN 'monitor' THEN role NOT IN ('monitor', 'admin') WHEN 'admin' THEN role <> 'admin' ELSE true END;
SELECT count(*) > 15 FROM (SELECT relation FROM regress_roles_relations WHERE level = 'the extension''s owner' GROUP BY relation HAVING bool_and(answer = '–')) t;
SELECT '| view or table | level | ' || string_agg(heading, ' | ' ORDER BY place) || ' |' FROM regress_roles WHERE role <> 'borrower';
SELECT '|---|---|' || repeat('---|', 5);
SELECT format('| `%s` | %s | %s |', relation, CASE WHEN level = 'all' THEN level ELSE '`' || level || '`' END,
              string_agg(CASE WHEN answer = '–' THEN answer WHEN level = 'all' AND role IN ('owner', 'other') THEN 'its rows' ELSE 'all rows' END, ' | ' ORDER BY place))
FROM regress_roles_relations WHERE level <> 'the extension''s owner'
GROUP BY relation, level ORDER BY array_position('{all,monitor,admin}', level), relation::text COLLATE "C";
-- Short tables, for the reference.
SELECT '| functions | level | ' || string_agg(heading, ' | ' ORDER BY place) || ' |' FROM regress_roles WHERE role <> 'nobody';
SELECT '|---|---|' || repeat('---|', 5);
SELECT format('| %s | %s | %s |', string_agg(format('`%s`', proname), ', ' ORDER BY proname COLLATE "C"), CASE WHEN level IN ('user', 'monitor', 'admin') THEN '`' || level || '`' ELSE level END, answers)
FROM (SELECT proname, level, string_agg(answer, ' | ' ORDER BY place) AS answers
      FROM (SELECT DISTINCT ON (proname, place) proname, level, place, answer FROM regress_roles_answers WHERE NOT is_internal AND role <> 'nobody'
            ORDER BY proname, place, array_position(ARRAY['roles standing', 'roles inbox', regress_id('client')], session)) a
      GROUP BY proname, level) f
GROUP BY level, answers ORDER BY array_position('{all,user,monitor,admin}', level), answers COLLATE "C" DESC;
SELECT '| views and tables | level | ' || string_agg(heading, ' | ' ORDER BY place) || ' |' FROM regress_roles WHERE role NOT IN ('borrower', 'nobody');
SELECT '|---|---|' || repeat('---|', 4);
SELECT format('| %s | %s | %s |', string_agg(format('`%s`', relation), ', ' ORDER BY relation::text COLLATE "C"), CASE WHEN level = 'all' THEN level ELSE '`' || level || '`' END, answers)
FROM (SELECT relation, level, string_agg(CASE WHEN answer = '–' THEN answer WHEN level = 'all' AND role IN ('owner', 'other') THEN 'its rows' ELSE 'all rows' END, ' | ' ORDER BY place) AS answers
      FROM regress_roles_relations WHERE level <> 'the extension''s owner' AND role <> 'nobody' AND relation::text NOT LIKE '%.shown\_%' GROUP BY relation, level) f
GROUP BY level, answers ORDER BY array_position('{all,monitor,admin}', level);
-- nobody may write any of them, or has a right to a column of the others
SELECT l.relation::regclass, r.role FROM idempotence.relation_level l CROSS JOIN regress_roles r
WHERE has_table_privilege('regress_roles_' || r.role, l.relation, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
   OR has_any_column_privilege('regress_roles_' || r.role, l.relation, 'INSERT, UPDATE, REFERENCES')
   OR (l.level IS NULL AND has_any_column_privilege('regress_roles_' || r.role, l.relation, 'SELECT'));

SELECT idem_force_release('roles standing', 'leased', 'the test is over', live => true), idem_force_release(regress_id('client'), 2, 'the test is over', live => true);
SELECT idem_force_release('roles standing', 'leased', 'the test is over'), idem_force_release(regress_id('client'), 2, 'the test is over');
SELECT idem_drop_session('roles standing'), idem_drop_session('roles inbox'), regress_close();
DROP FUNCTION regress_roles_call, regress_roles_answer, regress_roles_sessions;
SELECT idem_revoke(('regress_roles_' || role)::regrole) FROM regress_roles;
DROP TABLE regress_roles, regress_roles_answers, regress_roles_relations;
DROP ROLE regress_roles_owner, regress_roles_borrower, regress_roles_other, regress_roles_monitor, regress_roles_admin, regress_roles_nobody;
