-- Goal: a replay is a read: no transaction id, no lock left when it returns, whatever the response.
-- Method: pg_current_xact_id_if_assigned() and pg_locks in the transaction that replayed.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('replay', ttl => '1 hour');
-- a response that is stored out of line, compressed or not, one of each other sort, and none
CREATE TABLE replay_response (request text PRIMARY KEY, response jsonb);
INSERT INTO replay_response VALUES
  ('none', NULL), ('null', 'null'), ('true', 'true'), ('number', '1.50'), ('string', '"é\u0001\\"'), ('empty', '{}'), ('list', '[1, [2, {"a": null}]]'),
  ('compressed', to_jsonb(repeat('x', 1000000))),
  ('out of line', (SELECT to_jsonb(string_agg(md5(n::text), '')) FROM generate_series(1, 20000) n));
DO $$ BEGIN
  PERFORM idem_begin('replay', request), idem_record('replay', request, response, failed => request = 'list') FROM replay_response ORDER BY request;
END $$;
SELECT r.request, t.status, t.replayed, t.response IS NOT DISTINCT FROM r.response AS same, t.response::text IS NOT DISTINCT FROM r.response::text AS same_text
FROM replay_response r, idem_begin('replay', r.request) t ORDER BY r.request;
-- one takes a fraction of its length, the other more than a page holds
SELECT o.request, o.response_bytes < 100000 AS compressed FROM idempotence.outcomes o
WHERE o.session = 'replay' AND o.request IN ('compressed', 'out of line') ORDER BY 1;

-- The locks of this transaction but for those that looking at them takes.
CREATE VIEW replay_locks AS
SELECT l.locktype, c.oid::regclass AS relation, l.mode, l.objsubid
FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.locktype <> 'virtualxid'
  AND (c.oid IS NULL OR c.relnamespace <> 'pg_catalog'::regnamespace AND c.relname <> 'replay_locks');

