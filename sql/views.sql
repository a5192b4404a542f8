-- Triggers for tables that a restore, or a superuser, writes by SQL. After such a write every backend must forget
-- what it remembers of sessions and the secret. The functions of this extension tell the backends themselves.
CREATE TRIGGER forget_cached AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idempotence.session
  FOR EACH STATEMENT EXECUTE FUNCTION idempotence.forget_cached();
CREATE TRIGGER forget_cached AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idempotence.secret
  FOR EACH STATEMENT EXECUTE FUNCTION idempotence.forget_cached();

-- An INSERT by SQL into these tables counts as a restore's, unless an inbox or the sweep says that it is its own. The
-- trigger notes it before the first row comes.
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_0 FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('0');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_1 FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('1');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_2 FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('2');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_long FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('long');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.session FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored();
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.reply FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('reply');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.checkpoint FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('checkpoint');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.lease FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('lease');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.secret FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('secret');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.audit FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('audit');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.granted FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('granted');

-- These tables have no unique key, so a second restore of the same dump would bring their rows twice.
CREATE TRIGGER undouble_restored AFTER INSERT ON idempotence.secret FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('secret');
CREATE TRIGGER undouble_restored AFTER INSERT ON idempotence.audit FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('audit');
CREATE TRIGGER undouble_restored AFTER INSERT ON idempotence.granted FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('granted');

-- The triggers fire also where session_replication_role is replica, as in some restores.
ALTER TABLE idempotence.session ENABLE ALWAYS TRIGGER forget_cached;
ALTER TABLE idempotence.session ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.secret ENABLE ALWAYS TRIGGER forget_cached;
ALTER TABLE idempotence.outcome_0 ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.outcome_1 ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.outcome_2 ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.reply ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.checkpoint ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.lease ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.secret ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.audit ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.granted ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.outcome_long ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.secret ENABLE ALWAYS TRIGGER undouble_restored;
ALTER TABLE idempotence.audit ENABLE ALWAYS TRIGGER undouble_restored;
ALTER TABLE idempotence.granted ENABLE ALWAYS TRIGGER undouble_restored;

-- Views for monitoring. They read the tables with the rights of the extension's owner, and idem_grant grants them. A
-- monitor, that is a role that may read health, sees all rows. Other roles see the rows of sessions that they own or may
-- use. These views are barriers, so no function of a reader's runs on a row that the reader does not see. The planner
-- may still move a leakproof comparison, such as that of a request's name, below the barrier, and EXPLAIN ANALYZE would
-- then count the rows that it has met. OFFSET 0 keeps every condition of a reader above.
--
-- A function is called with the reader's rights, also in a view. Inside a SECURITY DEFINER function nothing tells who
-- the reader is. So the functions that these views read from have no more rights than their caller. Each reads a view
-- of its own, which shows by the same rule, and so gives a caller nothing that the views do not show.

