-- The checks of the view health, one view for each: level is 0 (ok), 1 (warning) or 2 (critical), detail is what was
-- found, hint is what to do if the level is not 0. The function idempotence.checks() reads them with the rights of the
-- extension's owner, after it has loaded the library. docs/operations.md lists all thresholds.

-- What the checks of the sweep have in common. late is far beyond what is normal.
CREATE VIEW idempotence.upkeep AS
SELECT v.launcher, v.last_sweep, v.standby, v.now, v.visited,
       CASE WHEN v.visited THEN pg_catalog.make_interval(secs => idempotence.setting('idempotence.naptime')::pg_catalog.float8 OPERATOR(pg_catalog.*) 10) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
            -- No worker comes here. Whoever sweeps instead is asked to do so daily.
            ELSE '25 hours'::pg_catalog.interval END AS late,
       -- The moment that lateness counts from: the last sweep. If none is known, it is the moment when the
       -- server came up, or when the extension or a restore brought the tables, if that is later: before it
       -- nothing was to be swept. A moment in the future, noted by a clock that was ahead, does not count. The
       -- visits of the worker are known since the server came up, so where it comes nothing is late from before.
       GREATEST(COALESCE(v.last_sweep, (SELECT g.sessions_at FROM idempotence.segment g
                                        WHERE g.number OPERATOR(pg_catalog.=) 0 AND g.sessions_at OPERATOR(pg_catalog.<=) v.now)),
                CASE WHEN v.visited OR v.last_sweep IS NULL THEN (SELECT idempotence.up_since()) END) AS since
FROM (SELECT idempotence.launcher() AS launcher, idempotence.is_visited() AS visited, idempotence.last_sweep() AS last_sweep,
             pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.clock_timestamp() AS now) v;

CREATE VIEW idempotence.check_worker AS
SELECT CASE WHEN w.standby OR w.launcher OPERATOR(pg_catalog.>) 0 THEN 0
            WHEN w.launcher IS NOT NULL THEN 2
            -- Somebody sweeps instead. Whoever did so while the worker still came tells nothing.
            WHEN w.instead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '2 hours'::pg_catalog.interval) THEN 0
            ELSE 1 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
            WHEN w.launcher OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('the launcher is process %s', w.launcher)
            WHEN w.launcher IS NULL AND w.instead IS NULL THEN 'the library is not preloaded, and nobody else has swept yet'
            WHEN w.launcher IS NULL THEN 'the library is not preloaded; somebody else has to CALL idem_sweep()'
            ELSE 'the launcher does not run' END AS detail,
       CASE WHEN w.launcher IS NULL
            THEN 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep() at least once an hour.'
            ELSE 'The server log tells why. A launcher that failed is started again within seconds; one that found max_worker_processes too small at server start needs that raised, and a restart.' END AS hint
FROM (SELECT u.*, idempotence.swept_instead() AS instead FROM idempotence.upkeep u) w;

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
       CASE WHEN w.visited THEN 'The server log tells of errors, and of processes that were missing (max_worker_processes). Is this database a template? The worker does not visit those.'
            WHEN w.launcher IS NULL THEN 'CALL idem_sweep(), and have a scheduler do so at least once an hour.'
            ELSE 'The setting idempotence.databases leaves this database out: name it there, or have a scheduler CALL idem_sweep() at least daily.' END AS hint
FROM idempotence.upkeep w;

-- Which databases of this server are swept by the worker. Each of them has this row.
CREATE VIEW idempotence.check_databases AS
SELECT CASE WHEN NOT w.standby AND w.launcher IS NOT NULL AND (n.missing IS NOT NULL OR n.is_none OR v.own_failure) THEN 1 ELSE 0 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; nothing is swept here'
            WHEN w.launcher IS NULL THEN 'the library is not preloaded; no database of this server is visited'
            ELSE pg_catalog.concat_ws('; ',
                   'idempotence.databases names what cannot be visited: ' OPERATOR(pg_catalog.||) n.missing,
                   CASE WHEN n.is_none THEN 'idempotence.databases names no database' END,
                   CASE WHEN NOT w.visited THEN 'this database is not visited' END,
                   COALESCE(v.told, 'no database was swept yet since the server came up')) END AS detail,
       CASE WHEN n.is_none THEN 'Name those that are to be swept, or set it to * for all, and reload.'
            WHEN n.missing IS NOT NULL THEN 'The name is misspelt, or that of a template, or of a database that allows no connections or is gone. Correct idempotence.databases and reload.'
            ELSE 'The server log has the error too, and CALL idem_sweep() in the database shows it. Was the library replaced? Then ALTER EXTENSION idempotence UPDATE there.' END AS hint
FROM idempotence.upkeep w
CROSS JOIN (SELECT pg_catalog.string_agg(pg_catalog.format('"%s"', n.name), ', ' ORDER BY n.name) AS missing,
                   COALESCE(pg_catalog.cardinality(idempotence.databases()) OPERATOR(pg_catalog.=) 0, false) AS is_none
            FROM pg_catalog.unnest(idempotence.databases()) n (name)
            WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database d
                              WHERE d.datname OPERATOR(pg_catalog.=) n.name AND d.datallowconn AND NOT d.datistemplate)) n
CROSS JOIN (SELECT pg_catalog.bool_or(v.error IS NOT NULL AND v.is_own) AS own_failure,
                   pg_catalog.string_agg(v.told, '; ' ORDER BY v.place) FILTER (WHERE v.place OPERATOR(pg_catalog.<=) 20) OPERATOR(pg_catalog.||)
                     CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 20 THEN pg_catalog.format('; and %s more', pg_catalog.count(*) OPERATOR(pg_catalog.-) 20) ELSE '' END AS told
            FROM (SELECT v.error, d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AS is_own,
                         -- First those that failed, then those that were not swept for the longest time.
                         pg_catalog.row_number() OVER (ORDER BY v.error IS NULL, v.swept_at NULLS FIRST) AS place,
                         pg_catalog.concat('"', d.datname, '" ',
                           COALESCE('swept at ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', v.swept_at)::pg_catalog.text, 'never swept'),
                           ', failed at ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', v.failed_at)::pg_catalog.text OPERATOR(pg_catalog.||) ': ' OPERATOR(pg_catalog.||) v.error) AS told
                  FROM idempotence.visits() v JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) v.database) v) v;

CREATE VIEW idempotence.check_ring AS
SELECT -- Critical: a segment is late by its whole keep, although a sweep came by when it was late already.
       CASE WHEN pg_catalog.min(r.rows) OPERATOR(pg_catalog.<) 3 THEN 2
            WHEN pg_catalog.bool_or(NOT s.is_ahead AND (s.due_at OPERATOR(pg_catalog.+) s.keep) OPERATOR(pg_catalog.<) w.now AND (s.due_at OPERATOR(pg_catalog.+) w.late) OPERATOR(pg_catalog.<) w.last_sweep) THEN 2
            WHEN pg_catalog.count(s.segment) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(CASE WHEN pg_catalog.min(r.rows) OPERATOR(pg_catalog.<) 3 THEN 'table idempotence.segment lacks rows' END, pg_catalog.string_agg(
         CASE WHEN s.is_ahead
              THEN pg_catalog.format('segment %s was opened or closed at %s, by a clock that was ahead and has been set back', s.segment,
                     pg_catalog.date_trunc('second', GREATEST(s.opened_at, s.closed_at)))
              ELSE pg_catalog.format('segment %s should have been %s %s ago%s', s.segment,
                     CASE WHEN s.state OPERATOR(pg_catalog.=) 'current' THEN 'turned away from' WHEN s.state OPERATOR(pg_catalog.=) 'closing' THEN 'closed' ELSE 'emptied' END,
                     pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) s.due_at),
                     CASE WHEN s.held_by IS NOT NULL THEN pg_catalog.concat('; held by ', s.held_by)
                          WHEN w.last_sweep OPERATOR(pg_catalog.<) s.due_at THEN '; not swept since' ELSE '' END) END,
                '. ' ORDER BY s.segment) FILTER (WHERE s.segment IS NOT NULL), 'nothing is overdue') AS detail,
       CASE WHEN pg_catalog.min(r.rows) OPERATOR(pg_catalog.<) 3 THEN 'No request can be begun (XX001). A superuser makes the rows anew, as after a restore, and nothing is lost: TRUNCATE idempotence.segment; INSERT INTO idempotence.segment (number, current, opened_at, keep_us) SELECT n, n = 0, now(), 0 FROM generate_series(0, 2) n;'
            WHEN pg_catalog.bool_or(s.held_by IS NOT NULL)
            THEN 'Nothing is lost; expired outcomes take space until then. End the transaction that holds the segment (pg_terminate_backend, unless its commit waits for a synchronous standby; ROLLBACK PREPARED), or wait for its end.'
            ELSE 'Nothing is lost; expired outcomes take space until then. Nobody holds the segment: the next sweep puts it right. CALL idem_sweep() does it by hand, and tells what is in its way; if none comes by itself or if it fails, the rows worker, sweep and databases tell why.' END AS hint