BEGIN;
SELECT regress_show(idem_begin('replay', 'number'));
SELECT length(t.response::text) FROM idem_begin('replay', 'compressed') t;
SELECT length(t.response::text) FROM idem_begin('replay', 'out of line') t;
SELECT regress_show(idem_begin('replay', 'none', payload => '1', wait => '1 hour'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
SELECT regress_show(idem_lookup('replay', 'list'));
SELECT regress_show(idem_lookup('replay', 'unknown'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
SELECT regress_show(idem_run('replay', 'list', 'SELECT 1'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;

-- at the other isolation levels and read-only, where SERIALIZABLE leaves no SIREAD lock either
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT regress_show(idem_begin('replay', 'number'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT regress_show(idem_begin('replay', 'number'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;
BEGIN READ ONLY;
SELECT regress_show(idem_begin('replay', 'number'));
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;
-- by a prepared statement, when its plan is a generic one
SET plan_cache_mode = 'force_generic_plan';
PREPARE replay_number (text) AS SELECT regress_show(idem_begin('replay', $1));
BEGIN;
EXECUTE replay_number('number');
EXECUTE replay_number('true');
SELECT * FROM replay_locks;
COMMIT;
DEALLOCATE replay_number;
RESET plan_cache_mode;

-- a mismatch leaves nothing either
BEGIN;
SELECT regress_show(idem_begin('replay', 'paid', payload => '1'));
SELECT idem_record('replay', 'paid') IS NOT NULL;
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT idem_begin('replay', 'paid', payload => '2');
\echo :SQLSTATE
ROLLBACK TO s;
SELECT * FROM replay_locks;
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;

-- what a begin leaves that did not replay: the claim, the locks of the record, and no transaction id before there is something to write
BEGIN;
SELECT regress_show(idem_begin('replay', 'new'));
SELECT locktype, relation, mode, objsubid = x'1DE1'::int FROM replay_locks ORDER BY 1, 2;
SELECT pg_current_xact_id_if_assigned() IS NULL;
SELECT idem_record('replay', 'new') IS NOT NULL;
SELECT pg_current_xact_id_if_assigned() IS NULL;
SELECT DISTINCT locktype, relation, mode FROM replay_locks WHERE locktype <> 'transactionid' ORDER BY 1, 2, 3;
COMMIT;
-- a replay that looks with the claim gives all locks back; beside a request that was begun, only its own
BEGIN;
SELECT regress_show(idem_begin('replay', 'new'));
SELECT * FROM replay_locks ORDER BY 2, 3;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('replay', 'newer'));
SELECT regress_show(idem_begin('replay', 'number'));
SELECT regress_show(idem_begin('replay', 'newest'));
SAVEPOINT s;
SELECT regress_show(idem_begin('replay', 'true'));
ROLLBACK TO s;
SELECT locktype, relation, mode, count(*) FROM replay_locks GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
ROLLBACK;
-- what is found elsewhere than in the current segment, and what another has a lease on, leave nothing either
SELECT idem_create_session('replay lasting', ttl => '1000 days');
BEGIN;
SELECT regress_show(idem_begin('replay lasting', 'k'));
SELECT idem_record('replay lasting', 'k') IS NOT NULL;
COMMIT;
SELECT token FROM idem_begin('replay', 'leased', lease => '1 hour') \gset
BEGIN;
SELECT (idem_begin('replay', 'leased', wait => '0')).status;
SELECT * FROM replay_locks ORDER BY 2, 3;
SELECT regress_show(idem_begin('replay lasting', 'k'));
SELECT * FROM replay_locks ORDER BY 2, 3;
COMMIT;
SELECT idem_record('replay', 'leased', token => :token) IS NOT NULL;
SELECT idem_drop_session('replay lasting') IS NOT NULL;

-- a response taken out of a ticket outlives the call and the transaction's other work
DO $$
DECLARE
  tickets idem_ticket[];
  ticket  idem_ticket;
BEGIN
  FOR ticket IN SELECT t.* FROM replay_response r, idem_begin('replay', r.request) t ORDER BY r.request LOOP
    tickets := tickets || ticket;
  END LOOP;
  PERFORM idem_forget('replay', request, 'a test') FROM replay_response;
  RAISE INFO '% tickets, % characters', cardinality(tickets),
    (SELECT sum(length(t.response::text)) FROM unnest(tickets) t);
END $$;
SELECT count(*) FROM replay_response r, idem_lookup('replay', r.request) t WHERE t.status <> 'unknown';

-- in a long row the toaster compresses the key too: it is recognised all the same
CREATE TABLE replay_long AS SELECT repeat(c, 255) AS key, to_jsonb(left((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 80) i), bytes)) AS value
FROM unnest('{k,é,😁}'::text[]) c, unnest('{970,1930,2400}'::int[]) bytes;
DO $$
DECLARE
  long replay_long;
  t    idem_ticket;
BEGIN
  FOR long IN TABLE replay_long LOOP
    -- a checkpoint is found again, and gives way to an outcome, which is found again
    PERFORM idem_begin('replay', long.key);
    PERFORM idem_checkpoint('replay', long.key, 'point', long.value);
    PERFORM idem_release('replay', long.key);
    t := idem_begin('replay', long.key);
    ASSERT t.status = 'started' AND t.point = 'point' AND t.state = long.value, t;
    PERFORM idem_checkpoint('replay', long.key, 'point 2', long.value);
    PERFORM idem_record('replay', long.key, long.value);
    t := idem_begin('replay', long.key);
    ASSERT t.replayed AND t.response = long.value AND t.point IS NULL, t;
    PERFORM idem_forget('replay', long.key, 'the next length');
  END LOOP;
  RAISE INFO 'found';
END $$;
DROP TABLE replay_long;

DROP VIEW replay_locks;
DROP TABLE replay_response;
SELECT idem_drop_session('replay');
