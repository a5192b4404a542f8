-- idempotence, edition for managed services: the functions of the extension "idempotence" 1.2.0 in SQL and PL/pgSQL.
--
-- Install it, or upgrade an installed version, with: psql -v ON_ERROR_STOP=1 -f idempotence_managed.sql
-- Any role that may create a schema can do so, on PostgreSQL 15 and later. USAGE on the schema lets a role call the
-- functions. A scheduler calls idem_sweep() once a minute. DROP SCHEMA idempotence CASCADE removes everything. See
-- docs/managed.md.
--
-- Privileges. Roles have no privilege on any table. They write through one view, the door. Its row contains the
-- current role, and its trigger does what is asked with the rights of the owner. A role name in an argument could
-- be forged, and inside a SECURITY DEFINER function current_user is the owner; a view, however, reports the
-- current_user of the query that reads it. Functions that run as the owner have their search_path pinned, so
-- operators, functions and types are those of pg_catalog, and they execute no code of a caller. Functions that run
-- as their caller qualify every name, or have the path pinned as well.
--
-- Settings of the caller. A SET clause costs several thousand instructions at each call and prevents inlining, so
-- only search_path has one, in functions that callers or triggers enter. PL/pgSQL functions pin
-- plpgsql.variable_conflict by a directive, write strings that contain backslashes as E'...', and are written so
-- that plpgsql.extra_errors finds nothing.
--
-- Execution. A begin acquires an advisory lock and inserts the outcome's row, which is open; the record completes
-- it. A deferred constraint trigger refuses to commit an open row (ID008). The row becomes visible, is rolled back
-- and is kept together with the effects of the request, also across savepoints.
BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL check_function_bodies = on;
SET LOCAL lock_timeout = '3s';
SET LOCAL standard_conforming_strings = on;

DO $$
BEGIN
  IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
    RAISE EXCEPTION 'idempotence needs a database in encoding UTF8' USING ERRCODE = 'feature_not_supported';
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'idempotence')
        AND pg_catalog.to_regclass('idempotence.door') IS NULL THEN
    RAISE EXCEPTION 'the extension "idempotence" is in this database: nothing else is needed'
      USING ERRCODE = 'duplicate_object';
  ELSIF pg_catalog.to_regnamespace('idempotence') IS NULL THEN
    CREATE SCHEMA idempotence;
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_namespace n, pg_catalog.pg_roles r,
                     LATERAL (SELECT n.nspowner
                              UNION ALL SELECT relowner FROM pg_catalog.pg_class WHERE relnamespace = n.oid
                              UNION ALL SELECT proowner FROM pg_catalog.pg_proc WHERE pronamespace = n.oid) o (owner)
                WHERE n.nspname = 'idempotence' AND r.rolname = CURRENT_USER AND o.owner <> r.oid) THEN
    -- An object of another role would be taken for ours.
    RAISE EXCEPTION 'schema "idempotence", or something in it, belongs to another role'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  -- In the order in which calls lock them. A transaction that is at work for longer is not made to wait behind this.
  IF pg_catalog.to_regclass('idempotence.door') IS NOT NULL THEN
    LOCK TABLE idempotence.door, idempotence.session, idempotence.settings, idempotence.outcome, idempotence.swept;
  END IF;
  IF pg_catalog.to_regtype('idempotence.idem_ticket') IS NULL THEN
    CREATE TYPE idempotence.idem_ticket AS (
      status text, replayed boolean, response jsonb, token bigint, attempt integer, point text, state jsonb,
      recorded_at timestamptz, expires_at timestamptz);
  END IF;
END $$;
SET LOCAL search_path = pg_catalog, pg_temp;

-- For the owner to change: UPDATE idempotence.settings SET retention = '30 days'. A connection may lower a size for
-- itself (SET idempotence.max_response = '10kB'), and not raise it.
CREATE TABLE IF NOT EXISTS idempotence.settings (
  retention interval NOT NULL DEFAULT '7 days' CHECK (retention BETWEEN interval '1 second' AND interval '3650 days'),
  max_ttl interval NOT NULL DEFAULT '3650 days',
  max_response bigint NOT NULL DEFAULT 1048576,
  max_payload bigint NOT NULL DEFAULT 1048576,
  max_batch bigint NOT NULL DEFAULT 10000,
  installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  secret uuid NOT NULL DEFAULT gen_random_uuid());
CREATE UNIQUE INDEX IF NOT EXISTS settings_one ON idempotence.settings ((true));
INSERT INTO idempotence.settings DEFAULT VALUES ON CONFLICT DO NOTHING;

-- The secret goes into the locks of the session's requests, that of settings into those of changes of sessions: a
-- role that knew it could acquire the locks, and so block other roles. No function or view shows a secret.
CREATE TABLE IF NOT EXISTS idempotence.session (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL COLLATE "C" UNIQUE,
  owner regrole NOT NULL,
  usable_by regrole,
  ttl interval,
  require_payload boolean NOT NULL,
  inbox boolean NOT NULL,
  time_keys boolean NOT NULL,
  max_attempts integer,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at timestamptz,
  secret uuid NOT NULL DEFAULT gen_random_uuid());
-- The secret before the last change of owner or loan, while transactions may use it alone; and the transaction id
-- that was assigned when the sweep had seen the change. The sweep removes both when all transactions with smaller
-- ids have ended.
ALTER TABLE idempotence.session
  ADD COLUMN IF NOT EXISTS former_secret uuid,
  ADD COLUMN IF NOT EXISTS former_until xid8;

-- Outcomes. Three segments are a ring: requests begin in the current one, look-ups read that and the former one,
-- and the third is truncated. What would outlive a segment goes to outcome_long. class: s(ucceeded), f(ailed),
-- c(ancelled), and until the end of its transaction o(pen), or k for open with a checkpoint, which may commit.
CREATE TABLE IF NOT EXISTS idempotence.outcome (
  session integer NOT NULL,
  segment smallint NOT NULL,
  class "char" NOT NULL,
  recorded_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  key text NOT NULL COLLATE "C",
  recorded_by text NOT NULL,
  fingerprint uuid,
  token bigint,
  response jsonb,
  PRIMARY KEY (session, key, segment)
) PARTITION BY LIST (segment);
CREATE TABLE IF NOT EXISTS idempotence.outcome_0 PARTITION OF idempotence.outcome FOR VALUES IN (0);
CREATE TABLE IF NOT EXISTS idempotence.outcome_1 PARTITION OF idempotence.outcome FOR VALUES IN (1);
CREATE TABLE IF NOT EXISTS idempotence.outcome_2 PARTITION OF idempotence.outcome FOR VALUES IN (2);
CREATE TABLE IF NOT EXISTS idempotence.outcome_long PARTITION OF idempotence.outcome FOR VALUES IN (3);
CREATE INDEX IF NOT EXISTS outcome_long_expires_at ON idempotence.outcome_long (expires_at);

-- The position of the ring, and the longest life in seconds that the current segment takes. At 2k segment k % 3 is
-- current; at 2k + 1 the next one is, but transactions may still write into segment k % 3. Both are sequences,
-- because a sequence is read as it is now, also under an old snapshot.
CREATE SEQUENCE IF NOT EXISTS idempotence.ring MINVALUE 0 START 0;
CREATE SEQUENCE IF NOT EXISTS idempotence.keep MINVALUE 0 START 0;
CREATE TABLE IF NOT EXISTS idempotence.segment (
  number smallint PRIMARY KEY,
  keep bigint NOT NULL,
  opened_at timestamptz NOT NULL,
  closed_at timestamptz NOT NULL);
-- While the ring waits for the transactions that may write into the segment: their ids are smaller than this one.
ALTER TABLE idempotence.segment ADD COLUMN IF NOT EXISTS writers_before xid8;
INSERT INTO idempotence.segment
SELECT n,
       CASE n WHEN 0 THEN setval('idempotence.keep', 86400) ELSE 0 END,
       CASE n WHEN 0 THEN now() ELSE '-infinity' END,
       CASE n WHEN 0 THEN 'infinity' ELSE '-infinity' END::timestamptz
FROM generate_series(0, 2) n WHERE NOT EXISTS (SELECT FROM idempotence.segment);

-- Leases and checkpoints: requests that were begun, whose transaction has committed, and that are not done.
CREATE TABLE IF NOT EXISTS idempotence.pending (
  session integer NOT NULL,
  request text NOT NULL COLLATE "C",
  fingerprint uuid,
  token bigint,
  attempt integer,
  begun_at timestamptz,
  leased_until timestamptz,
  holder text,
  application text,
  point text,
  state jsonb,
  written_at timestamptz,
  PRIMARY KEY (session, request)
) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS idempotence.audit (
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  by text NOT NULL,
  action text NOT NULL,
  session text NOT NULL,
  request text NOT NULL,
  reason text,
  found text NOT NULL);
CREATE TABLE IF NOT EXISTS idempotence.swept (at timestamptz NOT NULL);
-- These two have no key, and the sweep must not fail where a publication has all tables.
ALTER TABLE idempotence.swept REPLICA IDENTITY FULL;
ALTER TABLE idempotence.settings REPLICA IDENTITY FULL;

-- Functions of older versions that took other arguments or returned something else.
DROP FUNCTION IF EXISTS
  idempotence._put(idempotence.outcome, timestamptz), idempotence._take(idempotence.session, text),
  idempotence._wait_for(bigint, timestamptz, integer, text), idempotence._is_held(bigint),
  idempotence._look_up(integer, uuid, text);

