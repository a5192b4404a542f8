-- What the golden SQL of the extension calls, for the tables of this edition. tests/pg_regress/sql/setup.sql has the same for
-- those of the extension; functions that are the same there are taken from it (tests/managed/run.sh).

-- Sessions that a test deletes take their outcomes along: those would count as the half of a restore.
CREATE FUNCTION regress_half() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM idempotence.outcome o WHERE NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id = o.session);
  RETURN NULL;
END
$$;
CREATE TRIGGER regress_half AFTER DELETE ON idempotence.session FOR EACH STATEMENT EXECUTE FUNCTION regress_half();

-- The tables of this edition by the names that the tests know.
CREATE VIEW idempotence.checkpoint AS SELECT session, request, point, state, written_at FROM idempotence.pending WHERE point IS NOT NULL;
CREATE FUNCTION idempotence.checkpoint_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM idempotence.pending p WHERE (p.session, p.request) = (OLD.session, OLD.request) AND p.token IS NULL;
  UPDATE idempotence.pending p SET point = NULL, state = NULL, written_at = NULL WHERE (p.session, p.request) = (OLD.session, OLD.request);
  RETURN OLD;
END
$$;
CREATE TRIGGER checkpoint_out INSTEAD OF DELETE ON idempotence.checkpoint FOR EACH ROW EXECUTE FUNCTION idempotence.checkpoint_out();

CREATE FUNCTION regress_lease_ends(session_ text, request_ text, since interval DEFAULT '1 second') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, idempotence
AS $$
BEGIN
  UPDATE idempotence.pending l SET leased_until = clock_timestamp() - since, begun_at = clock_timestamp() - since - interval '1 second'
  WHERE request = request_ AND token IS NOT NULL AND session = (SELECT id FROM idempotence.session WHERE session_ = name);
  ASSERT FOUND, 'no such lease';
END
$$;

CREATE FUNCTION regress_kept(session_ text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, idempotence
AS $$
  SELECT coalesce(string_agg(k.kept, '; ' ORDER BY k.kept COLLATE "C"), 'nothing') FROM idempotence.session s,
    LATERAL (SELECT concat(p.request, ': lease, attempt ', p.attempt) AS kept FROM idempotence.pending p WHERE p.session = s.id AND token IS NOT NULL
             UNION ALL SELECT concat(p.request, ': checkpoint ', p.point) FROM idempotence.pending p WHERE p.session = s.id AND point IS NOT NULL) k
  WHERE session_ = s.name
$$;

CREATE FUNCTION regress_claims() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

CREATE VIEW idempotence.lease AS SELECT session, request, token, attempt, begun_at, leased_until FROM idempotence.pending WHERE token IS NOT NULL;
CREATE FUNCTION idempotence.lease_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM idempotence.pending p WHERE (p.session, p.request) = (OLD.session, OLD.request);
  RETURN OLD;
END
$$;
CREATE TRIGGER lease_out INSTEAD OF DELETE ON idempotence.lease FOR EACH ROW EXECUTE FUNCTION idempotence.lease_out();
