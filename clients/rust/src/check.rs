//! What stands in the way of requests, told at the start of a program and not in its first request.

use crate::Error;
use crate::database::Database;
use std::time::Duration;

const THERE: &str =
    "SELECT count(*)::text FROM pg_proc WHERE proname = 'idem_begin' AND pg_function_is_visible(oid) LIMIT 1";
const EDITION: &str = "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'), \
'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))";
const READY: &str = "SELECT idem_ready()::text";
const FOUND: &str = "SELECT status::text FROM idem_lookup($1::text, 'idempotence check')";
const SWEPT: &str = "SELECT (detail || '; ' || hint)::text FROM idempotence.health WHERE name = 'sweep' AND level > 0";

/// What [`check`] has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Check {
    /// Such as `extension 1.2.0`, or `managed 1.2.0`.
    pub edition: Option<String>,
    /// One sentence for each fault.
    pub problems: Vec<String>,
}

/// One sentence for each fault that stands in the way of requests in this session, none if all is well; and which edition is
/// there.
pub async fn check<D: Database>(database: &D, session: Option<&str>) -> Check {
    let fault = |told: String| Check { edition: None, problems: vec![told] };
    match asked(database, THERE, &[]).await {
        Err(error) => return fault(format!("unreachable: no connection to the database can be had: {error}")),
        Ok(Some(count)) if count == "0" => {
            return fault(
                "extension: this database has no idem_begin on the search_path: CREATE EXTENSION idempotence".into(),
            );
        }
        Ok(_) => {}
    }
    let edition = asked(database, EDITION, &[]).await.ok().flatten();
    let mut problems = Vec::new();
    if let Some((kind, version)) = edition.as_deref().and_then(|edition| edition.split_once(' ')) {
        if version.split('.').filter_map(|part| part.parse().ok()).take(2).collect::<Vec<u32>>() < vec![1, 2] {
            problems.push(format!("version: this client needs idempotence 1.2, the database has {version}: update it"));
            return Check { edition, problems };
        }
        // The edition for managed services has no readiness to ask for.
        let ready = if kind == "extension" { asked(database, READY, &[]).await } else { Ok(Some("true".into())) };
        problems.extend(match ready {
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
    // Of the extension, who is no monitor cannot see whether somebody sweeps.
    if let Ok(Some(swept)) = asked(database, SWEPT, &[]).await {
        problems.push(format!("sweep: {swept}"));
    }
    Check { edition, problems }
}

async fn asked<D: Database>(database: &D, sql: &'static str, args: &[Option<&str>]) -> Result<Option<String>, Error> {
    let rows = database.ask(Duration::from_secs(5), sql, args).await?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()))
}
