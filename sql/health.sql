-- Every lock in this database that another backend or a prepared transaction holds, with its holder in words. Without
-- predicate locks, which are in nobody's way.
CREATE VIEW idempotence.held AS
SELECT l.locktype, l.relation, l.objsubid, l.mode,
       CASE WHEN l.pid IS NULL
            THEN pg_catalog.concat('prepared transaction "', p.gid, '"', ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', p.prepared)::pg_catalog.text)
            ELSE pg_catalog.concat('process ', l.pid,
                   ' (' OPERATOR(pg_catalog.||) NULLIF(pg_catalog.concat_ws(', ', a.backend_type, a.usename, NULLIF(a.application_name, ''), a.state), '') OPERATOR(pg_catalog.||) ')',
                   ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', a.xact_start)::pg_catalog.text) END AS holder
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.granted AND l.mode OPERATOR(pg_catalog.<>) 'SIReadLock' AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database());

-- Who holds one of these locks. The functions run with the owner's rights, since pg_stat_activity hides from a role
-- what the backends of other roles do.
CREATE FUNCTION idempotence.holders(relations oid[], modes text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $holders$
  SELECT pg_catalog.string_agg(DISTINCT h.holder, ', ') FROM idempotence.held h
  WHERE h.locktype OPERATOR(pg_catalog.=) 'relation' AND h.relation OPERATOR(pg_catalog.=) ANY (relations)
    AND (modes IS NULL OR h.mode OPERATOR(pg_catalog.=) ANY (modes))
$holders$;

CREATE FUNCTION idempotence.advisory_holders(objsubid integer) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $advisory_holders$
  SELECT pg_catalog.string_agg(DISTINCT h.holder, ', ') FROM idempotence.held h
  WHERE h.locktype OPERATOR(pg_catalog.=) 'advisory' AND h.objsubid OPERATOR(pg_catalog.=) advisory_holders.objsubid
$advisory_holders$;

-- The views segments (the state of the ring) and health (all that a DBA has to look at). idem_grant(role, 'monitor')
-- grants them.

-- held_by names whoever keeps a segment from its next state. For the current segment that is the holder of the sweep's
-- lock. For the others it is the holder of a lock on the segment, or on its TOAST table, that conflicts with the lock
-- that the next state takes: SHARE to be closed, ACCESS EXCLUSIVE to be emptied. The current segment is not due before
-- the next segment's keep is over: many outcomes of the next one may still live until then.
CREATE VIEW idempotence.segments WITH (security_barrier) AS
SELECT r.segment, r.state, r.opened_at, r.closed_at, r.keep, d.due_at, r.outcomes, r.bytes,
       CASE WHEN r.state OPERATOR(pg_catalog.=) 'closed' THEN idempotence.holders(r.relations, NULL)
            WHEN r.state OPERATOR(pg_catalog.=) 'closing' THEN idempotence.holders(r.relations,
              '{RowExclusiveLock,ShareUpdateExclusiveLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}')
            WHEN r.state OPERATOR(pg_catalog.=) 'current' AND d.due_at OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp()
            THEN idempotence.advisory_holders(7659) END AS held_by
FROM (SELECT s.number::pg_catalog.int4 AS segment,
             CASE WHEN s.current THEN 'current'
                  WHEN s.closed_at IS NULL THEN 'closing'
                  WHEN b.blank THEN 'empty'
                  ELSE 'closed' END AS state,
             s.opened_at, s.closed_at, b.blank,
             k.keep,
             (SELECT n.closed_at OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => n.keep_us OPERATOR(pg_catalog./) 1e6) FROM idempotence.segment n
              WHERE n.number OPERATOR(pg_catalog.=) ((s.number OPERATOR(pg_catalog.+) 1) OPERATOR(pg_catalog.%) 3)
                AND pg_catalog.pg_relation_size(pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', n.number))) OPERATOR(pg_catalog.>) 0) AS next_over_at,
             (SELECT n.opened_at FROM idempotence.segment n WHERE n.current) AS turned_at,
             GREATEST(c.reltuples, 0)::pg_catalog.int8 AS outcomes,
             pg_catalog.pg_total_relation_size(c.oid) AS bytes,
             ARRAY[c.oid, c.reltoastrelid] AS relations
      FROM idempotence.segment s
      JOIN pg_catalog.pg_class c
        ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', s.number))
      CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid) OPERATOR(pg_catalog.=) 0) b (blank)
      -- 0: nothing was recorded yet that would tell how long to keep it.
      CROSS JOIN LATERAL (SELECT pg_catalog.make_interval(secs =>
        CASE WHEN s.keep_us OPERATOR(pg_catalog.=) 0 THEN EXTRACT(epoch FROM idempotence.retention()) OPERATOR(pg_catalog.+) 360
             ELSE s.keep_us OPERATOR(pg_catalog./) 1e6 END)) k (keep)) r
CROSS JOIN LATERAL (
  SELECT CASE WHEN r.blank THEN NULL
              WHEN r.state OPERATOR(pg_catalog.=) 'current' THEN GREATEST(r.opened_at OPERATOR(pg_catalog.+) (r.keep OPERATOR(pg_catalog./) 2), r.next_over_at)
              WHEN r.state OPERATOR(pg_catalog.=) 'closing' THEN r.turned_at
              ELSE r.closed_at OPERATOR(pg_catalog.+) r.keep END) d (due_at)
ORDER BY r.segment;

-- The tables that a restore has left out. If the key of the digests was restored, each of these tables must have been
-- restored too, since pg_dump has a COPY even of an empty table. Dumps of version 1.0.0 have neither outcome_long nor
-- lease, and where leases are unlogged a dump may leave them out. One row, with NULL where nothing is missing.
CREATE VIEW idempotence.missing AS
SELECT pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name) AS missing
FROM pg_catalog.unnest('{session,outcome_0,outcome_1,outcome_2,reply,checkpoint,lease}'::pg_catalog.text[]) t (name)
WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'secret')
  AND NOT EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) t.name)
  AND (t.name OPERATOR(pg_catalog.<>) 'lease'
       OR (EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'outcome_long')
           AND NOT EXISTS (SELECT FROM idempotence.persistence p WHERE p.what OPERATOR(pg_catalog.=) 'claims' AND p.unlogged)));

