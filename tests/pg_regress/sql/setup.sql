-- Goal: the extension, and what the other tests need to show answers without clock values.
-- Method: CREATE EXTENSION, and functions that turn tickets and errors into lines.
-- It gives a notice where the library is not preloaded, which the cluster test health looks at.
SET client_min_messages = error;
CREATE EXTENSION idempotence;
RESET client_min_messages;

-- An answer on one line: what is null is left out, the two moments become the time between them. Of a lease it tells
-- whether there is a token, and whether it has run out.
CREATE FUNCTION regress_show(ticket idem_ticket) RETURNS text
LANGUAGE sql VOLATILE
RETURN (SELECT ticket.status
            || CASE WHEN ticket.replayed THEN ', replayed' ELSE '' END
            || coalesce(', response ' || ticket.response::text, '')
            || CASE WHEN ticket.token IS NOT NULL THEN ', a token' ELSE '' END
            || coalesce(', attempt ' || ticket.attempt::text, '')
            || coalesce(', point ' || ticket.point, '')
            || coalesce(', state ' || ticket.state::text, '')
            || CASE WHEN ticket.recorded_at IS NOT NULL THEN ', recorded' ELSE '' END
            || coalesce(', lives ' || (ticket.expires_at - ticket.recorded_at)::text, '')
            || CASE WHEN ticket.recorded_at IS NOT NULL OR ticket.expires_at IS NULL THEN ''
                    WHEN ticket.expires_at > clock_timestamp() THEN ', leased' ELSE ', run out' END);

-- The server names client sessions, never twice the same: here they go by names of our own.
CREATE TABLE regress_client_session (alias text PRIMARY KEY, session text NOT NULL UNIQUE);

-- Gives a session that was just registered its name, unless it has one; what is told of it, without clock values.
CREATE FUNCTION regress_registered(name text, registered idem_session) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  INSERT INTO regress_client_session VALUES (name, registered.session) ON CONFLICT (session) DO NOTHING;
  RETURN (SELECT alias FROM regress_client_session WHERE session = registered.session)
         || CASE WHEN registered.resumed THEN ', resumed' ELSE '' END
         || ', window ' || registered.window_size || ', timeout ' || registered.timeout || ', next ' || registered.next_number
         || CASE WHEN registered.expires_at BETWEEN now() + registered.timeout AND clock_timestamp() + registered.timeout
                 THEN '' ELSE ', ends after another time: ' || registered.expires_at END;
END
$$;

