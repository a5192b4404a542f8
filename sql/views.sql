-- A restore, or a superuser's hand, writes these by SQL; the functions of this extension do not, and
-- see to it themselves.
CREATE TRIGGER forget_cached AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idempotence.session
  FOR EACH STATEMENT EXECUTE FUNCTION idempotence.forget_cached();
CREATE TRIGGER forget_cached AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idempotence.secret
  FOR EACH STATEMENT EXECUTE FUNCTION idempotence.forget_cached();

-- Views for those who watch. They read the tables with the rights of the extension's owner, and are
-- granted by idem_grant(role, 'monitor').

CREATE VIEW idempotence.sessions WITH (security_barrier) AS
SELECT s.name AS session,
       s.owner,
       CASE WHEN s.inbox THEN 'inbox' ELSE 'standing' END AS kind,
       COALESCE(s.ttl, idempotence.retention()) AS ttl,
       s.require_payload,
       s.time_keys,
       s.created_at
FROM idempotence.session s
WHERE s.ended_at IS NULL;

CREATE VIEW idempotence.outcomes WITH (security_barrier) AS
SELECT s.name AS session,
       o.key AS request,
       CASE WHEN o.class OPERATOR(pg_catalog.=) 's' THEN 'succeeded' ELSE 'failed' END AS status,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') THEN o.response END AS response,
       pg_catalog.pg_column_size(o.response) AS response_bytes,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') THEN o.fingerprint END AS fingerprint,
       o.recorded_by,
       o.recorded_at,
       o.expires_at,
       o.segment
FROM (SELECT 0 AS segment, * FROM idempotence.outcome_0
      UNION ALL
      SELECT 1, * FROM idempotence.outcome_1
      UNION ALL
      SELECT 2, * FROM idempotence.outcome_2) o
JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) o.session
WHERE o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
