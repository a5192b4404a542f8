-- Goal: idem_run turns any statement into an idempotent one, and an error into an answer if asked to.
-- Method: each form of command is run twice, and its effect counted.
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
SELECT idem_create_session('run', ttl => '1 hour');
CREATE TABLE run_account (id integer PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0));
INSERT INTO run_account VALUES (1, 100), (2, 0);
CREATE TABLE run_effect (id serial, what jsonb);
CREATE FUNCTION run_transfer(args jsonb) RETURNS jsonb
LANGUAGE plpgsql
AS $$
BEGIN
  UPDATE run_account SET balance = balance - (args->>'amount')::integer WHERE id = (args->>'from')::integer;
  UPDATE run_account SET balance = balance + (args->>'amount')::integer WHERE id = (args->>'to')::integer;
  RETURN args || '{"done": true}';
END
$$;
CREATE FUNCTION run_fail(sqlstate_ text, effect boolean DEFAULT true) RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
  IF effect THEN
    INSERT INTO run_effect (what) VALUES ('"undone"');
  END IF;
  RAISE EXCEPTION 'failed with %', sqlstate_ USING ERRCODE = sqlstate_, DETAIL = 'some detail', HINT = 'some hint';
END
$$;
CREATE PROCEDURE run_effect(what jsonb) LANGUAGE sql AS $$ INSERT INTO run_effect (what) VALUES (what) $$;
CREATE PROCEDURE run_effect_out(what jsonb, INOUT n integer DEFAULT 0)
LANGUAGE plpgsql
AS $$
BEGIN
  INSERT INTO run_effect (what) VALUES (what);
  n := n + 1;
END
$$;

-- the forms of commands: executed once, answered twice
CREATE TABLE run_form (place serial, command text);
INSERT INTO run_form (command) VALUES
  ('SELECT 1'),
  ('SELECT 1 AS a, 2 AS b'),
  ('SELECT NULL::integer'),
  ('SELECT 1 WHERE false'),
  ('SELECT'),
  ('SELECT WHERE false'),
  ('VALUES (''a'')'),
  ('TABLE run_form LIMIT 1'),
  ('WITH x AS (INSERT INTO run_effect (what) VALUES (''"with"'') RETURNING what) SELECT what FROM x'),
  ('INSERT INTO run_effect (what) VALUES (''"insert"'')'),
  ('INSERT INTO run_effect (what) VALUES (''"insert 2"''), (''"insert 3"'')'),
  ('INSERT INTO run_effect (what) VALUES (''"insert returning"'') RETURNING what, id'),
  ('UPDATE run_account SET balance = balance + 1 WHERE id = 2'),
  ('UPDATE run_account SET balance = balance + 1 WHERE id = 2 RETURNING balance'),
  ('UPDATE run_account SET balance = balance + 1 WHERE id = 3 RETURNING balance'),
  ('DELETE FROM run_account WHERE id = 3'),
  ('MERGE INTO run_account a USING (VALUES (3)) v (id) ON a.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (v.id, 7)'),
  ('DELETE FROM run_account WHERE id = 3 RETURNING *'),
  ('SELECT run_transfer(''{"from": 1, "to": 2, "amount": 10}'')'),
  ('SELECT * FROM run_transfer(''{"from": 1, "to": 2, "amount": 10}'')'),
  ('CALL run_effect(''"called"'')'),
  ('CALL run_effect_out(''"called"'', 41)'),
  ('DO $do$ BEGIN INSERT INTO run_effect (what) VALUES (''"done"''); END $do$'),
  ('CREATE TABLE run_made (id integer)'),
  ('CREATE TABLE run_made_as AS SELECT 1 AS id'),
  ('SHOW idempotence.unrecorded'),
  ('EXPLAIN (COSTS off) SELECT 1'),
  ('SELECT 1;'),
  ('INSERT INTO run_effect (what) VALUES (''"first of two"''); INSERT INTO run_effect (what) VALUES (''"second of two"'')');
