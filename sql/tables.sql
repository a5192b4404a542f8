-- Types, schema and tables. This script runs first, since everything that comes later names them.
--
-- Only the functions of this extension write these tables, mostly by direct table access (see src/store/). No role
-- gets a privilege on them, except that admins may read audit. In a table come first the columns of fixed width, the
-- widest first, since PostgreSQL finds a column fastest where none of variable width comes before it, and aligns none of
-- them. Last come those that are mostly NULL, so that a row mostly ends before them (see src/store/row.rs).

DO $$
BEGIN
  IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
    RAISE EXCEPTION 'extension "idempotence" needs a database in encoding UTF8'
      USING ERRCODE = 'feature_not_supported',
            DETAIL = pg_catalog.format('Database "%s" has encoding %s: the same key would have other bytes for other clients.',
                                       pg_catalog.current_database(), pg_catalog.getdatabaseencoding()),
            HINT = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
  END IF;
  -- The schema may be there already (CREATE EXTENSION ... SCHEMA idempotence). Then it must not be somebody
  -- else's: whoever owns a schema can put objects in it that shadow ours.
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
  -- For this script only. The ring relies on TRUNCATE, and on a size of 0 when empty, as heap has them.
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

-- Standing sessions, and client sessions that are saved.
--
-- A standing session has a name. When it is dropped its row stays, with the moment of the drop (a tombstone). If a
-- session of that name is made again, it has the same id, and its outcomes are found again. The columns ended and
-- ended_at of a tombstone say how near it is to being forgotten (src/sweep/tombstones.rs). Where journal names a table,
-- that table keeps the requests of the session, and ours know nothing of them.
--
-- A client session has an ordering instead of a name. It comes here with its first outcome. One without an outcome
-- comes here with its end if it was fenced or had a request_id, so that this is still known afterwards.
--
-- The node of a standing session is the one that it is bound to, if it is bound to any. That of a client session is the
-- one where it was registered, and part of its name.
CREATE TABLE idempotence.session (
  id              uuid        NOT NULL,
  created_at      timestamptz NOT NULL,
  owner           regrole     NOT NULL,
  window_size     integer,
  timeout         interval,
  require_payload boolean     NOT NULL,
  inbox           boolean     NOT NULL,
  time_keys       boolean     NOT NULL,
  ordering        "char",
  node            text        COLLATE "C",
  client          text        COLLATE "C",
  request_id      uuid,
  ended           "char",
  ended_at        timestamptz,
  name            text        COLLATE "C",
  ttl             interval,
  usable_by       regrole,
  max_attempts    integer,
  journal         text        COLLATE "C",
  CONSTRAINT session_pkey PRIMARY KEY (id),
  CONSTRAINT session_name_key UNIQUE (name)
);
CREATE INDEX session_client_idx ON idempotence.session (owner, client, ended_at);
CREATE INDEX session_request_id_idx ON idempotence.session (request_id);
CREATE INDEX session_ended_at_idx ON idempotence.session (ended_at);
CREATE INDEX session_ended_idx ON idempotence.session (owner, ended);

-- Client sessions at work, and when each gave its last sign of life. The table is unlogged, so that registering and
-- signs of life cost no WAL and no flush. No index covers last_seen, so that a sign of life is a HOT update. As in reply and
-- stream, the newest version of a row is looked for from the end of the primary key. PostgreSQL goes through what it has
-- deduplicated from the beginning, so it must not do that there.
CREATE UNLOGGED TABLE idempotence.session_live (
  id          uuid        NOT NULL,
  created_at  timestamptz NOT NULL,
  last_seen   timestamptz NOT NULL,
  owner       regrole     NOT NULL,
  window_size integer     NOT NULL,
  timeout     interval    NOT NULL,
  ordering    "char"      NOT NULL,
  node        text        COLLATE "C",
  client      text        COLLATE "C",
  request_id  uuid,
  CONSTRAINT session_live_pkey PRIMARY KEY (id) WITH (deduplicate_items = off)
) WITH (fillfactor = 50);
CREATE INDEX session_live_client_idx ON idempotence.session_live (owner, client);
CREATE INDEX session_live_request_id_idx ON idempotence.session_live (request_id);

