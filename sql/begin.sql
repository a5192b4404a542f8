-- idem_begin. It is declared here because its C functions are not those of pgrx, see src/pg/entry.rs.

-- Makes the planner leave out what a call leaves out.
CREATE FUNCTION idempotence.leave_out_nulls(internal) RETURNS internal
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_leave_out_nulls';

CREATE FUNCTION idem_begin(session text, request text, payload jsonb DEFAULT NULL, wait interval DEFAULT NULL, stream text DEFAULT NULL,
                           last bigint DEFAULT NULL, ack bigint DEFAULT NULL, lease interval DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE SUPPORT idempotence.leave_out_nulls
AS 'MODULE_PATHNAME', 'idem_begin_text';

CREATE FUNCTION idem_begin(session text, request bigint, payload jsonb DEFAULT NULL, wait interval DEFAULT NULL, stream text DEFAULT NULL,
                           last bigint DEFAULT NULL, ack bigint DEFAULT NULL, lease interval DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE SUPPORT idempotence.leave_out_nulls
AS 'MODULE_PATHNAME', 'idem_begin_bigint';

CREATE FUNCTION idem_begin(session text, request uuid, payload jsonb DEFAULT NULL, wait interval DEFAULT NULL, stream text DEFAULT NULL,
                           last bigint DEFAULT NULL, ack bigint DEFAULT NULL, lease interval DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE SUPPORT idempotence.leave_out_nulls
AS 'MODULE_PATHNAME', 'idem_begin_uuid';
