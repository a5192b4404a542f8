-- The bank of the demonstration; run as its owner, an ordinary role.

CREATE TABLE account (
    id      int    PRIMARY KEY,
    balance bigint NOT NULL CHECK (balance >= 0)
);

-- What really happened: a row for each execution of a transfer. There is deliberately no unique
-- constraint on the request: a second execution must show up here, not be prevented.
CREATE TABLE effect (
    execution uuid   NOT NULL DEFAULT gen_random_uuid(),
    request   text   NOT NULL,
    debit     int    NOT NULL,
    credit    int    NOT NULL,
    amount    bigint NOT NULL
);

-- The work, in which nothing knows of retries. Its answer names the execution, so that the answers
-- of two executions can never be the same.
CREATE FUNCTION transfer(payload jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    request text   := payload->>'request';
    debit   int    := payload->>'debit';
    credit  int    := payload->>'credit';
    amount  bigint := payload->>'amount';
    left_over   bigint;
    done_by uuid;
BEGIN
    -- Lock both rows in the order of their ids, so that crossing transfers queue up and do not deadlock.
    PERFORM FROM account WHERE id IN (debit, credit) ORDER BY id FOR UPDATE;
    UPDATE account SET balance = balance - amount WHERE id = debit AND balance >= amount
        RETURNING balance INTO left_over;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'insufficient funds' USING ERRCODE = 'BK001';
    END IF;
    UPDATE account SET balance = balance + amount WHERE id = credit;
    INSERT INTO effect VALUES (DEFAULT, request, debit, credit, amount)
        RETURNING execution INTO done_by;
    RETURN jsonb_build_object('execution', done_by, 'balance', left_over);
END $$;
