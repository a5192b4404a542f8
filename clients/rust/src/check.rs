//! Reports what prevents requests when a program starts, and not in its first request.

use crate::Error;
use crate::database::Database;
use std::time::Duration;

/// What prevents every request, with the same wording in each client: '' if nothing does.
const FAULT: &str = "SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')";
const EDITION: &str = "SELECT coalesce(
    (SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'),
    'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))";
const READY: &str = "SELECT idem_ready()::text";
const PRELOADED: &str = "SELECT EXISTS (SELECT FROM idempotence.in_flight)::text";
const FOUND: &str = "SELECT status::text FROM idem_lookup($1::text, 'idempotence check')";
const SWEPT: &str = "SELECT (detail || '; ' || hint)::text FROM idempotence.health WHERE name = 'sweep' AND level > 0";

/// The result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// Such as `extension 1.2.0`, or `managed 1.2.0`.
    pub edition: Option<String>,
    /// One sentence for each problem.
    pub problems: Vec<String>,
}

/// One sentence for each problem that prevents requests in this session, and the installed edition.
pub async fn check<D: Database>(database: &D, session: Option<&str>) -> Check {
    let only = |problem: String| Check { edition: None, problems: vec![problem] };
    match value(database, FAULT, &[]).await {
        Err(error) => return only(format!("unreachable: no connection to the database: {error}")),
        Ok(Some(fault)) if !fault.is_empty() => return only(fault),
        Ok(_) => {}
    }
    let edition = value(database, EDITION, &[]).await.ok().flatten();
    let mut problems = Vec::new();
    if let Some((kind, version)) = edition.as_deref().and_then(|edition| edition.split_once(' ')) {
        let numbers = version.split('.').filter_map(|part| part.parse().ok()).take(2).collect::<Vec<u32>>();
        if numbers < vec![1, 2] {
            problems
                .push(format!("version: this client needs idempotence 1.2, and the database has {version}: update it"));
            return Check { edition, problems };
        }
        // The edition for managed services has neither.
        if kind == "extension" {
            problems.extend(unready(database).await);
        }
    }
    if let Some(session) = session
        && let Err(error) = value(database, FOUND, &[Some(session)]).await
    {
        problems.extend(unusable(session, &error));
    }
    // In the extension, only a role with the level `monitor` can read whether the database is swept.
    if let Ok(Some(swept)) = value(database, SWEPT, &[]).await {
        problems.push(format!("sweep: {swept}"));
    }
    Check { edition, problems }
}

async fn unready<D: Database>(database: &D) -> Vec<String> {
    let mut problems = Vec::new();
    if value(database, READY, &[]).await.ok().flatten().as_deref() != Some("true") {
        let problem = "ready: no request can be begun now: SELECT * FROM idempotence.health has the reason";
        problems.push(problem.into());
    }
    if value(database, PRELOADED, &[]).await.is_err_and(|error| error.has("55000")) {
        let problem = "preload: the server does not preload the library, so expired outcomes are not removed: \
                       add idempotence to shared_preload_libraries and restart, or CALL idem_sweep() at least once an \
                       hour";
        problems.push(problem.into());
    }
    problems
}

fn unusable(session: &str, error: &Error) -> Option<String> {
    match &*error.sqlstate()? {
        "42704" => Some(format!("session: there is no session {session}: SELECT idem_create_session('{session}')")),
        "42501" => Some(format!(
            "rights: this role may not use the session {session}: its owner lends it by \
             idem_alter_session('{session}', usable_by => …)"
        )),
        "ID012" => Some(format!("session: the session {session} lives on another server: {error}")),
        _ => None,
    }
}

/// The first value of a query.
async fn value<D: Database>(database: &D, sql: &str, args: &[Option<&str>]) -> Result<Option<String>, Error> {
    let rows = database.ask(Duration::from_secs(5), sql, args).await?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
}
