-- The view segments: the state of the ring.

-- held_by names whoever keeps a segment from its next state. For the current segment that is the holder of the sweep's
-- lock. For the others it is the holder of a lock on the segment, or on its TOAST table, that conflicts with the lock
-- that the next state takes: SHARE to be closed, ACCESS EXCLUSIVE to be emptied. The current segment is not due before
-- another one can be emptied.
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
             -- A minute after its end nobody can be waiting for an outcome of it any more.
             CASE WHEN s.looked_to IS NULL THEN s.ends_at OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
                  ELSE s.closed_at OPERATOR(pg_catalog.+) k.keep END AS over_at,
             (SELECT CASE WHEN pg_catalog.bool_and(pg_catalog.pg_relation_size(pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', n.number))) OPERATOR(pg_catalog.>) 0)
                          THEN pg_catalog.min(n.ends_at) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval END
              FROM idempotence.segment n WHERE NOT n.current) AS next_over_at,
             (SELECT n.opened_at FROM idempotence.segment n WHERE n.current) AS turned_at,
             GREATEST(c.reltuples, 0)::pg_catalog.int8 AS outcomes,
             pg_catalog.pg_total_relation_size(c.oid) AS bytes,
             ARRAY[c.oid, c.reltoastrelid] AS relations
      FROM idempotence.segment s
      JOIN pg_catalog.pg_class c
        ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', s.number))
      CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid) OPERATOR(pg_catalog.=) 0) b (blank)
      -- 0: nothing was recorded yet that would tell how long to keep it.
      CROSS JOIN LATERAL (SELECT pg_catalog.make_interval(secs => LEAST(
        CASE WHEN s.keep_us OPERATOR(pg_catalog.>) 0 THEN s.keep_us OPERATOR(pg_catalog./) 1e6 END,
        EXTRACT(epoch FROM idempotence.retention()) OPERATOR(pg_catalog.+) 360))) k (keep)) r
CROSS JOIN LATERAL (
  SELECT CASE WHEN r.blank THEN NULL
              WHEN r.state OPERATOR(pg_catalog.=) 'current' THEN GREATEST(r.opened_at OPERATOR(pg_catalog.+) (r.keep OPERATOR(pg_catalog./) 2), r.next_over_at)
              WHEN r.state OPERATOR(pg_catalog.=) 'closing' THEN r.turned_at
              ELSE r.over_at END) d (due_at)
ORDER BY r.segment;
