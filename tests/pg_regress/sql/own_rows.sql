-- Goal: a role that is no monitor sees, in every view that it may read, the rows of sessions that it owns or may use and
-- no others, by whatever way it asks. A monitor sees all rows, but no response of a session that it may not use.
-- Method: two owners with sessions of every kind and in every state. What each role sees is listed view by view. The views
-- come from the catalog, so that a new one is listed too.
\pset format unaligned
\pset tuples_only on
CREATE ROLE regress_own_owner;
CREATE ROLE regress_own_other;
CREATE ROLE regress_own_borrower;
CREATE ROLE regress_own_member IN ROLE regress_own_owner;
CREATE ROLE regress_own_without NOINHERIT IN ROLE regress_own_owner;
CREATE ROLE regress_own_stranger;
CREATE ROLE regress_own_monitor;
CREATE ROLE regress_own_monitor_too;
CREATE ROLE regress_own_admin;
CREATE ROLE regress_own_nobody;
SELECT idem_grant(('regress_own_' || r)::regrole) FROM unnest('{owner,other,borrower,without,stranger,monitor_too}'::text[]) r;
SELECT idem_grant(('regress_own_' || r)::regrole, 'monitor') FROM unnest('{monitor,monitor_too}'::text[]) r;
SELECT idem_grant('regress_own_admin', 'admin');

