-- Goal: what CREATE EXTENSION makes is documented and declared right, in any schema, as often as wanted.
-- Method: queries on the catalog; CREATE and DROP EXTENSION in a database of its own, in one backend.
\pset format unaligned
\pset tuples_only on
\set SHOW_CONTEXT never
-- Every object of the extension.
CREATE VIEW catalog_member AS
SELECT d.classid, d.objid FROM pg_depend d
WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotence') AND d.deptype = 'e';

-- every function, type, table, view and schema has a comment, and so has every column that a user sees
SELECT p.oid::regprocedure FROM pg_proc p JOIN catalog_member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
WHERE coalesce(obj_description(p.oid, 'pg_proc'), '') = '' ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT c.oid::regclass FROM pg_class c JOIN catalog_member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
WHERE c.relkind IN ('r', 'v') AND coalesce(obj_description(c.oid, 'pg_class'), '') = '' ORDER BY c.relname;
-- a type that comes with a table has that one's, and an array type its element's
SELECT t.oid::regtype FROM pg_type t JOIN catalog_member m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid
WHERE t.typcategory <> 'A' AND (t.typrelid = 0 OR (SELECT c.relkind FROM pg_class c WHERE c.oid = t.typrelid) = 'c')
  AND coalesce(obj_description(t.oid, 'pg_type'), '') = '';
SELECT n.nspname FROM pg_namespace n JOIN catalog_member m ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
WHERE coalesce(obj_description(n.oid, 'pg_namespace'), '') = '';
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE (c.relkind IN ('r', 'v') AND c.oid IN (SELECT objid FROM catalog_member WHERE classid = 'pg_class'::regclass)
    OR c.relkind = 'c' AND c.reltype IN (SELECT objid FROM catalog_member WHERE classid = 'pg_type'::regclass))
  AND (c.relkind <> 'r' OR c.relname = 'audit')
  AND coalesce(col_description(c.oid, a.attnum), '') = '' ORDER BY c.relname, a.attnum;
SELECT obj_description((SELECT oid FROM pg_extension WHERE extname = 'idempotence'), 'pg_extension');
-- settings describe themselves; a misspelt one is an error
LOAD 'idempotence';
-- those of shared memory, and the server's name, can be set at the start only, which a library that is not preloaded cannot declare
SELECT name, CASE WHEN name NOT IN ('idempotence.max_stats', 'idempotence.max_errors', 'idempotence.track_in_flight', 'idempotence.node') THEN context END, vartype, unit, min_val, max_val, boot_val
FROM pg_settings WHERE name LIKE 'idempotence.%' ORDER BY name COLLATE "C";
SELECT name FROM pg_settings WHERE name LIKE 'idempotence.%' AND (coalesce(short_desc, '') = '' OR coalesce(extra_desc, '') = '');
SET idempotence.wiat = 1;
\echo :SQLSTATE

-- how functions are declared
SELECT p.oid::regprocedure, CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
       CASE p.proparallel WHEN 's' THEN 'parallel safe' WHEN 'r' THEN 'parallel restricted' ELSE 'parallel unsafe' END, p.prokind
FROM pg_proc p JOIN catalog_member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid ORDER BY p.oid::regprocedure::text COLLATE "C";
-- the planner leaves out what a call leaves out, and NULL at its end
EXPLAIN (VERBOSE, COSTS OFF) SELECT t.status FROM idem_begin('catalog', 'k') t;
EXPLAIN (VERBOSE, COSTS OFF) SELECT t.status FROM idem_begin('catalog', 1, lease => NULL, wait => '0') t;
-- one shape a name: the overloads of a function differ by text, bigint and uuid of one argument, and by nothing else
SELECT proname, count(*), string_agg(DISTINCT types, ' / ') FROM (
  SELECT p.proname, array_to_string(p.proargnames, ',') || ' ' || p.pronargdefaults || ' ' || pg_get_expr(p.proargdefaults, 0) || ' ' || p.prorettype::regtype AS shape,
         array_to_string((p.proargtypes::regtype[])[0:0] || (p.proargtypes::regtype[])[2:], ',') AS types, (p.proargtypes::regtype[])[1] AS request
  FROM pg_proc p JOIN catalog_member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid) f
