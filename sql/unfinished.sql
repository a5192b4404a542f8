-- The checks of the view health that look at what was begun, committed, and is not done.

-- Whether the leases cannot be seen here: they are unlogged, and this is a standby.
CREATE VIEW idempotence.blind AS
SELECT pg_catalog.pg_is_in_recovery() AND c.relpersistence OPERATOR(pg_catalog.=) 'u' AS blind
FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease');

-- About how many requests are unfinished, where that is too many to look at each; otherwise NULL. VACUUM and ANALYZE count.
-- It takes more than one role has by default (idempotence.max_leases_per_role).
CREATE VIEW idempotence.many_unfinished AS
SELECT CASE WHEN e.unfinished OPERATOR(pg_catalog.>) 1000000 THEN e.unfinished END AS estimate
FROM (SELECT pg_catalog.sum(GREATEST(c.reltuples, 0))::pg_catalog.int8 AS unfinished FROM pg_catalog.pg_class c
      WHERE c.oid OPERATOR(pg_catalog.=) ANY (ARRAY[pg_catalog.to_regclass('idempotence.lease'), pg_catalog.to_regclass('idempotence.checkpoint')]::pg_catalog.oid[])) e;

-- The first words of the rows that look at what is unfinished, where they cannot look.
CREATE FUNCTION idempotence.unseen() RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE
AS $unseen$
  SELECT CASE WHEN b.blind THEN 'this is a standby, and leases are unlogged; the primary knows them'
              WHEN m.estimate IS NOT NULL THEN pg_catalog.format('about %s requests are leased or stopped at a checkpoint, too many to look at each', m.estimate) END
  FROM idempotence.many_unfinished m LEFT JOIN idempotence.blind b ON true
$unseen$;

-- What is unfinished, added up for each role, so that what one role leaves hides nothing of another's: the leases by their
-- holders, and what is suspended by the owners of the sessions. first is the moment of the first that ran out five minutes
-- ago, or that has been suspended for the given time. Each row of the tables is read once. On a standby even the planning of
-- a query on an unlogged table fails; PL/pgSQL plans a query only where it executes it.
CREATE FUNCTION idempotence.leases_of_roles(OUT role text, OUT is_full boolean, OUT leased bigint, OUT often bigint, OUT most integer, OUT late bigint, OUT first timestamptz) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $leases_of_roles$
#variable_conflict use_column
DECLARE
  now       pg_catalog.timestamptz := pg_catalog.clock_timestamp();
  long_ago  pg_catalog.timestamptz := now OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval;
  retention pg_catalog.interval := idempotence.retention();
BEGIN
  IF idempotence.unseen() IS NULL THEN
    RETURN QUERY
      SELECT l.holder, pg_catalog.count(*) OPERATOR(pg_catalog.>=) idempotence.limit_of(pg_catalog.to_regrole(pg_catalog.quote_ident(l.holder)), 'idempotence.max_leases_per_role'),
             pg_catalog.count(*) FILTER (WHERE l.leased_until OPERATOR(pg_catalog.>) now),
             pg_catalog.count(*) FILTER (WHERE l.attempt OPERATOR(pg_catalog.>) 3), pg_catalog.max(l.attempt),
             pg_catalog.count(*) FILTER (WHERE l.leased_until OPERATOR(pg_catalog.<) long_ago AND NOT l.has_ended),
             pg_catalog.min(l.leased_until) FILTER (WHERE l.leased_until OPERATOR(pg_catalog.<) long_ago AND NOT l.has_ended)
      FROM (SELECT k.holder, k.leased_until, k.attempt, s.ended_at IS NOT NULL AND s.name IS NULL AS has_ended
            FROM idempotence.lease k LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) k.session
            WHERE CASE WHEN s.id IS NOT NULL AND s.name IS NULL
                       THEN NOT EXISTS (SELECT FROM idempotence.stream m
                                        WHERE m.session OPERATOR(pg_catalog.=) k.session AND m.stream OPERATOR(pg_catalog.=) k.stream
                                          AND m.acked OPERATOR(pg_catalog.>=) k.request::pg_catalog.int8)
                       ELSE (k.leased_until OPERATOR(pg_catalog.+) COALESCE(s.ttl, retention)) OPERATOR(pg_catalog.>) now END) l
      GROUP BY l.holder;
  END IF;
END
$leases_of_roles$;

