-- Goal: what a DBA adds to a table of ours works as on any table: indexes of every kind, constraints, triggers.
-- Method: each kind on each table, then a bit of every function; indexes are compared with the tables, triggers counted.
\pset format unaligned
\pset tuples_only on

CREATE PROCEDURE additions_make(statement text) LANGUAGE plpgsql AS $$
DECLARE
  made record;
BEGIN
  FOR made IN SELECT c.relname AS name, a.attname AS first, a.atttypid::regtype::text AS type
              FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = CASE c.relname WHEN 'persistence' THEN 2 ELSE 1 END
              WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind = 'r' LOOP
    EXECUTE replace(replace(replace(statement, '{table}', made.name), '{first}', made.first), '{expression}',
      CASE made.type WHEN 'text' THEN format('upper(%I)', made.first)
                     WHEN 'uuid' THEN format('upper(%I::text)', made.first)
                     WHEN 'timestamp with time zone' THEN format('(%I AT TIME ZONE ''utc'')', made.first)
                     ELSE format('(%I %% 7)', made.first) END);
  END LOOP;
END
$$;
-- a column that was added is refused, and leaves no trace where it is dropped: all that follows works on such tables
CALL additions_make('ALTER TABLE idempotence.{table} ADD COLUMN of_a_dba text DEFAULT ''x''');
SELECT regress_error($$SELECT idem_create_session('additions')$$);
SELECT level, detail FROM idempotence.health WHERE name = 'tables';
CALL additions_make('ALTER TABLE idempotence.{table} DROP COLUMN of_a_dba');
SELECT level, detail FROM idempotence.health WHERE name = 'tables';
-- Two with a bit of everything in them from before.
SELECT idem_create_session('additions', ttl => '1 hour');
SELECT idem_create_session('additions inbox', inbox => true);
SELECT regress_registered('before', idem_register('additions-before'));

-- A bit of every function; each time with other names.
CREATE PROCEDURE additions_use(round text) LANGUAGE plpgsql AS $$
DECLARE
  ticket idem_ticket;
  client text;
  batch int;
  directly int;
BEGIN
  FOR n IN 1..2 LOOP
    ticket := idem_begin('additions', 'key ' || round, payload => '{"a": 1}');
    IF ticket.status = 'started' THEN
      PERFORM idem_record('additions', 'key ' || round, to_jsonb(round));
    END IF;
    RAISE INFO '%', regress_show(ticket);
  END LOOP;
  COMMIT;
  PERFORM idem_begin('additions', 'steps ' || round), idem_checkpoint('additions', 'steps ' || round, 'p1');
  COMMIT;
  ticket := idem_begin('additions', 'steps ' || round);
  RAISE INFO '%', regress_show(ticket);
  PERFORM idem_checkpoint('additions', 'steps ' || round, 'p2');
  COMMIT;
  PERFORM idem_begin('additions', 'steps ' || round), idem_record('additions', 'steps ' || round, '1', failed => true);
  COMMIT;
  PERFORM idem_begin('additions', 'half ' || round), idem_checkpoint('additions', 'half ' || round, 'p2', '[1]');
  COMMIT;
  ticket := idem_begin('additions', 'leased ' || round, lease => '1 hour');
  COMMIT;
  PERFORM idem_extend('additions', 'leased ' || round, ticket.token, '2 hours'),
          idem_checkpoint('additions', 'leased ' || round, 'p1', '[2]', token => ticket.token);
  COMMIT;
  UPDATE idempotence.lease SET leased_until = begun_at WHERE request = 'leased ' || round;
  COMMIT;
  ticket := idem_begin('additions', 'leased ' || round, lease => '1 hour');
  COMMIT;
  RAISE INFO '%, recorded: %', regress_show(ticket), idem_record('additions', 'leased ' || round, token => ticket.token) IS NOT NULL;
  COMMIT;
  RAISE INFO 'settled: %', regress_show(idem_settle('additions', 'settled ' || round));
  COMMIT;
  RAISE INFO 'once: %, %', idem_once('additions inbox', 'message ' || round), idem_once('additions inbox', 'message ' || round);
  PERFORM idem_once_many('additions inbox', (SELECT array_agg('batch ' || n || round) FROM generate_series(1, 20) n));
  SELECT count(*), count(*) FILTER (WHERE xmin::text::bigint <> pg_current_xact_id()::text::bigint % 4294967296)
    INTO batch, directly FROM idempotence.outcome_0 WHERE key ~ ('^batch .*' || round);
  RAISE INFO 'a batch: % rows, % of them inserted directly', batch, directly;
  RAISE INFO 'redacted: %, %, %', idem_redact('additions', 'key ' || round, 'a test'), regress_show(idem_begin('additions', 'key ' || round)),
    idem_redact_prefix('additions', 'half ' || round, 'a test');
  RAISE INFO 'forgotten: %', idem_forget('additions', 'key ' || round, 'a test');
  COMMIT;
  RAISE INFO 'imported: %, %', idem_import('additions', format('SELECT %L AS key, ''"there"'' AS response', 'elsewhere ' || round), 'a test'),
    idem_import('additions inbox', format('SELECT %L AS key', 'elsewhere ' || round), 'a test');
  COMMIT;
  RAISE INFO '%, forgotten: %', regress_show(idem_begin('additions', 'elsewhere ' || round)), idem_forget_prefix('additions', 'elsewhere ' || round, 'a test');
  COMMIT;
  client := (idem_register('additions ' || round, window_size => 2)).session;
  COMMIT;
  FOR n IN 1..4 LOOP
    ticket := idem_begin(client, n, ack => greatest(n - 2, 0));
    PERFORM idem_record(client, n, to_jsonb(n));
    COMMIT;
  END LOOP;
  RAISE INFO '%, %', regress_show(idem_begin(client, 4)), (idem_lookup(client, 2)).status;
  RAISE INFO 'redacted: %, %', idem_redact(client, 4, 'a test'), regress_show(idem_begin(client, 4));
  RAISE INFO 'allocated: %', idem_allocate(client, 3);
  PERFORM idem_ack(client, 4), idem_ack(client, 1, 'a stream');
  COMMIT;
  -- Fences; then an end.
  RAISE INFO 'resumed: %', (idem_register('additions ' || round)).resumed;
  COMMIT;
  RAISE INFO 'closed: %', idem_close((idem_register('additions ' || round, resume => true)).session);
  COMMIT;
  PERFORM idem_alter_session('additions', ttl => '2 hours');
  COMMIT;
