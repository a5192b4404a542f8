\echo Use "ALTER EXTENSION idempotence UPDATE" to load this file. \quit

-- From 1.0.0 to 1.1.0. The result equals what CREATE EXTENSION makes, object by object.
--
-- This script changes the table session. That tells every backend to drop what it remembers of 1.0.0 and to look
-- again. It must not call functions of the library that use the tables: they refuse tables of another version than
-- their own, and the library may be a later one.

-- For this script only: the tables are heap tables, as CREATE EXTENSION makes them.
DO $$ BEGIN PERFORM pg_catalog.set_config('default_table_access_method', 'heap', true); END $$;

-- The grants to roles, which are to be kept. The schema is named: a table of this name in another one might come first.
CREATE TABLE pg_temp.upgrade_granted AS
SELECT p.oid AS function, p.proname AS name, f.level, a.grantee, a.is_grantable
FROM idempotence.function_level f
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
LEFT JOIN LATERAL (SELECT * FROM pg_catalog.aclexplode(p.proacl) a WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner) a ON true;

-- Tables ------------------------------------------------------------------------------------------

-- Look-ups of sessions, leases, and what a DBA has chosen to be unlogged.
CREATE INDEX session_ended_idx ON idempotence.session (owner, ended);
ALTER TABLE idempotence.session ADD COLUMN usable_by regrole;
ALTER TABLE idempotence.session ADD COLUMN max_attempts integer;
ALTER TABLE idempotence.session ADD COLUMN node text COLLATE "C";
ALTER TABLE idempotence.session_live ADD COLUMN node text COLLATE "C";
ALTER TABLE idempotence.session ADD COLUMN journal text COLLATE "C";
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

-- The ring turns at the pace of most outcomes. When a segment is to be emptied, the few outcomes that still live are moved.
CREATE TABLE idempotence.outcome_long (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_long_pkey PRIMARY KEY (digest)) USING heap;
CREATE INDEX outcome_long_expires_at_idx ON idempotence.outcome_long (expires_at);
ALTER TABLE idempotence.segment ADD COLUMN looked_at timestamptz;
ALTER TABLE idempotence.segment ADD COLUMN long_lived boolean NOT NULL DEFAULT false;
ALTER TABLE idempotence.segment ADD COLUMN opening boolean NOT NULL DEFAULT false;
-- keep_us was made of the ttls that sessions were promised. Now it is made of what was recorded, which the sweep
-- finds out by looking.
UPDATE idempotence.segment SET keep_us = 0;

-- What a restore has left out.
CREATE TABLE idempotence.restore (
  noted_at  timestamptz NOT NULL,
  looked_at timestamptz,
  place     bigint      NOT NULL DEFAULT 0,
  orphans   bigint,
  brought   text        NOT NULL COLLATE "C"
);
ALTER TABLE idempotence.restore REPLICA IDENTITY FULL;
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_long', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.lease', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.persistence', '');
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.reply FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('reply');
ALTER TABLE idempotence.reply ENABLE ALWAYS TRIGGER note_restored;
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.checkpoint FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('checkpoint');
ALTER TABLE idempotence.checkpoint ENABLE ALWAYS TRIGGER note_restored;
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.lease FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('lease');
ALTER TABLE idempotence.lease ENABLE ALWAYS TRIGGER note_restored;
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.secret FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('secret');
ALTER TABLE idempotence.secret ENABLE ALWAYS TRIGGER note_restored;
CREATE TRIGGER note_restored BEFORE INSERT ON idempotence.outcome_long FOR EACH STATEMENT EXECUTE FUNCTION idempotence.note_restored('long');
ALTER TABLE idempotence.outcome_long ENABLE ALWAYS TRIGGER note_restored;

-- Functions in C ----------------------------------------------------------------------------------

-- Look-ups are VOLATILE, so that a pooler sends them to the primary.
ALTER FUNCTION idem_lookup(text, text, text) VOLATILE;
ALTER FUNCTION idem_lookup(text, bigint, text) VOLATILE;
ALTER FUNCTION idem_position(text, text) VOLATILE;

-- Functions whose arguments have changed are made anew.
DROP FUNCTION @extschema@.idem_create_session(text, interval, boolean, boolean, boolean, regrole);
DROP FUNCTION @extschema@.idem_alter_session(text, interval, boolean, regrole);
DROP FUNCTION @extschema@.idem_once_many(text, text[]);
DROP FUNCTION idempotence.execute(text, jsonb);
DROP FUNCTION idempotence.returns_rows(text);
DROP FUNCTION idempotence.first_column(record);
DROP FUNCTION idempotence.recorded(text, text, jsonb, boolean, interval);
DROP FUNCTION @extschema@.idem_begin(text, text, jsonb, interval, text, bigint, bigint);
DROP FUNCTION @extschema@.idem_begin(text, bigint, jsonb, interval, text, bigint, bigint);
DROP FUNCTION @extschema@.idem_forget(text, text, text);
DROP FUNCTION @extschema@.idem_forget(text, bigint, text);
DROP FUNCTION @extschema@.idem_run(text, text, text, jsonb, text, interval, interval);

CREATE FUNCTION idem_run(session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
                         wait interval DEFAULT NULL, ttl interval DEFAULT NULL, stream text DEFAULT NULL)
RETURNS idem_ticket
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_run';

CREATE FUNCTION idempotence.clock_jump() RETURNS timestamptz
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'clock_jump_wrapper';

CREATE FUNCTION idempotence.clock_jump_by() RETURNS interval
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'clock_jump_by_wrapper';

CREATE FUNCTION idempotence.coordinator() RETURNS text
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'coordinator_wrapper';

CREATE FUNCTION idempotence.deadlocks() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'deadlocks_wrapper';

CREATE FUNCTION idempotence.digest_fits(digest uuid, session uuid, key text) RETURNS boolean
LANGUAGE c STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'digest_fits_wrapper';

CREATE FUNCTION idempotence.errors(OUT at timestamptz, OUT session text, OUT stream text, OUT request text, OUT role regrole,
                                   OUT sqlstate text, OUT application text, OUT pid integer) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'errors_wrapper';

CREATE FUNCTION idempotence.free_space() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'free_space_wrapper';

CREATE FUNCTION idempotence.held_requests(OUT session text, OUT stream text, OUT request text, OUT pid integer, OUT role regrole,
                                          OUT application text, OUT client text, OUT since timestamptz, OUT state text,
                                          OUT requests bigint, OUT lock_high oid, OUT lock_low oid) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'held_requests_wrapper';