CREATE FUNCTION idempotence.suspended_of_roles(threshold interval, OUT role text, OUT late bigint, OUT first timestamptz) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $suspended_of_roles$
#variable_conflict use_column
DECLARE
  now       pg_catalog.timestamptz := pg_catalog.clock_timestamp();
  long_ago  pg_catalog.timestamptz := now OPERATOR(pg_catalog.-) threshold;
  retention pg_catalog.interval := idempotence.retention();
BEGIN
  IF idempotence.unseen() IS NULL THEN
    RETURN QUERY
      SELECT u.owner::pg_catalog.text, pg_catalog.count(*), pg_catalog.min(u.since)
      FROM (SELECT s.owner, c.written_at AS since
            FROM idempotence.checkpoint c LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) c.session
            WHERE c.written_at OPERATOR(pg_catalog.<) long_ago
              AND CASE WHEN s.id IS NOT NULL AND s.name IS NULL
                       THEN NOT EXISTS (SELECT FROM idempotence.stream m
                                        WHERE m.session OPERATOR(pg_catalog.=) c.session AND m.stream OPERATOR(pg_catalog.=) c.stream
                                          AND m.acked OPERATOR(pg_catalog.>=) c.request::pg_catalog.int8)
                       ELSE (c.written_at OPERATOR(pg_catalog.+) COALESCE(s.ttl, retention)) OPERATOR(pg_catalog.>) now END
              AND NOT EXISTS (SELECT FROM idempotence.lease l
                              WHERE l.session OPERATOR(pg_catalog.=) c.session AND l.stream OPERATOR(pg_catalog.=) c.stream AND l.request OPERATOR(pg_catalog.=) c.request)
            UNION ALL
            -- In a client session that has ended nobody can complete what a lease was for.
            SELECT s.owner, l.begun_at
            FROM idempotence.lease l JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) l.session
            WHERE s.name IS NULL AND s.ended_at IS NOT NULL AND l.leased_until OPERATOR(pg_catalog.<=) now AND l.begun_at OPERATOR(pg_catalog.<) long_ago
              AND NOT EXISTS (SELECT FROM idempotence.stream m
                              WHERE m.session OPERATOR(pg_catalog.=) l.session AND m.stream OPERATOR(pg_catalog.=) l.stream
                                AND m.acked OPERATOR(pg_catalog.>=) l.request::pg_catalog.int8)) u
      GROUP BY u.owner;
  END IF;
END
$suspended_of_roles$;

-- This moment, and the request of a role that is unfinished since then, in words. Looked up by itself: to keep the first
-- of each role while all are added up would take a sort of all.
CREATE FUNCTION idempotence.unfinished_since(role text, moment timestamptz) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $unfinished_since$
#variable_conflict error
BEGIN
  RETURN (SELECT pg_catalog.format('%s: request %s of session %s', pg_catalog.date_trunc('second', moment), pg_catalog.to_json(u.request),
                   pg_catalog.to_json(COALESCE(s.name, pg_catalog.concat_ws('@', u.session, s.node))))
          FROM (SELECT l.session, l.request, l.holder FROM idempotence.lease l WHERE l.leased_until OPERATOR(pg_catalog.=) moment OR l.begun_at OPERATOR(pg_catalog.=) moment
                UNION ALL
                SELECT c.session, c.request, NULL FROM idempotence.checkpoint c WHERE c.written_at OPERATOR(pg_catalog.=) moment) u
          LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) u.session
          WHERE COALESCE(u.holder, s.owner::pg_catalog.text) OPERATOR(pg_catalog.=) role OR s.owner::pg_catalog.text OPERATOR(pg_catalog.=) role LIMIT 1);
END
$unfinished_since$;

CREATE VIEW idempotence.check_leases AS
SELECT CASE WHEN l.full_roles IS NOT NULL THEN 2 WHEN (SELECT m.estimate IS NOT NULL FROM idempotence.many_unfinished m) OR l.often OPERATOR(pg_catalog.>) 0 OR l.is_many THEN 1 ELSE 0 END AS level,
       COALESCE(l.unseen,
         pg_catalog.concat(l.leased, ' requests are leased', '; as many as they may have: role ' OPERATOR(pg_catalog.||) l.full_roles,
           CASE WHEN l.is_many THEN pg_catalog.format('; most of %s leases are, or were, of role %s', l.leases, pg_catalog.quote_ident(l.busiest)) END,
           CASE WHEN l.often OPERATOR(pg_catalog.>) 0
                THEN pg_catalog.format('; %s unfinished ones were taken over more than three times, one by attempt %s', l.often, l.most) END)) AS detail,
       CASE WHEN l.often OPERATOR(pg_catalog.>) 0 AND l.full_roles IS NULL
            THEN 'A request that was taken over again and again may be what its workers die of, or its lease is too short for the work. The view unfinished tells who has it. max_attempts of a session gives such requests up.'
            ELSE 'Which program begins them and does not end them? The view unfinished tells in which sessions they are, and who has them. idem_force_release_prefix() ends many; idempotence.max_leases_per_role bounds them, and at that bound a lease is refused (ID009).' END AS hint