END
$$;
CALL additions_use('a, as made');

-- Indexes of every kind.
CALL additions_make('CREATE INDEX additions_expression_{table} ON idempotence.{table} (({expression}))');
CALL additions_use('b, expressions');
CALL additions_make('DROP INDEX idempotence.additions_expression_{table}');
CREATE INDEX additions_partial_0 ON idempotence.outcome_0 (recorded_at) WHERE class = 'f';
CREATE INDEX additions_partial_1 ON idempotence.checkpoint (written_at) WHERE point = 'p1';
CREATE INDEX additions_partial_2 ON idempotence.session (owner) WHERE ended_at IS NOT NULL;
CREATE INDEX additions_partial_3 ON idempotence.session_live (lower(client)) WHERE client IS NOT NULL;
CREATE INDEX additions_partial_4 ON idempotence.reply (recorded_at) WHERE slot = 0;
CREATE INDEX additions_partial_5 ON idempotence.stream (acked) WHERE acked > 3;
CREATE INDEX additions_partial_6 ON idempotence.segment (number) WHERE current;
CREATE INDEX additions_partial_7 ON idempotence.audit (at) WHERE action <> 'idem_forget';
CALL additions_use('c, predicates');
-- What an index says is what the table says.
CREATE FUNCTION additions_compare(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  by_table bigint;
  by_index bigint;
BEGIN
  SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
  EXECUTE query INTO by_table;
  SET LOCAL enable_indexscan = on; SET LOCAL enable_bitmapscan = on; SET LOCAL enable_seqscan = off;
  EXECUTE query INTO by_index;
  RETURN CASE WHEN by_index = by_table AND by_table > 0 THEN 'same' ELSE format('%s by the index, %s by the table', by_index, by_table) END;
END
$$;
SELECT additions_compare($$SELECT count(*) FROM idempotence.outcome_0 WHERE class = 'f' AND recorded_at > '2000-01-01'$$),
       additions_compare($$SELECT count(*) FROM idempotence.session WHERE ended_at IS NOT NULL AND owner > 0::oid$$),
       additions_compare($$SELECT count(*) FROM idempotence.session_live WHERE client IS NOT NULL AND lower(client) > ''$$),
       additions_compare($$SELECT count(*) FROM idempotence.reply WHERE slot = 0 AND recorded_at > '2000-01-01'$$),
       additions_compare($$SELECT count(*) FROM idempotence.stream WHERE acked > 3 AND acked < 9$$);
DROP INDEX idempotence.additions_partial_0, idempotence.additions_partial_1, idempotence.additions_partial_2, idempotence.additions_partial_3,
  idempotence.additions_partial_4, idempotence.additions_partial_5, idempotence.additions_partial_6, idempotence.additions_partial_7;
CALL additions_make('CREATE INDEX additions_hash_{table} ON idempotence.{table} USING hash ({first})');
CALL additions_make('CREATE INDEX additions_brin_{table} ON idempotence.{table} USING brin ({first})');
CREATE INDEX additions_gin_0 ON idempotence.outcome_0 USING gin (response);
CREATE INDEX additions_gin_1 ON idempotence.checkpoint USING gin (state);
CREATE INDEX additions_include ON idempotence.outcome_0 (session) INCLUDE (key, recorded_at);
CREATE INDEX additions_include_live ON idempotence.session_live (last_seen) INCLUDE (id);
CALL additions_use('d, other methods');
SELECT additions_compare($$SELECT count(*) FROM idempotence.outcome_0 WHERE session = (SELECT id FROM idempotence.session WHERE name = 'additions inbox')$$);
CALL additions_make('DROP INDEX idempotence.additions_hash_{table}, idempotence.additions_brin_{table}');
DROP INDEX idempotence.additions_gin_0, idempotence.additions_gin_1, idempotence.additions_include, idempotence.additions_include_live;

-- Constraints: one that is checked late, one that excludes, a condition, a column that must not be null.
ALTER TABLE idempotence.outcome_0 ADD CONSTRAINT additions_deferred UNIQUE (digest) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE idempotence.checkpoint ADD CONSTRAINT additions_excluded EXCLUDE USING hash (digest WITH =);
ALTER TABLE idempotence.session_live ADD CONSTRAINT additions_excluded_live EXCLUDE USING btree (id WITH =);
CALL additions_use('e, unique at commit');
ALTER TABLE idempotence.outcome_0 ADD CONSTRAINT additions_check CHECK (key <> 'never');
UPDATE idempotence.checkpoint SET state = '{}' WHERE state IS NULL;
ALTER TABLE idempotence.checkpoint ALTER state SET NOT NULL;
BEGIN;
SELECT status FROM idem_begin('additions', 'never');
\set VERBOSITY terse
SELECT idem_record('additions', 'never');
ROLLBACK;
BEGIN;
SELECT status FROM idem_begin('additions', 'without a state');
SELECT idem_checkpoint('additions', 'without a state', 'p');
\set VERBOSITY default
ROLLBACK;
BEGIN;
SELECT status FROM idem_begin('additions', 'with a state');
SELECT idem_checkpoint('additions', 'with a state', 'p', '{}');
COMMIT;
ALTER TABLE idempotence.outcome_0 DROP CONSTRAINT additions_deferred, DROP CONSTRAINT additions_check;
ALTER TABLE idempotence.checkpoint DROP CONSTRAINT additions_excluded, ALTER state DROP NOT NULL;
ALTER TABLE idempotence.session_live DROP CONSTRAINT additions_excluded_live;

-- Row triggers, as of trigger-based replication, auditing or pg_repack: each row is seen, with the extension's owner at work.
CREATE TABLE additions_seen (tab text, op text, rows jsonb);
CREATE FUNCTION additions_see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.additions_seen VALUES (TG_TABLE_NAME, TG_OP, to_jsonb(coalesce(NEW, OLD)));
  RETURN coalesce(NEW, OLD);
END
$$;
CALL additions_make('CREATE TRIGGER additions_after AFTER INSERT OR UPDATE OR DELETE ON idempotence.{table} FOR EACH ROW EXECUTE FUNCTION additions_see()');
CALL additions_use('f, triggers');
SELECT tab, op, count(*) FROM additions_seen WHERE tab <> 'sweep' GROUP BY 1, 2 ORDER BY 1, 2;
-- They see what is in the tables.
SELECT count(*) FROM idempotence.reply r
WHERE session = (SELECT max(session::text)::uuid FROM idempotence.reply)
  AND NOT EXISTS (SELECT FROM additions_seen s WHERE s.tab = 'reply' AND s.rows = to_jsonb(r));
-- A rollback takes with it what they did.
TRUNCATE additions_seen;
BEGIN;
SAVEPOINT s;
SELECT status FROM idem_begin('additions', 'rolled back');
SELECT idem_record('additions', 'rolled back') IS NULL;
SELECT count(*) FROM additions_seen;
ROLLBACK TO s;
SELECT count(*) FROM additions_seen;
COMMIT;
-- As a role that has no right to any of it.
CREATE ROLE regress_additions;
SELECT idem_grant('regress_additions');
SET ROLE regress_additions;
SELECT idem_create_session('additions of a role');
BEGIN;
SELECT status FROM idem_begin('additions of a role', 'k');
SELECT idem_record('additions of a role', 'k') IS NULL;
COMMIT;
RESET ROLE;
SELECT tab, op, rows ->> 'recorded_by' FROM additions_seen WHERE tab LIKE 'outcome%';
-- Statement triggers, with what they are told of.
CREATE FUNCTION additions_see_all() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.additions_seen SELECT TG_TABLE_NAME, 'statement ' || TG_OP, to_jsonb(s) FROM seen s;
  RETURN NULL;
END
$$;
TRUNCATE additions_seen;
CREATE TRIGGER additions_statement AFTER INSERT ON idempotence.outcome_0 REFERENCING NEW TABLE AS seen FOR EACH STATEMENT EXECUTE FUNCTION additions_see_all();
BEGIN;
SELECT status FROM idem_begin('additions', 'of a statement');
SELECT idem_record('additions', 'of a statement', '17') IS NULL;
COMMIT;
SELECT tab, op, rows ->> 'key', rows ->> 'response' FROM additions_seen ORDER BY op;
DROP TRIGGER additions_statement ON idempotence.outcome_0;

-- A trigger that keeps a row back is found out: nothing is said to be recorded that is not.
CREATE FUNCTION additions_swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER additions_before BEFORE INSERT ON idempotence.outcome_0 FOR EACH ROW EXECUTE FUNCTION additions_swallow();
BEGIN;
SELECT status FROM idem_begin('additions', 'swallowed');
SELECT regress_message($$SELECT idem_record('additions', 'swallowed')$$);
SELECT idem_record('additions', 'swallowed');
ROLLBACK;
SELECT regress_message($$SELECT idem_once('additions inbox', 'swallowed')$$), regress_message($$SELECT idem_once_many('additions inbox', '{swallowed,too}')$$);
DROP TRIGGER additions_before ON idempotence.outcome_0;
-- A rule is found out likewise, and forgotten when it is gone, also where something else has been added.
CREATE RULE additions_rule AS ON INSERT TO idempotence.outcome_0 DO INSTEAD NOTHING;
BEGIN;
SELECT status FROM idem_begin('additions', 'ruled out');
SELECT regress_message($$SELECT idem_record('additions', 'ruled out')$$);
ROLLBACK;
DROP RULE additions_rule ON idempotence.outcome_0;
CREATE TABLE additions_elsewhere (LIKE idempotence.outcome_0);
CREATE RULE additions_rule AS ON INSERT TO idempotence.outcome_0 DO INSTEAD INSERT INTO additions_elsewhere VALUES (NEW.*);
BEGIN;
SELECT status FROM idem_begin('additions', 'ruled out');
SELECT regress_message($$SELECT idem_record('additions', 'ruled out')$$);
ROLLBACK;
DROP RULE additions_rule ON idempotence.outcome_0;
DROP TABLE additions_elsewhere;
CREATE INDEX additions_expression ON idempotence.outcome_0 (lower(key));
BEGIN;
SELECT status FROM idem_begin('additions', 'ruled out');
SELECT idem_record('additions', 'ruled out') IS NULL;
COMMIT;
DROP INDEX idempotence.additions_expression;
CALL additions_make('DROP TRIGGER additions_after ON idempotence.{table}');

-- As it was.
CALL additions_use('g, as made again');
SELECT idem_drop_session('additions'), idem_drop_session('additions inbox'), idem_drop_session('additions of a role');
SELECT idem_close(regress_id('before'));
SELECT idem_revoke('regress_additions');
DROP ROLE regress_additions;
DROP TABLE additions_seen;
DROP FUNCTION additions_see, additions_see_all, additions_swallow, additions_compare;
DROP PROCEDURE additions_use, additions_make;
