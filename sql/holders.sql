-- Who holds locks of this extension and of its tables, in words. The ring, the sweep and the checks of health name them.

-- Every lock in this database that another backend or a prepared transaction holds or waits for, with whom in words.
-- Without predicate locks, which are in nobody's way.
CREATE VIEW idempotence.locks AS
SELECT l.locktype, l.relation, l.objsubid, l.mode, l.virtualtransaction, l.pid, l.granted, COALESCE(p.prepared, a.xact_start) AS since,
       idempotence.legible(CASE WHEN l.pid IS NULL
            THEN pg_catalog.concat('prepared transaction "', p.gid, '"', ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', p.prepared)::pg_catalog.text)
            ELSE pg_catalog.concat('process ', l.pid,
                   (SELECT pg_catalog.concat(' (', w.words, ')')
                    FROM (SELECT pg_catalog.concat_ws(', ', a.backend_type, a.usename, CASE WHEN a.application_name OPERATOR(pg_catalog.<>) '' THEN pg_catalog.to_json(a.application_name) END, a.state,
                            CASE WHEN a.wait_event OPERATOR(pg_catalog.=) 'SyncRep' THEN 'its commit waits for a synchronous standby' END)) w (words)
                    WHERE w.words OPERATOR(pg_catalog.<>) ''),
                   ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', a.xact_start)::pg_catalog.text) END) AS who
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.mode OPERATOR(pg_catalog.<>) 'SIReadLock' AND (l.pid IS NULL OR l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid())
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database());

-- Who holds one of these locks. The functions run with the owner's rights, since pg_stat_activity hides from a role
-- what the backends of other roles do.
CREATE FUNCTION idempotence.holders(relations oid[], modes text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $holders$
  SELECT pg_catalog.string_agg(DISTINCT l.who, ', ') FROM idempotence.locks l
  WHERE l.granted AND l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.relation OPERATOR(pg_catalog.=) ANY (relations)
    AND (modes IS NULL OR l.mode OPERATOR(pg_catalog.=) ANY (modes))
$holders$;

CREATE FUNCTION idempotence.advisory_holders(objsubid integer) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $advisory_holders$
  SELECT pg_catalog.string_agg(DISTINCT l.who, ', ') FROM idempotence.locks l
  WHERE l.granted AND l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) advisory_holders.objsubid
$advisory_holders$;

-- Which tables of ours are locked against writers, by whom, since when at most, and how many wait for them. A command that
-- waits for such a lock holds up all that come after it as well: it is told with the oldest transaction that it waits for.
CREATE VIEW idempotence.locked AS
SELECT l.since, w.waiters,
       pg_catalog.format('table %s is %s %s%s', l.relation::pg_catalog.regclass, CASE WHEN l.granted THEN 'locked: held by' ELSE 'about to be locked: waited for by' END, l.who,
                         '; behind ' OPERATOR(pg_catalog.||) (SELECT h.who FROM idempotence.locks h
                                                              WHERE h.granted AND h.locktype OPERATOR(pg_catalog.=) 'relation' AND h.relation OPERATOR(pg_catalog.=) l.relation
                                                                AND COALESCE(h.pid, 0) OPERATOR(pg_catalog.=) ANY (b.pids)
                                                              ORDER BY h.since LIMIT 1)) AS told
FROM idempotence.locks l
JOIN (SELECT t.oid, d.oid AS database FROM pg_catalog.pg_class t, pg_catalog.pg_database d
      WHERE t.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND t.relkind OPERATOR(pg_catalog.=) 'r'
        AND d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) c ON c.oid OPERATOR(pg_catalog.=) l.relation
CROSS JOIN LATERAL (SELECT CASE WHEN NOT l.granted THEN pg_catalog.pg_blocking_pids(l.pid) END AS pids OFFSET 0) b
CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS waiters FROM pg_catalog.pg_locks w
                    WHERE w.relation OPERATOR(pg_catalog.=) l.relation AND NOT w.granted AND w.database OPERATOR(pg_catalog.=) c.database
                      AND w.pid IS DISTINCT FROM l.pid) w
WHERE l.locktype OPERATOR(pg_catalog.=) 'relation'
  AND l.mode OPERATOR(pg_catalog.=) ANY ('{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'::pg_catalog.text[]);

-- The same in words.
CREATE FUNCTION idempotence.locked_by() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $locked_by$
  SELECT pg_catalog.string_agg(l.told, '; ' ORDER BY l.since) FROM idempotence.locked l
$locked_by$;