GROUP BY proname HAVING count(*) > 1 AND (count(DISTINCT shape) > 1 OR count(DISTINCT types) > 1 OR string_agg(request::text, ' ' ORDER BY request::text COLLATE "C") <> 'bigint text uuid');
-- the columns of what a function answers
SELECT t.typname, a.attname, a.atttypid::regtype FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
WHERE t.oid IN ('idem_ticket'::regtype, 'idem_session'::regtype, 'idem_position'::regtype) ORDER BY t.typname DESC, a.attnum;
-- the views
SELECT c.relname, a.attname, a.atttypid::regtype FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid IN ('idempotence.sessions'::regclass, 'idempotence.outcomes'::regclass, 'idempotence.unfinished'::regclass) ORDER BY c.relname DESC, a.attnum;
-- every table is logged but that of the sessions at work, and dumped but for that one and the state of the ring
SELECT c.relname, c.relpersistence, c.oid = ANY (e.extconfig) AS dumped FROM pg_class c JOIN catalog_member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid,
  pg_extension e WHERE e.extname = 'idempotence' AND c.relkind = 'r' ORDER BY c.relname;
-- should they be published, each row that is updated or deleted can be found: by a primary key, or as a whole
SELECT c.relname, c.relreplident FROM pg_class c JOIN catalog_member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
WHERE c.relkind = 'r' AND c.relpersistence = 'p'
  AND NOT (c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)) ORDER BY c.relname;
-- it is not for everyone to create, and not to be moved
SELECT superuser, trusted, relocatable, schema FROM pg_available_extension_versions WHERE name = 'idempotence' AND installed;
ALTER EXTENSION idempotence SET SCHEMA pg_catalog;
\echo :SQLSTATE
DROP VIEW catalog_member;

