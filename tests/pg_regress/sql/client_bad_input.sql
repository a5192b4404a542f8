-- Goal: what a caller can get wrong with client sessions and numbers is refused with a clear error.
-- Method: one call for each mistake; DETAIL and HINT too for one of each kind.
\pset format unaligned
\pset tuples_only on
SELECT regress_registered('any', idem_register());
SELECT regress_registered('strict', idem_register(ordering => 'strict'));
SELECT idem_create_session('standing', ttl => '1 hour');
SELECT idem_create_session('standing inbox', ttl => '1 hour', inbox => true);
-- Each call with what comes of it; ANY, STRICT and NONE stand for sessions, NONE for one that was never registered.
CREATE FUNCTION bad_input(calls text[]) RETURNS TABLE (call text, told text) LANGUAGE sql AS $$
  SELECT c.call, replace(regress_message('SELECT ' || replace(replace(replace(c.call, 'ANY', 'regress_id(''any'')'), 'STRICT', 'regress_id(''strict'')'),
                                                              'NONE', '''01890a5d-ac96-774b-bcce-b302099a8057''')),
                         '01890a5d-ac96-774b-bcce-b302099a8057', 'none')
  FROM unnest(calls) WITH ORDINALITY AS c (call, place) ORDER BY c.place
$$;

-- NULL in every argument that must be given; elsewhere it is the default
SELECT * FROM bad_input(ARRAY[
  'idem_heartbeat(NULL)', 'idem_close(NULL)',
  'idem_ack(NULL, 1)', 'idem_ack(ANY, NULL)', 'idem_ack(ANY, 1, NULL)',
  'idem_allocate(NULL, 1)', 'idem_allocate(ANY, NULL)', 'idem_allocate(ANY, 1, NULL)',
  'idem_position(NULL)', 'idem_position(ANY, NULL)',
  'idem_register(ordering => NULL)', 'idem_register(resume => NULL)',
  'idem_begin(ANY, NULL::bigint)', 'idem_begin(ANY, NULL::text)', 'idem_record(ANY, NULL::bigint)', 'idem_record(ANY, 1, failed => NULL)',
  'idem_checkpoint(ANY, 1, NULL)', 'idem_release(ANY, NULL::bigint)', 'idem_lookup(ANY, NULL::bigint)', 'idem_run(ANY, NULL, ''SELECT 1'')'
]);
SELECT regress_error($$SELECT idem_ack(regress_id('any'), NULL)$$);
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => NULL, wait => NULL, stream => NULL, last => NULL, ack => NULL));
SELECT regress_show(idem_lookup(regress_id('any'), 1, stream => NULL)), regress_show(idem_lookup(regress_id('any'), 1, stream => ''));
ROLLBACK;
SELECT idem_close(session) FROM idem_register(client => NULL, timeout => NULL, window_size => NULL, request_id => NULL, wait => NULL);

