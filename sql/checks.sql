-- The checks of the view health, one view for each: level is 0 (ok), 1 (warning) or 2 (critical), detail is what was
-- found, hint is what to do if the level is not 0. The function idempotence.checks() reads them with the rights of the
-- extension's owner, after it has loaded the library. docs/operations.md lists all thresholds.

-- What the checks of the sweep have in common. late is far beyond what is normal.
CREATE VIEW idempotence.upkeep AS
SELECT v.launcher, v.last_sweep, v.standby, v.now, v.visited,
       CASE WHEN v.visited THEN (idempotence.naptime() OPERATOR(pg_catalog.*) 10) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
            -- No worker comes here. Whoever sweeps instead is asked to do so daily.
            ELSE '25 hours'::pg_catalog.interval END AS late,
       -- The moment that lateness counts from: the last sweep. If none is known, it is the moment when the
       -- server came up, or when the extension or a restore brought the tables, if that is later: before it
       -- nothing was to be swept. A moment in the future, noted by a clock that was ahead, does not count.
       COALESCE(v.last_sweep, GREATEST((SELECT idempotence.up_since()),
                                       (SELECT g.sessions_at FROM idempotence.segment g
                                        WHERE g.number OPERATOR(pg_catalog.=) 0 AND g.sessions_at OPERATOR(pg_catalog.<=) v.now))) AS since
FROM (SELECT idempotence.launcher() AS launcher, idempotence.is_visited() AS visited, idempotence.last_sweep() AS last_sweep,
             pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.clock_timestamp() AS now) v;

CREATE VIEW idempotence.check_worker AS
SELECT CASE WHEN w.standby OR w.launcher OPERATOR(pg_catalog.>) 0 THEN 0
            WHEN w.launcher IS NOT NULL THEN 2
            WHEN w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '25 hours'::pg_catalog.interval) THEN 0
            ELSE 1 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
            WHEN w.launcher OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('the launcher is process %s', w.launcher)
            WHEN w.launcher IS NULL THEN 'the library is not preloaded; somebody else has to CALL idem_sweep()'
            ELSE 'the launcher does not run' END AS detail,
       CASE WHEN w.launcher IS NULL
            THEN 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep().'
            ELSE 'The server log tells why. A launcher that failed is started again within seconds; one that found max_worker_processes too small at server start needs that raised, and a restart.' END AS hint
FROM idempotence.upkeep w;

CREATE VIEW idempotence.check_restarts AS
SELECT CASE WHEN r.lately OPERATOR(pg_catalog.>) 3 THEN 1 ELSE 0 END AS level,
       CASE WHEN r.lately IS NULL THEN 'the library is not preloaded; there is no launcher'
            ELSE pg_catalog.format('since the server came up the launcher was started anew %s times, %s times in the last hour', r.ever, r.lately) END AS detail,
       'The server log tells what ended it. While it is not there nothing is swept; nothing else is wrong.' AS hint
FROM (SELECT idempotence.restarts(false) AS ever, idempotence.restarts(true) AS lately) r;

CREATE VIEW idempotence.check_sweep AS
SELECT CASE WHEN w.standby OR w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) w.late) THEN 0 ELSE 1 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
            WHEN w.last_sweep IS NULL THEN pg_catalog.format('not swept yet since %s', pg_catalog.date_trunc('second', w.since))
            WHEN w.last_sweep OPERATOR(pg_catalog.>) w.now
            THEN pg_catalog.format('swept at %s by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', w.last_sweep))
            ELSE pg_catalog.format('swept %s ago', pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) w.last_sweep)) END AS detail,
       CASE WHEN w.visited THEN 'The server log tells of errors. Is this database a template? The worker does not visit those.'
            WHEN w.launcher IS NULL THEN 'CALL idem_sweep(), and have a scheduler do so at least daily.'
            ELSE 'The setting idempotence.databases leaves this database out: name it there, or have a scheduler CALL idem_sweep() at least daily.' END AS hint
FROM idempotence.upkeep w;

CREATE VIEW idempotence.check_ring AS
SELECT -- Critical: a segment is late by its whole keep, although a sweep came by when it was late already.
       CASE WHEN pg_catalog.bool_or(NOT s.is_ahead AND (s.due_at OPERATOR(pg_catalog.+) s.keep) OPERATOR(pg_catalog.<) w.now AND (s.due_at OPERATOR(pg_catalog.+) w.late) OPERATOR(pg_catalog.<) w.last_sweep) THEN 2
            WHEN pg_catalog.count(s.segment) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(
         CASE WHEN s.is_ahead
              THEN pg_catalog.format('segment %s was opened or closed at %s, by a clock that was ahead and has been set back', s.segment,
                     pg_catalog.date_trunc('second', GREATEST(s.opened_at, s.closed_at)))
              ELSE pg_catalog.format('segment %s should have been %s %s ago%s', s.segment,
                     CASE s.state WHEN 'current' THEN 'turned away from' WHEN 'closing' THEN 'closed' ELSE 'emptied' END,
                     pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) s.due_at),
                     CASE WHEN s.held_by IS NOT NULL THEN pg_catalog.concat('; held by ', s.held_by)
                          WHEN w.last_sweep OPERATOR(pg_catalog.<) s.due_at THEN '; not swept since' ELSE '' END) END,
                '. ' ORDER BY s.segment) FILTER (WHERE s.segment IS NOT NULL), 'nothing is overdue') AS detail,
       CASE WHEN pg_catalog.bool_or(s.held_by IS NOT NULL)
            THEN 'Nothing is lost; expired outcomes take space until then. End the transaction that holds the segment (pg_terminate_backend, ROLLBACK PREPARED), or wait for its end.'
            ELSE 'Nothing is lost; expired outcomes take space until then. Nobody holds the segment: the next sweep puts it right. CALL idem_sweep() does it by hand, and tells what is in its way; if none comes by itself, the rows worker and sweep tell why.' END AS hint
