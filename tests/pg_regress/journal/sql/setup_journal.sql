-- Goal: the tests that follow run as they are, over sessions with a journal.
-- Method: what makes a session gives it a journal, and the helpers that look into our tables look there.
CREATE SCHEMA over;
SELECT idem_create_journal('over.journal');

CREATE FUNCTION over.is_known(name_ text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
RETURN EXISTS (SELECT FROM idempotence.session s WHERE s.name = name_);

-- It takes the place of the extension's own.
DO $$
DECLARE
  made regprocedure := (SELECT p.oid FROM pg_proc p WHERE p.proname = 'idem_create_session' AND p.pronamespace = 'public'::regnamespace);
  arguments text := pg_get_function_arguments(made);
  names text[] := (SELECT proargnames FROM pg_proc WHERE oid = made);
BEGIN
  ALTER FUNCTION public.idem_create_session RENAME TO idem_create_session_anywhere;
  EXECUTE format($f$
    CREATE FUNCTION public.idem_create_session(%s) RETURNS void LANGUAGE plpgsql AS $body$
    BEGIN
      -- Under its name a session would find what one that a test has deleted has left.
      IF NOT over.is_known(session) THEN
        DELETE FROM over.journal j WHERE j.session = idem_create_session.session;
      END IF;
      PERFORM public.idem_create_session_anywhere(%s);
    END $body$ $f$,
    arguments,
    (SELECT string_agg(format('%1$I => %2$s', name,
              CASE name WHEN 'journal' THEN 'coalesce(journal, CASE WHEN NOT inbox THEN ''over.journal'' END)'
                        ELSE 'idem_create_session.' || quote_ident(name) END), ', ')
     FROM unnest(names) AS name));
END
$$;
GRANT EXECUTE ON FUNCTION public.idem_create_session_anywhere TO PUBLIC;
GRANT USAGE ON SCHEMA over TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON over.journal TO PUBLIC;

-- What stands for our views and tables.
CREATE VIEW over.outcomes AS
SELECT session, request, status, response, response_bytes, fingerprint, recorded_by, recorded_at, expires_at, stream, last, segment FROM idempotence.outcomes
UNION ALL
SELECT session, request, status, response, pg_column_size(response), fingerprint, recorded_by, recorded_at, expires_at, NULL, NULL, NULL
FROM over.journal WHERE status IS NOT NULL AND expires_at > clock_timestamp();
CREATE VIEW over.lease AS
SELECT s.name AS session, l.request, l.token, l.begun_at, l.leased_until, l.attempt FROM idempotence.lease l LEFT JOIN idempotence.session s ON s.id = l.session
UNION ALL
SELECT session, request, token, begun_at, leased_until, attempt FROM over.journal WHERE leased_until IS NOT NULL;
CREATE FUNCTION over.change_lease() RETURNS trigger LANGUAGE plpgsql AS $change$
BEGIN
  UPDATE over.journal j SET leased_until = NEW.leased_until, written_at = written_at - (OLD.leased_until - NEW.leased_until) WHERE j.session = NEW.session AND j.request = NEW.request;
  RETURN NEW;
END $change$;
CREATE TRIGGER change_lease INSTEAD OF UPDATE ON over.lease FOR EACH ROW EXECUTE FUNCTION over.change_lease();
CREATE VIEW over.unfinished AS
SELECT session, stream, request, state, attempt, point, leased_until FROM idempotence.unfinished
UNION ALL
SELECT session, '', request, CASE WHEN leased_until IS NULL THEN 'suspended' WHEN leased_until > clock_timestamp() THEN 'leased' ELSE 'run out' END,
       attempt, point, leased_until
FROM over.journal WHERE status IS NULL AND (leased_until IS NOT NULL OR point IS NOT NULL);
CREATE VIEW over.checkpoint AS SELECT session, request, point, state, written_at FROM over.journal WHERE point IS NOT NULL;
CREATE FUNCTION over.change_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE over.journal j SET written_at = NEW.written_at, point = NEW.point, state = NEW.state WHERE j.session = OLD.session AND j.request = OLD.request;
  RETURN OLD;
END $$;
CREATE TRIGGER change_checkpoint INSTEAD OF UPDATE OR DELETE ON over.checkpoint FOR EACH ROW EXECUTE FUNCTION over.change_checkpoint();
CREATE VIEW over.outcome_0 AS
SELECT session, request AS key, left(status, 1)::"char" AS class, response, fingerprint, token, recorded_at, expires_at FROM over.journal WHERE status IS NOT NULL;
CREATE FUNCTION over.change_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE over.journal j SET recorded_at = NEW.recorded_at, expires_at = NEW.expires_at WHERE j.session = OLD.session AND j.request = OLD.key;
  RETURN NEW;
END $$;
CREATE TRIGGER change_outcome INSTEAD OF UPDATE ON over.outcome_0 FOR EACH ROW EXECUTE FUNCTION over.change_outcome();
GRANT SELECT ON ALL TABLES IN SCHEMA over TO PUBLIC;

-- A row of a journal may live a little longer than it has to.
CREATE OR REPLACE FUNCTION regress_show(ticket idem_ticket) RETURNS text
LANGUAGE sql VOLATILE
RETURN (SELECT ticket.status
            || CASE WHEN ticket.replayed THEN ', replayed' ELSE '' END
            || coalesce(', response ' || ticket.response::text, '')
            || CASE WHEN ticket.token IS NOT NULL THEN ', a token' ELSE '' END
            || coalesce(', attempt ' || ticket.attempt::text, '')
            || coalesce(', point ' || ticket.point, '')
            || coalesce(', state ' || ticket.state::text, '')
            || CASE WHEN ticket.recorded_at IS NOT NULL THEN ', recorded' ELSE '' END
            || coalesce(', lives ' || (SELECT CASE WHEN lives > interval '10 minutes' THEN date_trunc('minute', lives) ELSE date_trunc('second', lives) END
                                       FROM (SELECT ticket.expires_at - ticket.recorded_at) l (lives))::text, '')
            || CASE WHEN ticket.recorded_at IS NOT NULL OR ticket.expires_at IS NULL THEN ''
                    WHEN ticket.expires_at > clock_timestamp() THEN ', leased' ELSE ', run out' END);

-- The claims of this transaction are rows that say nothing yet.
CREATE OR REPLACE FUNCTION regress_claims() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN (SELECT count(*) FROM over.journal j WHERE status IS NULL AND leased_until IS NULL AND point IS NULL
          AND pg_xact_status(j.xmin::text::xid8) = 'in progress');

CREATE OR REPLACE FUNCTION regress_lease_ends(session_ text, request_ text, since interval DEFAULT '1 second') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
  ends timestamptz := clock_timestamp() - since;
BEGIN
  UPDATE over.journal SET leased_until = ends, begun_at = ends - interval '1 second'
  WHERE request = request_ AND session = session_ AND leased_until IS NOT NULL;
  IF NOT FOUND THEN
    UPDATE idempotence.lease l SET leased_until = ends, begun_at = ends - interval '1 second'
    WHERE request = request_ AND session = (SELECT id FROM idempotence.session WHERE name = session_ OR id::text = split_part(session_, '@', 1));
    ASSERT FOUND, 'no such lease';
  END IF;
END
$$;

ALTER FUNCTION regress_kept RENAME TO regress_kept_by_us;
CREATE FUNCTION regress_kept(session_ text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
  SELECT CASE WHEN journal IS NULL THEN regress_kept_by_us(session_)
         ELSE (SELECT coalesce(string_agg(k.kept, '; ' ORDER BY k.kept COLLATE "C"), 'nothing') FROM over.journal j,
                 LATERAL (SELECT concat(j.request, ': lease, attempt ', j.attempt) WHERE j.leased_until IS NOT NULL
                          UNION ALL SELECT concat(j.request, ': checkpoint ', j.point) WHERE j.point IS NOT NULL) k (kept)
               WHERE j.session = session_) END
  FROM (SELECT max(journal) AS journal FROM idempotence.session WHERE name = session_) s
$$;