FROM (SELECT (SELECT idempotence.unseen()) AS unseen, COALESCE(pg_catalog.sum(r.leased), 0) AS leased, pg_catalog.sum(r.often) AS often, pg_catalog.max(r.most) AS most,
             pg_catalog.sum(r.leased OPERATOR(pg_catalog.+) r.late) AS leases, pg_catalog.sum(r.leased OPERATOR(pg_catalog.+) r.late) OPERATOR(pg_catalog.>) 50000 AS is_many,
             pg_catalog.string_agg(pg_catalog.quote_ident(r.role), ', ' ORDER BY r.role) FILTER (WHERE r.is_full) AS full_roles,
             (pg_catalog.array_agg(r.role ORDER BY r.leased OPERATOR(pg_catalog.+) r.late DESC))[1] AS busiest
      FROM idempotence.leases_of_roles() r) l;

CREATE VIEW idempotence.check_run_out AS
SELECT CASE WHEN (SELECT m.estimate IS NOT NULL FROM idempotence.many_unfinished m) OR r.late OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(r.unseen,
         CASE WHEN r.late OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.concat(pg_catalog.format('the lease of %s requests ran out more than five minutes ago, and nobody has taken them over', r.late), r.told)
              ELSE 'no lease ran out more than five minutes ago' END) AS detail,
       'What they were to do outside the database may have happened. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record() or idem_force_release(). The view unfinished lists them.' AS hint
FROM (SELECT (SELECT idempotence.unseen()) AS unseen, pg_catalog.sum(n.late) AS late,
             pg_catalog.string_agg(CASE WHEN n.place OPERATOR(pg_catalog.<=) 5
                                        THEN pg_catalog.format('; %s of role %s, the first at %s', n.late, pg_catalog.quote_ident(n.role), idempotence.unfinished_since(n.role, n.first))
                                        WHEN n.place OPERATOR(pg_catalog.=) 6 THEN '; and of more roles' END, '' ORDER BY n.place) AS told
      FROM (SELECT l.role, l.late, l.first, pg_catalog.row_number() OVER (ORDER BY l.late, l.first) AS place
            FROM idempotence.leases_of_roles() l WHERE l.late OPERATOR(pg_catalog.>) 0) n) r;

CREATE VIEW idempotence.check_suspended AS
SELECT CASE WHEN (SELECT m.estimate IS NOT NULL FROM idempotence.many_unfinished m) OR r.late OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(r.unseen,
         CASE WHEN r.late OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.concat(pg_catalog.format('%s requests have been suspended at a checkpoint for more than %s', r.late, r.threshold), r.told)
              ELSE pg_catalog.format('no request has been suspended for more than %s', r.threshold) END) AS detail,
       'Nobody goes on with them. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record(), or wait until it expires. The view unfinished lists them.' AS hint
FROM (SELECT (SELECT idempotence.unseen()) AS unseen, t.threshold, pg_catalog.sum(n.late) AS late,
             pg_catalog.string_agg(CASE WHEN n.place OPERATOR(pg_catalog.<=) 5
                                        THEN pg_catalog.format('; %s in sessions of role %s, the first since %s', n.late, pg_catalog.quote_ident(n.role), idempotence.unfinished_since(n.role, n.first))
                                        WHEN n.place OPERATOR(pg_catalog.=) 6 THEN '; and of more roles' END, '' ORDER BY n.place) AS told
      FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_suspended')::pg_catalog.float8) AS threshold) t
      LEFT JOIN LATERAL (SELECT l.role, l.late, l.first, pg_catalog.row_number() OVER (ORDER BY l.late, l.first) AS place
                         FROM idempotence.suspended_of_roles(t.threshold) l) n ON true
      GROUP BY t.threshold) r;
