-- Goal: the extension, and what the other tests need to show answers without clock values.
-- Method: CREATE EXTENSION, and functions that turn tickets and errors into lines.
CREATE EXTENSION idempotence;

-- An answer on one line: what is null is left out, the two moments become the time between them.
CREATE FUNCTION regress_show(ticket idem_ticket) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (SELECT ticket.status
            || CASE WHEN ticket.replayed THEN ', replayed' ELSE '' END
            || coalesce(', response ' || ticket.response::text, '')
            || coalesce(', token ' || ticket.token::text, '')
            || coalesce(', attempt ' || ticket.attempt::text, '')
            || coalesce(', point ' || ticket.point, '')
            || coalesce(', state ' || ticket.state::text, '')
            || CASE WHEN ticket.recorded_at IS NOT NULL THEN ', recorded' ELSE '' END
            || coalesce(', lives ' || (ticket.expires_at - ticket.recorded_at)::text, ''));

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
  RETURN NEXT state_ || ': ' || message_;
  IF detail_ <> '' THEN
    RETURN NEXT '  DETAIL: ' || detail_;
  END IF;
  IF hint_ <> '' THEN
    RETURN NEXT '  HINT: ' || hint_;
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
