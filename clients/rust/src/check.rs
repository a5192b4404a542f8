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
    (SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'), \
'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))";
const READY: &str = "SELECT idem_ready()::text";
const FOUND: &str = "SELECT status::text FROM idem_lookup($1::text, 'idempotence check')";
const SWEPT: &str = "SELECT (detail || '; ' || hint)::text FROM idempotence.health WHERE name = 'sweep' AND level > 0";

const NOT_READY: &str = "no request can be begun here now";

/// The result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// Such as `extension 1.2.0`, or `managed 1.2.0`.
    pub edition: Option<String>,
    /// One sentence for each fault.
    pub problems: Vec<String>,
}

/// One sentence for each fault that prevents requests in this session, and the installed edition.
pub async fn check<D: Database>(database: &D, session: Option<&str>) -> Check {
    let fault = |told: String| Check { edition: None, problems: vec![told] };
    match asked(database, FAULT, &[]).await {
        Err(error) => return fault(format!("unreachable: no connection to the database can be had: {error}")),
        Ok(Some(told)) if !told.is_empty() => return fault(told),
        Ok(_) => {}
    }
    let edition = asked(database, EDITION, &[]).await.ok().flatten();
    let mut problems = Vec::new();
    if let Some((kind, version)) = edition.as_deref().and_then(|edition| edition.split_once(' ')) {
        if version.split('.').filter_map(|part| part.parse().ok()).take(2).collect::<Vec<u32>>() < vec![1, 2] {
            problems.push(format!("version: this client needs idempotence 1.2, the database has {version}: update it"));
            return Check { edition, problems };
        }
        // The edition for managed services has no such function.
        let ready = if kind == "extension" { asked(database, READY, &[]).await } else { Ok(Some("true".into())) };
        problems.extend(match ready {
            Ok(Some(ready)) if ready == "true" => None,
            Ok(_) => Some(format!("ready: {NOT_READY}: SELECT * FROM idempotence.health shows the reason")),
            // For example that the library is not in shared_preload_libraries.
            Err(error) => Some(format!("ready: {NOT_READY}: {error}")),
        });
    }
    if let Some(session) = session.filter(|_| problems.is_empty())
        && let Err(error) = asked(database, FOUND, &[Some(session)]).await
    {
        problems.push(match error.sqlstate().unwrap_or_default().as_str() {
            "42704" => {
                format!("session: there is none of the name {session}: SELECT idem_create_session('{session}')")
            }
            "42501" => format!(
                "rights: this role may not use the session {session}: \
                 its owner lends it by idem_alter_session(…, usable_by => …)"
            ),
            "ID012" => format!("session: the session {session} lives on another server: {error}"),
            _ => format!("session: the session {session} cannot be used: {error}"),
        });
    }
    // In the extension, a role without the level `monitor` cannot see whether the database is swept.
    if let Ok(Some(swept)) = asked(database, SWEPT, &[]).await {
        problems.push(format!("sweep: {swept}"));
    }
    Check { edition, problems }
}

async fn asked<D: Database>(database: &D, sql: &'static str, args: &[Option<&str>]) -> Result<Option<String>, Error> {
    let rows = database.ask(Duration::from_secs(5), sql, args).await?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
}
