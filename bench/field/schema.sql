-- The database of bench/field: the work, and what some of those who protect it need.

CREATE EXTENSION idempotence;
SELECT idem_create_session('payments', ttl => '7 days');

-- The work: an account's balance, and a line in the ledger. The lines of a key tell how often it took effect.
CREATE TABLE account (
  id      integer PRIMARY KEY,
  balance bigint NOT NULL
) WITH (fillfactor = 80);
INSERT INTO account SELECT id, 0 FROM generate_series(1, 100000) id;
CREATE TABLE ledger (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  request_key text NOT NULL,
  account     integer NOT NULL,
  amount      bigint NOT NULL,
  at          timestamptz NOT NULL DEFAULT now()
);

-- Hand-written: the table of a careful user, as in bench/sql/schema.sql.
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

-- The work as a function, for those who do it in the server.
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  new_balance bigint;
BEGIN
  UPDATE account SET balance = balance + (request->>'amount')::bigint
   WHERE id = (request->>'account')::integer RETURNING balance INTO new_balance;
  INSERT INTO ledger (request_key, account, amount)
  VALUES (request->>'key', (request->>'account')::integer, (request->>'amount')::bigint);
  RETURN jsonb_build_object('balance', new_balance);
END
$$;

CREATE FUNCTION pay_by_hand(request_key text, request_fingerprint bytea, request jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  known  request;
  answer jsonb;
BEGIN
  INSERT INTO request (scope, key, fingerprint, expires_at)
  VALUES ('payments', request_key, request_fingerprint, now() + interval '7 days')
  ON CONFLICT (scope, key) DO NOTHING;
  IF NOT FOUND THEN
    SELECT * INTO known FROM request r WHERE r.scope = 'payments' AND r.key = request_key;
    IF known.fingerprint <> request_fingerprint THEN
      RAISE EXCEPTION 'another request has this key';
    END IF;
    RETURN known.response;
  END IF;
  answer := pay(request);
  UPDATE request r SET response = answer WHERE r.scope = 'payments' AND r.key = request_key;
  RETURN answer;
END
$$;
