\echo Use "ALTER EXTENSION idempotence UPDATE" to load this file. \quit

-- From 1.0.0 to 1.1.0. The result equals what CREATE EXTENSION makes, object by object.
--
-- This script changes the table session. That tells every backend to drop what it remembers of 1.0.0 and to look
-- again. It must not call functions of the library that use the tables: they refuse tables of another version than
-- their own, and the library may be a later one.

-- For this script only: the tables are heap tables, as CREATE EXTENSION makes them.
DO $$ BEGIN PERFORM pg_catalog.set_config('default_table_access_method', 'heap', true); END $$;

-- The grants to roles, which are to be kept.
CREATE TEMPORARY TABLE upgrade_granted AS
SELECT p.oid AS function, p.proname AS name, f.level, a.grantee, a.is_grantable
FROM idempotence.function_level f
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
LEFT JOIN LATERAL (SELECT * FROM pg_catalog.aclexplode(p.proacl) a WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner) a ON true;

-- Version of library and tables ----------------------------------------------------------------

CREATE FUNCTION idempotence.keep_grant(command text) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'keep_grant_wrapper';
COMMENT ON FUNCTION idempotence.keep_grant(text) IS 'for the scripts of this extension: grant what roles had before; only for the owner of the extension';

-- Look-ups are VOLATILE, so that a pooler sends them to the primary -----------------------------

