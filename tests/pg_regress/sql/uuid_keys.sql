-- Goal: a UUID is the same request as its text of 36 characters in lower case, in every function; what has no type is text.
-- Method: each function with both; the types that parameters without one get; arrays of every type.
\pset format unaligned
\pset tuples_only on
SELECT idem_create_session('uuid keys', ttl => '1 hour'), idem_create_session('uuid keys inbox', inbox => true), idem_create_session('uuid keys time', ttl => '1 hour', time_keys => true);
\set id '\'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11\'::uuid'
\set id_text '\'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\''
-- begun by the one and recorded by the other
BEGIN;
SELECT regress_show(idem_begin('uuid keys', :id, payload => '1'));
SELECT idem_record('uuid keys', :id_text, '"done"', ttl => '1 hour') IS NOT NULL;
COMMIT;
SELECT regress_show(idem_begin('uuid keys', :id)), regress_show(idem_begin('uuid keys', :id_text)), regress_show(idem_lookup('uuid keys', :id));
SELECT request FROM idempotence.outcomes WHERE session = 'uuid keys';
-- in upper case a text is another key
SELECT regress_show(idem_lookup('uuid keys', upper(:id_text)));
SELECT regress_message($$SELECT idem_begin('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, payload => '2')$$);
SELECT regress_message($$SELECT idem_begin('uuid keys', NULL::uuid)$$);
BEGIN;
SELECT regress_show(idem_begin('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'));
SELECT idem_checkpoint('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'::uuid, 'p', '1');
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'));
SELECT idem_release('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12'::uuid);
COMMIT;
BEGIN;
SELECT regress_show(idem_begin('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13'));
SELECT idem_record('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13'::uuid, failed => true) IS NOT NULL;
COMMIT;
SELECT idem_forget('uuid keys', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a13'::uuid, 'a test');
SELECT request FROM idempotence.audit WHERE session = 'uuid keys';
SELECT idem_once('uuid keys inbox', :id), idem_once('uuid keys inbox', :id_text), idem_once('uuid keys inbox', :id);
-- what the server makes is a key as it is
SELECT regress_show(idem_lookup('uuid keys time', idem_generate_id()));
-- in a client session a UUID is no number, as a text is none
SELECT regress_registered('live', idem_register());
SELECT regress_told(regress_message(format('SELECT idem_begin(%L, %L::uuid)', regress_id('live'), 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'))),
       regress_told(regress_message(format('SELECT idem_begin(%L, %L)', regress_id('live'), 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')));

-- what has no type is text
PREPARE p_begin AS SELECT idem_begin($1, $2, $3, $4);
PREPARE p_record AS SELECT idem_record($1, $2, $3);
PREPARE p_checkpoint AS SELECT idem_checkpoint($1, $2, $3, $4);
PREPARE p_release AS SELECT idem_release($1, $2);
PREPARE p_lookup AS SELECT idem_lookup($1, $2);
PREPARE p_once AS SELECT idem_once($1, $2);
PREPARE p_once_many AS SELECT idem_once_many($1, $2);
PREPARE p_once_many_from AS SELECT * FROM idem_once_many($1, requests => $2);
PREPARE p_forget AS SELECT idem_forget($1, $2, $3);
PREPARE p_uuid (text, uuid) AS SELECT idem_lookup($1, $2);
PREPARE p_varchar (varchar, varchar) AS SELECT status FROM idem_lookup($1, $2);
PREPARE p_integer (text, integer) AS SELECT idem_lookup($1, $2);
SELECT name, parameter_types FROM pg_prepared_statements WHERE name LIKE 'p\_%' ORDER BY name;
EXECUTE p_varchar('uuid keys', :id_text);
DEALLOCATE ALL;
-- and so is a literal
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{A,b}');
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY['A', 'c']);

-- arrays: of UUIDs, of numbers, of any string type
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY[:id, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A14'::uuid]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY[:id_text, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a14', 'd']);
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY[-1, 2147483648]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY[-1, 7]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', ARRAY[7, 8]::smallint[]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{7,8,9}'::varchar[]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{9,e}'::name[]);
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{e,f}'::char(3)[]);
CREATE DOMAIN uuid_keys_domain AS text;
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{f,g}'::uuid_keys_domain[]);
DROP DOMAIN uuid_keys_domain;
-- of two dimensions as of one, and from 0 as from 1
SELECT ord, request FROM idem_once_many('uuid keys inbox', '{{g,h},{i,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a14}}');
SELECT ord, request FROM idem_once_many('uuid keys inbox', '[0:1]={i,j}');
-- long ones, and large ones, that come compressed
CREATE TEMPORARY TABLE uuid_keys_many AS
  SELECT array_agg(gen_random_uuid()) AS ids, array_agg(n) AS numbers, array_agg(repeat('x', 250) || n) AS texts FROM generate_series(1000, 1999) n;
SELECT count(*), count(*) FILTER (WHERE request = ids[ord]::text) FROM uuid_keys_many, idem_once_many('uuid keys inbox', ids);
SELECT count(*), count(*) FILTER (WHERE request = numbers[ord]::text) FROM uuid_keys_many, idem_once_many('uuid keys inbox', numbers);
SELECT count(*), count(*) FILTER (WHERE request = texts[ord]) FROM uuid_keys_many, idem_once_many('uuid keys inbox', texts);
SELECT count(*) FROM uuid_keys_many, idem_once_many('uuid keys inbox', ids::text[]);
SELECT count(*) FROM idem_once_many('uuid keys inbox', '{}');
SELECT count(*) FROM idem_once_many('uuid keys inbox', '{}'::uuid[]);
SELECT regress_error($$SELECT idem_once_many('uuid keys inbox', ARRAY[gen_random_uuid(), NULL])$$);
SELECT regress_message($$SELECT idem_once_many('uuid keys inbox', NULL)$$);
SELECT regress_message($$SELECT idem_once_many('uuid keys inbox', NULL::uuid[])$$);
SELECT regress_error($$SELECT idem_once_many('uuid keys inbox', ARRAY[now()])$$);
SELECT regress_message($$SELECT idem_once_many('uuid keys inbox', ARRAY['1'::jsonb])$$);
SELECT regress_message($$SELECT idem_once_many('uuid keys inbox', ARRAY[1.5])$$);

SELECT regress_close();
SELECT idem_drop_session('uuid keys'), idem_drop_session('uuid keys inbox'), idem_drop_session('uuid keys time');
