-- Transfers money once, in one network round trip. setup.sql makes what it needs. With pgbench of 15 or later:
--
--   pgbench -n -M prepared -f pipeline_pgbench.sql -D batch=monday -D n=0 -c 8 -t 1000 --max-tries=10
--
-- Everything up to \endpipeline is sent at once, and the answers are read there. After an error the server skips
-- what is left, COMMIT too, and nothing is kept. pgbench sends ROLLBACK, and after 40001 and 40P01 it sends the
-- whole pipeline again, with the variables as they were: with the same key. At any other error the client stops,
-- ID011 (done already) and 55P03 too: a script cannot decide what to do then.

-- The key of a transfer: its batch, its client and its number there. It must outlast the program: run again with
-- the same batch, pgbench is told ID011 by the first transfer that is done already.
\set n :n + 1

\startpipeline
BEGIN;
SELECT idem_claim('payments', concat_ws('-', :batch::text, :client_id::int, :n::int), wait => '5 seconds');
-- NOT NULL refuses an account that is missing, and the CHECK a balance below zero.
MERGE INTO account
    USING (VALUES (1, -0.01), (2, 0.01)) AS step (id, amount) ON account.id = step.id
    WHEN MATCHED THEN UPDATE SET balance = balance + step.amount
    WHEN NOT MATCHED THEN INSERT (id) VALUES (step.id);
SELECT idem_record('payments', concat_ws('-', :batch::text, :client_id::int, :n::int), '{"moved": 0.01}');
COMMIT;
\endpipeline