FROM idempotence.upkeep w
CROSS JOIN (SELECT pg_catalog.count(*) AS rows FROM idempotence.segment) r
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

-- The transactions that hold locks on requests and sessions, each with whoever is at the root of what it waits for: itself,
-- if it waits for no lock. To follow the waits of a crowd takes long, so only those of the oldest hundred are followed.
CREATE VIEW idempotence.held_up AS
SELECT h.pid, h.requests, h.xact_start, COALESCE(b.root, h.pid) AS root, b.prepared
FROM (SELECT l.pid, l.requests, a.xact_start, COALESCE(a.wait_event_type OPERATOR(pg_catalog.=) 'Lock', false) AS waits,
             pg_catalog.row_number() OVER (PARTITION BY COALESCE(a.wait_event_type OPERATOR(pg_catalog.=) 'Lock', false) ORDER BY a.xact_start) AS place
      FROM idempotence.holding l JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid) h
CROSS JOIN LATERAL idempotence.root_blocker(CASE WHEN h.waits AND h.place OPERATOR(pg_catalog.<=) 100 THEN h.pid END) b;

CREATE VIEW idempotence.check_holders AS
SELECT CASE WHEN pg_catalog.count(h.root) OPERATOR(pg_catalog.>) 0 OR NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 1 ELSE 0 END AS level,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'the owner of the extension may not see since when others have their transactions open'
            WHEN pg_catalog.count(h.root) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.format('no transaction has held a request for more than %s', t.threshold)
            ELSE pg_catalog.concat(pg_catalog.string_agg(h.told, '; ' ORDER BY h.place) FILTER (WHERE h.place OPERATOR(pg_catalog.<=) 5),
                   CASE WHEN pg_catalog.count(h.root) OPERATOR(pg_catalog.>) 5 THEN pg_catalog.format('; and %s more', pg_catalog.count(h.root) OPERATOR(pg_catalog.-) 5) END) END AS detail,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'GRANT pg_read_all_stats to the owner of the extension.'
            ELSE 'Their requests are in progress until they end; then the ring waits for them too. Whoever holds up most is named first. Where the client of a process hangs, pg_terminate_backend(pid) rolls it back, and a retry executes its request; idle_in_transaction_session_timeout does so by itself. It does nothing for a process in IPC/SyncRep: that has written its commit, and waits for a standby (row standby). A prepared transaction ends by COMMIT PREPARED or ROLLBACK PREPARED.' END AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) t
LEFT JOIN LATERAL (SELECT r.root, r.since, pg_catalog.row_number() OVER (ORDER BY r.others DESC, r.since) AS place,
                  pg_catalog.format('%s, %s',
                    CASE WHEN p.gid IS NOT NULL THEN pg_catalog.format('prepared transaction %L (%s), since %s', p.gid, p.owner, pg_catalog.date_trunc('second', p.prepared))
                      WHEN r.root OPERATOR(pg_catalog.=) 0 THEN 'a prepared transaction (pg_prepared_xacts)'
                      ELSE pg_catalog.format('process %s (%s), since %s', r.root,
                             pg_catalog.concat_ws(', ', a.usename, CASE WHEN a.application_name OPERATOR(pg_catalog.<>) '' THEN pg_catalog.to_json(a.application_name) END, a.state, a.wait_event_type OPERATOR(pg_catalog.||) '/' OPERATOR(pg_catalog.||) a.wait_event),
                             pg_catalog.date_trunc('second', a.xact_start)) END,
                    pg_catalog.concat_ws(' and ',
                      CASE WHEN r.requests OPERATOR(pg_catalog.=) 0 THEN 'holds a session' WHEN r.requests OPERATOR(pg_catalog.=) 1 THEN 'holds a request' ELSE 'holds ' OPERATOR(pg_catalog.||) r.requests OPERATOR(pg_catalog.||) ' requests' END,
                      CASE WHEN r.others OPERATOR(pg_catalog.=) 0 THEN NULL WHEN r.others OPERATOR(pg_catalog.=) 1 THEN 'holds up another one that holds a request' ELSE pg_catalog.format('holds up %s others that hold requests', r.others) END)) AS told
           FROM (SELECT h.root, h.prepared, pg_catalog.max(h.requests) FILTER (WHERE h.pid OPERATOR(pg_catalog.=) h.root) AS requests,
                        pg_catalog.count(*) FILTER (WHERE h.pid OPERATOR(pg_catalog.<>) h.root) AS others,
                        LEAST(pg_catalog.min(h.xact_start), (SELECT b.xact_start FROM pg_catalog.pg_stat_activity b WHERE b.pid OPERATOR(pg_catalog.=) h.root)) AS since
                 FROM idempotence.held_up h GROUP BY h.root, h.prepared) r
           LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) r.root
           LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.gid OPERATOR(pg_catalog.=) r.prepared
           -- Whoever holds up a crowd is named sooner.
           WHERE r.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)
                   CASE WHEN r.others OPERATOR(pg_catalog.>) idempotence.setting('idempotence.warn_waiters')::pg_catalog.int8
                        THEN LEAST(t.threshold, '10 seconds'::pg_catalog.interval) ELSE t.threshold END)) h ON true
GROUP BY t.threshold;

CREATE VIEW idempotence.check_waiters AS
SELECT CASE WHEN pg_catalog.max(r.waiters) OPERATOR(pg_catalog.>) w.most OR pg_catalog.max(r.waited) OPERATOR(pg_catalog.>) w.threshold THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(r.waiters) OPERATOR(pg_catalog.=) 0 THEN 'nobody waits for a request'
            ELSE pg_catalog.concat(pg_catalog.format('%s wait for %s requests; at most %s for the same one; the longest wait has lasted %s',
                          pg_catalog.sum(r.waiters), pg_catalog.count(r.waiters), pg_catalog.max(r.waiters), pg_catalog.date_trunc('second', pg_catalog.max(r.waited))),
                   -- Only where the library is preloaded are requests known by their names.
                   CASE WHEN (SELECT idempotence.launcher()) IS NOT NULL
                        THEN (SELECT pg_catalog.format('; most wait for request %s of session %s, which %s', pg_catalog.to_json(f.request), pg_catalog.to_json(f.session),
                                       pg_catalog.concat(COALESCE('process ' OPERATOR(pg_catalog.||) f.pid, pg_catalog.format('prepared transaction %L', f.prepared)), ' has',
                                         CASE WHEN f.wait_event OPERATOR(pg_catalog.=) 'IPC/SyncRep' THEN ', whose commit waits for a synchronous standby'
                                              WHEN f.blocked_by OPERATOR(pg_catalog.=) 0 THEN ', held up by ' OPERATOR(pg_catalog.||) COALESCE(pg_catalog.format('prepared transaction %L', f.blocked_by_prepared), 'a prepared transaction')
                                              ELSE ', held up by process ' OPERATOR(pg_catalog.||) f.blocked_by END))
                              FROM idempotence.in_flight f WHERE f.waiters OPERATOR(pg_catalog.>) 0 AND f.request IS NOT NULL
                              ORDER BY f.waiters DESC, f.since LIMIT 1) END) END AS detail,
       'Who sends the same request again and again, without waiting for its answer? The row holders names who has had a request for long, and who holds up most of those that have one. idem_explain() of the request tells the same at once.' AS hint
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