-- Makes sessions of the current role: each kind, with outcomes, leases and a checkpoint.
CREATE FUNCTION regress_own(who text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
  name text;
BEGIN
  PERFORM idem_create_session('own rows of ' || who), idem_create_session('own inbox of ' || who, inbox => true);
  PERFORM idem_once('own inbox of ' || who, 'seen by ' || who);
  PERFORM regress_registered('at work of ' || who, idem_register()), regress_registered('saved of ' || who, idem_register()),
          regress_registered('ended of ' || who, idem_register());
  FOREACH name IN ARRAY ARRAY['own rows of ' || who, regress_id('saved of ' || who), regress_id('ended of ' || who)] LOOP
    PERFORM FROM idem_begin(name, '1', payload => '"secret payload"');
    PERFORM idem_record(name, '1', to_jsonb('answer for ' || who));
    PERFORM FROM idem_begin(name, '2');
    PERFORM idem_checkpoint(name, '2', 'half', to_jsonb('state of ' || who));
    PERFORM idem_release(name, '2');
    IF name <> regress_id('ended of ' || who) THEN
      PERFORM FROM idem_begin(name, '3', lease => '1 hour');
    END IF;
  END LOOP;
  PERFORM idem_close(regress_id('ended of ' || who));
END
$$;
SET ROLE regress_own_owner;
SELECT regress_own('owner');
SELECT idem_alter_session('own rows of owner', usable_by => 'regress_own_borrower');
SET ROLE regress_own_other;
SELECT regress_own('other');
RESET ROLE;

-- What the current role sees in the views of its sessions and those of the other owner.
CREATE FUNCTION regress_own_seen(role text) RETURNS TABLE (relation text, seen text)
LANGUAGE plpgsql
AS $$
BEGIN
  EXECUTE format('SET LOCAL ROLE regress_own_%s', role);
  FOREACH relation IN ARRAY '{sessions,outcomes,unfinished}'::text[] LOOP
    BEGIN
      EXECUTE format($q$SELECT coalesce(string_agg(DISTINCT shown, ', ' ORDER BY shown), 'nothing')
                        FROM (SELECT regress_told(session) COLLATE "C" AS shown FROM idempotence.%s) s WHERE shown ~ ' of (owner|other)$'$q$, relation) INTO seen;
    EXCEPTION WHEN insufficient_privilege THEN
      seen := SQLERRM;
    END;
    RETURN NEXT;
  END LOOP;
  RESET ROLE;
END
$$;
SELECT role, s.* FROM unnest('{owner,other,borrower,member,without,stranger,monitor,monitor_too,admin,nobody}'::text[]) role, regress_own_seen(role) s;
-- whoever is no monitor sees no row of others in any view that has a session, in those of the future too
CREATE FUNCTION regress_own_foreign(role text) RETURNS TABLE (relation regclass, foreign_rows bigint)
LANGUAGE plpgsql
AS $$
BEGIN
  FOR relation IN SELECT l.relation::regclass FROM idempotence.relation_level l JOIN pg_attribute a ON a.attrelid = l.relation AND a.attname = 'session'
                  WHERE l.level = 'all' LOOP
    EXECUTE format('SET LOCAL ROLE regress_own_%s', role);
    BEGIN
      EXECUTE format($q$SELECT count(*) FROM %s v JOIN pg_temp.regress_own_sessions s ON s.session = v.session::text
                        WHERE NOT s.role = $1$q$, relation) INTO foreign_rows USING role;
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
      foreign_rows := 0;
    END;
    RESET ROLE;
    RETURN NEXT;
  END LOOP;
END
$$;
CREATE TEMP TABLE regress_own_sessions AS
SELECT session, substr(owner::text, 13) AS role FROM idempotence.sessions WHERE owner::text LIKE 'regress_own_%';
CREATE TEMP TABLE regress_own_relations AS SELECT relation::regclass FROM idempotence.relation_level WHERE level = 'all';
GRANT SELECT ON regress_own_sessions, regress_own_relations TO PUBLIC;
SELECT role, f.relation, f.foreign_rows FROM unnest('{owner,other}'::text[]) role, regress_own_foreign(role) f WHERE f.foreign_rows > 0;
SELECT relation FROM regress_own_foreign('monitor') WHERE foreign_rows > 0 AND relation = ANY ('{idempotence.sessions,idempotence.outcomes,idempotence.unfinished}'::regclass[]) ORDER BY relation::text COLLATE "C";

-- the right is that of the role that asks, at the time when it asks: SET ROLE, a statement that was prepared by another
-- role, membership that comes and goes
PREPARE seen AS SELECT count(*), count(DISTINCT response) FROM idempotence.outcomes WHERE request = '1' AND recorded_by::text LIKE 'regress_own_%';
SET ROLE regress_own_owner;
EXECUTE seen;
SET ROLE regress_own_stranger;
EXECUTE seen;
SET ROLE regress_own_monitor;
EXECUTE seen;
SET ROLE regress_own_other;
EXECUTE seen;
SET SESSION AUTHORIZATION regress_own_without;
EXECUTE seen;
SET ROLE regress_own_owner;
EXECUTE seen;
RESET SESSION AUTHORIZATION;
DEALLOCATE seen;
GRANT regress_own_other TO regress_own_borrower;
SELECT * FROM regress_own_seen('borrower');
REVOKE regress_own_other FROM regress_own_borrower;
SELECT idem_alter_session('own rows of owner', usable_by => 'regress_own_stranger');
SELECT role, s.* FROM unnest('{borrower,stranger}'::text[]) role, regress_own_seen(role) s;
-- in a function with the rights of its owner, it is the owner who asks
CREATE FUNCTION regress_own_definer() RETURNS SETOF text LANGUAGE sql SECURITY DEFINER AS $$ SELECT response #>> '{}' FROM idempotence.outcomes WHERE session LIKE 'own rows%' $$;
ALTER FUNCTION regress_own_definer OWNER TO regress_own_other;
SET ROLE regress_own_stranger;
SELECT regress_own_definer();
RESET ROLE;
DROP FUNCTION regress_own_definer;

-- a monitor sees all rows, but responses and fingerprints only of what it may use
SELECT idem_alter_session('own rows of owner', usable_by => 'regress_own_monitor_too');
SET ROLE regress_own_monitor;
SELECT regress_told(session), request, status, response, fingerprint FROM idempotence.outcomes WHERE request = '1' AND regress_told(session) LIKE '% of %' ORDER BY 1;
SET ROLE regress_own_monitor_too;
SELECT regress_told(session), request, status, response, fingerprint IS NOT NULL FROM idempotence.outcomes WHERE request = '1' AND regress_told(session) LIKE '% of %' ORDER BY 1;
SET ROLE regress_own_owner;
SELECT regress_told(session), request, status, response, fingerprint IS NOT NULL FROM idempotence.outcomes WHERE regress_told(session) LIKE '% of %' ORDER BY 1;
SELECT regress_told(session), stream, request, state, point, attempt, holder FROM idempotence.unfinished WHERE regress_told(session) LIKE '% of %' ORDER BY 1, 3;
RESET ROLE;

-- what the views are made of tells a caller no more than they do
CREATE FUNCTION regress_own_parts(role text) RETURNS TABLE (at_work bigint, foreign_at_work bigint, leases bigint, foreign_leases bigint)
LANGUAGE plpgsql
AS $$
BEGIN
  EXECUTE format('SET LOCAL ROLE regress_own_%s', role);
  SELECT count(*), count(*) FILTER (WHERE w.owner <> ('regress_own_' || role)::regrole) INTO at_work, foreign_at_work FROM idempotence.at_work() w
  WHERE regress_told(w.id::text) ~ ' of (owner|other)$';
  SELECT count(*), count(*) FILTER (WHERE l.holder <> 'regress_own_' || role) INTO leases, foreign_leases FROM idempotence.leases() l
  WHERE l.holder::text LIKE 'regress_own_%';
  RETURN NEXT;
  RESET ROLE;
END
$$;
SELECT role, p.* FROM unnest('{owner,other,borrower,stranger,monitor,admin}'::text[]) role, regress_own_parts(role) p;
SELECT relation, role, regress_message('SET LOCAL ROLE regress_own_' || role || '; SELECT FROM ' || relation)
FROM unnest('{idempotence.session_live,idempotence.lease,idempotence.checkpoint,idempotence.reply,idempotence.locks,idempotence.health}'::text[]) relation, unnest('{owner,monitor}'::text[]) role;
-- a function that costs little, and tells what it was given, is given no more either, in the views of the future too; nor
-- does an error tell more
SET ROLE regress_own_other;
CREATE FUNCTION pg_temp.leak(relation text, seen text) RETURNS boolean LANGUAGE plpgsql COST 0.0001
AS $$ BEGIN IF regress_told(seen) ~ 'owner' THEN RAISE INFO '% leaked %', relation, regress_told(seen); END IF; RETURN true; END $$;
DO $$
DECLARE
  relation regclass;
BEGIN
  FOR relation IN SELECT r.relation FROM regress_own_relations r LOOP
    BEGIN
      EXECUTE (SELECT format('SELECT FROM %s WHERE %s', relation, string_agg(format('pg_temp.leak(%L, %I::text)', relation::text, attname), ' AND '))
               FROM pg_attribute WHERE attrelid = relation AND attnum > 0);
    EXCEPTION WHEN object_not_in_prerequisite_state THEN  -- not preloaded
    END;
  END LOOP;
END
$$;
SELECT count(*) > 0 FROM idempotence.at_work() w WHERE pg_temp.leak('at_work()', id::text);
SELECT count(*) > 0 FROM idempotence.leases() l WHERE pg_temp.leak('leases()', session::text) AND pg_temp.leak('leases()', holder::text);
SELECT count(*) FROM idempotence.outcomes WHERE session = 'own rows of owner' AND 1 / (length(response::text) - length(response::text)) = 0;
SELECT count(*) FROM idempotence.sessions WHERE session = 'own rows of owner' AND 1 / (length(session) - length(session)) = 0;
DROP FUNCTION pg_temp.leak;
RESET ROLE;
-- nor does EXPLAIN ANALYZE tell which condition a foreign row has met: the plan that has looked for each column's value of a
-- foreign row is the plan that has looked for a value that no row has
CREATE FUNCTION regress_own_plan(relation regclass, condition text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
  line text;
  plan text := '';
BEGIN
  FOR line IN EXECUTE format('EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT FROM %s WHERE %s', relation, condition) LOOP
    IF line !~ '^ *(Filter|[A-Z][a-z]* Cond): |Memory|Heap Fetches' THEN
      plan := plan || line || E'\n';
    END IF;
  END LOOP;
  RETURN plan;
END
$$;
CREATE TEMP TABLE regress_own_values AS
SELECT relation, a.attname, NULL::text AS value FROM regress_own_relations r JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum > 0
WHERE a.atttypid IN ('text'::regtype, 'uuid'::regtype, 'regrole'::regtype) AND relation = ANY ('{idempotence.sessions,idempotence.outcomes,idempotence.unfinished,idempotence.shown_at_work,idempotence.shown_leases}'::regclass[]);
DO $$
DECLARE
  v regress_own_values;
BEGIN
  FOR v IN SELECT * FROM regress_own_values LOOP
    EXECUTE format('UPDATE regress_own_values SET value = (SELECT %I::text FROM %s v WHERE %I IS NOT NULL ORDER BY regress_told(v::text) ~ ''owner'' DESC LIMIT 1) WHERE relation = %L::regclass AND attname = %L',
                   v.attname, v.relation, v.attname, v.relation, v.attname);
  END LOOP;
END
$$;
GRANT SELECT ON regress_own_values TO PUBLIC;
SELECT count(*) > 10 FROM regress_own_values WHERE value IS NOT NULL;
SET ROLE regress_own_stranger;
SELECT v.relation, v.attname FROM regress_own_values v JOIN pg_attribute a ON a.attrelid = v.relation AND a.attname = v.attname
WHERE v.value IS NOT NULL AND regress_own_plan(v.relation, format('%I = %L::%s', v.attname, v.value, a.atttypid::regtype))
      <> regress_own_plan(v.relation, format('%I = %L::%s', v.attname, CASE a.atttypid WHEN 'text'::regtype THEN 'nothing has it' WHEN 'uuid'::regtype THEN '00000000-0000-0000-0000-000000000000' ELSE 'pg_signal_backend' END, a.atttypid::regtype))
ORDER BY 1, 2;
RESET ROLE;
DROP FUNCTION regress_own_plan;
DROP TABLE regress_own_values;

-- a level that is taken back takes the views with it
SELECT idem_revoke('regress_own_other');
SELECT * FROM regress_own_seen('other');
SELECT count(*) FROM idempotence.relation_level WHERE has_table_privilege('regress_own_other', relation, 'SELECT');

SELECT idem_force_release(session, '3', 'the test is over', live => true) FROM idempotence.unfinished WHERE request = '3' AND regress_told(session) ~ ' of (owner|other)$' ORDER BY regress_told(session);
SELECT idem_force_release(session, '3', 'the test is over') FROM idempotence.unfinished WHERE request = '3' AND regress_told(session) ~ ' of (owner|other)$' ORDER BY regress_told(session);
SELECT idem_drop_session(session) FROM idempotence.sessions WHERE session LIKE 'own %';
SELECT regress_close();
DROP FUNCTION regress_own, regress_own_seen, regress_own_foreign, regress_own_parts;
DROP TABLE regress_own_sessions, regress_own_relations;
SELECT idem_revoke(('regress_own_' || r)::regrole) FROM unnest('{owner,other,borrower,without,stranger,monitor,monitor_too,admin}'::text[]) r;
DROP ROLE regress_own_member, regress_own_without, regress_own_owner, regress_own_other, regress_own_borrower, regress_own_stranger,
          regress_own_monitor, regress_own_monitor_too, regress_own_admin, regress_own_nobody;