-- The replies of client sessions. Each stream has as many slots as the window is wide. A slot is overwritten in
-- its place, so that a session takes the same space however many requests it sends. The number in a slot tells what
-- was done. The fillfactor leaves room on the page, so that the update is HOT.
CREATE TABLE idempotence.reply (
  session     uuid        NOT NULL,
  first       bigint      NOT NULL,
  last        bigint      NOT NULL,
  recorded_at timestamptz NOT NULL,
  slot        integer     NOT NULL,
  class       "char"      NOT NULL,
  stream      text        NOT NULL COLLATE "C",
  recorded_by text        NOT NULL,
  response    jsonb,
  fingerprint uuid,
  token       bigint,
  CONSTRAINT reply_pkey PRIMARY KEY (session, stream, slot) WITH (deduplicate_items = off)
) WITH (fillfactor = 50);

-- What a client said of a stream: up to which number it has its answers (acked), and up to which number it had numbers
-- handed out (allocated).
CREATE TABLE idempotence.stream (
  session   uuid   NOT NULL,
  acked     bigint NOT NULL,
  allocated bigint NOT NULL,
  stream    text   NOT NULL COLLATE "C",
  CONSTRAINT stream_pkey PRIMARY KEY (session, stream) WITH (deduplicate_items = off)
) WITH (fillfactor = 50);

-- Outcomes lie in a ring of three segments. Records go to the current segment, look-ups read all three, and an old
-- segment is emptied as a whole.
--
-- Who has recorded is noted by name, here and in the tables of replies, leases and repairs. The oid of a role that was
-- dropped is a number, in a dump too, and where that is restored the number may be the oid of another role.
CREATE TABLE idempotence.outcome_0 (
  digest      uuid        NOT NULL,
  session     uuid        NOT NULL,
  recorded_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  class       "char"      NOT NULL,
  key         text        NOT NULL COLLATE "C",
  recorded_by text        NOT NULL,
  response    jsonb,
  fingerprint uuid,
  token       bigint,
  CONSTRAINT outcome_0_pkey PRIMARY KEY (digest)
);
CREATE TABLE idempotence.outcome_1 (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_1_pkey PRIMARY KEY (digest));
CREATE TABLE idempotence.outcome_2 (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_2_pkey PRIMARY KEY (digest));

-- What would outlive its segment is recorded here, and deleted one by one.
CREATE TABLE idempotence.outcome_long (LIKE idempotence.outcome_0,
  CONSTRAINT outcome_long_pkey PRIMARY KEY (digest));
CREATE INDEX outcome_long_expires_at_idx ON idempotence.outcome_long (expires_at);

-- Where the ring stands. Not dumped: a restored database begins a fresh ring. That does no harm, since the end of what is
-- restored is looked for. looked_to is NULL where the end is known.
CREATE TABLE idempotence.segment (
  opened_at   timestamptz NOT NULL,
  keep_us     bigint      NOT NULL,
  sessions_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  looked_in   oid         NOT NULL DEFAULT 0,
  number      smallint    NOT NULL,
  current     boolean     NOT NULL,
  opening     boolean     NOT NULL DEFAULT false,
  restored    boolean     NOT NULL DEFAULT true,
  closed_at   timestamptz,
  ends_at     timestamptz,
  looked_to   bigint      DEFAULT 0,
  looked_at   timestamptz,
  CONSTRAINT segment_pkey PRIMARY KEY (number)
);
INSERT INTO idempotence.segment (number, current, opened_at, keep_us)
  SELECT n, n OPERATOR(pg_catalog.=) 0, pg_catalog.clock_timestamp(), 0 FROM pg_catalog.generate_series(0, 2) n;

CREATE TABLE idempotence.checkpoint (
  digest      uuid        NOT NULL,
  session     uuid        NOT NULL,
  written_at  timestamptz NOT NULL,
  stream      text        NOT NULL COLLATE "C",
  request     text        NOT NULL COLLATE "C",
  point       text        NOT NULL,
  state       jsonb,
  fingerprint uuid,
  last        bigint,
  CONSTRAINT checkpoint_pkey PRIMARY KEY (digest)
);