SELECT f.place, regress_show(idem_run('run', 'form-' || place, command)), f.command FROM run_form f ORDER BY place;
CREATE TABLE run_before AS SELECT (SELECT array_agg(a ORDER BY id) FROM run_account a) AS accounts, (SELECT array_agg(e ORDER BY id) FROM run_effect e) AS effects;
SELECT count(*), count(*) FILTER (WHERE t.replayed AND t.response IS NOT DISTINCT FROM l.response)
FROM run_form f, idem_run('run', 'form-' || place, command) t, idem_lookup('run', 'form-' || place) l;
SELECT accounts = (SELECT array_agg(a ORDER BY id) FROM run_account a), effects = (SELECT array_agg(e ORDER BY id) FROM run_effect e) FROM run_before;
SELECT what FROM run_effect ORDER BY id;
SELECT * FROM run_account ORDER BY id;

-- the response is to_jsonb of the first column, whatever its type
SELECT v, t.response FROM unnest(ARRAY[
  '1.50::numeric', 'true', '''t''::"char"', '''{1,NULL,3}''::integer[]', 'ROW(1, ''a'')', '''{"b":1, "a":2}''::json', '''{"b":1, "a":2}''::jsonb', '''null''::jsonb',
  '''2020-01-02 03:04:05+00''::timestamptz AT TIME ZONE ''UTC''', '''1 day 2 hours''::interval', '''\xdeadbeef''::bytea', 'int4range(1, 5)', '''run_account''::regclass',
  '''NaN''::float8', '(SELECT a FROM run_account a WHERE id = 1)', 'ARRAY(SELECT id FROM run_account ORDER BY id)', 'pg_sleep(0)', '$1', '$1->''a''->0'
]) WITH ORDINALITY AS x (v, place), idem_run('run', 'type-' || place, 'SELECT ' || v, args => '{"a": [7]}') t ORDER BY place;

-- two rows or more: refused, and not executed
SELECT regress_error($$SELECT idem_run('run', 'rows', 'VALUES (1), (2), (3)')$$);
SELECT regress_message($$SELECT idem_run('run', 'rows', 'INSERT INTO run_effect (what) SELECT ''"many"'' FROM generate_series(1, 2) RETURNING 1')$$);
SELECT regress_show(idem_lookup('run', 'rows'));
SELECT count(*) FROM run_effect WHERE what = '"many"';

-- args: $1, and in the fingerprint
SELECT regress_show(idem_run('run', 'args', 'SELECT run_transfer($1)', args => '{"from": 1, "to": 2, "amount": 5}'));
SELECT regress_show(idem_run('run', 'args', 'SELECT run_transfer($1)', args => '{"amount": 5.0, "to": 2, "from": 1}'));
SELECT regress_message($$SELECT idem_run('run', 'args', 'SELECT run_transfer($1)', args => '{"from": 1, "to": 2, "amount": 6}')$$);
SELECT regress_show(idem_run('run', 'args', 'SELECT run_transfer($1)'));
SELECT regress_show(idem_run('run', 'no args', 'SELECT $1 IS NULL'));
SELECT regress_message($$SELECT idem_run('run', 'two args', 'SELECT $2')$$);
-- a session's rules hold here too
SELECT regress_show(idem_run('run', 'ttl', 'SELECT 1', ttl => '1 minute'));
-- what was executed is answered, however soon it expires
SELECT (idem_run('run', 'expired', 'SELECT 1', ttl => '1 microsecond')).response;
SELECT regress_show(idem_run('run', 'expired', 'SELECT 2'));

-- on_error => 'raise': the error as it is, nothing done, nothing recorded, and the next try executes
SELECT regress_error($$SELECT idem_run('run', 'raise', 'SELECT run_transfer($1)', args => '{"from": 1, "to": 2, "amount": 1000}')$$);
SELECT idem_run('run', 'raise', 'SELECT run_fail(''AB001'')');
\echo :SQLSTATE
SELECT regress_show(idem_lookup('run', 'raise'));
SELECT regress_show(idem_run('run', 'raise', 'SELECT 1'));

-- on_error => 'record': the work undone, the error recorded and returned, now and ever after
SELECT regress_show(idem_run('run', 'record', 'SELECT run_fail(''AB001'')', on_error => 'record'));
SELECT regress_show(idem_run('run', 'record', 'SELECT run_fail(''AB001'')', on_error => 'record'));
SELECT regress_show(idem_run('run', 'record', 'SELECT 1', on_error => 'raise'));
SELECT regress_show(idem_begin('run', 'record'));
SELECT regress_show(idem_run('run', 'record check', 'SELECT run_transfer($1)', args => '{"from": 1, "to": 2, "amount": 1000}', on_error => 'record'));
SELECT regress_message($$SELECT idem_run('run', 'record check', 'SELECT run_transfer($1)', args => '{"from": 1, "to": 2, "amount": 1}', on_error => 'record')$$);
SELECT regress_show(idem_run('run', 'record plain', 'SELECT 1 / 0', on_error => 'record'));
SELECT regress_show(idem_run('run', 'record unique', 'INSERT INTO run_account VALUES (1, 1)', on_error => 'record'));
SELECT regress_show(idem_run('run', 'record rows', 'VALUES (1), (2)', on_error => 'record'));
-- An error that is larger than a response may be keeps its SQLSTATE. The message is truncated between two characters; a detail
-- and a hint are kept if they fit as a whole.
CREATE FUNCTION run_fail_with(message text, detail text, hint text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%', message USING ERRCODE = 'AB002', DETAIL = detail, HINT = hint;
END $$;
SET idempotence.max_response = 300;
SELECT r.status, r.response ->> 'sqlstate' AS sqlstate, starts_with(repeat(m.unit, 1000), r.response ->> 'message') AS is_prefix,
       length(r.response ->> 'message') * octet_length(m.unit) BETWEEN 200 AND 300 AS fills, r.response ->> 'detail' AS detail, r.response ->> 'hint' AS hint
FROM unnest('{x,ä,€,🔑}'::text[]) m (unit),
     LATERAL idem_run('run', 'long message of ' || m.unit, format('SELECT run_fail_with(repeat(%L, 1000), ''a detail'', ''a hint'')', m.unit), on_error => 'record') r;
SELECT status, replayed, response ->> 'sqlstate' AS sqlstate FROM idem_run('run', 'long message of 🔑', 'SELECT 1', on_error => 'record');
SELECT regress_show(idem_run('run', 'long detail', 'SELECT run_fail_with(''a message'', repeat(''x'', 1000), ''a hint'')', on_error => 'record'));
SELECT regress_show(idem_run('run', 'long hint', 'SELECT run_fail_with(''a message'', ''a detail'', repeat(''x'', 1000))', on_error => 'record'));
SELECT regress_show(idem_run('run', 'no long text', 'SELECT run_fail_with(''a message'', ''a detail'', ''a hint'')', on_error => 'record'));
SET idempotence.max_response = 64;
SELECT status, response ->> 'sqlstate' AS sqlstate FROM idem_run('run', 'the least room', 'SELECT run_fail_with(repeat(''x'', 1000), ''a detail'', ''a hint'')', on_error => 'record');
RESET idempotence.max_response;
DROP FUNCTION run_fail_with;
SELECT regress_message($$SELECT idem_run('run', 'record syntax', 'SELEC 1', on_error => 'record')$$);
SELECT regress_show(idem_run('run', 'record success', 'SELECT 1', on_error => 'record'));
SELECT count(*) FROM run_effect WHERE what = '"undone"';
SELECT * FROM run_account ORDER BY id;

-- on_error => 'record' goes by the class: every class that PostgreSQL has, in any version, is decided
CREATE TABLE run_class (class text PRIMARY KEY, is_final boolean NOT NULL);
INSERT INTO run_class SELECT c, true FROM unnest('{01,02,20,21,22,23,44,P0}'::text[]) c;
INSERT INTO run_class SELECT c, false
FROM unnest('{03,08,09,0A,0B,0F,0L,0P,0Z,10,24,25,26,27,28,2B,2D,2F,34,38,39,3B,3D,3F,40,42,53,54,55,57,58,72,F0,HV,ID,XX}'::text[]) c;
CREATE TABLE run_errcodes AS
  SELECT DISTINCT (regexp_match(line, '^([0-9A-Z]{5})'))[1] AS state
  FROM pg_config p, regexp_split_to_table(pg_read_file(p.setting || '/errcodes.txt'), '\n') line WHERE p.name = 'SHAREDIR' AND line ~ '^[0-9A-Z]{5} +[EW] ';
SELECT count(*) > 200 FROM run_errcodes;
SELECT state FROM run_errcodes WHERE left(state, 2) NOT IN (SELECT class FROM run_class) AND state <> '00000';
-- each of its codes, and a code of each class that PostgreSQL does not have: what came of it, and what is kept
CREATE FUNCTION run_decided(state text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  request text := 'class-' || state;
  t       idem_ticket;
BEGIN
  BEGIN
    t := idem_run('run', request, format('SELECT run_fail(%L)', state), on_error => 'record');
  EXCEPTION WHEN OTHERS THEN
    RETURN CASE WHEN SQLSTATE = state AND SQLERRM = 'failed with ' || state THEN 'raised' ELSE 'raised as ' || SQLSTATE || ' ' || SQLERRM END
           || ', ' || (idem_lookup('run', request)).status;
  END;
  RETURN 'recorded' || CASE WHEN t.response->>'sqlstate' = state THEN ', ' ELSE ' as ' || t.response::text || ', ' END || (idem_lookup('run', request)).status;
END $$;
-- assertions and cancelled statements aside, which no handler of others catches
SELECT c.is_final, run_decided(s.state) AS decided, count(DISTINCT c.class), count(*) > 40 FROM run_class c
CROSS JOIN LATERAL (SELECT r.state FROM run_errcodes r WHERE left(r.state, 2) = c.class AND r.state NOT IN ('57014', 'P0004')
                    UNION SELECT c.class || '000' UNION SELECT c.class || 'XY9') s
GROUP BY c.is_final, decided ORDER BY c.is_final;
-- a class that PostgreSQL does not have is the application's own
SELECT s, t.status, t.response->>'sqlstate' = s, t.response->>'message', t.response->>'detail', t.response->>'hint'
FROM unnest('{AB001,P0001,23505,ZZZZZ,I0001,56000,99999}'::text[]) s, idem_run('run', 'own-' || s, format('SELECT run_fail(%L)', s), on_error => 'record') t;
SELECT count(*) FROM run_effect WHERE what = '"undone"';
-- as they come: a table that a deployment is about to make, a plan that one has made invalid, no right yet
SELECT regress_message($$SELECT idem_run('run', 'deployment', 'SELECT * FROM run_not_yet', on_error => 'record')$$);
CREATE TABLE run_not_yet AS SELECT 1 AS id;
SELECT regress_show(idem_run('run', 'deployment', 'SELECT * FROM run_not_yet', on_error => 'record'));
PREPARE run_plan AS SELECT * FROM run_not_yet;
EXECUTE run_plan;
ALTER TABLE run_not_yet ADD COLUMN more integer;
SELECT regress_message($$SELECT idem_run('run', 'plan', 'EXECUTE run_plan', on_error => 'record')$$);
DEALLOCATE run_plan;
SELECT regress_message($$SELECT idem_run('run', 'plan', 'EXECUTE run_plan', on_error => 'record')$$);
PREPARE run_plan AS SELECT * FROM run_not_yet;
SELECT regress_show(idem_run('run', 'plan', 'EXECUTE run_plan', on_error => 'record'));
DEALLOCATE run_plan;
SELECT (idem_run('run', 'malformed', 'SELECT ($1->>''id'')::integer', args => '{"id": "one"}', on_error => 'record')).response->>'sqlstate';
-- a cancelled statement, which no handler of others catches, and misuse of these very functions
SET statement_timeout = '20 ms';
SELECT idem_run('run', 'never', 'SELECT pg_sleep(60)', on_error => 'record');
\echo :SQLSTATE
RESET statement_timeout;
SELECT regress_message($$SELECT idem_run('run', 'never', 'SELECT idem_begin(''run'', ''never'')', on_error => 'record')$$);
SELECT regress_message($$SELECT idem_run('run', 'never', 'SELECT idem_record(''run'', ''other'')', on_error => 'record')$$);
SELECT regress_show(idem_lookup('run', 'never'));

-- one inside another: each its own request
SELECT regress_show(idem_run('run', 'outer', $$SELECT t.response FROM idem_run('run', 'inner', 'SELECT 7') t$$));
SELECT regress_show(idem_lookup('run', 'inner'));
-- the inner one goes with the outer one's savepoint
SELECT regress_show(idem_run('run', 'outer 2', $$SELECT t.response || run_fail('AB002')::text::jsonb FROM idem_run('run', 'inner 2', 'SELECT 7') t$$, on_error => 'record'));
SELECT regress_show(idem_lookup('run', 'inner 2'));
-- a request left open inside is the transaction's, and is not let pass
SELECT regress_show(idem_run('run', 'outer 3', $$SELECT regress_show(idem_begin('run', 'inner 3'))$$));
\echo :SQLSTATE
SELECT regress_show(idem_lookup('run', 'outer 3')), regress_show(idem_lookup('run', 'inner 3'));

-- its names are its own: no column, function or operator of the caller's comes between
CREATE SCHEMA run_trap;
CREATE FUNCTION run_trap.left(text, integer) RETURNS text LANGUAGE sql RETURN 'trap';
CREATE FUNCTION run_trap.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
CREATE FUNCTION run_trap.eq(text, text) RETURNS boolean LANGUAGE sql RETURN false;
CREATE OPERATOR run_trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = run_trap.eq);
CREATE FUNCTION run_trap.idem_begin(text, text, payload jsonb, wait interval) RETURNS idem_ticket LANGUAGE sql RETURN NULL::idem_ticket;
SET search_path = run_trap, pg_catalog, public;
SELECT public.regress_show(idem_run('run', 'trap', 'SELECT 1'));
SELECT public.regress_show(idem_run('run', 'trap', 'SELECT 1'));
SELECT public.regress_show(idem_run('run', 'trap 2', 'SELECT public.run_fail(''AB001'', false)', on_error => 'record'));
SET search_path = '';
SELECT public.regress_show(public.idem_run('run', 'trap 3', 'SELECT current_setting(''search_path'')'));
RESET search_path;
DROP SCHEMA run_trap CASCADE;
\set SHOW_CONTEXT errors

-- a request that stopped at a checkpoint is not executed from the start
BEGIN;
SELECT regress_show(idem_begin('run', 'checkpoint'));
SELECT idem_checkpoint('run', 'checkpoint', 'half way');
COMMIT;
SELECT regress_error($$SELECT idem_run('run', 'checkpoint', 'SELECT 1')$$);
SELECT regress_show(idem_lookup('run', 'checkpoint'));
-- nothing to execute is a mistake, and is not recorded
SELECT regress_error($$SELECT idem_run('run', 'empty', ' ')$$);
SELECT regress_show(idem_lookup('run', 'empty'));
-- a failed assertion tells of a mistake in the code, which is mended
\set SHOW_CONTEXT never
SELECT idem_run('run', 'assert', 'DO $do$ BEGIN ASSERT false, ''no''; END $do$', on_error => 'record');
\echo :SQLSTATE
\set SHOW_CONTEXT errors
SELECT regress_show(idem_lookup('run', 'assert'));

DROP TABLE run_account, run_effect, run_form, run_before, run_made, run_made_as;
DROP TABLE run_class, run_errcodes, run_not_yet;
DROP FUNCTION run_transfer, run_fail, run_decided;
DROP PROCEDURE run_effect, run_effect_out;
SELECT idem_drop_session('run');