-- numbers: from 1, in digits
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 0)$$);
SELECT regress_error($$SELECT idem_begin(regress_id('any'), repeat('order', 100))$$);
SELECT * FROM bad_input(ARRAY[
  'idem_begin(ANY, 0)', 'idem_begin(ANY, -1)', 'idem_begin(ANY, -9223372036854775808)', 'idem_begin(ANY, 9223372036854775807)', 'idem_begin(ANY, 4611686018427387905)',
  'idem_begin(ANY, ''0'')', 'idem_begin(ANY, ''-1'')', 'idem_begin(ANY, ''+1'')', 'idem_begin(ANY, '' 1'')', 'idem_begin(ANY, ''1 '')', 'idem_begin(ANY, ''1.0'')', 'idem_begin(ANY, ''1e3'')',
  'idem_begin(ANY, ''0x1'')', 'idem_begin(ANY, ''1_000'')', 'idem_begin(ANY, '''')', 'idem_begin(ANY, ''one'')', 'idem_begin(ANY, ''١'')',
  'idem_begin(ANY, ''99999999999999999999999999'')', 'idem_begin(ANY, ''01890a5d-ac96-774b-bcce-b302099a8057'')',
  'idem_record(ANY, 0)', 'idem_checkpoint(ANY, ''one'', ''p'')', 'idem_release(ANY, -1)', 'idem_lookup(ANY, ''one'')', 'idem_run(ANY, ''one'', ''SELECT 1'')',
  'idem_begin(STRICT, 0)', 'idem_lookup(STRICT, ''one'')'
]);

-- ranges: of strict sessions only, and not backwards
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 1, last => 2)$$);
SELECT regress_error($$SELECT idem_begin(regress_id('strict'), 2, last => 1)$$);
SELECT * FROM bad_input(ARRAY[
  'idem_begin(ANY, 1, last => 0)', 'idem_begin(ANY, ''1'', last => 2)', 'idem_begin(STRICT, 1, last => 0)', 'idem_begin(STRICT, 1, last => -9223372036854775808)',
  'idem_begin(STRICT, 1, last => 4611686018427387905)', 'idem_begin(STRICT, 1, last => 9223372036854775807)', 'idem_begin(STRICT, 5, last => 6)'
]);

-- acks: 0 or a number
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 1, ack => -1)$$);
SELECT regress_error($$SELECT idem_ack(regress_id('any'), -1)$$);
SELECT * FROM bad_input(ARRAY[
  'idem_begin(ANY, 1, ack => 4611686018427387905)', 'idem_begin(STRICT, 1, ack => 9223372036854775807)', 'idem_ack(ANY, 4611686018427387905)', 'idem_ack(STRICT, -9223372036854775808)'
]);

-- streams: 255 characters, whatever their bytes, and 256
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 1, stream => repeat('s', 256))$$);
SELECT * FROM bad_input(ARRAY[
  'idem_begin(ANY, 1, stream => repeat(''€'', 256))', 'idem_record(ANY, 1, stream => repeat(''s'', 256))', 'idem_checkpoint(ANY, 1, ''p'', stream => repeat(''s'', 256))',
  'idem_release(ANY, 1, stream => repeat(''s'', 256))', 'idem_lookup(ANY, 1, stream => repeat(''s'', 256))', 'idem_ack(ANY, 1, repeat(''s'', 256))',
  'idem_allocate(ANY, 1, repeat(''s'', 256))', 'idem_position(ANY, repeat(''s'', 256))', 'idem_begin(STRICT, 1, stream => repeat(''s'', 256))'
]);
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, stream => repeat('𝄞', 255)));
SELECT idem_record(regress_id('any'), 1, stream => repeat('𝄞', 255));
SELECT idem_ack(regress_id('any'), 1, repeat('𝄞', 255)), idem_allocate(regress_id('any'), 1, repeat('𝄞', 255)), idem_position(regress_id('any'), repeat('𝄞', 255));
ROLLBACK;

-- allocations: at least one, at most idempotence.max_batch, in no strict order
SELECT regress_error($$SELECT idem_allocate(regress_id('any'), 0)$$);
SELECT regress_error($$SELECT idem_allocate(regress_id('any'), 10001)$$);
SELECT * FROM bad_input(ARRAY['idem_allocate(ANY, -1)', 'idem_allocate(ANY, -2147483648)', 'idem_allocate(ANY, 2147483647)', 'idem_allocate(STRICT, 1)', 'idem_allocate(STRICT, 0)']);

-- what the numbers of a request do not go with: a ttl, a token
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1));
SELECT regress_error($$SELECT idem_record(regress_id('any'), 1, ttl => '1 hour')$$);
SELECT regress_error($$SELECT idem_record(regress_id('any'), 1, token => 1)$$);
SELECT regress_message($$SELECT idem_checkpoint(regress_id('any'), 1, 'p', token => 1)$$), regress_message($$SELECT idem_release(regress_id('any'), 1, token => -1)$$);
ROLLBACK;

-- sizes, at the limit and one byte more; a jsonb string of n bytes takes n + 8
SET idempotence.max_payload = 100;
SET idempotence.max_response = 200;
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1, payload => to_jsonb(repeat('x', 92))));
SELECT regress_error($$SELECT idem_record(regress_id('any'), 1, to_jsonb(repeat('x', 193)))$$);
SELECT regress_error($$SELECT idem_checkpoint(regress_id('any'), 1, 'p', to_jsonb(repeat('x', 193)))$$);
SELECT regress_message($$SELECT idem_checkpoint(regress_id('any'), 1, repeat('p', 256))$$);
SELECT idem_checkpoint(regress_id('any'), 1, repeat('p', 255), to_jsonb(repeat('x', 192)));
SELECT idem_record(regress_id('any'), 1, to_jsonb(repeat('x', 192)));
ROLLBACK;
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 1, payload => to_jsonb(repeat('x', 93)))$$);
SELECT regress_message($$SELECT idem_begin(regress_id('any'), 1, stream => 's', payload => to_jsonb(repeat('x', 93)))$$);
RESET idempotence.max_payload;
RESET idempotence.max_response;

-- registering
SELECT regress_error($$SELECT idem_register(client => '')$$);
SELECT regress_error($$SELECT idem_register(client => repeat('c', 256))$$);
SELECT regress_error($$SELECT idem_register(timeout => '0')$$);
SELECT regress_error($$SELECT idem_register(window_size => 0)$$);
SELECT regress_error($$SELECT idem_register(ordering => 'none')$$);
SELECT * FROM bad_input(ARRAY[
  'idem_register(timeout => ''-1 second'')', 'idem_register(timeout => ''1 second -1 day'')', 'idem_register(window_size => -1)', 'idem_register(window_size => -2147483648)',
  'idem_register(ordering => '''')', 'idem_register(ordering => ''Strict'')', 'idem_register(ordering => repeat(''x'', 1000))', 'idem_register(wait => ''-1 second'')'
]);