-- The synchronous standbys that a commit waits for, and whether they are there. The names are read as the server reads the
-- setting synchronous_standby_names: "name, ...", "n (name, ...)", "FIRST n (name, ...)" and "ANY n (name, ...)".
CREATE VIEW idempotence.synchronous AS
SELECT s.needed, s.there, w.waiting, w.since,
       (SELECT pg_catalog.string_agg(n.name, ', ')
        FROM (SELECT COALESCE(pg_catalog.replace(m[1], '""', '"'), m[2]) AS name
              FROM pg_catalog.regexp_matches(pg_catalog.regexp_replace(s.names, '^[[:space:]]*((first|any)[[:space:]]+)?[0-9]+[[:space:]]*[(]|[)][[:space:]]*$', '', 'gi'), '"((?:[^"]|"")*)"|([^",[:space:]]+)', 'g') m) n
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r
                          WHERE r.sync_state OPERATOR(pg_catalog.=) ANY ('{sync,quorum}'::pg_catalog.text[])
                            AND pg_catalog.lower(r.application_name) OPERATOR(pg_catalog.=) pg_catalog.lower(n.name))) AS missing
FROM (SELECT g.names,
             CASE WHEN pg_catalog.btrim(g.names) OPERATOR(pg_catalog.=) '' THEN 0
                  ELSE COALESCE((pg_catalog.regexp_match(g.names, '^[[:space:]]*(?:(?:first|any)[[:space:]]+)?([0-9]+)[[:space:]]*[(]', 'i'))[1]::pg_catalog.int4, 1) END AS needed,
             (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication r
              WHERE r.sync_state OPERATOR(pg_catalog.=) ANY ('{sync,quorum}'::pg_catalog.text[])) AS there
      FROM pg_catalog.current_setting('synchronous_standby_names') g (names)) s
CROSS JOIN (SELECT pg_catalog.count(*) AS waiting, pg_catalog.min(a.query_start) AS since
            FROM pg_catalog.pg_stat_activity a WHERE a.wait_event OPERATOR(pg_catalog.=) 'SyncRep') w;

CREATE VIEW idempotence.check_standby AS
SELECT CASE WHEN s.is_standby OR s.needed OPERATOR(pg_catalog.=) 0 THEN 0
            WHEN NOT s.waits THEN 2
            WHEN NOT s.sees THEN 1
            WHEN s.there OPERATOR(pg_catalog.<) s.needed AND (s.asks OR s.waiting OPERATOR(pg_catalog.>) 0) THEN 2
            WHEN s.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 minute'::pg_catalog.interval) THEN 1
            ELSE 0 END AS level,
       CASE WHEN s.is_standby THEN 'this is a standby; the primary waits for its standbys'
            WHEN s.needed OPERATOR(pg_catalog.=) 0 THEN 'synchronous_standby_names is empty: no commit waits for a standby'
            WHEN NOT s.waits THEN 'synchronous_standby_names is set, but commits do not wait for a standby: the checkpointer has not read the setting yet'
            WHEN NOT s.sees THEN 'the owner of the extension may not see which standbys are there'
            ELSE pg_catalog.format('%s of %s synchronous standbys are there%s; %s commits wait for them%s', s.there, s.needed,
                   CASE WHEN s.there OPERATOR(pg_catalog.<) s.needed THEN pg_catalog.format(', missing: %s', s.missing) END, s.waiting,
                   CASE WHEN s.waiting OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format(', the first since %s', pg_catalog.date_trunc('second', s.since)) END) END AS detail,
       CASE WHEN NOT s.waits THEN 'Do not fail over: commits of other programs are acknowledged without their standby, and those that record a request end with 55P03. The checkpointer reads the setting at the end of its checkpoint at the latest. CHECKPOINT hurries it, and returns after that. If it does not return, the checkpointer hangs: pg_stat_activity shows what it waits for.'
            WHEN NOT s.sees THEN 'GRANT pg_read_all_stats to the owner of the extension.'
            ELSE 'Commits hang, and replays are in_progress. Bring the standby back, resume its replay if that is paused, or take it out of synchronous_standby_names and reload. Do not terminate what waits in IPC/SyncRep: it has written its commit here, so nothing is rolled back. docs/operations.md, While the synchronous standby is away, tells what each way costs.' END AS hint
FROM (SELECT s.*, pg_catalog.pg_is_in_recovery() AS is_standby, pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') AS sees,
             idempotence.commits_wait() AS waits,
             -- Where the server's own default asks for no standby, one that is away harms nobody until somebody waits.
             (SELECT c.reset_val OPERATOR(pg_catalog.<>) ALL ('{off,local}'::pg_catalog.text[]) FROM pg_catalog.pg_settings c
              WHERE c.name OPERATOR(pg_catalog.=) 'synchronous_commit') AS asks
      FROM idempotence.synchronous s) s;

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
       pg_catalog.format('%s of %s places are taken, %s of them by requests%s', l.taken, t.places, l.requests,
         CASE WHEN l.taken OPERATOR(pg_catalog.>=) (t.places OPERATOR(pg_catalog.*) 0.5) THEN '; most by ' OPERATOR(pg_catalog.||) m.told END) AS detail,
       'In a full table whoever asks for a lock gets an error (53200), in every database. Begin fewer requests in one transaction, use an inbox, which takes no lock for each request, or raise max_locks_per_transaction, which takes a restart.' AS hint
FROM (SELECT pg_catalog.sum(h.taken) AS taken, pg_catalog.sum(h.requests) AS requests, (pg_catalog.array_agg(h.pid ORDER BY h.taken DESC))[1] AS pid, pg_catalog.max(h.taken) AS most
      FROM (SELECT l.pid, pg_catalog.count(*) AS taken, pg_catalog.count(*) FILTER (WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649) AS requests
            FROM pg_catalog.pg_locks l WHERE NOT l.fastpath AND l.mode OPERATOR(pg_catalog.<>) 'SIReadLock' GROUP BY l.pid) h) l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
CROSS JOIN LATERAL (SELECT pg_catalog.format('%s: %s',
                             CASE WHEN l.pid IS NULL THEN 'prepared transactions'
                                  ELSE pg_catalog.format('process %s (%s)', l.pid, pg_catalog.concat_ws(', ', a.usename, a.datname, CASE WHEN a.application_name OPERATOR(pg_catalog.<>) '' THEN pg_catalog.to_json(a.application_name) END)) END,
                             l.most) AS told) m
CROSS JOIN (SELECT idempotence.lock_table_size() AS places) t;