FROM idempotence.upkeep w
LEFT JOIN (SELECT s.*, GREATEST(s.opened_at, s.closed_at) OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) AS is_ahead
           FROM idempotence.segments s) s
  ON s.is_ahead OR s.due_at OPERATOR(pg_catalog.<) ((w.now OPERATOR(pg_catalog.-) w.late) OPERATOR(pg_catalog.-) '1 minute'::pg_catalog.interval);

-- The transactions that hold locks on requests and sessions of this database. A view of its own, so that only one place
-- names the classes of these locks.
CREATE VIEW idempotence.holding AS
SELECT l.pid, l.virtualtransaction, pg_catalog.count(*) FILTER (WHERE l.objsubid OPERATOR(pg_catalog.=) 7649) AS requests
FROM pg_catalog.pg_locks l
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
  AND l.objsubid OPERATOR(pg_catalog.>=) 7649 AND l.objsubid OPERATOR(pg_catalog.<=) 7658
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.pid, l.virtualtransaction;

CREATE VIEW idempotence.check_holders AS
SELECT CASE WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.>) 0 OR NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 1 ELSE 0 END AS level,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'the owner of the extension may not see since when others have their transactions open'
            WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.format('no transaction has held a request for more than %s', t.threshold)
            ELSE pg_catalog.concat(pg_catalog.string_agg(h.told, '; ' ORDER BY h.place) FILTER (WHERE h.place OPERATOR(pg_catalog.<=) 5),
                   CASE WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.>) 5 THEN pg_catalog.format('; and %s more', pg_catalog.count(h.pid) OPERATOR(pg_catalog.-) 5) END) END AS detail,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'GRANT pg_read_all_stats to the owner of the extension.'
            ELSE 'Their requests are in progress until they end; then the ring waits for them too. Where the client hangs, pg_terminate_backend(pid) has a retry execute the request; idle_in_transaction_session_timeout does so by itself.' END AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) t
LEFT JOIN (SELECT l.pid, a.xact_start, pg_catalog.row_number() OVER (ORDER BY a.xact_start) AS place,
                  pg_catalog.format('process %s (%s), since %s, holds %s', l.pid,
                    pg_catalog.concat_ws(', ', a.usename, NULLIF(a.application_name, ''), a.state), pg_catalog.date_trunc('second', a.xact_start),
                    CASE l.requests WHEN 0 THEN 'a session' WHEN 1 THEN 'a request' ELSE pg_catalog.concat(l.requests, ' requests') END) AS told
           FROM idempotence.holding l JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid) h
  ON h.xact_start OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_waiters AS
SELECT CASE WHEN pg_catalog.max(r.waiters) OPERATOR(pg_catalog.>) w.most OR pg_catalog.max(r.waited) OPERATOR(pg_catalog.>) w.threshold THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(r.waiters) OPERATOR(pg_catalog.=) 0 THEN 'nobody waits for a request'
            ELSE pg_catalog.concat(pg_catalog.format('%s wait for %s requests; at most %s for the same one; the longest wait has lasted %s',
                          pg_catalog.sum(r.waiters), pg_catalog.count(r.waiters), pg_catalog.max(r.waiters), pg_catalog.date_trunc('second', pg_catalog.max(r.waited))),
                   -- Only where the library is preloaded are requests known by their names.
                   CASE WHEN (SELECT idempotence.launcher()) IS NOT NULL
                        THEN (SELECT pg_catalog.format('; most wait for request %s of session %s, which %s', pg_catalog.to_json(f.request), pg_catalog.to_json(f.session),
                                       COALESCE('process ' OPERATOR(pg_catalog.||) f.pid, pg_catalog.format('prepared transaction %L', f.prepared)) OPERATOR(pg_catalog.||) ' has')
                              FROM idempotence.in_flight f WHERE f.waiters OPERATOR(pg_catalog.>) 0 AND f.request IS NOT NULL
                              ORDER BY f.waiters DESC, f.since LIMIT 1) END) END AS detail,
       'Who sends the same request again and again, without waiting for its answer? pg_blocking_pids(pid) of a waiter names who has the request; the row holders names who has had one for long.' AS hint
FROM (SELECT idempotence.setting('idempotence.warn_waiters')::pg_catalog.int8 AS most,
             pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) w
