-- Orders, the work on which is done outside the database; run as the bank's owner.

SELECT idem_create_session('orders', ttl => '1 hour');

-- What was recorded: a row for each record of an order. There is deliberately no unique constraint: an
-- order that is recorded twice must show up here, not be prevented.
CREATE TABLE receipt (
    execution uuid   NOT NULL,
    request   text   NOT NULL,
    token     bigint NOT NULL
);

-- Records an order and writes its receipt, in one transaction. If the reply to COMMIT was lost, the
-- worker calls again with the same token and is told the same; then the outcome is that of the first
-- call, and there must be no second receipt.
CREATE FUNCTION record_order(order_request text, order_token bigint, response jsonb) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    this    uuid := gen_random_uuid();
    expires timestamptz;
BEGIN
    expires := idem_record('orders', order_request,
                           response || jsonb_build_object('execution', this, 'token', order_token),
                           token => order_token);
    INSERT INTO receipt
        SELECT this, order_request, order_token FROM idem_lookup('orders', order_request) AS kept
         WHERE kept.response->>'execution' = this::text;
    RETURN expires;
END $$;