-- The tables that calls need: whether they have the extension's columns and no others, and whether somebody has locked one
-- against writers, or waits to. A lock for moments, as a step of the sweep takes it, is passed by.
CREATE VIEW idempotence.check_tables AS
SELECT CASE WHEN u.told IS NOT NULL AND NOT u.disabled OR l.others_wait THEN 2 WHEN u.told IS NOT NULL OR l.told IS NOT NULL THEN 1 ELSE 0 END AS level,
       COALESCE(u.told OPERATOR(pg_catalog.||) '; ' OPERATOR(pg_catalog.||) l.told, u.told, l.told, 'all tables are as the extension has made them, and nobody has locked one') AS detail,
       CASE WHEN u.unlogged THEN 'A crash empties the table, and a standby has nothing of it: requests that were done are executed again. A superuser makes it what it was: ALTER TABLE ... SET LOGGED.'
            WHEN u.disabled THEN 'Changes of the table by hand, and what a restore brings, go unnoticed. A superuser: ALTER TABLE ... ENABLE TRIGGER ALL.'
            WHEN u.told IS NOT NULL
            THEN 'Calls that use the table fail (XX001); those that record do so at the latest when the ring turns to it. A superuser gives a table or an index its name back, drops the columns that were added (ALTER TABLE ... DROP COLUMN), or makes a key that was dropped again (ADD CONSTRAINT ..._pkey PRIMARY KEY), and all is well at once. A column or a table that was dropped comes back only with a restore.'
            ELSE 'Calls that need the table wait for the end of that transaction: pg_terminate_backend() ends it, or COMMIT PREPARED or ROLLBACK PREPARED; or end what it is behind. Then look again. docs/operations.md, Somebody has locked a table.' END AS hint
FROM (SELECT pg_catalog.string_agg(pg_catalog.format('table idempotence.%s %s', t.name, t.told), '; ' ORDER BY t.name) AS told, pg_catalog.bool_or(t.told OPERATOR(pg_catalog.=) 'is unlogged') AS unlogged,
             pg_catalog.bool_and(t.told OPERATOR(pg_catalog.=) 'has a trigger that is disabled') AS disabled
      FROM (SELECT n.name,
                   CASE WHEN c.oid IS NULL THEN 'is missing'
                        WHEN a.added IS NOT NULL THEN pg_catalog.concat('has columns that are not the extension''s: ', a.added)
                        WHEN a.own OPERATOR(pg_catalog.<) n.columns THEN 'lacks columns of the extension'
                        WHEN n.name OPERATOR(pg_catalog.<>) 'restore' AND n.columns IS NOT NULL AND pg_catalog.to_regclass(pg_catalog.concat('idempotence.', n.name, '_pkey')) IS NULL THEN 'lacks its primary key'
                        WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger g WHERE g.tgrelid OPERATOR(pg_catalog.=) c.oid AND g.tgenabled OPERATOR(pg_catalog.=) 'D') THEN 'has a trigger that is disabled'
                        WHEN c.relpersistence OPERATOR(pg_catalog.=) 'u' AND n.name OPERATOR(pg_catalog.<>) ALL ('{lease,session_live}'::pg_catalog.text[]) THEN 'is unlogged' END AS told
            FROM (SELECT t.name, t.columns FROM idempotence.table_columns() t
                  UNION ALL SELECT u.name, NULL FROM pg_catalog.unnest('{secret,granted,audit,persistence}'::pg_catalog.text[]) u (name)) n
            LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.' OPERATOR(pg_catalog.||) n.name)
            CROSS JOIN LATERAL (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ') FILTER (WHERE a.attnum OPERATOR(pg_catalog.>) n.columns) AS added,
                                       pg_catalog.count(*) FILTER (WHERE a.attnum OPERATOR(pg_catalog.<=) n.columns) AS own
                                FROM pg_catalog.pg_attribute a
                                WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped) a) t
      WHERE t.told IS NOT NULL) u
CROSS JOIN (SELECT pg_catalog.string_agg(pg_catalog.concat(h.told, ', behind ' OPERATOR(pg_catalog.||) h.behind,
                     CASE WHEN h.waiters OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('; %s wait for the table', h.waiters) END), '; ' ORDER BY h.waiters DESC NULLS LAST, h.since) AS told,
                   pg_catalog.bool_or(h.waiters OPERATOR(pg_catalog.>) 0) AS others_wait
            FROM idempotence.locked h
            WHERE COALESCE(h.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '10 seconds'::pg_catalog.interval), h.waiters OPERATOR(pg_catalog.>) 0)) l;

CREATE VIEW idempotence.check_owners AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         'sessions without an owner: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.ownerless AND s.place OPERATOR(pg_catalog.<=) 20),
         'lent to a role that was dropped: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.lent_to_nobody AND s.place OPERATOR(pg_catalog.<=) 20),
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 20 THEN pg_catalog.format('and %s more', pg_catalog.count(*) OPERATOR(pg_catalog.-) 20)
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'every standing session has its owner' END) AS detail,
       'A session without an owner can be used by superusers, and by the role that it is lent to. A superuser gives it to a role: idem_alter_session(session, owner => ...). A loan to a dropped role ends by itself within the hour.' AS hint
FROM (SELECT s.*, pg_catalog.row_number() OVER (ORDER BY s.name) AS place
      FROM (SELECT s.name, o.oid IS NULL AS ownerless, s.usable_by IS NOT NULL AND b.oid IS NULL AS lent_to_nobody
            FROM idempotence.session s
            LEFT JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) s.owner::pg_catalog.oid
            LEFT JOIN pg_catalog.pg_roles b ON b.oid OPERATOR(pg_catalog.=) s.usable_by::pg_catalog.oid
            WHERE s.name IS NOT NULL AND s.ended_at IS NULL) s
      WHERE s.ownerless OR s.lent_to_nobody) s;

-- The tables that a restore has left out. If the key of the digests was restored, each of these tables must have been
-- restored too, since pg_dump has a COPY even of an empty table. Where leases are unlogged a dump may leave them out. One
-- row, with NULL where nothing is missing. Without those in the second column requests are answered all the same.
CREATE VIEW idempotence.missing AS
SELECT pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name COLLATE pg_catalog."C") FILTER (WHERE t.needed) AS missing,
       pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name COLLATE pg_catalog."C") FILTER (WHERE NOT t.needed) AS beside
FROM (SELECT n.name, n.name OPERATOR(pg_catalog.<>) ALL ('{audit,granted}'::pg_catalog.text[]) AS needed
      FROM pg_catalog.unnest('{session,outcome_0,outcome_1,outcome_2,outcome_long,reply,checkpoint,lease,audit,granted}'::pg_catalog.text[]) n (name)) t
WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'secret')
  AND NOT EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) t.name)
  AND (t.name OPERATOR(pg_catalog.<>) 'lease'
       OR NOT EXISTS (SELECT FROM idempotence.persistence p WHERE p.what OPERATOR(pg_catalog.=) 'claims' AND p.unlogged));

-- The beginning of so many last pages of a table.
CREATE FUNCTION idempotence.last_pages(relation text, pages bigint) RETURNS tid
LANGUAGE sql STABLE PARALLEL SAFE
AS $last_pages$
  SELECT pg_catalog.format('(%s,0)', GREATEST((pg_catalog.pg_relation_size(pg_catalog.to_regclass(relation)) OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::pg_catalog.int8) OPERATOR(pg_catalog.-) last_pages.pages, 0))::pg_catalog.tid
$last_pages$;

-- Some outcomes of each table: those of the first page and those of the last one. Each is found without a look at the
-- others, however many there are.
CREATE VIEW idempotence.sample AS
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_0', 1)
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_1', 1)
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_2', 1)
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at, o.expires_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_long', 1);

-- The outcomes of the sample that another key has made than the one that counts, each with its session. Where a session is
-- not here its outcomes can be nobody's.
CREATE VIEW idempotence.of_another_key AS
SELECT (SELECT COALESCE(s.name, s.id::pg_catalog.text) FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) o.session) AS session
FROM idempotence.sample o
WHERE NOT idempotence.digest_fits(o.digest, o.session, o.key)
  AND EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) o.session OFFSET 0);

-- The keys of the digests: how many there are, how many are in use, whether two different ones are, and whether outcomes of
-- another one are here. In the last two cases a dump was restored into a database that had sessions, or without its key:
-- what it has brought and what was there exclude each other.
CREATE VIEW idempotence.keys AS
SELECT k.keys, k.used, k.different OPERATOR(pg_catalog.>) 1 AS two,
       CASE WHEN k.different OPERATOR(pg_catalog.=) 1 THEN EXISTS (SELECT FROM idempotence.of_another_key) ELSE false END AS of_another