-- What comes now is done in a database of its own.
SELECT current_database() AS home \gset
-- A template, which no worker visits.
CREATE DATABASE regress_catalog TEMPLATE template0 ENCODING 'UTF8' IS_TEMPLATE true;
\c regress_catalog
\pset format unaligned
\pset tuples_only on
-- one after the other, the result of an executed request and of its replay
CREATE FUNCTION catalog_try(key text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY EXECUTE 'SELECT t.status || coalesce('' '' || t.response::text, '''') || CASE WHEN t.replayed THEN '' replayed'' ELSE '''' END FROM idem_run(''catalog'', $1, ''SELECT to_jsonb(1)'') t' USING key;
  RETURN QUERY EXECUTE 'SELECT t.status || coalesce('' '' || t.response::text, '''') || CASE WHEN t.replayed THEN '' replayed'' ELSE '''' END FROM idem_begin(''catalog'', $1) t' USING key;
END $$;
-- what comes of a number of a client session
CREATE FUNCTION catalog_number(session text, number integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  told text;
BEGIN
  EXECUTE 'SELECT t.status || CASE WHEN t.replayed THEN '' replayed'' ELSE '''' END FROM idem_run($1, $2::text, ''SELECT 1'') t' INTO told USING session, number;
  RETURN told;
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
SET client_min_messages = error;
CREATE EXTENSION idempotence;
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
SELECT session AS former FROM idem_register(client => 'catalog') \gset
SELECT catalog_number(:'former', 1), catalog_number(:'former', 1);
SELECT idem_create_session('catalog inbox', inbox => true);
SELECT idem_once('catalog inbox', 'k'), idem_once('catalog inbox', 'k');
-- dropped and created in one backend: nothing of the former one is remembered
DROP EXTENSION idempotence;
SELECT nspname FROM pg_namespace WHERE nspname = 'idempotence';
\set VERBOSITY terse
SELECT idem_lookup('catalog', 'k');
\set VERBOSITY default
\echo :SQLSTATE
CREATE EXTENSION idempotence;
SELECT idem_lookup('catalog', 'k');
\echo :SQLSTATE
SELECT catalog_number(:'former', 1);
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
SELECT idem_create_session('catalog inbox', inbox => true);
SELECT idem_once('catalog inbox', 'k'), idem_once('catalog inbox', 'k');
SELECT session AS former, resumed FROM idem_register(client => 'catalog', resume => true) \gset
SELECT :'resumed', catalog_number(:'former', 1), catalog_number(:'former', 1);
-- in one transaction
BEGIN;
DROP EXTENSION idempotence;
CREATE EXTENSION idempotence;
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
SELECT catalog_number(:'former', 1);
SELECT session AS former FROM idem_register(client => 'catalog') \gset
SELECT catalog_number(:'former', 1), catalog_number(:'former', 1);
COMMIT;
SELECT catalog_try('k');
SELECT catalog_number(:'former', 1), catalog_number(:'former', 2);
-- dropped and taken back: what was there is there
BEGIN;
DROP EXTENSION idempotence;
ROLLBACK;
SELECT catalog_try('k');
SELECT catalog_number(:'former', 1), catalog_number(:'former', 3);
DROP EXTENSION idempotence;
-- created and taken back, and then again
BEGIN;
CREATE EXTENSION idempotence;
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
ROLLBACK;
\set VERBOSITY terse
SELECT idem_lookup('catalog', 'k');
\set VERBOSITY default
\echo :SQLSTATE
CREATE EXTENSION idempotence;
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
BEGIN;
SAVEPOINT s;
DROP EXTENSION idempotence;
CREATE EXTENSION idempotence;
SELECT idem_create_session('catalog');
SELECT catalog_try('other');
ROLLBACK TO s;
SELECT catalog_try('k');
COMMIT;
-- with a request open it stays, for the transaction cannot commit
BEGIN;
SELECT status FROM idem_begin('catalog', 'open');
DROP EXTENSION idempotence;
COMMIT;
\echo :SQLSTATE
SELECT catalog_try('k');
DROP EXTENSION idempotence;

-- its tables are heap, whatever the default is, which stays as it was
CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler;
SET default_table_access_method = heap2;
CREATE EXTENSION idempotence;
SELECT a.amname, count(*) > 10 FROM pg_class c JOIN pg_am a ON a.oid = c.relam
WHERE c.relkind IN ('r', 't') AND (c.relnamespace = 'idempotence'::regnamespace OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'idempotence'::regnamespace))
GROUP BY a.amname;
SHOW default_table_access_method;
DROP EXTENSION idempotence;
RESET default_table_access_method;
DROP ACCESS METHOD heap2;

-- its owner need not stay a superuser: the sweep goes on, also where an owner of a session is gone
CREATE ROLE regress_catalog_owner SUPERUSER;
SET ROLE regress_catalog_owner;
CREATE EXTENSION idempotence;
RESET ROLE;
ALTER ROLE regress_catalog_owner NOSUPERUSER;
CREATE ROLE regress_catalog_gone;
SELECT idem_create_session('catalog orphan', owner => 'regress_catalog_gone');
DROP ROLE regress_catalog_gone;
RESET client_min_messages;
CALL idem_sweep();
SET client_min_messages = error;
SELECT owner FROM idempotence.sessions;
SELECT name, status FROM idempotence.health WHERE name IN ('ring', 'client sessions', 'publications');
-- it cannot see since when others have their transactions open, and says so
SELECT name, level, detail, hint FROM idempotence.health WHERE level > 0;
GRANT pg_read_all_stats TO regress_catalog_owner;
SELECT name FROM idempotence.health WHERE level > 0;
SELECT idem_ready();
DROP EXTENSION idempotence;
DROP ROLE regress_catalog_owner;

-- in the schema of its tables
CREATE SCHEMA idempotence;
CREATE EXTENSION idempotence SCHEMA idempotence;
\set VERBOSITY terse
SELECT idem_lookup('catalog', 'k');
\set VERBOSITY default
\echo :SQLSTATE
SET search_path = idempotence, public;
SELECT idem_create_session('catalog');
SELECT catalog_try('k');
RESET search_path;
SELECT t.status, t.replayed, t.response FROM idempotence.idem_run('catalog', 'k', 'SELECT 2') t;
CREATE ROLE regress_catalog;
SELECT idempotence.idem_grant('regress_catalog');
SET ROLE regress_catalog;
SELECT idempotence.idem_create_session('catalog mine');
SELECT t.status, t.replayed, t.response FROM idempotence.idem_run('catalog mine', 'k', 'SELECT 2') t;
RESET ROLE;
SELECT idempotence.idem_revoke('regress_catalog');
SELECT has_schema_privilege('regress_catalog', 'idempotence', 'USAGE');
DROP EXTENSION idempotence;
-- the schema was there before, and stays
SELECT nspname FROM pg_namespace WHERE nspname = 'idempotence';
DROP SCHEMA idempotence;

-- in a schema of the user's, whose name takes quotes; the levels go with it, both ways: given and taken
CREATE SCHEMA "Of Mine";
CREATE EXTENSION idempotence SCHEMA "Of Mine";
SELECT "Of Mine".idem_grant('regress_catalog');
SET ROLE regress_catalog;
SELECT "Of Mine".idem_create_session('catalog mine');
SELECT t.status, t.replayed, t.response FROM "Of Mine".idem_run('catalog mine', 'k', 'SELECT 2') t;
SELECT t.status, t.replayed, t.response FROM "Of Mine".idem_run('catalog mine', 'k', 'SELECT 3') t;
RESET ROLE;
SELECT "Of Mine".idem_revoke('regress_catalog');
SELECT has_schema_privilege('regress_catalog', 'Of Mine', 'USAGE');
REVOKE ALL ON SCHEMA "Of Mine" FROM regress_catalog;
DROP EXTENSION idempotence;
DROP SCHEMA "Of Mine";

-- not into a schema that somebody else can put things in
CREATE SCHEMA idempotence AUTHORIZATION regress_catalog;
CREATE EXTENSION idempotence;
\echo :SQLSTATE
DROP SCHEMA idempotence;

\c :"home"
ALTER DATABASE regress_catalog IS_TEMPLATE false;
DROP DATABASE regress_catalog;
DROP ROLE regress_catalog;