LEFT JOIN (SELECT pg_catalog.count(*) AS waiters,
                  -- A wait that has only begun has no moment yet.
                  GREATEST(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) COALESCE(pg_catalog.min(l.waitstart), pg_catalog.clock_timestamp()), '0'::pg_catalog.interval) AS waited
           FROM pg_catalog.pg_locks l
           WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649 AND NOT l.granted
             AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
           GROUP BY l.classid, l.objid) r ON true
GROUP BY w.most, w.threshold;

CREATE VIEW idempotence.check_prepared_transactions AS
SELECT CASE WHEN pg_catalog.count(p.gid) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('%L holds requests since %s', p.gid, pg_catalog.date_trunc('second', p.prepared)), ', ' ORDER BY p.prepared) FILTER (WHERE p.gid IS NOT NULL),
                pg_catalog.format('none holds a request for more than %s', t.threshold)) AS detail,
       'COMMIT PREPARED or ROLLBACK PREPARED them: their requests are in progress until then.' AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) t
LEFT JOIN (SELECT p.gid, p.prepared FROM idempotence.prepared p
           WHERE EXISTS (SELECT FROM idempotence.holding l
                         WHERE l.pid IS NULL AND l.virtualtransaction OPERATOR(pg_catalog.=) p.virtualtransaction)) p
  ON p.prepared OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_deadlocks AS
SELECT CASE WHEN d.lately OPERATOR(pg_catalog.>) 10 THEN 1 ELSE 0 END AS level,
       CASE WHEN d.lately IS NULL THEN 'not counted, since the library is not preloaded'
            ELSE pg_catalog.format('%s waits for a request or a session ended in a deadlock in the last hour', d.lately) END AS detail,
       'The server log names the request of the one that got 40P01. Transactions that begin several requests, or that also lock rows, have to do so in the same order everywhere. That one was rolled back, and a retry is right.' AS hint
FROM (SELECT idempotence.deadlocks() AS lately) d;

CREATE VIEW idempotence.check_lock_table AS
SELECT CASE WHEN l.taken OPERATOR(pg_catalog.>=) (t.places OPERATOR(pg_catalog.*) 0.8) THEN 2 WHEN l.taken OPERATOR(pg_catalog.>=) (t.places OPERATOR(pg_catalog.*) 0.5) THEN 1 ELSE 0 END AS level,
       pg_catalog.format('%s of %s places are taken, %s of them by requests', l.taken, t.places, l.requests) AS detail,
       'In a full table whoever asks for a lock gets an error (53200), in every database. Begin fewer requests in one transaction, use an inbox, which takes no lock for each request, or raise max_locks_per_transaction, which takes a restart.' AS hint
FROM (SELECT pg_catalog.count(*) AS taken, pg_catalog.count(*) FILTER (WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649) AS requests
      FROM pg_catalog.pg_locks l WHERE NOT l.fastpath AND l.mode OPERATOR(pg_catalog.<>) 'SIReadLock') l
CROSS JOIN (SELECT idempotence.lock_table_size() AS places) t;

-- Whether the leases cannot be seen here: they are unlogged, and this is a standby.
CREATE VIEW idempotence.blind AS
SELECT pg_catalog.pg_is_in_recovery() AND c.relpersistence OPERATOR(pg_catalog.=) 'u' AS blind
FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease');

CREATE VIEW idempotence.check_leases AS
SELECT CASE WHEN pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN (SELECT b.blind FROM idempotence.blind b) THEN 'this is a standby, and leases are unlogged; the primary knows them'
            ELSE pg_catalog.concat(pg_catalog.count(*) FILTER (WHERE u.state OPERATOR(pg_catalog.=) 'leased'), ' requests are leased',
                   '; ' OPERATOR(pg_catalog.||) (NULLIF(pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3), 0)
                     OPERATOR(pg_catalog.||) (' unfinished ones were taken over more than three times, one by attempt ' OPERATOR(pg_catalog.||) pg_catalog.max(u.attempt)))) END AS detail,
       'A request that was taken over again and again may be what its workers die of, or its lease is too short for the work. The view unfinished tells who has it. max_attempts of a session gives such requests up.' AS hint
FROM idempotence.unfinished u;

CREATE VIEW idempotence.check_run_out AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN (SELECT b.blind FROM idempotence.blind b) THEN 'this is a standby, and leases are unlogged; the primary knows them'
            WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('the lease of %s requests ran out more than five minutes ago, and nobody has taken them over; the first at %s, most of them in session %s',
                   pg_catalog.count(*), pg_catalog.date_trunc('second', pg_catalog.min(u.leased_until)), pg_catalog.to_json(pg_catalog.mode() WITHIN GROUP (ORDER BY u.session)))
            ELSE 'no lease ran out more than five minutes ago' END AS detail,
       'What they were to do outside the database may have happened. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record() or idem_force_release(). The view unfinished lists them.' AS hint
FROM idempotence.unfinished u
WHERE u.state OPERATOR(pg_catalog.=) 'run out' AND u.leased_until OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval);