ALTER FUNCTION idem_lookup(text, text, text) VOLATILE;
ALTER FUNCTION idem_lookup(text, bigint, text) VOLATILE;
ALTER FUNCTION idem_position(text, text) VOLATILE;
COMMENT ON COLUMN idem_ticket.status IS 'started: execute it; succeeded, failed: it has its outcome; in_progress: another transaction is at work on it; discarded: it was done or skipped, and its outcome is no longer kept; suspended: it stopped at a checkpoint; unknown: nothing is kept; not_here: nothing is on this standby yet';
COMMENT ON FUNCTION idem_lookup(text, text, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, bigint, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
-- Client sessions -------------------------------------------------------------------------------

CREATE INDEX session_ended_idx ON idempotence.session (owner, ended);
COMMENT ON COLUMN idempotence.session.ended IS 'how a client session ended; c: closed, e: expired, f: fenced; a capital: without ever being saved';

CREATE FUNCTION idempotence.up_since() RETURNS timestamptz
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'up_since_wrapper';
COMMENT ON FUNCTION idempotence.up_since() IS 'internal to the views sessions and health: when the server came up; no session counts as silent from before';

CREATE OR REPLACE FUNCTION idempotence.at_work_by_role(OUT owner regrole, OUT sessions bigint, OUT silent bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $at_work_by_role$
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery() THEN
    RETURN QUERY
      SELECT l.owner, pg_catalog.count(*),
             pg_catalog.count(*) FILTER (WHERE (GREATEST(l.last_seen, (SELECT idempotence.up_since())) OPERATOR(pg_catalog.+) l.timeout)
                                                 OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp())
      FROM idempotence.session_live l GROUP BY l.owner;
  END IF;
END
$at_work_by_role$;

-- The tables of leases ---------------------------------------------------------------------------

CREATE TABLE idempotence.lease (
  digest       uuid        NOT NULL,
  session      uuid        NOT NULL,
  token        bigint      NOT NULL,
  begun_at     timestamptz NOT NULL,
  leased_until timestamptz NOT NULL,
  last         bigint,
  attempt      integer     NOT NULL,
  holder       regrole     NOT NULL,
  fingerprint  uuid,
  request      text        NOT NULL COLLATE "C",
  stream       text        NOT NULL COLLATE "C",
  application  text        NOT NULL,
  CONSTRAINT lease_pkey PRIMARY KEY (digest)
) WITH (fillfactor = 80);
CREATE INDEX lease_session_idx ON idempotence.lease (session);
CREATE TABLE idempotence.persistence (
  unlogged boolean NOT NULL,
  what     text    NOT NULL COLLATE "C",
  CONSTRAINT persistence_pkey PRIMARY KEY (what)
);
SELECT pg_catalog.pg_extension_config_dump('idempotence.lease', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.persistence', '');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.lease FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('lease');
ALTER TABLE idempotence.lease ENABLE ALWAYS TRIGGER note_restored;

CREATE FUNCTION idempotence.leases(OUT session uuid, OUT stream text, OUT request text, OUT last bigint, OUT leased_until timestamptz,
                                   OUT holder regrole, OUT application text, OUT attempt integer, OUT begun_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $leases$
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery()
     OR (SELECT c.relpersistence FROM pg_catalog.pg_class c
         WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease')) OPERATOR(pg_catalog.=) 'p' THEN
    RETURN QUERY SELECT l.session, l.stream, l.request, l.last, l.leased_until, l.holder, l.application, l.attempt, l.begun_at
                 FROM idempotence.lease l;
  END IF;
END
$leases$;

-- Sessions that are lent ---------------------------------------------------------------------------

ALTER TABLE idempotence.session ADD COLUMN usable_by regrole;
ALTER TABLE idempotence.session ADD COLUMN max_attempts integer;

DROP FUNCTION @extschema@.idem_create_session(text, interval, boolean, boolean, boolean, regrole);
DROP FUNCTION @extschema@.idem_alter_session(text, interval, boolean, regrole);

CREATE FUNCTION "idem_create_session"(
  "session" TEXT,
  "ttl" interval DEFAULT NULL,
  "require_payload" bool DEFAULT false,
  "inbox" bool DEFAULT false,
  "time_keys" bool DEFAULT false,
  "owner" regrole DEFAULT NULL,
  "usable_by" regrole DEFAULT NULL,
  "max_attempts" int DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_create_session_lent_wrapper';

CREATE FUNCTION "idem_alter_session"(
  "session" TEXT,
  "ttl" interval DEFAULT NULL,
  "require_payload" bool DEFAULT NULL,
  "owner" regrole DEFAULT NULL,
  "usable_by" regrole DEFAULT NULL,
  "max_attempts" int DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_alter_session_lent_wrapper';

CREATE OR REPLACE VIEW idempotence.sessions WITH (security_barrier) AS
SELECT s.name AS session,
       s.owner,
       CASE WHEN s.inbox THEN 'inbox' ELSE 'standing' END AS kind,
       COALESCE(s.ttl, idempotence.retention()) AS ttl,
       s.require_payload,
       s.time_keys,
       s.created_at,
       NULL::pg_catalog.text AS client,
       NULL::pg_catalog.text AS ordering,
       NULL::pg_catalog.int4 AS window_size,
       NULL::pg_catalog.interval AS timeout,
       true AS saved,
       NULL::pg_catalog.timestamptz AS last_seen,
       NULL::pg_catalog.timestamptz AS expires_at,
       NULL::pg_catalog.text AS ended,
       NULL::pg_catalog.timestamptz AS ended_at,
       s.usable_by,
       s.max_attempts
FROM idempotence.session s
WHERE s.ended_at IS NULL AND s.name IS NOT NULL
UNION ALL
SELECT COALESCE(l.id, s.id)::pg_catalog.text,
       COALESCE(l.owner, s.owner),
       'client',
       NULL,
       false,
       false,
       COALESCE(l.created_at, s.created_at),
       COALESCE(l.client, s.client),
       CASE WHEN COALESCE(l.ordering, s.ordering) OPERATOR(pg_catalog.=) 'a' THEN 'any' ELSE 'strict' END,
       COALESCE(l.window_size, s.window_size),
       COALESCE(l.timeout, s.timeout),
       s.id IS NOT NULL,
       l.last_seen,
       -- While the server is down, no session's time passes. A lease keeps its session.
       GREATEST(GREATEST(l.last_seen, (SELECT idempotence.up_since())) OPERATOR(pg_catalog.+) l.timeout, k.leased_until),
       CASE WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{c,C}'::pg_catalog."char"[]) THEN 'closed'
            WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{e,E}'::pg_catalog."char"[]) THEN 'expired'
            WHEN s.ended OPERATOR(pg_catalog.=) ANY ('{f,F}'::pg_catalog."char"[]) THEN 'fenced' END,
       s.ended_at,
       NULL,
       NULL
FROM idempotence.at_work() l
FULL JOIN (SELECT * FROM idempotence.session WHERE name IS NULL) s ON s.id OPERATOR(pg_catalog.=) l.id
LEFT JOIN (SELECT k.session, pg_catalog.max(k.leased_until) AS leased_until FROM idempotence.leases() k GROUP BY k.session) k
       ON k.session OPERATOR(pg_catalog.=) l.id;

COMMENT ON COLUMN idempotence.sessions.owner IS 'the role that it belongs to: whoever has the privileges of this role may use, change, lend and drop it';
COMMENT ON COLUMN idempotence.sessions.usable_by IS 'the role that a standing session is lent to: whoever has the privileges of this role may use it too; null: lent to nobody, or a client session';
COMMENT ON COLUMN idempotence.outcomes.response IS 'the response, to those who may use the session; null to others';
COMMENT ON COLUMN idempotence.outcomes.fingerprint IS 'of the payload; null where none was given, and to those who may not use the session';
COMMENT ON COLUMN idempotence.outcomes.expires_at IS 'when it expires; null: a reply, which is kept until it is overwritten';
COMMENT ON TABLE idempotence.reply IS 'outcomes of client sessions: the newest of each stream, in as many slots as the window is wide';
COMMENT ON COLUMN idempotence.reply.slot IS 'where numbers come in any order: the number modulo the window; else the slot of the oldest request that was kept';
COMMENT ON COLUMN idempotence.session.owner IS 'the role that it belongs to';
COMMENT ON COLUMN idempotence.session.usable_by IS 'the role that a standing session is lent to; null: nobody';

-- Keys of type uuid ---------------------------------------------------------------------------------

DROP FUNCTION @extschema@.idem_once_many(text, text[]);

CREATE FUNCTION "idem_record"(
  "session" TEXT,
  "request" uuid,
  "response" jsonb DEFAULT NULL,
  "failed" bool DEFAULT false,
  "token" bigint DEFAULT NULL,
  "ttl" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_record_uuid_wrapper';

CREATE FUNCTION "idem_checkpoint"(
  "session" TEXT,
  "request" uuid,
  "point" TEXT,
  "state" jsonb DEFAULT NULL,
  "token" bigint DEFAULT NULL,
  "stream" TEXT DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_checkpoint_uuid_wrapper';

CREATE FUNCTION "idem_release"(
  "session" TEXT,
  "request" uuid,
  "token" bigint DEFAULT NULL,
  "stream" TEXT DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_release_uuid_wrapper';

CREATE FUNCTION "idem_lookup"(
  "session" TEXT,
  "request" uuid,
  "stream" TEXT DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_lookup_uuid_wrapper';

CREATE FUNCTION "idem_once"(
  "session" TEXT,
  "request" uuid
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_once_uuid_wrapper';

CREATE FUNCTION "idem_forget"(
  "session" TEXT,
  "request" uuid,
  "reason" TEXT
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_forget_uuid_wrapper';

CREATE FUNCTION "idem_once_many"(
  "session" TEXT,
  "requests" anycompatiblearray
) RETURNS TABLE (
  "ord" bigint,
  "request" TEXT
)
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_once_many_any_wrapper';

COMMENT ON FUNCTION idem_record(text, uuid, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_checkpoint(text, uuid, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_release(text, uuid, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_lookup(text, uuid, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_once(text, uuid) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once_many(text, anycompatiblearray) IS
  'note many requests in an inbox; gives those seen for the first time, once each, with their place in the array';
COMMENT ON FUNCTION idem_forget(text, uuid, text) IS
  'repair: delete the outcome and the checkpoint of a request, so that it may execute again; gives whether there was one';

-- Checkpoints -----------------------------------------------------------------------------------

COMMENT ON COLUMN idempotence.checkpoint.written_at IS 'when it was written; in a standing session it counts for the session''s ttl from then on';

-- What idem_run records -------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION idem_run(session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
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

-- The ring turns at the pace of most outcomes ----------------------------------------------------

-- When a segment is to be emptied, the few outcomes that still live are moved here.
CREATE TABLE idempotence.outcome_long (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_long_pkey PRIMARY KEY (digest)) USING heap;
CREATE INDEX outcome_long_expires_at_idx ON idempotence.outcome_long (expires_at);
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_long', '');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_long FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('long');
ALTER TABLE idempotence.outcome_long ENABLE ALWAYS TRIGGER note_restored;

ALTER TABLE idempotence.segment ADD COLUMN looked_at timestamptz;
ALTER TABLE idempotence.segment ADD COLUMN long_lived boolean NOT NULL DEFAULT false;
-- keep_us was made of the ttls that sessions were promised. Now it is made of what was recorded, which the sweep
-- finds out by looking.
UPDATE idempotence.segment SET keep_us = 0;

COMMENT ON TABLE idempotence.outcome_long IS 'outcomes that outlived their segment; moved here by the sweep';
DO $$
DECLARE
  note record;
BEGIN
  FOR note IN
    SELECT a.attname, pg_catalog.col_description(a.attrelid, a.attnum) AS meaning FROM pg_catalog.pg_attribute a
    WHERE a.attrelid OPERATOR(pg_catalog.=) 'idempotence.outcome_0'::pg_catalog.regclass AND a.attnum OPERATOR(pg_catalog.>) 0
  LOOP
    EXECUTE pg_catalog.format('COMMENT ON COLUMN idempotence.outcome_long.%I IS %L', note.attname, note.meaning);
  END LOOP;
END
$$;
COMMENT ON COLUMN idempotence.segments.keep IS 'how long it is left alone from closed_at on: the ttl that no more than one in eight of the outcomes recorded exceeds, and six minutes; longer where many still live then';
COMMENT ON COLUMN idempotence.outcomes.segment IS 'N of the table outcome_N that it is in; null: it is in outcome_long, or is a reply of a client session';
COMMENT ON COLUMN idempotence.segment.keep_us IS 'how long it is kept once closed before it is looked through, in microseconds; 0: by the setting idempotence.retention';
COMMENT ON COLUMN idempotence.segment.long_lived IS 'in the first row: whether outcomes may be in outcome_long';
COMMENT ON COLUMN idempotence.segment.looked_at IS 'when it was last looked into, for how long its outcomes live';
COMMENT ON COLUMN idempotence.segment.restored IS 'whether something may have been put there by SQL, as a restore does';
COMMENT ON COLUMN idempotence.segment.looked_to IS 'how many of its pages were looked through so far, and what lives in them moved to outcome_long';

-- What a restore has left out --------------------------------------------------------------------

CREATE TABLE idempotence.restore (
  noted_at  timestamptz NOT NULL,
  looked_at timestamptz,
  place     bigint      NOT NULL DEFAULT 0,
  orphans   bigint,
  brought   text        NOT NULL COLLATE "C"
);
ALTER TABLE idempotence.restore REPLICA IDENTITY FULL;
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.reply FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('reply');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.checkpoint FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('checkpoint');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.secret FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('secret');
ALTER TABLE idempotence.reply ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.checkpoint ENABLE ALWAYS TRIGGER note_restored;
ALTER TABLE idempotence.secret ENABLE ALWAYS TRIGGER note_restored;
CREATE FUNCTION idem_accept_restore(reason text) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_accept_restore_wrapper';
COMMENT ON FUNCTION idem_accept_restore(text) IS
  'repair: give up what a restore brought without its session, so that new sessions can be made; gives whether there was anything to decide';
COMMENT ON TABLE idempotence.restore IS 'that rows were restored, until it is known that their sessions were as well';
COMMENT ON COLUMN idempotence.restore.noted_at IS 'when they were restored';
COMMENT ON COLUMN idempotence.restore.looked_at IS 'when the sweep began to look through them; null: not since then';
COMMENT ON COLUMN idempotence.restore.place IS 'how far it has come: table, page and item; 0: it is not at it';
COMMENT ON COLUMN idempotence.restore.orphans IS 'the number of rows without a session that it met first; 0: none; null: not looked through to the end';
COMMENT ON COLUMN idempotence.restore.brought IS 'the table that was restored';
COMMENT ON TABLE idempotence.audit IS 'repairs and decisions of admins; rows are only ever added';

-- Leases, settling, and claim or raise ------------------------------------------------------------

DROP FUNCTION @extschema@.idem_begin(text, text, jsonb, interval, text, bigint, bigint);
DROP FUNCTION @extschema@.idem_begin(text, bigint, jsonb, interval, text, bigint, bigint);

CREATE FUNCTION "idem_begin"(
  "session" TEXT,
  "request" TEXT,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL,
  "lease" interval DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_begin_leased_text_wrapper';

CREATE FUNCTION "idem_begin"(
  "session" TEXT,
  "request" bigint,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL,
  "lease" interval DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_begin_leased_bigint_wrapper';

CREATE FUNCTION "idem_begin"(
  "session" TEXT,
  "request" uuid,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL,
  "lease" interval DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_begin_leased_uuid_wrapper';

CREATE FUNCTION "idem_claim"(
  "session" TEXT,
  "request" TEXT,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_claim_text_wrapper';

CREATE FUNCTION "idem_claim"(
  "session" TEXT,
  "request" bigint,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_claim_bigint_wrapper';

CREATE FUNCTION "idem_claim"(
  "session" TEXT,
  "request" uuid,
  "payload" jsonb DEFAULT NULL,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "last" bigint DEFAULT NULL,
  "ack" bigint DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_claim_uuid_wrapper';

CREATE FUNCTION "idem_extend"(
  "session" TEXT,
  "request" TEXT,
  "token" bigint,
  "lease" interval,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_extend_text_wrapper';

CREATE FUNCTION "idem_extend"(
  "session" TEXT,
  "request" bigint,
  "token" bigint,
  "lease" interval,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_extend_bigint_wrapper';

CREATE FUNCTION "idem_extend"(
  "session" TEXT,
  "request" uuid,
  "token" bigint,
  "lease" interval,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_extend_uuid_wrapper';

CREATE FUNCTION "idem_settle"(
  "session" TEXT,
  "request" TEXT,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "response" jsonb DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_settle_text_wrapper';

CREATE FUNCTION "idem_settle"(
  "session" TEXT,
  "request" bigint,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "response" jsonb DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_settle_bigint_wrapper';

CREATE FUNCTION "idem_settle"(
  "session" TEXT,
  "request" uuid,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "response" jsonb DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_settle_uuid_wrapper';

CREATE FUNCTION "idem_force_release"(
  "session" TEXT,
  "request" TEXT,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL,
  "live" bool DEFAULT false
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_release_text_wrapper';

CREATE FUNCTION "idem_force_release"(
  "session" TEXT,
  "request" bigint,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL,
  "live" bool DEFAULT false
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_release_bigint_wrapper';

CREATE FUNCTION "idem_force_release"(
  "session" TEXT,
  "request" uuid,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL,
  "live" bool DEFAULT false
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_release_uuid_wrapper';

CREATE FUNCTION "idem_force_record"(
  "session" TEXT,
  "request" TEXT,
  "reason" TEXT,
  "response" jsonb DEFAULT NULL,
  "failed" bool DEFAULT false,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_record_text_wrapper';

CREATE FUNCTION "idem_force_record"(
  "session" TEXT,
  "request" bigint,
  "reason" TEXT,
  "response" jsonb DEFAULT NULL,
  "failed" bool DEFAULT false,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_record_bigint_wrapper';

CREATE FUNCTION "idem_force_record"(
  "session" TEXT,
  "request" uuid,
  "reason" TEXT,
  "response" jsonb DEFAULT NULL,
  "failed" bool DEFAULT false,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_record_uuid_wrapper';

CREATE FUNCTION "idem_set_persistence"(
  "what" TEXT,
  "persistence" TEXT
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_set_persistence_wrapper';

CREATE VIEW idempotence.unfinished WITH (security_barrier) AS
SELECT COALESCE(s.name, u.id::pg_catalog.text) AS session,
       u.stream,
       u.request,
       CASE WHEN u.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'leased'
            WHEN k.lease_counts AND (s.ended_at IS NULL OR s.name IS NOT NULL) THEN 'run out'
            ELSE 'suspended' END AS state,
       u.leased_until,
       u.holder,
       u.application,
       u.attempt,
       u.point,
       u.since,
       u.last
FROM (SELECT COALESCE(l.session, c.session) AS id,
             COALESCE(l.stream, c.stream) AS stream,
             COALESCE(l.request, c.request) AS request,
             COALESCE(l.last, c.last) AS last,
             l.leased_until, l.holder, l.application, l.attempt, c.point, c.written_at,
             COALESCE(l.begun_at, c.written_at) AS since
      FROM idempotence.leases() l
      FULL JOIN idempotence.checkpoint c
        ON c.session OPERATOR(pg_catalog.=) l.session AND c.stream OPERATOR(pg_catalog.=) l.stream
       AND c.request OPERATOR(pg_catalog.=) l.request) u
LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) u.id
CROSS JOIN LATERAL (
  SELECT CASE WHEN s.id IS NOT NULL AND s.name IS NULL THEN u.leased_until IS NOT NULL
              ELSE (u.leased_until OPERATOR(pg_catalog.+) COALESCE(s.ttl, idempotence.retention()))
                     OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() END,
         CASE WHEN s.id IS NOT NULL AND s.name IS NULL THEN u.written_at IS NOT NULL
              ELSE (GREATEST(u.written_at, u.leased_until) OPERATOR(pg_catalog.+) COALESCE(s.ttl, idempotence.retention()))
                     OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() END) k (lease_counts, counts)
WHERE (k.lease_counts OR k.counts)
  AND NOT (s.id IS NOT NULL AND s.name IS NULL
           AND EXISTS (SELECT FROM idempotence.stream m
                       WHERE m.session OPERATOR(pg_catalog.=) u.id AND m.stream OPERATOR(pg_catalog.=) u.stream
                         AND m.acked OPERATOR(pg_catalog.>=) u.request::pg_catalog.int8));

CREATE OR REPLACE FUNCTION idem_grant(role regrole, level text DEFAULT 'user') RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $grant$
#variable_conflict use_variable
DECLARE
  granted  pg_catalog.text[] := CASE WHEN level OPERATOR(pg_catalog.=) 'user' THEN '{user}'
                                     WHEN level OPERATOR(pg_catalog.=) 'monitor' THEN '{monitor}'
                                     WHEN level OPERATOR(pg_catalog.=) 'admin' THEN '{user,monitor,admin}' END;
  function pg_catalog.regprocedure;
BEGIN
  IF role IS NULL OR level IS NULL THEN
    RAISE EXCEPTION 'argument "%" must not be null', CASE WHEN role IS NULL THEN 'role' ELSE 'level' END
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.',
            HINT = 'Name a role, and one of the levels user, monitor and admin.';
  ELSIF granted IS NULL THEN
    RAISE EXCEPTION 'level "%" does not exist', level
      USING ERRCODE = 'invalid_parameter_value', DETAIL = 'The levels are user, monitor and admin.',
            HINT = 'user works with requests and sessions, monitor reads the views, admin does both, sweeps and repairs.';
  END IF;

  EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA idempotence TO %s', role);
  -- The name comes quoted where it needs that.
  IF '@extschema@' OPERATOR(pg_catalog.<>) 'public' THEN
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %s TO %s', '@extschema@', role);
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level OPERATOR(pg_catalog.=) ANY (granted) LOOP
    EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s', function, role);
  END LOOP;
  IF 'monitor' OPERATOR(pg_catalog.=) ANY (granted) THEN
    EXECUTE pg_catalog.format('GRANT SELECT ON idempotence.sessions, idempotence.outcomes, idempotence.unfinished, idempotence.segments, idempotence.health TO %s', role);
    EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION idempotence.retention() TO %s', role);
  END IF;
  IF 'admin' OPERATOR(pg_catalog.=) ANY (granted) THEN
    EXECUTE pg_catalog.format('GRANT SELECT ON idempotence.audit TO %s', role);
  END IF;
END
$grant$;

CREATE OR REPLACE FUNCTION idem_revoke(role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $revoke$
#variable_conflict use_variable
DECLARE
  function pg_catalog.regprocedure;
BEGIN
  IF role IS NULL THEN
    RAISE EXCEPTION 'argument "role" must not be null'
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.', HINT = 'Name a role.';
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level IS NOT NULL LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM %s', function, role);
  END LOOP;
  EXECUTE pg_catalog.format('REVOKE ALL ON idempotence.sessions, idempotence.outcomes, idempotence.unfinished, idempotence.segments, idempotence.health, idempotence.audit FROM %s', role);
  EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA idempotence FROM %s', role);
  IF '@extschema@' OPERATOR(pg_catalog.<>) 'public' THEN
    EXECUTE pg_catalog.format('REVOKE USAGE ON SCHEMA %s FROM %s', '@extschema@', role);
  END IF;
END
$revoke$;

-- Whoever may read the view health may read the view unfinished.
DO $$
DECLARE
  grantee record;
BEGIN
  FOR grantee IN
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END AS name,
           CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option
    FROM pg_catalog.pg_class c
    CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
    WHERE c.oid OPERATOR(pg_catalog.=) 'idempotence.health'::pg_catalog.regclass
      AND a.privilege_type OPERATOR(pg_catalog.=) 'SELECT' AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
  LOOP
    PERFORM idempotence.keep_grant(pg_catalog.format('GRANT SELECT ON idempotence.unfinished TO %s%s', grantee.name, grantee.option));
  END LOOP;
END
$$;

COMMENT ON TYPE idem_ticket IS 'what is known of a request: the answer of idem_begin, idem_settle, idem_lookup and idem_run';
COMMENT ON COLUMN idem_ticket.status IS 'started: execute it; taken_over: look whether its effect happened, then go on; succeeded, failed, cancelled: it has its outcome; in_progress: another transaction is at work on it, or somebody has a lease of it; discarded: it was done or skipped, and its outcome is no longer kept; suspended: it stopped at a checkpoint; unknown: nothing is kept; not_here: nothing is on this standby yet';
COMMENT ON COLUMN idem_ticket.token IS 'what the holder of a lease completes the request with; null without a lease';
COMMENT ON COLUMN idem_ticket.attempt IS '1 with started, one more for each time that it was taken over; with cancelled, how many attempts there were; else null';
COMMENT ON COLUMN idem_ticket.expires_at IS 'when the outcome expires; from then on the request counts as new; null: a client session''s, which keeps the newest; without an outcome, when the lease runs out';
COMMENT ON FUNCTION idem_begin(text, text, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, bigint, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, uuid, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_claim(text, text, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_claim(text, bigint, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_claim(text, uuid, jsonb, interval, text, bigint, bigint) IS
  'take the claim to a request, or raise an error: for programs that need no answer, as in a pipeline';
COMMENT ON FUNCTION idem_extend(text, text, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_extend(text, bigint, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_extend(text, uuid, bigint, interval, text) IS
  'extend the lease of a request; gives when it runs out now';
COMMENT ON FUNCTION idem_settle(text, text, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_settle(text, bigint, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_settle(text, uuid, interval, text, jsonb) IS
  'a binding verdict on a request whose answer was lost: gives its outcome, or records that it is cancelled and never executed';
COMMENT ON FUNCTION idem_create_session(text, interval, boolean, boolean, boolean, regrole, regrole, integer) IS
  'make a standing session: a named, owned series of requests with one policy';
COMMENT ON FUNCTION idem_alter_session(text, interval, boolean, regrole, regrole, integer) IS
  'change ttl, require_payload, owner or max_attempts of a session, or lend it; null leaves as it is';
COMMENT ON FUNCTION idem_forget(text, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, bigint, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, uuid, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_force_release(text, text, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_release(text, bigint, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_release(text, uuid, text, text, boolean) IS
  'repair: take away a lease that ran out, as if its request had never been begun with it, or end one that has not run out; gives whether there was one';
COMMENT ON FUNCTION idem_force_record(text, text, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_force_record(text, bigint, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_force_record(text, uuid, text, jsonb, boolean, text) IS
  'repair: record the outcome of a request that is unfinished; gives when it expires';
COMMENT ON FUNCTION idem_set_persistence(text, text) IS
  'make claims (leases) or sessions (client sessions at work) logged or unlogged; gives whether that has changed';
COMMENT ON COLUMN idempotence.sessions.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.outcomes.status IS 'succeeded, failed, or cancelled: settled and never executed';
COMMENT ON FUNCTION idempotence.leases() IS 'internal to the view unfinished: the leases; none on a standby where they are unlogged';
COMMENT ON VIEW idempotence.unfinished IS 'requests that were begun, committed, and are not done: leased, run out, or suspended at a checkpoint';
COMMENT ON COLUMN idempotence.unfinished.session IS 'the session';
COMMENT ON COLUMN idempotence.unfinished.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.unfinished.request IS 'the key, or the first number';
COMMENT ON COLUMN idempotence.unfinished.state IS 'leased: somebody is at work on it; run out: its lease ran out, and its effect may have happened; suspended: it stopped at a checkpoint';
COMMENT ON COLUMN idempotence.unfinished.leased_until IS 'when the lease runs out or ran out; null: there is none';
COMMENT ON COLUMN idempotence.unfinished.holder IS 'the role that has the lease, or had it last';
COMMENT ON COLUMN idempotence.unfinished.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.unfinished.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.unfinished.point IS 'the point of its checkpoint; null: it has none';
COMMENT ON COLUMN idempotence.unfinished.since IS 'when the holder was given the lease; suspended: when the checkpoint was written';
COMMENT ON COLUMN idempotence.unfinished.last IS 'the last number of a numbered request; null: a key';
COMMENT ON COLUMN idempotence.session.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.reply.class IS 's: succeeded, f: failed, c: cancelled, d: dropped, with nothing left but that it was done';
COMMENT ON COLUMN idempotence.reply.token IS 'of the lease that it was recorded with; null without a lease';
COMMENT ON TABLE idempotence.lease IS 'leases of requests that are not done: claims that were committed';
COMMENT ON COLUMN idempotence.lease.digest IS 'keyed digest of what is locked for the request: its key, its slot or its stream';
COMMENT ON COLUMN idempotence.lease.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.lease.token IS 'what its holder completes the request with';
COMMENT ON COLUMN idempotence.lease.begun_at IS 'when its holder was given it';
COMMENT ON COLUMN idempotence.lease.leased_until IS 'when it runs out; from then on a begin takes the request over';
COMMENT ON COLUMN idempotence.lease.last IS 'the last of a numbered request''s numbers';
COMMENT ON COLUMN idempotence.lease.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.lease.holder IS 'the role that began the request or extended the lease';
COMMENT ON COLUMN idempotence.lease.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.lease.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.lease.stream IS 'the request''s stream; empty in a standing session';
COMMENT ON COLUMN idempotence.lease.application IS 'the application_name of the holder';
COMMENT ON TABLE idempotence.persistence IS 'what a DBA has chosen to be logged or unlogged';
COMMENT ON COLUMN idempotence.persistence.unlogged IS 'whether it is to be unlogged';
COMMENT ON COLUMN idempotence.persistence.what IS 'claims or sessions';
DO $$
DECLARE
  segment pg_catalog.text;
BEGIN
  FOREACH segment IN ARRAY '{outcome_0,outcome_1,outcome_2,outcome_long}'::pg_catalog.text[] LOOP
    EXECUTE pg_catalog.format('COMMENT ON COLUMN idempotence.%I.class IS %L', segment, 's: succeeded, f: failed, c: cancelled');
    EXECUTE pg_catalog.format('COMMENT ON COLUMN idempotence.%I.token IS %L', segment, 'of the lease that it was recorded with; null without a lease');
  END LOOP;
END
$$;

-- Views and procedures whose definition has changed, as it is now --------------------------------------

CREATE OR REPLACE VIEW idempotence.function_level AS
SELECT p.oid AS function,
       CASE WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{idem_forget,idem_force_release,idem_force_record,idem_set_persistence,idem_accept_restore,idem_sweep,sweep_step,note_sweep}'::pg_catalog.name[]) THEN 'admin'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{at_work,at_work_by_role,leases,holders,advisory_holders,
              naptime,max_sessions_per_role,up_since,launcher,is_visited,last_sweep}'::pg_catalog.name[]) THEN 'monitor'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY (
              '{idem_begin,idem_claim,idem_record,idem_checkpoint,idem_extend,idem_release,idem_settle,idem_lookup,idem_once,idem_once_many,
                idem_run,execute,returns_rows,first_column,recorded,
                idem_create_session,idem_alter_session,idem_drop_session,
                idem_register,idem_heartbeat,idem_ack,idem_allocate,idem_position,idem_close,
                idem_generate_id,idem_generate_ids,idem_key,idem_fingerprint,retention}'::pg_catalog.name[]) THEN 'user'
       END AS level
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                           AND d.refobjid OPERATOR(pg_catalog.=) e.oid
                           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence';

CREATE OR REPLACE VIEW idempotence.outcomes WITH (security_barrier) AS
SELECT COALESCE(s.name, s.id::pg_catalog.text) AS session,
       o.key AS request,
       CASE o.class WHEN 's' THEN 'succeeded' WHEN 'f' THEN 'failed' ELSE 'cancelled' END AS status,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE') THEN o.response END AS response,
       pg_catalog.pg_column_size(o.response) AS response_bytes,
       CASE WHEN pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE') THEN o.fingerprint END AS fingerprint,
       o.recorded_by,
       o.recorded_at,
       CASE WHEN o.expires_at OPERATOR(pg_catalog.<>) 'infinity' THEN o.expires_at END AS expires_at,
       o.segment,
       o.stream,
       o.last
FROM (SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at,
             0 AS segment, NULL AS stream, NULL::pg_catalog.int8 AS last
      FROM idempotence.outcome_0
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, 1, NULL, NULL
      FROM idempotence.outcome_1
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, 2, NULL, NULL
      FROM idempotence.outcome_2
      UNION ALL
      SELECT session, key, class, response, fingerprint, recorded_by, recorded_at, expires_at, NULL, NULL, NULL
      FROM idempotence.outcome_long
      UNION ALL
      SELECT session, first::pg_catalog.text, class, response, fingerprint, recorded_by, recorded_at, 'infinity', NULL, stream, last
      FROM idempotence.reply
      WHERE class OPERATOR(pg_catalog.<>) 'd') o
JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) o.session
WHERE o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();

CREATE OR REPLACE VIEW idempotence.segments WITH (security_barrier) AS
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
             (SELECT n.closed_at OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => n.keep_us OPERATOR(pg_catalog./) 1e6) FROM idempotence.segment n
              WHERE n.number OPERATOR(pg_catalog.=) ((s.number OPERATOR(pg_catalog.+) 1) OPERATOR(pg_catalog.%) 3)
                AND pg_catalog.pg_relation_size(pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', n.number))) OPERATOR(pg_catalog.>) 0) AS next_over_at,
             (SELECT n.opened_at FROM idempotence.segment n WHERE n.current) AS turned_at,
             GREATEST(c.reltuples, 0)::pg_catalog.int8 AS outcomes,
             pg_catalog.pg_total_relation_size(c.oid) AS bytes,
             ARRAY[c.oid, c.reltoastrelid] AS relations
      FROM idempotence.segment s
      JOIN pg_catalog.pg_class c
        ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.concat('idempotence.outcome_', s.number))
      CROSS JOIN LATERAL (SELECT pg_catalog.pg_relation_size(c.oid) OPERATOR(pg_catalog.=) 0) b (blank)
      -- 0: nothing was recorded yet that would tell how long to keep it.
      CROSS JOIN LATERAL (SELECT pg_catalog.make_interval(secs =>
        CASE WHEN s.keep_us OPERATOR(pg_catalog.=) 0 THEN EXTRACT(epoch FROM idempotence.retention()) OPERATOR(pg_catalog.+) 360
             ELSE s.keep_us OPERATOR(pg_catalog./) 1e6 END)) k (keep)) r
CROSS JOIN LATERAL (
  SELECT CASE WHEN r.blank THEN NULL
              WHEN r.state OPERATOR(pg_catalog.=) 'current' THEN GREATEST(r.opened_at OPERATOR(pg_catalog.+) (r.keep OPERATOR(pg_catalog./) 2), r.next_over_at)
              WHEN r.state OPERATOR(pg_catalog.=) 'closing' THEN r.turned_at
              ELSE r.closed_at OPERATOR(pg_catalog.+) r.keep END) d (due_at)
ORDER BY r.segment;

CREATE VIEW idempotence.missing AS
SELECT pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name) AS missing
FROM pg_catalog.unnest('{session,outcome_0,outcome_1,outcome_2,reply,checkpoint,lease}'::pg_catalog.text[]) t (name)
WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'secret')
  AND NOT EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) t.name)
  AND (t.name OPERATOR(pg_catalog.<>) 'lease'
       OR (EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'outcome_long')
           AND NOT EXISTS (SELECT FROM idempotence.persistence p WHERE p.what OPERATOR(pg_catalog.=) 'claims' AND p.unlogged)));

COMMENT ON VIEW idempotence.missing IS 'internal to health and to the making of sessions: the tables that a restore has left out';
COMMENT ON COLUMN idempotence.missing.missing IS 'their names; null: none';

CREATE OR REPLACE VIEW idempotence.health WITH (security_barrier) AS
SELECT v.name, v.status, v.detail, CASE WHEN v.status OPERATOR(pg_catalog.<>) 'ok' THEN v.hint END AS hint
FROM (SELECT v.*, CASE WHEN v.visited THEN (idempotence.naptime() OPERATOR(pg_catalog.*) 10) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
                       -- No worker comes here. Whoever sweeps instead is asked to do so daily.
                       ELSE '25 hours'::pg_catalog.interval END AS late,
             -- The moment that lateness counts from: the last sweep. If none is known, it is the moment when the
             -- server came up, or when the extension or a restore brought the tables, if that is later: before it
             -- nothing was to be swept. A moment in the future, noted by a clock that was ahead, does not count.
             COALESCE(v.last_sweep, GREATEST((SELECT idempotence.up_since()),
                                             (SELECT g.sessions_at FROM idempotence.segment g
                                              WHERE g.number OPERATOR(pg_catalog.=) 0 AND g.sessions_at OPERATOR(pg_catalog.<=) v.now))) AS since
      FROM (SELECT idempotence.launcher() AS launcher, idempotence.is_visited() AS visited, idempotence.last_sweep() AS last_sweep,
                   pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.clock_timestamp() AS now,
                   -- Whether the leases cannot be seen here.
                   pg_catalog.pg_is_in_recovery() AND (SELECT c.relpersistence OPERATOR(pg_catalog.=) 'u' FROM pg_catalog.pg_class c
                     WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease')) AS blind) v) w
CROSS JOIN LATERAL (
  SELECT 1, 'worker',
         CASE WHEN w.standby OR w.launcher OPERATOR(pg_catalog.>) 0 THEN 'ok'
              WHEN w.launcher IS NOT NULL THEN 'critical'
              WHEN w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '25 hours'::pg_catalog.interval) THEN 'ok'
              ELSE 'warning' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
              WHEN w.launcher OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('the launcher is process %s', w.launcher)
              WHEN w.launcher IS NULL THEN 'the library is not preloaded; somebody else has to CALL idem_sweep()'
              ELSE 'the launcher does not run' END,
         CASE WHEN w.launcher IS NULL
              THEN 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep().'
              ELSE 'The server log tells why. A launcher that failed is started again within seconds; one that found max_worker_processes too small at server start needs that raised, and a restart.' END
  UNION ALL
  SELECT 2, 'sweep',
         CASE WHEN w.standby OR w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) w.late) THEN 'ok'
              ELSE 'warning' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
              WHEN w.last_sweep IS NULL THEN pg_catalog.format('not swept yet since %s', pg_catalog.date_trunc('second', w.since))
              WHEN w.last_sweep OPERATOR(pg_catalog.>) w.now
              THEN pg_catalog.format('swept at %s by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', w.last_sweep))
              ELSE pg_catalog.format('swept %s ago', pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) w.last_sweep)) END,
         CASE WHEN w.visited THEN 'The server log tells of errors. Is this database a template? The worker does not visit those.'
              WHEN w.launcher IS NULL THEN 'CALL idem_sweep(), and have a scheduler do so at least daily.'
              ELSE 'The setting idempotence.databases leaves this database out: name it there, or have a scheduler CALL idem_sweep() at least daily.' END
  UNION ALL
  SELECT 3, 'ring',
         -- Critical: a segment is late by its whole keep, although a sweep came by when it was late already.
         CASE WHEN pg_catalog.bool_or(NOT s.is_ahead AND (s.due_at OPERATOR(pg_catalog.+) s.keep) OPERATOR(pg_catalog.<) w.now
                                      AND (s.due_at OPERATOR(pg_catalog.+) w.late) OPERATOR(pg_catalog.<) w.last_sweep) THEN 'critical'
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE(pg_catalog.string_agg(
           CASE WHEN s.is_ahead
                THEN pg_catalog.format('segment %s was opened or closed at %s, by a clock that was ahead and has been set back', s.segment,
                       pg_catalog.date_trunc('second', GREATEST(s.opened_at, s.closed_at)))
                ELSE pg_catalog.format('segment %s should have been %s %s ago%s', s.segment,
                       CASE s.state WHEN 'current' THEN 'turned away from' WHEN 'closing' THEN 'closed' ELSE 'emptied' END,
                       pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) s.due_at),
                       CASE WHEN s.held_by IS NOT NULL THEN pg_catalog.concat('; held by ', s.held_by)
                            WHEN w.last_sweep OPERATOR(pg_catalog.<) s.due_at THEN '; not swept since' ELSE '' END) END,
                  '. ' ORDER BY s.segment), 'nothing is overdue'),
         CASE WHEN pg_catalog.bool_or(s.held_by IS NOT NULL)
              THEN 'Nothing is lost; expired outcomes take space until then. End the transaction that holds the segment (pg_terminate_backend, ROLLBACK PREPARED), or wait for its end.'
              ELSE 'Nothing is lost; expired outcomes take space until then. Nobody holds the segment: the next sweep puts it right. CALL idem_sweep() does it by hand, and tells what is in its way; if none comes by itself, the rows worker and sweep tell why.' END
  FROM (SELECT s.*, GREATEST(s.opened_at, s.closed_at) OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) AS is_ahead
        FROM idempotence.segments s) s
  WHERE s.is_ahead OR s.due_at OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) w.late OPERATOR(pg_catalog.-) '1 minute'::pg_catalog.interval)
  UNION ALL
  SELECT 4, 'prepared transactions',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE(pg_catalog.string_agg(pg_catalog.format('"%s" holds requests since %s', p.gid, pg_catalog.date_trunc('second', p.prepared)),
                  ', ' ORDER BY p.prepared), 'none holds a request for more than five minutes'),
         'COMMIT PREPARED or ROLLBACK PREPARED them: their requests are in progress until then.'
  FROM idempotence.prepared p
  WHERE p.prepared OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval)
    AND EXISTS (SELECT FROM pg_catalog.pg_locks l
                WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'advisory'
                  AND l.objsubid OPERATOR(pg_catalog.>=) 7649 AND l.objsubid OPERATOR(pg_catalog.<=) 7658
                  AND l.virtualtransaction OPERATOR(pg_catalog.=) p.virtualtransaction)
  UNION ALL
  SELECT 5, 'owners',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         pg_catalog.concat_ws('; ',
                    'sessions without an owner: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.ownerless),
                    'lent to a role that was dropped: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.lent_to_nobody),
                    CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'every standing session has its owner' END),
         'A session without an owner can be used by superusers, and by the role that it is lent to. Give it to a role: idem_alter_session(session, owner => ...). A loan to a dropped role ends by itself within the hour.'
  FROM (SELECT s.name, r.owner IS NULL AS ownerless, s.usable_by IS NOT NULL AND r.borrower IS NULL AS lent_to_nobody
        FROM idempotence.session s
        CROSS JOIN LATERAL (SELECT (SELECT o.oid FROM pg_catalog.pg_roles o WHERE o.oid OPERATOR(pg_catalog.=) s.owner::pg_catalog.oid),
                                   (SELECT b.oid FROM pg_catalog.pg_roles b WHERE b.oid OPERATOR(pg_catalog.=) s.usable_by::pg_catalog.oid)) r (owner, borrower)
        WHERE s.name IS NOT NULL AND s.ended_at IS NULL) s
  WHERE s.ownerless OR s.lent_to_nobody
  UNION ALL
  SELECT 6, 'client sessions',
         CASE WHEN pg_catalog.bool_or(o.is_near) THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.standby THEN 'this is a standby; the primary knows which are at work'
              ELSE pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' at work, of which ', COALESCE(pg_catalog.sum(o.silent), 0),
                     ' are silent for longer than their timeout',
                     pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
                       FILTER (WHERE o.is_near)) END,
         'At the limit registering is refused (ID009). Close sessions that are done with, shorten timeouts, or raise idempotence.max_sessions_per_role.'
  FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near
        FROM (SELECT l.*, idempotence.max_sessions_per_role() AS most FROM idempotence.at_work_by_role() l) s) o
  UNION ALL
  SELECT 7, 'publications',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         COALESCE('published by ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(pg_catalog.format('"%s"', p.pubname), ', ' ORDER BY p.pubname),
                  'no table of this extension is published'),
         'The tables of this extension hold for one server; a subscription to them gets in the way of its own. Publish a list of tables or schemas instead of FOR ALL TABLES, without these.'
  FROM pg_catalog.pg_publication p
  WHERE p.puballtables
     OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
                WHERE n.pnpubid OPERATOR(pg_catalog.=) p.oid AND n.pnnspid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
     OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
                WHERE r.prpubid OPERATOR(pg_catalog.=) p.oid AND c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
  UNION ALL
  SELECT 8, 'restore',
         CASE WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0) OR m.missing IS NOT NULL THEN 'critical'
              WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN m.missing IS NOT NULL
              THEN pg_catalog.format('of what was restored since %s these tables are missing: %s', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)), m.missing)
              WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
              THEN pg_catalog.format('what was restored since %s lacks sessions: requests that were done may be executed again', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
              WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('what was restored since %s was not looked through yet', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
              ELSE 'nothing that was restored lacks its session' END,
         CASE WHEN m.missing IS NOT NULL
              THEN 'Their COPY has failed, or is still to come: requests that were done may be executed again. Create the roles that the restore missed and restore the data of these tables again, or give up what they had: idem_accept_restore(). No session that is new can be made until then.'
              WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
              THEN 'No session that is new can be made. Create the roles that the restore missed and restore the data of table idempotence.session again, or give up what has no session: idem_accept_restore().'
              ELSE 'The sweep looks through it. Where no worker visits this database, CALL idem_sweep().' END
  FROM idempotence.missing m LEFT JOIN idempotence.restore r ON r.orphans IS DISTINCT FROM 0
  GROUP BY m.missing
  UNION ALL
  SELECT 9, 'leases',
         CASE WHEN pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.blind THEN 'this is a standby, and leases are unlogged; the primary knows them'
              ELSE pg_catalog.concat(pg_catalog.count(*) FILTER (WHERE u.state OPERATOR(pg_catalog.=) 'leased'), ' requests are leased',
                     '; ' OPERATOR(pg_catalog.||) NULLIF(pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3), 0)
                       OPERATOR(pg_catalog.||) ' unfinished ones were taken over more than three times, one by attempt '
                       OPERATOR(pg_catalog.||) pg_catalog.max(u.attempt)) END,
         'A request that was taken over again and again may be what its workers die of, or its lease is too short for the work. The view unfinished tells who has it. max_attempts of a session gives such requests up.'
  FROM idempotence.unfinished u
  UNION ALL
  SELECT 10, 'run out',
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 'warning' ELSE 'ok' END,
         CASE WHEN w.blind THEN 'this is a standby, and leases are unlogged; the primary knows them'
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('the lease of %s requests ran out more than five minutes ago, and nobody has taken them over; the first at %s, most of them in session "%s"',
                     pg_catalog.count(*), pg_catalog.date_trunc('second', pg_catalog.min(u.leased_until)), pg_catalog.mode() WITHIN GROUP (ORDER BY u.session))
              ELSE 'no lease ran out more than five minutes ago' END,
         'What they were to do outside the database may have happened. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record() or idem_force_release(). The view unfinished lists them.'
  FROM idempotence.unfinished u
  WHERE u.state OPERATOR(pg_catalog.=) 'run out'
    AND u.leased_until OPERATOR(pg_catalog.<) (w.now OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval)
  UNION ALL
  SELECT 11, 'persistence',
         CASE WHEN pg_catalog.bool_or(p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged) THEN 'warning' ELSE 'ok' END,
         pg_catalog.string_agg(pg_catalog.concat(t.meaning, CASE WHEN t.is_unlogged THEN ' are unlogged' ELSE ' are logged' END,
                                 CASE WHEN p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged
                                      THEN CASE WHEN p.unlogged THEN ', and are to be unlogged' ELSE ', and are to be logged' END END), '; ' ORDER BY t.what),
         'The next sweep that finds the table unused sees to it; or idem_set_persistence().'
  FROM (SELECT n.what, n.meaning, c.relpersistence OPERATOR(pg_catalog.=) 'u' AS is_unlogged
        FROM (VALUES ('claims', 'leases', 'idempotence.lease'), ('sessions', 'client sessions at work', 'idempotence.session_live')) n (what, meaning, name)
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.name)) t
  LEFT JOIN idempotence.persistence p ON p.what OPERATOR(pg_catalog.=) t.what
  UNION ALL
  SELECT 12, 'size', 'ok',
         pg_catalog.format('%s, of which outcomes %s, of which those that outlived their segment %s', pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))),
           pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.~~) 'outcome%')),
           pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.=) 'outcome_long'))),
         NULL
  FROM pg_catalog.pg_class c
  WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND c.relkind OPERATOR(pg_catalog.=) 'r'
) v (place, name, status, detail, hint)
ORDER BY v.place;

CREATE OR REPLACE PROCEDURE idem_sweep()
LANGUAGE plpgsql
AS $sweep$
DECLARE
  step pg_catalog.text;
  more pg_catalog.bool;
BEGIN
  FOREACH step IN ARRAY '{empty,turn,close,long,restore,end,delete,checkpoints,leases,persistence,owners,orphans,tombstones}'::pg_catalog.text[] LOOP
    LOOP
      -- The step needs this isolation level and, on a primary, READ WRITE, whatever the defaults of role and database
      -- are. Nothing may be evaluated between the two commands, since it could take a snapshot. On a standby READ
      -- WRITE would be an error here; the step itself says that it cannot run there.
      IF pg_catalog.pg_is_in_recovery() THEN
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      ELSE
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
      END IF;
      more := idempotence.sweep_step(step);
      IF more IS NULL THEN
        RAISE NOTICE 'another sweep is at work in this database';
        RETURN;
      END IF;
      EXIT WHEN NOT more;
    END LOOP;
  END LOOP;
  PERFORM idempotence.note_sweep();
END
$sweep$;

-- The rest: stays last ----------------------------------------------------------------------------

-- Every object belongs to the extension's owner, whichever superuser updates the extension.
DO $$
DECLARE
  owner  pg_catalog.regrole := (SELECT e.extowner::pg_catalog.regrole FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence');
  object pg_catalog.text;
BEGIN
  FOR object IN
    SELECT pg_catalog.concat('ROUTINE ', p.oid::pg_catalog.regprocedure)
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
    JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
      AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.proowner OPERATOR(pg_catalog.<>) owner::pg_catalog.oid
    UNION ALL
    SELECT pg_catalog.concat(CASE c.relkind WHEN 'v' THEN 'VIEW ' ELSE 'TABLE ' END, c.oid::pg_catalog.regclass)
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid
    JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
      AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v}'::pg_catalog."char"[])
      AND c.relowner OPERATOR(pg_catalog.<>) owner::pg_catalog.oid AND c.relpersistence OPERATOR(pg_catalog.<>) 't'
  LOOP
    EXECUTE pg_catalog.format('ALTER %s OWNER TO %s', object, owner);
  END LOOP;
END
$$;

-- PUBLIC may execute no function of this extension. Roles keep what they were granted. A new function with the name
-- of a former one is granted to the roles that had all functions of that name. A function with a new name is granted
-- to the roles that had all functions of its level.
DO $$
DECLARE
  new     record;
  grantee record;
BEGIN
  FOR new IN
    SELECT f.function, p.proname AS name, f.level
    FROM idempotence.function_level f JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
    WHERE NOT EXISTS (SELECT FROM upgrade_granted g WHERE g.function OPERATOR(pg_catalog.=) f.function)
  LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', new.function::pg_catalog.regprocedure);
    FOR grantee IN
      WITH peers AS (
        SELECT * FROM upgrade_granted g
        WHERE CASE WHEN EXISTS (SELECT FROM upgrade_granted n WHERE n.name OPERATOR(pg_catalog.=) new.name)
                   THEN g.name OPERATOR(pg_catalog.=) new.name
                   ELSE g.level OPERATOR(pg_catalog.=) new.level END)
      SELECT CASE p.grantee WHEN 0 THEN 'PUBLIC' ELSE p.grantee::pg_catalog.regrole::pg_catalog.text END AS name,
             CASE WHEN pg_catalog.bool_and(p.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END AS option
      FROM peers p WHERE p.grantee IS NOT NULL
      GROUP BY p.grantee
      HAVING pg_catalog.count(DISTINCT p.function) OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(DISTINCT function) FROM peers)
    LOOP
      PERFORM idempotence.keep_grant(pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s%s',
        new.function::pg_catalog.regprocedure, grantee.name, grantee.option));
    END LOOP;
  END LOOP;
END
$$;

DROP TABLE upgrade_granted;