CREATE FUNCTION "idem_accept_restore"(
  "reason" TEXT
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_accept_restore_wrapper';

CREATE FUNCTION "idem_alter_session"(
  "session" TEXT,
  "ttl" interval DEFAULT NULL,
  "require_payload" bool DEFAULT NULL,
  "owner" regrole DEFAULT NULL,
  "usable_by" regrole DEFAULT NULL,
  "max_attempts" INT DEFAULT NULL,
  "node" TEXT DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_alter_session_lent_wrapper';

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

CREATE FUNCTION "idem_create_journal"(
  "journal" TEXT,
  "tenant" TEXT DEFAULT 'tenant',
  "tenant_type" regtype DEFAULT 'text'
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_create_journal_wrapper';

CREATE FUNCTION "idem_create_session"(
  "session" TEXT,
  "ttl" interval DEFAULT NULL,
  "require_payload" bool DEFAULT false,
  "inbox" bool DEFAULT false,
  "time_keys" bool DEFAULT false,
  "owner" regrole DEFAULT NULL,
  "usable_by" regrole DEFAULT NULL,
  "max_attempts" INT DEFAULT NULL,
  "node" TEXT DEFAULT NULL,
  "journal" TEXT DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_create_session_lent_wrapper';

CREATE FUNCTION "idem_explain"(
  "session" TEXT,
  "request" bigint,
  "stream" TEXT DEFAULT NULL
) RETURNS jsonb
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_explain_bigint_wrapper';

CREATE FUNCTION "idem_explain"(
  "session" TEXT,
  "request" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS jsonb
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_explain_text_wrapper';

CREATE FUNCTION "idem_explain"(
  "session" TEXT,
  "request" uuid,
  "stream" TEXT DEFAULT NULL
) RETURNS jsonb
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_explain_uuid_wrapper';

CREATE FUNCTION "idem_export"(
  "session" TEXT,
  "reason" TEXT,
  "prefix" TEXT DEFAULT NULL
) RETURNS TABLE (key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz, point text, state jsonb)
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_export_wrapper';

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
  "request" uuid,
  "token" bigint,
  "lease" interval,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_extend_uuid_wrapper';

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
  "request" uuid,
  "reason" TEXT,
  "response" jsonb DEFAULT NULL,
  "failed" bool DEFAULT false,
  "stream" TEXT DEFAULT NULL
) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_record_uuid_wrapper';

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
  "request" uuid,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL,
  "live" bool DEFAULT false
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_force_release_uuid_wrapper';

CREATE FUNCTION "idem_forget"(
  "session" TEXT,
  "request" bigint,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_forget_in_stream_bigint_wrapper';

CREATE FUNCTION "idem_forget"(
  "session" TEXT,
  "request" TEXT,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_forget_in_stream_text_wrapper';

CREATE FUNCTION "idem_forget"(
  "session" TEXT,
  "request" uuid,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_forget_in_stream_uuid_wrapper';

CREATE FUNCTION "idem_forget_prefix"(
  "session" TEXT,
  "prefix" TEXT,
  "reason" TEXT,
  "most" INT DEFAULT 1000
) RETURNS bigint
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_forget_prefix_wrapper';

CREATE FUNCTION "idem_lookup"(
  "session" TEXT,
  "request" uuid,
  "stream" TEXT DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_lookup_uuid_wrapper';

CREATE FUNCTION "idem_node"() RETURNS TEXT
STRICT STABLE PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_node_wrapper';

CREATE FUNCTION "idem_once"(
  "session" TEXT,
  "request" uuid
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_once_uuid_wrapper';

CREATE FUNCTION "idem_once_many"(
  "session" TEXT,
  "requests" anycompatiblearray
) RETURNS TABLE (ord bigint, request text)
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_once_many_any_wrapper';

CREATE FUNCTION "idem_outcomes"(
  "session" TEXT,
  "prefix" TEXT DEFAULT NULL,
  "status" TEXT DEFAULT NULL,
  "since" timestamptz DEFAULT NULL,
  "before" timestamptz DEFAULT NULL,
  "most" INT DEFAULT 100
) RETURNS TABLE (
  "request" TEXT,
  "status" TEXT,
  "response" jsonb,
  "response_bytes" INT,
  "fingerprint" uuid,
  "recorded_by" regrole,
  "recorded_at" timestamptz,
  "expires_at" timestamptz,
  "stream" TEXT,
  "last" bigint
)
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_outcomes_wrapper';

CREATE FUNCTION "idem_purge_audit"(
  "before" timestamptz,
  "reason" TEXT
) RETURNS bigint
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_purge_audit_wrapper';

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

CREATE FUNCTION "idem_redact"(
  "session" TEXT,
  "request" bigint,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_redact_bigint_wrapper';

CREATE FUNCTION "idem_redact"(
  "session" TEXT,
  "request" TEXT,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_redact_text_wrapper';

CREATE FUNCTION "idem_redact"(
  "session" TEXT,
  "request" uuid,
  "reason" TEXT,
  "stream" TEXT DEFAULT NULL
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_redact_uuid_wrapper';

CREATE FUNCTION "idem_redact_prefix"(
  "session" TEXT,
  "prefix" TEXT,
  "reason" TEXT,
  "most" INT DEFAULT 1000
) RETURNS bigint
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_redact_prefix_wrapper';

CREATE FUNCTION "idem_release"(
  "session" TEXT,
  "request" uuid,
  "token" bigint DEFAULT NULL,
  "stream" TEXT DEFAULT NULL
) RETURNS void
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_release_uuid_wrapper';

CREATE FUNCTION "idem_set_persistence"(
  "what" TEXT,
  "persistence" TEXT
) RETURNS bool
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_set_persistence_wrapper';

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
  "request" uuid,
  "wait" interval DEFAULT NULL,
  "stream" TEXT DEFAULT NULL,
  "response" jsonb DEFAULT NULL
) RETURNS idem_ticket
VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_settle_uuid_wrapper';

CREATE FUNCTION "idem_stats_reset"() RETURNS timestamptz
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'idem_stats_reset_wrapper';

CREATE FUNCTION idempotence.import_begin(session text, query text, reason text) RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'import_begin_wrapper';

CREATE FUNCTION idempotence.import_end() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'import_end_wrapper';

CREATE FUNCTION idempotence.import_row(import bigint, key text, response jsonb, failed boolean, recorded_at timestamptz,
                                       expires_at timestamptz, payload jsonb, fingerprint uuid, status text, token bigint,
                                       attempt integer, begun_at timestamptz, leased_until timestamptz, point text,
                                       state jsonb) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'import_row_wrapper';

CREATE FUNCTION idempotence.keep_grant(command text) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'keep_grant_wrapper';

CREATE FUNCTION idempotence.lock_table_size() RETURNS bigint
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'lock_table_size_wrapper';

CREATE FUNCTION idempotence.look_whether_ready() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'look_whether_ready_wrapper';

CREATE FUNCTION idempotence.milliseconds(value text) RETURNS integer
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'milliseconds_wrapper';

CREATE FUNCTION idempotence.restarts(lately boolean) RETURNS bigint
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'restarts_wrapper';

CREATE FUNCTION idempotence.setting(name text) RETURNS text
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'setting_wrapper';

CREATE FUNCTION idempotence.stats(OUT session text, OUT owner regrole, OUT kind text, OUT started bigint, OUT taken_over bigint,
                                  OUT replayed bigint, OUT recorded bigint, OUT failed bigint, OUT cancelled bigint, OUT released bigint,
                                  OUT in_progress bigint, OUT mismatched bigint, OUT discarded bigint, OUT fenced bigint,
                                  OUT out_of_sequence bigint, OUT unrecorded bigint, OUT waits bigint, OUT wait_ms bigint,
                                  OUT swept bigint, OUT since timestamptz) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'stats_wrapper';

CREATE FUNCTION idempotence.up_since() RETURNS timestamptz
LANGUAGE c STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'up_since_wrapper';

-- Functions in SQL and views, as they are now -----------------------------------------------------

-- idem_run: makes a statement idempotent. It is declared here because its C function is not one of pgrx's, see
-- src/pg/around.rs.

CREATE OR REPLACE FUNCTION idem_run(session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
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

-- Views for monitoring. They read the tables with the rights of the extension's owner, and idem_grant grants them. A
-- monitor, that is a role that may read health, sees all rows. Other roles see the rows of sessions that they own or may
-- use. These views are barriers, so no function of a reader's runs on a row that the reader does not see. The planner
-- may still move a leakproof comparison, such as that of a request's name, below the barrier, and EXPLAIN ANALYZE would
-- then count the rows that it has met. OFFSET 0 keeps every condition of a reader above.
--
-- A function is called with the reader's rights, also in a view. Inside a SECURITY DEFINER function nothing tells who
-- the reader is. So the functions that these views read from have no more rights than their caller. Each reads a view
-- of its own, which shows by the same rule, and so gives a caller nothing that the views do not show.

-- The client sessions at work. On a standby even the planning of a query on an unlogged table fails. So at_work() is a
-- PL/pgSQL function, which plans the query only where it executes it.
CREATE VIEW idempotence.shown_at_work WITH (security_barrier) AS
SELECT l.* FROM idempotence.session_live l
WHERE (SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT')) OR pg_catalog.pg_has_role(l.owner, 'USAGE')
OFFSET 0;

CREATE OR REPLACE FUNCTION idempotence.at_work() RETURNS SETOF idempotence.session_live
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
AS $at_work$
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery() THEN
    RETURN QUERY SELECT * FROM idempotence.shown_at_work;
  END IF;
END
$at_work$;

-- The number of client sessions at work for each role, counted here so that not every session has to be returned.
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

-- What may be known of the leases: neither token nor digest nor fingerprint. Where they are unlogged a standby has none,
-- and even the planning of a query on them fails there.
CREATE VIEW idempotence.shown_leases WITH (security_barrier) AS
SELECT l.session, l.stream, l.request, l.last, l.leased_until, l.holder, l.application, l.attempt, l.begun_at
FROM idempotence.lease l
LEFT JOIN idempotence.session s ON s.id OPERATOR(pg_catalog.=) l.session
WHERE (SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
   OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE')
OFFSET 0;

CREATE FUNCTION idempotence.leases() RETURNS SETOF idempotence.shown_leases
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
AS $leases$
BEGIN
  IF NOT pg_catalog.pg_is_in_recovery()
     OR (SELECT c.relpersistence FROM pg_catalog.pg_class c
         WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease')) OPERATOR(pg_catalog.=) 'p' THEN
    RETURN QUERY SELECT * FROM idempotence.shown_leases;
  END IF;
END
$leases$;

-- The planner takes a UNION ALL apart, and with it the barrier around it. So the barrier is around a query on it.
CREATE OR REPLACE VIEW idempotence.sessions WITH (security_barrier) AS
SELECT v.* FROM (
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
       s.max_attempts,
       s.node,
       s.journal
FROM idempotence.session s
WHERE s.ended_at IS NULL AND s.name IS NOT NULL
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
UNION ALL
SELECT pg_catalog.concat_ws('@', COALESCE(l.id, s.id), COALESCE(l.node, s.node)),
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
       NULL,
       COALESCE(l.node, s.node),
       NULL
FROM idempotence.at_work() l
FULL JOIN (SELECT * FROM idempotence.session
           WHERE name IS NULL AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
                                   OR pg_catalog.pg_has_role(owner, 'USAGE'))) s ON s.id OPERATOR(pg_catalog.=) l.id
LEFT JOIN (SELECT k.session, pg_catalog.max(k.leased_until) AS leased_until FROM idempotence.leases() k GROUP BY k.session) k
       ON k.session OPERATOR(pg_catalog.=) l.id) v
OFFSET 0;

CREATE OR REPLACE VIEW idempotence.outcomes WITH (security_barrier) AS
SELECT COALESCE(s.name, pg_catalog.concat_ws('@', s.id, s.node)) AS session,
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
WHERE o.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
OFFSET 0;

-- What was begun, committed, and is not done. It counts as long as an outcome would that was recorded when its lease ran
-- out or its checkpoint was written; in a client session, until its number is given up. In a client session that has ended
-- nobody can complete what a lease was for.
CREATE VIEW idempotence.unfinished WITH (security_barrier) AS
SELECT COALESCE(s.name, pg_catalog.concat_ws('@', u.id, s.node)) AS session,
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
  AND ((SELECT pg_catalog.has_table_privilege('idempotence.health', 'SELECT'))
       OR pg_catalog.pg_has_role(s.owner, 'USAGE') OR pg_catalog.pg_has_role(s.usable_by, 'USAGE'))
  AND NOT (s.id IS NOT NULL AND s.name IS NULL
           AND EXISTS (SELECT FROM idempotence.stream m
                       WHERE m.session OPERATOR(pg_catalog.=) u.id AND m.stream OPERATOR(pg_catalog.=) u.stream
                         AND m.acked OPERATOR(pg_catalog.>=) u.request::pg_catalog.int8))
OFFSET 0;

-- What is watched in shared memory. The functions decide which rows their caller sees. Where the library is not preloaded
-- they raise 55000.
CREATE VIEW idempotence.stats WITH (security_barrier) AS
SELECT s.session, s.owner, s.kind, s.started, s.taken_over, s.replayed, s.recorded, s.failed, s.cancelled, s.released, s.in_progress,
       s.mismatched, s.discarded, s.fenced, s.out_of_sequence, s.unrecorded, s.waits, s.wait_ms, s.swept, s.since
FROM idempotence.stats() s;

CREATE VIEW idempotence.errors WITH (security_barrier) AS
SELECT e.at, e.session, e.stream, e.request, e.role, e.sqlstate, e.application, e.pid
FROM idempotence.errors() e;

-- The prepared transactions of this database, with the virtualtransaction that pg_locks gives them. It is found by
-- the lock that each prepared transaction holds on its own transaction id.
CREATE OR REPLACE VIEW idempotence.prepared AS
SELECT l.virtualtransaction, p.gid, p.prepared, p.owner
FROM pg_catalog.pg_prepared_xacts p
JOIN pg_catalog.pg_locks l
  ON l.locktype OPERATOR(pg_catalog.=) 'transactionid' AND l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock' AND l.pid IS NULL
 AND l.transactionid OPERATOR(pg_catalog.=) p.transaction
WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database();

-- The locks of requests in this database, by the two numbers that pg_locks shows of each: who waits, and which prepared
-- transaction has it.
CREATE VIEW idempotence.request_locks AS
SELECT l.classid, l.objid,
       (pg_catalog.count(*) FILTER (WHERE NOT l.granted))::pg_catalog.int4 AS waiters,
       pg_catalog.min(l.waitstart) AS waited_for_since,
       pg_catalog.min(p.gid) AS prepared,
       pg_catalog.min(p.prepared) AS prepared_at,
       pg_catalog.min(p.owner) AS prepared_by
FROM pg_catalog.pg_locks l
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.classid, l.objid;

-- A prepared transaction that was prepared before the server was started shows without the names of its requests, and
-- only to monitors: shared memory does not know them any more.
CREATE VIEW idempotence.in_flight WITH (security_barrier) AS
SELECT h.session, h.stream, h.request, h.pid, COALESCE(h.role, l.prepared_by::pg_catalog.regrole) AS role, h.application,
       h.client::pg_catalog.inet AS client, COALESCE(h.since, l.prepared_at) AS since, h.state,
       COALESCE(l.waiters, 0) AS waiters, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) l.waited_for_since AS longest_wait,
       l.prepared, COALESCE(h.requests, 1) AS requests
FROM idempotence.held_requests() h
FULL JOIN idempotence.request_locks l ON l.classid OPERATOR(pg_catalog.=) h.lock_high AND l.objid OPERATOR(pg_catalog.=) h.lock_low
WHERE h.pid IS NOT NULL
   OR (l.prepared IS NOT NULL AND (h.session IS NOT NULL OR pg_catalog.has_table_privilege('idempotence.health', 'SELECT')))
OFFSET 0;

-- The sweep by hand. It takes the steps that the background worker takes, each in one or more transactions of its own.
CREATE OR REPLACE PROCEDURE idem_sweep()
LANGUAGE plpgsql
AS $sweep$
DECLARE
  step pg_catalog.text;
  more pg_catalog.bool;
BEGIN
  FOREACH step IN ARRAY '{empty,turn,close,long,restore,end,delete,checkpoints,leases,persistence,owners,orphans,tombstones,journals}'::pg_catalog.text[] LOOP
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

-- Who holds locks of this extension and of its tables, in words. The ring, the sweep and the checks of health name them.

-- Every lock in this database that another backend or a prepared transaction holds, with its holder in words. Without
-- predicate locks, which are in nobody's way.
CREATE OR REPLACE VIEW idempotence.held AS
SELECT l.locktype, l.relation, l.objsubid, l.mode,
       CASE WHEN l.pid IS NULL
            THEN pg_catalog.concat('prepared transaction "', p.gid, '"', ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', p.prepared)::pg_catalog.text)
            ELSE pg_catalog.concat('process ', l.pid,
                   ' (' OPERATOR(pg_catalog.||) NULLIF(pg_catalog.concat_ws(', ', a.backend_type, a.usename, NULLIF(a.application_name, ''), a.state), '') OPERATOR(pg_catalog.||) ')',
                   ', since ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', a.xact_start)::pg_catalog.text) END AS holder
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
LEFT JOIN idempotence.prepared p ON l.pid IS NULL AND p.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction
WHERE l.granted AND l.mode OPERATOR(pg_catalog.<>) 'SIReadLock' AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database());

-- Who holds one of these locks. The functions run with the owner's rights, since pg_stat_activity hides from a role
-- what the backends of other roles do.
CREATE OR REPLACE FUNCTION idempotence.holders(relations oid[], modes text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $holders$
  SELECT pg_catalog.string_agg(DISTINCT h.holder, ', ') FROM idempotence.held h
  WHERE h.locktype OPERATOR(pg_catalog.=) 'relation' AND h.relation OPERATOR(pg_catalog.=) ANY (relations)
    AND (modes IS NULL OR h.mode OPERATOR(pg_catalog.=) ANY (modes))
$holders$;

CREATE OR REPLACE FUNCTION idempotence.advisory_holders(objsubid integer) RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $advisory_holders$
  SELECT pg_catalog.string_agg(DISTINCT h.holder, ', ') FROM idempotence.held h
  WHERE h.locktype OPERATOR(pg_catalog.=) 'advisory' AND h.objsubid OPERATOR(pg_catalog.=) advisory_holders.objsubid
$advisory_holders$;

-- The view segments: the state of the ring.

-- held_by names whoever keeps a segment from its next state. For the current segment that is the holder of the sweep's
-- lock. For the others it is the holder of a lock on the segment, or on its TOAST table, that conflicts with the lock
-- that the next state takes: SHARE to be closed, ACCESS EXCLUSIVE to be emptied. The current segment is not due before
-- the next segment's keep is over: many outcomes of the next one may still live until then.
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

-- The checks of the view health, one view for each: level is 0 (ok), 1 (warning) or 2 (critical), detail is what was
-- found, hint is what to do if the level is not 0. The function idempotence.checks() reads them with the rights of the
-- extension's owner, after it has loaded the library. docs/operations.md lists all thresholds.

-- What the checks of the sweep have in common. late is far beyond what is normal.
CREATE VIEW idempotence.upkeep AS
SELECT v.launcher, v.last_sweep, v.standby, v.now, v.visited,
       CASE WHEN v.visited THEN (idempotence.naptime() OPERATOR(pg_catalog.*) 10) OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval
            -- No worker comes here. Whoever sweeps instead is asked to do so daily.
            ELSE '25 hours'::pg_catalog.interval END AS late,
       -- The moment that lateness counts from: the last sweep. If none is known, it is the moment when the
       -- server came up, or when the extension or a restore brought the tables, if that is later: before it
       -- nothing was to be swept. A moment in the future, noted by a clock that was ahead, does not count.
       COALESCE(v.last_sweep, GREATEST((SELECT idempotence.up_since()),
                                       (SELECT g.sessions_at FROM idempotence.segment g
                                        WHERE g.number OPERATOR(pg_catalog.=) 0 AND g.sessions_at OPERATOR(pg_catalog.<=) v.now))) AS since
FROM (SELECT idempotence.launcher() AS launcher, idempotence.is_visited() AS visited, idempotence.last_sweep() AS last_sweep,
             pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.clock_timestamp() AS now) v;

CREATE VIEW idempotence.check_worker AS
SELECT CASE WHEN w.standby OR w.launcher OPERATOR(pg_catalog.>) 0 THEN 0
            WHEN w.launcher IS NOT NULL THEN 2
            WHEN w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '25 hours'::pg_catalog.interval) THEN 0
            ELSE 1 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
            WHEN w.launcher OPERATOR(pg_catalog.>) 0 THEN pg_catalog.format('the launcher is process %s', w.launcher)
            WHEN w.launcher IS NULL THEN 'the library is not preloaded; somebody else has to CALL idem_sweep()'
            ELSE 'the launcher does not run' END AS detail,
       CASE WHEN w.launcher IS NULL
            THEN 'Add idempotence to shared_preload_libraries and restart, or have a scheduler CALL idem_sweep().'
            ELSE 'The server log tells why. A launcher that failed is started again within seconds; one that found max_worker_processes too small at server start needs that raised, and a restart.' END AS hint
FROM idempotence.upkeep w;

CREATE VIEW idempotence.check_restarts AS
SELECT CASE WHEN r.lately OPERATOR(pg_catalog.>) 3 THEN 1 ELSE 0 END AS level,
       CASE WHEN r.lately IS NULL THEN 'the library is not preloaded; there is no launcher'
            ELSE pg_catalog.format('since the server came up the launcher was started anew %s times, %s times in the last hour', r.ever, r.lately) END AS detail,
       'The server log tells what ended it. While it is not there nothing is swept; nothing else is wrong.' AS hint
FROM (SELECT idempotence.restarts(false) AS ever, idempotence.restarts(true) AS lately) r;

CREATE VIEW idempotence.check_sweep AS
SELECT CASE WHEN w.standby OR w.since OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) w.late) THEN 0 ELSE 1 END AS level,
       CASE WHEN w.standby THEN 'this is a standby; the primary sweeps'
            WHEN w.last_sweep IS NULL THEN pg_catalog.format('not swept yet since %s', pg_catalog.date_trunc('second', w.since))
            WHEN w.last_sweep OPERATOR(pg_catalog.>) w.now
            THEN pg_catalog.format('swept at %s by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', w.last_sweep))
            ELSE pg_catalog.format('swept %s ago', pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) w.last_sweep)) END AS detail,
       CASE WHEN w.visited THEN 'The server log tells of errors. Is this database a template? The worker does not visit those.'
            WHEN w.launcher IS NULL THEN 'CALL idem_sweep(), and have a scheduler do so at least daily.'
            ELSE 'The setting idempotence.databases leaves this database out: name it there, or have a scheduler CALL idem_sweep() at least daily.' END AS hint
FROM idempotence.upkeep w;

CREATE VIEW idempotence.check_ring AS
SELECT -- Critical: a segment is late by its whole keep, although a sweep came by when it was late already.
       CASE WHEN pg_catalog.bool_or(NOT s.is_ahead AND (s.due_at OPERATOR(pg_catalog.+) s.keep) OPERATOR(pg_catalog.<) w.now AND (s.due_at OPERATOR(pg_catalog.+) w.late) OPERATOR(pg_catalog.<) w.last_sweep) THEN 2
            WHEN pg_catalog.count(s.segment) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(
         CASE WHEN s.is_ahead
              THEN pg_catalog.format('segment %s was opened or closed at %s, by a clock that was ahead and has been set back', s.segment,
                     pg_catalog.date_trunc('second', GREATEST(s.opened_at, s.closed_at)))
              ELSE pg_catalog.format('segment %s should have been %s %s ago%s', s.segment,
                     CASE s.state WHEN 'current' THEN 'turned away from' WHEN 'closing' THEN 'closed' ELSE 'emptied' END,
                     pg_catalog.date_trunc('second', w.now OPERATOR(pg_catalog.-) s.due_at),
                     CASE WHEN s.held_by IS NOT NULL THEN pg_catalog.concat('; held by ', s.held_by)
                          WHEN w.last_sweep OPERATOR(pg_catalog.<) s.due_at THEN '; not swept since' ELSE '' END) END,
                '. ' ORDER BY s.segment) FILTER (WHERE s.segment IS NOT NULL), 'nothing is overdue') AS detail,
       CASE WHEN pg_catalog.bool_or(s.held_by IS NOT NULL)
            THEN 'Nothing is lost; expired outcomes take space until then. End the transaction that holds the segment (pg_terminate_backend, ROLLBACK PREPARED), or wait for its end.'
            ELSE 'Nothing is lost; expired outcomes take space until then. Nobody holds the segment: the next sweep puts it right. CALL idem_sweep() does it by hand, and tells what is in its way; if none comes by itself, the rows worker and sweep tell why.' END AS hint
FROM idempotence.upkeep w
LEFT JOIN (SELECT s.*, GREATEST(s.opened_at, s.closed_at) OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) AS is_ahead
           FROM idempotence.segments s) s
  ON s.is_ahead OR s.due_at OPERATOR(pg_catalog.<) ((w.now OPERATOR(pg_catalog.-) w.late) OPERATOR(pg_catalog.-) '1 minute'::pg_catalog.interval);

-- The transactions that hold locks on requests and sessions of this database. A view of its own, so that only one place
-- names the classes of these locks.
CREATE VIEW idempotence.holding AS
SELECT l.pid, l.virtualtransaction, pg_catalog.count(*) FILTER (WHERE l.objsubid OPERATOR(pg_catalog.=) 7649) AS requests
FROM pg_catalog.pg_locks l
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
  AND l.objsubid OPERATOR(pg_catalog.>=) 7649 AND l.objsubid OPERATOR(pg_catalog.<=) 7658
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.pid, l.virtualtransaction;

CREATE VIEW idempotence.check_holders AS
SELECT CASE WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.>) 0 OR NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 1 ELSE 0 END AS level,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'the owner of the extension may not see since when others have their transactions open'
            WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.format('no transaction has held a request for more than %s', t.threshold)
            ELSE pg_catalog.concat(pg_catalog.string_agg(h.told, '; ' ORDER BY h.place) FILTER (WHERE h.place OPERATOR(pg_catalog.<=) 5),
                   CASE WHEN pg_catalog.count(h.pid) OPERATOR(pg_catalog.>) 5 THEN pg_catalog.format('; and %s more', pg_catalog.count(h.pid) OPERATOR(pg_catalog.-) 5) END) END AS detail,
       CASE WHEN NOT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') THEN 'GRANT pg_read_all_stats to the owner of the extension.'
            ELSE 'Their requests are in progress until they end; then the ring waits for them too. Where the client hangs, pg_terminate_backend(pid) has a retry execute the request; idle_in_transaction_session_timeout does so by itself.' END AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) t
LEFT JOIN (SELECT l.pid, a.xact_start, pg_catalog.row_number() OVER (ORDER BY a.xact_start) AS place,
                  pg_catalog.format('process %s (%s), since %s, holds %s', l.pid,
                    pg_catalog.concat_ws(', ', a.usename, NULLIF(a.application_name, ''), a.state), pg_catalog.date_trunc('second', a.xact_start),
                    CASE l.requests WHEN 0 THEN 'a session' WHEN 1 THEN 'a request' ELSE pg_catalog.concat(l.requests, ' requests') END) AS told
           FROM idempotence.holding l JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid) h
  ON h.xact_start OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_waiters AS
SELECT CASE WHEN pg_catalog.max(r.waiters) OPERATOR(pg_catalog.>) w.most OR pg_catalog.max(r.waited) OPERATOR(pg_catalog.>) w.threshold THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(r.waiters) OPERATOR(pg_catalog.=) 0 THEN 'nobody waits for a request'
            ELSE pg_catalog.concat(pg_catalog.format('%s wait for %s requests; at most %s for the same one; the longest wait has lasted %s',
                          pg_catalog.sum(r.waiters), pg_catalog.count(r.waiters), pg_catalog.max(r.waiters), pg_catalog.date_trunc('second', pg_catalog.max(r.waited))),
                   -- Only where the library is preloaded are requests known by their names.
                   CASE WHEN (SELECT idempotence.launcher()) IS NOT NULL
                        THEN (SELECT pg_catalog.format('; most wait for request %s of session %s, which %s', pg_catalog.to_json(f.request), pg_catalog.to_json(f.session),
                                       COALESCE('process ' OPERATOR(pg_catalog.||) f.pid, pg_catalog.format('prepared transaction %L', f.prepared)) OPERATOR(pg_catalog.||) ' has')
                              FROM idempotence.in_flight f WHERE f.waiters OPERATOR(pg_catalog.>) 0 AND f.request IS NOT NULL
                              ORDER BY f.waiters DESC, f.since LIMIT 1) END) END AS detail,
       'Who sends the same request again and again, without waiting for its answer? pg_blocking_pids(pid) of a waiter names who has the request; the row holders names who has had one for long.' AS hint
FROM (SELECT idempotence.setting('idempotence.warn_waiters')::pg_catalog.int8 AS most,
             pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) w
LEFT JOIN (SELECT pg_catalog.count(*) AS waiters,
                  -- A wait that has only begun has no moment yet.
                  GREATEST(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) COALESCE(pg_catalog.min(l.waitstart), pg_catalog.clock_timestamp()), '0'::pg_catalog.interval) AS waited
           FROM pg_catalog.pg_locks l
           WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649 AND NOT l.granted
             AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
           GROUP BY l.classid, l.objid) r ON true
GROUP BY w.most, w.threshold;

CREATE VIEW idempotence.check_prepared_transactions AS
SELECT CASE WHEN pg_catalog.count(p.gid) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('%L holds requests since %s', p.gid, pg_catalog.date_trunc('second', p.prepared)), ', ' ORDER BY p.prepared) FILTER (WHERE p.gid IS NOT NULL),
                pg_catalog.format('none holds a request for more than %s', t.threshold)) AS detail,
       'COMMIT PREPARED or ROLLBACK PREPARED them: their requests are in progress until then.' AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_holder')::pg_catalog.float8) AS threshold) t