CREATE VIEW idempotence.check_suspended AS
SELECT CASE WHEN pg_catalog.count(u.session) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(u.session) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('%s requests have been suspended at a checkpoint for more than %s; the first since %s, most of them in session %s',
                   pg_catalog.count(u.session), t.threshold, pg_catalog.date_trunc('second', pg_catalog.min(u.since)), pg_catalog.to_json(pg_catalog.mode() WITHIN GROUP (ORDER BY u.session)))
            ELSE pg_catalog.format('no request has been suspended for more than %s', t.threshold) END AS detail,
       'Nobody goes on with them. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record(), or wait until it expires. The view unfinished lists them.' AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_suspended')::pg_catalog.float8) AS threshold) t
LEFT JOIN idempotence.unfinished u ON u.state OPERATOR(pg_catalog.=) 'suspended' AND u.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_client_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most) THEN 2 WHEN pg_catalog.bool_or(o.is_near) THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'this is a standby; the primary knows which are at work'
            ELSE pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' at work, of which ', COALESCE(pg_catalog.sum(o.silent), 0),
                   ' are silent for longer than their timeout',
                   pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
                     FILTER (WHERE o.is_near)) END AS detail,
       'At the limit registering is refused (ID009). Close sessions that are done with, shorten timeouts, or raise idempotence.max_sessions_per_role.' AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near
      FROM (SELECT l.*, idempotence.max_sessions_per_role() AS most FROM idempotence.at_work_by_role() l) s) o;

CREATE VIEW idempotence.check_standing_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most) THEN 2 WHEN pg_catalog.bool_or(o.is_many) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' standing sessions, of which ', COALESCE(pg_catalog.sum(o.dropped), 0), ' are dropped',
         pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
           FILTER (WHERE o.is_many)) AS detail,
       'A session is a series of requests, not one of them: use few sessions, with many keys. If so many are right, raise idempotence.warn_standing_sessions. At idempotence.max_standing_sessions_per_role making one more is refused (ID009).' AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>) s.threshold OR s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_many
      FROM (SELECT n.owner, pg_catalog.count(*) AS sessions, pg_catalog.count(n.ended_at) AS dropped,
                   idempotence.setting('idempotence.warn_standing_sessions')::pg_catalog.int8 AS threshold,
                   idempotence.setting('idempotence.max_standing_sessions_per_role')::pg_catalog.int8 AS most
            FROM idempotence.session n WHERE n.name IS NOT NULL GROUP BY n.owner) s) o;

CREATE VIEW idempotence.check_owners AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         'sessions without an owner: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.ownerless AND s.place OPERATOR(pg_catalog.<=) 20),
         'lent to a role that was dropped: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.lent_to_nobody AND s.place OPERATOR(pg_catalog.<=) 20),
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 20 THEN pg_catalog.format('and %s more', pg_catalog.count(*) OPERATOR(pg_catalog.-) 20)
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'every standing session has its owner' END) AS detail,
       'A session without an owner can be used by superusers, and by the role that it is lent to. Give it to a role: idem_alter_session(session, owner => ...). A loan to a dropped role ends by itself within the hour.' AS hint
FROM (SELECT s.*, pg_catalog.row_number() OVER (ORDER BY s.name) AS place
      FROM (SELECT s.name, o.oid IS NULL AS ownerless, s.usable_by IS NOT NULL AND b.oid IS NULL AS lent_to_nobody
            FROM idempotence.session s
            LEFT JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) s.owner::pg_catalog.oid
            LEFT JOIN pg_catalog.pg_roles b ON b.oid OPERATOR(pg_catalog.=) s.usable_by::pg_catalog.oid
            WHERE s.name IS NOT NULL AND s.ended_at IS NULL) s
      WHERE s.ownerless OR s.lent_to_nobody) s;

-- The tables that a restore has left out. If the key of the digests was restored, each of these tables must have been
-- restored too, since pg_dump has a COPY even of an empty table. Where leases are unlogged a dump may leave them out. One
-- row, with NULL where nothing is missing.
CREATE VIEW idempotence.missing AS
SELECT pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name) AS missing
FROM pg_catalog.unnest('{session,outcome_0,outcome_1,outcome_2,reply,checkpoint,lease}'::pg_catalog.text[]) t (name)
WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'secret')
  AND NOT EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) t.name)
  AND (t.name OPERATOR(pg_catalog.<>) 'lease'
       OR NOT EXISTS (SELECT FROM idempotence.persistence p WHERE p.what OPERATOR(pg_catalog.=) 'claims' AND p.unlogged));

