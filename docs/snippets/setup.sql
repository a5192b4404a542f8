-- What the examples here need: the extension, a session, two accounts, a list of deliveries. May be run again.

CREATE EXTENSION IF NOT EXISTS idempotence;
SELECT idem_create_session('payments', ttl => '24 hours');

CREATE TABLE IF NOT EXISTS account (
    id      int     PRIMARY KEY,
    balance numeric NOT NULL CHECK (balance >= 0)
);
INSERT INTO account VALUES (1, 100.00), (2, 0.00)
ON CONFLICT (id) DO UPDATE SET balance = EXCLUDED.balance;

-- Without a unique constraint: a second delivery is to show up here, not to be prevented.
CREATE TABLE IF NOT EXISTS delivery (
    message text NOT NULL
);
TRUNCATE delivery;
