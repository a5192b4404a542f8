// Whether requests can be protected here: asked once, when a service starts.

import { ask, type Database } from './database.js';
import { sqlstate } from './errors.js';

// What stands in the way of every request, in the same words in each client: '' if nothing does.
const FAULT = `SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL
                THEN 'rights: role ' || current_user || ' lacks ' || lacks || ': SELECT idem_grant('
                || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL') AS fault`;

// The edition for managed services is no extension: the comment on its schema tells its version.
const INSTALLED = `SELECT *, string_to_array(version, '.')::integer[] >= '{1,2}' AS since,
  to_regclass('cron.job') IS NOT NULL AS scheduled
FROM (SELECT 'extension' AS edition, extversion AS version FROM pg_extension WHERE extname = 'idempotence'
  UNION ALL SELECT 'managed', substring(obj_description(oid, 'pg_namespace') FROM '[0-9.]+')
  FROM pg_namespace WHERE nspname = 'idempotence'
  ORDER BY edition LIMIT 1) found WHERE version IS NOT NULL`;

const LATE = "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0";

/** One sentence for each thing that is wrong, and what was found: "extension 1.2.0" or "managed 1.2.0". */
export type Problems = string[] & { edition?: string };

/** One sentence for each thing that is wrong, with a word in front that names it. */
export async function check(database: Database, session?: string | null): Promise<Problems> {
  const problems: Problems = [];
  if ('connect' in database && (database as any).listenerCount('error') === 0) {
    problems.push(
      "pool: nobody listens to its errors, so the loss of an idle connection ends the process; pool.on('error', …)",
    );
  }
  try {
    const [[fault] = []] = await ask(database, FAULT);
    if (fault) problems.push(String(fault));
    const [found] = fault ? [] : await ask(database, INSTALLED);
    if (!found) return problems;
    const [edition, version, since, scheduled] = found;
    problems.edition = `${edition} ${version}`;
    if (!since) problems.push(`version: here is ${problems.edition}, and this needs 1.2`);
    const managed = edition === 'managed';
    // Who may look up may begin.
    const probe = "SELECT status FROM idem_lookup($1::text, 'check')";
    if (session) await ask(database, probe, [session]).catch((error) => problems.push(explained(error, session)));
    if (managed) {
      const [[late] = []] = await ask(database, LATE).catch(() => []);
      if (late) problems.push(`sweep: ${late}`);
      return problems;
    }
    const preloaded = ask(database, 'SELECT FROM idempotence.errors LIMIT 0');
    await preloaded.catch((error) => {
      if (sqlstate(error) !== '55000' || scheduled) return; // the probe above reports missing rights
      problems.push('sweep: the library is not preloaded, so a scheduler has to CALL idem_sweep()');
    });
  } catch (error) {
    problems.push(`unreachable: ${(error as Error).message || (error as { code?: string }).code}`);
  }
  return problems;
}

function explained(error: any, session: unknown): string {
  const state = sqlstate(error);
  if (state === '42704') return `session: ${error.message}; SELECT idem_create_session('${session}')`;
  if (state === '42501')
    return (
      `rights: this role may not use the session ${session}: ` +
      'its owner lends it by idem_alter_session(…, usable_by => …)'
    );
  if (state === 'ID012') return `elsewhere: ${error.message}`;
  throw error;
}
