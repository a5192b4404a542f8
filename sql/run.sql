-- idem_run: makes a statement idempotent. It is declared here because its C function is not one of pgrx's, see
-- src/pg/execute.rs.

CREATE FUNCTION idem_run(session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
                         wait interval DEFAULT NULL, ttl interval DEFAULT NULL, stream text DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_run';

-- Takes outcomes over. It is written in PL/pgSQL, so that the user's query never runs inside a frame of pgrx, which would
-- change its errors: the statement calls import_row() for each row of the query.
CREATE FUNCTION idem_import(session text, query text, reason text, OUT imported bigint, OUT present bigint, OUT expired bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $import$
#variable_conflict use_variable
BEGIN
  EXECUTE idempotence.import_begin(session, query, reason) INTO imported, present, expired;
  PERFORM idempotence.import_end();
END
$import$;