CREATE VIEW idempotence.check_restore AS
SELECT CASE WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0) OR m.missing IS NOT NULL THEN 2
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN m.missing IS NOT NULL
            THEN pg_catalog.format('of what was restored since %s these tables are missing: %s', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)), m.missing)
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN pg_catalog.format('what was restored since %s lacks sessions: requests that were done may be executed again', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('what was restored since %s was not looked through yet', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            ELSE 'nothing that was restored lacks its session' END AS detail,
       CASE WHEN m.missing IS NOT NULL
            THEN 'Their COPY has failed, or is still to come: requests that were done may be executed again. Create the roles that the restore missed and restore the data of these tables again, or give up what they had: idem_accept_restore(). No session that is new can be made until then.'
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN 'No session that is new can be made. Create the roles that the restore missed and restore the data of table idempotence.session again, or give up what has no session: idem_accept_restore().'
            ELSE 'The sweep looks through it. Where no worker visits this database, CALL idem_sweep().' END AS hint
FROM idempotence.missing m LEFT JOIN idempotence.restore r ON r.orphans IS DISTINCT FROM 0
GROUP BY m.missing;

-- The beginning of a table's last page.
CREATE FUNCTION idempotence.last_page(relation text) RETURNS tid
LANGUAGE sql STABLE PARALLEL SAFE
AS $last_page$
  SELECT pg_catalog.format('(%s,0)', GREATEST((pg_catalog.pg_relation_size(pg_catalog.to_regclass(relation)) OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::pg_catalog.int8) OPERATOR(pg_catalog.-) 1, 0))::pg_catalog.tid
$last_page$;

-- Some outcomes of each table: those of the first page and those of the last one. Each is found without a look at the
-- others, however many there are.
CREATE VIEW idempotence.sample AS
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_0')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_1')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_2')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_long');

-- Digests are made with the key in use. So the sample is looked at only if there is one, and nothing is missing.
CREATE VIEW idempotence.check_secret AS
SELECT CASE WHEN f.fault IS NULL THEN 0 ELSE 2 END AS level,
       COALESCE(f.fault, 'outcomes are found by the key that they were recorded with') AS detail,
       'Only part of a dump was restored, or a dump over sessions that were there: requests that were done may be executed again, or all are refused (XX001). Restore all tables of the extension into a database in which it has no session.' AS hint
FROM (SELECT CASE WHEN k.keys OPERATOR(pg_catalog.=) 0 THEN 'table idempotence.secret has no row'
                  WHEN k.used OPERATOR(pg_catalog.>) 1 THEN 'table idempotence.secret has two keys in use'
                  WHEN k.used OPERATOR(pg_catalog.=) 0 AND EXISTS (SELECT FROM idempotence.session)
                  THEN 'there are sessions, but table idempotence.secret has no key in use'
                  WHEN k.used OPERATOR(pg_catalog.=) 1 AND (SELECT m.missing IS NULL FROM idempotence.missing m)
                       AND EXISTS (SELECT FROM idempotence.sample o WHERE NOT idempotence.digest_fits(o.digest, o.session, o.key))
                  THEN 'there are outcomes that were recorded with another key than the one in use' END AS fault
      FROM (SELECT pg_catalog.count(*) AS keys, pg_catalog.count(DISTINCT s.key) FILTER (WHERE s.in_use_since IS NOT NULL) AS used
            FROM idempotence.secret s) k) f;

-- The settings that matter to requests, as they are for each role that has its own: first what is set for the role in this
-- database, then for the role, then for the database, then for all roles, then for the server. What is set for the
-- server is known from the session that asks, unless something else is set for that session. Times are in milliseconds.
CREATE VIEW idempotence.effective AS
SELECT r.role, n.name, v.value, v.place
FROM (SELECT '0'::pg_catalog.oid AS role
      UNION
      SELECT s.setrole FROM pg_catalog.pg_db_role_setting s
      WHERE s.setdatabase OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
         OR s.setdatabase OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) r
CROSS JOIN pg_catalog.unnest('{idempotence.unrecorded,idempotence.coordinate,idempotence.wait,statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[]) n (name)
CROSS JOIN LATERAL (
  SELECT e.value, e.place
  FROM (SELECT pg_catalog.substr(c.entry, pg_catalog.strpos(c.entry, '=') OPERATOR(pg_catalog.+) 1) AS value,
               CASE WHEN s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AND s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN pg_catalog.format('for role %s in this database', s.setrole::pg_catalog.regrole)
                    WHEN s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN pg_catalog.format('for role %s', s.setrole::pg_catalog.regrole)
                    WHEN s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN 'for this database'
                    ELSE 'for all roles' END AS place,
               s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AS of_role, s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AS of_database
        FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c (entry)
        WHERE s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY['0'::pg_catalog.oid, r.role])
          AND (s.setdatabase OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
               OR s.setdatabase OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))
          AND pg_catalog.lower(pg_catalog.split_part(c.entry, '=', 1)) OPERATOR(pg_catalog.=) n.name
        UNION ALL
        SELECT p.reset_val, 'for the server', NULL, NULL
        FROM pg_catalog.pg_settings p
        WHERE p.name OPERATOR(pg_catalog.=) n.name AND p.source OPERATOR(pg_catalog.<>) 'client'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c (entry)
                          WHERE s.setrole OPERATOR(pg_catalog.=) (SELECT o.oid FROM pg_catalog.pg_roles o WHERE o.rolname OPERATOR(pg_catalog.=) SESSION_USER)
                            AND pg_catalog.lower(pg_catalog.split_part(c.entry, '=', 1)) OPERATOR(pg_catalog.=) n.name)) e
  ORDER BY e.of_role DESC NULLS LAST, e.of_database DESC NULLS LAST LIMIT 1) v
