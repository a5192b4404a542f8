-- Goal: an error of a command passes idem_run as it passes PL/pgSQL's EXECUTE: each of its fields, from wherever it was
-- raised, whether it is raised at once or found not to be final.
-- Method: each command fails three times, by EXECUTE, with on_error => 'raise' and with 'record'. The fields are compared
-- one by one; CONTEXT without the lines of the functions here. After its first failure PL/pgSQL gives an expression a line
-- of its own, so each command fails once before. Then the lines that are shown, and commands of all kinds
-- that PL/pgSQL refuses too.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('run errors');
CREATE SCHEMA run_errors;
CREATE TABLE run_errors.parent (id integer CONSTRAINT parent_is_named PRIMARY KEY);
CREATE DOMAIN run_errors.small AS integer CONSTRAINT small_is_small CHECK (VALUE < 10);
CREATE TABLE run_errors.child (
  id    integer CONSTRAINT child_needs_parent REFERENCES run_errors.parent,
  late  integer CONSTRAINT late_needs_parent REFERENCES run_errors.parent DEFERRABLE INITIALLY DEFERRED,
  size  run_errors.small,
  told  text NOT NULL DEFAULT 'x' CONSTRAINT told_is_short CHECK (length(told) < 5)
);
INSERT INTO run_errors.parent VALUES (1);
CREATE VIEW run_errors.only_small AS SELECT id FROM run_errors.parent WHERE id < 5 WITH CHECK OPTION;

