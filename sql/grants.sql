-- Who may do what. PUBLIC may do nothing. idem_grant grants a role one of three levels.

-- The functions of this extension, and the level that a role needs to execute them: a level, or all of them, for what
-- the views of every level call. A function that only the extension's owner may execute has no level.
CREATE VIEW idempotence.function_level AS
SELECT p.oid AS function,
       CASE WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{idem_forget_prefix,idem_purge_audit,idem_import,import_begin,import_row,import_end,
              idem_force_release,idem_force_release_prefix,idem_force_record,idem_set_persistence,idem_accept_restore,idem_stats_reset,idem_sweep,sweep_step,note_sweep}'::pg_catalog.name[]) THEN 'admin'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{at_work_by_role,holders,advisory_holders,
              max_sessions_per_role,launcher,is_visited,last_sweep,checks,error_counts}'::pg_catalog.name[]) THEN 'monitor'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY (
              '{idem_begin,idem_claim,idem_record,idem_checkpoint,idem_extend,idem_release,idem_settle,idem_lookup,idem_once,idem_once_many,idem_forget,idem_redact,idem_redact_prefix,
                idem_export,idem_run,
                idem_create_session,idem_alter_session,idem_drop_session,idem_create_journal,
                idem_register,idem_heartbeat,idem_ack,idem_allocate,idem_position,idem_close,
                idem_generate_id,idem_generate_ids,idem_key,idem_fingerprint}'::pg_catalog.name[]) THEN 'user'
            WHEN p.proname OPERATOR(pg_catalog.=) ANY ('{idem_ready,idem_node,idem_explain,idem_outcomes,at_work,leases,retention,up_since,stats,held_requests,root_blocker,errors,locked_by,legible}'::pg_catalog.name[]) THEN 'all'
       END AS level
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                           AND d.refobjid OPERATOR(pg_catalog.=) e.oid
                           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence';

-- The views and tables of this extension, and the level that a role needs to read them. The rest has no level.
CREATE VIEW idempotence.relation_level AS
SELECT c.oid AS relation,
       CASE WHEN c.relname OPERATOR(pg_catalog.=) ANY ('{audit}'::pg_catalog.name[]) THEN 'admin'
            WHEN c.relname OPERATOR(pg_catalog.=) ANY ('{segments,health}'::pg_catalog.name[]) THEN 'monitor'
            WHEN c.relname OPERATOR(pg_catalog.=) ANY (
              '{sessions,outcomes,unfinished,in_flight,stats,errors,shown_at_work,shown_leases}'::pg_catalog.name[]) THEN 'all'
       END AS level
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
                           AND d.refobjid OPERATOR(pg_catalog.=) e.oid
                           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid
WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v}'::pg_catalog."char"[]);

-- Whether each role that was granted a level has the rights of it.
CREATE VIEW idempotence.check_rights AS
SELECT CASE WHEN pg_catalog.bool_or(g.lacking OPERATOR(pg_catalog.>) 0) THEN 2
            WHEN pg_catalog.bool_or(g.lacking IS NULL) THEN 1 ELSE 0 END AS level,
       COALESCE(pg_catalog.left(pg_catalog.string_agg(
                  CASE WHEN g.lacking IS NULL THEN pg_catalog.format('role %s, which was granted level %s, does not exist', g.role, g.level)
                       ELSE pg_catalog.format('role %s lacks %s of the rights of level %s', g.role, g.lacking, g.level) END,
                  '; ' ORDER BY g.lacking DESC NULLS LAST, g.role, g.level)
                FILTER (WHERE g.lacking IS NULL OR g.lacking OPERATOR(pg_catalog.>) 0), 1000),
                'each role has the rights that idem_grant gave it') AS detail,
       'A role was dropped, a right was revoked, or a restore missed a role, which takes rights of others too. A superuser creates the roles that are missing, or deletes their rows of idempotence.granted, and grants all levels again: SELECT idem_grant(r.oid::regrole, g.level) FROM idempotence.granted g JOIN pg_roles r ON r.rolname = g.role.' AS hint