FROM (SELECT pg_catalog.count(*) AS keys, pg_catalog.count(s.in_use_since) AS used,
             pg_catalog.count(DISTINCT s.key) FILTER (WHERE s.in_use_since IS NOT NULL) AS different
      FROM idempotence.secret s) k;

CREATE VIEW idempotence.check_restore AS
SELECT CASE WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0) OR m.missing IS NOT NULL OR l.lost OPERATOR(pg_catalog.>) 0 THEN 2
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 OR m.beside IS NOT NULL THEN 1 ELSE 0 END AS level,
       CASE WHEN m.missing IS NOT NULL
            THEN pg_catalog.format('of what was restored since %s these tables are missing: %s', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)), m.missing)
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN pg_catalog.format('what was restored since %s lacks sessions: requests that were done may be executed again', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            WHEN m.beside IS NOT NULL
            THEN pg_catalog.format('of what was restored these tables are missing, without which requests are answered all the same: %s', m.beside)
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 AND k.mixed
            THEN pg_catalog.format('what was restored since %s has another key than sessions that were here', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('what was restored since %s was not looked through yet', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            WHEN l.lost OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('of %s outcomes that were looked at %s have no session', l.all, l.lost)
            ELSE 'no outcome that was looked at lacks its session' END AS detail,
       CASE WHEN k.mixed
            THEN 'The dump was restored into a database that had sessions. Restore no more of it, and accept nothing: the row secret tells what to do.'
            WHEN m.missing IS NOT NULL
            THEN 'Their COPY has failed, or is still to come: requests that were done may be executed again. Create the roles that the restore missed and restore the data of these tables again, or give up what they had: idem_accept_restore(). No session that is new can be made until then.'
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN 'No session that is new can be made. Create the roles that the restore missed and restore the data of table idempotence.session again, or give up what has no session: idem_accept_restore().'
            WHEN m.beside IS NOT NULL
            THEN 'Their COPY has failed, or is still to come. Restore the data of these tables again, or give up what they had: idem_accept_restore().'
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
            THEN 'The sweep looks through it. Where no worker visits this database, CALL idem_sweep().'
            ELSE 'Rows of idempotence.session were deleted. Bring them back from a backup before anybody makes such a session again: its requests would be executed again.' END AS hint
FROM idempotence.missing m
CROSS JOIN (SELECT pg_catalog.count(*) AS all,
                   pg_catalog.count(*) FILTER (
                     WHERE NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) o.session OFFSET 0)
                       -- What was there when somebody gave up what has no session is not told of any more. The audit is read only
                       -- where a session is missing.
                       AND o.recorded_at OPERATOR(pg_catalog.>) COALESCE((SELECT pg_catalog.max(a.at) FROM idempotence.audit a WHERE a.action OPERATOR(pg_catalog.=) 'accept_restore'), '-infinity')) AS lost
            FROM idempotence.sample o
            WHERE o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) l
CROSS JOIN (SELECT k.two OR k.of_another AS mixed FROM idempotence.keys k) k
LEFT JOIN idempotence.restore r ON r.orphans IS NULL OR r.orphans OPERATOR(pg_catalog.<>) 0
GROUP BY m.missing, m.beside, k.mixed, l.all, l.lost;

-- Whether a response of a request that has failed is that of one that was given up, as requests/start.rs makes it. Journals
-- and imports have no letter of their own for that.
CREATE FUNCTION idempotence.is_of_given_up(response jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $is_of_given_up$
  SELECT CASE WHEN pg_catalog.jsonb_typeof(response) OPERATOR(pg_catalog.=) 'object'
              THEN pg_catalog.jsonb_typeof(response OPERATOR(pg_catalog.->) 'attempts') OPERATOR(pg_catalog.=) 'number'
                   AND (response OPERATOR(pg_catalog.-) '{attempts,point,state}'::pg_catalog.text[]) OPERATOR(pg_catalog.=) '{}'::pg_catalog.jsonb END
$is_of_given_up$;

-- Requests that were given up within a day, among the newest outcomes of each segment: no index finds them. Nothing is read
-- where no session has max_attempts.
CREATE VIEW idempotence.check_given_up AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.sum(r.given_up) OPERATOR(pg_catalog.||) ' requests were given up within a day' OPERATOR(pg_catalog.||)
                  pg_catalog.string_agg(CASE WHEN r.place OPERATOR(pg_catalog.<=) 5
                    THEN pg_catalog.format('; %s in sessions of role %s, the last at %s: request %s of session %s', r.given_up, r.owner, pg_catalog.date_trunc('second', r.last), pg_catalog.to_json(r.key), pg_catalog.to_json(r.session))
                    WHEN r.place OPERATOR(pg_catalog.=) 6 THEN '; and of more roles' END, '' ORDER BY r.place),
                'no request was given up within a day, as far as the newest outcomes tell') AS detail,
       'All attempts that the session allows were begun, and none was completed; a retry gets this failure. Find out whether the effect has happened. idem_force_record() records that it has, and idem_forget() lets a retry start again.' AS hint
FROM (SELECT g.owner, pg_catalog.count(*) AS given_up, pg_catalog.max(g.recorded_at) AS last,
             (pg_catalog.array_agg(g.key ORDER BY g.recorded_at DESC))[1] AS key, (pg_catalog.array_agg(g.name ORDER BY g.recorded_at DESC))[1] AS session,
             pg_catalog.row_number() OVER (ORDER BY pg_catalog.count(*), g.owner::pg_catalog.text) AS place
      FROM (SELECT s.owner, s.name, o.key, o.recorded_at
            FROM (SELECT a.* FROM idempotence.outcome_0 a WHERE a.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_0', 2048)
                  UNION ALL
                  SELECT a.* FROM idempotence.outcome_1 a WHERE a.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_1', 2048)
                  UNION ALL
                  SELECT a.* FROM idempotence.outcome_2 a WHERE a.ctid OPERATOR(pg_catalog.>=) idempotence.last_pages('idempotence.outcome_2', 2048)) o
            JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) o.session
            WHERE s.max_attempts IS NOT NULL AND o.class OPERATOR(pg_catalog.=) 'g'
              AND o.recorded_at OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval)
              AND o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) g
      GROUP BY g.owner) r;

CREATE VIEW idempotence.check_secret AS
SELECT CASE WHEN f.fault IS NULL THEN 0 ELSE 2 END AS level,
       COALESCE(f.fault, 'outcomes are found by the key that they were recorded with') AS detail,
       CASE WHEN f.two
            THEN 'A dump was restored over sessions that were there, and all requests are refused (XX001). Restore a backup, or the dump into a database in which the extension has no session. Delete no key, unless docs/operations.md, Dump and restore, says so: requests that were done would be executed again.'
            WHEN f.of_another
            THEN 'A dump was restored without its key, or a key was deleted: requests that were done are refused (XX001), or may be executed again. Restore a backup, or all tables of the dump into a database in which the extension has no session: docs/operations.md, Dump and restore.'
            ELSE 'All requests are refused (XX001). Was the table emptied, by hand or by a crash while it was unlogged? Restore the data of idempotence.secret from a dump of this database, and idem_accept_restore(). Or was only part of a dump restored? Restore all tables of the extension into a database in which it has no session.' END AS hint
