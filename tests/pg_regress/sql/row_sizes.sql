-- Goal: a row that the extension writes has a header of 24 bytes, the bytes of its columns and no others.
-- Method: in a transaction with empty tables, more rows than a page has room for, and how many are on the first page.
\pset format unaligned
\pset tuples_only on
BEGIN;
-- Whether as many rows of a table are on its first page as have room there. Empties the table.
CREATE FUNCTION regress_row(name text, fillfactor int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  columns text := (SELECT string_agg(format('coalesce(pg_column_size(%I), 0)', attname), ' + ') FROM pg_attribute
                   WHERE attrelid = format('idempotence.%I', name)::regclass AND attnum > 0 AND NOT attisdropped);
  items   int;
  size    int;
BEGIN
  EXECUTE format('SELECT count(*), max(24 + %s) FROM idempotence.%I WHERE ctid < ''(1,0)''', columns, name) INTO items, size;
  EXECUTE format('TRUNCATE idempotence.%I', name);
  -- A row is aligned, and has a pointer of 4 bytes. The header of a page takes 24.
  RETURN items = (8192 - 24 - 8192 * (100 - fillfactor) / 100) / ((size + 7) / 8 * 8 + 4);
END
$$;

SELECT idem_create_session('rows'), idem_create_session('rows inbox', inbox => true);
TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2, idempotence.lease, idempotence.reply, idempotence.session_live;
SELECT 'outcome_' || number AS current FROM idempotence.segment WHERE current \gset
SELECT count(idem_claim('rows', n::text)), count(idem_record('rows', n::text)) FROM generate_series(1001, 1200) n;
SELECT regress_row(:'current', 100);
SELECT count(idem_claim('rows', n::text)), count(idem_record('rows', n::text, '{"a": 1}')) FROM generate_series(1001, 1200) n;
SELECT regress_row(:'current', 100);
SELECT count(idem_claim('rows', n::text, '{"a": 1}')), count(idem_record('rows', n::text, '{"a": 1}')) FROM generate_series(1001, 1200) n;
SELECT regress_row(:'current', 100);
SELECT count(*) FROM idem_once_many('rows inbox', (SELECT array_agg(n::text) FROM generate_series(1001, 1200) n));
SELECT regress_row(:'current', 100);
SELECT count(idem_begin('rows', n::text, '{"a": 1}', lease => '1 hour')) FROM generate_series(1001, 1200) n;
SELECT regress_row('lease', 80);
SELECT session FROM idem_register(window_size => 200) \gset
SELECT count(idem_claim(:'session', n)), count(idem_record(:'session', n, '{"a": 1}')) FROM generate_series(1, 200) n;
SELECT regress_row('reply', 50);
SELECT count(idem_register()) FROM generate_series(1, 200);
SELECT regress_row('session_live', 50);
ROLLBACK;
