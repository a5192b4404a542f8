//! The SQL functions that tell: what is known of requests, for people on call and for the owner of a session; and those behind
//! the views `stats`, `in_flight` and `errors`, `error_counts` and `idem_stats_reset`.
//!
//! The latter read shared memory, where nothing is hidden. So they decide here, row by row, what the caller may see: a monitor
//! everything, anybody else what belongs to sessions that the caller may use. `error_counts` is for monitors alone.

use super::call::{Result, by_key, enter, required};
use crate::error::{OWN_SQLSTATES, or_raise};
use crate::model::StandingSession;
use crate::monitor;
use crate::monitor::{Key, NotedError, Tally, counters, in_flight};
use crate::pg::{self, Filled, Jsonb, Shape, Spelt, Timestamptz};
use crate::requests::{explain, listing};
use crate::sessions::resolve;
use crate::store::session::standing;
use crate::store::{self, audit, catalog, locked};
use pgrx::datum::{IntoDatum, Uuid};
use pgrx::{default, pg_extern, pg_sys};
use std::borrow::Cow;

by_key! {
    "idem_explain": idem_explain_text, idem_explain_bigint, idem_explain_uuid;
    fn(session: Option<&str>, request: key, stream: default!(Option<&str>, "NULL")) -> Result<Jsonb> {
        let (session, request) = (required("session", session)?, required("request", request)?);
        let look = || explain::explain(session, &request, stream);
        // A table that somebody has locked is what whoever asks here has to know of.
        let told = pg::bounded(Some(locked::AT_MOST_US), look).unwrap_or_else(|| Err(locked::error()))?;
        pg::check_memory()?;
        Ok(Jsonb::of_text(&told))
    }
}

/// The columns of `idem_outcomes`.
pub struct Outcomes;

impl Shape for Outcomes {
    const SQL: &'static str = store::listing::COLUMNS;
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_outcomes(
    session: Option<&str>,
    prefix: default!(Option<&str>, "NULL"),
    status: default!(Option<&str>, "NULL"),
    since: default!(Option<Timestamptz>, "NULL"),
    before: default!(Option<Timestamptz>, "NULL"),
    most: default!(Option<i32>, "100"),
) -> Result<Filled<'static, Outcomes>> {
    enter("idem_outcomes");
    let period = [since, before].map(|at| at.map(|at| at.0));
    let outcomes = listing::outcomes(required("session", session)?, prefix, status, period, required("most", most)?)?;
    Ok(Filled::by(outcomes))
}

/// The counters of each session of this database that the caller may see.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.stats(OUT session text, OUT owner regrole, OUT kind text, OUT started bigint, OUT taken_over bigint,
                                  OUT replayed bigint, OUT recorded bigint, OUT failed bigint, OUT cancelled bigint, OUT released bigint,
                                  OUT in_progress bigint, OUT mismatched bigint, OUT discarded bigint, OUT fenced bigint,
                                  OUT out_of_sequence bigint, OUT unrecorded bigint, OUT waits bigint, OUT wait_ms bigint,
                                  OUT since timestamptz) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn stats() -> Filled<'static, Spelt> {
    enter("idempotence.stats");
    or_raise(monitor::check_there("the counters of idempotence.stats"));
    let is_monitor = catalog::is_monitor();
    let row = |whom: [Option<pg_sys::Datum>; 3], tally: &Tally| {
        let counts = tally.counts().iter().map(|count| i64::try_from(*count).unwrap_or(i64::MAX).into_datum());
        whom.into_iter().chain(counts).chain([Timestamptz(tally.since).into_datum()]).collect()
    };
    // Sessions that are forgotten count with those that gave way: one tally has what has no name.
    let (mut rows, mut unnamed) = (Vec::new(), None::<Tally>);
    for tally in counters::read() {
        match (whom(&tally.key), &mut unnamed) {
            (Some((whom, is_callers)), _) if is_monitor || is_callers => rows.push(row(whom, &tally)),
            (Some(_), _) => {}
            (None, Some(sum)) => sum.add(&tally),
            (None, none) => *none = Some(tally),
        }
    }
    // What has counted nothing but errors is no row here.
    let unnamed = unnamed.filter(|sum| is_monitor && sum.counts().iter().any(|count| *count > 0));
    rows.extend(unnamed.map(|sum| row([None, None, "other".into_datum()], &sum)));
    pg::rows(rows)
}

/// Whom a tally counts for: session, owner and kind; and whether that is the caller's to see. `None`: a session that is
/// forgotten, or tallies that gave way.
fn whom(key: &Key) -> Option<([Option<pg_sys::Datum>; 3], bool)> {
    if key.role != 0 {
        let role = pg_sys::Oid::from(key.role);
        return Some(([None, role.into_datum(), "client".into_datum()], pg::has_privileges_of(role)));
    }
    let StandingSession { name, owner, usable_by, inbox, .. } = standing::find_by_id(&key.session)?;
    let kind = if inbox { "inbox" } else { "standing" };
    Some(([name.into_datum(), owner.into_datum(), kind.into_datum()], resolve::may_use(owner, usable_by)))
}