FROM (SELECT k.*, CASE WHEN k.keys OPERATOR(pg_catalog.=) 0 THEN 'table idempotence.secret has no row'
                       WHEN k.two THEN 'table idempotence.secret has two keys in use'
                       WHEN k.used OPERATOR(pg_catalog.=) 0 AND EXISTS (SELECT FROM idempotence.session)
                       THEN 'there are sessions, but table idempotence.secret has no key in use'
                       WHEN k.of_another THEN 'there are outcomes that were recorded with another key than the one in use' END AS fault
      FROM idempotence.keys k) f;

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
CROSS JOIN pg_catalog.unnest('{default_transaction_read_only,idempotence.unrecorded,idempotence.coordinate,idempotence.wait,idempotence.max_sessions_per_role,idempotence.max_standing_sessions_per_role,idempotence.max_leases_per_role,statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[]) n (name)
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

-- The limits on what a role makes, as they are set for the role, or else for whoever asks.
CREATE FUNCTION idempotence.limit_of(role regrole, name text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL UNSAFE
AS $limit_of$
  SELECT COALESCE((SELECT e.value::pg_catalog.int8 FROM idempotence.effective e WHERE e.role OPERATOR(pg_catalog.=) limit_of.role::pg_catalog.oid AND e.name OPERATOR(pg_catalog.=) limit_of.name),
                  idempotence.setting(limit_of.name)::pg_catalog.int8)
$limit_of$;

CREATE VIEW idempotence.check_client_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most OR o.ended OPERATOR(pg_catalog.>=) o.most) THEN 2
            WHEN pg_catalog.bool_or(o.is_near OR o.is_near_ended) THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'this is a standby; the primary knows which are at work'
            ELSE pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' at work, of which ', COALESCE(pg_catalog.sum(o.silent), 0),
                   ' are silent for longer than their timeout',
                   pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
                     FILTER (WHERE o.is_near),
                   pg_catalog.string_agg(pg_catalog.format('; role %s has %s that ended without an outcome, of at most %s', o.owner, o.ended, o.most), '' ORDER BY o.ended DESC)
                     FILTER (WHERE o.is_near_ended)) END AS detail,
       'At the limit registering is refused (ID009). Close sessions that are done with, shorten timeouts, or raise idempotence.max_sessions_per_role. Those that ended without an outcome count until idempotence.retention is over, where they had a client or a request_id: register once, when a client starts.' AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near, s.ended OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near_ended
      FROM (SELECT COALESCE(l.owner, e.owner) AS owner, COALESCE(l.sessions, 0) AS sessions, COALESCE(l.silent, 0) AS silent, COALESCE(e.ended, 0) AS ended,
                   idempotence.limit_of(COALESCE(l.owner, e.owner), 'idempotence.max_sessions_per_role') AS most
            FROM idempotence.at_work_by_role() l
            FULL JOIN (SELECT n.owner, pg_catalog.count(*) AS ended FROM idempotence.session n
                       WHERE n.name IS NULL AND n.ended OPERATOR(pg_catalog.=) ANY ('{C,E,F}'::pg_catalog."char"[]) AND NOT pg_catalog.pg_is_in_recovery()
                       GROUP BY n.owner) e ON e.owner OPERATOR(pg_catalog.=) l.owner) s) o;

CREATE VIEW idempotence.check_standing_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most) THEN 2 WHEN pg_catalog.bool_or(o.is_many OR o.brief OPERATOR(pg_catalog.>) 0) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' standing sessions, of which ', COALESCE(pg_catalog.sum(o.dropped), 0), ' are dropped',
         pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
           FILTER (WHERE o.is_many),
         pg_catalog.string_agg(pg_catalog.format('; %s of role %s keep outcomes for less than a minute, one of them is %s', o.brief, o.owner, pg_catalog.to_json(o.briefest)), '' ORDER BY o.brief, o.owner)
           FILTER (WHERE o.brief OPERATOR(pg_catalog.>) 0)) AS detail,
       CASE WHEN pg_catalog.bool_or(o.is_many)
            THEN 'A session is a series of requests, not one of them: use few sessions, with many keys. If so many are right, raise idempotence.warn_standing_sessions, and idempotence.max_standing_sessions_per_role, at which making one more is refused (ID009).'
            ELSE 'A retry that comes after the ttl executes its request again. The owner of the session, or a superuser, gives it a ttl that outlasts all retries: idem_alter_session(session, ttl => ...).' END AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>) s.threshold OR s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_many
      FROM (SELECT n.owner, pg_catalog.count(*) AS sessions, pg_catalog.count(n.ended_at) AS dropped,
                   pg_catalog.count(*) FILTER (WHERE n.ended_at IS NULL AND COALESCE(n.ttl, (SELECT idempotence.retention())) OPERATOR(pg_catalog.<) '1 minute'::pg_catalog.interval) AS brief,
                   pg_catalog.min(n.name) FILTER (WHERE n.ended_at IS NULL AND COALESCE(n.ttl, (SELECT idempotence.retention())) OPERATOR(pg_catalog.<) '1 minute'::pg_catalog.interval) AS briefest,
                   idempotence.setting('idempotence.warn_standing_sessions')::pg_catalog.int8 AS threshold,
                   idempotence.limit_of(n.owner, 'idempotence.max_standing_sessions_per_role') AS most
            FROM idempotence.session n WHERE n.name IS NOT NULL GROUP BY n.owner) s) o;

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
                CASE WHEN c.tables OPERATOR(pg_catalog.=) 1 THEN '1 table is' ELSE pg_catalog.format('%s tables are', c.tables) END) END) AS detail,
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

-- Why journals cannot be swept. The table is unlogged, see leases_of_roles().
CREATE FUNCTION idempotence.unswept(OUT journal text, OUT why text) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $unswept$
#variable_conflict error
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery() THEN
    RETURN QUERY SELECT pg_catalog.substr(s.step, 9), s.said FROM idempotence.sweep s WHERE s.said IS NOT NULL;
  END IF;
END
$unswept$;

-- Of each role some, so that nobody's journals hide those of others.
CREATE VIEW idempotence.check_journals AS
SELECT -- Never critical: the tables are those of users, and whoever makes sessions could raise the alarm at will.
       CASE WHEN pg_catalog.bool_or(j.fault IS NOT NULL) THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'no session has a journal'
            WHEN pg_catalog.count(j.fault) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.format('journals of sessions, all of them there: %s', pg_catalog.count(*))
            ELSE pg_catalog.concat(
                   pg_catalog.string_agg(pg_catalog.format('journal %s of %I%s (role %s) %s', pg_catalog.left(j.journal, 140), pg_catalog.left(j.session, 100),
                       CASE WHEN j.sessions OPERATOR(pg_catalog.>) 1 THEN pg_catalog.format(' and %s more', j.sessions OPERATOR(pg_catalog.-) 1) END, j.owner, j.fault),
                     '; ' ORDER BY j.place, j.journal) FILTER (WHERE j.fault IS NOT NULL AND j.place OPERATOR(pg_catalog.<=) 3 AND j.nth OPERATOR(pg_catalog.<=) 20),
                   CASE WHEN pg_catalog.count(j.fault) OPERATOR(pg_catalog.>) pg_catalog.count(*) FILTER (WHERE j.place OPERATOR(pg_catalog.<=) 3 AND j.nth OPERATOR(pg_catalog.<=) 20 AND j.fault IS NOT NULL)
                        THEN pg_catalog.format('; %s in all', pg_catalog.count(j.fault)) END) END AS detail,
       CASE WHEN pg_catalog.bool_or(j.is_gone)
            THEN 'All requests of these sessions fail (42P01), since nobody can tell what was done. The owner restores the table, or gives it its name back.'
            ELSE 'What has expired in the table takes space until then. It is the owner''s to put right.' END AS hint
FROM (SELECT f.*, pg_catalog.row_number() OVER (ORDER BY f.fault IS NULL, f.place, f.journal) AS nth
      FROM (SELECT w.*, pg_catalog.row_number() OVER (PARTITION BY w.owner, w.fault IS NULL ORDER BY w.journal) AS place
            FROM (SELECT s.journal, g.is_gone, pg_catalog.min(s.owner::pg_catalog.text) AS owner, pg_catalog.min(s.name) AS session, pg_catalog.count(*) AS sessions,
                         CASE WHEN g.is_gone THEN 'is not there' ELSE 'cannot be swept: ' OPERATOR(pg_catalog.||) pg_catalog.left(u.why, 200) END AS fault
                  FROM idempotence.session s
                  CROSS JOIN LATERAL (SELECT pg_catalog.to_regclass(s.journal) IS NULL) g (is_gone)
                  LEFT JOIN idempotence.unswept() u ON u.journal OPERATOR(pg_catalog.=) s.journal
                  WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY s.journal, g.is_gone, u.why) w) f) j;

