// Whether requests can be protected here: asked once, when a service starts.

import { ask, type Database } from './database.js';
import { sqlstate } from './errors.js';

const INSTALLED = `SELECT extversion AS version, extnamespace::regnamespace::text AS schema, current_user AS role,
  string_to_array(extversion, '.')::integer[] >= '{1,2}' AS since, to_regtype('idem_ticket') IS NOT NULL AS visible,
  to_regclass('cron.job') IS NOT NULL AS scheduled FROM pg_extension WHERE extname = 'idempotence'`;

/** One sentence for each thing that is wrong, with a word in front that names it. */
export async function check(database: Database, session?: string | null): Promise<string[]> {
  const problems: string[] = [];
  if ('connect' in database && (database as any).listenerCount('error') === 0) {
    problems.push("pool: nobody listens to its errors, so the loss of an idle connection ends the process; pool.on('error', …)");
  }
  try {
    const [found] = await ask(database, INSTALLED);
    if (!found) return [...problems, 'extension: the database has none; CREATE EXTENSION idempotence'];
    if (!found['since']) problems.push(`version: the extension is ${found['version']}, and this needs 1.2`);
    if (!found['visible']) return [...problems, `search_path: it lacks ${found['schema']}, the schema of the extension`];
    // Who may look up may begin.
    const probe = session ? "SELECT status FROM idem_lookup($1::text, 'check')" : 'SELECT idem_node()';
    await ask(database, probe, session ? [session] : []).catch((error) => problems.push(explained(error, session, found['role'])));
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
