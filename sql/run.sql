-- idem_run: makes a statement idempotent. It is written in PL/pgSQL, so that the user's SQL never runs inside a frame
-- of the library: an error that passes through one loses an SQLSTATE of the user's own. There is one exception: if a
-- user has made a cast to json for the type of the command's first column, that cast runs inside such a frame.

-- Executes a command and returns to_jsonb of the first column of its row; NULL if it returns no row.
CREATE FUNCTION idempotence.execute(command pg_catalog.text, args pg_catalog.jsonb) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $execute$
#variable_conflict use_variable
DECLARE
  answer record;
  rows   pg_catalog.int8;
BEGIN
  IF NOT idempotence.returns_rows(command) THEN
    EXECUTE command USING args;
    RETURN NULL;
  END IF;
  EXECUTE command INTO answer USING args;
  GET DIAGNOSTICS rows = ROW_COUNT;
  IF rows OPERATOR(pg_catalog.=) 0 THEN
    RETURN NULL;
  ELSIF rows OPERATOR(pg_catalog.=) 1 THEN
    RETURN idempotence.first_column(answer);
  END IF;
  RAISE EXCEPTION 'the command gave more than one row'
    USING ERRCODE = 'cardinality_violation', DETAIL = pg_catalog.format('Found %s rows.', rows),
          HINT = 'The response is the first column of the one row; aggregate, with jsonb_agg() say, or add LIMIT 1.';
END
$execute$;

CREATE FUNCTION idem_run(session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
                         wait interval DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $run$
#variable_conflict use_variable
DECLARE
  ticket    @extschema@.idem_ticket;
  response  pg_catalog.jsonb;
  failed    pg_catalog.bool := false;
  state_    pg_catalog.text;
  message_  pg_catalog.text;
  detail_   pg_catalog.text;
  hint_     pg_catalog.text;
BEGIN
  IF command IS NULL OR on_error IS NULL THEN
    RAISE EXCEPTION 'argument "%" must not be null', CASE WHEN command IS NULL THEN 'command' ELSE 'on_error' END
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.',
            HINT = 'A NULL is most often a parameter that the client did not set.';
  ELSIF on_error OPERATOR(pg_catalog.<>) 'raise' AND on_error OPERATOR(pg_catalog.<>) 'record' THEN
    RAISE EXCEPTION 'on_error must be "raise" or "record"'
      USING ERRCODE = 'invalid_parameter_value', DETAIL = pg_catalog.format('Found "%s".', on_error),
            HINT = 'raise: the error aborts as ever and nothing is recorded; record: it is recorded as a final failure and returned.';
  END IF;

  -- With all arguments and their types, so that no overload that somebody adds can match better.
  ticket := @extschema@.idem_begin(session, request, args, wait, NULL::pg_catalog.text, NULL::pg_catalog.int8, NULL::pg_catalog.int8,
                                     NULL::pg_catalog.interval);
  IF ticket.replayed THEN
    RETURN ticket;
  ELSIF ticket.status OPERATOR(pg_catalog.=) 'in_progress' THEN
    RAISE EXCEPTION 'request "%" of session "%" is still in progress', request, session
      USING ERRCODE = 'lock_not_available',
            DETAIL = CASE WHEN ticket.expires_at IS NULL THEN 'Another transaction holds it, and the wait ran out.'
                          ELSE pg_catalog.format('The lease that is in the way lasts until %s.', pg_catalog.to_char(ticket.expires_at, 'YYYY-MM-DD HH24:MI:SS.USTZH')) END,
            HINT = 'Try again as it is, or wait longer (argument "wait" or setting idempotence.wait).';
  ELSIF ticket.status OPERATOR(pg_catalog.=) 'taken_over' THEN
    RAISE EXCEPTION 'request "%" of session "%" was begun before and is not done', request, session
      USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'A lease of it ran out: what its holder did outside the database may have happened.',
            HINT = 'Begin it with idem_begin(), look whether its effect happened, and go on from the point that the answer gives.';
  ELSIF ticket.point IS NOT NULL THEN
    RAISE EXCEPTION 'request "%" of session "%" has a checkpoint', request, session
      USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = pg_catalog.format('It got as far as "%s"; the command would do from the start what is done.', ticket.point),
            HINT = 'Continue it with idem_begin(), from the point that it gives.';
  END IF;

  IF on_error OPERATOR(pg_catalog.=) 'raise' THEN
    response := idempotence.execute(command, args);
  ELSE
    BEGIN
      response := idempotence.execute(command, args);
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS state_ = RETURNED_SQLSTATE, message_ = MESSAGE_TEXT,
                              detail_ = PG_EXCEPTION_DETAIL, hint_ = PG_EXCEPTION_HINT;
      -- An error that comes from the request's data, a constraint or the application itself is final. The classes
      -- in this list come from the surroundings: the statement and the objects it names, rights, connection and
      -- transaction, resources, other servers. After such an error a retry may succeed, so it is raised and not
      -- recorded. In doubt a class is in the list.
      IF pg_catalog.left(state_, 2) OPERATOR(pg_catalog.=) ANY
           ('{03,08,09,0A,0B,0F,0L,0P,0Z,10,24,25,26,27,28,2B,2D,2F,34,38,39,3B,3D,3F,40,42,53,54,55,57,58,72,F0,HV,ID,XX}'::pg_catalog.text[]) THEN
        RAISE;
      END IF;
      failed := true;
      response := pg_catalog.jsonb_build_object(
        'sqlstate', state_,
        'message', message_,
        'detail', CASE WHEN detail_ OPERATOR(pg_catalog.<>) '' THEN detail_ END,
        'hint', CASE WHEN hint_ OPERATOR(pg_catalog.<>) '' THEN hint_ END);
    END;
  END IF;

  RETURN idempotence.recorded(session, request, response, failed, ttl);
END
$run$;

-- Takes outcomes over. Like idem_run, in PL/pgSQL, so that the user's query never runs inside a frame of the library: the
-- statement calls import_row() for each row of the query.
CREATE FUNCTION idem_import(session text, query text, reason text, OUT imported bigint, OUT present bigint, OUT expired bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $import$
#variable_conflict use_variable
BEGIN
  EXECUTE idempotence.import_begin(session, query, reason) INTO imported, present, expired;
  PERFORM idempotence.import_end(imported, present, expired);
END
$import$;
