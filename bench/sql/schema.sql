-- What is measured, and what it is measured against.

CREATE EXTENSION idempotence;
SELECT idem_create_session('payments', ttl => '7 days');
SELECT idem_create_session('events', ttl => '7 days', inbox => true);

-- The work: an account's balance, and a line in the ledger. Autovacuum would make some of the updates cheaper than others.
CREATE TABLE account (
  id      integer PRIMARY KEY,
  balance bigint NOT NULL
) WITH (fillfactor = 80, autovacuum_enabled = off);
INSERT INTO account SELECT id, 0 FROM generate_series(1, 100000) id;
CREATE TABLE ledger (
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  account integer NOT NULL,
  amount  bigint NOT NULL,
  at      timestamptz NOT NULL DEFAULT now()
);

-- Hand-written: the table of a careful user.
CREATE TABLE request (
  scope       text NOT NULL,
  key         text NOT NULL,
  fingerprint bytea,
  response    jsonb,
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz NOT NULL,
  PRIMARY KEY (scope, key)
);
CREATE INDEX ON request (expires_at);

-- Hand-written, where the claim is committed before the work: whoever takes it over raises the token.
CREATE TABLE leased_request (
  scope        text NOT NULL,
  key          text NOT NULL,
  fingerprint  bytea,
  token        bigint NOT NULL DEFAULT 1,
  leased_until timestamptz NOT NULL,
  response     jsonb,
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (scope, key)
);
CREATE INDEX ON leased_request (expires_at);

-- Floor: the row of an outcome, with no other index than its primary key.
CREATE TABLE outcome (
  id          uuid PRIMARY KEY,
  session     uuid NOT NULL,
  recorded_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  recorded_by regrole NOT NULL,
  class       "char" NOT NULL,
  key         text NOT NULL,
  fingerprint uuid,
  response    jsonb
);

-- The work as a function, for idem_run.
CREATE FUNCTION pay(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  new_balance bigint;
BEGIN
  UPDATE account SET balance = balance + (args->>'amount')::bigint
   WHERE id = (args->>'account')::integer RETURNING balance INTO new_balance;
  INSERT INTO ledger (account, amount)
  VALUES ((args->>'account')::integer, (args->>'amount')::bigint);
  RETURN jsonb_build_object('balance', new_balance);
END
$$;

-- All in one call: the check, the work and the record in a function of the user's.
CREATE FUNCTION pay_by_hand(request_key text, request_fingerprint bytea, args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  known  request;
  answer jsonb;
BEGIN
  INSERT INTO request (scope, key, fingerprint, expires_at)
  VALUES ('payments', request_key, request_fingerprint, now() + interval '7 days')
  ON CONFLICT (scope, key) DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO known FROM request WHERE scope = 'payments' AND key = request_key;
    IF known.fingerprint <> request_fingerprint THEN
      RAISE EXCEPTION 'another request has this key';
    END IF;
    RETURN known.response;
  END IF;
  answer := pay(args);
  UPDATE request SET response = answer WHERE scope = 'payments' AND key = request_key;
  RETURN answer;
END
$$;
CREATE FUNCTION pay_once(request_key text, args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  ticket idem_ticket;
  answer jsonb;
BEGIN
  ticket := idem_begin('payments', request_key, args);
  IF ticket.status <> 'started' THEN
    RETURN ticket.response;
  END IF;
  answer := pay(args);
  PERFORM idem_record('payments', request_key, answer);
  RETURN answer;
END
$$;

-- Sessions by hand: a logged row each, with a unique name of the client.
CREATE TABLE session_by_hand (
  id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  client    text NOT NULL UNIQUE,
  timeout   interval NOT NULL,
  last_seen timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80);

-- Laps of requests, one of each session in turn, each a transaction.
CREATE TABLE bench_session (
  number  integer PRIMARY KEY,
  session text NOT NULL
);
CREATE PROCEDURE run_laps(first integer, last integer, from_lap bigint, to_lap bigint) LANGUAGE plpgsql AS $$
DECLARE
  names text[] := ARRAY(SELECT session FROM bench_session WHERE number BETWEEN first AND last ORDER BY number);
  name  text;
BEGIN
  FOR lap IN from_lap..to_lap LOOP
    FOREACH name IN ARRAY names LOOP
      PERFORM idem_begin(name, lap);
      PERFORM idem_record(name, lap, '{"status": "booked", "transfer": 4711}');
      COMMIT;
    END LOOP;
  END LOOP;
END
$$;

-- What the worker does within a minute.
CALL idem_sweep();
