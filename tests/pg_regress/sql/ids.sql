-- Goal: identifiers made by the server: version, variant, order, count, limits.
-- Method: thousands are made and compared; no value is shown.
\pset format unaligned
\pset tuples_only on
SELECT pg_typeof(idem_generate_id()), pg_typeof(idem_generate_ids(1));
-- UUIDs of version 7 in the variant of RFC 9562, whose time is now
SELECT bool_and(id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$')
FROM (SELECT idem_generate_id() FROM generate_series(1, 1000) UNION ALL SELECT unnest(idem_generate_ids(1000))) x (id);
SELECT bool_and(abs(extract(epoch FROM clock_timestamp()) - ('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint / 1000.0) < 600)
FROM unnest(idem_generate_ids(10)) id;
-- rising: one after the other, within a call and from call to call
SELECT bool_and(id > before), count(*), count(DISTINCT id)
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM (SELECT n, idem_generate_id() AS id FROM generate_series(1, 5000) n) x) y;
SELECT bool_and(id > before), count(*), count(DISTINCT id)
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM unnest(idem_generate_ids(10000)) WITH ORDINALITY x (id, n)) y;
CREATE TABLE ids_made (n serial, id uuid);
DO $$
DECLARE
  highest uuid := idem_generate_id();
  ids     uuid[];
BEGIN
  FOR n IN 1..100 LOOP
    ids := idem_generate_ids(20);
    ASSERT ids[1] > highest, 'a call starts above where the one before ended';
    highest := idem_generate_id();
    ASSERT highest > ids[20];
    INSERT INTO ids_made (id) SELECT unnest(ids || highest);
  END LOOP;
END $$;
SELECT count(*), count(DISTINCT id), array_agg(id ORDER BY n) = array_agg(id ORDER BY id) FROM ids_made;
-- their random parts do not repeat
SELECT count(DISTINCT right(id::text, 12)) FROM ids_made;
DROP TABLE ids_made;

-- counts
SELECT cardinality(idem_generate_ids(1)), cardinality(idem_generate_ids(10000)), array_lower(idem_generate_ids(2), 1), array_ndims(idem_generate_ids(2));
SELECT n, regress_message(format('SELECT idem_generate_ids(%s)', n)) FROM unnest('{0,-1,10001,2147483647,-2147483648}'::bigint[]) n;
SELECT regress_error($$SELECT idem_generate_ids(0)$$);
SELECT regress_error($$SELECT idem_generate_ids(10001)$$);
SET idempotence.max_batch = 3;
SELECT cardinality(idem_generate_ids(3));
SELECT regress_message($$SELECT idem_generate_ids(4)$$);
RESET idempotence.max_batch;

-- as keys, with a name in front, and in a session with time_keys
SELECT idem_create_session('ids', ttl => '1 hour'), idem_create_session('ids time', ttl => '1 hour', time_keys => true);
SELECT regress_show(idem_run('ids', 'app-' || idem_generate_id(), 'SELECT 1'));
SELECT regress_show(idem_run('ids', idem_generate_id()::text, 'SELECT 1'));
SELECT regress_show(idem_run('ids time', idem_generate_id()::text, 'SELECT 1'));
SELECT regress_show(idem_run('ids time', id::text, 'SELECT 1')) FROM unnest(idem_generate_ids(2)) id;
-- numeric identifiers are keys as they are
SELECT regress_show(idem_run('ids', 1541815603606036480::text, 'SELECT 1'));
SELECT regress_show(idem_begin('ids', 1541815603606036480));
SELECT idem_drop_session('ids'), idem_drop_session('ids time');

-- derived from content: what says nothing would make one request of all, however deep it is
SELECT payload, regress_message(format('SELECT idem_key(%L)', payload))
FROM unnest('{"null","{}",[],[null],[[]],"[{}, [null, {\"id\": null}]]","{\"id\": null, \"of\": {\"customer\": null, \"items\": []}}"}'::jsonb[]) payload;
SELECT regress_error($$SELECT idem_key('null')$$);
SELECT regress_message($$SELECT idem_key(NULL)$$);
SELECT regress_message(format('SELECT idem_key(%L)', repeat('[', 1000) || repeat(']', 1000)));
-- anything else says something
SELECT count(*), count(DISTINCT idem_key(payload)) FROM unnest('{0,"\"\"",false,true,[0],"[null, 0]","[[0]]","{\"id\": \"\"}","{\"id\": {\"id\": 0}}","{\"a\": null, \"b\": false}","[[[[[[1]]]]]]"}'::jsonb[]) payload;
-- a fingerprint is compared, and stands for nothing: any payload has one
SELECT count(DISTINCT idem_fingerprint(payload)) FROM unnest('{"null","{}",[],[null]}'::jsonb[]) payload;