CREATE VIEW idempotence.check_settings AS
SELECT CASE WHEN pg_catalog.bool_or(c.refuses) THEN 2 WHEN pg_catalog.count(c.told) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(c.told, '; ' ORDER BY c.told), 'no setting contradicts another') AS detail,
       CASE WHEN pg_catalog.bool_or(c.refuses IS NOT NULL) THEN 'Requests are refused there (25006). RESET default_transaction_read_only for whoever has any.'
            ELSE 'Make idempotence.wait shorter than the timeouts, so that a call that has waited answers in_progress. For the others, docs/reference.md tells what each setting is for.' END AS hint
FROM (SELECT DISTINCT pg_catalog.format('a call waits %s (idempotence.wait %s), but %s is %s (%s)',
                CASE WHEN w.ms OPERATOR(pg_catalog.<) 0 THEN 'for ever' ELSE pg_catalog.format('for up to %s', pg_catalog.make_interval(secs => w.ms OPERATOR(pg_catalog./) 1000.0)) END, w.place,
                t.name, pg_catalog.make_interval(secs => t.ms OPERATOR(pg_catalog./) 1000.0), t.place) AS told, NULL::pg_catalog.bool AS refuses
      FROM (SELECT e.role, e.place, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.wait') w
      JOIN (SELECT e.role, e.place, e.name, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) ANY ('{statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[])) t
        ON t.role OPERATOR(pg_catalog.=) w.role AND t.ms OPERATOR(pg_catalog.>) 0 AND w.ms OPERATOR(pg_catalog.<>) 0 AND (w.ms OPERATOR(pg_catalog.<) 0 OR w.ms OPERATOR(pg_catalog.>=) t.ms)
      UNION ALL
      SELECT DISTINCT 'default_transaction_read_only is on ' OPERATOR(pg_catalog.||) e.place, e.role OPERATOR(pg_catalog.=) '0'::pg_catalog.oid FROM idempotence.effective e
      WHERE e.name OPERATOR(pg_catalog.=) 'default_transaction_read_only' AND e.value::pg_catalog.bool AND NOT pg_catalog.pg_is_in_recovery()
      UNION ALL
      SELECT 'idempotence.retention, the ttl of sessions without one of their own, is longer than idempotence.max_ttl', NULL
      WHERE idempotence.setting('idempotence.retention')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.max_ttl')::pg_catalog.int8
      UNION ALL
      SELECT 'idempotence.naptime is longer than idempotence.session_timeout: silent client sessions outlast their timeout', NULL
      WHERE idempotence.setting('idempotence.naptime')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.session_timeout')::pg_catalog.int8
      UNION ALL
      SELECT pg_catalog.format('one idem_ack may lock as many requests as idempotence.window_size says, and the lock table has %s places: raise max_locks_per_transaction',
               idempotence.lock_table_size()), NULL
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
SELECT CASE WHEN j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval) AND j.by OPERATOR(pg_catalog.>) '1 hour'::pg_catalog.interval THEN 2
            WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) OR j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         CASE WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval)
              THEN pg_catalog.format('something was noted at %s, by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', f.ahead)) END,
         CASE WHEN j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval)
              THEN pg_catalog.format('the clock was set %s by %s, seen at %s', CASE WHEN j.by OPERATOR(pg_catalog.>) '0'::pg_catalog.interval THEN 'forward' ELSE 'back' END,
                     pg_catalog.date_trunc('second', GREATEST(j.by, '0'::pg_catalog.interval OPERATOR(pg_catalog.-) j.by)), pg_catalog.date_trunc('second', j.at))
              WHEN NOT COALESCE(f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval), false)
              THEN CASE WHEN w.launcher IS NULL THEN 'nothing was noted in the future; without preloading nobody watches the clock'
                        ELSE 'nothing was noted in the future, and the clock was not set within a day' END END) AS detail,
       'By this clock outcomes expire and leases run out. Set forward, it has what lived taken for expired, and executed again: while it was ahead what was recorded before, once it is right again what was recorded while it was behind. What was recorded or leased while it was ahead keeps those times until they are over (idem_force_release). Keep clocks right by slewing (NTP), and start the server only once its clock is right.' AS hint
FROM idempotence.upkeep w
CROSS JOIN (SELECT idempotence.clock_jump() AS at, idempotence.clock_jump_by() AS by) j
CROSS JOIN (SELECT GREATEST((SELECT pg_catalog.max(GREATEST(s.opened_at, s.closed_at, s.sessions_at, s.looked_at)) FROM idempotence.segment s),
                            (SELECT pg_catalog.max(o.recorded_at) FROM idempotence.sample o),
                            (SELECT pg_catalog.max(r.noted_at) FROM idempotence.restore r),
                            (SELECT idempotence.last_sweep())) AS ahead) f;

-- How fast a table of outcomes has grown since a moment, as some of its pages tell: those whose distances from its end double.
-- A page's moment is the median of its outcomes', so that a few that were imported with old moments do not count. A page of
-- which most are older than the moment was imported or restored, and was not recorded at this pace: it does not count. held is
-- bytes times the seconds for which they are kept.
CREATE FUNCTION idempotence.pace(name text, since_moment timestamptz, OUT bytes numeric, OUT since timestamptz, OUT lately numeric, OUT held numeric)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $pace$
#variable_conflict use_variable
DECLARE
  relation   pg_catalog.regclass := pg_catalog.to_regclass('idempotence.' OPERATOR(pg_catalog.||) name);
  pages      pg_catalog.int8 := pg_catalog.pg_relation_size(relation) OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::pg_catalog.int8;
  page_bytes pg_catalog.numeric := pg_catalog.pg_total_relation_size(relation)::pg_catalog.numeric OPERATOR(pg_catalog./) GREATEST(pages, 1);
  now        pg_catalog.timestamptz := pg_catalog.clock_timestamp();
  near       pg_catalog.int8 := 0;
  far        pg_catalog.int8;
  moment     pg_catalog.timestamptz;
  ttl        pg_catalog.numeric;
