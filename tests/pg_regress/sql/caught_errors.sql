-- Goal: a call may catch a thousand errors and then raise one, which has its own SQLSTATE, message, DETAIL and HINT.
-- PostgreSQL keeps an error on a stack of five entries until the code that catches it flushes it. An error for which
-- there is no entry ends the server.
-- Method: functions that catch errors in subtransactions, by idem_run and by exception blocks of PL/pgSQL, and then
-- raise one. They are called directly, by idem_run, and nested deeper than the stack.
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
SELECT idem_create_session('caught');
CREATE TABLE caught_effect (what text);
CREATE TABLE caught_single (id integer PRIMARY KEY);
INSERT INTO caught_single VALUES (1);

CREATE FUNCTION caught_fail(state text) RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
  INSERT INTO caught_effect VALUES (state);
  RAISE EXCEPTION 'a message of %', state
    USING ERRCODE = state, DETAIL = 'a detail of ' || state, HINT = 'a hint of ' || state;
END
$$;

-- Catches n errors: a user's, and three of PostgreSQL's, in turn. Gives how often each SQLSTATE was recorded.
CREATE FUNCTION caught_by_run(n integer, prefix text DEFAULT 'run') RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
  ticket idem_ticket;
  counts jsonb := '{}';
  state text;
BEGIN
  FOR i IN 1 .. n LOOP
    SELECT * INTO ticket FROM idem_run('caught', prefix || '-' || i, CASE i % 4
      WHEN 0 THEN 'SELECT caught_fail(''AB001'')'
      WHEN 1 THEN 'SELECT 1 / 0'
      WHEN 2 THEN 'INSERT INTO caught_single VALUES (1)'
      ELSE 'SELECT ''x''::integer'
    END, on_error => 'record');
    ASSERT ticket.status = 'failed', ticket::text;
    state := ticket.response->>'sqlstate';
    counts := jsonb_set(counts, ARRAY[state], to_jsonb(coalesce((counts->>state)::integer, 0) + 1));
  END LOOP;
  RETURN counts::text;
END
$$;

-- Catches n errors: of idem_record, of an idem_run that raises its command's error, and of an idem_run that records no
-- error of class 40, because a retry may succeed.
CREATE FUNCTION caught_by_block(n integer) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
  counts jsonb := '{}';
BEGIN
  FOR i IN 1 .. n LOOP
    BEGIN
      IF i % 3 = 0 THEN
        PERFORM idem_record('caught', 'never begun');
      ELSIF i % 3 = 1 THEN
        PERFORM idem_run('caught', 'block-' || i, 'SELECT caught_fail(''AB002'')');
      ELSE
        PERFORM idem_run('caught', 'block-' || i, 'SELECT caught_fail(''40001'')', on_error => 'record');
      END IF;
    EXCEPTION WHEN OTHERS THEN
      counts := jsonb_set(counts, ARRAY[SQLSTATE], to_jsonb(coalesce((counts->>SQLSTATE)::integer, 0) + 1));
    END;
  END LOOP;
  RETURN counts::text;
END
$$;

-- Catches n errors in each of the two ways, and then raises one of its own.
CREATE FUNCTION caught_then_raised(n integer, state text, prefix text DEFAULT 'run') RETURNS integer
LANGUAGE plpgsql
AS $$
BEGIN
  PERFORM caught_by_run(n, prefix), caught_by_block(n);
  RETURN caught_fail(state);
END
$$;

-- Each level catches the error of the level below it three times, and then raises one of its own.
CREATE FUNCTION caught_nested(depth integer, path text) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
  ticket idem_ticket;
BEGIN
  IF depth > 0 THEN
    FOR i IN 1 .. 3 LOOP
      SELECT * INTO ticket FROM idem_run('caught', path || '.' || i,
        format('SELECT caught_nested(%s, %L)', depth - 1, path || '.' || i), on_error => 'record');
      ASSERT ticket.response->>'sqlstate' = 'AB' || lpad((depth - 1)::text, 3, '0'), ticket.response::text;
    END LOOP;
  END IF;
  RETURN caught_fail('AB' || lpad(depth::text, 3, '0'));
END
$$;

-- all are caught
SELECT caught_by_run(1000);
SELECT caught_by_block(1000);
SELECT count(*), count(*) FILTER (WHERE status = 'failed')
FROM generate_series(1, 1000) i, idem_lookup('caught', 'run-' || i);
SELECT count(*) FROM caught_effect;

-- a thousand are caught, and then one is raised: by a function; then, after a hundred, by idem_run and by the extension
SELECT caught_then_raised(1000, 'AB003', 'raised');
\echo :SQLSTATE
SELECT idem_run('caught', 'raises', 'SELECT caught_then_raised(100, ''AB004'', ''raised'')');
\echo :SQLSTATE
SELECT caught_by_run(100, 'raised'), idem_record('caught', 'never begun');
\echo :SQLSTATE
SELECT count(*) FROM generate_series(1, 1000) i, idem_lookup('caught', 'raised-' || i) WHERE status = 'failed';

-- an exception block catches that error with all its fields
SELECT * FROM regress_error($$SELECT caught_then_raised(100, 'AB005', 'raised')$$);
SELECT * FROM regress_error($$
  SELECT idem_run('caught', 'raises', 'SELECT caught_then_raised(100, ''AB006'', ''raised'')')
$$);

-- nested in an idem_run, which records the error and replays it
SELECT status, replayed, response
FROM idem_run('caught', 'outer', 'SELECT caught_then_raised(1000, ''AB007'', ''below'')', on_error => 'record');
SELECT status, replayed, response
FROM idem_run('caught', 'outer', 'SELECT caught_then_raised(1000, ''AB007'', ''below'')', on_error => 'record');
SELECT status, replayed, response
FROM idem_run('caught', 'nested', 'SELECT caught_nested(5, ''nested'')', on_error => 'record');
SELECT caught_nested(5, 'nested');
\echo :SQLSTATE
SELECT count(*) FROM caught_effect;

-- each error in a transaction of its own
DO $$
BEGIN
  FOR i IN 1 .. 100 LOOP
    PERFORM idem_run('caught', 'own-' || i, 'SELECT caught_fail(''AB008'')', on_error => 'record');
    COMMIT;
  END LOOP;
END
$$;
SELECT count(*) FROM generate_series(1, 100) i, idem_lookup('caught', 'own-' || i)
WHERE response->>'sqlstate' = 'AB008';

DROP FUNCTION caught_nested, caught_then_raised, caught_by_block, caught_by_run, caught_fail;
DROP TABLE caught_effect, caught_single;
SELECT idem_drop_session('caught');
