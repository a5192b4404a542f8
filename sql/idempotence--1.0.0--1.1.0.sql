\echo Use "ALTER EXTENSION idempotence UPDATE" to load this file. \quit

-- From 1.0.0 to 1.1.0. What comes out of it is equal to what CREATE EXTENSION makes, object by object.
--
-- It changes the table session, and so tells every backend that has remembered something of 1.0.0 to look
-- again. Functions of the library that use the tables must not be called here: they refuse tables that
-- are not of their version, and of a later library these are not.

-- Who was granted what, to be kept.
CREATE TEMPORARY TABLE upgrade_granted AS
SELECT p.oid AS function, p.proname AS name, f.level, a.grantee, a.is_grantable
FROM idempotence.function_level f
JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
LEFT JOIN LATERAL (SELECT * FROM pg_catalog.aclexplode(p.proacl) a WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner) a ON true;

-- Version of library and tables ----------------------------------------------------------------

CREATE FUNCTION idempotence.keep_grant(command text) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'keep_grant_wrapper';
COMMENT ON FUNCTION idempotence.keep_grant(text) IS 'for the scripts of this extension: grant what roles had before; only for the owner of the extension';

-- Looking a request up belongs to the primary --------------------------------------------------

ALTER FUNCTION idem_lookup(text, text, text) VOLATILE;
ALTER FUNCTION idem_lookup(text, bigint, text) VOLATILE;
ALTER FUNCTION idem_position(text, text) VOLATILE;
COMMENT ON COLUMN idem_ticket.status IS 'started: execute it; succeeded, failed: it has its outcome; in_progress: another transaction is at it; discarded: it is over and no longer kept; unknown: nothing is kept; not_here: nothing is on this standby yet';
COMMENT ON FUNCTION idem_lookup(text, text, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, unknown, or on a standby not_here';
COMMENT ON FUNCTION idem_lookup(text, bigint, text) IS
  'look a request up without beginning it; gives its outcome, in_progress, discarded, unknown, or on a standby not_here';

-- The rest: stays last ----------------------------------------------------------------------------

-- All belongs to the extension's owner, whichever superuser updates it.
DO $$
DECLARE
  owner  pg_catalog.regrole := (SELECT e.extowner::pg_catalog.regrole FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence');
  object pg_catalog.text;
BEGIN
  FOR object IN
    SELECT pg_catalog.concat('ROUTINE ', p.oid::pg_catalog.regprocedure)
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
    JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
      AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.proowner OPERATOR(pg_catalog.<>) owner::pg_catalog.oid
    UNION ALL
    SELECT pg_catalog.concat(CASE c.relkind WHEN 'v' THEN 'VIEW ' ELSE 'TABLE ' END, c.oid::pg_catalog.regclass)
    FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid
    JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
      AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v}'::pg_catalog."char"[])
      AND c.relowner OPERATOR(pg_catalog.<>) owner::pg_catalog.oid AND c.relpersistence OPERATOR(pg_catalog.<>) 't'
  LOOP
    EXECUTE pg_catalog.format('ALTER %s OWNER TO %s', object, owner);
  END LOOP;
END
$$;

-- No function of this extension is PUBLIC's. Roles keep what they were granted: what takes a function's
-- place, or goes by the same name, is granted to those who had all of that name; what is new altogether,
-- to those who had all of its level.
DO $$
DECLARE
  new     record;
  grantee record;
BEGIN
  FOR new IN
    SELECT f.function, p.proname AS name, f.level
    FROM idempotence.function_level f JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f.function
    WHERE NOT EXISTS (SELECT FROM upgrade_granted g WHERE g.function OPERATOR(pg_catalog.=) f.function)
  LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', new.function::pg_catalog.regprocedure);
    FOR grantee IN
      WITH peers AS (
        SELECT * FROM upgrade_granted g
        WHERE CASE WHEN EXISTS (SELECT FROM upgrade_granted n WHERE n.name OPERATOR(pg_catalog.=) new.name)
                   THEN g.name OPERATOR(pg_catalog.=) new.name
                   ELSE g.level OPERATOR(pg_catalog.=) new.level END)
      SELECT CASE p.grantee WHEN 0 THEN 'PUBLIC' ELSE p.grantee::pg_catalog.regrole::pg_catalog.text END AS name,
             CASE WHEN pg_catalog.bool_and(p.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END AS option
      FROM peers p WHERE p.grantee IS NOT NULL
      GROUP BY p.grantee
      HAVING pg_catalog.count(DISTINCT p.function) OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(DISTINCT function) FROM peers)
    LOOP
      PERFORM idempotence.keep_grant(pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO %s%s',
        new.function::pg_catalog.regprocedure, grantee.name, grantee.option));
    END LOOP;
  END LOOP;
END
$$;

DROP TABLE upgrade_granted;