-- One row for each check. What a check calls late is far beyond what is normal.
CREATE VIEW idempotence.health WITH (security_barrier) AS
SELECT v.name, v.status, v.detail, CASE WHEN v.status OPERATOR(pg_catalog.<>) 'ok' THEN v.hint END AS hint
FROM (SELECT v.*, CASE WHEN v.visited THEN (idempotence.naptime() OPERATOR(pg_catalog.*) 10) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
                       -- No worker comes here. Whoever sweeps instead is asked to do so daily.
                       ELSE '25 hours'::pg_catalog.interval END AS late,
             -- The moment that lateness counts from: the last sweep. If none is known, it is the moment when the
             -- server came up, or when the extension or a restore brought the tables, if that is later: before it
             -- nothing was to be swept. A moment in the future, noted by a clock that was ahead, does not count.
             COALESCE(v.last_sweep, GREATEST((SELECT idempotence.up_since()),
                                             (SELECT g.sessions_at FROM idempotence.segment g
                                              WHERE g.number OPERATOR(pg_catalog.=) 0 AND g.sessions_at OPERATOR(pg_catalog.<=) v.now))) AS since
      FROM (SELECT idempotence.launcher() AS launcher, idempotence.is_visited() AS visited, idempotence.last_sweep() AS last_sweep,
                   pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.clock_timestamp() AS now,
                   -- Whether the leases cannot be seen here.
                   pg_catalog.pg_is_in_recovery() AND (SELECT c.relpersistence OPERATOR(pg_catalog.=) 'u' FROM pg_catalog.pg_class c
                     WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease')) AS blind) v) w
CROSS JOIN LATERAL (
  SELECT 1, 'worker',
         CASE WHEN w.standby OR w.launcher OPERATOR(pg_catalog.>) 0 THEN 'ok'
              WHEN w.launcher IS NOT NULL THEN 'critical'
              WHEN w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '25 hours'::pg_catalog.interval) THEN 'ok'
              ELSE 'warning' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
              WHEN w.launcher OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('the launcher is process %s', w.launcher)
              WHEN w.launcher IS NULL THEN 'the library is not preloaded; somebody else has to CALL idem_sweep()'
              ELSE 'the launcher does not run' END,
         CASE WHEN w.launcher IS NULL
              THEN 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep().'
              ELSE 'The server log tells why. A launcher that failed is started again within seconds; one that found max_worker_processes too small at server start needs that raised, and a restart.' END
  UNION ALL
  SELECT 2, 'sweep',
         CASE WHEN w.standby OR w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) w.late) THEN 'ok'
              ELSE 'warning' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
              WHEN w.last_sweep IS NULL THEN pg_catalog.format('not swept yet since %s', pg_catalog.date_trunc('second', w.since))
              WHEN w.last_sweep OPERATOR(pg_catalog.>) w.now
              THEN pg_catalog.format('swept at %s by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', w.last_sweep))
              ELSE pg_catalog.format('swept %s ago', pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) w.last_sweep)) END,
         CASE WHEN w.visited THEN 'The server log tells of errors. Is this database a template? The worker does not visit those.'
              WHEN w.launcher IS NULL THEN 'CALL idem_sweep(), and have a scheduler do so at least daily.'
              ELSE 'The setting idempotence.databases leaves this database out: name it there, or have a scheduler CALL idem_sweep() at least daily.' END
  UNION ALL
  SELECT 3, 'ring',
         -- Critical: a segment is late by its whole keep, although a sweep came by when it was late already.
         CASE WHEN pg_catalog.bool_or(NOT s.is_ahead AND (s.due_at OPERATOR(pg_catalog.+) s.keep) OPERATOR(pg_catalog.<) w.now
                                      AND (s.due_at OPERATOR(pg_catalog.+) w.late) OPERATOR(pg_catalog.<) w.last_sweep) THEN 'critical'
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE(pg_catalog.string_agg(
           CASE WHEN s.is_ahead
                THEN pg_catalog.format('segment %s was opened or closed at %s, by a clock that was ahead and has been set back', s.segment,
                       pg_catalog.date_trunc('second', GREATEST(s.opened_at, s.closed_at)))
                ELSE pg_catalog.format('segment %s should have been %s %s ago%s', s.segment,
                       CASE s.state WHEN 'current' THEN 'turned away from' WHEN 'closing' THEN 'closed' ELSE 'emptied' END,
                       pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) s.due_at),
                       CASE WHEN s.held_by IS NOT NULL THEN pg_catalog.concat('; held by ', s.held_by)
                            WHEN w.last_sweep OPERATOR(pg_catalog.<) s.due_at THEN '; not swept since' ELSE '' END) END,
                  '. ' ORDER BY s.segment), 'nothing is overdue'),
         CASE WHEN pg_catalog.bool_or(s.held_by IS NOT NULL)
              THEN 'Nothing is lost; expired outcomes take space until then. End the transaction that holds the segment (pg_terminate_backend, ROLLBACK PREPARED), or wait for its end.'
              ELSE 'Nothing is lost; expired outcomes take space until then. Nobody holds the segment: the next sweep puts it right. CALL idem_sweep() does it by hand, and tells what is in its way; if none comes by itself, the rows worker and sweep tell why.' END
  FROM (SELECT s.*, GREATEST(s.opened_at, s.closed_at) OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) AS is_ahead
        FROM idempotence.segments s) s
  WHERE s.is_ahead OR s.due_at OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) w.late OPERATOR(pg_catalog.-) '1 minute'::pg_catalog.interval)
  UNION ALL
  SELECT 4, 'prepared transactions',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE(pg_catalog.string_agg(pg_catalog.format('"%s" holds requests since %s', p.gid, pg_catalog.date_trunc('second', p.prepared)),
                  ', ' ORDER BY p.prepared), 'none holds a request for more than five minutes'),
         'COMMIT PREPARED or ROLLBACK PREPARED them: their requests are in progress until then.'
  FROM idempotence.prepared p
  WHERE p.prepared OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval)
    AND EXISTS (SELECT FROM pg_catalog.pg_locks l
                WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'advisory'
                  AND l.objsubid OPERATOR(pg_catalog.>=) 7649 AND l.objsubid OPERATOR(pg_catalog.<=) 7658
                  AND l.virtualtransaction OPERATOR(pg_catalog.=) p.virtualtransaction)
  UNION ALL
  SELECT 5, 'owners',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         pg_catalog.concat_ws('; ',
                    'sessions without an owner: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.ownerless),
                    'lent to a role that was dropped: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.lent_to_nobody),
                    CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'every standing session has its owner' END),
         'A session without an owner can be used by superusers, and by the role that it is lent to. Give it to a role: idem_alter_session(session, owner => ...). A loan to a dropped role ends by itself within the hour.'
  FROM (SELECT s.name, r.owner IS NULL AS ownerless, s.usable_by IS NOT NULL AND r.borrower IS NULL AS lent_to_nobody
        FROM idempotence.session s
        CROSS JOIN LATERAL (SELECT (SELECT o.oid FROM pg_catalog.pg_roles o WHERE o.oid OPERATOR(pg_catalog.=) s.owner::pg_catalog.oid),
                                   (SELECT b.oid FROM pg_catalog.pg_roles b WHERE b.oid OPERATOR(pg_catalog.=) s.usable_by::pg_catalog.oid)) r (owner, borrower)
        WHERE s.name IS NOT NULL AND s.ended_at IS NULL) s
  WHERE s.ownerless OR s.lent_to_nobody
  UNION ALL
  SELECT 6, 'client sessions',
         CASE WHEN pg_catalog.bool_or(o.is_near) THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary knows which are at work'
              ELSE pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' at work, of which ', COALESCE(pg_catalog.sum(o.silent), 0),
                     ' are silent for longer than their timeout',
                     pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
                       FILTER (WHERE o.is_near)) END,
         'At the limit registering is refused (ID009). Close sessions that are done with, shorten timeouts, or raise idempotence.max_sessions_per_role.'
  FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near
        FROM (SELECT l.*, idempotence.max_sessions_per_role() AS most FROM idempotence.at_work_by_role() l) s) o
  UNION ALL
  SELECT 7, 'publications',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE('published by ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(pg_catalog.format('"%s"', p.pubname), ', ' ORDER BY p.pubname),
                  'no table of this extension is published'),
         'The tables of this extension hold for one server; a subscription to them gets in the way of its own. Publish a list of tables or schemas instead of FOR ALL TABLES, without these.'
  FROM pg_catalog.pg_publication p
  WHERE p.puballtables
     OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
                WHERE n.pnpubid OPERATOR(pg_catalog.=) p.oid AND n.pnnspid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
     OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
                WHERE r.prpubid OPERATOR(pg_catalog.=) p.oid AND c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
  UNION ALL
  SELECT 8, 'restore',
         CASE WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0) OR m.missing IS NOT NULL THEN 'critical'
              WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN m.missing IS NOT NULL
              THEN pg_catalog.format('of what was restored since %s these tables are missing: %s', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)), m.missing)
              WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
              THEN pg_catalog.format('what was restored since %s lacks sessions: requests that were done may be executed again', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
              WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('what was restored since %s was not looked through yet', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
              ELSE 'nothing that was restored lacks its session' END,
         CASE WHEN m.missing IS NOT NULL
              THEN 'Their COPY has failed, or is still to come: requests that were done may be executed again. Create the roles that the restore missed and restore the data of these tables again, or give up what they had: idem_accept_restore(). No session that is new can be made until then.'
              WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
              THEN 'No session that is new can be made. Create the roles that the restore missed and restore the data of table idempotence.session again, or give up what has no session: idem_accept_restore().'
              ELSE 'The sweep looks through it. Where no worker visits this database, CALL idem_sweep().' END
  FROM idempotence.missing m LEFT JOIN idempotence.restore r ON r.orphans IS DISTINCT FROM 0
  GROUP BY m.missing
  UNION ALL
  SELECT 9, 'leases',
         CASE WHEN pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.blind THEN 'this is a standby, and leases are unlogged; the primary knows them'
              ELSE pg_catalog.concat(pg_catalog.count(*) FILTER (WHERE u.state OPERATOR(pg_catalog.=) 'leased'), ' requests are leased',
                     '; ' OPERATOR(pg_catalog.||) NULLIF(pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3), 0)
                       OPERATOR(pg_catalog.||) ' unfinished ones were taken over more than three times, one by attempt '
                       OPERATOR(pg_catalog.||) pg_catalog.max(u.attempt)) END,
         'A request that was taken over again and again may be what its workers die of, or its lease is too short for the work. The view unfinished tells who has it. max_attempts of a session gives such requests up.'
  FROM idempotence.unfinished u
  UNION ALL
  SELECT 10, 'run out',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.blind THEN 'this is a standby, and leases are unlogged; the primary knows them'
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('the lease of %s requests ran out more than five minutes ago, and nobody has taken them over; the first at %s, most of them in session "%s"',
                     pg_catalog.count(*), pg_catalog.date_trunc('second', pg_catalog.min(u.leased_until)), pg_catalog.mode() WITHIN GROUP (ORDER BY u.session))
              ELSE 'no lease ran out more than five minutes ago' END,
         'What they were to do outside the database may have happened. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record() or idem_force_release(). The view unfinished lists them.'
  FROM idempotence.unfinished u
  WHERE u.state OPERATOR(pg_catalog.=) 'run out'
    AND u.leased_until OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval)
  UNION ALL
  SELECT 11, 'persistence',
         CASE WHEN pg_catalog.bool_or(p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged) THEN 'warning' ELSE 'ok' END,
         pg_catalog.string_agg(pg_catalog.concat(t.meaning, CASE WHEN t.is_unlogged THEN ' are unlogged' ELSE ' are logged' END,
                                 CASE WHEN p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged
                                      THEN CASE WHEN p.unlogged THEN ', and are to be unlogged' ELSE ', and are to be logged' END END), '; ' ORDER BY t.what),
         'The next sweep that finds the table unused sees to it; or idem_set_persistence().'
  FROM (SELECT n.what, n.meaning, c.relpersistence OPERATOR(pg_catalog.=) 'u' AS is_unlogged
        FROM (VALUES ('claims', 'leases', 'idempotence.lease'), ('sessions', 'client sessions at work', 'idempotence.session_live')) n (what, meaning, name)
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.name)) t
  LEFT JOIN idempotence.persistence p ON p.what OPERATOR(pg_catalog.=) t.what
  UNION ALL
  SELECT 12, 'size', 'ok',
         pg_catalog.format('%s, of which outcomes %s, of which those that outlived their segment %s', pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))),
           pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.~~) 'outcome%')),
           pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.=) 'outcome_long'))),
         NULL
  FROM pg_catalog.pg_class c
  WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND c.relkind OPERATOR(pg_catalog.=) 'r'
) v (place, name, status, detail, hint)
ORDER BY v.place;
