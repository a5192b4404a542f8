-- Types, schema and tables. Runs first: every function below names them.
--
-- Only the functions of this extension write these tables (by direct table access, see src/store/);
-- no role gets a privilege on them. Column order puts the fixed-width columns first, so that the
-- code that reads a row by position is also the code that reads it fastest.

DO $$
BEGIN
  IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
    RAISE EXCEPTION 'extension "idempotence" needs a database in encoding UTF8'
      USING ERRCODE = 'feature_not_supported',
            DETAIL = pg_catalog.format('Database "%s" has encoding %s: the same key would have other bytes for other clients.',
                                       pg_catalog.current_database(), pg_catalog.getdatabaseencoding()),
            HINT = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
  END IF;
  -- The schema may be there already (CREATE EXTENSION ... SCHEMA idempotence), but then it must not be
  -- somebody else's: who owns a schema can put objects in it that shadow ours.
  IF pg_catalog.to_regnamespace('idempotence') IS NULL THEN
    CREATE SCHEMA idempotence;
  ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
                    WHERE n.nspname OPERATOR(pg_catalog.=) 'idempotence'
                      AND (r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) CURRENT_USER)) THEN
    RAISE EXCEPTION 'schema "idempotence" belongs to another role'
      USING ERRCODE = 'insufficient_privilege',
            DETAIL = 'Who owns a schema can put objects in it that are taken for those of the extension.',
            HINT = 'Look at what is in it, then drop it, or ALTER SCHEMA idempotence OWNER TO CURRENT_USER.';
  END IF;
  -- For this script only. The ring relies on what heap does: TRUNCATE, a size of 0 when empty.
  PERFORM pg_catalog.set_config('default_table_access_method', 'heap', true);
END
$$;

CREATE TYPE idem_ticket AS (
  status      text,
  replayed    boolean,
  response    jsonb,
  token       bigint,
  attempt     integer,
  point       text,
  state       jsonb,
  recorded_at timestamptz,
  expires_at  timestamptz
);

CREATE TYPE idem_session AS (
  session     text,
  resumed     boolean,
  window_size integer,
  timeout     interval,
  expires_at  timestamptz,
  next_number bigint
);

CREATE TYPE idem_position AS (
  last_number bigint,
  next_number bigint,
  acked       bigint,
  allocated   bigint
);

-- Sessions that last. Standing ones have a name; a dropped one stays, with the moment of its end, so
-- that its name, made again, is the same series with the same id: its outcomes are found again. How near
-- it is to being forgotten is noted in ended and ended_at.
-- Client sessions have an ordering instead of a name. They come here with their first outcome, and
-- those that were fenced or had a request_id with their end, so that both are still known after it.
CREATE TABLE idempotence.session (
  id              uuid        NOT NULL,
  created_at      timestamptz NOT NULL,
  ended_at        timestamptz,
  owner           regrole     NOT NULL,
  window_size     integer,
  require_payload boolean     NOT NULL,
  inbox           boolean     NOT NULL,
  time_keys       boolean     NOT NULL,
  ordering        "char",
  ended           "char",
  request_id      uuid,
  ttl             interval,
  timeout         interval,
  name            text        COLLATE "C",
  client          text        COLLATE "C",
  usable_by       regrole,
  CONSTRAINT session_pkey PRIMARY KEY (id),
  CONSTRAINT session_name_key UNIQUE (name)
);
CREATE INDEX session_client_idx ON idempotence.session (owner, client, ended_at);
CREATE INDEX session_request_id_idx ON idempotence.session (request_id);
CREATE INDEX session_ended_at_idx ON idempotence.session (ended_at);
CREATE INDEX session_ended_idx ON idempotence.session (owner, ended);

-- Client sessions at work, and when each was last heard of. Unlogged: registering and signs of life
-- cost no WAL and no flush. No index covers last_seen, so that a sign of life is a HOT update.
CREATE UNLOGGED TABLE idempotence.session_live (
  id          uuid        NOT NULL,
  created_at  timestamptz NOT NULL,
  last_seen   timestamptz NOT NULL,
  owner       regrole     NOT NULL,
  window_size integer     NOT NULL,
  ordering    "char"      NOT NULL,
  request_id  uuid,
  timeout     interval    NOT NULL,
  client      text        COLLATE "C",
  CONSTRAINT session_live_pkey PRIMARY KEY (id)
) WITH (fillfactor = 50);
CREATE INDEX session_live_client_idx ON idempotence.session_live (owner, client);
CREATE INDEX session_live_request_id_idx ON idempotence.session_live (request_id);

-- The answers of client sessions, in so many slots a stream as the window is wide. A slot is
-- overwritten in its place (HOT, where the page has room: hence the fillfactor), so that a session
-- takes the same space however many requests it sends, and the number in it tells what was done.
CREATE TABLE idempotence.reply (
  session     uuid        NOT NULL,
  first       bigint      NOT NULL,
  last        bigint      NOT NULL,
  recorded_at timestamptz NOT NULL,
  recorded_by regrole     NOT NULL,
  slot        integer     NOT NULL,
  class       "char"      NOT NULL,
  stream      text        NOT NULL COLLATE "C",
  fingerprint uuid,
  token       bigint,
  response    jsonb,
  CONSTRAINT reply_pkey PRIMARY KEY (session, stream, slot)
) WITH (fillfactor = 50);

