// Whether requests can be protected here: asked once, when a service starts.

import { ask, type Database } from './database.js';
import { sqlstate } from './errors.js';

// The edition for managed services is no extension: the comment on its schema tells its version.
const INSTALLED = `SELECT *, string_to_array(version, '.')::integer[] >= '{1,2}' AS since, current_user AS role,
  to_regtype('idem_ticket') IS NOT NULL AS visible, to_regclass('cron.job') IS NOT NULL AS scheduled
FROM (SELECT 'extension' AS edition, extversion AS version, extnamespace::regnamespace::text AS schema FROM pg_extension WHERE extname = 'idempotence'
  UNION ALL SELECT 'managed', substring(obj_description(oid, 'pg_namespace') FROM '[0-9.]+'), nspname FROM pg_namespace WHERE nspname = 'idempotence'
  ORDER BY edition LIMIT 1) found WHERE version IS NOT NULL`;

/** One sentence for each thing that is wrong, and what was found: "extension 1.2.0" or "managed 1.2.0". */
export type Problems = string[] & { edition?: string };

/** One sentence for each thing that is wrong, with a word in front that names it. */
export async function check(database: Database, session?: string | null): Promise<Problems> {
  const problems: Problems = [];
  if ('connect' in database && (database as any).listenerCount('error') === 0) {
    problems.push("pool: nobody listens to its errors, so the loss of an idle connection ends the process; pool.on('error', …)");
  }
  try {
    const [found] = await ask(database, INSTALLED);
    if (!found) problems.push('extension: the database has none; CREATE EXTENSION idempotence, or install its edition in SQL');
    if (!found) return problems;
    problems.edition = `${found['edition']} ${found['version']}`;
    if (!found['since']) problems.push(`version: here is ${problems.edition}, and this needs 1.2`);
    if (!found['visible']) problems.push(`search_path: it lacks ${found['schema']}, the schema of the functions`);
    if (!found['visible']) return problems;
    const managed = found['edition'] === 'managed';
    // Who may look up may begin.
    const probe = session ? "SELECT status FROM idem_lookup($1::text, 'check')" : managed ? 'SELECT idem_generate_id()' : 'SELECT idem_node()';
    await ask(database, probe, session ? [session] : []).catch((error) => problems.push(explained(error, session, found['role'])));
    if (managed) {
      const [late] = await ask(database, "SELECT detail || '; ' || hint AS told FROM idempotence.health WHERE name = 'sweep' AND level > 0").catch(() => []);
      if (late) problems.push(`sweep: ${late['told']}`);
      return problems;
    }
    const preloaded = ask(database, 'SELECT FROM idempotence.errors LIMIT 0');
    await preloaded.catch((error) => {
      if (sqlstate(error) !== '55000' || found['scheduled']) return; // of rights the probe tells
      problems.push('sweep: the library is not preloaded, so a scheduler has to CALL idem_sweep()');
    });
  } catch (error) {
    problems.push(`unreachable: ${(error as Error).message || (error as { code?: string }).code}`);
  }
  return problems;
}

function explained(error: any, session: unknown, role: unknown): string {
  const state = sqlstate(error);
  if (state === '42704') return `session: ${error.message}; SELECT idem_create_session('${session}')`;
  if (state === '42501') return `rights: ${error.message}; SELECT idem_grant('${role}'), and let it own or use the session`;
  if (state === 'ID012') return `elsewhere: ${error.message}`;
  throw error;
}