WHERE r.role OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
   -- Only for a role that may work with requests, and only where something is set for it.
   OR pg_catalog.has_function_privilege(r.role, '@extschema@.idem_record(text, text, jsonb, boolean, bigint, interval, text)', 'EXECUTE');

CREATE VIEW idempotence.check_unrecorded AS
SELECT CASE WHEN pg_catalog.count(u.place) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('idempotence.unrecorded is %s %s', u.value, u.place), '; ' ORDER BY u.place),
                'a commit with an unrecorded request is refused') AS detail,
       'A request may take effect without an outcome, and a retry executes it again. Set it to error once all programs record (RESET it for a role or a database).' AS hint
FROM (SELECT DISTINCT e.value, e.place FROM idempotence.effective e
      WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.unrecorded' AND pg_catalog.lower(e.value) OPERATOR(pg_catalog.<>) 'error') u;

CREATE VIEW idempotence.check_coordinator AS
SELECT CASE WHEN c.library IS NOT NULL AND o.places IS NOT NULL OR c.library IS NULL AND c.citus THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         CASE WHEN c.library IS NOT NULL THEN pg_catalog.format('%s is loaded, and can be asked for a two-phase commit', c.library)
              WHEN c.citus THEN 'the extension citus is here, and its library does not export the function by which it is asked for a two-phase commit'
              ELSE 'no commit coordinator is loaded that can be asked for a two-phase commit' END,
         CASE WHEN c.library IS NOT NULL THEN o.places END,
         CASE WHEN c.tables OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('%s of postgres_fdw, which commits on their servers before the commit here, and knows no two-phase commit',
                CASE c.tables WHEN 1 THEN '1 table is' ELSE pg_catalog.format('%s tables are', c.tables) END) END) AS detail,
       CASE WHEN c.library IS NULL
            THEN 'A crash between the commit on a worker and the commit here leaves an effect without its outcome, and a retry executes it again. docs/scaling.md, Commit coordinators, tells how to build Citus, or what to write besides.'
            ELSE 'A crash between the commit on another server and the commit here leaves an effect without its outcome, and a retry executes it again. RESET idempotence.coordinate there.' END AS hint
FROM (SELECT idempotence.coordinator() AS library,
             EXISTS (SELECT FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'citus') AS citus,
             (SELECT pg_catalog.count(*) FROM pg_catalog.pg_foreign_table t
              JOIN pg_catalog.pg_foreign_server s ON s.oid OPERATOR(pg_catalog.=) t.ftserver
              JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
              JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) w.fdwhandler
              WHERE p.prosrc OPERATOR(pg_catalog.=) 'postgres_fdw_handler') AS tables) c
CROSS JOIN (SELECT pg_catalog.string_agg(u.told, '; ' ORDER BY u.told) AS places
            FROM (SELECT DISTINCT pg_catalog.format('idempotence.coordinate is %s %s', e.value, e.place) AS told FROM idempotence.effective e
                  WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.coordinate' AND pg_catalog.lower(e.value) OPERATOR(pg_catalog.<>) 'auto') u) o;

-- The name of this server, so that a DBA finds it where the setting is empty. A session that is bound to another node is
-- as it should be.
CREATE VIEW idempotence.check_node AS
SELECT 0 AS level,
       pg_catalog.format('this is node "%s"%s; %s standing sessions are bound to it, %s to other nodes', n.name,
         CASE WHEN idempotence.setting('idempotence.node') OPERATOR(pg_catalog.=) '' THEN ', a name made from the system''s identifier' END,
         pg_catalog.count(*) FILTER (WHERE s.node OPERATOR(pg_catalog.=) n.name),
         pg_catalog.count(*) FILTER (WHERE s.node OPERATOR(pg_catalog.<>) n.name)) AS detail,
       NULL::pg_catalog.text AS hint
FROM (SELECT @extschema@.idem_node() AS name) n
LEFT JOIN idempotence.session s ON s.name IS NOT NULL AND s.ended_at IS NULL
GROUP BY n.name;
CREATE VIEW idempotence.check_journals AS
SELECT -- Never critical: the tables are those of users, and whoever makes sessions could raise the alarm at will.
       CASE WHEN pg_catalog.bool_or(j.is_gone OR j.unswept IS NOT NULL) THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('journal %s of %s %s', j.journal, j.sessions,
                  CASE WHEN j.is_gone THEN 'is not there'
                       ELSE pg_catalog.concat('cannot be swept: ', j.unswept) END),
                  '; ' ORDER BY j.journal) FILTER (WHERE j.is_gone OR j.unswept IS NOT NULL),
                CASE pg_catalog.count(*) WHEN 0 THEN 'no session has a journal' ELSE pg_catalog.format('journals of sessions, all of them there: %s', pg_catalog.count(*)) END) AS detail,
       CASE WHEN pg_catalog.bool_or(j.is_gone)
            THEN 'All requests of these sessions fail (42P01), since nobody can tell what was done. The owner restores the table, or gives it its name back.'
            ELSE 'What has expired in the table takes space until then. It is the owner''s to put right.' END AS hint