CREATE FUNCTION run_errors.with_all_fields(state text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a message of % %%', state USING ERRCODE = state, DETAIL = 'a detail', HINT = 'a hint', COLUMN = 'a column',
    CONSTRAINT = 'a constraint', DATATYPE = 'a type', TABLE = 'a table', SCHEMA = 'a schema';
END $$;
CREATE FUNCTION run_errors.nested(state text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE n integer;
BEGIN
  BEGIN
    INSERT INTO run_errors.parent VALUES (100);
    n := run_errors.with_all_fields(state);
  EXCEPTION WHEN division_by_zero THEN
    RETURN 0;
  END;
  RETURN n;
END $$;
CREATE FUNCTION run_errors.in_sql(n integer) RETURNS integer LANGUAGE sql VOLATILE AS $$ SELECT 1; SELECT 1 / n $$;
CREATE FUNCTION run_errors.in_dynamic(command text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE command; END $$;
CREATE FUNCTION run_errors.rethrown() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RETURN run_errors.with_all_fields('AB123');
EXCEPTION WHEN OTHERS THEN
  RAISE;
END $$;
CREATE FUNCTION run_errors.by_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.id = 7 THEN
    PERFORM run_errors.with_all_fields('TRI99');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refuses AFTER INSERT ON run_errors.parent FOR EACH ROW EXECUTE FUNCTION run_errors.by_trigger();
-- a cast to json of a user's own, which to_jsonb calls
CREATE TYPE run_errors.odd AS ENUM ('good', 'bad');
CREATE FUNCTION run_errors.odd_as_json(run_errors.odd) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
  IF $1 = 'bad' THEN
    PERFORM run_errors.with_all_fields('CA5T1');
  END IF;
  RETURN json_build_object('odd', $1::text, 'parents', (SELECT count(*) FROM run_errors.parent));
END $$;
CREATE FUNCTION run_errors.odd_as_json_stable(run_errors.odd) RETURNS json LANGUAGE sql STABLE AS $$ SELECT run_errors.odd_as_json($1) $$;
CREATE CAST (run_errors.odd AS json) WITH FUNCTION run_errors.odd_as_json(run_errors.odd);

-- The fields of the error that a call fails with.
CREATE TYPE run_errors.fields AS (state text, message text, detail text, hint text, context text, names text);
CREATE FUNCTION run_errors.of_call(command text, args jsonb, on_error text) RETURNS run_errors.fields LANGUAGE plpgsql AS $$
DECLARE
  f run_errors.fields;
  in_schema text; of_table text; of_column text; of_constraint text; of_type text;
BEGIN
  BEGIN
    IF on_error IS NULL THEN
      EXECUTE command USING args;
    ELSE
      PERFORM idem_run('run errors', md5(command || on_error), command, args, on_error);
    END IF;
    f.state := 'none';
  EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
    GET STACKED DIAGNOSTICS f.state = RETURNED_SQLSTATE, f.message = MESSAGE_TEXT, f.detail = PG_EXCEPTION_DETAIL, f.hint = PG_EXCEPTION_HINT,
      f.context = PG_EXCEPTION_CONTEXT, in_schema = SCHEMA_NAME, of_table = TABLE_NAME,
      of_column = COLUMN_NAME, of_constraint = CONSTRAINT_NAME, of_type = PG_DATATYPE_NAME;
    f.names := concat_ws(',', in_schema, of_table, of_column, of_constraint, of_type);
    f.context := regexp_replace(f.context, '\n?(SQL statement "SELECT idem_run[^"]*"\n)?PL/pgSQL function run_errors\.of_call.*$', '');
  END;
  RETURN f;
END $$;
CREATE FUNCTION run_errors.compared(command text, args jsonb DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  before  run_errors.fields := run_errors.of_call(command, args, NULL);
  by_hand run_errors.fields := run_errors.of_call(command, args, NULL);
  raised  run_errors.fields := run_errors.of_call(command, args, 'raise');
  taken   run_errors.fields := run_errors.of_call(command, args, 'record');
BEGIN
  IF by_hand.state = 'none' OR by_hand IS DISTINCT FROM raised THEN
    RETURN format('DIFFERS: %s, raised %s', by_hand, raised);
  ELSIF taken.state <> 'none' AND by_hand IS DISTINCT FROM taken THEN
    RETURN format('DIFFERS: %s, with record %s', by_hand, taken);
  END IF;
  RETURN format('%s %s | %s | %s', CASE taken.state WHEN 'none' THEN 'recorded' ELSE 'raised' END, by_hand.state, by_hand.names, by_hand.message);
END $$;

CREATE TABLE run_errors.command (place serial, command text, args jsonb);
INSERT INTO run_errors.command (command, args) VALUES
  ('SELECT run_errors.with_all_fields(''AB123'')', NULL),
  ('SELECT run_errors.with_all_fields(''U0001'')', NULL),
  ('SELECT run_errors.with_all_fields(''ABCDE'')', NULL),
  ('SELECT run_errors.with_all_fields(''42501'')', NULL),
  ('SELECT run_errors.with_all_fields(''40001'')', NULL),
  ('SELECT run_errors.with_all_fields(''P0004'')', NULL),
  ('SELECT run_errors.with_all_fields(''57014'')', NULL),
  ('SELECT run_errors.with_all_fields(''XX001'')', NULL),
  ('SELECT run_errors.with_all_fields(''ID099'')', NULL),
  ('SELECT run_errors.nested(''AB123'')', NULL),
  ('SELECT run_errors.nested(''53999'')', NULL),
  ('SELECT run_errors.rethrown()', NULL),
  ('SELECT run_errors.in_sql(($1->>''n'')::integer)', '{"n": 0}'),
  ('SELECT 1 / ($1->>''n'')::integer', '{"n": 0}'),
  ('SELECT ($1->>''n'')::integer', '{"n": "one"}'),
  ('INSERT INTO run_errors.parent VALUES (1)', NULL),
  ('INSERT INTO run_errors.parent VALUES (7)', NULL),
  ('INSERT INTO run_errors.parent VALUES (NULL)', NULL),
  ('INSERT INTO run_errors.child (id) VALUES (2)', NULL),
  ('INSERT INTO run_errors.child (late) VALUES (2); SET CONSTRAINTS ALL IMMEDIATE', NULL),
  ('INSERT INTO run_errors.child (told) VALUES (''too long'')', NULL),
  ('INSERT INTO run_errors.child (size) VALUES (11)', NULL),
  ('SELECT 11::run_errors.small', NULL),
  ('INSERT INTO run_errors.only_small VALUES (6)', NULL),
  ('DO $do$ BEGIN PERFORM run_errors.with_all_fields(''DO123''); END $do$', NULL),
  ('DO $do$ BEGIN ASSERT false, ''no''; END $do$', NULL),
  ('SELECT run_errors.in_dynamic(''SELECT 1 / 0'')', NULL),
  ('SELECT run_errors.in_dynamic(''SELEC 1'')', NULL),
  ('SELEC 1', NULL),
  ('SELECT 1 FROM run_errors.nowhere', NULL),
  ('SELECT nothing FROM run_errors.parent', NULL),
  ('SELECT run_errors.nothing()', NULL),
  ('SELECT $2', NULL),
  ('INSERT INTO run_errors.parent VALUES (8); SELECT 1 / 0', NULL),
  ('VACUUM', NULL),
  ('CREATE TABLE run_errors.parent ()', NULL),
  ('EXECUTE run_errors_plan', NULL),
  ('SELECT ''bad''::run_errors.odd', NULL);
-- EXECUTE converts nothing to json; so the last one cannot be compared, only looked at.
SELECT run_errors.compared(command, args) FROM run_errors.command WHERE command NOT LIKE '%odd' ORDER BY place;
SELECT state, message, detail, hint, names, context FROM run_errors.of_call('SELECT ''bad''::run_errors.odd', NULL, 'raise');
SELECT (idem_run('run errors', 'odd', 'SELECT ''bad''::run_errors.odd', on_error => 'record')).response;
-- the cast sees what the command did, also if it is not volatile
SELECT (idem_run('run errors', 'odd 2', 'INSERT INTO run_errors.parent VALUES (50) RETURNING ''good''::run_errors.odd')).response;
DROP CAST (run_errors.odd AS json);
CREATE CAST (run_errors.odd AS json) WITH FUNCTION run_errors.odd_as_json_stable(run_errors.odd);
SELECT (idem_run('run errors', 'odd 3', 'INSERT INTO run_errors.parent VALUES (51) RETURNING ''good''::run_errors.odd')).response;

-- the lines that are shown: the user's own, and none of ours
SELECT idem_run('run errors', 'shown', 'SELECT run_errors.nested(''AB123'')');
\echo :SQLSTATE
SELECT idem_run('run errors', 'shown', 'SELECT run_errors.with_all_fields(''42501'')', on_error => 'record');
SELECT idem_run('run errors', 'shown', 'SELECT 1 +');
SELECT idem_run('run errors', 'shown', 'SELECT 1 + nothing');
SELECT idem_run('run errors', 'shown', 'VALUES (1), (2)');
SELECT idem_run('run errors', 'shown', NULL);
SELECT idem_run('run errors', 'shown', $$SELECT idem_run('run errors', 'inner', 'SELECT run_errors.in_sql(0)')$$);
-- what the errors left behind: nothing
SELECT regress_show(idem_lookup('run errors', 'shown')), regress_show(idem_lookup('run errors', 'inner')), regress_claims();
SELECT array_agg(id ORDER BY id) FROM run_errors.parent;

-- inside blocks of PL/pgSQL and savepoints an error undoes its own block, no more
DO $$
DECLARE
  t idem_ticket;
BEGIN
  INSERT INTO run_errors.parent VALUES (60);
  BEGIN
    INSERT INTO run_errors.parent VALUES (61);
    t := idem_run('run errors', 'block', 'INSERT INTO run_errors.parent VALUES (62), (1)', on_error => 'record');
    INSERT INTO run_errors.parent VALUES (63);
    RAISE NOTICE '% %', t.status, t.response->>'sqlstate';
    BEGIN
      INSERT INTO run_errors.parent VALUES (64);
      t := idem_run('run errors', 'block 2', 'SELECT run_errors.with_all_fields(''42501'')', on_error => 'record');
    EXCEPTION WHEN insufficient_privilege THEN
      RAISE NOTICE 'caught %', SQLERRM;
    END;
    INSERT INTO run_errors.parent VALUES (65);
    BEGIN
      INSERT INTO run_errors.parent VALUES (66);
      t := idem_run('run errors', 'block 2', 'SELECT run_errors.with_all_fields(''AB123'')');
    EXCEPTION WHEN SQLSTATE 'AB123' THEN
      RAISE NOTICE 'caught %', SQLERRM;
    END;
    t := idem_run('run errors', 'block 2', 'SELECT count(*) FROM run_errors.parent WHERE id > 59', on_error => 'record');
    RAISE NOTICE '% %', t.status, t.response;
  END;
END $$;
SELECT array_agg(id ORDER BY id) FROM run_errors.parent WHERE id > 59;
BEGIN;
SAVEPOINT a;
SELECT idem_run('run errors', 'savepoint', 'SELECT run_errors.with_all_fields(''AB123'')');
ROLLBACK TO a;
SELECT regress_show(idem_run('run errors', 'savepoint', 'SELECT run_errors.with_all_fields(''AB123'')', on_error => 'record'));
SAVEPOINT b;
SELECT idem_run('run errors', 'savepoint 2', 'SELECT run_errors.with_all_fields(''42501'')', on_error => 'record');
ROLLBACK TO b;
SELECT regress_show(idem_run('run errors', 'savepoint 2', 'SELECT 2', on_error => 'record'));
COMMIT;
SELECT regress_show(idem_lookup('run errors', 'savepoint')), regress_show(idem_lookup('run errors', 'savepoint 2'));

-- a constraint that is deferred fails at the commit, and nothing is recorded
BEGIN;
SELECT regress_show(idem_run('run errors', 'late', 'INSERT INTO run_errors.child (late) VALUES (2)', on_error => 'record'));
COMMIT;
SELECT regress_show(idem_lookup('run errors', 'late'));

-- what is not executed, as PL/pgSQL's EXECUTE does not execute it; nothing that came before it stays
SELECT regress_error($$SELECT idem_run('run errors', 'refused', 'SELECT 1 AS id INTO run_errors.made')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', 'COPY run_errors.parent TO STDOUT')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', 'COMMIT')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', 'INSERT INTO run_errors.parent VALUES (70); ROLLBACK', on_error => 'record')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', 'SAVEPOINT a')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', '')$$);
SELECT regress_error($$SELECT idem_run('run errors', 'refused', E' \n\t', on_error => 'record')$$);
SELECT idem_run('run errors', 'refused', 'DO $do$ BEGIN COMMIT; END $do$');
SELECT to_regclass('run_errors.made'), regress_show(idem_lookup('run errors', 'refused')), count(*) FROM run_errors.parent WHERE id = 70;
-- nor within a procedure, which may commit by itself
CREATE PROCEDURE run_errors.commits() LANGUAGE plpgsql AS $$
BEGIN
  PERFORM idem_run('run errors', 'in procedure', 'INSERT INTO run_errors.parent VALUES (71)');
  COMMIT;
  PERFORM idem_run('run errors', 'in procedure 2', 'DO $do$ BEGIN COMMIT; END $do$');
END $$;
CALL run_errors.commits();
SELECT regress_show(idem_lookup('run errors', 'in procedure')), regress_show(idem_lookup('run errors', 'in procedure 2'));
-- nothing but a comment is executed, and gives nothing
SELECT regress_show(idem_run('run errors', 'comment', '-- nothing'));
SELECT regress_show(idem_run('run errors', 'semicolon', ';'));

SET client_min_messages = warning;
DROP SCHEMA run_errors CASCADE;
RESET client_min_messages;
SELECT idem_drop_session('run errors');