-- The client sessions at work. On a standby even the planning of a query on an unlogged table fails. So at_work() is a
-- PL/pgSQL function, which plans the query only where it executes it.
CREATE VIEW idempotence.shown_at_work WITH (security_barrier) AS
SELECT l.* FROM idempotence.session_live l
WHERE (SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT')) OR pg_catalog.pg_has_role(l.owner, 'USAGE')
OFFSET 0;

CREATE FUNCTION idempotence.at_work() RETURNS SETOF idempotence.session_live
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $at_work$
#variable_conflict error
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery() THEN
    RETURN QUERY SELECT * FROM idempotence.shown_at_work;
  END IF;
END
$at_work$;

-- The number of client sessions at work for each role, counted here so that not every session has to be returned.
CREATE FUNCTION idempotence.at_work_by_role(OUT owner regrole, OUT sessions bigint, OUT silent bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $at_work_by_role$
#variable_conflict error
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery() THEN
    RETURN QUERY
      SELECT l.owner, pg_catalog.count(*),
             pg_catalog.count(*) FILTER (WHERE (GREATEST(l.last_seen, (SELECT idempotence.up_since())) OPERATOR(pg_catalog.+) l.timeout)
                                                 OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp())
      FROM idempotence.session_live l GROUP BY l.owner;
  END IF;
END
$at_work_by_role$;

-- What may be known of the leases: neither token nor digest nor fingerprint. Where they are unlogged a standby has none,
-- and even the planning of a query on them fails there.
CREATE VIEW idempotence.shown_leases WITH (security_barrier) AS
SELECT l.session, l.stream, l.request, l.last, l.leased_until, l.holder, l.application, l.attempt, l.begun_at
FROM idempotence.lease l
LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) l.session
WHERE (SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
   OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE')
OFFSET 0;

CREATE FUNCTION idempotence.leases() RETURNS SETOF idempotence.shown_leases
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $leases$
#variable_conflict error
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery()
     OR (SELECT c.relpersistence FROM pg_catalog.pg_class c
         WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease')) OPERATOR(pg_catalog.=) 'p' THEN
    RETURN QUERY SELECT * FROM idempotence.shown_leases;
  END IF;
END
$leases$;

-- The planner takes a UNION ALL apart, and with it the barrier around it. So the barrier is around a query on it.
CREATE VIEW idempotence.sessions WITH (security_barrier) AS
SELECT v.* FROM (
SELECT s.name AS session,
       s.owner,
       CASE WHEN s.inbox THEN 'inbox' ELSE 'standing' END AS kind,
       COALESCE(s.ttl, idempotence.retention()) AS ttl,
       s.require_payload,
       s.time_keys,
       s.created_at,
       NULL::pg_catalog.text AS client,
       NULL::pg_catalog.text AS ordering,
       NULL::pg_catalog.int4 AS window_size,
       NULL::pg_catalog.interval AS timeout,
       true AS saved,
       NULL::pg_catalog.timestamptz AS last_seen,
       NULL::pg_catalog.timestamptz AS expires_at,
       NULL::pg_catalog.text AS ended,
       NULL::pg_catalog.timestamptz AS ended_at,
       s.usable_by,
       s.max_attempts,
       s.node,
       s.journal
FROM idempotence.session s
WHERE s.ended_at IS NULL AND s.name IS NOT NULL
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
UNION ALL
SELECT pg_catalog.concat_ws('@', COALESCE(l.id, s.id), COALESCE(l.node, s.node)),
       COALESCE(l.owner, s.owner),
       'client',
       NULL,
       false,
       false,
       COALESCE(l.created_at, s.created_at),
       COALESCE(l.client, s.client),
       CASE WHEN COALESCE(l.ordering, s.ordering) OPERATOR(pg_catalog.=) 'a' THEN 'any' ELSE 'strict' END,
       COALESCE(l.window_size, s.window_size),
       COALESCE(l.timeout, s.timeout),
       s.id IS NOT NULL,
       l.last_seen,
       -- While the server is down, no session's time passes. A lease keeps its session.
       GREATEST(GREATEST(l.last_seen, (SELECT idempotence.up_since())) OPERATOR(pg_catalog.+) l.timeout, k.leased_until),
       CASE WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{c,C}'::pg_catalog."char"[]) THEN 'closed'
            WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{e,E}'::pg_catalog."char"[]) THEN 'expired'
            WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{f,F}'::pg_catalog."char"[]) THEN 'fenced' END,
       s.ended_at,
       NULL,
       NULL,
       COALESCE(l.node, s.node),
       NULL
FROM idempotence.at_work() l
FULL JOIN (SELECT * FROM idempotence.session
           WHERE name IS NULL AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
                                   OR pg_catalog.pg_has_role(owner, 'USAGE'))) s ON s.id OPERATOR(pg_catalog.=) l.id
LEFT JOIN (SELECT k.session, pg_catalog.max(k.leased_until) AS leased_until FROM idempotence.leases() k GROUP BY k.session) k
       ON k.session OPERATOR(pg_catalog.=) l.id) v
OFFSET 0;

CREATE VIEW idempotence.outcomes WITH (security_barrier) AS
SELECT COALESCE(s.name, pg_catalog.concat_ws('@', s.id, s.node)) AS session,
       o.key AS request,
       CASE WHEN o.class OPERATOR(pg_catalog.=) 's' THEN 'succeeded' WHEN o.class OPERATOR(pg_catalog.=) 'c' THEN 'cancelled' ELSE 'failed' END AS status,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE') THEN o.response END AS response,
       pg_catalog.pg_column_size(o.response) AS response_bytes,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE') THEN o.fingerprint END AS fingerprint,
       o.recorded_by,
       o.recorded_at,
       CASE WHEN o.expires_at OPERATOR(pg_catalog.<>) 'infinity' THEN o.expires_at END AS expires_at,
       o.segment,
       o.stream,
       o.last
FROM (SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at,
             0 AS segment, NULL AS stream, NULL::pg_catalog.int8 AS last
      FROM idempotence.outcome_0
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, 1, NULL, NULL
      FROM idempotence.outcome_1
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, 2, NULL, NULL
      FROM idempotence.outcome_2
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, NULL, NULL, NULL
      FROM idempotence.outcome_long
      UNION ALL
      SELECT session, first::pg_catalog.text, class, response, fingerprint, recorded_by, recorded_at, 'infinity', NULL, stream, last
      FROM idempotence.reply
      WHERE class OPERATOR(pg_catalog.<>) 'd') o
JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) o.session
WHERE o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
OFFSET 0;

-- What was begun, committed, and is not done. It counts as long as an outcome would that was recorded when its lease ran
-- out or its checkpoint was written; in a client session, until its number is given up. In a client session that has ended
-- nobody can complete what a lease was for.
CREATE VIEW idempotence.unfinished WITH (security_barrier) AS
SELECT COALESCE(s.name, pg_catalog.concat_ws('@', u.id, s.node)) AS session,
       u.stream,
       u.request,
       CASE WHEN u.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'leased'
            WHEN k.lease_counts AND (s.ended_at IS NULL OR s.name IS NOT NULL) THEN 'run out'
            ELSE 'suspended' END AS state,
       u.leased_until,
       u.holder,
       u.application,
       u.attempt,
       u.point,
       u.since,
       u.last
FROM (SELECT COALESCE(l.session, c.session) AS id,
             COALESCE(l.stream, c.stream) AS stream,
             COALESCE(l.request, c.request) AS request,
             COALESCE(l.last, c.last) AS last,
             l.leased_until, l.holder, l.application, l.attempt, c.point, c.written_at,
             COALESCE(l.begun_at, c.written_at) AS since
      FROM idempotence.leases() l
      FULL JOIN idempotence.checkpoint c
        ON c.session OPERATOR(pg_catalog.=) l.session AND c.stream OPERATOR(pg_catalog.=) l.stream
       AND c.request OPERATOR(pg_catalog.=) l.request) u
LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) u.id
CROSS JOIN LATERAL (
  SELECT CASE WHEN s.id IS NOT NULL AND s.name IS NULL THEN u.leased_until IS NOT NULL
              ELSE (u.leased_until OPERATOR(pg_catalog.+) COALESCE(s.ttl, idempotence.retention()))
                     OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() END,
         CASE WHEN s.id IS NOT NULL AND s.name IS NULL THEN u.written_at IS NOT NULL
              ELSE (GREATEST(u.written_at, u.leased_until) OPERATOR(pg_catalog.+) COALESCE(s.ttl, idempotence.retention()))
                     OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() END) k (lease_counts, counts)
