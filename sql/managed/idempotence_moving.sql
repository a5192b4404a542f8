-- idem_export and idem_import, which move sessions from one server to another, for the edition for managed services.
-- Install it over idempotence_managed.sql, as the same role:
--
--   psql -v ON_ERROR_STOP=1 -f idempotence_moving.sql
--
-- idem_import accepts the rows of idem_export, of this edition and of the extension; see docs/administration.md.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Makes sure that all of a closed session can be read, and that nothing of it is completed here any more.
CREATE OR REPLACE FUNCTION idempotence._close_for_export(who name, session text, reason text)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  s idempotence.session := idempotence._session_to_repair(who, session, reason, 'export it');
  until timestamptz := idempotence._until(NULL);
  former text := current_setting('lock_timeout');
  p idempotence.pending;
BEGIN
  IF s.ended_at IS NULL
     OR EXISTS (SELECT FROM idempotence.session t
                WHERE t.id = s.id AND t.xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text) THEN
    PERFORM idempotence._refuse('open', session);
  END IF;
  IF EXISTS (SELECT FROM pg_locks l
             WHERE l.pid = pg_backend_pid() AND l.mode = 'RowExclusiveLock'
               AND l.relation IN ('idempotence.outcome'::regclass, 'idempotence.pending'::regclass)) THEN
    PERFORM idempotence._refuse('at work', session, 'This transaction has written outcomes itself.');
  END IF;
  LOOP
    BEGIN
      -- Other transactions wait behind this wait, so it is short.
      PERFORM set_config('lock_timeout', '50', true);
      LOCK TABLE idempotence.outcome, idempotence.pending IN SHARE MODE;
      RAISE EXCEPTION USING ERRCODE = 'ID000';
    EXCEPTION
      WHEN SQLSTATE 'ID000' THEN
        EXIT;
      WHEN lock_not_available THEN
        IF clock_timestamp() >= until THEN
          PERFORM idempotence._refuse('at work', session, 'A transaction that has written outcomes has not ended.');
        END IF;
    END;
    PERFORM pg_sleep(0.2);
  END LOOP;
  -- A transaction that ran when the snapshot was taken may have recorded since.
  IF current_setting('transaction_isolation') <> 'read committed'
     AND EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot())) THEN
    PERFORM idempotence._refuse('unseen export', session);
  END IF;
  FOR p IN SELECT * FROM idempotence.pending q WHERE q.session = s.id AND q.token IS NOT NULL LOOP
    s := idempotence._take(s, p.request);
    SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = p.request;
    IF p.leased_until > clock_timestamp() THEN
      PERFORM idempotence._in_progress(idempotence._named(session, p.request), p.leased_until,
        'Export again when its holder has recorded or released it, or when the lease has run out.');
    END IF;
    UPDATE idempotence.pending q SET token = q.token + 1 WHERE q.session = s.id AND q.request = p.request;
  END LOOP;
  PERFORM set_config('lock_timeout', former, true);
  PERFORM idempotence._note(who, 'export', session, '', reason, '');
END $$;

