-- Who holds locks of this extension and of its tables, or waits for them, in words. The ring, the sweep and the checks of
-- health name them.

-- Every lock in this database that another backend or a prepared transaction holds or waits for, and who that is in words:
-- without predicate locks, which are in nobody's way, and without parallel workers, whose leader has their locks, too.
CREATE VIEW idempotence.locks AS
SELECT l.locktype, l.relation, l.objsubid, l.mode, l.virtualtransaction, l.granted, l.waitstart,
       COALESCE(p.prepared, a.xact_start) AS since,
       idempotence.legible(CASE WHEN l.pid IS NULL
            THEN pg_catalog.concat('prepared transaction "', p.gid, '"', ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', p.prepared)::pg_catalog.text)
            ELSE pg_catalog.concat('process ', l.pid,
                   (SELECT pg_catalog.concat(' (', w.words, ')')
                    FROM (SELECT pg_catalog.concat_ws(', ', a.backend_type, a.usename, CASE WHEN a.application_name OPERATOR(pg_catalog.<>) '' THEN pg_catalog.to_json(a.application_name) END, a.state,
                            CASE WHEN a.wait_event OPERATOR(pg_catalog.=) 'SyncRep' THEN 'its commit waits for a synchronous standby'
                                 WHEN a.wait_event_type OPERATOR(pg_catalog.=) 'Lock' THEN 'waits for a lock' END)) w (words)
                    WHERE w.words OPERATOR(pg_catalog.<>) ''),
                   ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', a.xact_start)::pg_catalog.text) END) AS who
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.mode OPERATOR(pg_catalog.<>) 'SIReadLock' AND a.leader_pid IS NULL AND (l.pid IS NULL OR l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid())
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

-- Which tables of ours are locked against writers, by whom, since when at most, how many calls wait for them (NULL: none
-- needs the table), and for whom such a command waits itself, of several for the oldest. A lock on an index, or on what keeps
-- a table's large values, is one on the table. Calls queue behind a command that waits for such a lock, too: where nobody has
-- one, the first of these commands is told.
CREATE VIEW idempotence.locked AS
WITH ours AS (
  SELECT l.*, t.oid::pg_catalog.regclass AS of_table, t.relname OPERATOR(pg_catalog.<>) ALL ('{audit,sweep}'::pg_catalog.name[]) AS is_needed
  FROM pg_catalog.pg_class t
  CROSS JOIN LATERAL (SELECT t.oid UNION ALL SELECT t.reltoastrelid
                      UNION ALL SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid OPERATOR(pg_catalog.=) t.oid) p (relation)
  JOIN idempotence.locks l ON l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.relation OPERATOR(pg_catalog.=) p.relation
  WHERE t.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND t.relkind OPERATOR(pg_catalog.=) 'r')
SELECT CASE WHEN l.granted THEN l.since ELSE COALESCE(l.waitstart, pg_catalog.clock_timestamp()) END AS since,
       CASE WHEN l.is_needed
            THEN (SELECT pg_catalog.count(*) FROM ours w
                  WHERE w.of_table OPERATOR(pg_catalog.=) l.of_table AND NOT w.granted
                    AND w.mode OPERATOR(pg_catalog.=) ANY ('{AccessShareLock,RowShareLock,RowExclusiveLock}'::pg_catalog.text[])) END AS waiters,
       pg_catalog.format(CASE WHEN l.granted THEN 'table %s is locked: held by %s' ELSE 'table %s is about to be locked by %s' END,
                         l.of_table, l.who) AS told,
       (SELECT h.who FROM ours w
        JOIN ours h ON h.granted AND h.relation OPERATOR(pg_catalog.=) w.relation AND h.virtualtransaction OPERATOR(pg_catalog.<>) w.virtualtransaction
        WHERE w.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction AND NOT w.granted
          AND CASE WHEN h.mode OPERATOR(pg_catalog.=) 'AccessShareLock' THEN w.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock'
                   WHEN h.mode OPERATOR(pg_catalog.=) 'RowShareLock' THEN w.mode OPERATOR(pg_catalog.=) ANY ('{ExclusiveLock,AccessExclusiveLock}'::pg_catalog.text[])
                   ELSE true END
        ORDER BY h.since LIMIT 1) AS behind
FROM (SELECT o.*, pg_catalog.bool_or(o.granted) OVER (PARTITION BY o.of_table) AS is_locked,
             pg_catalog.row_number() OVER (PARTITION BY o.of_table, CASE WHEN o.granted THEN o.virtualtransaction END ORDER BY o.waitstart) AS place
      FROM ours o
      WHERE o.mode OPERATOR(pg_catalog.=) ANY ('{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'::pg_catalog.text[])) l
WHERE l.place OPERATOR(pg_catalog.=) 1 AND (l.granted OR NOT l.is_locked);

-- The same in words. Anybody may ask, so it does not tell who else is at work.
CREATE FUNCTION idempotence.locked_by() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $locked_by$
  SELECT pg_catalog.string_agg(l.told, '; ' ORDER BY l.waiters DESC NULLS LAST, l.since) FROM idempotence.locked l
$locked_by$;