-- sessions that are no client session, and the other way round
SELECT regress_error($$SELECT idem_heartbeat('standing')$$);
SELECT regress_error($$SELECT idem_heartbeat('nowhere')$$);
SELECT regress_error($$SELECT idem_heartbeat('')$$);
SELECT * FROM bad_input(ARRAY[
  'idem_ack(''standing'', 1)', 'idem_allocate(''standing'', 1)', 'idem_position(''standing'')', 'idem_close(''standing'')', 'idem_position(''standing inbox'')', 'idem_close(''nowhere'')'
]);
SELECT regress_error($$SELECT idem_begin('standing', 1, stream => 's')$$);
SELECT * FROM bad_input(ARRAY[
  'idem_begin(''standing'', 1, last => 1)', 'idem_begin(''standing'', 1, ack => 0)', 'idem_record(''standing'', 1, stream => '''')', 'idem_lookup(''standing'', 1, stream => ''s'')'
]);
-- a client session is not unknown to the functions of standing ones, but none of theirs
SELECT call, left(told, 5) FROM bad_input(ARRAY[
  'idem_once(ANY, 1)', 'idem_once(ANY, ''1'')', 'idem_once_many(ANY, ''{1}'')', 'idem_once_many(ANY, ''{}'')', 'idem_alter_session(ANY)', 'idem_alter_session(ANY, ttl => ''1 hour'')',
  'idem_drop_session(ANY)', 'idem_create_session(ANY)'
]);
SELECT regress_error($$SELECT idem_forget(regress_id('any'), 1, 'why')$$);
SELECT * FROM bad_input(ARRAY['idem_forget(NONE, 1, ''why'')', 'idem_forget(ANY, ''one'', ''why'')', 'idem_forget(ANY, 1, '''')']);
-- one that was never registered
SELECT * FROM bad_input(ARRAY[
  'idem_begin(NONE, 1)', 'idem_begin(NONE, ''one'')', 'idem_record(NONE, 1)', 'idem_checkpoint(NONE, 1, ''p'')', 'idem_release(NONE, 1)', 'idem_lookup(NONE, 1)', 'idem_run(NONE, ''1'', ''SELECT 1'')',
  'idem_heartbeat(NONE)', 'idem_ack(NONE, 1)', 'idem_allocate(NONE, 1)', 'idem_position(NONE)', 'idem_close(NONE)'
]);
SELECT idem_close('01890a5d-ac96-774b-bcce-b302099a8057');

-- a read-only transaction: a replay, a look and a position, but nothing to start with or to note
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 1));
SELECT idem_record(regress_id('any'), 1, '1');
COMMIT;
BEGIN READ ONLY;
SELECT regress_show(idem_begin(regress_id('any'), 1)), regress_show(idem_run(regress_id('any'), '1', 'SELECT 1')), regress_show(idem_lookup(regress_id('any'), 2)), idem_position(regress_id('any'));
SELECT regress_error($$SELECT idem_begin(regress_id('any'), 2)$$);
SELECT regress_error($$SELECT idem_register()$$);
SELECT regress_error($$SELECT idem_heartbeat(regress_id('any'))$$);
SELECT regress_error($$SELECT idem_ack(regress_id('any'), 1)$$);
SELECT regress_error($$SELECT idem_allocate(regress_id('any'), 1)$$);
SELECT regress_error($$SELECT idem_close(regress_id('any'))$$);
SELECT * FROM bad_input(ARRAY['idem_begin(ANY, 1, payload => ''{}'')', 'idem_begin(ANY, 7)', 'idem_record(ANY, 2)', 'idem_run(ANY, ''2'', ''SELECT 1'')', 'idem_close(NONE)', 'idem_heartbeat(NONE)']);
COMMIT;
-- read-only from the middle on
BEGIN;
SELECT regress_show(idem_begin(regress_id('any'), 2));
SET TRANSACTION READ ONLY;
SELECT regress_error($$SELECT idem_record(regress_id('any'), 2)$$);
SELECT regress_message($$SELECT idem_checkpoint(regress_id('any'), 2, 'p')$$);
SELECT idem_release(regress_id('any'), 2);
COMMIT;

-- none of it left anything behind
SELECT request, stream FROM idempotence.outcomes WHERE session IN (regress_id('any'), regress_id('strict'));
SELECT idem_position(regress_id('any')), idem_position(regress_id('strict')), regress_session('strict');
SELECT regress_claims();
DROP FUNCTION bad_input;
SELECT idem_drop_session('standing'), idem_drop_session('standing inbox');
SELECT regress_close();