WHERE (k.lease_counts OR k.counts)
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
  AND NOT (s.id IS NOT NULL AND s.name IS NULL
           AND EXISTS (SELECT FROM idempotence.stream m
                       WHERE m.session OPERATOR(pg_catalog.=) u.id AND m.stream OPERATOR(pg_catalog.=) u.stream
                         AND m.acked OPERATOR(pg_catalog.>=) u.request::pg_catalog.int8))
OFFSET 0;

-- What is watched in shared memory. The functions decide which rows their caller sees. Where the library is not preloaded
-- they raise 55000.
CREATE VIEW idempotence.stats WITH (security_barrier) AS
SELECT s.session, s.owner, s.kind, s.started, s.taken_over, s.replayed, s.recorded, s.failed, s.cancelled, s.released, s.in_progress,
       s.mismatched, s.discarded, s.fenced, s.out_of_sequence, s.unrecorded, s.waits, s.wait_ms, s.since
FROM idempotence.stats() s;

CREATE VIEW idempotence.errors WITH (security_barrier) AS
SELECT e.at, e.session, e.stream, e.request, e.role, e.sqlstate, e.application, e.pid
FROM idempotence.errors() e;

-- The prepared transactions of this database, with the virtualtransaction that pg_locks gives them. It is found by
-- the lock that each prepared transaction holds on its own transaction id.
CREATE VIEW idempotence.prepared AS
SELECT l.virtualtransaction, p.gid, p.prepared, p.owner
FROM pg_catalog.pg_prepared_xacts p
JOIN pg_catalog.pg_locks l
  ON l.locktype OPERATOR(pg_catalog.=) 'transactionid' AND l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock' AND l.pid IS NULL
 AND l.transactionid OPERATOR(pg_catalog.=) p.transaction
WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database();