FROM (SELECT s.journal, pg_catalog.to_regclass(s.journal) IS NULL AS is_gone, idempotence.unswept(s.journal) AS unswept,
             pg_catalog.string_agg(pg_catalog.format('%I (role %s)', s.name, s.owner), ', ' ORDER BY s.name) AS sessions
      FROM idempotence.session s
      WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY s.journal) j;

CREATE VIEW idempotence.check_settings AS
SELECT CASE WHEN pg_catalog.count(c.told) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(c.told, '; ' ORDER BY c.told), 'no setting contradicts another') AS detail,
       'Make idempotence.wait shorter than the timeouts, so that a call that has waited answers in_progress. For the others, docs/reference.md tells what each setting is for.' AS hint
FROM (SELECT DISTINCT pg_catalog.format('a call waits %s (idempotence.wait %s), but %s is %s (%s)',
                CASE WHEN w.ms OPERATOR(pg_catalog.<) 0 THEN 'for ever' ELSE pg_catalog.format('for up to %s', pg_catalog.make_interval(secs => w.ms OPERATOR(pg_catalog./) 1000.0)) END, w.place,
                t.name, pg_catalog.make_interval(secs => t.ms OPERATOR(pg_catalog./) 1000.0), t.place) AS told
      FROM (SELECT e.role, e.place, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.wait') w
      JOIN (SELECT e.role, e.place, e.name, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) ANY ('{statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[])) t
        ON t.role OPERATOR(pg_catalog.=) w.role AND t.ms OPERATOR(pg_catalog.>) 0 AND w.ms OPERATOR(pg_catalog.<>) 0 AND (w.ms OPERATOR(pg_catalog.<) 0 OR w.ms OPERATOR(pg_catalog.>=) t.ms)
      UNION ALL
      SELECT 'idempotence.retention, the ttl of sessions without one of their own, is longer than idempotence.max_ttl'
      WHERE idempotence.setting('idempotence.retention')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.max_ttl')::pg_catalog.int8
      UNION ALL
      SELECT 'idempotence.naptime is longer than idempotence.session_timeout: silent client sessions outlast their timeout'
      WHERE idempotence.setting('idempotence.naptime')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.session_timeout')::pg_catalog.int8
      UNION ALL
      SELECT pg_catalog.format('one idem_ack may lock as many requests as idempotence.window_size says, and the lock table has %s places: raise max_locks_per_transaction',
               idempotence.lock_table_size())
      WHERE (idempotence.setting('idempotence.window_size')::pg_catalog.int8 OPERATOR(pg_catalog.*) 2) OPERATOR(pg_catalog.>) idempotence.lock_table_size()) c;

CREATE VIEW idempotence.check_publications AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE('published by ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(pg_catalog.format('"%s"', p.pubname), ', ' ORDER BY p.pubname),
                'no table of this extension is published') AS detail,
       'The tables of this extension hold for one server; a subscription to them gets in the way of its own. Publish a list of tables or schemas instead of FOR ALL TABLES, without these.' AS hint
FROM pg_catalog.pg_publication p
WHERE p.puballtables
   OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
              WHERE n.pnpubid OPERATOR(pg_catalog.=) p.oid AND n.pnnspid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
   OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
              WHERE r.prpubid OPERATOR(pg_catalog.=) p.oid AND c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'));

CREATE VIEW idempotence.check_persistence AS
SELECT CASE WHEN pg_catalog.bool_or(p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged) THEN 1 ELSE 0 END AS level,
       pg_catalog.string_agg(pg_catalog.concat(t.meaning, CASE WHEN t.is_unlogged THEN ' are unlogged' ELSE ' are logged' END,
                    CASE WHEN p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged
                         THEN CASE WHEN p.unlogged THEN ', and are to be unlogged' ELSE ', and are to be logged' END END), '; ' ORDER BY t.what) AS detail,
       'The next sweep that finds the table unused sees to it; or idem_set_persistence().' AS hint
FROM (SELECT n.what, n.meaning, c.relpersistence OPERATOR(pg_catalog.=) 'u' AS is_unlogged
      FROM (VALUES ('claims', 'leases', 'idempotence.lease'), ('sessions', 'client sessions at work', 'idempotence.session_live')) n (what, meaning, name)
      JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.name)) t
LEFT JOIN idempotence.persistence p ON p.what OPERATOR(pg_catalog.=) t.what;

CREATE VIEW idempotence.check_clock AS
SELECT CASE WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) OR j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         CASE WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval)
              THEN pg_catalog.format('something was noted at %s, by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', f.ahead)) END,
         CASE WHEN j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval)
              THEN pg_catalog.format('the clock was set %s by %s, seen at %s', CASE WHEN j.by OPERATOR(pg_catalog.>) '0'::pg_catalog.interval THEN 'forward' ELSE 'back' END,
                     pg_catalog.date_trunc('second', GREATEST(j.by, '0'::pg_catalog.interval OPERATOR(pg_catalog.-) j.by)), pg_catalog.date_trunc('second', j.at))
              WHEN NOT COALESCE(f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval), false)
              THEN CASE WHEN w.launcher IS NULL THEN 'nothing was noted in the future; without preloading nobody watches the clock'
                        ELSE 'nothing was noted in the future, and the clock was not set within a day' END END) AS detail,
       'By this clock outcomes expire and leases run out. While it was ahead, what lived may have been taken for expired, and executed again. Outcomes that were recorded then keep the times that it gave them, until they expire. Keep clocks right by slewing (NTP), and start the server only once its clock is right.' AS hint
