-- Goal: two payloads have one fingerprint exactly when they are equal as jsonb.
-- Method: a table of hard pairs, a few thousand generated values against each other, then idem_begin.
\pset format unaligned
\pset tuples_only on
CREATE TABLE payload_pair (place serial, what text, a jsonb, b jsonb);
INSERT INTO payload_pair (what, a, b) VALUES
  ('order of members', '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
  ('order of members of other lengths', '{"aa": 1, "b": 2}', '{"b": 2, "aa": 1}'),
  ('order of members, nested', '{"x": [{"a": 1, "b": {"c": 2, "d": 3}}]}', '{"x": [{"b": {"d": 3, "c": 2}, "a": 1}]}'),
  ('a member twice: the last counts', '{"a": 1, "a": 2}', '{"a": 2}'),
  ('white space', ' [ 1 , 2 ] ', '[1,2]'),
  ('scale', '1', '1.0'),
  ('scale of zero', '0', '0.000'),
  ('scale, nested', '{"a": [1.10]}', '{"a": [1.1]}'),
  ('exponent', '1e3', '1000'),
  ('exponent, large', '1e100', '10e99'),
  ('exponent, small', '1e-20', '0.00000000000000000001'),
  ('minus zero', '-0', '0'),
  ('digits of numeric''s base', '10000', '10000.0000'),
  ('escapes', '"\u0041\u00e9"', '"Aé"'),
  ('surrogates', '"\ud834\udd1e"', '"𝄞"'),
  ('empty name', '{"": 1}', '{"": 1.0}'),
  ('sign', '1', '-1'),
  ('sign of a fraction', '{"a": 0.5}', '{"a": -0.5}'),
  ('power of numeric''s base', '1', '10000'),
  ('power of numeric''s base, downward', '1', '0.0001'),
  ('power of numeric''s base, twice', '10000', '100000000'),
  ('last of many digits', '123456789012345678901234567890.1', '123456789012345678901234567890.2'),
  ('what a double cannot tell', '9007199254740992', '9007199254740993'),
  ('scalar and array of one', '1', '[1]'),
  ('string and array of one', '"a"', '["a"]'),
  ('null and array of one', 'null', '[null]'),
  ('array of one, twice', '[1]', '[[1]]'),
  ('null and absent', '{"a": null}', '{}'),
  ('null and empty', 'null', '{}'),
  ('null and empty string', 'null', '""'),
  ('null and false', 'null', 'false'),
  ('false and true', 'false', 'true'),
  ('false and zero', 'false', '0'),
  ('empty object and empty array', '{}', '[]'),
  ('empty array and array of it', '[]', '[[]]'),
  ('number and string', '1', '"1"'),
  ('true and string', 'true', '"true"'),
  ('null and string', 'null', '"null"'),
  ('string and its length', '"ab"', '"abc"'),
  ('name and value', '{"a": "b"}', '{"b": "a"}'),
  ('names run together', '{"ab": "c"}', '{"a": "bc"}'),
  ('values run together', '["ab", "c"]', '["a", "bc"]'),
  ('order of elements', '[1, 2]', '[2, 1]'),
  ('an element more', '[1, 2]', '[1, 2, null]'),
  ('a level more', '[1, [2]]', '[[1], 2]'),
  ('a level elsewhere', '[[1, 2], 3]', '[[1], 2, 3]'),
  ('members and a member of members', '{"a": {"b": 1}}', '{"a": 1, "b": 1}'),
  ('object and array of its parts', '{"a": 1}', '["a", 1]'),
  ('case', '"a"', '"A"'),
  ('composed and decomposed', '"\u00e9"', '"e\u0301"'),
  ('trailing space', '"a"', '"a "'),
  ('control characters', '"\u0001"', '"\u0002"'),
  ('elements exchanged 32 places apart',
   (SELECT jsonb_agg(CASE n WHEN 1 THEN 'a' WHEN 33 THEN 'b' ELSE 'x' END ORDER BY n) FROM generate_series(1, 40) n),
   (SELECT jsonb_agg(CASE n WHEN 1 THEN 'b' WHEN 33 THEN 'a' ELSE 'x' END ORDER BY n) FROM generate_series(1, 40) n)),
  ('elements exchanged 64 places apart',
   (SELECT jsonb_agg(CASE n WHEN 3 THEN 1 WHEN 67 THEN 2 ELSE 0 END ORDER BY n) FROM generate_series(1, 70) n),
   (SELECT jsonb_agg(CASE n WHEN 3 THEN 2 WHEN 67 THEN 1 ELSE 0 END ORDER BY n) FROM generate_series(1, 70) n)),
  ('pairs exchanged in a long array',
   (SELECT jsonb_agg(n ORDER BY n) FROM generate_series(1, 10000) n),
   (SELECT jsonb_agg(CASE n WHEN 17 THEN 9999 WHEN 9999 THEN 17 ELSE n END ORDER BY n) FROM generate_series(1, 10000) n)),
  ('a thousand levels', (repeat('[', 1000) || repeat(']', 1000))::jsonb, (repeat('[', 999) || repeat(']', 999))::jsonb),
  ('a thousand levels, equal', (repeat('{"a":', 1000) || '1' || repeat('}', 1000))::jsonb, (repeat('{"a": ', 1000) || '1.0' || repeat('}', 1000))::jsonb),
  ('a large string', to_jsonb(repeat('x', 500000)), to_jsonb(repeat('x', 499999) || 'y')),
  ('a large string, equal', to_jsonb(repeat('x', 500000)), to_jsonb(repeat('x', 500000)));
SELECT what, a = b AS equal, CASE WHEN (idem_fingerprint(a) = idem_fingerprint(b)) = (a = b) THEN 'ok' ELSE 'WRONG' END,
       CASE WHEN (idem_key(jsonb_build_array(true, a)) = idem_key(jsonb_build_array(true, b))) = (a = b) THEN 'ok' ELSE 'WRONG' END
FROM payload_pair ORDER BY place;
-- stored out of line and compressed they have the same ones
SELECT count(*) FROM payload_pair WHERE idem_fingerprint(a) <> idem_fingerprint(a::text::jsonb);

-- Generated values: small alphabets, so that equal ones and near ones are met often.
CREATE FUNCTION payload_generate(depth integer) RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
  sort    integer := floor(random() * CASE WHEN depth > 0 THEN 7 ELSE 5 END);
  members integer := floor(random() * 4);
BEGIN
  RETURN CASE sort
    WHEN 0 THEN 'null'
    WHEN 1 THEN to_jsonb(random() < 0.5)
    WHEN 2 THEN to_jsonb((floor(random() * 7 - 3) * power(10::numeric, floor(random() * 5 - 2)::integer))::numeric)
    WHEN 3 THEN to_jsonb(substr('abba', 1 + floor(random() * 4)::integer, floor(random() * 3)::integer))
    WHEN 4 THEN to_jsonb(('{1,1.0,1.00,10000,0,0.0,-1}'::numeric[])[1 + floor(random() * 7)::integer])
    WHEN 5 THEN (SELECT coalesce(jsonb_agg(payload_generate(depth - 1)), '[]') FROM generate_series(1, members))
    ELSE (SELECT coalesce(jsonb_object_agg(substr('aabb', 1 + floor(random() * 4)::integer, 1 + floor(random() * 2)::integer), payload_generate(depth - 1)), '{}')
          FROM generate_series(1, members))
  END;
END
$$;
CREATE TABLE payload_value (id serial, value jsonb, fingerprint uuid, key text);
SELECT setseed(0.42);
INSERT INTO payload_value (value) SELECT payload_generate(3) FROM generate_series(1, 4000);
UPDATE payload_value SET fingerprint = idem_fingerprint(value), key = idem_key(jsonb_build_array(true, value));
-- there are enough equal and enough different ones, among the equal some that are written differently
SELECT count(DISTINCT value) BETWEEN 500 AND 3500, count(DISTINCT value::text) > count(DISTINCT value) FROM payload_value;
SELECT count(*) FROM payload_value x JOIN payload_value y ON x.value = y.value WHERE x.fingerprint <> y.fingerprint OR x.key <> y.key;
SELECT count(*) FROM payload_value x JOIN payload_value y ON x.fingerprint = y.fingerprint OR x.key = y.key WHERE x.value <> y.value;

-- its form: a UUID; a key is its digits, which a session with time_keys would refuse
SELECT pg_typeof(idem_fingerprint('{"a": 1}')), idem_key('{"a": 1}') ~ '^[0-9a-f]{32}$', idem_key('{"a": 1}') = replace(idem_fingerprint('{"a": 1}')::text, '-', '');
-- it never changes, or kept fingerprints would not match after an update
SELECT idem_fingerprint('{"amount": 10.50, "to": ["a", null, true]}');

-- begin compares where both times a payload was given
SELECT idem_create_session('payload', ttl => '1 hour');
BEGIN;
SELECT regress_show(idem_begin('payload', '1', payload => '{"a": 1, "b": [2]}'));
SELECT idem_record('payload', '1') IS NOT NULL;
SELECT regress_show(idem_begin('payload', '2'));
SELECT idem_record('payload', '2') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('payload', '1', payload => '{"b": [2.0], "a": 1.00}'));
SELECT regress_show(idem_begin('payload', '1', payload => NULL));
SELECT regress_message($$SELECT idem_begin('payload', '1', payload => '{"a": 1, "b": 2}')$$);
SELECT regress_message($$SELECT idem_begin('payload', '1', payload => 'null')$$);
SELECT regress_show(idem_begin('payload', '2', payload => '{"anything": "goes"}'));
SELECT fingerprint = idem_fingerprint('{"a": 1, "b": [2]}') FROM idempotence.outcomes WHERE session = 'payload' ORDER BY request;
-- an expired outcome binds nobody to its payload
BEGIN;
SELECT regress_show(idem_begin('payload', '3', payload => '1'));
SELECT idem_record('payload', '3', ttl => '1 microsecond') IS NOT NULL;
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('payload', '3', payload => '2'));
SELECT idem_record('payload', '3') IS NOT NULL;
COMMIT;
SELECT regress_message($$SELECT idem_begin('payload', '3', payload => '1')$$);
-- a key made of the payload itself: the same operation has the same name
SELECT regress_show(idem_run('payload', idem_key('{"to": "a", "amount": 1}'), 'SELECT 1'));
SELECT regress_show(idem_run('payload', idem_key('{"amount": 1.0, "to": "a"}'), 'SELECT 2'));

DROP FUNCTION payload_generate;
DROP TABLE payload_value, payload_pair;
SELECT idem_drop_session('payload');
