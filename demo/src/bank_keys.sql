-- The same work, requested under a key or a number; run as the bank's owner.

SELECT idem_create_session('payments', ttl => '1 hour');

-- Begins, works and records in one call. An insufficient balance is a final answer too: it is recorded
-- as failed, and every retry gets the same answer.
CREATE FUNCTION transfer_once(session text, request text, payload jsonb, wait interval) RETURNS idem_ticket
LANGUAGE plpgsql AS $$
DECLARE
    ticket idem_ticket;
BEGIN
    ticket := idem_begin(session, request, payload => payload, wait => wait);
    IF ticket.status = 'started' THEN
        BEGIN
            ticket.response := transfer(payload);
            ticket.status := 'succeeded';
        EXCEPTION WHEN SQLSTATE 'BK001' THEN
            ticket.response := jsonb_build_object('error', 'insufficient funds');
            ticket.status := 'failed';
        END;
        ticket.expires_at := idem_record(session, request, ticket.response,
                                         failed => ticket.status = 'failed');
    END IF;
    RETURN ticket;
END $$;