FROM idempotence.upkeep w
CROSS JOIN (SELECT idempotence.clock_jump() AS at, idempotence.clock_jump_by() AS by) j
CROSS JOIN (SELECT GREATEST((SELECT pg_catalog.max(GREATEST(s.opened_at, s.closed_at, s.sessions_at, s.looked_at)) FROM idempotence.segment s),
                            (SELECT pg_catalog.max(o.recorded_at) FROM idempotence.sample o),
                            (SELECT pg_catalog.max(r.noted_at) FROM idempotence.restore r),
                            (SELECT idempotence.last_sweep())) AS ahead) f;

-- When the first outcome of each segment was recorded, as far as its first page tells.
CREATE VIEW idempotence.segment_starts AS
SELECT s.segment, s.state OPERATOR(pg_catalog.=) 'current' AS is_current, CASE WHEN s.state OPERATOR(pg_catalog.=) 'empty' THEN 0 ELSE s.bytes END AS bytes, s.keep,
       CASE s.segment
         WHEN 0 THEN (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid)
         WHEN 1 THEN (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid)
         ELSE (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid) END AS first
FROM idempotence.segments s;

-- What outcomes take in an hour, and what they will take once the ring has turned with that: what is recorded in one and
-- a half times the time that a segment is kept for, and ten minutes. The rate is that of the current segment since its
-- first outcome, and of the one before as well while the current one is younger than an hour.
CREATE VIEW idempotence.growth AS
SELECT r.rate, r.rate OPERATOR(pg_catalog.*) ((EXTRACT(epoch FROM r.keep) OPERATOR(pg_catalog.*) 1.5) OPERATOR(pg_catalog.+) 600) AS needed, r.present, idempotence.free_space() AS free
FROM (SELECT c.keep, (SELECT pg_catalog.sum(s.bytes) FROM idempotence.segments s) AS present,
             (CASE WHEN c.first IS NULL THEN 0 ELSE c.bytes END OPERATOR(pg_catalog.+) CASE WHEN h.is_young THEN COALESCE(b.bytes, 0) ELSE 0 END)
               OPERATOR(pg_catalog./) GREATEST(EXTRACT(epoch FROM (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (CASE WHEN h.is_young THEN LEAST(b.first, c.first) ELSE c.first END))), 3600) AS rate
      FROM idempotence.segment_starts c
      LEFT JOIN idempotence.segment_starts b ON b.segment OPERATOR(pg_catalog.=) ((c.segment OPERATOR(pg_catalog.+) 2) OPERATOR(pg_catalog.%) 3)
      CROSS JOIN LATERAL (SELECT COALESCE(c.first OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 hour'::pg_catalog.interval), true)) h (is_young)
      WHERE c.is_current) r;

CREATE VIEW idempotence.check_growth AS
SELECT CASE WHEN NOT f.too_much THEN 0 WHEN g.free OPERATOR(pg_catalog.<) (g.rate OPERATOR(pg_catalog.*) 86400) THEN 2 ELSE 1 END AS level,
       pg_catalog.concat(pg_catalog.pg_size_pretty(pg_catalog.round(g.rate OPERATOR(pg_catalog.*) 3600)), ' of outcomes an hour; at this rate they will take ', pg_catalog.pg_size_pretty(pg_catalog.round(g.needed)),
         ', and take ', pg_catalog.pg_size_pretty(g.present), ' now; ',
         CASE WHEN g.free IS NULL THEN 'how much is free is unknown' ELSE pg_catalog.concat(pg_catalog.pg_size_pretty(g.free), ' are free') END) AS detail,
       'Give the tablespace more room, or shorten the ttl of sessions (idem_alter_session) and idempotence.retention: that counts for what is recorded from then on.' AS hint
FROM (SELECT COALESCE(g.rate, 0)::pg_catalog.numeric AS rate, COALESCE(g.needed, 0)::pg_catalog.numeric AS needed, g.present, g.free FROM idempotence.growth g) g
CROSS JOIN LATERAL (SELECT COALESCE((g.needed OPERATOR(pg_catalog.-) g.present) OPERATOR(pg_catalog.>) g.free, false)) f (too_much);

CREATE VIEW idempotence.check_size AS
SELECT 0 AS level,
       pg_catalog.format('%s, of which outcomes %s, of which those that outlived their segment %s', pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.~~) 'outcome%')),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.=) 'outcome_long'))) AS detail,
       NULL::pg_catalog.text AS hint
FROM pg_catalog.pg_class c
WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND c.relkind OPERATOR(pg_catalog.=) 'r';
