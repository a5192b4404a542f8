//! What stands in the way of requests, told at the start of a program and not in its first request.

use crate::Error;
use crate::database::Database;
use std::time::Duration;

const THERE: &str =
    "SELECT count(*)::text FROM pg_proc WHERE proname = 'idem_begin' AND pg_function_is_visible(oid) LIMIT 1";
const VERSION: &str = "SELECT extversion::text FROM pg_extension WHERE extname = 'idempotence'";
const READY: &str = "SELECT idem_ready()::text";
const FOUND: &str = "SELECT status::text FROM idem_lookup($1::text, 'idempotence check')";
const SWEPT: &str = "SELECT (detail || '; ' || hint)::text FROM idempotence.health WHERE name = 'sweep' AND level > 0";

/// One sentence for each fault that stands in the way of requests in this session; none if all is well.
pub async fn check<D: Database>(database: &D, session: Option<&str>) -> Vec<String> {
    match asked(database, THERE, &[]).await {
        Err(error) => return vec![format!("unreachable: no connection to the database can be had: {error}")],
        Ok(Some(count)) if count == "0" => {
            return vec![
                "extension: this database has no idem_begin on the search_path: CREATE EXTENSION idempotence".into(),
            ];
        }
        Ok(_) => {}
    }
    // The edition for managed services is no extension, and has no readiness to ask for.
    let version = asked(database, VERSION, &[]).await.ok().flatten();
    let mut problems = Vec::new();
    if let Some(version) = &version {
        if version.split('.').filter_map(|part| part.parse().ok()).take(2).collect::<Vec<u32>>() < vec![1, 2] {
            return vec![format!(
                "version: this client needs idempotence 1.2, the database has {version}: ALTER EXTENSION idempotence UPDATE"
            )];
        }
        problems.extend(match asked(database, READY, &[]).await {
            Ok(Some(ready)) if ready == "true" => None,
            Err(error) if error.has("42501") => Some(
                "rights: this role may not call the functions: SELECT idem_grant(current_user::text), by a superuser"
                    .into(),
            ),
            _ => Some("ready: no request can be begun here now: SELECT * FROM idempotence.health tells why".into()),
        });
    }
    if let Some(session) = session.filter(|_| problems.is_empty())
        && let Err(error) = asked(database, FOUND, &[Some(session)]).await
    {
        problems.extend(match error.sqlstate().unwrap_or_default().as_str() {
            "42704" => Some(format!("session: there is none of the name {session}: SELECT idem_create_session('{session}')")),
            "42501" => Some(format!(
                "rights: this role may not use the session {session}: its owner lends it by idem_alter_session(…, usable_by => …)"
            )),
            "ID012" => Some(format!("session: the session {session} lives on another server: {error}")),
            _ => None,
        });
    }
    // Who is no monitor cannot see whether somebody sweeps.
    if version.is_some()
        && let Ok(Some(swept)) = asked(database, SWEPT, &[]).await
    {
        problems.push(format!("sweep: {swept}"));
    }
    problems
}

async fn asked<D: Database>(database: &D, sql: &'static str, args: &[Option<&str>]) -> Result<Option<String>, Error> {
    let rows = database.ask(Duration::from_secs(5), sql, args).await?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
}