FROM (SELECT n.role, n.level, CASE WHEN r.oid IS NOT NULL THEN
               (SELECT pg_catalog.count(*) FROM idempotence.function_level f
                WHERE (f.level OPERATOR(pg_catalog.=) ANY (ARRAY['all', n.level]) OR f.level IS NOT NULL AND n.level OPERATOR(pg_catalog.=) 'admin')
                  AND NOT pg_catalog.has_function_privilege(r.oid, f.function, 'EXECUTE'))
               OPERATOR(pg_catalog.+)
               (SELECT pg_catalog.count(*) FROM idempotence.relation_level f
                WHERE (f.level OPERATOR(pg_catalog.=) ANY (ARRAY['all', n.level]) OR f.level IS NOT NULL AND n.level OPERATOR(pg_catalog.=) 'admin')
                  AND NOT pg_catalog.has_table_privilege(r.oid, f.relation, 'SELECT'))
               OPERATOR(pg_catalog.+)
               (SELECT pg_catalog.count(*) FROM pg_catalog.pg_namespace s
                WHERE (s.nspname OPERATOR(pg_catalog.=) 'idempotence'
                       OR s.oid OPERATOR(pg_catalog.=) (SELECT e.extnamespace FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence'))
                  AND NOT pg_catalog.has_schema_privilege(r.oid, s.oid, 'USAGE')) END AS lacking
      FROM (SELECT DISTINCT d.role, d.level FROM idempotence.granted d) n LEFT JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) n.role) g;

CREATE FUNCTION idem_grant(role regrole, level text DEFAULT 'user') RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $grant$
#variable_conflict use_variable
DECLARE
  granted  pg_catalog.text[] := CASE WHEN level OPERATOR(pg_catalog.=) 'user' THEN '{all,user}'
                                     WHEN level OPERATOR(pg_catalog.=) 'monitor' THEN '{all,monitor}'
                                     WHEN level OPERATOR(pg_catalog.=) 'admin' THEN '{all,user,monitor,admin}' END;
  function pg_catalog.regprocedure;
  relation pg_catalog.regclass;
BEGIN
  PERFORM idempotence.refuse_parallel_query('idem_grant');
  IF role IS NULL OR level IS NULL THEN
    RAISE EXCEPTION 'argument "%" must not be null', CASE WHEN role IS NULL THEN 'role' ELSE 'level' END
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.',
            HINT = 'Name a role, and one of the levels user, monitor and admin.';
  ELSIF granted IS NULL THEN
    RAISE EXCEPTION 'level "%" does not exist', level
      USING ERRCODE = 'invalid_parameter_value', DETAIL = 'The levels are user, monitor and admin.',
            HINT = 'user works with requests and sessions, monitor reads the views of all sessions, admin does both, sweeps and repairs.';
  END IF;

  EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA idempotence TO %s', role);
  -- The name is quoted if it needs that, and always if quote_all_identifiers was on when the extension was created.
  IF pg_catalog.parse_ident('@extschema@') OPERATOR(pg_catalog.<>) '{public}'::pg_catalog.text[] THEN
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %s TO %s', '@extschema@', role);
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level OPERATOR(pg_catalog.=) ANY (granted) LOOP
    EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s', function, role);
  END LOOP;
  FOR relation IN SELECT r.relation FROM idempotence.relation_level r WHERE r.level OPERATOR(pg_catalog.=) ANY (granted) LOOP
    EXECUTE pg_catalog.format('GRANT SELECT ON %s TO %s', relation, role);
  END LOOP;
  PERFORM idempotence.note_grant(role, level);
END
$grant$;

CREATE FUNCTION idem_revoke(role regrole) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET plpgsql.extra_errors = 'none' SET plpgsql.extra_warnings = 'none'
AS $revoke$
#variable_conflict use_variable
DECLARE
  function pg_catalog.regprocedure;
  relation pg_catalog.regclass;
BEGIN
  PERFORM idempotence.refuse_parallel_query('idem_revoke');
  IF role IS NULL THEN
    RAISE EXCEPTION 'argument "role" must not be null'
      USING ERRCODE = 'null_value_not_allowed', DETAIL = 'The function cannot do without it.', HINT = 'Name a role.';
  END IF;
  FOR function IN SELECT f.function FROM idempotence.function_level f WHERE f.level IS NOT NULL LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM %s', function, role);
  END LOOP;
  FOR relation IN SELECT r.relation FROM idempotence.relation_level r WHERE r.level IS NOT NULL LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON %s FROM %s', relation, role);
  END LOOP;
  EXECUTE pg_catalog.format('REVOKE ALL ON SCHEMA idempotence FROM %s', role);
  IF pg_catalog.parse_ident('@extschema@') OPERATOR(pg_catalog.<>) '{public}'::pg_catalog.text[] THEN
    EXECUTE pg_catalog.format('REVOKE USAGE ON SCHEMA %s FROM %s', '@extschema@', role);
  END IF;
  PERFORM idempotence.note_grant(role, NULL);
END
$revoke$;