/// How many errors of each SQLSTATE of class `ID` were raised in this database.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.error_counts(OUT sqlstate text, OUT errors bigint) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn error_counts() -> Filled<'static, Spelt> {
    enter("idempotence.error_counts");
    or_raise(monitor::check_there("the counters of idempotence.error_counts"));
    let tallies = counters::read();
    let rows = (0..OWN_SQLSTATES).map(|number| {
        let errors = tallies.iter().map(|tally| tally.errors()[number]).fold(0, u64::saturating_add);
        let errors = i64::try_from(errors).unwrap_or(i64::MAX);
        vec![format!("ID{:03}", number + 1).into_datum(), errors.into_datum()]
    });
    pg::rows(rows.collect())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_stats_reset() -> Timestamptz {
    enter("idem_stats_reset");
    or_raise(monitor::check_there("the counters of idempotence.stats"));
    let found = "the counters of this database count from now on";
    if !pg::read_only() {
        audit::note("stats_reset", "", "", None, found);
    }
    // The counters do not come back with a rollback, and a standby has no audit of its own.
    let by = format!("Role \"{}\" of a connection of \"{}\" did it.", pg::current_role_name(), pg::login_name());
    pg::log_line(&format!("the counters of database \"{}\" were set to 0", pg::current_database_name()), &by, "");
    Timestamptz(counters::reset())
}

/// The requests in flight in this database that the caller may see, without those who wait for them. `lock_high` and
/// `lock_low` name the request's lock in `pg_locks`.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.held_requests(OUT session text, OUT stream text, OUT request text, OUT pid integer, OUT role regrole,
                                          OUT application text, OUT client_addr text, OUT since timestamptz, OUT state text,
                                          OUT requests bigint, OUT lock_high oid, OUT lock_low oid,
                                          OUT backend_state text, OUT wait_event text) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn held_requests() -> Filled<'static, Spelt> {
    enter("idempotence.held_requests");
    or_raise(monitor::check_there("the requests of idempotence.in_flight"));
    let is_monitor = catalog::is_monitor();
    let sees = |in_flight::InFlight { entry, names, .. }: &in_flight::InFlight| match names {
        _ if is_monitor => true,
        Some(_) => {
            let usable_by = Some(entry.usable_by).filter(|role| *role != pg_sys::InvalidOid);
            resolve::may_use(entry.owner, usable_by)
        }
        None => pg::has_privileges_of(entry.role),
    };
    let held: Vec<_> = in_flight::read().into_iter().filter(sees).collect();
    let backends = if held.is_empty() { Vec::new() } else { pg::backends() };
    let rows = held.into_iter().map(|held| {
        let backend = held.pid.and_then(|pid| backends.iter().find(|backend| backend.pid == pid));
        let half = |bits: u64| pg_sys::Oid::from(bits as u32);
        let (entry, named) = (held.entry, held.names.as_ref());
        vec![
            named.map(|[session, _, _]| &**session).into_datum(),
            named.map(|[_, stream, _]| &**stream).into_datum(),
            named.map(|[_, _, request]| &**request).into_datum(),
            held.pid.into_datum(),
            entry.role.into_datum(),
            backend.map(|backend| &*backend.application).into_datum(),
            backend.and_then(|backend| backend.client.as_deref()).into_datum(),
            Timestamptz(entry.since).into_datum(),
            named.and_then(|_| entry.state()).into_datum(),
            held.requests.into_datum(),
            named.map(|_| half(entry.lock >> 32)).into_datum(),
            named.map(|_| half(entry.lock)).into_datum(),
            backend.and_then(|backend| backend.state).into_datum(),
            backend.and_then(|backend| pg::wait_event(backend.pid)).into_datum(),
        ]
    });
    pg::rows(rows.collect())
}

/// The newest errors of this database that the caller may see: those that its own roles got, and those of sessions that it
/// may use.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.errors(OUT at timestamptz, OUT session text, OUT stream text, OUT request text, OUT role regrole,
                                   OUT sqlstate text, OUT application text, OUT pid integer) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn errors() -> Filled<'static, Spelt> {
    enter("idempotence.errors");
    or_raise(monitor::check_there("the errors of idempotence.errors"));
    let is_monitor = catalog::is_monitor();
    let sees = |error: &NotedError| {
        is_monitor
            || pg::has_privileges_of(error.role)
            // A session that was made after the error is another one of the same name.
            || resolve::even_dropped(&error.session.get())
                .is_some_and(|session| session.created_at <= error.at && resolve::may_use(session.owner, session.usable_by))
    };
    let named = |name: String| (!name.is_empty()).then_some(name);
    let rows = monitor::errors().into_iter().filter(sees).map(|error| {
        vec![
            Timestamptz(error.at).into_datum(),
            named(error.session.get()).into_datum(),
            named(error.stream.get()).into_datum(),
            named(error.request.get()).into_datum(),
            error.role.into_datum(),
            String::from_utf8_lossy(&error.sqlstate).into_owned().into_datum(),
            error.application.get().into_datum(),
            error.pid.into_datum(),
        ]
    });
    pg::rows(rows.collect())
}
