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

// The edition for managed services is no extension: the comment on its schema names its version.
const EDITION = `SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'),
  'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))`;
const READY = 'SELECT idem_ready()::text';
const PRELOADED = 'SELECT EXISTS (SELECT FROM idempotence.in_flight)';
const FOUND = "SELECT status FROM idem_lookup($1::text, 'idempotence check')";
const SWEPT = "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0";

/** One sentence for each problem, and what was found: "extension 1.2.0" or "managed 1.2.0". */
export type Problems = string[] & { edition?: string };

/** What prevents requests in this session: one sentence for each problem, with a word in front that names it. */
export async function check(database: Database, session?: string | null): Promise<Problems> {
  const problems: Problems = [];
  /** The first value, or the error. */
  const value = async (sql: string, ...values: unknown[]): Promise<any> => {
    try {
      return (await ask(database, sql, values))[0]?.[0];
    } catch (error) {
      return error;
    }
  };
  if ('connect' in database && (database as any).listenerCount('error') === 0) {
    problems.push(
      "pool: nobody listens to its errors, so the loss of an idle connection ends the process; pool.on('error', …)",
    );
  }
  const fault = await value(FAULT);
  if (fault instanceof Error) {
    problems.push(`unreachable: no connection to the database: ${fault.message || (fault as { code?: string }).code}`);
  } else if (fault) {
    problems.push(String(fault));
  }
  if (fault) return problems;

  problems.edition = String(await value(EDITION));
  const [kind, version = ''] = problems.edition.split(' ');
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (major < 1 || (major === 1 && minor < 2)) {
    problems.push(`version: this client needs idempotence 1.2, and the database has ${version}: update it`);
    return problems;
  }
  // The edition for managed services has neither.
  if (kind === 'extension') {
    if ((await value(READY)) !== 'true') {
      problems.push('ready: no request can be begun now: SELECT * FROM idempotence.health has the reason');
    }
    if (sqlstate(await value(PRELOADED)) === '55000') {
      problems.push(
        'preload: the server does not preload the library, so expired outcomes are not removed: add idempotence to ' +
          'shared_preload_libraries and restart, or CALL idem_sweep() at least once an hour',
      );
    }
  }
  if (session) problems.push(...unusable(await value(FOUND, session), session));
  // In the extension, only a role with the level `monitor` can read whether the database is swept.
  const swept = await value(SWEPT);
  if (typeof swept === 'string') problems.push(`sweep: ${swept}`);
  return problems;
}

function unusable(found: any, session: string): string[] {
  switch (sqlstate(found)) {
    case '42704':
      return [`session: there is no session ${session}: SELECT idem_create_session('${session}')`];
    case '42501':
      return [
        `rights: this role may not use the session ${session}: ` +
          `its owner lends it by idem_alter_session('${session}', usable_by => …)`,
      ];
    case 'ID012':
      return [`session: the session ${session} lives on another server: ${found.message}`];
    default:
      return [];
  }
}
