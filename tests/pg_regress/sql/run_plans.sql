-- Goal: idem_run keeps the plans of commands, and nobody can tell by the answers.
-- Method: commands are executed again and again while what they depend on changes: time, settings, tables, the
-- search_path, roles and their policies. Which plans are kept, pg_backend_memory_contexts tells.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('run plans');
CREATE SCHEMA run_plans;
CREATE SEQUENCE run_plans.request;
-- Executes a command as a new request.
CREATE FUNCTION run_plans.run(command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise') RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE t idem_ticket := idem_run('run plans', 'k' || nextval('run_plans.request'), command, args, on_error);
BEGIN
  RETURN t.response;
END $$;
-- How many plans of a command are kept.
CREATE FUNCTION run_plans.kept(command text) RETURNS bigint LANGUAGE sql
RETURN (SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' AND ident = command);

-- one plan for each text; none for what has no plan
CREATE TABLE run_plans.t (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text);
CREATE TYPE run_plans.colour AS ENUM ('red', 'blue');
CREATE SEQUENCE run_plans.serial;
CREATE TABLE run_plans.command (place serial, command text);
INSERT INTO run_plans.command (command) VALUES
  ('SELECT $1'),
  ('INSERT INTO run_plans.t (what) VALUES ($1->>''what'') RETURNING what'),
  ('UPDATE run_plans.t SET what = upper(what) WHERE id = 1 RETURNING what'),
  ('DELETE FROM run_plans.t WHERE id = 1 RETURNING id'),
  ('MERGE INTO run_plans.t USING (VALUES (''a'')) v (w) ON what = w WHEN NOT MATCHED THEN INSERT (what) VALUES (w)'),
  ('WITH made AS (INSERT INTO run_plans.t (what) VALUES (''b'') RETURNING what) SELECT what FROM made'),
  ('SELECT ''red''::run_plans.colour'),
  ('SELECT ''{red,blue}''::run_plans.colour[]'),
  ('SELECT nextval(''run_plans.serial'') > 0'),
  ('SELECT ''{1,2}''::integer[]'),
  ('SELECT ''{"a": 1}''::jsonb'),
  ('SELECT 1.5::numeric + ''2'''),
  ('SELECT now() > ''epoch'''),
  ('SELECT 1 FROM (SELECT ''2020-01-01''::date AS d) x WHERE EXISTS (SELECT FROM run_plans.t WHERE d = ''today'')'),
  ('SELECT ''1 day''::interval IS NULL'),
  ('SELECT ''{now}''::timestamptz[] IS NULL'),
  ('SELECT ''[now,)''::tstzrange IS NULL'),
  ('SELECT NULL::date'),
  ('CREATE TABLE IF NOT EXISTS run_plans.t ()'),
  ('DO $do$ BEGIN END $do$'),
  ('SHOW datestyle'),
  ('SELECT 1; SELECT 2');
SET client_min_messages = warning;
SELECT f.command, count(run_plans.run(f.command, '{"what": "c"}', 'record')) FROM run_plans.command f, generate_series(1, 8) GROUP BY place, command ORDER BY place;
RESET client_min_messages;
SELECT run_plans.kept(command), command FROM run_plans.command ORDER BY place;

-- time: a literal that means another moment
CREATE TABLE run_plans.moment (place serial, at timestamptz);
SELECT run_plans.run('INSERT INTO run_plans.moment (at) VALUES (''now'')');
SELECT run_plans.run('INSERT INTO run_plans.moment (at) VALUES (''now'')');
SELECT count(DISTINCT at) FROM run_plans.moment;
-- settings: how a literal is read, and how a text is
SELECT run_plans.run('SELECT ''01/02/2020''::date'), run_plans.kept('SELECT ''01/02/2020''::date');
SET datestyle = 'ISO, DMY';
SELECT run_plans.run('SELECT ''01/02/2020''::date');
RESET datestyle;
SELECT run_plans.run($$SELECT 'a\\b'$$);
-- PostgreSQL 19 has standard string literals only
DO $$ BEGIN
  IF current_setting('server_version_num')::integer < 190000 THEN
    PERFORM set_config('standard_conforming_strings', 'off', false), set_config('escape_string_warning', 'off', false);
  END IF;
END $$;
SELECT run_plans.run($$SELECT 'a\\b'$$) = CASE current_setting('standard_conforming_strings') WHEN 'off' THEN $$"a\\b"$$ ELSE $$"a\\\\b"$$ END::jsonb;
DO $$ BEGIN
  IF current_setting('server_version_num')::integer < 190000 THEN
    PERFORM set_config('standard_conforming_strings', 'on', false), set_config('escape_string_warning', 'on', false);
  END IF;
END $$;
SELECT run_plans.run('SELECT ($1->>''a'') = NULL', '{"b": 1}');
SET transform_null_equals = on;
SELECT run_plans.run('SELECT ($1->>''a'') = NULL', '{"b": 1}');
RESET transform_null_equals;
SELECT run_plans.run('SELECT ''{NULL}''::text[]');
SET array_nulls = off;
SELECT run_plans.run('SELECT ''{NULL}''::text[]');
RESET array_nulls;

-- tables: other columns, another type, another table of the same name, none
CREATE TABLE run_plans.shape (a integer, b text);
INSERT INTO run_plans.shape VALUES (1, '2020-01-01');
SELECT run_plans.run('SELECT * FROM run_plans.shape'), run_plans.run('SELECT b FROM run_plans.shape');
ALTER TABLE run_plans.shape ALTER a TYPE text USING 'text ' || a;
SELECT run_plans.run('SELECT * FROM run_plans.shape');
ALTER TABLE run_plans.shape DROP a;
SELECT run_plans.run('SELECT * FROM run_plans.shape');
DROP TABLE run_plans.shape;
SELECT regress_message($$SELECT run_plans.run('SELECT * FROM run_plans.shape')$$);
CREATE TABLE run_plans.shape (c boolean);
INSERT INTO run_plans.shape VALUES (true);
SELECT run_plans.run('SELECT * FROM run_plans.shape');
SELECT run_plans.kept('SELECT * FROM run_plans.shape');
-- a column that becomes a time: the plan, analysed anew, has a literal now that must not be kept
CREATE TABLE run_plans.became (at text);
SELECT run_plans.run('INSERT INTO run_plans.became VALUES (''now'')'), run_plans.run('INSERT INTO run_plans.became VALUES (''now'')');
SELECT run_plans.kept('INSERT INTO run_plans.became VALUES (''now'')');
ALTER TABLE run_plans.became ALTER at TYPE timestamptz USING 'epoch';
SELECT run_plans.run('INSERT INTO run_plans.became VALUES (''now'')');
SELECT run_plans.run('INSERT INTO run_plans.became VALUES (''now'')');
SELECT run_plans.run('INSERT INTO run_plans.became VALUES (''now'')');
SELECT count(DISTINCT at), run_plans.kept('INSERT INTO run_plans.became VALUES (''now'')') FROM run_plans.became WHERE at > 'epoch';
-- the same where the new analysis gets no plan at first
CREATE TABLE run_plans.failed (at text);
INSERT INTO run_plans.failed VALUES (NULL);
CREATE FUNCTION run_plans.planned() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF current_setting('run_plans.fails', true) = 'on' THEN
    RAISE EXCEPTION 'it cannot be planned';
  END IF;
  RETURN true;
END $$;
SELECT run_plans.run('UPDATE run_plans.failed SET at = ''now'' WHERE run_plans.planned()') FROM generate_series(1, 8);
ALTER TABLE run_plans.failed ALTER at TYPE timestamptz USING 'epoch';
SET run_plans.fails = on;
SELECT regress_message($$SELECT run_plans.run('UPDATE run_plans.failed SET at = ''now'' WHERE run_plans.planned()')$$);
SET run_plans.fails = off;
BEGIN;
SELECT run_plans.run('UPDATE run_plans.failed SET at = ''now'' WHERE run_plans.planned()');
SELECT at = now() FROM run_plans.failed;
COMMIT;

-- the search_path
CREATE SCHEMA run_plans_1;
CREATE SCHEMA run_plans_2;
CREATE TABLE run_plans_1.mine AS SELECT 'one' AS whose;
CREATE TABLE run_plans_2.mine AS SELECT 2 AS whose;
SET search_path = run_plans_1, public;
SELECT run_plans.run('SELECT whose FROM mine');
SET search_path = run_plans_2, public;
SELECT run_plans.run('SELECT whose FROM mine');
SET search_path = run_plans_1, public;
SELECT run_plans.run('SELECT whose FROM mine');
RESET search_path;
SELECT regress_message($$SELECT run_plans.run('SELECT whose FROM mine')$$);

-- DISCARD between calls, and within a command
DISCARD PLANS;
SELECT run_plans.run('SELECT what FROM run_plans.t WHERE id = 2');
DISCARD ALL;
SELECT run_plans.run('SELECT what FROM run_plans.t WHERE id = 2'), run_plans.kept('SELECT what FROM run_plans.t WHERE id = 2');
SELECT run_plans.run('DISCARD PLANS'), run_plans.run('DISCARD PLANS');

-- roles: rights and policies are those of the caller, whoever has executed the same text before
CREATE ROLE run_plans_one;
CREATE ROLE run_plans_two;
SELECT idem_grant('run_plans_one'), idem_grant('run_plans_two');
GRANT USAGE ON SCHEMA run_plans TO run_plans_one, run_plans_two;
GRANT USAGE ON SEQUENCE run_plans.request TO run_plans_one, run_plans_two;
SET ROLE run_plans_one;
SELECT idem_create_session('run plans one');
RESET ROLE;
SET ROLE run_plans_two;
SELECT idem_create_session('run plans two');
RESET ROLE;
CREATE TABLE run_plans.owned (owner name, what text);
INSERT INTO run_plans.owned VALUES ('run_plans_one', 'of one'), ('run_plans_two', 'of two');
GRANT SELECT ON run_plans.owned TO run_plans_one, run_plans_two;
ALTER TABLE run_plans.owned ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON run_plans.owned USING (owner = current_user);
CREATE FUNCTION run_plans.inlined() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 7';
REVOKE EXECUTE ON FUNCTION run_plans.inlined FROM PUBLIC;
GRANT EXECUTE ON FUNCTION run_plans.inlined TO run_plans_one;
SELECT run_plans.run('SELECT jsonb_agg(what ORDER BY what) FROM run_plans.owned'), run_plans.run('SELECT run_plans.inlined()');
SET ROLE run_plans_one;
SELECT (idem_run('run plans one', '1', 'SELECT jsonb_agg(what ORDER BY what) FROM run_plans.owned')).response;
SELECT (idem_run('run plans one', '2', 'SELECT run_plans.inlined()')).response;
SELECT regress_message($$SELECT idem_run('run plans one', '3', 'SELECT what FROM run_plans.t WHERE id = 2')$$);
RESET ROLE;
SET ROLE run_plans_two;
SELECT (idem_run('run plans two', '1', 'SELECT jsonb_agg(what ORDER BY what) FROM run_plans.owned')).response;
SELECT regress_message($$SELECT idem_run('run plans two', '2', 'SELECT run_plans.inlined()')$$);
RESET ROLE;
-- rights that come and go
GRANT EXECUTE ON FUNCTION run_plans.inlined TO run_plans_two;
SET ROLE run_plans_two;
SELECT (idem_run('run plans two', '3', 'SELECT run_plans.inlined()')).response;
RESET ROLE;
REVOKE SELECT ON run_plans.owned FROM run_plans_two;
SET ROLE run_plans_two;
SELECT regress_message($$SELECT idem_run('run plans two', '4', 'SELECT jsonb_agg(what ORDER BY what) FROM run_plans.owned')$$);
RESET ROLE;
SET row_security = off;
SET ROLE run_plans_one;
SELECT regress_message($$SELECT idem_run('run plans one', '4', 'SELECT jsonb_agg(what ORDER BY what) FROM run_plans.owned')$$);
RESET ROLE;
RESET row_security;

-- a command within itself, and one whose table changes while it runs
CREATE FUNCTION run_plans.down(n jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF n::integer = 0 THEN
    DISCARD PLANS;
    RETURN '["bottom"]';
  END IF;
  RETURN n || run_plans.run('SELECT run_plans.down($1)', (n::integer - 1)::text::jsonb);
END $$;
SELECT run_plans.run('SELECT run_plans.down($1)', '5'), run_plans.run('SELECT run_plans.down($1)', '2');
-- more commands than are kept, within one that is executing, which goes on
CREATE FUNCTION run_plans.many(n integer, from_ integer) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT count(run_plans.run('SELECT ' || (from_ + i))) FROM generate_series(1, n) i);
END $$;
SELECT run_plans.run('SELECT run_plans.many(200, 1000) || what FROM run_plans.t WHERE id = 2');
SELECT count(*), min(ident), max(ident) FROM pg_backend_memory_contexts
WHERE name = 'CachedPlanSource' AND ident ~ '^SELECT (1\d\d\d|run_plans.many\(200, 1000\).*)$';
-- one that fails is kept, and fails and works again
SELECT run_plans.run('SELECT 10 / ($1->>0)::integer', '[5]');
SELECT regress_message($$SELECT run_plans.run('SELECT 10 / ($1->>0)::integer', '[0]')$$);
SELECT run_plans.run('SELECT 10 / ($1->>0)::integer', '[0]', 'record')->>'sqlstate';
SELECT run_plans.run('SELECT 10 / ($1->>0)::integer', '[2]'), run_plans.kept('SELECT 10 / ($1->>0)::integer');
-- a text that is too long to be kept
SELECT run_plans.run('SELECT length(' || quote_literal(repeat('x', 10000)) || ')'), (SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' AND ident LIKE 'SELECT length(%');

-- a function whose body the planner puts in the place of the call: its literals mean what they mean now, also under settings
-- that have a plan made once
CREATE FUNCTION run_plans.moment() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT 'now'::timestamptz $$;
CREATE TABLE run_plans.moments (at text);
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
SELECT count(DISTINCT at), count(*) FROM run_plans.moments;
SET plan_cache_mode = force_generic_plan;
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
INSERT INTO run_plans.moments SELECT run_plans.run('SELECT run_plans.moment()');
RESET plan_cache_mode;
SELECT count(DISTINCT at), count(*) FROM run_plans.moments;
-- a label that another value of the type has by now
CREATE TYPE run_plans.state AS ENUM ('open');
CREATE TABLE run_plans.door (state run_plans.state);
SELECT run_plans.run('INSERT INTO run_plans.door VALUES (''open'')') FROM generate_series(1, 2);
ALTER TYPE run_plans.state RENAME VALUE 'open' TO 'ajar';
ALTER TYPE run_plans.state ADD VALUE 'open';
SELECT run_plans.run('INSERT INTO run_plans.door VALUES (''open'')');
SELECT state, count(*) FROM run_plans.door GROUP BY 1 ORDER BY 1;

SET client_min_messages = warning;
DROP SCHEMA run_plans, run_plans_1, run_plans_2 CASCADE;
SELECT idem_drop_session('run plans'), idem_drop_session('run plans one'), idem_drop_session('run plans two');
SELECT idem_revoke('run_plans_one'), idem_revoke('run_plans_two');
DROP ROLE run_plans_one, run_plans_two;
RESET client_min_messages;