-- Leases: claims that were committed, for requests whose effect is outside the database. A lease is kept under the
-- digest that is locked for its request, so a slot and a stream in strict order have one at most. The record deletes
-- it. The index tells whether a client session has a lease. The fillfactor leaves room for extensions, which are HOT.
CREATE TABLE idempotence.lease (
  digest       uuid        NOT NULL,
  session      uuid        NOT NULL,
  token        bigint      NOT NULL,
  begun_at     timestamptz NOT NULL,
  leased_until timestamptz NOT NULL,
  attempt      integer     NOT NULL,
  stream       text        NOT NULL COLLATE "C",
  request      text        NOT NULL COLLATE "C",
  holder       text        NOT NULL,
  application  text        NOT NULL,
  fingerprint  uuid,
  last         bigint,
  CONSTRAINT lease_pkey PRIMARY KEY (digest)
) WITH (fillfactor = 80);
CREATE INDEX lease_session_idx ON idempotence.lease (session);

-- Whether a table is to be unlogged, where a DBA has chosen so (idem_set_persistence). A dump has these rows, but it
-- makes the tables as they are by default. So the sweep sees to it that a restored table is as it was chosen.
CREATE TABLE idempotence.persistence (
  unlogged boolean NOT NULL,
  what     text    NOT NULL COLLATE "C",
  CONSTRAINT persistence_pkey PRIMARY KEY (what)
);

-- The key of the digests. Whoever knew it could compute the locks of another role's requests, and so block them.
-- Row security without a policy hides it from pg_read_all_data too. A restore adds a row with the key that the
-- restored digests were made with. The key in use counts.
CREATE TABLE idempotence.secret (
  in_use_since timestamptz,
  key          bytea       NOT NULL CHECK (pg_catalog.length(key) OPERATOR(pg_catalog.=) 32)
);
ALTER TABLE idempotence.secret ENABLE ROW LEVEL SECURITY;
-- Without this, an update would fail if somebody published the table. A primary key would not do: its error would tell
-- the key if the same dump is restored twice. A trigger refuses that.
ALTER TABLE idempotence.secret REPLICA IDENTITY FULL;
INSERT INTO idempotence.secret (key)
  SELECT pg_catalog.decode(pg_catalog.replace(pg_catalog.concat(pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid()), '-', ''), 'hex');

CREATE TABLE idempotence.audit (
  at          timestamptz NOT NULL,
  by          text        NOT NULL,
  login       text        NOT NULL,
  application text        NOT NULL,
  client_addr text,
  action      text        NOT NULL,
  session     text        NOT NULL,
  request     text        NOT NULL,
  reason      text,
  found       text        NOT NULL
);
-- So that a DBA can delete old rows even if the table is published.
ALTER TABLE idempotence.audit REPLICA IDENTITY FULL;

-- The levels that idem_grant has granted. pg_restore sends the GRANTs on an object as one command, so that one role that
-- is missing takes the rights of all others away. This table tells what they had. It has no primary key, since a restore
-- may bring what was granted anew before it. A trigger takes out what is there twice.
CREATE TABLE idempotence.granted (
  role  text NOT NULL COLLATE "C",
  level text NOT NULL COLLATE "C"
);
ALTER TABLE idempotence.granted REPLICA IDENTITY FULL;

-- What the sweep remembers: a row for each step that has to remember something. The table is unlogged for a purpose:
-- a crash or a failover empties it, which tells the next sweep that there was one.
CREATE UNLOGGED TABLE idempotence.sweep (
  done_at timestamptz NOT NULL,
  place   bigint      NOT NULL,
  step    text        NOT NULL COLLATE "C",
  said    text        COLLATE "C",
  CONSTRAINT sweep_pkey PRIMARY KEY (step)
);

-- Which tables were restored, as long as it is not known that the sessions of their rows were restored too. Empty
-- where nothing was restored. brought names the restored table, place is how far the sweep has looked, and orphans
-- is the number of rows without a session that it has found. Not dumped: a restore notes itself.
CREATE TABLE idempotence.restore (
  noted_at  timestamptz NOT NULL,
  place     bigint      NOT NULL DEFAULT 0,
  brought   text        NOT NULL COLLATE "C",
  looked_at timestamptz,
  orphans   bigint
);
ALTER TABLE idempotence.restore REPLICA IDENTITY FULL;

-- The tables whose rows a dump must hold. Restored rows are added to what CREATE EXTENSION makes, so none of these
-- tables, except secret, has a row at first.
SELECT pg_catalog.pg_extension_config_dump('idempotence.session', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.stream', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.reply', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_0', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_1', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_2', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.outcome_long', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.checkpoint', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.lease', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.persistence', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.secret', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.audit', '');
SELECT pg_catalog.pg_extension_config_dump('idempotence.granted', '');