-- A text as it goes into messages. Names are chosen by users: what would move a terminal's cursor, and what no
-- reader sees, is written as in E'…'.
CREATE OR REPLACE FUNCTION idempotence._legible(words text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  unseen CONSTANT text :=
    E'[\\u0001-\\u001F\\u007F-\\u009F\\u00AD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180B-\\u180F\\u200B-\\u200F'
    '\\u2028-\\u202E\\u2060-\\u206F\\u3164\\uFE00-\\uFE0F\\uFEFF\\uFFF9-\\uFFFB\\U000E0000-\\U000E0FFF]';
BEGIN
  IF words IS NULL OR words !~ unseen THEN
    RETURN words;
  END IF;
  RETURN (SELECT string_agg(CASE WHEN c !~ unseen THEN c
                                 WHEN ascii(c) < 65536 THEN E'\\u' || upper(lpad(to_hex(ascii(c)), 4, '0'))
                                 ELSE E'\\U' || upper(lpad(to_hex(ascii(c)), 8, '0')) END, '' ORDER BY n)
          FROM regexp_split_to_table(words, '') WITH ORDINALITY r (c, n));
END $$;

-- Errors: kind, SQLSTATE, message, DETAIL, HINT.
CREATE OR REPLACE FUNCTION idempotence._refuse(kind text, VARIADIC a text[] DEFAULT '{}')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  e record;
BEGIN
  SELECT * INTO STRICT e FROM (VALUES
    ('null', '22004', 'argument "%1$s" must not be null',
     '%2$s',
     'A NULL is most often a parameter that the client did not set.'),
    ('null element', '22004', 'element %1$s of argument "requests" must not be null',
     'Each element names a request.',
     'A NULL is most often a parameter that the client did not set.'),
    ('status', '22023', 'status "%1$s" is none that an outcome has',
     'The statuses of outcomes are succeeded, failed and cancelled.',
     'Name one of these, or leave status out. The view idempotence.unfinished lists what is not done.'),
    ('most', '22023', 'argument "most" is out of range',
     'Found %1$s; it must be at least 1.',
     'Say how many outcomes are wanted, or leave most out.'),
    ('request type', '22023', 'requests cannot be of type %1$s',
     'A request is named by a text, a number or a UUID.',
     'Give an array of type text[], bigint[] or uuid[].'),
    ('range', '22023', 'the %1$s is out of range',
     'Found %2$s; it must be at least %3$s and at most %4$s.',
     'Give an interval, such as ''30 seconds'' or ''24 hours''; ''30'' is 30 seconds, and a month counts as 30 days.'),
    ('wait', '22023', 'the wait is negative',
     'A wait is ''0'' or longer.',
     'To wait for ever, SET idempotence.wait = -1.'),
    ('limit', 'ID009', '%1$s exceeds its limit',
     'Found %2$s; the limit is %3$s.',
     '%4$s'),
    ('argument', '22023', 'argument "%1$s" does not go with session "%2$s"',
     'It belongs to the numbered requests of client sessions; this is a standing session.',
     'Leave it out: a key alone names a request here.'),
    ('no session', '42704', 'session "%1$s" does not exist',
     'No standing session of this name is in this database, or it was dropped.',
     'Look for a typing mistake, or for session and request in the wrong order; or make the session once with '
     'idem_create_session().'),
    ('not owner', '42501', 'permission denied for session "%1$s"',
     'The current role does not have the privileges of the session''s owner, which it takes to %2$s.',
     'Become a member of the role that owns it (GRANT), or use a session of your own.'),
    ('not user', '42501', 'permission denied for session "%1$s"',
     'The current role has the privileges neither of the session''s owner nor of a role that it is lent to, which it '
     'takes to %2$s.',
     'Become a member of the role that owns it (GRANT), have its owner lend it to you (idem_alter_session), or use a '
     'session of your own.'),
    ('inbox', '22023', 'session "%1$s" is an inbox',
     'An inbox only deduplicates: its requests are not begun and have no response.',
     'Use idem_once() or idem_once_many() here, or a session made without inbox.'),
    ('no inbox', '22023', 'session "%1$s" is not an inbox',
     'idem_once() and idem_once_many() serve sessions made with inbox => true only.',
     'Use idem_begin() and idem_record() here, or make an inbox with idem_create_session().'),
    ('empty key', '22023', 'a request of session "%1$s" has an empty key',
     'Found a key of 0 characters.',
     'Send the key that names the operation; it must be the same on each retry.'),
    ('no time key', '22023', '%1$s has a key that is no UUID of version 7',
     'The session was made with time_keys, so that a key tells its own age.',
     'Make keys with idem_generate_id(), or any UUIDv7 library, in their form of 36 characters.'),
    ('future', '22023', '%1$s has a key from the future',
     'The key''s time is %2$s seconds ahead of the database''s clock; 300 are tolerated.',
     'Set the clock of the client that made the key.'),
    ('too old', 'ID010', '%1$s is too old to tell whether it was done',
     'Its key''s time is more than the session''s ttl (%2$s) ago and nothing is kept of it: it was never recorded, or '
     'its outcome has expired.',
     'Find out whether its effect happened; if it did not, send it under a fresh key.'),
    ('says nothing', '22023', 'a key cannot be derived from content that says nothing',
     'The payload has no string, number or boolean in it, so that all requests like it would be one.',
     'Give what tells this request from others. A null is most often a field that the client did not set.'),
    ('payload', 'ID001', '%1$s came with another payload',
     'The fingerprint kept from the first time differs from that of the payload given now.',
     'A retry must send what was sent first; a new request needs a key of its own.'),
    ('begun', 'ID002', '%1$s is already begun in this transaction',
     'This transaction holds the claim and has neither recorded nor released it.',
     '%2$s'),
    ('superseded', 'ID005', 'token %1$s does not hold %2$s',
     '%3$s',
     '%4$s'),
    ('not begun', 'ID007', '%1$s is not begun in this transaction',
     '%2$s() needs a request that idem_begin() answered with "started" or "taken_over" in the same transaction; %3$s.',
     '%4$s'),
    ('unrecorded', 'ID008', '%1$s was begun but neither recorded, checkpointed nor released',
     'COMMIT would keep its effects without an outcome, and a retry would execute it again.',
     'Call idem_record() before the end of the transaction, or idem_release() to give it up. In autocommit each '
     'statement is a transaction of its own: start one with BEGIN.'),
    ('done', 'ID011', '%1$s',
     'Its status is "%2$s", recorded at %3$s.',
     'Roll back, and get the answer with idem_lookup().'),
    ('must look', '55000', '%1$s was begun before and is not done',
     '%2$s',
     '%3$s'),
    ('in progress', '55P03', '%1$s is still in progress',
     '%2$s',
     '%3$s'),
    ('unseen', '40001', 'could not serialize access: %1$s was answered after this transaction''s snapshot',
     'Its outcome or checkpoint is committed, but its effects are not visible to this transaction.',
     'Retry the transaction: it will get the answer.'),
    ('beside', '40001', 'could not serialize access: the state of %1$s was changed by another transaction',
     'It was recorded or imported after this transaction had looked for it.',
     'Retry the transaction: it will get the answer.'),
    ('lost claim', '40001', 'could not serialize access: the claim of %1$s was lost',
     'A cursor that failed in a savepoint has released the locks of its earlier rows, and another transaction may '
     'have begun the request since.',
     'Retry the transaction.'),
    ('altered', '40001', 'could not serialize access: session "%1$s" was altered by another transaction',
     'Its owner or loan, and with that its locks, have changed since this call had read them.',
     'Retry the transaction.'),
    ('read only', '25006', 'cannot execute %1$s in a read-only transaction',
     '%2$s',
     'Run it in a read-write transaction, on the primary.'),
    ('ttl', '22023', 'the ttl given for %1$s %2$s',
     'The session''s ttl is %3$s.',
     'Leave ttl out to take the session''s, or change that with idem_alter_session().'),
    ('reason', '22023', 'the reason is empty',
     'A repair takes a reason, which idempotence.audit keeps.',
     'Say in a few words why it is done, for whoever reads the audit later.'),
    ('on_error', '22023', 'on_error must be "raise" or "record"',
     'Found "%1$s".',
     'raise: the error aborts as ever and nothing is recorded; record: it is recorded as a final failure and '
     'returned.'),
    ('no command', '22023', 'the command is empty',
     'There is nothing to execute.',
     'Give an SQL statement.'),
    ('rows', '21000', 'the command gave more than one row',
     'Found %1$s rows.',
     'The response is the first column of the one row; aggregate, with jsonb_agg() say, or add LIMIT 1.'),
    ('no name', '22023', 'the name of a session is empty',
     'Found a name of 0 characters.',
     'Name it after what its requests do, such as ''payments''.'),
    ('client name', '22023', 'session "%1$s" cannot be named like a client session',
     'A UUID, alone or before an @, is the name of a client session, which the server makes up itself.',
     'Name it after what its requests do, such as ''payments''.'),
    ('needs ttl', '22023', 'session "%1$s" with time_keys needs a ttl',
     'How old a key may be is fixed when the session is made.',
     'Give ttl => ''24 hours'', say.'),
    ('attempts', '22023', 'max_attempts of session "%1$s" is out of range',
     'Found %2$s; it goes from 1 to 1000000, and 0 is no limit.',
     'Say after how many attempts a request whose lease runs out again and again is given up.'),
    ('inbox attempts', '22023', 'inbox "%1$s" cannot have max_attempts',
     'The requests of an inbox are not begun, so there are no attempts.',
     'Leave max_attempts out.'),
    ('fixed ttl', '22023', 'the ttl of session "%1$s" cannot change',
     'It has time_keys: keys that were refused as too old must stay so, and kept ones must stay kept.',
     'Make another session with the ttl wanted.'),
    ('no role', '42704', 'role with OID %1$s does not exist',
     'A session belongs, and is lent, to a role.',
     'Name the role instead of giving its number.'),
    ('cannot give', '42501', 'permission denied to make role "%1$s" the owner of session "%2$s"',
     'The current role does not have the privileges of role "%1$s".',
     'Name a role that you are a member of, or let a superuser do it.'),
    ('exists', '42710', 'session "%1$s" %2$s with other options',
     'Its %3$s.',
     'Change ttl, require_payload, owner, usable_by, max_attempts or node with idem_alter_session(). inbox, '
     'time_keys and journal never change, nor does ttl with time_keys; dropping the session does not help.'),
    ('lost', 'XX001', 'session "%1$s" cannot be new',
     'There are outcomes, and no session: a restore has left out the rows of idempotence.session.',
     'Create the roles that the restore missed, since each session names its owner, and restore the data of this '
     'table again.'),
    ('open', '55000', 'session "%1$s" is open, and cannot be exported',
     'What begins here after the export would be executed again where the session goes on.',
     'Drop it with idem_drop_session(); commit, and export it then. What was recorded stays: made again, the session '
     'has it.'),
    ('at work', '55006', 'session "%1$s" cannot be exported while its requests may be at work',
     '%2$s',
     'Try again as it is, or wait longer (setting idempotence.wait).'),
    ('unseen export', '40001', 'could not serialize access: requests of session "%1$s" ended after this '
     'transaction''s snapshot',
     'What they recorded is committed, but neither that nor their effects are visible to this transaction.',
     'Retry the transaction: its snapshot will see them.')
  ) v (kind, state, message, detail, hint) WHERE v.kind = _refuse.kind;
  a := ARRAY(SELECT idempotence._legible(w) FROM unnest(a) WITH ORDINALITY u (w, n) ORDER BY n);
  RAISE EXCEPTION USING
    ERRCODE = e.state,
    MESSAGE = format(e.message, VARIADIC a),
    DETAIL = format(e.detail, VARIADIC a),
    HINT = format(e.hint, VARIADIC a);
END $$;

CREATE OR REPLACE FUNCTION idempotence._must(argument text, value_is_null boolean)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF value_is_null THEN
    PERFORM idempotence._refuse('null', argument, 'The function cannot do without it.');
  END IF;
END $$;

-- The name of a request, a time, and a length of time in the largest unit of which it is a multiple, for messages.
CREATE OR REPLACE FUNCTION idempotence._named(session text, request text)
RETURNS text
LANGUAGE sql IMMUTABLE
RETURN format('request "%s" of session "%s"', replace(request, '"', '""'), replace(session, '"', '""'));

CREATE OR REPLACE FUNCTION idempotence._moment(at timestamptz)
RETURNS text
LANGUAGE sql STABLE
RETURN to_char(at, 'YYYY-MM-DD HH24:MI:SS.USOF');

CREATE OR REPLACE FUNCTION idempotence._in_words(length interval)
RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (SELECT format('%s %s%s', div(us, size), unit, CASE WHEN us = size OR size = 1 THEN '' ELSE 's' END)
        FROM (SELECT trunc(extract(epoch FROM length) * 1000000)) l (us),
             (VALUES (86400000000, 'day'), (3600000000, 'hour'), (60000000, 'minute'), (1000000, 'second'),
                     (1000, 'millisecond'), (1, 'microseconds')) u (size, unit)
        WHERE us IS NOT NULL AND (size = 1 OR us >= size AND us % size = 0) ORDER BY size DESC LIMIT 1);

-- Values and arguments. These run with a pinned path, whoever calls.
CREATE OR REPLACE FUNCTION idempotence._duration(argument text, length interval, fewest interval, most interval)
RETURNS interval
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF length < fewest OR length > most THEN
    PERFORM idempotence._refuse('range', argument, idempotence._in_words(length), idempotence._in_words(fewest),
                                idempotence._in_words(most));
  END IF;
  RETURN make_interval(secs => extract(epoch FROM length)::float8);
END $$;

-- Until when to wait: as long as the argument says, or the setting.
CREATE OR REPLACE FUNCTION idempotence._until(wait interval)
RETURNS timestamptz
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  setting text;
BEGIN
  IF wait IS NULL THEN
    setting := coalesce(nullif(current_setting('idempotence.wait', true), ''), '5s');
    IF setting LIKE '-%' THEN
      RETURN clock_timestamp() + interval '1000 years';
    END IF;
    wait := CASE WHEN setting ~ '^[0-9]+$' THEN setting || ' ms' ELSE setting END::interval;
  ELSIF wait < interval '0' THEN
    PERFORM idempotence._refuse('wait');
  END IF;
  RETURN clock_timestamp() + wait;
END $$;

-- The same for lock_timeout: 0 is for ever.
CREATE OR REPLACE FUNCTION idempotence._ms_until(until timestamptz)
RETURNS bigint
LANGUAGE sql VOLATILE
RETURN CASE WHEN until > clock_timestamp() + interval '100 years' THEN 0
            ELSE least(greatest(ceil(extract(epoch FROM until - clock_timestamp()) * 1000), 1), 2147483647) END;

-- Limits the waits for rows of other transactions, unless a shorter limit is set; returns what was set.
CREATE OR REPLACE FUNCTION idempotence._limit_waits(until timestamptz)
RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  former text := current_setting('lock_timeout');
  ms bigint := idempotence._ms_until(until);
BEGIN
  IF former = '0' OR ms > 0 AND extract(epoch FROM former::interval) * 1000 > ms THEN
    PERFORM set_config('lock_timeout', ms::text, true);
  END IF;
  RETURN former;
END $$;

CREATE OR REPLACE FUNCTION idempotence._check_size(what text, named text, value jsonb)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  most bigint := (SELECT CASE WHEN what = 'payload' THEN max_payload ELSE max_response END FROM idempotence.settings);
  size bigint := pg_column_size(value) - 4;
BEGIN
  most := least(most, pg_size_bytes(nullif(current_setting(
    'idempotence.max_' || CASE WHEN what = 'payload' THEN what ELSE 'response' END, true), '')));
  IF size > most THEN
    PERFORM idempotence._refuse('limit', format('the %s of %s', what, named), size || ' bytes', most || ' bytes',
      CASE WHEN what = 'payload' THEN 'Send what tells requests apart, not all of it, or raise idempotence.max_payload.'
           ELSE 'Keep a reference to a large answer instead of the answer, or raise idempotence.max_response.' END);
  END IF;
END $$;

-- Outside of strings, zeros at the end of a number do not count: 1.0 equals 1.
CREATE OR REPLACE FUNCTION idempotence.idem_fingerprint(payload jsonb)
RETURNS uuid
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  IF payload IS NULL THEN
    PERFORM idempotence._must('payload', true);
  END IF;
  RETURN left(encode(sha256(convert_to(regexp_replace(payload::text,
    E'("([^"\\\\]|\\\\.)*")|([.][0-9]*[1-9])0+(?![0-9])|[.]0+(?![0-9])', E'\\1\\3', 'g'), 'UTF8')), 'hex'), 32)::uuid;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_key(payload jsonb)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  IF payload IS NULL THEN
    PERFORM idempotence._must('payload', true);
  END IF;
  IF NOT payload @? 'strict $.** ? (@.type() == "string" || @.type() == "number" || @.type() == "boolean")' THEN
    PERFORM idempotence._refuse('says nothing');
  END IF;
  RETURN replace(idempotence.idem_fingerprint(payload)::text, '-', '');
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_generate_id()
RETURNS uuid
LANGUAGE sql VOLATILE
RETURN (overlay(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0)
        || '-7' || substr(gen_random_uuid()::text, 16))::uuid;

-- The key as it is stored, and the time that a time key contains.
CREATE OR REPLACE FUNCTION idempotence._key_of(
  session text, time_keys boolean, request text, OUT k text, OUT made timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF request IS NULL THEN
    PERFORM idempotence._must('request', true);
  END IF;
  k := request;
  IF request = '' THEN
    PERFORM idempotence._refuse('empty key', session);
  ELSIF length(request) > 255 THEN
    PERFORM idempotence._refuse('limit', format('the key of a request of session "%s"', session),
                                length(request) || ' characters', '255 characters',
                                'Use a digest of it, such as a UUID or a hash.');
  ELSIF time_keys AND request !~* '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN
    PERFORM idempotence._refuse('no time key', idempotence._named(session, request));
  ELSIF time_keys THEN
    k := lower(request COLLATE "C");
    made := timestamptz '1970-01-01 00:00:00+00'
            + ('x' || left(k, 8) || substr(k, 10, 4))::bit(48)::bigint * interval '1 millisecond';
    IF made > clock_timestamp() + interval '5 minutes' THEN
      PERFORM idempotence._refuse('future', idempotence._named(session, k),
                                  floor(extract(epoch FROM made - clock_timestamp()))::text);
    END IF;
  END IF;
END $$;

-- Request locks. Each request of a session has an advisory lock, whose number is a digest of the session's secret
-- and the key.
--
-- A session gets another secret when its owner or its loan changes (_save_session). Transactions in progress may still
-- hold locks under the former secret, so the former one stays in force beside the new one until the sweep has seen all
-- of them end. Meanwhile a request has two locks, which are acquired in the order of _locks_of.
CREATE OR REPLACE FUNCTION idempotence._lock_of(secret uuid, key text)
RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN ('x' || left(encode(sha256(convert_to(secret::text || key, 'UTF8')), 'hex'), 16))::bit(64)::bigint;

CREATE OR REPLACE FUNCTION idempotence._locks_of(s idempotence.session, k text)
RETURNS bigint[]
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN s.former_secret IS NULL THEN ARRAY[idempotence._lock_of(s.secret, k)]
            ELSE ARRAY[idempotence._lock_of(s.former_secret, k), idempotence._lock_of(s.secret, k)] END;

-- Acquires the locks of a request unless another transaction holds one. It costs next to nothing to acquire a lock
-- again.
CREATE OR REPLACE FUNCTION idempotence._try_locks(locks bigint[])
RETURNS boolean
LANGUAGE sql VOLATILE
RETURN pg_try_advisory_xact_lock(locks[1]) AND pg_try_advisory_xact_lock(locks[2]) IS NOT FALSE;

-- Waits for the locks of a request, and returns whether they became free in time.
--
-- A caller that gives a session and a key is a begin: it keeps the locks (kept), unless the request has an outcome
-- or a lease by then. A replay keeps no lock, and the holder of a lease needs the lock to record. All other callers
-- wait in shared mode and release the locks at once. The exception ID000 releases them: it rolls the block's
-- subtransaction back.
CREATE OR REPLACE FUNCTION idempotence._wait_for(
  locks bigint[], until timestamptz, s integer DEFAULT NULL, k text DEFAULT NULL, OUT free boolean, OUT kept boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  former text := current_setting('lock_timeout');
  ms bigint := idempotence._ms_until(until);
  shorter boolean := former <> '0' AND (ms = 0 OR extract(epoch FROM former::interval) * 1000 <= ms);
BEGIN
  free := clock_timestamp() < until;
  kept := false;
  IF NOT free THEN
    RETURN;
  END IF;
  IF NOT shorter THEN
    PERFORM set_config('lock_timeout', ms::text, true);
  END IF;
  IF s IS NULL THEN
    PERFORM pg_advisory_xact_lock_shared(locks[1]), pg_advisory_xact_lock_shared(locks[2]);
    RAISE EXCEPTION USING ERRCODE = 'ID000';
  END IF;
  PERFORM pg_advisory_xact_lock(locks[1]), pg_advisory_xact_lock(locks[2]);
  IF (idempotence._find(s, k, clock_timestamp())).class IS NOT NULL
     OR EXISTS (SELECT FROM idempotence.pending p
                WHERE p.session = s AND p.request = k AND p.leased_until > clock_timestamp()) THEN
    RAISE EXCEPTION USING ERRCODE = 'ID000';
  END IF;
  PERFORM set_config('lock_timeout', former, true);
  kept := true;
EXCEPTION
  WHEN SQLSTATE 'ID000' THEN
    NULL;
  WHEN lock_not_available THEN
    IF shorter THEN
      RAISE;
    END IF;
    free := false;
END $$;

-- Whether another transaction holds a request's lock, or waits for it. A lookup asks this, too: it holds the lock in
-- shared mode for a moment, which does not count as holding it.
CREATE OR REPLACE FUNCTION idempotence._is_held(locks bigint[])
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF pg_try_advisory_xact_lock_shared(locks[1]) AND pg_try_advisory_xact_lock_shared(locks[2]) IS NOT FALSE THEN
    RAISE EXCEPTION USING ERRCODE = 'ID000';
  END IF;
  RETURN true;
EXCEPTION
  WHEN SQLSTATE 'ID000' THEN
    RETURN false;
END $$;

-- Whether only lookups keep a begin from the lock, so that it is to try again although its wait has ended. A role that
-- holds the lock in shared mode on purpose delays the answer by a second.
CREATE OR REPLACE FUNCTION idempotence._meets_lookups(locks bigint[], until timestamptz)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  RETURN clock_timestamp() < until + interval '1 second' AND NOT idempotence._is_held(locks);
END $$;

-- Whether this transaction holds a lock.
CREATE OR REPLACE FUNCTION idempotence._is_mine(lock bigint)
RETURNS boolean
LANGUAGE sql VOLATILE
RETURN EXISTS (SELECT FROM pg_locks l
               WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.objsubid = 1
                 AND l.mode = 'ExclusiveLock' AND l.granted
                 AND l.classid::bigint = (lock >> 32) & 4294967295 AND l.objid::bigint = lock & 4294967295);

-- Makes sure that an outcome which is returned is as durable as a commit of the caller. Where all that was written
-- is flushed and no synchronous standby is asked for, nothing need be done. Otherwise the transaction writes a
-- record into the log, so that its COMMIT waits for all that came before. A read-only transaction cannot, and waits
-- for the WAL writer: what is committed is flushed three delays of the WAL writer later.
CREATE OR REPLACE FUNCTION idempotence._is_durable(until timestamptz)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  written pg_lsn;
  flushed_by timestamptz := clock_timestamp() + 3 * current_setting('wal_writer_delay')::interval;
BEGIN
  IF pg_is_in_recovery() OR current_setting('synchronous_commit') = 'off' THEN
    RETURN true;
  END IF;
  written := pg_current_wal_insert_lsn();
  IF current_setting('transaction_read_only') = 'off' THEN
    IF pg_current_wal_flush_lsn() < written
       OR current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') <> 'local' THEN
      PERFORM pg_logical_emit_message(true, 'idempotence', 'replay');
    END IF;
    RETURN true;
  END IF;
  WHILE pg_current_wal_flush_lsn() < written AND clock_timestamp() < flushed_by LOOP
    IF clock_timestamp() >= until THEN
      RETURN false;
    END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION idempotence._status_of(class "char")
RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE class WHEN 's' THEN 'succeeded' WHEN 'f' THEN 'failed' WHEN 'c' THEN 'cancelled' ELSE 'open' END;

CREATE OR REPLACE FUNCTION idempotence._in_progress(named text, leased_until timestamptz, hint text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  PERFORM idempotence._refuse('in progress', named,
    CASE WHEN leased_until IS NULL THEN 'Another transaction holds it, and the wait ran out.'
         ELSE format('The lease that is in the way lasts until %s.', idempotence._moment(leased_until)) END,
    CASE WHEN hint IS NOT NULL THEN hint
         WHEN leased_until IS NULL OR current_setting('transaction_isolation') = 'read committed'
           THEN 'Try again as it is, or wait longer (argument "wait" or setting idempotence.wait).'
         ELSE 'Under REPEATABLE READ and SERIALIZABLE a lease is not waited for: try again after that time.' END);
END $$;

CREATE OR REPLACE FUNCTION idempotence._mismatch(kept uuid, given uuid, named text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF kept <> given THEN
    PERFORM idempotence._refuse('payload', named);
  END IF;
END $$;

-- What the door does. From here on everything runs as the owner, up to the views.

-- The outcome of a request, or its open row, which is always this transaction's own.
CREATE OR REPLACE FUNCTION idempotence._find(s integer, k text, at timestamptz)
RETURNS idempotence.outcome
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  o idempotence.outcome;
BEGIN
  -- An inbox has copies of a row in several segments, of which any will do.
  SELECT * INTO o FROM idempotence.outcome t
  WHERE t.session = s AND t.key = k AND (t.expires_at > at OR t.class IN ('o', 'k'))
  LIMIT 1;
  RETURN o;
END $$;

-- Writes an outcome: into the segment that it names or, where it names none, into the one that its life requires.
-- An expired outcome and this transaction's open row are overwritten. Returns the segment; NULL if another outcome
-- is there.
--
-- The order of reads: the position of the ring, then keep, then the insert, then the position again. If the ring
-- has turned in between, the row may be in a segment that is closed too early for it. It is removed, and written
-- anew.
CREATE OR REPLACE FUNCTION idempotence._put(o idempotence.outcome, at timestamptz)
RETURNS smallint
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  chooses boolean := o.segment IS NULL;
  ring_position bigint;
BEGIN
  LOOP
    IF chooses THEN
      SELECT r.last_value INTO ring_position FROM idempotence.ring r;
      -- A request that is recorded later expires later. Its segment is closed after the transaction that records it.
      o.segment := CASE WHEN extract(epoch FROM o.expires_at - o.recorded_at)
                             <= (SELECT g.last_value FROM idempotence.keep g)
                        THEN (ring_position + 1) / 2 % 3 ELSE 3 END;
    END IF;
    INSERT INTO idempotence.outcome AS t VALUES (o.*)
    ON CONFLICT (session, key, segment) DO UPDATE
    SET (class, recorded_at, expires_at, recorded_by, fingerprint, token, response)
      = (EXCLUDED.class, EXCLUDED.recorded_at, EXCLUDED.expires_at, EXCLUDED.recorded_by, EXCLUDED.fingerprint,
         EXCLUDED.token, EXCLUDED.response)
    WHERE t.expires_at <= at OR t.class IN ('o', 'k');
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
    EXIT WHEN NOT chooses OR ring_position = (SELECT r.last_value FROM idempotence.ring r);
    PERFORM idempotence._take_out(o);
  END LOOP;
  RETURN o.segment;
END $$;

-- Writes a key of an inbox: true if the key is new, false if another transaction has written it, NULL if the ring
-- has turned since its position was read, which is to be read before the key is searched for. Nothing is written
-- unless it is new.
--
-- Callers of an inbox take no lock: the unique index of a segment decides which of them is first. So all callers at
-- a time must write into one segment in common. While position 2k stands that is segment k % 3, and while 2k + 2
-- stands the next one; in between, at 2k + 1, a key is written into both. A transaction that read 2k has ended
-- before the ring reaches 2k + 2, and its row is found. A key that may outlive its segment is kept in outcome_long
-- besides.
CREATE OR REPLACE FUNCTION idempotence._put_seen(
  s idempotence.session, o idempotence.outcome, at timestamptz, ring_position bigint)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  keep bigint;
  segments smallint[] := ARRAY[ring_position / 2 % 3];
  written smallint[] := '{}';
  n smallint;
  turned boolean;
BEGIN
  SELECT g.last_value INTO keep FROM idempotence.keep g;
  IF ring_position % 2 = 1 THEN
    segments := segments || ((ring_position + 1) / 2 % 3)::smallint;
  END IF;
  IF extract(epoch FROM o.expires_at - at) > keep THEN
    segments := segments || 3::smallint;
  END IF;
  PERFORM idempotence._probe(s, o.key);
  FOREACH n IN ARRAY segments LOOP
    o.segment := n;
    EXIT WHEN idempotence._put(o, at) IS NULL;
    written := written || n;
  END LOOP;
  turned := ring_position <> (SELECT r.last_value FROM idempotence.ring r);
  IF turned OR written <> segments THEN
    DELETE FROM idempotence.outcome t WHERE t.session = o.session AND t.key = o.key AND t.segment = ANY (written);
  END IF;
  RETURN CASE WHEN NOT turned THEN written = segments END;
END $$;

CREATE OR REPLACE FUNCTION idempotence._take_out(o idempotence.outcome)
RETURNS void
LANGUAGE sql AS $$
  DELETE FROM idempotence.outcome t WHERE t.session = (o).session AND t.key = (o).key AND t.segment = (o).segment
$$;

-- Removes the lease and the checkpoint that were read, where there were any. False if another transaction has
-- changed them.
CREATE OR REPLACE FUNCTION idempotence._drop_pending(p idempotence.pending)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF p.session IS NULL THEN
    RETURN true;
  END IF;
  DELETE FROM idempotence.pending q
  WHERE q.session = p.session AND q.request = p.request
    AND (q.token, q.leased_until, q.written_at) IS NOT DISTINCT FROM (p.token, p.leased_until, p.written_at);
  RETURN FOUND;
END $$;

-- Verifies at COMMIT that a request which this transaction has begun is still its own.
--
-- The claim of a request is its lock, and PostgreSQL releases locks early in one case: a cursor that fails in a
-- savepoint takes along all locks that its earlier rows have acquired, of requests and of tables. The rows that
-- were written stay. So another transaction may have begun the request meanwhile.
CREATE OR REPLACE FUNCTION idempotence._verify_claim(o idempotence.outcome)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  s idempotence.session;
  locks bigint[];
  lost boolean := false;
BEGIN
  SELECT * INTO s FROM idempotence.session t WHERE t.id = o.session;
  locks := idempotence._locks_of(s, o.key);
  IF s.ended_at IS NOT NULL OR current_setting('transaction_isolation') <> 'read committed' THEN
    -- The session may have been exported, and an old snapshot does not show what others have committed.
    lost := NOT idempotence._is_mine(locks[1]);
  ELSIF idempotence._try_locks(locks) THEN
    lost := EXISTS (SELECT FROM idempotence.outcome t
                    WHERE t.session = o.session AND t.key = o.key AND t.segment IS DISTINCT FROM o.segment
                      AND t.expires_at > clock_timestamp() AND t.recorded_at IS DISTINCT FROM o.recorded_at)
            OR EXISTS (SELECT FROM idempotence.pending p
                       WHERE p.session = o.session AND p.request = o.key AND p.leased_until > clock_timestamp()
                         AND p.token IS DISTINCT FROM o.token);
  ELSIF o.class IN ('s', 'f', 'c') THEN
    -- Another transaction holds the lock. It has not begun the request yet if the outcome can be written into all
    -- segments: then its begin will find it. Otherwise this waits for it, not long, and fails with 55P03. The error is
    -- not caught, because a subtransaction must not be rolled back during COMMIT.
    PERFORM idempotence._limit_waits(clock_timestamp() + interval '100 milliseconds');
    FOR n IN 0..3 LOOP
      CONTINUE WHEN EXISTS (SELECT FROM idempotence.outcome t
                            WHERE t.session = o.session AND t.key = o.key AND t.segment = n
                              AND t.recorded_at = o.recorded_at);
      o.segment := n;
      lost := lost OR idempotence._put(o, clock_timestamp()) IS NULL;
    END LOOP;
    lost := lost OR EXISTS (SELECT FROM idempotence.session t WHERE t.id = o.session AND t.ended_at IS NOT NULL);
  ELSE
    lost := true;
  END IF;
  IF lost THEN
    PERFORM idempotence._refuse('lost claim', idempotence._named(s.name, o.key));
  END IF;
END $$;

-- Refuses to commit an open row. SET CONSTRAINTS ALL IMMEDIATE must not make each begin fail: if the trigger fires
-- within a begin, the row is touched once more, and the trigger fires again at COMMIT.
CREATE OR REPLACE FUNCTION idempotence._at_commit()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  o idempotence.outcome;
BEGIN
  SELECT * INTO o FROM idempotence.outcome t
  WHERE t.session = NEW.session AND t.key = NEW.key AND t.segment = NEW.segment;
  IF NOT FOUND THEN
    RETURN NULL;
  ELSIF o.class IN ('o', 'k') AND pg_trigger_depth() > 1 THEN
    SET CONSTRAINTS idempotence.unrecorded DEFERRED;
    PERFORM idempotence._put(o, 'infinity');
  ELSIF o.class = 'o' THEN
    PERFORM idempotence._refuse('unrecorded', idempotence._named(s.name, o.key))
    FROM idempotence.session s WHERE s.id = o.session;
  ELSE
    PERFORM idempotence._verify_claim(o);
    IF o.class = 'k' THEN
      PERFORM idempotence._take_out(o);
    END IF;
  END IF;
  RETURN NULL;
END $$;

-- Makes the COMMIT of this transaction wait for its flush, whatever synchronous_commit says.
CREATE OR REPLACE FUNCTION idempotence._flush_at_commit()
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- The same for a lease that was granted or extended. Its holder is told of it, so a crash must not undo it. The
-- setting is made here, at COMMIT, because a function that calls idem_begin() may have a setting of its own.
CREATE OR REPLACE FUNCTION idempotence._at_lease_commit()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  o idempotence.outcome;
BEGIN
  PERFORM idempotence._flush_at_commit();
  IF NOT EXISTS (SELECT FROM idempotence.pending p
                 WHERE p.session = NEW.session AND p.request = NEW.request AND p.token = NEW.token) THEN
    RETURN NULL;
  ELSIF pg_trigger_depth() > 1 THEN
    SET CONSTRAINTS idempotence.leased DEFERRED;
    UPDATE idempotence.pending p SET leased_until = p.leased_until
    WHERE p.session = NEW.session AND p.request = NEW.request;
    RETURN NULL;
  END IF;
  o.session := NEW.session;
  o.key := NEW.request;
  o.token := NEW.token;
  o.class := 'l';
  PERFORM idempotence._verify_claim(o);
  RETURN NULL;
END $$;

-- Under REPEATABLE READ and SERIALIZABLE: refuses a request of which something is committed that the snapshot does
-- not show, and a session that was changed since. A unique index knows all rows, so inserting tells; what was
-- inserted is rolled back.
CREATE OR REPLACE FUNCTION idempotence._probe(s idempotence.session, k text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    RETURN;
  END IF;
  INSERT INTO idempotence.pending (session, request) VALUES (s.id, k) ON CONFLICT DO NOTHING;
  INSERT INTO idempotence.outcome
  SELECT s.id, n, 'x', now(), now(), k, '' FROM generate_series(0, 3) n
  ON CONFLICT DO NOTHING;
  PERFORM FROM idempotence.session t WHERE t.id = s.id FOR SHARE;
  RAISE EXCEPTION USING ERRCODE = 'ID000';
EXCEPTION
  WHEN SQLSTATE 'ID000' THEN
    NULL;
  WHEN serialization_failure THEN
    PERFORM idempotence._refuse('unseen', idempotence._named(s.name, k));
END $$;

-- The last check of a call that has written: the session is still open, and its locks are those that the call
-- holds. What was written holds a lock on its table, which an export waits for; so an export waits for each call
-- that passes this.
CREATE OR REPLACE FUNCTION idempotence._verify_session(who name, s idempotence.session)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  latest idempotence.session;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT * INTO latest FROM idempotence.session t WHERE t.id = s.id;
  ELSE
    BEGIN
      -- A row lock looks at the row as it is now. The subtransaction is rolled back, and the lock released.
      SELECT * INTO latest FROM idempotence.session t WHERE t.id = s.id FOR SHARE;
      RAISE EXCEPTION USING ERRCODE = 'ID000';
    EXCEPTION
      WHEN SQLSTATE 'ID000' THEN
        NULL;
      WHEN serialization_failure THEN
        PERFORM idempotence._refuse('altered', s.name);
    END;
  END IF;
  IF latest.ended_at IS NOT NULL OR latest.secret <> s.secret THEN
    PERFORM idempotence._session_of(who, s.name, false, 'use its requests');
    IF NOT s.inbox THEN
      PERFORM idempotence._refuse('altered', s.name);
    END IF;
  END IF;
END $$;
-- Acquires the lock of a request for a call that must have it; s becomes the session as it is then.
CREATE OR REPLACE FUNCTION idempotence._take(INOUT s idempotence.session, k text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  until timestamptz := idempotence._until(NULL);
  locks bigint[] := idempotence._locks_of(s, k);
  former bigint[];
BEGIN
  LOOP
    WHILE NOT idempotence._try_locks(locks) LOOP
      IF NOT (idempotence._wait_for(locks, until)).free AND NOT idempotence._meets_lookups(locks, until) THEN
        PERFORM idempotence._in_progress(idempotence._named(s.name, k), NULL,
                                         'Try again as it is, or wait longer (setting idempotence.wait).');
      END IF;
    END LOOP;
    -- The session may have got another secret during the wait.
    SELECT * INTO s FROM idempotence.session t WHERE t.id = s.id;
    former := locks;
    locks := idempotence._locks_of(s, k);
    EXIT WHEN locks = former;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION idempotence._may(who name, s idempotence.session, owned boolean)
RETURNS boolean
LANGUAGE sql STABLE
RETURN pg_has_role(who, s.owner, 'USAGE')
       OR NOT owned AND s.usable_by IS NOT NULL AND pg_has_role(who, s.usable_by, 'USAGE');

-- The session, if the role may use it or, with owned, has the privileges of its owner.
CREATE OR REPLACE FUNCTION idempotence._session_of(who name, session text, owned boolean, action text)
RETURNS idempotence.session
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  s idempotence.session;
BEGIN
  IF session IS NULL THEN
    PERFORM idempotence._must('session', true);
  END IF;
  SELECT * INTO s FROM idempotence.session t WHERE t.name = session AND t.ended_at IS NULL;
  IF NOT FOUND THEN
    PERFORM idempotence._refuse('no session', session);
  ELSIF NOT idempotence._may(who, s, owned) THEN
    PERFORM idempotence._refuse(CASE WHEN owned THEN 'not owner' ELSE 'not user' END, session, action);
  END IF;
  RETURN s;
END $$;

CREATE OR REPLACE FUNCTION idempotence._ttl_of(s idempotence.session)
RETURNS interval
LANGUAGE sql STABLE
RETURN coalesce(s.ttl, (SELECT make_interval(secs => extract(epoch FROM c.retention)::float8)
                        FROM idempotence.settings c));

-- Begins a request, for one of four aims: begin, claim, run, settle.
--
-- 1. Look for an outcome, and return it. A replay needs no lock.
-- 2. Look for a lease that has not ended; wait for its end, without the lock of the request.
-- 3. Acquire the lock, waiting for it as long as allowed, and start again at 1: what was committed before is visible.
-- 4. With the lock: decide, and write (_start_request). If rows of another transaction turn up there, start again at 1.
CREATE OR REPLACE FUNCTION idempotence._begin_request(
  who name, session text, request text, payload jsonb, response jsonb, wait interval, lease interval, aim text)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  at timestamptz := clock_timestamp();
  s idempotence.session := idempotence._session_of(who, session, false, 'use its requests');
  latest idempotence.session;
  locks bigint[];
  o idempotence.outcome;
  p idempotence.pending;
  t idempotence.idem_ticket;
  k text;
  named text;
  fp uuid;
  made timestamptz;
  moment timestamptz;
  until timestamptz;
  locked boolean := false;
  free boolean;
BEGIN
  IF s.inbox THEN
    PERFORM idempotence._refuse('inbox', session);
  END IF;
  SELECT * INTO k, made FROM idempotence._key_of(session, s.time_keys, request);
  named := idempotence._named(session, k);
  locks := idempotence._locks_of(s, k);
  IF payload IS NOT NULL THEN
    PERFORM idempotence._check_size('payload', named, payload);
    fp := idempotence.idem_fingerprint(payload);
  ELSIF s.require_payload AND aim <> 'settle' THEN
    PERFORM idempotence._refuse('null', 'payload', format('Session "%s" requires one with each request.', session));
  END IF;
  IF lease IS NOT NULL THEN
    lease := idempotence._duration('lease', lease, '10 milliseconds', '7 days');
  END IF;
  until := idempotence._until(wait);
  LOOP
    o := idempotence._find(s.id, k, at);
    IF o.class = 'o' THEN
      PERFORM idempotence._begun(named, aim);
    ELSIF o.class <> 'k' THEN
      PERFORM idempotence._mismatch(o.fingerprint, fp, named);
      t.replayed := idempotence._is_durable(until);
      t.status := idempotence._status_of(o.class);
      IF aim = 'claim' THEN
        PERFORM idempotence._refuse(
          'done', named || CASE o.class WHEN 'c' THEN ' was settled and is never executed' ELSE ' is already done' END,
          t.status, idempotence._moment(o.recorded_at));
      END IF;
      t.response := o.response;
      t.recorded_at := o.recorded_at;
      t.expires_at := o.expires_at;
      RETURN t;
    END IF;
    SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = k;
    moment := clock_timestamp();
    IF p.leased_until > moment THEN
      PERFORM idempotence._mismatch(p.fingerprint, fp, named);
      IF NOT locked AND idempotence._is_mine(locks[1]) THEN
        PERFORM idempotence._begun(named, aim);
      END IF;
      IF moment < until AND NOT locked AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM pg_sleep(extract(epoch FROM least(until - moment, p.leased_until - moment,
                                                  interval '100 milliseconds')));
        CONTINUE;
      END IF;
      t.expires_at := p.leased_until;
    ELSIF locked THEN
      t := idempotence._start_request(who, s, k, named, made, fp, response, lease, aim, at, until, p);
      CONTINUE WHEN t.status IS NULL;
      PERFORM idempotence._verify_session(who, s);
      RETURN t;
    ELSE
      locked := idempotence._try_locks(locks);
      CONTINUE WHEN locked;
      SELECT w.kept, w.free INTO locked, free FROM idempotence._wait_for(locks, until, s.id, k) w;
      IF free THEN
        -- The loan may have changed during the wait, and with it the secret. Otherwise the caller goes on under the rules
        -- that were in force when it asked; that the session is still open is verified before a request starts.
        SELECT * INTO latest FROM idempotence.session u WHERE u.id = s.id;
        IF NOT idempotence._may(who, latest, false) THEN
          PERFORM idempotence._refuse('not user', session, 'use its requests');
        END IF;
        s.secret := latest.secret;
        s.former_secret := latest.former_secret;
        locked := locked AND locks = idempotence._locks_of(s, k);
        locks := idempotence._locks_of(s, k);
        CONTINUE;
      END IF;
      CONTINUE WHEN idempotence._meets_lookups(locks, until);
    END IF;
    IF aim IN ('claim', 'run') THEN
      PERFORM idempotence._in_progress(named, t.expires_at);
    END IF;
    t.status := 'in_progress';
    t.replayed := false;
    RETURN t;
  END LOOP;
END $$;

-- Starts a request whose lock is held and of which p is all that is stored: gives it up, settles it, or claims it. The
-- status is NULL if another transaction's rows were in the way, so that all is to be read again.
CREATE OR REPLACE FUNCTION idempotence._start_request(
  who name, s idempotence.session, k text, named text, made timestamptz, fp uuid, response jsonb, lease interval,
  aim text, at timestamptz, until timestamptz, p idempotence.pending)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  ttl interval := idempotence._ttl_of(s);
  ran_out boolean := coalesce(p.leased_until + ttl > at, false);
  saved boolean := coalesce(p.point IS NOT NULL AND greatest(p.written_at, p.leased_until, made) + ttl > at, false);
  given_up boolean := ran_out AND p.attempt >= coalesce(s.max_attempts, 2147483647) AND aim <> 'settle';
  moment timestamptz;
  former text;
  o idempotence.outcome;
  t idempotence.idem_ticket;
  written boolean := true;
BEGIN
  IF NOT ran_out AND made + ttl <= at THEN
    PERFORM idempotence._refuse('too old', named, idempotence._in_words(ttl));
  END IF;
  -- A failed cursor may have released the lock of a request that is open. Then its row is what is waited for.
  former := idempotence._limit_waits(until);
  PERFORM idempotence._probe(s, k);
  IF ran_out OR saved THEN
    PERFORM idempotence._mismatch(p.fingerprint, fp, named);
    fp := coalesce(fp, p.fingerprint);
    IF aim = 'claim' OR aim = 'run' AND NOT given_up THEN
      PERFORM idempotence._refuse('must look', named,
        CASE WHEN given_up THEN 'A lease of it ran out, and all attempts that its session allows were begun.'
             WHEN NOT saved THEN 'A lease of it ran out: what its holder did outside the database may have happened.'
             WHEN ran_out
               THEN format('A lease of it ran out, at or after its checkpoint "%s": what its holder did outside the '
                           'database may have happened.', p.point)
             ELSE format('It stopped at its checkpoint "%s".', p.point) END,
        CASE WHEN given_up THEN 'Begin it with idem_begin(), which records that it has failed.'
             ELSE 'Begin it with idem_begin(), look whether its effect happened, and go on from the point that the '
                  'answer gives.' END);
    ELSIF saved AND NOT given_up THEN
      t.point := p.point;
      t.state := p.state;
    END IF;
  END IF;
  t.replayed := false;
  moment := clock_timestamp();
  o := ROW (s.id, NULL, 'o', moment, greatest(moment, made) + ttl, k, who, fp, NULL, NULL);
  IF given_up OR aim = 'settle' THEN
    IF given_up THEN
      o.class := 'f';
      o.response := jsonb_strip_nulls(jsonb_build_object(
        'attempts', p.attempt, 'point', CASE WHEN saved THEN p.point END));
      IF saved AND p.state IS NOT NULL
         AND pg_column_size(p.state) < (SELECT c.max_response - 4096 FROM idempotence.settings c) THEN
        o.response := o.response || jsonb_build_object('state', p.state);
      END IF;
    ELSE
      o.class := 'c';
      o.response := response;
      PERFORM idempotence._check_size('response', named, response);
      t.attempt := CASE WHEN ran_out THEN p.attempt END;
    END IF;
    -- A crash must not undo a verdict.
    PERFORM idempotence._flush_at_commit();
    o.segment := idempotence._put(o, at);
    written := o.segment IS NOT NULL AND idempotence._drop_pending(p);
    t.status := idempotence._status_of(o.class);
    t.replayed := given_up;
    t.response := o.response;
    t.recorded_at := o.recorded_at;
    t.expires_at := o.expires_at;
  ELSE
    t.status := CASE WHEN ran_out THEN 'taken_over' ELSE 'started' END;
    t.attempt := CASE WHEN ran_out THEN p.attempt + 1 ELSE 1 END;
    IF lease IS NULL THEN
      o.segment := idempotence._put(o, at);
      written := o.segment IS NOT NULL;
    END IF;
    IF written AND (lease IS NOT NULL OR p.token IS NOT NULL) THEN
      -- A token grows: the time in microseconds since 2000, or one more than the former. Without a lease nobody
      -- gets it.
      t.token := greatest((extract(epoch FROM moment) * 1000000)::bigint - 946684800000000, p.token + 1);
      INSERT INTO idempotence.pending AS q
      VALUES (s.id, k, fp, t.token, t.attempt, moment, moment + coalesce(lease, interval '0'), who,
              current_setting('application_name'))
      ON CONFLICT ON CONSTRAINT pending_pkey DO UPDATE
      SET (fingerprint, token, attempt, begun_at, leased_until, holder, application, point, state, written_at)
        = (EXCLUDED.fingerprint, EXCLUDED.token, EXCLUDED.attempt, EXCLUDED.begun_at, EXCLUDED.leased_until,
           EXCLUDED.holder, EXCLUDED.application, t.point, t.state, CASE WHEN saved THEN q.written_at END)
      -- Only what was read is overwritten.
      WHERE (q.token, q.leased_until, q.written_at) IS NOT DISTINCT FROM (p.token, p.leased_until, p.written_at);
      written := FOUND;
      t.token := CASE WHEN lease IS NOT NULL THEN t.token END;
      t.expires_at := moment + lease;
    END IF;
  END IF;
  PERFORM set_config('lock_timeout', former, true);
  IF NOT written THEN
    IF o.segment IS NOT NULL THEN
      PERFORM idempotence._take_out(o);
    END IF;
    RETURN NULL;
  END IF;
  RETURN t;
END $$;
CREATE OR REPLACE FUNCTION idempotence._begun(named text, aim text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  PERFORM idempotence._refuse('begun', named,
    CASE aim WHEN 'claim' THEN 'Claim it once.'
             WHEN 'settle' THEN 'Record or release it: what this transaction does of it is not lost.'
             WHEN 'forget' THEN 'Record or release it; what is not recorded needs no forgetting.'
             ELSE 'Call idem_begin() once: (idem_begin(...)).* calls it once per column; write SELECT * FROM '
                  'idem_begin(...).' END);
END $$;

-- What a record, a checkpoint, a release or an extension is called for: the open row or, with a token, the lease.
-- done: the outcome was recorded with this very token.
CREATE OR REPLACE FUNCTION idempotence._held(
  who name, session text, request text, token bigint, called text,
  OUT s idempotence.session, OUT o idempotence.outcome, OUT p idempotence.pending, OUT done boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  at timestamptz := clock_timestamp();
  k text;
  made timestamptz;
  named text;
BEGIN
  IF session IS NULL THEN
    PERFORM idempotence._must('session', true);
  END IF;
  -- What was begun is finished under the rules of its begin, whatever has become of the session.
  SELECT * INTO s FROM idempotence.session t WHERE t.name = session;
  IF NOT FOUND THEN
    PERFORM idempotence._session_of(who, session, false, 'use its requests');
  END IF;
  IF s.inbox THEN
    PERFORM idempotence._refuse('inbox', session);
  END IF;
  SELECT * INTO k, made FROM idempotence._key_of(session, s.time_keys, request);
  named := idempotence._named(session, k);
  o := idempotence._find(s.id, k, at);
  SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = k;
  -- The role that has begun the request is named in the open row.
  IF token IS NULL AND o.class IN ('o', 'k') AND (o.recorded_by = who OR idempotence._may(who, s, false)) THEN
    -- A begin refuses while there is a lease, so a lease that is in force now was granted since: see _verify_claim.
    IF p.leased_until > at THEN
      PERFORM idempotence._refuse('lost claim', named);
    END IF;
    RETURN;
  ELSIF NOT (idempotence._may(who, s, false) OR coalesce(token = p.token AND p.holder = who, false))
        OR s.ended_at IS NOT NULL AND token IS NULL THEN
    PERFORM idempotence._session_of(who, session, false, 'use its requests');
  END IF;
  IF token IS NULL THEN
    done := o.class IS NOT NULL;
    IF EXISTS (SELECT FROM idempotence.outcome t WHERE t.session = s.id AND t.key = k AND t.class IN ('o', 'k')) THEN
      PERFORM idempotence._refuse('lost claim', named);
    END IF;
    PERFORM idempotence._refuse('not begun', named, called,
      CASE WHEN done THEN 'this one has been recorded already'
           WHEN p.leased_until > at THEN 'this one was begun with a lease, and the call has no token'
           ELSE 'this one was not begun here, or a rollback to a savepoint took it back' END,
      CASE WHEN done THEN 'A request has one outcome; a new operation needs a key of its own.'
           WHEN p.leased_until > at
             THEN 'If idem_begin() gave you the lease, give its token (token => ...). If it did not, whoever has the '
                  'lease is at work on the request.'
           ELSE 'Call idem_begin() first, in the same transaction, and go on only when its status is "started" or '
                '"taken_over". In autocommit each statement is a transaction of its own.' END);
  END IF;
  s := idempotence._take(s, k);
  o := idempotence._find(s.id, k, at);
  SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = k;
  done := coalesce(o.token = token, false);
  IF o.class NOT IN ('o', 'k') OR p.token IS DISTINCT FROM token THEN
    IF done AND called = 'idem_record' AND idempotence._is_durable(at) THEN
      RETURN;
    END IF;
    PERFORM idempotence._probe(s, k);  -- The lease may be newer than the snapshot.
    PERFORM idempotence._refuse('superseded', token::text, named,
      CASE WHEN done THEN 'The outcome was recorded with this token, which ended its lease.'
           WHEN o.class = 'c' THEN 'The request was settled, and is never to be executed.'
           WHEN o.class IN ('s', 'f')
             THEN format('The request is done, with status "%s", and another caller has recorded that.',
                         idempotence._status_of(o.class))
           ELSE 'No lease of this request has this token: the request was taken over, released or given up, or its '
                'lease was lost in a crash. Or the begin that gave the token was rolled back, or it is the token of '
                'another request.' END,
      CASE WHEN done THEN 'Nothing is left to do: idem_lookup() gives the outcome.'
           ELSE 'Stop the work: somebody else may be doing it. Ask idem_begin() or idem_lookup() what became of the '
                'request. Under a claim without a lease leave token out.' END);
  END IF;
  o := ROW (s.id, NULL, 'o', at, greatest(at, made) + idempotence._ttl_of(s), k, who, p.fingerprint, token, NULL);
END $$;

CREATE OR REPLACE FUNCTION idempotence._record_request(
  who name, session text, request text, response jsonb, failed boolean, token bigint, ttl interval)
RETURNS idempotence.outcome
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  h record;
  o idempotence.outcome;
  named text;
  made timestamptz;
  whole interval;
BEGIN
  IF failed IS NULL THEN
    PERFORM idempotence._must('failed', true);
  END IF;
  SELECT * INTO h FROM idempotence._held(who, session, request, token, 'idem_record');
  o := h.o;
  IF h.done THEN
    RETURN o;
  END IF;
  named := idempotence._named(session, o.key);
  IF response IS NOT NULL THEN
    PERFORM idempotence._check_size('response', named, response);
  END IF;
  SELECT r.made INTO made FROM idempotence._key_of(session, (h.s).time_keys, o.key) r;
  whole := o.expires_at - greatest(o.recorded_at, made);  -- as it was at the begin
  IF ttl IS NOT NULL THEN
    PERFORM idempotence._refuse('ttl', named, wrong, idempotence._in_words(whole))
    FROM (SELECT CASE WHEN ttl <= interval '0' THEN 'is not positive'
                      WHEN ttl > whole THEN 'is longer than the session''s'
                      WHEN ttl < whole AND (h.s).time_keys
                        THEN 'is shorter than the session''s, whose time_keys rest on it'
                 END) w (wrong)
    WHERE wrong IS NOT NULL;
  END IF;
  o.class := CASE WHEN failed THEN 'f' ELSE 's' END;
  o.response := response;
  o.recorded_by := who;
  o.recorded_at := clock_timestamp();
  o.expires_at := greatest(o.recorded_at, made) + coalesce(ttl, whole);
  IF idempotence._put(o, o.recorded_at) IS NULL
     OR (h.p).session IS NOT NULL AND NOT idempotence._drop_pending(h.p) THEN
    PERFORM idempotence._refuse('beside', named);
  END IF;
  RETURN o;
END $$;

-- Saves how far a request has got, or (point is NULL) gives it up.
CREATE OR REPLACE FUNCTION idempotence._leave_request(
  who name, session text, request text, point text, state jsonb, token bigint, called text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  h record;
  o idempotence.outcome;
BEGIN
  IF point IS NULL AND called = 'idem_checkpoint' THEN
    PERFORM idempotence._must('point', true);
  END IF;
  SELECT * INTO h FROM idempotence._held(who, session, request, token, called);
  o := h.o;
  IF called = 'idem_checkpoint' THEN
    IF length(point) > 255 THEN
      PERFORM idempotence._refuse(
        'limit', 'the point of ' || idempotence._named(session, o.key), length(point) || ' characters',
        '255 characters', 'A point is a name for where to go on; what that needs belongs in state.');
    END IF;
    IF state IS NOT NULL THEN
      PERFORM idempotence._check_size('state', idempotence._named(session, o.key), state);
    END IF;
    -- A checkpoint without a token ends the lease of the former holder, whose steps are done.
    INSERT INTO idempotence.pending AS q (session, request, fingerprint, point, state, written_at)
    VALUES (o.session, o.key, o.fingerprint, point, state, clock_timestamp())
    ON CONFLICT ON CONSTRAINT pending_pkey DO UPDATE
    SET (fingerprint, point, state, written_at)
      = (EXCLUDED.fingerprint, EXCLUDED.point, EXCLUDED.state, EXCLUDED.written_at)
    WHERE q.token IS NOT DISTINCT FROM (h.p).token;
    IF NOT FOUND THEN
      PERFORM idempotence._refuse('beside', idempotence._named(session, o.key));
    END IF;
    IF token IS NULL THEN
      o.class := 'k';
      PERFORM idempotence._put(o, clock_timestamp());
    END IF;
  ELSIF token IS NULL THEN
    PERFORM idempotence._take_out(o);
  ELSE
    DELETE FROM idempotence.pending q
    WHERE q.session = o.session AND q.request = o.key AND q.point IS NULL AND q.token = token;
  END IF;
  -- A release with a token ends the lease. So does a checkpoint without: it was begun after the lease, and
  -- superseded it.
  IF (called = 'idem_checkpoint') = (token IS NULL) THEN
    UPDATE idempotence.pending q
    SET (token, attempt, begun_at, leased_until, holder, application) = (NULL, NULL, NULL, NULL, NULL, NULL)
    WHERE q.session = o.session AND q.request = o.key AND q.token = (h.p).token;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION idempotence._extend_lease(who name, session text, request text, token bigint, lease interval)
RETURNS timestamptz
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  h record;
  until timestamptz;
BEGIN
  PERFORM idempotence._must('token', token IS NULL), idempotence._must('lease', lease IS NULL);
  lease := idempotence._duration('lease', lease, '10 milliseconds', '7 days');
  SELECT * INTO h FROM idempotence._held(who, session, request, token, 'idem_extend');
  UPDATE idempotence.pending q
  SET (leased_until, holder, application)
    = (greatest(q.leased_until, clock_timestamp() + lease), who, current_setting('application_name'))
  WHERE q.session = (h.p).session AND q.request = (h.p).request AND q.token = token
  RETURNING q.leased_until INTO until;
  IF NOT FOUND THEN
    PERFORM idempotence._refuse('beside', idempotence._named(session, (h.p).request));
  END IF;
  RETURN until;
END $$;

-- Records keys as seen; returns the positions in the array of those that were seen for the first time.
CREATE OR REPLACE FUNCTION idempotence._note_keys(who name, session text, requests text[], called text)
RETURNS bigint[]
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  at timestamptz := clock_timestamp();
  s idempotence.session := idempotence._session_of(who, session, false, 'use its requests');
  until timestamptz := idempotence._until(NULL);
  most bigint := (SELECT c.max_batch FROM idempotence.settings c);
  former text;
  fresh bigint[] := '{}';
  is_new boolean;
  o idempotence.outcome;
  k text;
  made timestamptz;
  place bigint;
  ring_position bigint;
BEGIN
  IF NOT s.inbox THEN
    PERFORM idempotence._refuse('no inbox', session);
  END IF;
  IF requests IS NULL THEN
    PERFORM idempotence._must('requests', true);
  END IF;
  IF cardinality(requests) > most THEN
    PERFORM idempotence._refuse(
      'limit', format('the number of requests of session "%s" in one call', session), cardinality(requests)::text,
      most::text, 'Send them in several calls, or raise idempotence.max_batch.');
  END IF;
  -- Another transaction that has recorded a key and has not ended yet is waited for.
  former := idempotence._limit_waits(until);
  -- In the order of the keys, so that batches that overlap do not wait for each other in a circle.
  FOR place, k IN
    SELECT min(r.place), r.key FROM unnest(requests) WITH ORDINALITY r (key, place)
    GROUP BY r.key ORDER BY r.key COLLATE "C"
  LOOP
    IF k IS NULL AND called = 'idem_once_many' THEN
      PERFORM idempotence._refuse('null element', place::text);
    END IF;
    SELECT * INTO k, made FROM idempotence._key_of(session, s.time_keys, k);
    LOOP
      -- Before the search: see _put_seen.
      SELECT r.last_value INTO ring_position FROM idempotence.ring r;
      is_new := false;
      EXIT WHEN (idempotence._find(s.id, k, at)).class IS NOT NULL;
      IF made + s.ttl <= at THEN
        PERFORM idempotence._refuse('too old', idempotence._named(session, k), idempotence._in_words(s.ttl));
      END IF;
      o := ROW (s.id, NULL, 's', at, greatest(at, made) + idempotence._ttl_of(s), k, who, NULL, NULL, NULL);
      is_new := idempotence._put_seen(s, o, at, ring_position);
      EXIT WHEN is_new IS NOT NULL;
    END LOOP;
    IF is_new THEN
      fresh := fresh || place;
    END IF;
  END LOOP;
  PERFORM set_config('lock_timeout', former, true);
  IF cardinality(fresh) < cardinality(requests) THEN
    PERFORM idempotence._is_durable(until);
  END IF;
  PERFORM idempotence._verify_session(who, s);
  RETURN (SELECT coalesce(array_agg(f ORDER BY f), '{}') FROM unnest(fresh) f);
END $$;
CREATE OR REPLACE FUNCTION idempotence._note(who name, action text, session text, request text, reason text, found text)
RETURNS void
LANGUAGE sql AS $$
  INSERT INTO idempotence.audit (by, action, session, request, reason, found) VALUES ($1, $2, $3, $4, $5, $6)
$$;

-- The session, dropped or not, for a repair by its owner, which takes a reason.
CREATE OR REPLACE FUNCTION idempotence._session_to_repair(who name, session text, reason text, action text)
RETURNS idempotence.session
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  s idempotence.session;
BEGIN
  IF reason IS NULL THEN
    PERFORM idempotence._must('reason', true);
  ELSIF reason = '' THEN
    PERFORM idempotence._refuse('reason');
  ELSIF length(reason) > 1000 THEN
    PERFORM idempotence._refuse('limit', 'the reason', length(reason) || ' characters', '1000 characters',
                                'Say it in fewer words.');
  END IF;
  SELECT * INTO s FROM idempotence.session t WHERE t.name = session AND idempotence._may(who, t, true);
  RETURN CASE WHEN s.id IS NOT NULL THEN s ELSE idempotence._session_of(who, session, true, action) END;
END $$;

CREATE OR REPLACE FUNCTION idempotence._forget_request(who name, session text, request text, reason text)
RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  former text := current_setting('lock_timeout');
  s idempotence.session := idempotence._session_to_repair(who, session, reason, 'forget a request of it');
  k text := (idempotence._key_of(session, s.time_keys, request)).k;
  o idempotence.outcome;
  p idempotence.pending;
  what text;
BEGIN
  s := idempotence._take(s, k);
  PERFORM idempotence._limit_waits(idempotence._until(NULL));
  PERFORM idempotence._probe(s, k);
  SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = k;
  IF p.leased_until > clock_timestamp() THEN
    PERFORM idempotence._in_progress(idempotence._named(session, k), p.leased_until,
                                     'Try again when the lease has run out.');
  END IF;
  LOOP
    o := idempotence._find(s.id, k, clock_timestamp());
    EXIT WHEN o.class IS NULL;
    IF o.class IN ('o', 'k') THEN
      PERFORM idempotence._begun(idempotence._named(session, k), 'forget');
    END IF;
    what := idempotence._status_of(o.class) || ' outcome';
    PERFORM idempotence._take_out(o);
  END LOOP;
  IF p.session IS NOT NULL THEN
    what := concat_ws(', ', what, CASE WHEN p.point IS NOT NULL THEN 'checkpoint' END,
                      CASE WHEN p.token IS NOT NULL THEN 'lease that ran out' END);
    IF NOT idempotence._drop_pending(p) THEN
      PERFORM idempotence._refuse('beside', idempotence._named(session, k));
    END IF;
  END IF;
  PERFORM set_config('lock_timeout', former, true);
  IF what IS NOT NULL THEN
    PERFORM idempotence._note(who, 'forget', session, k, reason, what);
  END IF;
  RETURN what IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION idempotence._differences(a idempotence.session, b idempotence.session, told text, glue text)
RETURNS text
LANGUAGE sql STABLE
RETURN (SELECT string_agg(format(told, option, was, is_now), glue ORDER BY n)
        FROM (VALUES (1, 'inbox', a.inbox::text, b.inbox::text),
                     (2, 'time_keys', a.time_keys::text, b.time_keys::text),
                     (3, 'require_payload', a.require_payload::text, b.require_payload::text),
                     (4, 'ttl', coalesce(idempotence._in_words(a.ttl), 'that of idempotence.retention'),
                                coalesce(idempotence._in_words(b.ttl), 'that of idempotence.retention')),
                     (5, 'max_attempts', coalesce(a.max_attempts::text, 'without a limit'),
                                         coalesce(b.max_attempts::text, 'without a limit')),
                     (6, 'owner', a.owner::text, b.owner::text),
                     (7, 'usable_by', coalesce(a.usable_by::text, '-'), coalesce(b.usable_by::text, '-'))
             ) d (n, option, was, is_now)
        WHERE was <> is_now);

-- Makes a session, changes or drops it. What is NULL stays as it is.
CREATE OR REPLACE FUNCTION idempotence._save_session(
  who name, act text, session text, ttl interval, owner oid, usable_by oid, options jsonb)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  former idempotence.session;
  s idempotence.session;
  attempts integer := (options ->> 'max_attempts')::integer;
  most interval := (SELECT c.max_ttl FROM idempotence.settings c);
  doing text := CASE act WHEN 'drop' THEN 'drop it' ELSE 'change it' END;
  locks bigint[] := ARRAY[idempotence._lock_of((SELECT c.secret FROM idempotence.settings c), session)];
  until timestamptz := idempotence._until(NULL);
  new_secret boolean;
BEGIN
  IF session IS NULL THEN
    PERFORM idempotence._must('session', true);
  END IF;
  PERFORM idempotence._must(o, options ->> o IS NULL)
  FROM unnest('{require_payload,inbox,time_keys}'::text[]) o WHERE act = 'create';
  IF session = '' THEN
    PERFORM idempotence._refuse('no name');
  END IF;
  IF session ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(@|$)' THEN
    PERFORM idempotence._refuse('client name', session);
  END IF;
  IF length(session) > 255 THEN
    PERFORM idempotence._refuse('limit', 'the name of a session', length(session) || ' characters', '255 characters',
                                'Choose a shorter name.');
  END IF;
  IF act = 'create' AND (options ->> 'time_keys')::boolean AND ttl IS NULL THEN
    PERFORM idempotence._refuse('needs ttl', session);
  END IF;
  IF attempts NOT BETWEEN 0 AND 1000000 THEN
    PERFORM idempotence._refuse('attempts', session, attempts::text);
  END IF;
  PERFORM idempotence._refuse('no role', r::text) FROM unnest(ARRAY[owner, usable_by]) r
  WHERE r <> 0 AND NOT EXISTS (SELECT FROM pg_roles p WHERE p.oid = r);
  ttl := idempotence._duration('ttl', ttl, '1 second', '3650 days');
  IF act <> 'create' THEN
    PERFORM idempotence._session_of(who, session, true, doing);
  END IF;
  IF NOT pg_has_role(who, owner, 'USAGE') THEN
    PERFORM idempotence._refuse('cannot give', pg_get_userbyid(owner), session);
  END IF;
  WHILE NOT idempotence._try_locks(locks) LOOP
    IF NOT (idempotence._wait_for(locks, until)).free THEN
      PERFORM idempotence._in_progress(format('another transaction''s change of session "%s"', session), NULL,
                                       'Try again as it is, or wait longer (setting idempotence.wait).');
    END IF;
  END LOOP;
  SELECT * INTO former FROM idempotence.session t WHERE t.name = session;
  IF act <> 'create' THEN
    PERFORM idempotence._session_of(who, session, true, doing);
  END IF;
  IF former.id IS NOT NULL AND NOT idempotence._may(who, former, true) THEN
    PERFORM idempotence._refuse('not owner', session, CASE WHEN former.ended_at IS NULL THEN 'make it again'
                                                           ELSE 'make the dropped session again' END);
  END IF;
  s := former;
  s.owner := coalesce(owner, former.owner::oid, (SELECT r.oid FROM pg_roles r WHERE r.rolname = who));
  s.usable_by := CASE WHEN usable_by IS NULL THEN former.usable_by ELSE nullif(usable_by, 0)::regrole END;
  s.ttl := CASE WHEN act = 'create' THEN ttl ELSE coalesce(ttl, former.ttl) END;
  s.require_payload := coalesce((options ->> 'require_payload')::boolean, former.require_payload);
  s.inbox := CASE act WHEN 'create' THEN (options ->> 'inbox')::boolean ELSE former.inbox END;
  s.time_keys := CASE act WHEN 'create' THEN (options ->> 'time_keys')::boolean ELSE former.time_keys END;
  s.max_attempts := CASE WHEN act <> 'create' AND attempts IS NULL THEN former.max_attempts
                         ELSE nullif(attempts, 0) END;
  IF s.inbox AND s.max_attempts IS NOT NULL THEN
    PERFORM idempotence._refuse('inbox attempts', session);
  END IF;
  IF act = 'alter' AND s.time_keys AND s.ttl <> former.ttl THEN
    PERFORM idempotence._refuse('fixed ttl', session);
  END IF;
  IF s.ttl > most AND s.ttl IS DISTINCT FROM former.ttl THEN
    PERFORM idempotence._refuse(
      'limit', format('the ttl of session "%s"', session), idempotence._in_words(s.ttl), idempotence._in_words(most),
      'Ask for a shorter one, or have a superuser raise idempotence.max_ttl.');
  END IF;
  IF act = 'create' AND former.id IS NOT NULL
     AND (CASE WHEN former.ended_at IS NULL THEN idempotence._differences(former, s, '%s', '') IS NOT NULL
               ELSE (s.inbox, s.time_keys) <> (former.inbox, former.time_keys)
                    OR s.time_keys AND s.ttl <> former.ttl END) THEN
    PERFORM idempotence._refuse('exists', session,
                                CASE WHEN former.ended_at IS NULL THEN 'already exists' ELSE 'was dropped' END,
                                idempotence._differences(former, s, '%s is %s, not %s', '; its '));
  END IF;
  IF former.id IS NULL THEN
    PERFORM idempotence._refuse('lost', session)
    WHERE NOT EXISTS (SELECT FROM idempotence.session) AND EXISTS (SELECT FROM idempotence.outcome);
    INSERT INTO idempotence.session (name, owner, usable_by, ttl, require_payload, inbox, time_keys, max_attempts)
    VALUES (session, s.owner, s.usable_by, s.ttl, s.require_payload, s.inbox, s.time_keys, s.max_attempts)
    ON CONFLICT DO NOTHING;
  ELSIF act = 'create' AND former.ended_at IS NULL THEN
    RAISE NOTICE 'session "%" already exists with the same options, skipping', idempotence._legible(session);
  ELSE
    -- A role that may no longer use the session may know the numbers of locks, from pg_locks. The former secret
    -- stays in force beside the new one until the sweep has seen all transactions end that may have read it alone.
    new_secret := (s.owner, s.usable_by) IS DISTINCT FROM (former.owner, former.usable_by);
    UPDATE idempotence.session t
    SET (owner, usable_by, ttl, require_payload, max_attempts, ended_at, secret, former_secret, former_until)
      = (s.owner, s.usable_by, s.ttl, s.require_payload, s.max_attempts,
         CASE WHEN act = 'drop' THEN clock_timestamp() END,
         CASE WHEN new_secret THEN gen_random_uuid() ELSE t.secret END,
         CASE WHEN new_secret THEN coalesce(t.former_secret, t.secret) ELSE t.former_secret END,
         CASE WHEN NOT new_secret THEN t.former_until END)
    WHERE t.id = s.id;
  END IF;
END $$;
-- The door. Roles may update some of its columns and read the last ones; that gives no right to lock it.
CREATE OR REPLACE VIEW idempotence.door AS
SELECT CURRENT_USER AS who, NULL::text AS act, NULL::text AS session, NULL::text AS request, NULL::jsonb AS payload,
       NULL::jsonb AS response, NULL::interval AS wait, NULL::interval AS lease, NULL::interval AS ttl,
       NULL::bigint AS token, NULL::boolean AS failed, NULL::text AS point, NULL::text[] AS requests,
       NULL::oid AS owner, NULL::oid AS usable_by, NULL::idempotence.idem_ticket AS ticket, NULL::bigint[] AS places;

-- No role may be granted EXECUTE on this function: it believes what the view reports of its caller.
CREATE OR REPLACE FUNCTION idempotence._enter()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  o idempotence.outcome;
BEGIN
  IF TG_RELID <> 'idempotence.door'::regclass THEN
    RAISE EXCEPTION 'this is not the door' USING ERRCODE = 'insufficient_privilege';
  END IF;
  IF NOT has_schema_privilege(OLD.who, 'idempotence', 'USAGE') THEN
    RAISE EXCEPTION 'permission denied for schema idempotence' USING ERRCODE = 'insufficient_privilege';
  END IF;
  NEW.ticket.status := 'done';
  CASE NEW.act
  WHEN 'begin', 'claim', 'run', 'settle' THEN
    NEW.ticket := idempotence._begin_request(
      OLD.who, NEW.session, NEW.request, NEW.payload, NEW.response, NEW.wait, NEW.lease, NEW.act);
  WHEN 'record' THEN
    o := idempotence._record_request(OLD.who, NEW.session, NEW.request, NEW.response, NEW.failed, NEW.token, NEW.ttl);
    NEW.ticket := ROW (idempotence._status_of(o.class), false, o.response, NULL, 1, NULL, NULL, o.recorded_at,
                       o.expires_at);
  WHEN 'idem_once', 'idem_once_many' THEN
    NEW.places := idempotence._note_keys(OLD.who, NEW.session, NEW.requests, NEW.act);
    NEW.ticket.replayed := NEW.places = '{}';
  WHEN 'idem_checkpoint', 'idem_release' THEN
    PERFORM idempotence._leave_request(
      OLD.who, NEW.session, NEW.request, NEW.point, NEW.response, NEW.token, NEW.act);
  WHEN 'extend' THEN
    NEW.ticket.expires_at := idempotence._extend_lease(OLD.who, NEW.session, NEW.request, NEW.token, NEW.lease);
  WHEN 'forget' THEN
    NEW.ticket.replayed := idempotence._forget_request(OLD.who, NEW.session, NEW.request, NEW.point);
  WHEN 'create', 'alter', 'drop' THEN
    PERFORM idempotence._save_session(OLD.who, NEW.act, NEW.session, NEW.ttl, NEW.owner, NEW.usable_by, NEW.payload);
  WHEN 'session' THEN
    PERFORM idempotence._session_of(OLD.who, NEW.session, false, 'use its requests');
  ELSE
    NEW := idempotence._move(OLD.who, NEW);  -- of idempotence_moving.sql
  END CASE;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER enter INSTEAD OF UPDATE ON idempotence.door
FOR EACH ROW EXECUTE FUNCTION idempotence._enter();

DROP TRIGGER IF EXISTS unrecorded ON idempotence.outcome;
CREATE CONSTRAINT TRIGGER unrecorded AFTER INSERT OR UPDATE ON idempotence.outcome
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.class IN ('o', 'k')) EXECUTE FUNCTION idempotence._at_commit();
DROP TRIGGER IF EXISTS leased ON idempotence.pending;
CREATE CONSTRAINT TRIGGER leased AFTER INSERT OR UPDATE OF leased_until ON idempotence.pending
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.token IS NOT NULL) EXECUTE FUNCTION idempotence._at_lease_commit();

-- Views. They read with the rights of the owner, and show each role its own: pg_has_role() asks for the current
-- user. With OFFSET 0 no condition of the caller's is evaluated before that; otherwise EXPLAIN ANALYZE would tell
-- which rows of other roles meet it.

-- A proof that the current role may use a session: own_session shows it, and _look_up asks for it. It is valid in
-- the backend and the transaction that have read it.
CREATE OR REPLACE FUNCTION idempotence._proof(secret uuid, session integer, who name)
RETURNS uuid
LANGUAGE sql STABLE
RETURN left(encode(sha256(convert_to(
  concat_ws(' ', secret, session, pg_backend_pid(), extract(epoch FROM now()), who), 'UTF8')), 'hex'), 32)::uuid;

-- The sessions that the current role may use, dropped ones too. Older versions showed the secrets of sessions in
-- this view: they are replaced, which is safe because no transaction is at work while this file is executed.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = pg_catalog.to_regclass('idempotence.own_session') AND a.attname = 'secret') THEN
    ALTER VIEW idempotence.own_session RENAME COLUMN secret TO proof;
    UPDATE idempotence.session SET secret = gen_random_uuid();
  END IF;
END $$;
CREATE OR REPLACE VIEW idempotence.own_session WITH (security_barrier) AS
SELECT s.name, pg_has_role(s.owner, 'USAGE') AS owned, s.ended_at, s.time_keys, s.inbox, s.id,
       idempotence._proof(c.secret, s.id, CURRENT_USER) AS proof,
       coalesce(s.ttl, make_interval(secs => extract(epoch FROM c.retention)::float8)) AS ttl, CURRENT_USER AS who
FROM idempotence.session s CROSS JOIN idempotence.settings c
WHERE has_schema_privilege('idempotence', 'USAGE')
  AND (pg_has_role(s.owner, 'USAGE') OR s.usable_by IS NOT NULL AND pg_has_role(s.usable_by, 'USAGE')) OFFSET 0;

CREATE OR REPLACE VIEW idempotence.sessions WITH (security_barrier) AS
SELECT s.name AS session, s.owner, CASE WHEN s.inbox THEN 'inbox' ELSE 'standing' END AS kind, o.ttl, s.require_payload,
       s.time_keys, s.created_at, s.usable_by, s.max_attempts
FROM idempotence.session s JOIN idempotence.own_session o ON o.id = s.id WHERE s.ended_at IS NULL OFFSET 0;

-- An outcome may have copies in several segments: _put_seen and _verify_claim write them. The first one is shown.
CREATE OR REPLACE VIEW idempotence.kept WITH (security_barrier) AS
SELECT s.name AS session, o.key AS request, o.class, idempotence._status_of(o.class) AS status, o.response,
       o.fingerprint, o.token, o.recorded_by, o.recorded_at, o.expires_at, nullif(o.segment, 3) AS segment
FROM idempotence.own_session s JOIN idempotence.outcome o ON o.session = s.id
WHERE NOT EXISTS (SELECT FROM idempotence.outcome d
                  WHERE d.session = o.session AND d.key = o.key AND d.segment < o.segment
                    AND d.recorded_at = o.recorded_at)
OFFSET 0;

CREATE OR REPLACE VIEW idempotence.outcomes WITH (security_barrier) AS
SELECT session, request, status, response, pg_column_size(response) AS response_bytes, fingerprint, recorded_by,
       recorded_at, expires_at, segment
FROM idempotence.kept WHERE class NOT IN ('o', 'k') AND expires_at > clock_timestamp();

-- As unfinished, with the state and the token.
CREATE OR REPLACE VIEW idempotence.own_pending WITH (security_barrier) AS
SELECT s.name AS session, p.*, s.ttl
FROM idempotence.own_session s
JOIN (SELECT p.session AS id, p.request, p.fingerprint, p.token, p.attempt, p.begun_at, p.leased_until, p.holder,
             p.application, p.point, p.state, p.written_at FROM idempotence.pending p) p USING (id)
OFFSET 0;

CREATE OR REPLACE VIEW idempotence.unfinished WITH (security_barrier) AS
SELECT session, NULL::text AS stream, request,
       CASE WHEN leased_until > clock_timestamp() THEN 'leased'
            WHEN leased_until + ttl > clock_timestamp() THEN 'run out'
            ELSE 'suspended' END AS state,
       leased_until, holder, application, attempt, point, coalesce(begun_at, written_at) AS since, NULL::bigint AS last
FROM idempotence.own_pending WHERE greatest(leased_until, written_at) + ttl > clock_timestamp();

-- What callers call. It runs with the rights of the caller.

-- Refuses what only client sessions have, and to write where nothing can be written.
CREATE OR REPLACE FUNCTION idempotence._check_call(
  called text, session text, stream text DEFAULT NULL, last bigint DEFAULT NULL, ack bigint DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF stream IS NOT NULL OR last IS NOT NULL OR ack IS NOT NULL THEN
    PERFORM idempotence._refuse(
      'argument', CASE WHEN stream IS NOT NULL THEN 'stream' WHEN last IS NOT NULL THEN 'last' ELSE 'ack' END, session);
  ELSIF NOT called OPERATOR(pg_catalog.=)
            ANY ('{idem_begin,idem_claim,idem_settle,idem_run,idem_lookup}'::pg_catalog.text[])
        AND pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
    PERFORM idempotence._refuse('read only', called, 'It would have to write.');
  END IF;
END $$;

-- What is stored of one request, and whether another transaction holds its lock. With until, the lock is waited for
-- first; free tells whether it became free.
--
-- The function runs with the rights of the owner, also where nothing can be written, so it is not told by the door who
-- calls. The caller gives its name and its proof from own_session, and must be allowed to use the session still.
CREATE OR REPLACE FUNCTION idempotence._look_up(
  id integer, who name, proof uuid, k text, until timestamptz DEFAULT NULL,
  OUT o idempotence.outcome, OUT p idempotence.pending, OUT held boolean, OUT free boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  s idempotence.session;
  locks bigint[];
  l record;
BEGIN
  SELECT * INTO s FROM idempotence.session t WHERE t.id = id;
  IF s.id IS NULL OR proof IS DISTINCT FROM idempotence._proof((SELECT c.secret FROM idempotence.settings c), id, who)
     OR NOT has_schema_privilege(who, 'idempotence', 'USAGE') OR NOT idempotence._may(who, s, false) THEN
    RAISE EXCEPTION 'permission denied for the requests of a session' USING ERRCODE = 'insufficient_privilege';
  END IF;
  locks := idempotence._locks_of(s, k);
  IF until IS NOT NULL THEN
    free := (idempotence._wait_for(locks, until)).free;
  END IF;
  held := idempotence._is_held(locks);
  -- In one statement: a record replaces the lease by the outcome.
  SELECT t AS o, q AS p INTO l
  FROM (VALUES (true)) one (row)
  LEFT JOIN LATERAL (SELECT u.* FROM idempotence.outcome u
                     WHERE u.session = id AND u.key = k AND (u.expires_at > clock_timestamp() OR u.class IN ('o', 'k'))
                     LIMIT 1) t ON true
  LEFT JOIN idempotence.pending q ON q.session = id AND q.request = k;
  o := l.o;
  p := l.p;
END $$;
-- A door whose trigger does not fire gives no answer.
CREATE OR REPLACE FUNCTION idempotence._answer(ticket idempotence.idem_ticket)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  IF ticket.status IS NULL THEN
    RAISE EXCEPTION 'the triggers of idempotence do not fire' USING
      ERRCODE = 'object_not_in_prerequisite_state',
      HINT = 'SET session_replication_role = origin.';
  END IF;
  RETURN ticket;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_lookup(
  session text, request text, stream text DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  at timestamptz := clock_timestamp();
  until timestamptz := at;
  durable timestamptz;
  s record;
  o idempotence.outcome;
  p idempotence.pending;
  t idempotence.idem_ticket;
  l record;
  k text;
  made timestamptz;
  held boolean;
  leased boolean;
BEGIN
  IF session IS NULL THEN
    PERFORM idempotence._must('session', true);
  END IF;
  SELECT * INTO s FROM idempotence.own_session v WHERE v.name = session;
  IF s.name IS NULL OR s.ended_at IS NOT NULL THEN
    IF NOT current_setting('transaction_read_only')::boolean THEN
      UPDATE idempotence.door SET act = 'session', session = session;
    END IF;
    PERFORM idempotence._refuse('no session', session);
  END IF;
  PERFORM idempotence._check_call('idem_lookup', session, stream);
  SELECT * INTO k, made FROM idempotence._key_of(session, s.time_keys, request);
  IF wait IS NOT NULL THEN
    until := idempotence._until(wait);
  END IF;
  durable := CASE WHEN wait IS NULL THEN idempotence._until(NULL) ELSE until END;
  LOOP
    SELECT * INTO l FROM idempotence._look_up(s.id, s.who, s.proof, k);
    o := l.o;
    p := l.p;
    held := l.held;
    IF o.class NOT IN ('o', 'k') THEN
      IF NOT idempotence._is_durable(durable) THEN
        RETURN ROW ('in_progress', false, NULL, NULL, NULL, NULL, NULL, o.recorded_at, NULL)::idempotence.idem_ticket;
      END IF;
      RETURN ROW (idempotence._status_of(o.class), false, o.response, NULL, NULL, NULL, NULL, o.recorded_at,
                  o.expires_at)::idempotence.idem_ticket;
    END IF;
    t := ROW ('unknown', false, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    leased := coalesce(p.leased_until + s.ttl > at, false);
    IF p.point IS NOT NULL AND greatest(p.written_at, p.leased_until, made) + s.ttl > at THEN
      t.status := 'suspended';
      t.point := p.point;
      t.state := p.state;
    END IF;
    IF o.class IS NOT NULL OR held OR leased THEN
      t.status := 'in_progress';
      t.expires_at := CASE WHEN leased AND (p.leased_until > clock_timestamp() OR NOT held) THEN p.leased_until END;
    ELSIF pg_is_in_recovery() THEN
      t.status := 'not_here';
    END IF;
    IF t.status <> 'in_progress' OR o.class IS NOT NULL OR clock_timestamp() >= until
       OR NOT held AND p.leased_until <= clock_timestamp()
       OR current_setting('transaction_isolation') <> 'read committed' THEN
      RETURN t;
    ELSIF p.leased_until > clock_timestamp() THEN
      PERFORM pg_sleep(extract(epoch FROM least(until - clock_timestamp(), p.leased_until - clock_timestamp(),
                                                interval '100 milliseconds')));
    ELSIF NOT (idempotence._look_up(s.id, s.who, s.proof, k, until)).free THEN
      RETURN t;
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_lookup(
  session text, request bigint, stream text DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idempotence.idem_ticket
LANGUAGE sql
RETURN idempotence.idem_lookup(session, request::text, stream, wait);
CREATE OR REPLACE FUNCTION idempotence.idem_lookup(
  session text, request uuid, stream text DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idempotence.idem_ticket
LANGUAGE sql
RETURN idempotence.idem_lookup(session, request::text, stream, wait);
-- Where nothing can be written: the outcome, or 25006.
CREATE OR REPLACE FUNCTION idempotence._replay_only(called text, session text, request text, payload jsonb)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  t idempotence.idem_ticket := idempotence.idem_lookup(session, request);
  s record;
  k text;
BEGIN
  SELECT * INTO s FROM idempotence.own_session v WHERE v.name = session;
  k := (idempotence._key_of(session, s.time_keys, request)).k;
  IF s.inbox THEN
    PERFORM idempotence._refuse('inbox', session);
  END IF;
  IF t.status = 'in_progress' AND t.recorded_at IS NOT NULL THEN
    RETURN t;
  END IF;
  IF t.recorded_at IS NULL THEN
    PERFORM idempotence._refuse('read only', called, format('No outcome of %s is kept here, so %s.',
      idempotence._named(session, k), CASE called WHEN 'idem_settle' THEN 'its settling would have to be recorded'
                                                  ELSE 'it would have to be executed' END));
  ELSIF payload IS NOT NULL THEN
    PERFORM idempotence._mismatch(
      (l.o).fingerprint, idempotence.idem_fingerprint(payload), idempotence._named(session, k))
    FROM idempotence._look_up(s.id, s.who, s.proof, k) l;
  END IF;
  IF called = 'idem_claim' THEN
    PERFORM idempotence._refuse(
      'done', idempotence._named(session, k) || CASE t.status WHEN 'cancelled' THEN ' was settled and is never executed'
                                                              ELSE ' is already done' END,
      t.status, idempotence._moment(t.recorded_at));
  END IF;
  t.replayed := true;
  RETURN t;
END $$;

-- The functions that go through the door: the name, what the door is asked to do, the arguments, the columns that
-- are set, and what comes back. Where a request is named there are three of each: a bigint or a uuid names it as
-- its text does.
DO $$
DECLARE
  f record;
  of_request text;
BEGIN
  FOR f IN SELECT * FROM (VALUES
    ('begin', 'begin',
     'session text, request text, payload jsonb DEFAULT NULL, wait interval DEFAULT NULL, stream text DEFAULT NULL, '
     'last bigint DEFAULT NULL, ack bigint DEFAULT NULL, lease interval DEFAULT NULL',
     'payload = payload, wait = wait, lease = lease', 'idempotence.idem_ticket', 'idempotence._answer(t)',
     'RETURN idempotence._replay_only(''idem_begin'', session, request::pg_catalog.text, payload)'),
    ('claim', 'claim',
     'session text, request text, payload jsonb DEFAULT NULL, wait interval DEFAULT NULL, stream text DEFAULT NULL, '
     'last bigint DEFAULT NULL, ack bigint DEFAULT NULL',
     'payload = payload, wait = wait', 'void', NULL,
     'PERFORM idempotence._replay_only(''idem_claim'', session, request::pg_catalog.text, payload)'),
    ('settle', 'settle',
     'session text, request text, wait interval DEFAULT NULL, stream text DEFAULT NULL, response jsonb DEFAULT NULL',
     'wait = wait, response = response', 'idempotence.idem_ticket', 'idempotence._answer(t)',
     'RETURN idempotence._replay_only(''idem_settle'', session, request::pg_catalog.text, NULL)'),
    ('record', 'record',
     'session text, request text, response jsonb DEFAULT NULL, failed boolean DEFAULT false, '
     'token bigint DEFAULT NULL, ttl interval DEFAULT NULL, stream text DEFAULT NULL',
     'response = response, failed = failed, token = token, ttl = ttl', 'timestamptz',
     '(idempotence._answer(t)).expires_at', NULL),
    ('release', 'idem_release',
     'session text, request text, token bigint DEFAULT NULL, stream text DEFAULT NULL',
     'token = token', 'void', NULL, NULL),
    ('checkpoint', 'idem_checkpoint',
     'session text, request text, point text, state jsonb DEFAULT NULL, token bigint DEFAULT NULL, '
     'stream text DEFAULT NULL',
     'point = point, response = state, token = token', 'void', NULL, NULL),
    ('extend', 'extend',
     'session text, request text, token bigint, lease interval, stream text DEFAULT NULL',
     'token = token, lease = lease', 'timestamptz', 't.expires_at', NULL),
    ('forget', 'forget',
     'session text, request text, reason text, stream text DEFAULT NULL',
     'point = reason', 'boolean', 't.replayed', NULL),
    ('once', 'idem_once',
     'session text, request text',
     'requests = ARRAY[request::pg_catalog.text]', 'boolean', 'NOT t.replayed', NULL),
    ('create_session', 'create',
     'session text, ttl interval DEFAULT NULL, require_payload boolean DEFAULT false, inbox boolean DEFAULT false, '
     'time_keys boolean DEFAULT false, owner regrole DEFAULT NULL, usable_by regrole DEFAULT NULL, '
     'max_attempts integer DEFAULT NULL',
     'ttl = ttl, owner = owner, usable_by = usable_by, payload = pg_catalog.jsonb_build_object(''require_payload'', '
     'require_payload, ''inbox'', inbox, ''time_keys'', time_keys, ''max_attempts'', max_attempts)',
     'void', NULL, NULL),
    ('alter_session', 'alter',
     'session text, ttl interval DEFAULT NULL, require_payload boolean DEFAULT NULL, owner regrole DEFAULT NULL, '
     'usable_by regrole DEFAULT NULL, max_attempts integer DEFAULT NULL',
     'ttl = ttl, owner = owner, usable_by = usable_by, payload = pg_catalog.jsonb_build_object(''require_payload'', '
     'require_payload, ''max_attempts'', max_attempts)',
     'void', NULL, NULL),
    ('drop_session', 'drop', 'session text', 'owner = NULL', 'void', NULL, NULL)
  ) v (name, act, arguments, set, result, answer, if_read_only) LOOP
    FOREACH of_request IN ARRAY
      CASE WHEN f.arguments LIKE '% request text%' THEN '{text,bigint,uuid}' ELSE '{text}' END::text[]
    LOOP
      EXECUTE format('CREATE OR REPLACE FUNCTION idempotence.idem_%s(%s) RETURNS %s LANGUAGE plpgsql AS %L',
        f.name, replace(f.arguments, 'request text', 'request ' || of_request), f.result,
        format(E'#variable_conflict use_variable\nDECLARE\n  t idempotence.idem_ticket;\nBEGIN\n'
               '  PERFORM idempotence._check_call(%L, session%s);\n'
               '%s'
               '  UPDATE idempotence.door SET act = %L, session = session%s, %s RETURNING (ticket).* INTO t;\n'
               '%s'
               '  RETURN %s;\nEND',
          'idem_' || f.name,
          CASE WHEN f.arguments LIKE '%ack%' THEN ', stream, last, ack'
               WHEN f.arguments LIKE '%stream%' THEN ', stream' ELSE '' END,
          CASE WHEN f.if_read_only IS NOT NULL
               THEN E'  IF pg_catalog.current_setting(''transaction_read_only'')::pg_catalog.bool THEN\n    '
                    || f.if_read_only || E';\n  END IF;\n'
               ELSE '' END,
          f.act,
          CASE WHEN f.arguments LIKE '% request text%' AND f.name <> 'once'
               THEN ', request = request::pg_catalog.text' ELSE '' END,
          f.set,
          CASE WHEN f.answer IS NULL OR f.answer NOT LIKE '%answer(t)%'
               THEN E'  PERFORM idempotence._answer(t);\n' ELSE '' END,
          coalesce(f.answer, '')));
    END LOOP;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_once_many(session text, requests anycompatiblearray)
RETURNS TABLE (ord bigint, request text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  fresh pg_catalog.int8[];
BEGIN
  PERFORM idempotence._check_call('idem_once_many', session);
  PERFORM idempotence._refuse('request type', pg_catalog.format_type(t.oid, NULL)) FROM pg_catalog.pg_type t
  WHERE t.oid OPERATOR(pg_catalog.=) pg_catalog.pg_typeof(requests[1]) AND t.typcategory OPERATOR(pg_catalog.<>) 'S'
    AND NOT t.oid OPERATOR(pg_catalog.=) ANY ('{bigint,integer,smallint,uuid}'::pg_catalog.regtype[]);
  UPDATE idempotence.door SET act = 'idem_once_many', session = session, requests = requests::pg_catalog.text[]
  RETURNING places INTO fresh;
  RETURN QUERY
  SELECT r.place, r.request FROM pg_catalog.unnest(requests::pg_catalog.text[]) WITH ORDINALITY r (request, place)
  WHERE r.place OPERATOR(pg_catalog.=) ANY (fresh) ORDER BY r.place;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_outcomes(
  session text, prefix text DEFAULT NULL, status text DEFAULT NULL, since timestamptz DEFAULT NULL,
  before timestamptz DEFAULT NULL, most integer DEFAULT 100)
RETURNS TABLE (request text, status text, response jsonb, response_bytes integer, fingerprint uuid, recorded_by text,
               recorded_at timestamptz, expires_at timestamptz, stream text, last bigint)
LANGUAGE sql
BEGIN ATOMIC
  SELECT idempotence.idem_lookup($1, 'x') WHERE NOT EXISTS (SELECT FROM idempotence.own_session v WHERE v.name = $1);
  SELECT idempotence._refuse('status', $3) WHERE NOT $3 = ANY ('{succeeded,failed,cancelled}');
  SELECT idempotence._must('most', $6 IS NULL), idempotence._refuse('most', $6::text) WHERE $6 < 1 OR $6 IS NULL;
  SELECT o.request, o.status, o.response, o.response_bytes, o.fingerprint, o.recorded_by, o.recorded_at, o.expires_at,
         NULL::text, NULL::bigint
  FROM idempotence.outcomes o
  WHERE o.session = $1 AND ($2 IS NULL OR starts_with(o.request, $2)) AND ($3 IS NULL OR o.status = $3)
    AND ($4 IS NULL OR o.recorded_at >= $4) AND ($5 IS NULL OR o.recorded_at < $5)
  ORDER BY o.recorded_at DESC, o.request COLLATE "C" LIMIT $6;
END;

-- Executes a command as the caller, with the caller's search_path. INTO needs a command that returns rows.
CREATE OR REPLACE FUNCTION idempotence._execute(command text, args jsonb)
RETURNS jsonb
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  answer record;
  n pg_catalog.int8;
BEGIN
  IF command OPERATOR(pg_catalog.!~*) E'^([[:space:](]|--[^\\n]*\\n|/[*].*?[*]/)*'
                                      '(select|values|table|with|show|explain|execute|fetch)\\M|\\mreturning\\M' THEN
    EXECUTE command USING args;
    RETURN NULL;
  END IF;
  EXECUTE command INTO answer USING args;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n OPERATOR(pg_catalog.>) 1 THEN
    PERFORM idempotence._refuse('rows', n::pg_catalog.text);
  END IF;
  RETURN (SELECT CASE WHEN e.value::pg_catalog.text OPERATOR(pg_catalog.<>) 'null' THEN e.value END
          FROM pg_catalog.json_each(pg_catalog.row_to_json(answer)) e LIMIT 1);
END $$;

-- The response of a command that failed: an object of the error's texts, of at most max_response bytes. If it would be
-- larger, the message is truncated between two characters, and a detail or a hint that does not fit is null. If not
-- even an empty message fits, the object has the SQLSTATE alone.
CREATE OR REPLACE FUNCTION idempotence._error_response(state text, told text, detail text, hint text)
RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  most bigint := (SELECT max_response FROM idempotence.settings);
  room bigint;
  excess integer;
BEGIN
  most := least(most, pg_size_bytes(nullif(current_setting('idempotence.max_response', true), '')));
  -- In an object of strings, each string takes as many bytes as it has, and null takes none.
  room := most - (pg_column_size(
    jsonb_build_object('sqlstate', state, 'message', '', 'detail', NULL, 'hint', NULL)) - 4);
  IF room < 0 THEN
    RETURN jsonb_build_object('sqlstate', state);
  END IF;
  LOOP
    excess := octet_length(told) - room;
    EXIT WHEN excess <= 0;
    -- A character has at most four bytes, so this never removes more characters than it has to.
    told := left(told, length(told) - (excess + 3) / 4);
  END LOOP;
  room := room - octet_length(told);
  IF detail = '' OR octet_length(detail) > room THEN
    detail := NULL;
  END IF;
  room := room - coalesce(octet_length(detail), 0);
  IF hint = '' OR octet_length(hint) > room THEN
    hint := NULL;
  END IF;
  RETURN jsonb_build_object('sqlstate', state, 'message', told, 'detail', detail, 'hint', hint);
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_run(
  session text, request text, command text, args jsonb DEFAULT NULL, on_error text DEFAULT 'raise',
  wait interval DEFAULT NULL, ttl interval DEFAULT NULL, stream text DEFAULT NULL)
RETURNS idempotence.idem_ticket
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  t idempotence.idem_ticket;
  refused boolean := false;
  state text;
  told text;
  detail text;
  hint text;
BEGIN
  PERFORM idempotence._check_call('idem_run', session, stream), idempotence._must('command', command IS NULL),
          idempotence._must('on_error', on_error IS NULL);
  IF NOT on_error OPERATOR(pg_catalog.=) ANY (ARRAY['raise', 'record']) THEN
    PERFORM idempotence._refuse('on_error', on_error);
  END IF;
  IF pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool THEN
    RETURN idempotence._replay_only('idem_begin', session, request, args);
  END IF;
  UPDATE idempotence.door SET act = 'run', session = session, request = request, payload = args, wait = wait
  RETURNING (ticket).* INTO t;
  IF (idempotence._answer(t)).replayed THEN
    RETURN t;
  END IF;
  IF command OPERATOR(pg_catalog.!~) '[^[:space:];]' THEN
    PERFORM idempotence._refuse('no command');
  END IF;
  IF on_error OPERATOR(pg_catalog.=) 'raise' THEN
    t.response := idempotence._execute(command, args);
  ELSE
    BEGIN
      t.response := idempotence._execute(command, args);
    EXCEPTION
      WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, told = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
          hint = PG_EXCEPTION_HINT;
        -- An error that the circumstances cause may not occur the next time.
        IF state OPERATOR(pg_catalog.~) '^(03|08|09|0A|0B|0F|0L|0P|0Z|10|24|25|26|27|28|2B|2D|2F|34|38|39|3B|3D|3F|40|'
                                        '42|53|54|55|57|58|72|F0|HV|ID|XX|P0004)' THEN
          RAISE;
        END IF;
        refused := true;
        t.response := idempotence._error_response(state, told, detail, hint);
    END;
  END IF;
  UPDATE idempotence.door
  SET act = 'record', session = session, request = request, response = t.response, failed = refused, ttl = ttl
  RETURNING (ticket).* INTO t;
  RETURN idempotence._answer(t);
END $$;

-- The sweep. It turns the ring, truncates what the ring has left behind, and deletes what has expired elsewhere.

-- Turns the ring by one step if it is time; false if it is not, or if a lock is not to be had soon: then the next
-- sweep tries again, because other transactions wait behind a wait for a table's lock.
--
-- The ring stands at 2k while segment k % 3 is the current one. It moves to 2k + 1, where the next one is current,
-- and to 2k + 2 when all transactions have ended that may have read 2k. Each of them wrote its row before the ring
-- moved, and so its transaction id is less than one that is assigned later, which the segment keeps meanwhile
-- (writers_before).
CREATE OR REPLACE FUNCTION idempotence._turn()
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
#variable_conflict use_variable
DECLARE
  ring_position bigint := (SELECT r.last_value FROM idempotence.ring r);
  at timestamptz := clock_timestamp();
  life bigint;
  pages bigint;
  c idempotence.segment;
  former idempotence.segment;
  third idempotence.segment;
BEGIN
  SELECT * INTO c FROM idempotence.segment s WHERE s.number = (ring_position + 1) / 2 % 3;
  SELECT * INTO former FROM idempotence.segment s WHERE s.number = (c.number + 2) % 3;
  SELECT * INTO third FROM idempotence.segment s WHERE s.number = (c.number + 1) % 3;
  IF ring_position % 2 = 1 THEN
    -- A restored dump may bring an id of another server, which lies in the future here.
    IF former.writers_before IS NULL OR former.writers_before >= pg_current_xact_id() THEN
      UPDATE idempotence.segment s SET writers_before = pg_current_xact_id() WHERE s.number = former.number;
      RETURN true;
    ELSIF former.writers_before >= pg_snapshot_xmin(pg_current_snapshot()) THEN
      RETURN false;
    END IF;
    UPDATE idempotence.segment s SET closed_at = clock_timestamp() WHERE s.number = former.number;
    PERFORM setval('idempotence.ring', ring_position + 1);
  ELSIF former.closed_at = 'infinity' THEN
    -- The transaction of that step was rolled back after it had moved the ring.
    UPDATE idempotence.segment s SET closed_at = at WHERE s.number = former.number;
  ELSIF pg_relation_size(format('idempotence.outcome_%s', third.number)::regclass) > 0 THEN
    EXECUTE format('TRUNCATE idempotence.outcome_%s', third.number);
  ELSIF at < former.closed_at + former.keep * interval '1 second'
        OR at < c.opened_at + c.keep * interval '1 second' THEN
    RETURN false;
  ELSIF third.closed_at <> 'infinity' THEN
    -- The life that one outcome in eight exceeds, by a sample of the same number of pages whatever their number.
    -- Six minutes at least, or short lives would turn the ring at each step.
    pages := (pg_relation_size(format('idempotence.outcome_%s', c.number)::regclass)
              + pg_relation_size('idempotence.outcome_long')) / 8192 + 1;
    EXECUTE format(
      'SELECT percentile_disc(0.875) WITHIN GROUP (ORDER BY extract(epoch FROM o.expires_at - o.recorded_at))
       FROM (SELECT * FROM idempotence.outcome_%s TABLESAMPLE SYSTEM (%s)
             UNION ALL SELECT * FROM idempotence.outcome_long TABLESAMPLE SYSTEM (%2$s)) o',
      c.number, least(100, 20000.0 / pages)) INTO life;
    life := least(greatest(coalesce(life, 86400), 360),
                  (SELECT extract(epoch FROM g.retention) FROM idempotence.settings g));
    UPDATE idempotence.segment s SET (keep, opened_at, closed_at, writers_before) = (life, at, 'infinity', NULL)
    WHERE s.number = third.number;
  ELSE
    -- A caller reads the ring, keep, and the ring again. If both readings of the ring agree, it has read the life
    -- that the current segment takes, or a shorter one.
    PERFORM setval('idempotence.keep', least(c.keep, third.keep));
    PERFORM setval('idempotence.ring', ring_position + 1);
    PERFORM setval('idempotence.keep', third.keep);
    UPDATE idempotence.segment s SET opened_at = at WHERE s.number = third.number;
  END IF;
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    RETURN false;
END $$;

-- One step of the sweep; false if nothing is left to do, or if another transaction sweeps.
CREATE OR REPLACE FUNCTION idempotence._sweep_step()
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  n bigint;
  at timestamptz := clock_timestamp();
  secrets uuid[];
BEGIN
  -- The ids that the steps keep must be assigned after what they have seen, so the transaction may have none yet.
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'a step of the sweep cannot run in a transaction that has written'
      USING ERRCODE = 'active_sql_transaction';
  END IF;
  secrets := ARRAY(SELECT s.secret FROM idempotence.session s WHERE s.former_secret IS NOT NULL);
  -- A row's lock, because only the owner can acquire it, and so stop the sweep.
  PERFORM FROM idempotence.segment s WHERE s.number = 0 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF secrets <> '{}' THEN
    UPDATE idempotence.session s SET (former_secret, former_until) = (NULL, NULL)
    WHERE s.former_until < pg_snapshot_xmin(pg_current_snapshot());
    UPDATE idempotence.session s SET former_until = pg_current_xact_id()
    WHERE s.secret = ANY (secrets) AND s.former_secret IS NOT NULL
      AND (s.former_until IS NULL OR s.former_until > pg_current_xact_id());
  END IF;
  IF idempotence._turn() THEN
    RETURN true;
  END IF;
  DELETE FROM idempotence.outcome_long o
  WHERE o.ctid = ANY (ARRAY(SELECT l.ctid FROM idempotence.outcome_long l WHERE l.expires_at <= at
                            LIMIT 1000 FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 1000 THEN
    RETURN true;
  END IF;
  DELETE FROM idempotence.pending p
  WHERE p.ctid = ANY (ARRAY(SELECT q.ctid FROM idempotence.pending q JOIN idempotence.session s ON s.id = q.session
                            WHERE greatest(q.leased_until, q.written_at) + idempotence._ttl_of(s)
                                  <= at - interval '5 minutes'
                            FOR UPDATE OF q SKIP LOCKED));
  DELETE FROM idempotence.swept;
  INSERT INTO idempotence.swept VALUES (clock_timestamp());
  RETURN false;
END $$;

CREATE OR REPLACE PROCEDURE idempotence.idem_sweep()
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  more boolean := true;
BEGIN
  WHILE more LOOP
    more := idempotence._sweep_step();
    COMMIT;
  END LOOP;
END $$;
CREATE OR REPLACE VIEW idempotence.health AS
SELECT c.name, (ARRAY['ok', 'warning', 'critical'])[c.level + 1] AS status, c.detail,
       CASE WHEN c.level > 0 THEN c.hint END AS hint, c.level
FROM (SELECT clock_timestamp() AS now,
             coalesce((SELECT w.at FROM idempotence.swept w),
                      (SELECT i.installed_at FROM idempotence.settings i)) AS swept,
             NOT EXISTS (SELECT FROM idempotence.swept) AS never,
             (SELECT max(s.opened_at + s.keep * interval '1 second') FROM idempotence.segment s
              WHERE s.closed_at = 'infinity') AS turns,
             (SELECT min(o.expires_at) FROM idempotence.outcome_long o) AS oldest) h
CROSS JOIN LATERAL (VALUES
  ('sweep',
   CASE WHEN h.now - h.swept > interval '1 day' THEN 2
        WHEN h.now - h.swept > CASE WHEN h.never THEN interval '10 minutes' ELSE interval '1 hour' END THEN 1
        ELSE 0 END,
   format(CASE WHEN h.never THEN 'never swept, and installed %s ago' ELSE 'swept %s ago' END,
          date_trunc('second', h.now - h.swept)),
   'Have a scheduler CALL idempotence.idem_sweep() once a minute, as the owner of the schema.'),
  ('ring',
   CASE WHEN h.turns IS NULL OR h.now > h.turns + interval '1 day' THEN 1 ELSE 0 END,
   coalesce('the current segment is to be closed at ' || h.turns, 'no segment is open'),
   'The ring waits for all transactions to end that write, prepared ones too: look for old ones in pg_stat_activity '
   'and pg_prepared_xacts.'),
  ('long',
   CASE WHEN h.oldest < h.now - interval '1 hour' THEN 1 ELSE 0 END,
   coalesce('the oldest outcome outside of the ring expires after ' || date_trunc('day', h.oldest),
            'all outcomes are in the ring'),
   'The sweep is behind. Where most outcomes live longer than settings.retention, raise that.')
) c (name, level, detail, hint);

-- Rights. USAGE on the schema lets a role in. What is no SECURITY DEFINER function does nothing that its caller
-- could not do. The default privileges of the role that installs may have granted more than this to other roles, or
-- less.
DO $$
DECLARE
  grantee text;
BEGIN
  FOR grantee IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
    FROM (SELECT c.relacl FROM pg_class c WHERE c.relnamespace = 'idempotence'::regnamespace
          UNION ALL SELECT f.proacl FROM pg_proc f WHERE f.pronamespace = 'idempotence'::regnamespace
          UNION ALL SELECT n.nspacl FROM pg_namespace n WHERE n.nspname = 'idempotence') x (acl),
         aclexplode(x.acl) a
    WHERE a.grantee NOT IN (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'idempotence')
  LOOP
    EXECUTE replace('REVOKE ALL ON ALL TABLES IN SCHEMA idempotence FROM _ CASCADE;
                     REVOKE ALL ON ALL SEQUENCES IN SCHEMA idempotence FROM _ CASCADE;
                     REVOKE CREATE ON SCHEMA idempotence FROM _ CASCADE;
                     REVOKE ALL ON ALL ROUTINES IN SCHEMA idempotence FROM _ CASCADE', '_', grantee);
  END LOOP;
END $$;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA idempotence TO PUBLIC;
GRANT USAGE ON TYPE idempotence.idem_ticket TO PUBLIC;
REVOKE ALL ON FUNCTION idempotence._enter(), idempotence._at_commit(), idempotence._at_lease_commit() FROM PUBLIC;
GRANT SELECT ON idempotence.own_session, idempotence.sessions, idempotence.kept, idempotence.outcomes,
  idempotence.own_pending, idempotence.unfinished, idempotence.health TO PUBLIC;
GRANT UPDATE (act, session, request, payload, response, wait, lease, ttl, token, failed, point, requests, owner,
              usable_by), SELECT (ticket, places) ON idempotence.door TO PUBLIC;

CREATE OR REPLACE FUNCTION idempotence.idem_grant(role regrole, level text DEFAULT 'user')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  PERFORM idempotence._must('role', role IS NULL);
  EXECUTE format('GRANT USAGE ON SCHEMA idempotence TO %s', role);
  IF NOT has_schema_privilege(role::oid, 'idempotence', 'USAGE') THEN
    RAISE EXCEPTION 'permission denied for schema idempotence' USING
      ERRCODE = 'insufficient_privilege',
      HINT = 'The owner of the schema grants its use.';
  END IF;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_revoke(role regrole)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  PERFORM idempotence._must('role', role IS NULL);
  EXECUTE format('REVOKE USAGE ON SCHEMA idempotence FROM %s', role);
END $$;
COMMENT ON SCHEMA idempotence IS 'idempotence 1.2.0, edition for managed services';
COMMIT;