LEFT JOIN (SELECT p.gid, p.prepared FROM idempotence.prepared p
           WHERE EXISTS (SELECT FROM idempotence.holding l
                         WHERE l.pid IS NULL AND l.virtualtransaction OPERATOR(pg_catalog.=) p.virtualtransaction)) p
  ON p.prepared OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_deadlocks AS
SELECT CASE WHEN d.lately OPERATOR(pg_catalog.>) 10 THEN 1 ELSE 0 END AS level,
       CASE WHEN d.lately IS NULL THEN 'not counted, since the library is not preloaded'
            ELSE pg_catalog.format('%s waits for a request or a session ended in a deadlock in the last hour', d.lately) END AS detail,
       'The server log names the request of the one that got 40P01. Transactions that begin several requests, or that also lock rows, have to do so in the same order everywhere. That one was rolled back, and a retry is right.' AS hint
FROM (SELECT idempotence.deadlocks() AS lately) d;

CREATE VIEW idempotence.check_lock_table AS
SELECT CASE WHEN l.taken OPERATOR(pg_catalog.>=) (t.places OPERATOR(pg_catalog.*) 0.8) THEN 2 WHEN l.taken OPERATOR(pg_catalog.>=) (t.places OPERATOR(pg_catalog.*) 0.5) THEN 1 ELSE 0 END AS level,
       pg_catalog.format('%s of %s places are taken, %s of them by requests', l.taken, t.places, l.requests) AS detail,
       'In a full table whoever asks for a lock gets an error (53200), in every database. Begin fewer requests in one transaction, use an inbox, which takes no lock for each request, or raise max_locks_per_transaction, which takes a restart.' AS hint
FROM (SELECT pg_catalog.count(*) AS taken, pg_catalog.count(*) FILTER (WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 7649) AS requests
      FROM pg_catalog.pg_locks l WHERE NOT l.fastpath AND l.mode OPERATOR(pg_catalog.<>) 'SIReadLock') l
CROSS JOIN (SELECT idempotence.lock_table_size() AS places) t;

-- Whether the leases cannot be seen here: they are unlogged, and this is a standby.
CREATE VIEW idempotence.blind AS
SELECT pg_catalog.pg_is_in_recovery() AND c.relpersistence OPERATOR(pg_catalog.=) 'u' AS blind
FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idempotence.lease');

CREATE VIEW idempotence.check_leases AS
SELECT CASE WHEN pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN (SELECT b.blind FROM idempotence.blind b) THEN 'this is a standby, and leases are unlogged; the primary knows them'
            ELSE pg_catalog.concat(pg_catalog.count(*) FILTER (WHERE u.state OPERATOR(pg_catalog.=) 'leased'), ' requests are leased',
                   '; ' OPERATOR(pg_catalog.||) (NULLIF(pg_catalog.count(*) FILTER (WHERE u.attempt OPERATOR(pg_catalog.>) 3), 0)
                     OPERATOR(pg_catalog.||) (' unfinished ones were taken over more than three times, one by attempt ' OPERATOR(pg_catalog.||) pg_catalog.max(u.attempt)))) END AS detail,
       'A request that was taken over again and again may be what its workers die of, or its lease is too short for the work. The view unfinished tells who has it. max_attempts of a session gives such requests up.' AS hint
FROM idempotence.unfinished u;

CREATE VIEW idempotence.check_run_out AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN (SELECT b.blind FROM idempotence.blind b) THEN 'this is a standby, and leases are unlogged; the primary knows them'
            WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('the lease of %s requests ran out more than five minutes ago, and nobody has taken them over; the first at %s, most of them in session %s',
                   pg_catalog.count(*), pg_catalog.date_trunc('second', pg_catalog.min(u.leased_until)), pg_catalog.to_json(pg_catalog.mode() WITHIN GROUP (ORDER BY u.session)))
            ELSE 'no lease ran out more than five minutes ago' END AS detail,
       'What they were to do outside the database may have happened. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record() or idem_force_release(). The view unfinished lists them.' AS hint
FROM idempotence.unfinished u
WHERE u.state OPERATOR(pg_catalog.=) 'run out' AND u.leased_until OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '5 minutes'::pg_catalog.interval);

CREATE VIEW idempotence.check_suspended AS
SELECT CASE WHEN pg_catalog.count(u.session) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.count(u.session) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('%s requests have been suspended at a checkpoint for more than %s; the first since %s, most of them in session %s',
                   pg_catalog.count(u.session), t.threshold, pg_catalog.date_trunc('second', pg_catalog.min(u.since)), pg_catalog.to_json(pg_catalog.mode() WITHIN GROUP (ORDER BY u.session)))
            ELSE pg_catalog.format('no request has been suspended for more than %s', t.threshold) END AS detail,
       'Nobody goes on with them. Their callers begin them again, or settle them (idem_settle). What nobody asks for any more: idem_force_record(), or wait until it expires. The view unfinished lists them.' AS hint
FROM (SELECT pg_catalog.make_interval(secs => idempotence.setting('idempotence.warn_suspended')::pg_catalog.float8) AS threshold) t
LEFT JOIN idempotence.unfinished u ON u.state OPERATOR(pg_catalog.=) 'suspended' AND u.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.threshold)
GROUP BY t.threshold;

CREATE VIEW idempotence.check_client_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most) THEN 2 WHEN pg_catalog.bool_or(o.is_near) THEN 1 ELSE 0 END AS level,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN 'this is a standby; the primary knows which are at work'
            ELSE pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' at work, of which ', COALESCE(pg_catalog.sum(o.silent), 0),
                   ' are silent for longer than their timeout',
                   pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
                     FILTER (WHERE o.is_near)) END AS detail,
       'At the limit registering is refused (ID009). Close sessions that are done with, shorten timeouts, or raise idempotence.max_sessions_per_role.' AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_near
      FROM (SELECT l.*, idempotence.max_sessions_per_role() AS most FROM idempotence.at_work_by_role() l) s) o;

CREATE VIEW idempotence.check_standing_sessions AS
SELECT CASE WHEN pg_catalog.bool_or(o.sessions OPERATOR(pg_catalog.>=) o.most) THEN 2 WHEN pg_catalog.bool_or(o.is_many) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat(COALESCE(pg_catalog.sum(o.sessions), 0), ' standing sessions, of which ', COALESCE(pg_catalog.sum(o.dropped), 0), ' are dropped',
         pg_catalog.string_agg(pg_catalog.format('; role %s has %s of at most %s', o.owner, o.sessions, o.most), '' ORDER BY o.sessions DESC)
           FILTER (WHERE o.is_many)) AS detail,
       'A session is a series of requests, not one of them: use few sessions, with many keys. If so many are right, raise idempotence.warn_standing_sessions. At idempotence.max_standing_sessions_per_role making one more is refused (ID009).' AS hint
FROM (SELECT s.*, s.sessions OPERATOR(pg_catalog.>) s.threshold OR s.sessions OPERATOR(pg_catalog.>=) (s.most OPERATOR(pg_catalog.*) 0.9) AS is_many
      FROM (SELECT n.owner, pg_catalog.count(*) AS sessions, pg_catalog.count(n.ended_at) AS dropped,
                   idempotence.setting('idempotence.warn_standing_sessions')::pg_catalog.int8 AS threshold,
                   idempotence.setting('idempotence.max_standing_sessions_per_role')::pg_catalog.int8 AS most
            FROM idempotence.session n WHERE n.name IS NOT NULL GROUP BY n.owner) s) o;

CREATE VIEW idempotence.check_owners AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         'sessions without an owner: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.ownerless AND s.place OPERATOR(pg_catalog.<=) 20),
         'lent to a role that was dropped: ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(s.name, ', ' ORDER BY s.name) FILTER (WHERE s.lent_to_nobody AND s.place OPERATOR(pg_catalog.<=) 20),
         CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 20 THEN pg_catalog.format('and %s more', pg_catalog.count(*) OPERATOR(pg_catalog.-) 20)
              WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN 'every standing session has its owner' END) AS detail,
       'A session without an owner can be used by superusers, and by the role that it is lent to. Give it to a role: idem_alter_session(session, owner => ...). A loan to a dropped role ends by itself within the hour.' AS hint
FROM (SELECT s.*, pg_catalog.row_number() OVER (ORDER BY s.name) AS place
      FROM (SELECT s.name, o.oid IS NULL AS ownerless, s.usable_by IS NOT NULL AND b.oid IS NULL AS lent_to_nobody
            FROM idempotence.session s
            LEFT JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) s.owner::pg_catalog.oid
            LEFT JOIN pg_catalog.pg_roles b ON b.oid OPERATOR(pg_catalog.=) s.usable_by::pg_catalog.oid
            WHERE s.name IS NOT NULL AND s.ended_at IS NULL) s
      WHERE s.ownerless OR s.lent_to_nobody) s;

-- The tables that a restore has left out. If the key of the digests was restored, each of these tables must have been
-- restored too, since pg_dump has a COPY even of an empty table. Dumps of version 1.0.0 have neither outcome_long nor
-- lease, and where leases are unlogged a dump may leave them out. One row, with NULL where nothing is missing.
CREATE VIEW idempotence.missing AS
SELECT pg_catalog.string_agg(pg_catalog.concat('idempotence.', t.name), ', ' ORDER BY t.name) AS missing
FROM pg_catalog.unnest('{session,outcome_0,outcome_1,outcome_2,reply,checkpoint,lease}'::pg_catalog.text[]) t (name)
WHERE EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'secret')
  AND NOT EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) t.name)
  AND (t.name OPERATOR(pg_catalog.<>) 'lease'
       OR (EXISTS (SELECT FROM idempotence.restore r WHERE r.brought OPERATOR(pg_catalog.=) 'outcome_long')
           AND NOT EXISTS (SELECT FROM idempotence.persistence p WHERE p.what OPERATOR(pg_catalog.=) 'claims' AND p.unlogged)));