-- A time that the caller gives, between the year 2000 and now: the sweep computes with it.
CREATE OR REPLACE FUNCTION idempotence._past(told text, at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE
RETURN least(greatest(coalesce(told::timestamptz, at), timestamptz '2000-01-01 00:00:00+00'), at);

-- Imports a row of an export, or an outcome from elsewhere: 1 imported, 2 present, 3 expired.
CREATE OR REPLACE FUNCTION idempotence._import_row(who name, session text, r jsonb)
RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  at timestamptz := clock_timestamp();
  s idempotence.session := idempotence._session_of(who, session, true, 'import into it');
  k text;
  made timestamptz;
  named text;
  o idempotence.outcome;
  p idempotence.pending;
  ring_position bigint;
  is_new boolean;
  unknown text := (SELECT min(c) FROM jsonb_object_keys(r) c
                   WHERE c <> ALL ('{key,status,response,failed,recorded_at,expires_at,payload,fingerprint,token,'
                                   'attempt,begun_at,leased_until,point,state}'));
BEGIN
  IF unknown IS NOT NULL THEN
    RAISE EXCEPTION 'the query to import from has a column of another name' USING
      ERRCODE = 'invalid_parameter_value',
      DETAIL = format('Found "%s".', unknown),
      HINT = 'Give it as a SELECT of the columns key, response, failed, recorded_at, expires_at, payload, by these '
             'names, or of those that idem_export() gives.';
  END IF;
  SELECT * INTO k, made FROM idempotence._key_of(session, s.time_keys, r ->> 'key');
  named := idempotence._named(session, k);
  s := idempotence._take(s, k);
  LOOP
    -- Before the search: see _put_seen.
    SELECT g.last_value INTO ring_position FROM idempotence.ring g;
    PERFORM idempotence._probe(s, k);
    o := idempotence._find(s.id, k, at);
    SELECT * INTO p FROM idempotence.pending q WHERE q.session = s.id AND q.request = k;
    IF o.class IN ('o', 'k') THEN
      PERFORM idempotence._begun(named, 'forget');
    ELSIF o.class IS NOT NULL THEN
      RETURN 2;
    ELSIF r ->> 'status' = 'unfinished' THEN
      IF p.session IS NOT NULL THEN
        RETURN 2;
      END IF;
      INSERT INTO idempotence.pending
      VALUES (s.id, k, NULL, (r ->> 'token')::bigint, coalesce((r ->> 'attempt')::integer, 1),
              idempotence._past(r ->> 'begun_at', at),
              CASE WHEN r ->> 'leased_until' IS NOT NULL THEN idempotence._past(r ->> 'leased_until', at) END, who, '',
              r ->> 'point', nullif(r -> 'state', 'null'),
              CASE WHEN r ->> 'point' IS NOT NULL THEN idempotence._past(r ->> 'recorded_at', at) END)
      ON CONFLICT DO NOTHING;
      CONTINUE WHEN NOT FOUND;
      PERFORM idempotence._verify_session(who, s);
      RETURN 1;
    END IF;
    IF p.leased_until > at THEN
      PERFORM idempotence._in_progress(named, p.leased_until, 'Import again when the lease has run out.');
    END IF;
    IF r ? 'response' THEN
      PERFORM idempotence._check_size('response', named, r -> 'response');
    END IF;
    o := ROW (s.id, NULL,
              CASE WHEN r ->> 'status' = 'cancelled' THEN 'c'
                   WHEN r ->> 'status' = 'failed' OR (r ->> 'failed')::boolean THEN 'f' ELSE 's' END,
              idempotence._past(r ->> 'recorded_at', at), at, k, who,
              CASE WHEN r ->> 'payload' IS NOT NULL THEN idempotence.idem_fingerprint(r -> 'payload') END,
              (r ->> 'token')::bigint, nullif(r -> 'response', 'null'));
    o.expires_at := least(coalesce((r ->> 'expires_at')::timestamptz,
                                   greatest(o.recorded_at, made) + idempotence._ttl_of(s)),
                          at + interval '3650 days');
    IF o.expires_at <= at THEN
      RETURN 3;
    END IF;
    IF s.inbox THEN
      is_new := idempotence._put_seen(s, o, at, ring_position);
    ELSE
      is_new := idempotence._put(o, at) IS NOT NULL;
    END IF;
    IF is_new AND idempotence._drop_pending(p) THEN
      PERFORM idempotence._verify_session(who, s);
      RETURN 1;
    END IF;
    CONTINUE WHEN is_new IS NOT TRUE;
    PERFORM idempotence._refuse('beside', named);
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION idempotence._move(who name, call idempotence.door)
RETURNS idempotence.door
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  CASE call.act
  WHEN 'export' THEN
    PERFORM idempotence._close_for_export(who, call.session, call.point);
  WHEN 'import' THEN
    call.places := ARRAY[idempotence._import_row(who, call.session, call.payload)];
  END CASE;
  RETURN call;
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_export(session text, reason text, prefix text DEFAULT NULL)
RETURNS TABLE (key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz,
               expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz, point text,
               state jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  UPDATE idempotence.door SET act = 'export', session = session, point = reason;
  -- The extension computes other fingerprints, so none is exported.
  RETURN QUERY
  SELECT k.request, k.status, k.response, NULL::uuid, k.token, k.recorded_at, k.expires_at, NULL::integer,
         NULL::timestamptz, NULL::timestamptz, NULL, NULL::jsonb
  FROM idempotence.kept k
  WHERE k.session = session AND k.expires_at > clock_timestamp() AND (prefix IS NULL OR starts_with(k.request, prefix))
  UNION ALL
  SELECT p.request, 'unfinished', NULL, NULL, p.token, p.written_at, NULL, p.attempt, p.begun_at, p.leased_until,
         p.point, p.state
  FROM idempotence.own_pending p
  WHERE p.session = session AND (prefix IS NULL OR starts_with(p.request, prefix))
    AND greatest(p.leased_until, p.written_at) + p.ttl > clock_timestamp();
END $$;

CREATE OR REPLACE FUNCTION idempotence.idem_import(
  session text, query text, reason text, OUT imported bigint, OUT present bigint, OUT expired bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  r pg_catalog.jsonb;
  n pg_catalog.int8[];
  counts pg_catalog.int8[] := ARRAY[0, 0, 0];
BEGIN
  PERFORM idempotence._must('reason', reason IS NULL), idempotence._check_call('idem_import', session);
  FOR r IN EXECUTE pg_catalog.format('SELECT pg_catalog.to_jsonb(q) FROM (%s) q', query) LOOP  -- as the caller
    UPDATE idempotence.door SET act = 'import', session = session, payload = r RETURNING places INTO n;
    counts[n[1]] := counts[n[1]] OPERATOR(pg_catalog.+) 1;
  END LOOP;
  imported := counts[1];
  present := counts[2];
  expired := counts[3];
END $$;
GRANT EXECUTE ON FUNCTION idempotence.idem_export(text, text, text), idempotence.idem_import(text, text, text)
  TO PUBLIC;
COMMIT;