BEGIN
  bytes := 0;
  lately := 0;
  held := 0;
  WHILE near OPERATOR(pg_catalog.<) pages LOOP
    far := LEAST(GREATEST(near OPERATOR(pg_catalog.*) 2, 1), pages);
    EXECUTE pg_catalog.format('SELECT pg_catalog.percentile_disc(0.5) WITHIN GROUP (ORDER BY o.recorded_at),
                                      pg_catalog.avg(EXTRACT(epoch FROM o.expires_at OPERATOR(pg_catalog.-) o.recorded_at)) FILTER (WHERE pg_catalog.isfinite(o.expires_at)) FROM %s o
                               WHERE o.ctid OPERATOR(pg_catalog.>=) $1 AND o.ctid OPERATOR(pg_catalog.<) $2', relation)
      INTO moment, ttl
      USING pg_catalog.format('(%s,0)', pages OPERATOR(pg_catalog.-) far)::pg_catalog.tid, pg_catalog.format('(%s,0)', (pages OPERATOR(pg_catalog.-) far) OPERATOR(pg_catalog.+) 1)::pg_catalog.tid;
    IF moment OPERATOR(pg_catalog.>=) since_moment THEN
      bytes := bytes OPERATOR(pg_catalog.+) ((far OPERATOR(pg_catalog.-) near) OPERATOR(pg_catalog.*) page_bytes);
      held := held OPERATOR(pg_catalog.+) (((far OPERATOR(pg_catalog.-) near) OPERATOR(pg_catalog.*) page_bytes) OPERATOR(pg_catalog.*) COALESCE(ttl, 0));
      since := LEAST(since, moment);
      IF since OPERATOR(pg_catalog.>) (now OPERATOR(pg_catalog.-) '1 hour'::pg_catalog.interval) THEN
        lately := bytes OPERATOR(pg_catalog./) GREATEST(EXTRACT(epoch FROM (now OPERATOR(pg_catalog.-) since)), 600);
      END IF;
    END IF;
    near := far;
  END LOOP;
END
$pace$;

-- What outcomes take in a second, and what they will take once the ring has turned with that: what is recorded in one and
-- a half times the time that a segment is kept for, and ten minutes. The rate is that of the current segment, and of the one
-- before as well while the current one is younger than an hour. Less than ten minutes tell no rate. lately is the rate of
-- the last hour, or of as much of it as was looked at. What outlives the segments, long, is added: it takes its rate for as
-- long as it is kept.
CREATE VIEW idempotence.growth AS
SELECT r.rate OPERATOR(pg_catalog.+) r.long_rate AS rate, r.lately OPERATOR(pg_catalog.+) r.long_lately AS lately,
       (r.rate OPERATOR(pg_catalog.*) ((EXTRACT(epoch FROM r.keep) OPERATOR(pg_catalog.*) 1.5) OPERATOR(pg_catalog.+) 600))
         OPERATOR(pg_catalog.+) (r.long_rate OPERATOR(pg_catalog.*) r.long_ttl) AS needed,
       r.present OPERATOR(pg_catalog.+) r.long_present AS present, idempotence.free_space() AS free, r.long_present, r.is_long
FROM (SELECT s.keep, (SELECT pg_catalog.sum(a.bytes) FROM idempotence.segments a) AS present, c.lately,
             (c.bytes OPERATOR(pg_catalog.+) COALESCE(b.bytes, 0))
               OPERATOR(pg_catalog./) GREATEST(EXTRACT(epoch FROM (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) LEAST(b.since, c.since))), 600) AS rate,
             l.bytes OPERATOR(pg_catalog./) GREATEST(EXTRACT(epoch FROM (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) l.since)), 600) AS long_rate,
             l.lately AS long_lately, CASE WHEN l.bytes OPERATOR(pg_catalog.>) 0 THEN l.held OPERATOR(pg_catalog./) l.bytes ELSE 0 END AS long_ttl,
             pg_catalog.pg_total_relation_size(pg_catalog.to_regclass('idempotence.outcome_long')) AS long_present,
             l.bytes OPERATOR(pg_catalog.>) GREATEST(c.bytes OPERATOR(pg_catalog.+) COALESCE(b.bytes, 0), 1048576) AS is_long
      FROM idempotence.segments s
      CROSS JOIN LATERAL idempotence.pace('outcome_' OPERATOR(pg_catalog.||) s.segment, s.opened_at) c
      LEFT JOIN idempotence.segments f
        ON f.segment OPERATOR(pg_catalog.=) ((s.segment OPERATOR(pg_catalog.+) 2) OPERATOR(pg_catalog.%) 3) AND f.state OPERATOR(pg_catalog.<>) 'empty'
       AND COALESCE(c.since OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 hour'::pg_catalog.interval), true)
      LEFT JOIN LATERAL idempotence.pace('outcome_' OPERATOR(pg_catalog.||) f.segment, f.opened_at) b ON f.segment IS NOT NULL
      CROSS JOIN LATERAL idempotence.pace('outcome_long', COALESCE(f.opened_at, s.opened_at)) l
      WHERE s.state OPERATOR(pg_catalog.=) 'current') r;

-- Critical: next to nothing is free (a file of WAL takes 16 MB), or what is free will be used up within six hours at the
-- rate of the last hour, or within a day at that of the segment while the ring gives less back.
CREATE VIEW idempotence.check_growth AS
SELECT CASE WHEN g.free OPERATOR(pg_catalog.<) (16 OPERATOR(pg_catalog.*) 1048576) OR g.free OPERATOR(pg_catalog.<) (g.lately OPERATOR(pg_catalog.*) 21600) THEN 2
            WHEN NOT f.too_much THEN 0 WHEN g.free OPERATOR(pg_catalog.<) (g.rate OPERATOR(pg_catalog.*) 86400) THEN 2 ELSE 1 END AS level,
       pg_catalog.concat(pg_catalog.pg_size_pretty(pg_catalog.round(g.rate OPERATOR(pg_catalog.*) 3600)), ' of outcomes an hour, lately ',
         pg_catalog.pg_size_pretty(pg_catalog.round(g.lately OPERATOR(pg_catalog.*) 3600)), '; at this rate they will take ', pg_catalog.pg_size_pretty(pg_catalog.round(g.needed)),
         ', and take ', pg_catalog.pg_size_pretty(g.present), ' now; ',
         CASE WHEN g.free IS NULL THEN 'how much is free is unknown' ELSE pg_catalog.concat(pg_catalog.pg_size_pretty(g.free), ' are free') END) AS detail,
       'Give the tablespace more room. Shorter ttls of sessions (their owners'' idem_alter_session) and of idempotence.retention count for what is recorded from then on, and free nothing soon. What frees space at once, and what takes more: docs/operations.md, A full disk.' AS hint
FROM (SELECT COALESCE(g.rate, 0)::pg_catalog.numeric AS rate, COALESCE(g.lately, 0) AS lately, COALESCE(g.needed, 0)::pg_catalog.numeric AS needed, g.present, g.free FROM idempotence.growth g) g
CROSS JOIN LATERAL (SELECT COALESCE((g.needed OPERATOR(pg_catalog.-) g.present) OPERATOR(pg_catalog.>) g.free, false)) f (too_much);

-- Whether segments serve for most of what is recorded. What lives longer than they are kept is deleted one by one.
CREATE VIEW idempotence.check_retention AS
SELECT CASE WHEN r.ttl OPERATOR(pg_catalog.>) r.retention OR g.is_long THEN 1 ELSE 0 END AS level,
       pg_catalog.format(CASE WHEN r.ttl OPERATOR(pg_catalog.>) r.retention THEN 'most outcomes that were recorded of late live longer than idempotence.retention (%s): %s; what outlives the segments takes %s'
                              WHEN g.is_long THEN 'most of what was recorded of late outlives the segments, which are kept for at most idempotence.retention (%1$s); it takes %3$s'
                              ELSE 'most outcomes that were recorded of late expire within idempotence.retention; what outlives the segments takes %3$s' END,
         r.retention, r.ttl, pg_catalog.pg_size_pretty(g.long_present)) AS detail,
       'What lives longer is kept in idempotence.outcome_long and deleted row by row, which costs as much as to record it. At its next turn the ring keeps segments for longer, up to idempotence.retention. Raise that, or shorten the ttl of sessions (idem_alter_session), where they live longer.' AS hint
FROM (SELECT idempotence.retention() AS retention, pg_catalog.justify_hours(pg_catalog.date_trunc('second', pg_catalog.make_interval(secs => w.wanted) OPERATOR(pg_catalog.-) '6 minutes'::pg_catalog.interval)) AS ttl
      FROM idempotence.segment s
      -- After a restore nothing tells how long outcomes live.
      CROSS JOIN LATERAL (SELECT CASE WHEN s.keep_us OPERATOR(pg_catalog.<) 9223372036854775807 THEN s.keep_us OPERATOR(pg_catalog./) 1e6 END) w (wanted)
      WHERE s.current) r
CROSS JOIN idempotence.growth g;

CREATE VIEW idempotence.check_size AS
SELECT 0 AS level,
       pg_catalog.format('%s, of which outcomes %s, of which those that outlive the segments %s', pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.~~) 'outcome%')),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.=) 'outcome_long'))) AS detail,
       NULL::pg_catalog.text AS hint
FROM pg_catalog.pg_class c
WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND c.relkind OPERATOR(pg_catalog.=) 'r';