CREATE VIEW idempotence.check_restore AS
SELECT CASE WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0) OR m.missing IS NOT NULL THEN 2
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       CASE WHEN m.missing IS NOT NULL
            THEN pg_catalog.format('of what was restored since %s these tables are missing: %s', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)), m.missing)
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN pg_catalog.format('what was restored since %s lacks sessions: requests that were done may be executed again', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            WHEN pg_catalog.count(r.noted_at) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.format('what was restored since %s was not looked through yet', pg_catalog.date_trunc('second', pg_catalog.min(r.noted_at)))
            ELSE 'nothing that was restored lacks its session' END AS detail,
       CASE WHEN m.missing IS NOT NULL
            THEN 'Their COPY has failed, or is still to come: requests that were done may be executed again. Create the roles that the restore missed and restore the data of these tables again, or give up what they had: idem_accept_restore(). No session that is new can be made until then.'
            WHEN pg_catalog.bool_or(r.orphans OPERATOR(pg_catalog.>) 0)
            THEN 'No session that is new can be made. Create the roles that the restore missed and restore the data of table idempotence.session again, or give up what has no session: idem_accept_restore().'
            ELSE 'The sweep looks through it. Where no worker visits this database, CALL idem_sweep().' END AS hint
FROM idempotence.missing m LEFT JOIN idempotence.restore r ON r.orphans IS DISTINCT FROM 0
GROUP BY m.missing;

-- The beginning of a table's last page.
CREATE FUNCTION idempotence.last_page(relation text) RETURNS tid
LANGUAGE sql STABLE PARALLEL SAFE
AS $last_page$
  SELECT pg_catalog.format('(%s,0)', GREATEST((pg_catalog.pg_relation_size(pg_catalog.to_regclass(relation)) OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::pg_catalog.int8) OPERATOR(pg_catalog.-) 1, 0))::pg_catalog.tid
$last_page$;

-- Some outcomes of each table: those of the first page and those of the last one. Each is found without a look at the
-- others, however many there are.
CREATE VIEW idempotence.sample AS
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_0')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_1')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_2')
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid
UNION ALL
SELECT o.digest, o.session, o.key, o.recorded_at FROM idempotence.outcome_long o WHERE o.ctid OPERATOR(pg_catalog.>=) idempotence.last_page('idempotence.outcome_long');

-- Digests are made with the key in use. So the sample is looked at only if there is one, and nothing is missing.
CREATE VIEW idempotence.check_secret AS
SELECT CASE WHEN f.fault IS NULL THEN 0 ELSE 2 END AS level,
       COALESCE(f.fault, 'outcomes are found by the key that they were recorded with') AS detail,
       'Only part of a dump was restored, or a dump over sessions that were there: requests that were done may be executed again, or all are refused (XX001). Restore all tables of the extension into a database in which it has no session.' AS hint
FROM (SELECT CASE WHEN k.keys OPERATOR(pg_catalog.=) 0 THEN 'table idempotence.secret has no row'
                  WHEN k.used OPERATOR(pg_catalog.>) 1 THEN 'table idempotence.secret has two keys in use'
                  WHEN k.used OPERATOR(pg_catalog.=) 0 AND EXISTS (SELECT FROM idempotence.session)
                  THEN 'there are sessions, but table idempotence.secret has no key in use'
                  WHEN k.used OPERATOR(pg_catalog.=) 1 AND (SELECT m.missing IS NULL FROM idempotence.missing m)
                       AND EXISTS (SELECT FROM idempotence.sample o WHERE NOT idempotence.digest_fits(o.digest, o.session, o.key))
                  THEN 'there are outcomes that were recorded with another key than the one in use' END AS fault
      FROM (SELECT pg_catalog.count(*) AS keys, pg_catalog.count(DISTINCT s.key) FILTER (WHERE s.in_use_since IS NOT NULL) AS used
            FROM idempotence.secret s) k) f;

-- The settings that matter to requests, as they are for each role that has its own: first what is set for the role in this
-- database, then for the role, then for the database, then for all roles, then for the server. What is set for the
-- server is known from the session that asks, unless something else is set for that session. Times are in milliseconds.
CREATE VIEW idempotence.effective AS
SELECT r.role, n.name, v.value, v.place
FROM (SELECT '0'::pg_catalog.oid AS role
      UNION
      SELECT s.setrole FROM pg_catalog.pg_db_role_setting s
      WHERE s.setdatabase OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
         OR s.setdatabase OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) r
CROSS JOIN pg_catalog.unnest('{idempotence.unrecorded,idempotence.coordinate,idempotence.wait,statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[]) n (name)
CROSS JOIN LATERAL (
  SELECT e.value, e.place
  FROM (SELECT pg_catalog.substr(c.entry, pg_catalog.strpos(c.entry, '=') OPERATOR(pg_catalog.+) 1) AS value,
               CASE WHEN s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AND s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN pg_catalog.format('for role %s in this database', s.setrole::pg_catalog.regrole)
                    WHEN s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN pg_catalog.format('for role %s', s.setrole::pg_catalog.regrole)
                    WHEN s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid THEN 'for this database'
                    ELSE 'for all roles' END AS place,
               s.setrole OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AS of_role, s.setdatabase OPERATOR(pg_catalog.<>) '0'::pg_catalog.oid AS of_database
        FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c (entry)
        WHERE s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY['0'::pg_catalog.oid, r.role])
          AND (s.setdatabase OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
               OR s.setdatabase OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()))
          AND pg_catalog.lower(pg_catalog.split_part(c.entry, '=', 1)) OPERATOR(pg_catalog.=) n.name
        UNION ALL
        SELECT p.reset_val, 'for the server', NULL, NULL
        FROM pg_catalog.pg_settings p
        WHERE p.name OPERATOR(pg_catalog.=) n.name AND p.source OPERATOR(pg_catalog.<>) 'client'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c (entry)
                          WHERE s.setrole OPERATOR(pg_catalog.=) (SELECT o.oid FROM pg_catalog.pg_roles o WHERE o.rolname OPERATOR(pg_catalog.=) SESSION_USER)
                            AND pg_catalog.lower(pg_catalog.split_part(c.entry, '=', 1)) OPERATOR(pg_catalog.=) n.name)) e
  ORDER BY e.of_role DESC NULLS LAST, e.of_database DESC NULLS LAST LIMIT 1) v
WHERE r.role OPERATOR(pg_catalog.=) '0'::pg_catalog.oid
   -- Only for a role that may work with requests, and only where something is set for it.
   OR pg_catalog.has_function_privilege(r.role, '@extschema@.idem_record(text, text, jsonb, boolean, bigint, interval, text)', 'EXECUTE');

CREATE VIEW idempotence.check_unrecorded AS
SELECT CASE WHEN pg_catalog.count(u.place) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('idempotence.unrecorded is %s %s', u.value, u.place), '; ' ORDER BY u.place),
                'a commit with an unrecorded request is refused') AS detail,
       'A request may take effect without an outcome, and a retry executes it again. Set it to error once all programs record (RESET it for a role or a database).' AS hint
FROM (SELECT DISTINCT e.value, e.place FROM idempotence.effective e
      WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.unrecorded' AND pg_catalog.lower(e.value) OPERATOR(pg_catalog.<>) 'error') u;

CREATE VIEW idempotence.check_coordinator AS
SELECT CASE WHEN c.library IS NOT NULL AND o.places IS NOT NULL OR c.library IS NULL AND c.citus THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         CASE WHEN c.library IS NOT NULL THEN pg_catalog.format('%s is loaded, and can be asked for a two-phase commit', c.library)
              WHEN c.citus THEN 'the extension citus is here, and its library does not export the function by which it is asked for a two-phase commit'
              ELSE 'no commit coordinator is loaded that can be asked for a two-phase commit' END,
         CASE WHEN c.library IS NOT NULL THEN o.places END,
         CASE WHEN c.tables OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.format('%s of postgres_fdw, which commits on their servers before the commit here, and knows no two-phase commit',
                CASE c.tables WHEN 1 THEN '1 table is' ELSE pg_catalog.format('%s tables are', c.tables) END) END) AS detail,
       CASE WHEN c.library IS NULL
            THEN 'A crash between the commit on a worker and the commit here leaves an effect without its outcome, and a retry executes it again. docs/scaling.md, Commit coordinators, tells how to build Citus, or what to write besides.'
            ELSE 'A crash between the commit on another server and the commit here leaves an effect without its outcome, and a retry executes it again. RESET idempotence.coordinate there.' END AS hint
FROM (SELECT idempotence.coordinator() AS library,
             EXISTS (SELECT FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'citus') AS citus,
             (SELECT pg_catalog.count(*) FROM pg_catalog.pg_foreign_table t
              JOIN pg_catalog.pg_foreign_server s ON s.oid OPERATOR(pg_catalog.=) t.ftserver
              JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
              JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) w.fdwhandler
              WHERE p.prosrc OPERATOR(pg_catalog.=) 'postgres_fdw_handler') AS tables) c
CROSS JOIN (SELECT pg_catalog.string_agg(u.told, '; ' ORDER BY u.told) AS places
            FROM (SELECT DISTINCT pg_catalog.format('idempotence.coordinate is %s %s', e.value, e.place) AS told FROM idempotence.effective e
                  WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.coordinate' AND pg_catalog.lower(e.value) OPERATOR(pg_catalog.<>) 'auto') u) o;

-- The name of this server, so that a DBA finds it where the setting is empty. A session that is bound to another node is
-- as it should be.
CREATE VIEW idempotence.check_node AS
SELECT 0 AS level,
       pg_catalog.format('this is node "%s"%s; %s standing sessions are bound to it, %s to other nodes', n.name,
         CASE WHEN idempotence.setting('idempotence.node') OPERATOR(pg_catalog.=) '' THEN ', a name made from the system''s identifier' END,
         pg_catalog.count(*) FILTER (WHERE s.node OPERATOR(pg_catalog.=) n.name),
         pg_catalog.count(*) FILTER (WHERE s.node OPERATOR(pg_catalog.<>) n.name)) AS detail,
       NULL::pg_catalog.text AS hint
FROM (SELECT @extschema@.idem_node() AS name) n
LEFT JOIN idempotence.session s ON s.name IS NOT NULL AND s.ended_at IS NULL
GROUP BY n.name;
CREATE VIEW idempotence.check_journals AS
SELECT CASE WHEN pg_catalog.bool_or(j.is_gone) THEN 2 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(pg_catalog.format('journal %s of %s is not there', j.journal, j.sessions), '; ' ORDER BY j.journal) FILTER (WHERE j.is_gone),
                CASE pg_catalog.count(*) WHEN 0 THEN 'no session has a journal' ELSE pg_catalog.format('journals of sessions, all of them there: %s', pg_catalog.count(*)) END) AS detail,
       'All requests of these sessions fail (42P01), since nobody can tell what was done. Restore the table, or give it its name back.' AS hint
FROM (SELECT s.journal, pg_catalog.to_regclass(s.journal) IS NULL AS is_gone, pg_catalog.string_agg(pg_catalog.quote_ident(s.name), ', ' ORDER BY s.name) AS sessions
      FROM idempotence.session s
      WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY s.journal) j;

CREATE VIEW idempotence.check_settings AS
SELECT CASE WHEN pg_catalog.count(c.told) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.string_agg(c.told, '; ' ORDER BY c.told), 'no setting contradicts another') AS detail,
       'Make idempotence.wait shorter than the timeouts, so that a call that has waited answers in_progress. For the others, docs/reference.md tells what each setting is for.' AS hint
FROM (SELECT DISTINCT pg_catalog.format('a call waits %s (idempotence.wait %s), but %s is %s (%s)',
                CASE WHEN w.ms OPERATOR(pg_catalog.<) 0 THEN 'for ever' ELSE pg_catalog.format('for up to %s', pg_catalog.make_interval(secs => w.ms OPERATOR(pg_catalog./) 1000.0)) END, w.place,
                t.name, pg_catalog.make_interval(secs => t.ms OPERATOR(pg_catalog./) 1000.0), t.place) AS told
      FROM (SELECT e.role, e.place, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) 'idempotence.wait') w
      JOIN (SELECT e.role, e.place, e.name, idempotence.milliseconds(e.value) AS ms FROM idempotence.effective e
            WHERE e.name OPERATOR(pg_catalog.=) ANY ('{statement_timeout,lock_timeout,transaction_timeout}'::pg_catalog.text[])) t
        ON t.role OPERATOR(pg_catalog.=) w.role AND t.ms OPERATOR(pg_catalog.>) 0 AND w.ms OPERATOR(pg_catalog.<>) 0 AND (w.ms OPERATOR(pg_catalog.<) 0 OR w.ms OPERATOR(pg_catalog.>=) t.ms)
      UNION ALL
      SELECT 'idempotence.retention, the ttl of sessions without one of their own, is longer than idempotence.max_ttl'
      WHERE idempotence.setting('idempotence.retention')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.max_ttl')::pg_catalog.int8
      UNION ALL
      SELECT 'idempotence.naptime is longer than idempotence.session_timeout: silent client sessions outlast their timeout'
      WHERE idempotence.setting('idempotence.naptime')::pg_catalog.int8 OPERATOR(pg_catalog.>) idempotence.setting('idempotence.session_timeout')::pg_catalog.int8
      UNION ALL
      SELECT pg_catalog.format('one idem_ack may lock as many requests as idempotence.window_size says, and the lock table has %s places: raise max_locks_per_transaction',
               idempotence.lock_table_size())
      WHERE (idempotence.setting('idempotence.window_size')::pg_catalog.int8 OPERATOR(pg_catalog.*) 2) OPERATOR(pg_catalog.>) idempotence.lock_table_size()) c;

CREATE VIEW idempotence.check_publications AS
SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 THEN 1 ELSE 0 END AS level,
       COALESCE('published by ' OPERATOR(pg_catalog.||) pg_catalog.string_agg(pg_catalog.format('"%s"', p.pubname), ', ' ORDER BY p.pubname),
                'no table of this extension is published') AS detail,
       'The tables of this extension hold for one server; a subscription to them gets in the way of its own. Publish a list of tables or schemas instead of FOR ALL TABLES, without these.' AS hint
FROM pg_catalog.pg_publication p
WHERE p.puballtables
   OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n
              WHERE n.pnpubid OPERATOR(pg_catalog.=) p.oid AND n.pnnspid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'))
   OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
              WHERE r.prpubid OPERATOR(pg_catalog.=) p.oid AND c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence'));

CREATE VIEW idempotence.check_persistence AS
SELECT CASE WHEN pg_catalog.bool_or(p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged) THEN 1 ELSE 0 END AS level,
       pg_catalog.string_agg(pg_catalog.concat(t.meaning, CASE WHEN t.is_unlogged THEN ' are unlogged' ELSE ' are logged' END,
                    CASE WHEN p.unlogged OPERATOR(pg_catalog.<>) t.is_unlogged
                         THEN CASE WHEN p.unlogged THEN ', and are to be unlogged' ELSE ', and are to be logged' END END), '; ' ORDER BY t.what) AS detail,
       'The next sweep that finds the table unused sees to it; or idem_set_persistence().' AS hint
FROM (SELECT n.what, n.meaning, c.relpersistence OPERATOR(pg_catalog.=) 'u' AS is_unlogged
      FROM (VALUES ('claims', 'leases', 'idempotence.lease'), ('sessions', 'client sessions at work', 'idempotence.session_live')) n (what, meaning, name)
      JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(n.name)) t
LEFT JOIN idempotence.persistence p ON p.what OPERATOR(pg_catalog.=) t.what;

CREATE VIEW idempotence.check_clock AS
SELECT CASE WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval) OR j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval) THEN 1 ELSE 0 END AS level,
       pg_catalog.concat_ws('; ',
         CASE WHEN f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval)
              THEN pg_catalog.format('something was noted at %s, by a clock that was ahead and has been set back', pg_catalog.date_trunc('second', f.ahead)) END,
         CASE WHEN j.at OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.-) '1 day'::pg_catalog.interval)
              THEN pg_catalog.format('the clock was set %s by %s, seen at %s', CASE WHEN j.by OPERATOR(pg_catalog.>) '0'::pg_catalog.interval THEN 'forward' ELSE 'back' END,
                     pg_catalog.date_trunc('second', GREATEST(j.by, '0'::pg_catalog.interval OPERATOR(pg_catalog.-) j.by)), pg_catalog.date_trunc('second', j.at))
              WHEN NOT COALESCE(f.ahead OPERATOR(pg_catalog.>) (w.now OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval), false)
              THEN CASE WHEN w.launcher IS NULL THEN 'nothing was noted in the future; without preloading nobody watches the clock'
                        ELSE 'nothing was noted in the future, and the clock was not set within a day' END END) AS detail,
       'By this clock outcomes expire and leases run out. While it was ahead, what lived may have been taken for expired, and executed again. Outcomes that were recorded then keep the times that it gave them, until they expire. Keep clocks right by slewing (NTP), and start the server only once its clock is right.' AS hint