-- The locks of requests in this database, by the two numbers that pg_locks shows of each: who waits, and which prepared
-- transaction has it.
CREATE VIEW idempotence.request_locks AS
SELECT l.classid, l.objid,
       (pg_catalog.count(*) FILTER (WHERE NOT l.granted))::pg_catalog.int4 AS waiters,
       pg_catalog.min(l.waitstart) AS waited_for_since,
       pg_catalog.min(p.gid) AS prepared,
       pg_catalog.min(p.prepared) AS prepared_at,
       pg_catalog.min(p.owner) AS prepared_by
FROM pg_catalog.pg_locks l
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.classid, l.objid;

-- Who holds up a process, and waits for no lock itself: a process (root), or a prepared transaction (root is 0, and
-- prepared is its gid). NULL: the process waits for no lock of anybody. Where several hold it up, it is one of them.
CREATE FUNCTION idempotence.root_blocker(pid integer, OUT root integer, OUT prepared text)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $root_blocker$
#variable_conflict error
DECLARE
  seen pg_catalog.int4[] := ARRAY[pid];
  last pg_catalog.int4 := pid;
  next pg_catalog.int4;
BEGIN
  -- Processes that wait for each other are no end of the way. PostgreSQL ends one of them soon.
  WHILE pg_catalog.cardinality(seen) OPERATOR(pg_catalog.<) 100 LOOP
    SELECT b.pid INTO next FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(last)) b (pid)
    WHERE b.pid OPERATOR(pg_catalog.<>) ALL (seen) LIMIT 1;
    EXIT WHEN NOT FOUND;
    root := next;
    EXIT WHEN next OPERATOR(pg_catalog.=) 0;
    last := next;
    seen := pg_catalog.array_append(seen, next);
  END LOOP;
  IF root OPERATOR(pg_catalog.=) 0 THEN
    -- pg_blocking_pids() does not tell which. It has the lock that the last process waits for, and, as each prepared
    -- transaction, the lock on its own transaction id.
    SELECT p.gid INTO prepared
    FROM pg_catalog.pg_locks w
    JOIN pg_catalog.pg_locks h
      ON h.pid IS NULL AND h.granted AND h.locktype OPERATOR(pg_catalog.=) w.locktype
     -- Locks of one type have the same columns, and NULL in all others.
     AND pg_catalog.concat_ws(' ', h.database, h.relation, h.page, h.tuple, h.virtualxid, h.transactionid, h.classid, h.objid, h.objsubid)
         OPERATOR(pg_catalog.=)
         pg_catalog.concat_ws(' ', w.database, w.relation, w.page, w.tuple, w.virtualxid, w.transactionid, w.classid, w.objid, w.objsubid)
    JOIN pg_catalog.pg_locks t
      ON t.pid IS NULL AND t.locktype OPERATOR(pg_catalog.=) 'transactionid' AND t.mode OPERATOR(pg_catalog.=) 'ExclusiveLock'
     AND t.virtualtransaction OPERATOR(pg_catalog.=) h.virtualtransaction
    JOIN pg_catalog.pg_prepared_xacts p ON p.transaction OPERATOR(pg_catalog.=) t.transactionid
    WHERE w.pid OPERATOR(pg_catalog.=) last AND NOT w.granted
    ORDER BY p.prepared LIMIT 1;
  END IF;
END
$root_blocker$;

-- A prepared transaction that was prepared before the server was started shows without the names of its requests, and
-- only to monitors: shared memory does not know them any more.
CREATE VIEW idempotence.in_flight WITH (security_barrier) AS
SELECT h.session, h.stream, h.request, h.pid, COALESCE(h.role, l.prepared_by::pg_catalog.regrole) AS role, h.application,
       h.client_addr::pg_catalog.inet AS client_addr, COALESCE(h.since, l.prepared_at) AS since, h.state,
       COALESCE(l.waiters, 0) AS waiters, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) l.waited_for_since AS longest_wait,
       l.prepared, COALESCE(h.requests, 1) AS requests, h.backend_state, h.wait_event,
       b.root AS blocked_by, b.prepared AS blocked_by_prepared
FROM idempotence.held_requests() h
FULL JOIN idempotence.request_locks l ON l.classid OPERATOR(pg_catalog.=) h.lock_high AND l.objid OPERATOR(pg_catalog.=) h.lock_low
CROSS JOIN LATERAL idempotence.root_blocker(CASE WHEN pg_catalog.starts_with(h.wait_event, 'Lock/') THEN h.pid END) b
WHERE h.pid IS NOT NULL
   OR (l.prepared IS NOT NULL AND (h.session IS NOT NULL OR pg_catalog.has_table_privilege('idempotence.health', 'SELECT')))
OFFSET 0;
