-- Goal: the views show both kinds of sessions, and the outcomes of both kinds of requests.
-- Method: one session in each state; each column of its row.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('views', ttl => '1 hour'), idem_create_session('views inbox', ttl => '1 hour', inbox => true);
SELECT regress_registered('live', idem_register(client => 'views', timeout => '1 minute', window_size => 7));
SELECT regress_registered('saved', idem_register(ordering => 'strict'));
SELECT regress_registered('checkpointed', idem_register()), regress_registered('acked', idem_register()), regress_registered('allocated', idem_register());
SELECT regress_registered('closed', idem_register()), regress_registered('closed unsaved', idem_register()), regress_registered('closed by id', idem_register(request_id => gen_random_uuid()));
SELECT regress_registered('fenced', idem_register(client => 'fenced')), regress_registered('fenced unsaved', idem_register(client => 'fenced unsaved'));
SELECT regress_registered('run out', idem_register(timeout => '2 seconds')), regress_registered('not at work', idem_register());
BEGIN;
SELECT regress_show(idem_begin(regress_id('checkpointed'), 1));
SELECT idem_checkpoint(regress_id('checkpointed'), 1, 'here');
COMMIT;
SELECT idem_ack(regress_id('acked'), 1), idem_allocate(regress_id('allocated'), 1);
SELECT regress_show(idem_run(regress_id(s), '1', 'SELECT 1')) FROM unnest('{saved,closed,fenced,run out,not at work}'::text[]) s;
SELECT idem_close(regress_id(s)) FROM unnest('{closed,closed unsaved,closed by id}'::text[]) s;
SELECT regress_registered('newer', idem_register(client => 'fenced')), regress_registered('newer too', idem_register(client => 'fenced unsaved'));
SELECT regress_run_out('run out');
DELETE FROM idempotence.session_live WHERE id = regress_uuid('not at work');

-- who, how, since when
SELECT coalesce(c.alias, s.session), kind, owner = current_user::regrole AS mine, client, ordering, window_size, timeout, created_at BETWEEN now() - interval '10 minutes' AND now() AS just_made
FROM idempotence.sessions s LEFT JOIN regress_client_session c USING (session) WHERE c.alias IS NOT NULL OR s.session LIKE 'views%' ORDER BY coalesce(c.alias, s.session) COLLATE "C";
-- saved and seen, until when, and how it ended; what belongs to standing sessions
SELECT coalesce(c.alias, s.session), saved, last_seen <= now() AS seen, expires_at = GREATEST(last_seen, idempotence.up_since()) + timeout AS then_ends, expires_at > now() AS alive, ended, ended_at <= now() AS is_over, ttl, require_payload, time_keys
FROM idempotence.sessions s LEFT JOIN regress_client_session c USING (session) WHERE c.alias IS NOT NULL OR s.session LIKE 'views%' ORDER BY coalesce(c.alias, s.session) COLLATE "C";
-- one row each
SELECT session FROM idempotence.sessions GROUP BY session HAVING count(*) > 1;

-- the outcomes: of keys, with the moment they expire at; of numbers, with their stream and range
SELECT regress_show(idem_run('views', 'key', 'SELECT 1', args => '{}'));
SELECT idem_once('views inbox', 'key');
SELECT regress_registered('numbers', idem_register(window_size => 3));
DO $$ BEGIN
  PERFORM idem_begin(regress_id('numbers'), n, payload => to_jsonb(n)), idem_record(regress_id('numbers'), n, to_jsonb(n), failed => n = 2) FROM generate_series(1, 4) n;
  PERFORM idem_begin(regress_id('numbers'), 1, stream => 'a stream'), idem_record(regress_id('numbers'), 1, stream => 'a stream');
  PERFORM idem_begin(regress_id('saved'), 2, last => 100), idem_record(regress_id('saved'), 2, '"a range"');
END $$;
SELECT coalesce(c.alias, o.session) AS name, request, last, stream, status, response, response_bytes IS NOT NULL AS measured, fingerprint IS NOT NULL AS fingerprinted, recorded_by = current_user AS by_me, recorded_at <= now() AS recorded, expires_at > now() AS expires, segment IS NOT NULL AS in_segment
FROM idempotence.outcomes o LEFT JOIN regress_client_session c USING (session) WHERE c.alias IS NOT NULL OR o.session LIKE 'views%' ORDER BY coalesce(c.alias, o.session) COLLATE "C", stream COLLATE "C", request;
-- dropped by an ack, it is not shown: that the number was done is kept, its answer is not
SELECT idem_ack(regress_id('numbers'), 3);
SELECT request, stream FROM idempotence.outcomes WHERE session = regress_id('numbers') ORDER BY stream, request;
SELECT slot, first, class, response, fingerprint IS NOT NULL FROM idempotence.reply WHERE session = regress_uuid('numbers') AND stream = '' ORDER BY slot;

SELECT idem_drop_session('views'), idem_drop_session('views inbox');
SELECT regress_close();