-- What a client said of a stream: up to where it has its answers, and which numbers it was given.
CREATE TABLE idempotence.stream (
  session   uuid   NOT NULL,
  acked     bigint NOT NULL,
  allocated bigint NOT NULL,
  stream    text   NOT NULL COLLATE "C",
  CONSTRAINT stream_pkey PRIMARY KEY (session, stream)
) WITH (fillfactor = 50);

-- Outcomes live in a ring of three segments: records go to the current one, look-ups see all
-- three, and an old one is emptied as a whole.
CREATE TABLE idempotence.outcome_0 (
  digest      uuid        NOT NULL,
  session     uuid        NOT NULL,
  recorded_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  recorded_by regrole     NOT NULL,
  class       "char"      NOT NULL,
  key         text        NOT NULL COLLATE "C",
  fingerprint uuid,
  token       bigint,
  response    jsonb,
  CONSTRAINT outcome_0_pkey PRIMARY KEY (digest)
);
CREATE TABLE idempotence.outcome_1 (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_1_pkey PRIMARY KEY (digest));
CREATE TABLE idempotence.outcome_2 (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_2_pkey PRIMARY KEY (digest));

-- The few that still live when their segment is to be emptied are moved here, and deleted one by one.
CREATE TABLE idempotence.outcome_long (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_long_pkey PRIMARY KEY (digest));
CREATE INDEX outcome_long_expires_at_idx ON idempotence.outcome_long (expires_at);

-- Where the ring stands. Not dumped: a restored cluster starts a fresh ring. Each segment is looked
-- through before it is emptied, whatever was put into it, and by whom.
CREATE TABLE idempotence.segment (
  opened_at   timestamptz NOT NULL,
  closed_at   timestamptz,
  keep_us     bigint      NOT NULL,
  sessions_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  looked_to   bigint      NOT NULL DEFAULT 0,
  looked_in   oid         NOT NULL DEFAULT 0,
  number      smallint    NOT NULL,
  current     boolean     NOT NULL,
  restored    boolean     NOT NULL DEFAULT true,
  looked_at   timestamptz,
  long_lived  boolean     NOT NULL DEFAULT false,
  CONSTRAINT segment_pkey PRIMARY KEY (number)
);
INSERT INTO idempotence.segment (number, current, opened_at, keep_us)
  SELECT n, n OPERATOR(pg_catalog.=) 0, pg_catalog.clock_timestamp(), 0 FROM pg_catalog.generate_series(0, 2) n;

CREATE TABLE idempotence.checkpoint (
  digest      uuid        NOT NULL,
  session     uuid        NOT NULL,
  written_at  timestamptz NOT NULL,
  request     text        NOT NULL COLLATE "C",
  point       text        NOT NULL,
  fingerprint uuid,
  state       jsonb,
  stream      text        NOT NULL COLLATE "C",
  last        bigint,
  CONSTRAINT checkpoint_pkey PRIMARY KEY (digest)
);

-- The key of the digests: whoever knew it could compute, and so block, another role's requests.
-- Row security without a policy hides it from pg_read_all_data too. A restore adds the row that the
-- restored digests were made with; the one in use counts.
CREATE TABLE idempotence.secret (
  in_use_since timestamptz,
  key          bytea       NOT NULL CHECK (pg_catalog.length(key) OPERATOR(pg_catalog.=) 32)
);
ALTER TABLE idempotence.secret ENABLE ROW LEVEL SECURITY;
-- Should somebody publish it, an update must find its row. No primary key: the same dump restored twice
-- may bring the same key twice.
ALTER TABLE idempotence.secret REPLICA IDENTITY FULL;
INSERT INTO idempotence.secret (key)
  SELECT pg_catalog.decode(pg_catalog.replace(pg_catalog.concat(pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid()), '-', ''), 'hex');

CREATE TABLE idempotence.audit (
  at      timestamptz NOT NULL,
  by      regrole     NOT NULL,
  action  text        NOT NULL,
  session text        NOT NULL,
  request text        NOT NULL,
  reason  text        NOT NULL,
  found   text        NOT NULL
);
-- A DBA may delete old rows, also where the table is published.
ALTER TABLE idempotence.audit REPLICA IDENTITY FULL;

-- What the sweep remembers, a row for each step that has to. Unlogged, for that is the use of it: a
-- crash or a failover empties it, and so the next sweep knows that there was one.
CREATE UNLOGGED TABLE idempotence.sweep (
  done_at timestamptz NOT NULL,
  place   bigint      NOT NULL,
  step    text        NOT NULL COLLATE "C",
  CONSTRAINT sweep_pkey PRIMARY KEY (step)
);

-- That rows were restored of which it is not known yet that their sessions were, too; empty where nothing
-- was. place is how far the look has come; orphans is what it has found; brought names the table that the
-- row tells of. Not dumped: a restore notes itself.
CREATE TABLE idempotence.restore (
  noted_at  timestamptz NOT NULL,
  looked_at timestamptz,
  place     bigint      NOT NULL DEFAULT 0,
  orphans   bigint,
  brought   text        NOT NULL COLLATE "C"
);
ALTER TABLE idempotence.restore REPLICA IDENTITY FULL;

-- What a dump must hold. Restored rows are added to what CREATE EXTENSION makes, so none of these
-- tables has a row at first, but for the secret.
SELECT pg_catalog.pg_extension_config_dump('idempotence.session', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.stream', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.reply', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_0', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_1', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_2', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_long', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.checkpoint', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.secret', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.audit', '');