FROM idempotence.upkeep w
CROSS JOIN (SELECT idempotence.clock_jump() AS at, idempotence.clock_jump_by() AS by) j
CROSS JOIN (SELECT GREATEST((SELECT pg_catalog.max(GREATEST(s.opened_at, s.closed_at, s.sessions_at, s.looked_at)) FROM idempotence.segment s),
                            (SELECT pg_catalog.max(o.recorded_at) FROM idempotence.sample o),
                            (SELECT pg_catalog.max(r.noted_at) FROM idempotence.restore r),
                            (SELECT idempotence.last_sweep())) AS ahead) f;

-- When the first outcome of each segment was recorded, as far as its first page tells.
CREATE VIEW idempotence.segment_starts AS
SELECT s.segment, s.state OPERATOR(pg_catalog.=) 'current' AS is_current, CASE WHEN s.state OPERATOR(pg_catalog.=) 'empty' THEN 0 ELSE s.bytes END AS bytes, s.keep,
       CASE s.segment
         WHEN 0 THEN (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_0 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid)
         WHEN 1 THEN (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_1 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid)
         ELSE (SELECT pg_catalog.min(o.recorded_at) FROM idempotence.outcome_2 o WHERE o.ctid OPERATOR(pg_catalog.<) '(1,0)'::pg_catalog.tid) END AS first
FROM idempotence.segments s;

-- What outcomes take in an hour, and what they will take once the ring has turned with that: what is recorded in one and
-- a half times the time that a segment is kept for, and ten minutes. The rate is that of the current segment since its
-- first outcome, and of the one before as well while the current one is younger than an hour.
CREATE VIEW idempotence.growth AS
SELECT r.rate, r.rate OPERATOR(pg_catalog.*) ((EXTRACT(epoch FROM r.keep) OPERATOR(pg_catalog.*) 1.5) OPERATOR(pg_catalog.+) 600) AS needed, r.present, idempotence.free_space() AS free
FROM (SELECT c.keep, (SELECT pg_catalog.sum(s.bytes) FROM idempotence.segments s) AS present,
             (CASE WHEN c.first IS NULL THEN 0 ELSE c.bytes END OPERATOR(pg_catalog.+) CASE WHEN h.is_young THEN COALESCE(b.bytes, 0) ELSE 0 END)
               OPERATOR(pg_catalog./) GREATEST(EXTRACT(epoch FROM (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (CASE WHEN h.is_young THEN LEAST(b.first, c.first) ELSE c.first END))), 3600) AS rate
      FROM idempotence.segment_starts c
      LEFT JOIN idempotence.segment_starts b ON b.segment OPERATOR(pg_catalog.=) ((c.segment OPERATOR(pg_catalog.+) 2) OPERATOR(pg_catalog.%) 3)
      CROSS JOIN LATERAL (SELECT COALESCE(c.first OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 hour'::pg_catalog.interval), true)) h (is_young)
      WHERE c.is_current) r;

CREATE VIEW idempotence.check_growth AS
SELECT CASE WHEN NOT f.too_much THEN 0 WHEN g.free OPERATOR(pg_catalog.<) (g.rate OPERATOR(pg_catalog.*) 86400) THEN 2 ELSE 1 END AS level,
       pg_catalog.concat(pg_catalog.pg_size_pretty(pg_catalog.round(g.rate OPERATOR(pg_catalog.*) 3600)), ' of outcomes an hour; at this rate they will take ', pg_catalog.pg_size_pretty(pg_catalog.round(g.needed)),
         ', and take ', pg_catalog.pg_size_pretty(g.present), ' now; ',
         CASE WHEN g.free IS NULL THEN 'how much is free is unknown' ELSE pg_catalog.concat(pg_catalog.pg_size_pretty(g.free), ' are free') END) AS detail,
       'Give the tablespace more room, or shorten the ttl of sessions (idem_alter_session) and idempotence.retention: that counts for what is recorded from then on.' AS hint
FROM (SELECT COALESCE(g.rate, 0)::pg_catalog.numeric AS rate, COALESCE(g.needed, 0)::pg_catalog.numeric AS needed, g.present, g.free FROM idempotence.growth g) g
CROSS JOIN LATERAL (SELECT COALESCE((g.needed OPERATOR(pg_catalog.-) g.present) OPERATOR(pg_catalog.>) g.free, false)) f (too_much);

CREATE VIEW idempotence.check_size AS
SELECT 0 AS level,
       pg_catalog.format('%s, of which outcomes %s, of which those that outlived their segment %s', pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid))),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.~~) 'outcome%')),
         pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relname OPERATOR(pg_catalog.=) 'outcome_long'))) AS detail,
       NULL::pg_catalog.text AS hint
FROM pg_catalog.pg_class c
WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence') AND c.relkind OPERATOR(pg_catalog.=) 'r';

-- The view health, and idem_ready.

-- What one check finds. It does not wait long for a table that somebody has locked.
CREATE FUNCTION idempotence.look_at(name text, OUT level integer, OUT detail text, OUT hint text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET lock_timeout = '100ms'
AS $look_at$
BEGIN
  EXECUTE pg_catalog.format('SELECT c.level, c.detail, c.hint FROM idempotence.%I c', pg_catalog.concat('check_', pg_catalog.replace(name, ' ', '_')))
    INTO STRICT level, detail, hint;
END
$look_at$;

-- All checks, in their order. Each is looked at by itself, so that one that fails takes no other with it: a table may be
-- locked for long (VACUUM FULL), or be broken. The checks run with the rights of the extension's owner, since a monitor
-- may neither read the tables nor see what the backends of other roles do.
CREATE FUNCTION idempotence.checks(OUT name text, OUT level integer, OUT detail text, OUT hint text) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $checks$
BEGIN
  -- From here on all settings are known.
  PERFORM idempotence.setting('idempotence.wait');
  FOREACH name IN ARRAY '{worker,restarts,sweep,ring,holders,waiters,prepared transactions,deadlocks,lock table,leases,run out,suspended,client sessions,standing sessions,owners,restore,secret,unrecorded,coordinator,node,journals,settings,publications,persistence,clock,growth,size}'::pg_catalog.text[] LOOP
    BEGIN
      IF name OPERATOR(pg_catalog.=) 'settings' THEN
        -- It looks at the lock_timeout of the session, too. Nobody locks for long what it reads.
        SELECT c.level, c.detail, c.hint INTO STRICT level, detail, hint FROM idempotence.check_settings c;
      ELSE
        SELECT c.level, c.detail, c.hint INTO STRICT level, detail, hint FROM idempotence.look_at(name) c;
      END IF;
    EXCEPTION
      WHEN lock_not_available THEN
        level := 1;
        detail := 'could not be looked at: a table is locked';
        hint := 'Calls that need the table wait, too. Who has locked which table of the schema idempotence, and for how long? pg_locks tells.';
      WHEN object_not_in_prerequisite_state OR data_corrupted THEN
        -- The tables are those of another version than the library, or do not fit together: every request is refused.
        level := 2;
        detail := pg_catalog.format('could not be looked at: %s (%s)', SQLERRM, SQLSTATE);
        hint := 'Requests meet the same error. Was the library replaced? Then ALTER EXTENSION idempotence UPDATE. Else see docs/operations.md, Troubleshooting.';
      WHEN OTHERS THEN
        level := 1;
        detail := pg_catalog.format('could not be looked at: %s (%s)', SQLERRM, SQLSTATE);
        hint := 'Calls may meet the same error: docs/operations.md, Troubleshooting.';
    END;
    RETURN NEXT;
  END LOOP;
END
$checks$;

CREATE OR REPLACE VIEW idempotence.health WITH (security_barrier) AS
SELECT c.name,
       CASE c.level WHEN 0 THEN 'ok' WHEN 1 THEN 'warning' ELSE 'critical' END AS status,
       -- The collation that this column had in 1.0.0, since the columns of a view cannot change theirs.
       c.detail COLLATE pg_catalog."C" AS detail,
       CASE WHEN c.level OPERATOR(pg_catalog.>) 0 THEN c.hint END AS hint,
       c.level
FROM idempotence.checks() c;

CREATE FUNCTION idem_ready() RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $ready$
BEGIN
  IF pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
    RETURN false;
  END IF;
  PERFORM idempotence.look_whether_ready();
  RETURN true;
EXCEPTION
  -- An error would tell a probe nothing.
  WHEN OTHERS THEN
    RETURN false;
END
$ready$;

-- Who may do what. PUBLIC may do nothing. idem_grant grants a role one of three levels.

-- The functions of this extension, and the level that a role needs to execute them: a level, or all of them, for what
-- the views of every level call. A function that only the extension's owner may execute has no level.
CREATE OR REPLACE VIEW idempotence.function_level AS
SELECT p.oid AS function,
       CASE WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{idem_forget,idem_forget_prefix,idem_purge_audit,idem_import,import_begin,import_row,import_end,
              idem_force_release,idem_force_record,idem_set_persistence,idem_accept_restore,idem_stats_reset,idem_sweep,sweep_step,note_sweep}'::pg_catalog.name[]) THEN 'admin'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{at_work_by_role,holders,advisory_holders,
              naptime,max_sessions_per_role,launcher,is_visited,last_sweep,checks}'::pg_catalog.name[]) THEN 'monitor'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY (
              '{idem_begin,idem_claim,idem_record,idem_checkpoint,idem_extend,idem_release,idem_settle,idem_lookup,idem_once,idem_once_many,idem_redact,idem_redact_prefix,
                idem_export,idem_run,
                idem_create_session,idem_alter_session,idem_drop_session,idem_create_journal,
                idem_register,idem_heartbeat,idem_ack,idem_allocate,idem_position,idem_close,
                idem_generate_id,idem_generate_ids,idem_key,idem_fingerprint}'::pg_catalog.name[]) THEN 'user'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{idem_ready,idem_node,idem_explain,idem_outcomes,at_work,leases,retention,up_since,stats,held_requests,errors}'::pg_catalog.name[]) THEN 'all'
       END AS level
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                           AND d.refobjid OPERATOR(pg_catalog.=) e.oid
                           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence';

-- The views and tables of this extension, and the level that a role needs to read them. The rest has no level.
CREATE VIEW idempotence.relation_level AS
SELECT c.oid AS relation,
       CASE WHEN c.relname OPERATOR(pg_catalog.=) ANY ('{audit}'::pg_catalog.name[]) THEN 'admin'
            WHEN c.relname OPERATOR(pg_catalog.=) ANY ('{segments,health}'::pg_catalog.name[]) THEN 'monitor'
            WHEN c.relname OPERATOR(pg_catalog.=) ANY (
              '{sessions,outcomes,unfinished,in_flight,stats,errors,shown_at_work,shown_leases}'::pg_catalog.name[]) THEN 'all'
       END AS level
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                           AND d.refobjid OPERATOR(pg_catalog.=) e.oid
                           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v}'::pg_catalog."char"[]);

CREATE OR REPLACE FUNCTION idem_grant(role regrole, level text DEFAULT 'user') RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $grant$
#variable_conflict use_variable
DECLARE
  granted  pg_catalog.text[] := CASE WHEN level OPERATOR(pg_catalog.=) 'user' THEN '{all,user}'
                                     WHEN level OPERATOR(pg_catalog.=) 'monitor' THEN '{all,monitor}'
                                     WHEN level OPERATOR(pg_catalog.=) 'admin' THEN '{all,user,monitor,admin}' END;
  function pg_catalog.regprocedure;
  relation pg_catalog.regclass;
BEGIN
  IF role IS NULL OR level IS NULL THEN
    RAISE EXCEPTION 'argument "%" must not be null', CASE WHEN role IS NULL THEN 'role' ELSE 'level' END
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.',
            HINT = 'Name a role, and one of the levels user, monitor and admin.';
  ELSIF granted IS NULL THEN
    RAISE EXCEPTION 'level "%" does not exist', level
      USING ERRCODE = 'invalid_parameter_value', DETAIL = 'The levels are user, monitor and admin.',
            HINT = 'user works with requests and sessions, monitor reads the views of all sessions, admin does both, sweeps and repairs.';
  END IF;

  EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA idempotence TO %s', role);
  -- The name comes quoted where it needs that.
  IF '@extschema@' OPERATOR(pg_catalog.<>) 'public' THEN
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %s TO %s', '@extschema@', role);
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level OPERATOR(pg_catalog.=) ANY (granted) LOOP
    EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s', function, role);
  END LOOP;
  FOR relation IN SELECT r.relation FROM idempotence.relation_level r WHERE r.level OPERATOR(pg_catalog.=) ANY (granted) LOOP
    EXECUTE pg_catalog.format('GRANT SELECT ON %s TO %s', relation, role);
  END LOOP;
END
$grant$;

CREATE OR REPLACE FUNCTION idem_revoke(role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $revoke$
#variable_conflict use_variable
DECLARE
  function pg_catalog.regprocedure;
  relation pg_catalog.regclass;
BEGIN
  IF role IS NULL THEN
    RAISE EXCEPTION 'argument "role" must not be null'
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.', HINT = 'Name a role.';
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level IS NOT NULL LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM %s', function, role);
  END LOOP;
  FOR relation IN SELECT r.relation FROM idempotence.relation_level r WHERE r.level IS NOT NULL LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON %s FROM %s', relation, role);
  END LOOP;
  EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA idempotence FROM %s', role);
  IF '@extschema@' OPERATOR(pg_catalog.<>) 'public' THEN
    EXECUTE pg_catalog.format('REVOKE USAGE ON SCHEMA %s FROM %s', '@extschema@', role);
  END IF;
END
$revoke$;

-- Comments, as they are now -----------------------------------------------------------------------

-- The comments that psql shows with \df+, \dT+, \d+ and \dn+.

-- The schema gets a comment only if this extension made it. A schema that was there before may have its owner's own.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_depend d
             JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
             WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence'
               AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
               AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
               AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regnamespace('idempotence')) THEN
    COMMENT ON SCHEMA idempotence IS 'tables and views of extension idempotence';
  END IF;
END
$$;

COMMENT ON TYPE idem_ticket IS 'what is known of a request: the answer of idem_begin, idem_settle, idem_lookup and idem_run';
COMMENT ON COLUMN idem_ticket.status IS 'started: execute it; taken_over: look whether its effect happened, then go on; succeeded, failed, cancelled: it has its outcome; in_progress: another transaction is at work on it, or somebody has a lease of it; discarded: it was done or skipped, and its outcome is no longer kept; suspended: it stopped at a checkpoint; unknown: nothing is kept; not_here: nothing is on this standby yet';
COMMENT ON COLUMN idem_ticket.replayed IS 'true where the outcome is handed out instead of executing again';
COMMENT ON COLUMN idem_ticket.response IS 'the response that was recorded with the outcome';
COMMENT ON COLUMN idem_ticket.token IS 'what the holder of a lease completes the request with; null without a lease';
COMMENT ON COLUMN idem_ticket.attempt IS '1 with started, one more for each time that it was taken over; with cancelled, how many attempts there were; else null';
COMMENT ON COLUMN idem_ticket.point IS 'the point of the last checkpoint: where to go on';
COMMENT ON COLUMN idem_ticket.state IS 'the state that was saved with the checkpoint';
COMMENT ON COLUMN idem_ticket.recorded_at IS 'when the outcome was recorded';
COMMENT ON COLUMN idem_ticket.expires_at IS 'when the outcome expires; from then on the request counts as new; null: a client session''s, which keeps the newest; without an outcome, when the lease runs out';