-- What the server calls the session of this name.
CREATE FUNCTION regress_id(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
  RETURN (SELECT session FROM regress_client_session WHERE alias = name);
END
$$;

-- The id of the session of this name: what stands before the @.
CREATE FUNCTION regress_uuid(name text) RETURNS uuid
LANGUAGE sql STABLE
RETURN split_part(regress_id(name), '@', 1)::uuid;

-- A line with our names instead of the server's.
CREATE FUNCTION regress_told(line text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
DECLARE
  known regress_client_session;
BEGIN
  FOR known IN TABLE regress_client_session LOOP
    line := replace(replace(line, known.session, known.alias), split_part(known.session, '@', 1), known.alias);
  END LOOP;
  SELECT coalesce(max(replace(line, 'token ' || t.token || ' ', 'token ' || t.name || ' ')), line) INTO line
  FROM regress_lease_token t WHERE line LIKE '%token ' || t.token || ' %';
  RETURN regexp_replace(line, ' (at|until) \d{4}-\d\d-\d\d [0-9:.]+[+-][0-9:]+', ' \1 a moment');
END
$$;

-- Lets time pass for a session without waiting for it: as if its last sign of life were that much older.
CREATE FUNCTION regress_fall_silent(name text, since interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  UPDATE idempotence.session_live SET last_seen = last_seen - since WHERE id = regress_uuid(name);
  ASSERT FOUND, 'session is not at work';
END
$$;

-- Lets a session with a timeout of 2 seconds run out.
CREATE FUNCTION regress_run_out(name text, since interval DEFAULT '1 day') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  ASSERT (SELECT timeout FROM idempotence.session_live WHERE id = regress_uuid(name)) = interval '2 seconds', 'another timeout';
  PERFORM regress_fall_silent(name, since);
END
$$;

-- That takes a server that has been up for longer: before it was nobody's time passed.
DO $$ BEGIN
  WHILE clock_timestamp() < (SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'walwriter') + interval '3 seconds' LOOP
    PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
  END LOOP;
END $$;

-- The row of a session in the view, but for clock values; how long ago it gave a sign, in minutes.
CREATE FUNCTION regress_session(name text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
  SELECT concat_ws(', ', CASE WHEN saved THEN 'saved' ELSE 'not saved' END,
                   'seen ' || floor(extract(epoch FROM clock_timestamp() - last_seen) / 60) || ' min ago',
                   'ends ' || (expires_at - GREATEST(last_seen, idempotence.up_since())) || ' after it', ended, CASE WHEN ended_at <= clock_timestamp() THEN 'in the past' END)
  FROM idempotence.sessions WHERE session = regress_id(name) AND kind = 'client'
$$;

-- Closes all client sessions, those run out too, and forgets their names.
CREATE FUNCTION regress_close() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
  UPDATE idempotence.session_live SET last_seen = clock_timestamp();
  PERFORM idem_close(session) FROM idempotence.sessions WHERE kind = 'client' AND ended IS NULL;
  DELETE FROM regress_client_session;
END
$$;

-- Tokens are never twice the same, too: they go by names of our own.
CREATE TABLE regress_lease_token (name text PRIMARY KEY, token bigint NOT NULL);

-- Notes the token of an answer under a name, if there is one; what is told of the answer.
CREATE FUNCTION regress_take(name_ text, ticket idem_ticket) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  INSERT INTO regress_lease_token SELECT name_, ticket.token WHERE ticket.token IS NOT NULL
  ON CONFLICT (name) DO UPDATE SET token = EXCLUDED.token;
  RETURN regress_show(ticket);
END
$$;

-- The token of this name.
CREATE FUNCTION regress_token(name_ text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
  RETURN (SELECT token FROM regress_lease_token WHERE name = name_);
END
$$;

-- Lets the lease of a request run out without waiting for it: as if it had run out that long ago.
CREATE FUNCTION regress_lease_ends(session_ text, request_ text, since interval DEFAULT '1 second') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
  UPDATE idempotence.lease l SET leased_until = clock_timestamp() - since, begun_at = clock_timestamp() - since - interval '1 second'
  WHERE request = request_ AND session = (SELECT id FROM idempotence.session WHERE session_ IN (name, concat_ws('@', id, node)));
  ASSERT FOUND, 'no such lease';
END
$$;

-- The leases and checkpoints that are kept of a session, by the table, without clock values.
CREATE FUNCTION regress_kept(session_ text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
  SELECT coalesce(string_agg(k.kept, '; ' ORDER BY k.kept COLLATE "C"), 'nothing') FROM idempotence.session s,
    LATERAL (SELECT concat(l.request, '..' || nullif(l.last::text, l.request), ' of ' || nullif(l.stream, ''), ': lease, attempt ', l.attempt) AS kept
             FROM idempotence.lease l WHERE l.session = s.id
             UNION ALL SELECT concat(c.request, '..' || nullif(c.last::text, c.request), ' of ' || nullif(c.stream, ''), ': checkpoint ', c.point)
             FROM idempotence.checkpoint c WHERE c.session = s.id) k
  WHERE session_ IN (s.name, concat_ws('@', s.id, s.node))
$$;

-- The same line for an error: SQLSTATE and message, then DETAIL and HINT. The statement's effects
-- are rolled back, also where it does not fail.
CREATE FUNCTION regress_error(statement text) RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
  state_   text;
  message_ text;
  detail_  text;
  hint_    text;
BEGIN
  EXECUTE statement;
  RAISE EXCEPTION 'no error' USING ERRCODE = 'RE000';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state_ = RETURNED_SQLSTATE, message_ = MESSAGE_TEXT,
                          detail_ = PG_EXCEPTION_DETAIL, hint_ = PG_EXCEPTION_HINT;
  RETURN NEXT regress_told(state_ || ': ' || message_);
  IF detail_ <> '' THEN
    RETURN NEXT regress_told('  DETAIL: ' || detail_);
  END IF;
  IF hint_ <> '' THEN
    RETURN NEXT regress_told('  HINT: ' || hint_);
  END IF;
END
$$;

-- The first of those lines.
CREATE FUNCTION regress_message(statement text) RETURNS text
LANGUAGE sql
RETURN (SELECT line FROM regress_error(statement) WITH ORDINALITY AS e (line, place) ORDER BY place LIMIT 1);

-- A UUIDv7 made at a moment; its other bits are always the same.
CREATE FUNCTION regress_uuid7(at timestamptz) RETURNS text
LANGUAGE sql STABLE
RETURN overlay(lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
       || '-7abc-8def-0123456789ab';

-- The claims that this and other backends, and prepared transactions, hold at this moment.
CREATE FUNCTION regress_claims() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN (SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = x'1DE1'::int
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));
