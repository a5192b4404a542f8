-- Goal: a function of the extension that cannot run during a parallel query says so, in a parallel worker and in the leader,
-- also where PostgreSQL cannot see the call: in a function that a user has declared PARALLEL SAFE. The others work there.
-- Method: the setting that puts a parallel worker into each plan (its name depends on the server's version), and a user's
-- function that executes what it is given. Every function of the extension is called that is not declared PARALLEL SAFE.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('parallel');
SELECT status FROM idem_run('parallel', 'done', 'SELECT 1');
CREATE SCHEMA parallel;
CREATE FUNCTION parallel.execute(command text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE
  answer text;
BEGIN
  EXECUTE command INTO answer;
  RETURN answer;
END $$;
CREATE FUNCTION parallel.process() RETURNS text LANGUAGE sql PARALLEL SAFE
RETURN (SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid());

-- What comes of a command in a parallel worker.
CREATE FUNCTION parallel.in_worker(command text, OUT answer text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config((SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')), 'on', true);
  EXECUTE format('SELECT parallel.execute(%L)', command) INTO answer;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS answer = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  answer := SQLSTATE || ' ' || answer;
END $$;
SELECT * FROM parallel.in_worker('SELECT parallel.process()');

-- Requests, in the words of the error.
SELECT * FROM parallel.in_worker($$SELECT status FROM idem_begin('parallel', 'new')$$);
SELECT * FROM parallel.in_worker($$SELECT status FROM idem_begin('parallel', 42)$$);
SELECT * FROM parallel.in_worker($$SELECT status FROM idem_lookup('parallel', 'done')$$);
SELECT * FROM parallel.in_worker($$SELECT status FROM idem_run('parallel', 'done', 'SELECT 1')$$);
SELECT * FROM parallel.in_worker($$SELECT idem_once('parallel', 'done')$$);
SELECT * FROM parallel.in_worker($$SELECT idem_ready()$$);
SELECT * FROM parallel.in_worker($$SELECT count(*) FROM idempotence.health$$);
SELECT * FROM parallel.in_worker($$SELECT count(*) FROM idempotence.in_flight$$);
-- by a function of a user's, and in a view
CREATE FUNCTION parallel.pay(request text) RETURNS text LANGUAGE sql PARALLEL SAFE AS $$ SELECT status FROM idem_begin('parallel', request) $$;
CREATE VIEW parallel.paid AS SELECT parallel.pay('in a view') AS paid;
SELECT * FROM parallel.in_worker($$SELECT parallel.pay('by a function')$$);
SELECT * FROM parallel.in_worker($$SELECT paid FROM parallel.paid$$);

-- All of them, with NULL for each argument.
CREATE FUNCTION parallel.call_of(function oid) RETURNS text LANGUAGE sql
RETURN (SELECT format('SELECT count(*) FROM %I.%I(%s)', n.nspname, p.proname,
                      (SELECT string_agg(CASE t.type WHEN 'anycompatiblearray'::regtype THEN 'NULL::text[]' ELSE 'NULL::' || format_type(t.type, NULL) END, ', ' ORDER BY t.ord)
                       FROM unnest(p.proargtypes) WITH ORDINALITY t (type, ord)))
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = function);
CREATE VIEW parallel.functions AS
SELECT p.oid, p.proname, p.proparallel, l.lanname
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid JOIN pg_language l ON l.oid = p.prolang
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence')
  AND p.prokind = 'f' AND p.prorettype <> 'trigger'::regtype;
SELECT count(*) > 60 FROM parallel.functions WHERE proparallel = 'u' AND lanname = 'c';
-- Each of them is refused. The functions in SQL and PL/pgSQL that the views use only read, and idem_import calls import_begin.
SELECT f.oid::regprocedure, w.answer
FROM parallel.functions f CROSS JOIN LATERAL parallel.in_worker(parallel.call_of(f.oid)) w
WHERE f.proparallel = 'u' AND (f.lanname = 'c' OR f.proname LIKE 'idem%') AND f.proname <> ALL ('{refuse_parallel_query,idem_import}')
  AND (w.answer NOT LIKE '25000 cannot execute %' || f.proname || '() during a parallel query'
       OR w.detail <> 'A parallel worker called the function.' OR w.hint NOT LIKE '%PARALLEL UNSAFE%')
ORDER BY 1;
SELECT answer FROM parallel.in_worker($$SELECT idempotence.refuse_parallel_query('a_function')$$);
SELECT answer FROM parallel.in_worker($$SELECT count(*) FROM idem_import('parallel', 'SELECT 1', 'test')$$);

-- What is declared PARALLEL SAFE works in a parallel worker.
SELECT f.oid::regprocedure, w.*
FROM parallel.functions f CROSS JOIN LATERAL parallel.in_worker(parallel.call_of(f.oid)) w
WHERE f.proparallel = 's' AND f.proname <> 'leave_out_nulls' AND w.answer NOT LIKE '22004 %' AND w.answer !~ '^[0-9]+$'
ORDER BY 1;
SELECT answer ~ '^[0-9a-f-]{36}$' FROM parallel.in_worker('SELECT idem_generate_id()');
SELECT answer FROM parallel.in_worker($$SELECT idem_key('{"a": 1}') = idem_key('{"a": 1.0}')$$);

-- The leader of a parallel query refuses them too: which process calls a function is not the caller's to decide.
CREATE FUNCTION parallel.execute_in_leader(command text) RETURNS text LANGUAGE plpgsql PARALLEL RESTRICTED AS $$
BEGIN RETURN parallel.execute(command); END $$;
CREATE TABLE parallel.large WITH (parallel_workers = 2) AS SELECT n FROM generate_series(1, 1000) n;
ANALYZE parallel.large;
\set SHOW_CONTEXT never
BEGIN;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SELECT parallel.execute_in_leader($$SELECT idem_lookup('parallel', 'done')$$), count(*) FROM parallel.large;
ROLLBACK;

-- Without a parallel query the same functions are as good as any.
SELECT parallel.pay('done'), parallel.execute_in_leader($$SELECT status FROM idem_lookup('parallel', 'done')$$);
SET client_min_messages = warning;
DROP SCHEMA parallel CASCADE;
RESET client_min_messages;
SELECT idem_drop_session('parallel');