COMMENT ON TYPE idem_session IS 'a client session: the answer of idem_register';
COMMENT ON COLUMN idem_session.session IS 'its name, to be given with each request';
COMMENT ON COLUMN idem_session.resumed IS 'whether it was there before';
COMMENT ON COLUMN idem_session.window_size IS 'how many replies of each stream it keeps, and how many requests of one can be in flight';
COMMENT ON COLUMN idem_session.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idem_session.expires_at IS 'when it ends at the earliest, without another sign of life';
COMMENT ON COLUMN idem_session.next_number IS 'where to go on numbering; 1 in a new session';

COMMENT ON TYPE idem_position IS 'where a stream of a client session stands: the answer of idem_position';
COMMENT ON COLUMN idem_position.last_number IS 'the greatest number that has an outcome; 0: none';
COMMENT ON COLUMN idem_position.next_number IS 'where to go on numbering; in strict ordering the only number that is accepted';
COMMENT ON COLUMN idem_position.acked IS 'all numbers up to here are answered or given up; 0: nothing was said';
COMMENT ON COLUMN idem_position.allocated IS 'all numbers up to here were handed out by idem_allocate; 0: none';

-- Requests. All overloads of a function have the same meaning.
COMMENT ON FUNCTION idem_begin(text, text, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, bigint, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_begin(text, uuid, jsonb, interval, text, bigint, bigint, interval) IS
  'begin a request: status started or taken_over means execute it and record, otherwise it gives the outcome, or in_progress';
COMMENT ON FUNCTION idem_record(text, text, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_record(text, bigint, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_record(text, uuid, jsonb, boolean, bigint, interval, text) IS
  'record the outcome of a request begun in this transaction; gives when the outcome expires';
COMMENT ON FUNCTION idem_checkpoint(text, text, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_checkpoint(text, bigint, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
COMMENT ON FUNCTION idem_checkpoint(text, uuid, text, jsonb, bigint, text) IS
  'save how far a begun request got, so that the transaction may commit; the next begin gives point and state back';
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
COMMENT ON FUNCTION idem_release(text, text, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_release(text, bigint, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_release(text, uuid, bigint, text) IS
  'give a begun request up: nothing is recorded, and a retry after this transaction executes it';
COMMENT ON FUNCTION idem_explain(text, text, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_explain(text, bigint, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_explain(text, uuid, text) IS
  'all that is known of a request: who is at work on it, its outcome, what is unfinished, its repairs, what a begin would answer and why, what to do next; never a payload, state or response';
COMMENT ON FUNCTION idem_outcomes(text, text, text, timestamptz, timestamptz, integer) IS
  'the outcomes of a session, that which was recorded last first: those whose key begins with prefix, that have this status, that were recorded since and before; at most so many';
COMMENT ON FUNCTION idem_lookup(text, text, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, bigint, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, uuid, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, suspended, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_once(text, text) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once(text, bigint) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once(text, uuid) IS
  'note a request in an inbox; gives true the first time and false afterwards';
COMMENT ON FUNCTION idem_once_many(text, anycompatiblearray) IS
  'note many requests in an inbox; gives those seen for the first time, once each, with their place in the array';
COMMENT ON FUNCTION idem_run(text, text, text, jsonb, text, interval, interval, text) IS
  'begin a request, execute a command with args as $1, record the first column of its row; gives the outcome';

-- Sessions.
COMMENT ON FUNCTION idem_create_session(text, interval, boolean, boolean, boolean, regrole, regrole, integer, text, text) IS
  'make a standing session: a named, owned series of requests with one policy';
COMMENT ON FUNCTION idem_alter_session(text, interval, boolean, regrole, regrole, integer, text) IS
  'change ttl, require_payload, owner or max_attempts of a session, lend it, or bind it to a node; null leaves as it is';
COMMENT ON FUNCTION idem_node() IS 'the name of this server: as the setting idempotence.node says, or made from the system''s identifier';
COMMENT ON FUNCTION idem_create_journal(text, text, regtype) IS
  'make a table that keeps the requests of sessions, to lie beside a tenant''s rows; or check that a table can';
COMMENT ON FUNCTION idem_drop_session(text) IS
  'drop a session; its outcomes stay until they expire, and are found again if it is made again';

-- Client sessions.
COMMENT ON FUNCTION idem_register(text, interval, integer, text, boolean, uuid, interval) IS
  'register a client: gives it a session, in which its requests are numbered; fences or resumes the former session of the same client';
COMMENT ON FUNCTION idem_heartbeat(text) IS
  'give a sign of life of a client session, as every request does too; gives when it would end now';
COMMENT ON FUNCTION idem_ack(text, bigint, text) IS
  'say that all numbers of a stream up to this one, inclusive, are answered or given up';
COMMENT ON FUNCTION idem_allocate(text, integer, text) IS
  'have n numbers of a stream handed out; gives the first';
COMMENT ON FUNCTION idem_position(text, text) IS
  'look up where a stream of a client session stands';
COMMENT ON FUNCTION idem_close(text) IS
  'end a client session; gives whether it was still alive';

-- Identifiers.
COMMENT ON FUNCTION idem_generate_id() IS 'give a fresh UUIDv7, to be a key';
COMMENT ON FUNCTION idem_generate_ids(integer) IS 'give n fresh UUIDv7 in rising order';
COMMENT ON FUNCTION idem_key(jsonb) IS
  'derive a key of 32 hexadecimal digits from content; equal jsonb gives the same key';
COMMENT ON FUNCTION idem_fingerprint(jsonb) IS 'give the fingerprint that a payload is compared by';

-- Rights and repair.
COMMENT ON FUNCTION idem_grant(regrole, text) IS
  'give a role what a level needs: user (requests and sessions), monitor (views), admin (both, and repair)';
COMMENT ON FUNCTION idem_revoke(regrole) IS 'take away what idem_grant gave a role, all levels';
COMMENT ON FUNCTION idem_forget(text, text, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, bigint, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_forget(text, uuid, text, text) IS
  'repair: delete the outcome, the checkpoint and the lease that ran out of a request, so that it may execute again; gives whether there was one';
COMMENT ON FUNCTION idem_redact(text, text, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_redact(text, bigint, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_redact(text, uuid, text, text) IS
  'take the response and the state of a request away and keep that it was done, so that it is not executed again; gives whether there was either';
COMMENT ON FUNCTION idem_forget_prefix(text, text, text, integer) IS
  'repair: idem_forget for the requests whose keys begin with a prefix, a bounded number in a call; gives how many, 0 when none is left';
COMMENT ON FUNCTION idem_redact_prefix(text, text, text, integer) IS
  'idem_redact for the requests whose keys begin with a prefix, a bounded number in a call; gives how many, 0 when none is left';
COMMENT ON FUNCTION idem_purge_audit(timestamptz, text) IS
  'delete the rows of the audit from before a moment; gives how many';
COMMENT ON FUNCTION idem_import(text, text, text) IS
  'take outcomes over from a query into a standing session; gives how many were imported, were there already, and have expired';
COMMENT ON FUNCTION idem_export(text, text, text) IS
  'give what is kept of the requests of a dropped session, for idem_import on the server where the session goes on';
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
COMMENT ON FUNCTION idem_accept_restore(text) IS
  'repair: give up what a restore brought without its session, so that new sessions can be made; gives whether there was anything to decide';

-- Sweeping.
COMMENT ON PROCEDURE idem_sweep() IS
  'sweep this database once, as the background worker does: empty and turn segments, delete what is not kept any longer';

-- Parts of functions and views, not to be called by users.
COMMENT ON FUNCTION idempotence.import_begin(text, text, text) IS 'internal to idem_import: begins an import, gives the statement that imports';
COMMENT ON FUNCTION idempotence.import_row(bigint, text, jsonb, boolean, timestamptz, timestamptz, jsonb, uuid, text, bigint, integer, timestamptz, timestamptz, text, jsonb) IS 'internal to idem_import: imports a row; 0: imported, 1: there already, 2: expired';
COMMENT ON FUNCTION idempotence.import_end() IS 'internal to idem_import: ends the import and notes it';
COMMENT ON FUNCTION idempotence.at_work() IS 'internal to the view sessions: the client sessions at work that the caller may see; none on a standby';
COMMENT ON FUNCTION idempotence.at_work_by_role() IS 'internal to the view health: how many client sessions each role has at work, and how many of them are silent for longer than their timeout; none on a standby';
COMMENT ON FUNCTION idempotence.up_since() IS 'internal to the views sessions and health: when the server came up; no session counts as silent from before';
COMMENT ON FUNCTION idempotence.holders(oid[], text[]) IS 'internal to the view segments: who else holds a lock of one of these modes, null: of any, on one of these relations';
COMMENT ON FUNCTION idempotence.advisory_holders(integer) IS 'internal to the view segments: who else holds an advisory lock with this objsubid in this database';
COMMENT ON FUNCTION idempotence.retention() IS 'the setting idempotence.retention, for the view sessions';
COMMENT ON FUNCTION idempotence.keep_grant(text) IS 'for the scripts of this extension: grant what roles had before; only for the owner of the extension';
COMMENT ON FUNCTION idempotence.note_restored() IS 'internal: trigger that notes what a restore puts into segments and sessions';
COMMENT ON FUNCTION idempotence.forget_cached() IS 'internal: backends read sessions and secret again after SQL wrote them';
COMMENT ON FUNCTION idempotence.sweep_step(text) IS 'internal to idem_sweep: a step, or a batch of it; whether there is more to do, null when another sweep is at work';
COMMENT ON FUNCTION idempotence.note_sweep() IS 'internal to idem_sweep: notes that a sweep by hand has ended';
COMMENT ON FUNCTION idempotence.last_sweep() IS 'for the view health: when this database was swept last';
COMMENT ON FUNCTION idempotence.launcher() IS 'for the view health: the process of the launcher; 0: it does not run, null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.is_visited() IS 'for the view health: whether the library is preloaded and the setting idempotence.databases names this database';
COMMENT ON FUNCTION idempotence.naptime() IS 'the setting idempotence.naptime, for the view health';
COMMENT ON FUNCTION idempotence.max_sessions_per_role() IS 'the setting idempotence.max_sessions_per_role, for the view health';
COMMENT ON FUNCTION idempotence.checks() IS 'for the view health: all checks, each looked at by itself';
COMMENT ON FUNCTION idempotence.look_at(text) IS 'internal to the view health: what one check finds';
COMMENT ON FUNCTION idempotence.setting(text) IS 'internal to the view health: the value of a setting, in its base unit; null: there is no such setting';
COMMENT ON FUNCTION idempotence.milliseconds(text) IS 'internal to the view health: what a text means as the value of a setting of time; null: nothing';
COMMENT ON FUNCTION idempotence.restarts(boolean) IS 'internal to the view health: how often the launcher was started anew, lately (within the last hour) or since the server came up; null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.deadlocks() IS 'internal to the view health: how many waits for locks of this extension ended in a deadlock within the last hour; null: the library is not preloaded';
COMMENT ON FUNCTION idempotence.clock_jump() IS 'internal to the view health: when the clock was set last; null: that is not known';
COMMENT ON FUNCTION idempotence.clock_jump_by() IS 'internal to the view health: by how much the clock was set forward, or back if it is negative';
COMMENT ON FUNCTION idempotence.lock_table_size() IS 'internal to the view health: the number of locks that the lock table is made for';
COMMENT ON FUNCTION idempotence.free_space() IS 'internal to the view health: the bytes that are free where outcomes are recorded; null: the system does not tell';
COMMENT ON FUNCTION idempotence.coordinator() IS 'internal to the view health: the library of a commit coordinator that can be asked for a two-phase commit; null: none is loaded';
COMMENT ON FUNCTION idempotence.digest_fits(uuid, uuid, text) IS 'internal to the view health: whether the key in use makes this digest of session and request';
COMMENT ON FUNCTION idempotence.last_page(text) IS 'internal to the view health: the beginning of the last page of a table';
COMMENT ON FUNCTION idempotence.look_whether_ready() IS 'internal to idem_ready: raises the error that every request would meet';
COMMENT ON FUNCTION idem_ready() IS 'whether a request can be begun here and now; for readiness probes';

-- Views.
COMMENT ON VIEW idempotence.sessions IS 'the standing sessions, without the dropped ones, and the client sessions, with the ended ones that are still known';
COMMENT ON COLUMN idempotence.sessions.session IS 'its name; that of a client session is its id and, after an @, the node where it was registered';
COMMENT ON COLUMN idempotence.sessions.owner IS 'the role that it belongs to: whoever has the privileges of this role may use, change, lend and drop it';
COMMENT ON COLUMN idempotence.sessions.kind IS 'standing; inbox: that one only deduplicates; or client';
COMMENT ON COLUMN idempotence.sessions.ttl IS 'how long its outcomes live; the setting idempotence.retention where it names none; null: a client session';
COMMENT ON COLUMN idempotence.sessions.require_payload IS 'whether each request must come with a payload';
COMMENT ON COLUMN idempotence.sessions.time_keys IS 'whether its keys must be UUIDv7, so that a key that is too old is refused';
COMMENT ON COLUMN idempotence.sessions.created_at IS 'when it was first made, or registered';
COMMENT ON COLUMN idempotence.sessions.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.sessions.ordering IS 'of a client session''s numbers: any or strict';
COMMENT ON COLUMN idempotence.sessions.window_size IS 'how many replies of each stream a client session keeps';
COMMENT ON COLUMN idempotence.sessions.timeout IS 'the longest silence that a client session outlasts';
COMMENT ON COLUMN idempotence.sessions.saved IS 'whether it survives a crash: a client session does from its first outcome on';
COMMENT ON COLUMN idempotence.sessions.last_seen IS 'a client session''s last sign of life; null: not at work, as after a crash until it is used again';
COMMENT ON COLUMN idempotence.sessions.expires_at IS 'when a client session ends at the earliest, without another sign of life';
COMMENT ON COLUMN idempotence.sessions.ended IS 'how a client session ended: closed, expired or fenced';
COMMENT ON COLUMN idempotence.sessions.ended_at IS 'when a client session ended';
COMMENT ON COLUMN idempotence.sessions.usable_by IS 'the role that a standing session is lent to: whoever has the privileges of this role may use it too; null: lent to nobody, or a client session';
COMMENT ON COLUMN idempotence.sessions.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.sessions.node IS 'the node that a standing session is bound to, null: none; the node where a client session was registered, null: with version 1.0.0';
COMMENT ON COLUMN idempotence.sessions.journal IS 'the table that keeps its requests; null: the extension does';

COMMENT ON VIEW idempotence.outcomes IS 'the outcomes that have not expired, and the replies of client sessions';
COMMENT ON COLUMN idempotence.outcomes.session IS 'the session''s name';
COMMENT ON COLUMN idempotence.outcomes.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.outcomes.status IS 'succeeded, failed, or cancelled: settled and never executed';
COMMENT ON COLUMN idempotence.outcomes.response IS 'the response, to those who may use the session; null to others';
COMMENT ON COLUMN idempotence.outcomes.response_bytes IS 'the size of the response as stored, in bytes';
COMMENT ON COLUMN idempotence.outcomes.fingerprint IS 'of the payload; null where none was given, and to those who may not use the session';
COMMENT ON COLUMN idempotence.outcomes.recorded_by IS 'the role that recorded it';
COMMENT ON COLUMN idempotence.outcomes.recorded_at IS 'when it was recorded';
COMMENT ON COLUMN idempotence.outcomes.expires_at IS 'when it expires; null: a reply, which is kept until it is overwritten';
COMMENT ON COLUMN idempotence.outcomes.segment IS 'N of the table outcome_N that it is in; null: it is in outcome_long, or is a reply of a client session';
COMMENT ON COLUMN idempotence.outcomes.stream IS 'the stream of a numbered request';
COMMENT ON COLUMN idempotence.outcomes.last IS 'the last number of a numbered request';

COMMENT ON VIEW idempotence.prepared IS 'internal to segments and health: the prepared transactions of this database';
COMMENT ON COLUMN idempotence.prepared.virtualtransaction IS 'what pg_locks calls it';
COMMENT ON COLUMN idempotence.prepared.gid IS 'what COMMIT PREPARED calls it';
COMMENT ON COLUMN idempotence.prepared.prepared IS 'since when';
COMMENT ON COLUMN idempotence.prepared.owner IS 'the role that prepared it';

COMMENT ON VIEW idempotence.held IS 'internal to segments: the locks that others hold in this database';
COMMENT ON COLUMN idempotence.held.locktype IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.held.relation IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.held.objsubid IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.held.mode IS 'as in pg_locks';
COMMENT ON COLUMN idempotence.held.holder IS 'who holds it, in words';

COMMENT ON VIEW idempotence.missing IS 'internal to health and to the making of sessions: the tables that a restore has left out';
COMMENT ON COLUMN idempotence.missing.missing IS 'their names; null: none';

COMMENT ON FUNCTION idempotence.stats() IS 'internal to the view stats';
COMMENT ON VIEW idempotence.stats IS 'what was counted, a line for each standing session and for the client sessions of each role; needs the library preloaded';
COMMENT ON COLUMN idempotence.stats.session IS 'the standing session; null for the client sessions of a role';
COMMENT ON COLUMN idempotence.stats.owner IS 'the owner of the session or of the client sessions; null: all that has no line of its own any more';
COMMENT ON COLUMN idempotence.stats.kind IS 'standing, inbox, client: all client sessions of the owner, or other: sessions whose line gave way to another, or that are forgotten';
COMMENT ON COLUMN idempotence.stats.started IS 'begins and claims that gave the caller the request to execute, from the beginning or from a checkpoint. Like all counters it has calls that were answered, whatever became of their transactions';
COMMENT ON COLUMN idempotence.stats.taken_over IS 'begins that gave the caller a request whose former holder''s lease had run out; not counted in started';
COMMENT ON COLUMN idempotence.stats.replayed IS 'begins, settles and claims (ID011) that were answered with an outcome recorded before; in an inbox keys that were seen before, also earlier in the same call. A lookup, and a record repeated with its token, are not counted';
COMMENT ON COLUMN idempotence.stats.recorded IS 'outcomes recorded as succeeded, by a repair too, and also if their transaction was rolled back; in an inbox keys seen for the first time';
COMMENT ON COLUMN idempotence.stats.failed IS 'outcomes recorded as failed; those given up after too many attempts included, unless a claim found that, which takes it back';
COMMENT ON COLUMN idempotence.stats.cancelled IS 'requests that a settle has recorded as never to be executed, or found in a client session that has ended';
COMMENT ON COLUMN idempotence.stats.released IS 'requests given up by their holder';
COMMENT ON COLUMN idempotence.stats.in_progress IS 'begins, settles and claims (55P03) that were told that another holder has the request';
COMMENT ON COLUMN idempotence.stats.mismatched IS 'ID001 of a call on a request: it has another payload';
COMMENT ON COLUMN idempotence.stats.discarded IS 'ID003 of a call on a request: the answer is no longer kept';
COMMENT ON COLUMN idempotence.stats.fenced IS 'ID005 of a call on a request: the caller was superseded. ID005 of calls on a client session alone, such as idem_heartbeat, is not counted';
COMMENT ON COLUMN idempotence.stats.out_of_sequence IS 'ID006 of a call on a request: the number comes too early or overlaps';
COMMENT ON COLUMN idempotence.stats.unrecorded IS 'requests begun and not recorded, each one for which a commit was refused (ID008) or warned of; nothing if idempotence.unrecorded is off';
COMMENT ON COLUMN idempotence.stats.waits IS 'calls that waited for a transaction or a lease that has the request, each once, from when the wait begins and however it ends';
COMMENT ON COLUMN idempotence.stats.wait_ms IS 'how long they waited, in milliseconds. A backend that is terminated while it waits loses the length of that wait';
COMMENT ON COLUMN idempotence.stats.swept IS 'outcomes that the sweep has found expired and removed, those of client sessions that ended included; what it moves is not counted';
COMMENT ON COLUMN idempotence.stats.since IS 'since when the line counts';
COMMENT ON FUNCTION idem_stats_reset() IS 'sets the counters of this database to 0; gives the moment';
COMMENT ON FUNCTION idempotence.errors() IS 'internal to the view errors';
COMMENT ON VIEW idempotence.errors IS 'the newest errors of class ID, the newest first; needs the library preloaded';
COMMENT ON COLUMN idempotence.errors.at IS 'when it was raised';
COMMENT ON COLUMN idempotence.errors.session IS 'the session that it tells of';
COMMENT ON COLUMN idempotence.errors.stream IS 'the stream of the request';
COMMENT ON COLUMN idempotence.errors.request IS 'the request that it tells of';
COMMENT ON COLUMN idempotence.errors.role IS 'the role that was current';
COMMENT ON COLUMN idempotence.errors.sqlstate IS 'its SQLSTATE';
COMMENT ON COLUMN idempotence.errors.application IS 'the application_name';
COMMENT ON COLUMN idempotence.errors.pid IS 'the process';
COMMENT ON FUNCTION idempotence.held_requests() IS 'internal to the view in_flight';
COMMENT ON VIEW idempotence.request_locks IS 'internal to the view in_flight: the locks of requests';
COMMENT ON COLUMN idempotence.request_locks.classid IS 'half of the lock''s id';
COMMENT ON COLUMN idempotence.request_locks.objid IS 'the other half';
COMMENT ON COLUMN idempotence.request_locks.waiters IS 'how many wait for it';
COMMENT ON COLUMN idempotence.request_locks.waited_for_since IS 'since when the first of them waits';
COMMENT ON COLUMN idempotence.request_locks.prepared IS 'the gid of the prepared transaction that has it';
COMMENT ON COLUMN idempotence.request_locks.prepared_at IS 'when that was prepared';
COMMENT ON COLUMN idempotence.request_locks.prepared_by IS 'the role that prepared it';
COMMENT ON VIEW idempotence.in_flight IS 'requests that transactions hold now; needs the library preloaded';
COMMENT ON COLUMN idempotence.in_flight.session IS 'the session';
COMMENT ON COLUMN idempotence.in_flight.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.in_flight.request IS 'the key or number; null: there was no room for the name';
COMMENT ON COLUMN idempotence.in_flight.pid IS 'the process that holds it; null: a prepared transaction does';
COMMENT ON COLUMN idempotence.in_flight.role IS 'the role that was current when it was begun';
COMMENT ON COLUMN idempotence.in_flight.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.in_flight.client IS 'the address of the holder''s client; null: a local socket';
COMMENT ON COLUMN idempotence.in_flight.since IS 'when it was begun';
COMMENT ON COLUMN idempotence.in_flight.state IS 'begun; saved: it has a checkpoint or a lease; recorded: it is done at the commit; released: given up';
COMMENT ON COLUMN idempotence.in_flight.waiters IS 'how many processes wait for it';
COMMENT ON COLUMN idempotence.in_flight.longest_wait IS 'how long the first of them has been waiting';
COMMENT ON COLUMN idempotence.in_flight.prepared IS 'the gid of the prepared transaction that holds it';
COMMENT ON COLUMN idempotence.in_flight.requests IS '1; in a row without names: how many more requests the transaction holds';
COMMENT ON VIEW idempotence.shown_at_work IS 'internal to at_work(): the client sessions at work that the reader may see; of others than monitors, those that the reader owns';
COMMENT ON COLUMN idempotence.shown_at_work.id IS 'its id';
COMMENT ON COLUMN idempotence.shown_at_work.created_at IS 'when it was registered';
COMMENT ON COLUMN idempotence.shown_at_work.last_seen IS 'its last sign of life';
COMMENT ON COLUMN idempotence.shown_at_work.owner IS 'the role that registered it';
COMMENT ON COLUMN idempotence.shown_at_work.window_size IS 'how many replies of each stream it keeps';
COMMENT ON COLUMN idempotence.shown_at_work.ordering IS 'of its numbers: a (any) or s (strict)';
COMMENT ON COLUMN idempotence.shown_at_work.request_id IS 'the id of its registration';
COMMENT ON COLUMN idempotence.shown_at_work.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idempotence.shown_at_work.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.shown_at_work.node IS 'the node where it was registered';

COMMENT ON VIEW idempotence.shown_leases IS 'internal to leases(): the leases that the reader may see; of others than monitors, those of sessions that the reader may use';
COMMENT ON COLUMN idempotence.shown_leases.session IS 'the id of the session';
COMMENT ON COLUMN idempotence.shown_leases.stream IS 'the stream; empty: a key, or the session''s own numbering';
COMMENT ON COLUMN idempotence.shown_leases.request IS 'the key, or the first number';
COMMENT ON COLUMN idempotence.shown_leases.last IS 'the last number of a numbered request';
COMMENT ON COLUMN idempotence.shown_leases.leased_until IS 'when it runs out or ran out';
COMMENT ON COLUMN idempotence.shown_leases.holder IS 'the role that has it, or had it last';
COMMENT ON COLUMN idempotence.shown_leases.application IS 'the application_name of the holder';
COMMENT ON COLUMN idempotence.shown_leases.attempt IS '1 for the first holder, one more for each that took over';
COMMENT ON COLUMN idempotence.shown_leases.begun_at IS 'when the holder was given it';
COMMENT ON FUNCTION idempotence.leases() IS 'internal to the views sessions and unfinished: the leases that the caller may see; none on a standby where they are unlogged';
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
COMMENT ON VIEW idempotence.segments IS 'the ring: three tables that outcomes are recorded in by turns';
COMMENT ON COLUMN idempotence.segments.segment IS 'N of the table outcome_N';
COMMENT ON COLUMN idempotence.segments.state IS 'current: outcomes are recorded there; closing: somebody may still be recording there; closed: kept until due_at; empty';
COMMENT ON COLUMN idempotence.segments.opened_at IS 'since when it is, or was, the current one';
COMMENT ON COLUMN idempotence.segments.closed_at IS 'since when surely nobody records there';
COMMENT ON COLUMN idempotence.segments.keep IS 'how long it is left alone from closed_at on: the ttl that no more than one in eight of the outcomes recorded exceeds, and six minutes; longer where many still live then';
COMMENT ON COLUMN idempotence.segments.due_at IS 'when its next state is due: to be turned away from, to be closed, to be emptied; null where nothing is in it';
COMMENT ON COLUMN idempotence.segments.outcomes IS 'how many outcomes are in it, expired ones too, as last estimated by VACUUM or ANALYZE';
COMMENT ON COLUMN idempotence.segments.bytes IS 'its size with index and TOAST table';
COMMENT ON COLUMN idempotence.segments.held_by IS 'who holds a lock that keeps it from its next state';

COMMENT ON VIEW idempotence.upkeep IS 'internal to health: what its checks of the sweep have in common';
COMMENT ON COLUMN idempotence.upkeep.launcher IS 'the process of the launcher; 0: it does not run, null: the library is not preloaded';
COMMENT ON COLUMN idempotence.upkeep.last_sweep IS 'when this database was swept last';
COMMENT ON COLUMN idempotence.upkeep.standby IS 'whether this is a standby';
COMMENT ON COLUMN idempotence.upkeep.now IS 'the present moment';
COMMENT ON COLUMN idempotence.upkeep.visited IS 'whether the worker is to visit this database';
COMMENT ON COLUMN idempotence.upkeep.late IS 'after how long a sweep is late';
COMMENT ON COLUMN idempotence.upkeep.since IS 'the moment that lateness counts from';
COMMENT ON VIEW idempotence.holding IS 'internal to health: the transactions that hold locks on requests and sessions';
COMMENT ON COLUMN idempotence.holding.pid IS 'the process; null: a prepared transaction';
COMMENT ON COLUMN idempotence.holding.virtualtransaction IS 'what pg_locks calls it';
COMMENT ON COLUMN idempotence.holding.requests IS 'how many requests it holds';
COMMENT ON VIEW idempotence.blind IS 'internal to health: whether the leases cannot be seen here';
COMMENT ON COLUMN idempotence.blind.blind IS 'true on a standby where leases are unlogged';
COMMENT ON VIEW idempotence.sample IS 'internal to health: some outcomes of each table';
COMMENT ON COLUMN idempotence.sample.digest IS 'the digest of the request';
COMMENT ON COLUMN idempotence.sample.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.sample.key IS 'the request';
COMMENT ON COLUMN idempotence.sample.recorded_at IS 'when it was recorded';
COMMENT ON VIEW idempotence.effective IS 'internal to health: settings that matter to requests, for the server and for each role';
COMMENT ON COLUMN idempotence.effective.role IS 'the role; 0: all that have none of their own';
COMMENT ON COLUMN idempotence.effective.name IS 'the setting';
COMMENT ON COLUMN idempotence.effective.value IS 'its value';
COMMENT ON COLUMN idempotence.effective.place IS 'where that is set, in words';
COMMENT ON VIEW idempotence.segment_starts IS 'internal to health: when the first outcome of each segment was recorded';
COMMENT ON COLUMN idempotence.segment_starts.segment IS 'N of the table outcome_N';
COMMENT ON COLUMN idempotence.segment_starts.is_current IS 'whether it is the current one';
COMMENT ON COLUMN idempotence.segment_starts.bytes IS 'its size with index and TOAST table';
COMMENT ON COLUMN idempotence.segment_starts.keep IS 'how long it is left alone once it is closed';
COMMENT ON COLUMN idempotence.segment_starts.first IS 'when the first outcome in it was recorded; null: it has none';
COMMENT ON VIEW idempotence.growth IS 'internal to health: what outcomes take, and will take';
COMMENT ON COLUMN idempotence.growth.rate IS 'bytes in a second';
COMMENT ON COLUMN idempotence.growth.needed IS 'bytes that the segments take once the ring has turned at this rate';
COMMENT ON COLUMN idempotence.growth.present IS 'bytes that the segments take now';
COMMENT ON COLUMN idempotence.growth.free IS 'bytes that are free; null: unknown';
COMMENT ON VIEW idempotence.health IS 'one row a check: whether all is well, and what to do if not';
COMMENT ON COLUMN idempotence.health.name IS 'what is checked';
COMMENT ON COLUMN idempotence.health.level IS '0: ok, 1: warning, 2: critical';
COMMENT ON COLUMN idempotence.health.status IS 'the level as a word: ok, warning or critical';
COMMENT ON COLUMN idempotence.health.detail IS 'what was found';
COMMENT ON COLUMN idempotence.health.hint IS 'what to do; null where nothing is to be done';
-- The views of the checks all have the same columns.
DO $$
DECLARE
  check_ pg_catalog.regclass;
BEGIN
  FOR check_ IN SELECT c.oid FROM pg_catalog.pg_class c
                WHERE c.relnamespace OPERATOR(pg_catalog.=) 'idempotence'::pg_catalog.regnamespace AND c.relkind OPERATOR(pg_catalog.=) 'v'
                  AND c.relname OPERATOR(pg_catalog.~~) 'check\_%' LOOP
    EXECUTE pg_catalog.format('COMMENT ON VIEW %s IS ''internal to health: one of its rows''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.level IS ''0: ok, 1: warning, 2: critical''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.detail IS ''what was found''', check_);
    EXECUTE pg_catalog.format('COMMENT ON COLUMN %s.hint IS ''what to do if the level is not 0''', check_);
  END LOOP;
END
$$;

COMMENT ON VIEW idempotence.function_level IS 'the functions of this extension and the level that idem_grant gives them with';
COMMENT ON COLUMN idempotence.function_level.function IS 'its oid';
COMMENT ON COLUMN idempotence.function_level.level IS 'user, monitor or admin; all: each of them; null for what only the extension''s owner may call';

COMMENT ON VIEW idempotence.relation_level IS 'the tables and views of this extension and the level that idem_grant lets them be read with';
COMMENT ON COLUMN idempotence.relation_level.relation IS 'its oid';
COMMENT ON COLUMN idempotence.relation_level.level IS 'user, monitor or admin; all: each of them; null for what only the extension''s owner may read';

-- Tables. No role has a privilege on them, except that idem_grant lets admins read audit.
COMMENT ON TABLE idempotence.session IS 'standing sessions, dropped ones included, and client sessions from their first outcome on';
COMMENT ON COLUMN idempotence.session.id IS 'the same through drop and new creation';
COMMENT ON COLUMN idempotence.session.created_at IS 'when it was first made';
COMMENT ON COLUMN idempotence.session.ended_at IS 'when it was dropped, closed, fenced or ran out; null while it lives';
COMMENT ON COLUMN idempotence.session.owner IS 'the role that it belongs to';
COMMENT ON COLUMN idempotence.session.window_size IS 'how many replies of each stream a client session keeps; null: a standing session';
COMMENT ON COLUMN idempotence.session.ordering IS 'of a client session''s numbers; a: any, s: strict';
COMMENT ON COLUMN idempotence.session.ended IS 'how a client session ended; c: closed, e: expired, f: fenced; a capital: without ever being saved';
COMMENT ON COLUMN idempotence.session.request_id IS 'the id that a client session was registered with';
COMMENT ON COLUMN idempotence.session.timeout IS 'the longest silence that a client session outlasts';
COMMENT ON COLUMN idempotence.session.client IS 'the name that a client registered under';
COMMENT ON COLUMN idempotence.session.usable_by IS 'the role that a standing session is lent to; null: nobody';
COMMENT ON COLUMN idempotence.session.max_attempts IS 'after how many attempts a request whose lease runs out is given up; null: never';
COMMENT ON COLUMN idempotence.session.node IS 'the node that a standing session is bound to, or where a client session was registered; null: none, or with version 1.0.0';
COMMENT ON COLUMN idempotence.session.journal IS 'the table that keeps its requests; null: ours do';
COMMENT ON COLUMN idempotence.session.require_payload IS 'whether each request must come with a payload';
COMMENT ON COLUMN idempotence.session.inbox IS 'whether it only deduplicates';
COMMENT ON COLUMN idempotence.session.time_keys IS 'whether its keys must be UUIDv7';
COMMENT ON COLUMN idempotence.session.ttl IS 'how long its outcomes live; null: the setting idempotence.retention';
COMMENT ON COLUMN idempotence.session.name IS 'what callers know it by; null: a client session, known by its id and node';

COMMENT ON TABLE idempotence.session_live IS 'client sessions at work; unlogged, so empty after a crash and on a standby';
COMMENT ON COLUMN idempotence.session_live.id IS 'what its client knows it by, with the node';
COMMENT ON COLUMN idempotence.session_live.created_at IS 'when it was registered';
COMMENT ON COLUMN idempotence.session_live.last_seen IS 'its last sign of life; one is written when the last is older than an eighth of the timeout';
COMMENT ON COLUMN idempotence.session_live.owner IS 'the role that registered it';
COMMENT ON COLUMN idempotence.session_live.window_size IS 'how many replies of each stream are kept';
COMMENT ON COLUMN idempotence.session_live.ordering IS 'of its numbers; a: any, s: strict';
COMMENT ON COLUMN idempotence.session_live.request_id IS 'the id that it was registered with';
COMMENT ON COLUMN idempotence.session_live.timeout IS 'the longest silence that it outlasts';
COMMENT ON COLUMN idempotence.session_live.client IS 'the name that its client registered under';
COMMENT ON COLUMN idempotence.session_live.node IS 'the node where it was registered; null: with version 1.0.0';

COMMENT ON TABLE idempotence.reply IS 'outcomes of client sessions: the newest of each stream, in as many slots as the window is wide';
COMMENT ON COLUMN idempotence.reply.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.reply.first IS 'the request''s number, or the first of its numbers';
COMMENT ON COLUMN idempotence.reply.last IS 'the last of its numbers';
COMMENT ON COLUMN idempotence.reply.recorded_at IS 'when it was recorded, or dropped';
COMMENT ON COLUMN idempotence.reply.recorded_by IS 'the role that recorded, or dropped it';
COMMENT ON COLUMN idempotence.reply.slot IS 'where numbers come in any order: the number modulo the window; else the slot of the oldest request that was kept';
COMMENT ON COLUMN idempotence.reply.class IS 's: succeeded, f: failed, c: cancelled, d: dropped, with nothing left but that it was done';
COMMENT ON COLUMN idempotence.reply.stream IS 'the stream''s name; empty: the session''s own numbering';
COMMENT ON COLUMN idempotence.reply.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.reply.token IS 'of the lease that it was recorded with; null without a lease';
COMMENT ON COLUMN idempotence.reply.response IS 'what it answered';

COMMENT ON TABLE idempotence.stream IS 'what clients said of their streams';
COMMENT ON COLUMN idempotence.stream.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.stream.acked IS 'all numbers up to here are answered or given up';
COMMENT ON COLUMN idempotence.stream.allocated IS 'all numbers up to here were handed out';
COMMENT ON COLUMN idempotence.stream.stream IS 'the stream''s name';

DO $$
DECLARE
  segment text;
  note    record;
BEGIN
  FOREACH segment IN ARRAY '{outcome_0,outcome_1,outcome_2,outcome_long}'::text[] LOOP
    EXECUTE pg_catalog.format('COMMENT ON TABLE idempotence.%I IS %L', segment,
      CASE WHEN segment OPERATOR(pg_catalog.=) 'outcome_long' THEN 'outcomes that outlived their segment; moved here by the sweep'
           ELSE 'outcomes, one of three segments; table segment tells which one is written' END);
    FOR note IN SELECT * FROM (VALUES
      ('digest',      'keyed digest of session and key, what a request is looked up and locked by'),
      ('session',     'the session''s id'),
      ('recorded_at', 'when it was recorded'),
      ('expires_at',  'when it expires; a row that has expired counts as absent'),
      ('recorded_by', 'the role that recorded it'),
      ('class',       's: succeeded, f: failed, c: cancelled'),
      ('key',         'the request''s key'),
      ('fingerprint', 'of the payload; null where none was given'),
      ('token',       'of the lease that it was recorded with; null without a lease'),
      ('response',    'what it answered')) AS n (column_name, meaning)
    LOOP
      EXECUTE pg_catalog.format('COMMENT ON COLUMN idempotence.%I.%I IS %L', segment, note.column_name, note.meaning);
    END LOOP;
  END LOOP;
END
$$;

COMMENT ON TABLE idempotence.segment IS 'where the ring of the three outcome tables stands';
COMMENT ON COLUMN idempotence.segment.opened_at IS 'since when it is, or was, the one written';
COMMENT ON COLUMN idempotence.segment.closed_at IS 'since when surely nobody writes it';
COMMENT ON COLUMN idempotence.segment.keep_us IS 'how long it is kept once closed before it is looked through, in microseconds; 0: by the setting idempotence.retention';
COMMENT ON COLUMN idempotence.segment.number IS 'N of the table outcome_N';
COMMENT ON COLUMN idempotence.segment.current IS 'whether outcomes are recorded there';
COMMENT ON COLUMN idempotence.segment.sessions_at IS 'in the first row: when sessions were restored last, or the ring was made';
COMMENT ON COLUMN idempotence.segment.long_lived IS 'in the first row: whether outcomes may be in outcome_long';
COMMENT ON COLUMN idempotence.segment.opening IS 'whether it is announced as the next one to be current';
COMMENT ON COLUMN idempotence.segment.looked_at IS 'when it was last looked into, for how long its outcomes live';
COMMENT ON COLUMN idempotence.segment.restored IS 'whether something may have been put there by SQL, as a restore does';
COMMENT ON COLUMN idempotence.segment.looked_to IS 'how many of its pages were looked through so far, and what lives in them moved to outcome_long';
COMMENT ON COLUMN idempotence.segment.looked_in IS 'the file that these pages are in';

COMMENT ON TABLE idempotence.sweep IS 'what the sweep remembers; it has no row after a crash or a failover';
COMMENT ON COLUMN idempotence.sweep.done_at IS 'when the step came to the end of its table last';
COMMENT ON COLUMN idempotence.sweep.place IS 'how far it has come since: page and item; 0: not begun again';
COMMENT ON COLUMN idempotence.sweep.step IS 'the step, or by hand: all of them by CALL idem_sweep()';

COMMENT ON TABLE idempotence.restore IS 'that rows were restored, until it is known that their sessions were as well';
COMMENT ON COLUMN idempotence.restore.noted_at IS 'when they were restored';
COMMENT ON COLUMN idempotence.restore.looked_at IS 'when the sweep began to look through them; null: not since then';
COMMENT ON COLUMN idempotence.restore.place IS 'how far it has come: table, page and item; 0: it is not at it';
COMMENT ON COLUMN idempotence.restore.orphans IS 'the number of rows without a session that it met first; 0: none; null: not looked through to the end';
COMMENT ON COLUMN idempotence.restore.brought IS 'the table that was restored';

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
COMMENT ON TABLE idempotence.checkpoint IS 'how far requests got that have no outcome yet';
COMMENT ON COLUMN idempotence.checkpoint.digest IS 'keyed digest of session and key, what a request is looked up and locked by';
COMMENT ON COLUMN idempotence.checkpoint.session IS 'the session''s id';
COMMENT ON COLUMN idempotence.checkpoint.written_at IS 'when it was written; in a standing session it counts for the session''s ttl from then on';
COMMENT ON COLUMN idempotence.checkpoint.request IS 'the request''s key or number';
COMMENT ON COLUMN idempotence.checkpoint.last IS 'the last of a numbered request''s numbers';
COMMENT ON COLUMN idempotence.checkpoint.stream IS 'the request''s stream; empty in a standing session';
COMMENT ON COLUMN idempotence.checkpoint.point IS 'a name for where to go on';
COMMENT ON COLUMN idempotence.checkpoint.fingerprint IS 'of the payload; null where none was given';
COMMENT ON COLUMN idempotence.checkpoint.state IS 'what going on needs';

COMMENT ON TABLE idempotence.secret IS 'the key of the digests: the row in use counts; whoever reads it can compute what locks other roles'' requests';
COMMENT ON COLUMN idempotence.secret.in_use_since IS 'when the first session was made under it; null: not in use';
COMMENT ON COLUMN idempotence.secret.key IS '32 random bytes';

COMMENT ON TABLE idempotence.audit IS 'repairs and decisions, those of a session''s owner too; idem_purge_audit deletes old rows';
COMMENT ON COLUMN idempotence.audit.at IS 'when';
COMMENT ON COLUMN idempotence.audit.by IS 'the role that did it';
COMMENT ON COLUMN idempotence.audit.action IS 'what was done';
COMMENT ON COLUMN idempotence.audit.session IS 'the session''s name';
COMMENT ON COLUMN idempotence.audit.request IS 'the request''s key';
COMMENT ON COLUMN idempotence.audit.reason IS 'why, as given';
COMMENT ON COLUMN idempotence.audit.found IS 'what was there';

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
-- of a former one is granted to the roles that had all functions of that name. A function with a new name, or of another
-- level than before, is granted to the roles that had all functions of its level. Level all is what every level has.
DO $$
DECLARE
  new     record;
  grantee record;
BEGIN
  FOR new IN
    SELECT f.function, p.proname AS name, f.level, NOT EXISTS (SELECT FROM pg_temp.upgrade_granted g WHERE g.function OPERATOR(pg_catalog.=) f.function) AS is_new
    FROM idempotence.function_level f JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
    WHERE f.level OPERATOR(pg_catalog.=) 'all' OR NOT EXISTS (SELECT FROM pg_temp.upgrade_granted g WHERE g.function OPERATOR(pg_catalog.=) f.function)
  LOOP
    IF new.is_new THEN
      EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', new.function::pg_catalog.regprocedure);
    END IF;
    FOR grantee IN
      WITH peers AS (
        SELECT g.function, g.level, g.grantee, g.is_grantable FROM pg_temp.upgrade_granted g
        WHERE CASE WHEN new.level OPERATOR(pg_catalog.=) 'all' THEN g.level OPERATOR(pg_catalog.=) ANY ('{user,monitor}'::pg_catalog.text[])
                   WHEN EXISTS (SELECT FROM pg_temp.upgrade_granted n WHERE n.name OPERATOR(pg_catalog.=) new.name)
                   THEN g.name OPERATOR(pg_catalog.=) new.name
                   ELSE g.level OPERATOR(pg_catalog.=) new.level END),
      of_a_level AS (
        SELECT p.grantee, pg_catalog.bool_and(p.is_grantable) AS is_grantable FROM peers p
        WHERE p.grantee IS NOT NULL
        GROUP BY p.grantee, CASE WHEN new.level OPERATOR(pg_catalog.=) 'all' THEN p.level END
        HAVING pg_catalog.count(DISTINCT p.function) OPERATOR(pg_catalog.=)
                 (SELECT pg_catalog.count(DISTINCT q.function) FROM peers q
                  WHERE new.level OPERATOR(pg_catalog.<>) 'all' OR q.level OPERATOR(pg_catalog.=) pg_catalog.min(p.level)))
      SELECT CASE l.grantee WHEN 0 THEN 'PUBLIC' ELSE l.grantee::pg_catalog.regrole::pg_catalog.text END AS name,
             CASE WHEN pg_catalog.bool_or(l.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END AS option
      FROM of_a_level l GROUP BY l.grantee
    LOOP
      PERFORM idempotence.keep_grant(pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s%s',
        new.function::pg_catalog.regprocedure, grantee.name, grantee.option));
    END LOOP;
  END LOOP;
END
$$;

-- What every level may read now is granted to whoever may look requests up, which level user has, and to whoever may read
-- the view health, which level monitor has.
DO $$
DECLARE
  new record;
BEGIN
  FOR new IN
    SELECT r.relation, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END AS grantee,
           CASE WHEN pg_catalog.bool_or(a.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END AS option
    FROM idempotence.relation_level r
    CROSS JOIN (SELECT a.grantee, a.is_grantable FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a
                WHERE c.oid OPERATOR(pg_catalog.=) 'idempotence.health'::pg_catalog.regclass
                  AND a.privilege_type OPERATOR(pg_catalog.=) 'SELECT' AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
                UNION ALL
                SELECT g.grantee, g.is_grantable FROM pg_temp.upgrade_granted g
                WHERE g.name OPERATOR(pg_catalog.=) 'idem_lookup' AND g.grantee IS NOT NULL) a
    WHERE r.level OPERATOR(pg_catalog.=) 'all'
    GROUP BY r.relation, a.grantee
  LOOP
    PERFORM idempotence.keep_grant(pg_catalog.format('GRANT SELECT ON %s TO %s%s', new.relation::pg_catalog.regclass, new.grantee, new.option));
  END LOOP;
END
$$;

DROP TABLE pg_temp.upgrade_granted;
