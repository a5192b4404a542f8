//! The functions behind the views `stats`, `in_flight` and `errors`, `error_counts` and `idem_stats_reset`.
//!
//! They read shared memory, where nothing is hidden. So they decide here, row by row, what the caller may see: a monitor
//! everything, anybody else what belongs to sessions that the caller may use. `error_counts` is for monitors alone.

use crate::error::{Error, OWN_SQLSTATES, or_raise};
use crate::model::StandingSession;
use crate::monitor;
use crate::monitor::in_flight::Named;
use crate::monitor::{Counter, Key, Line, NotedError, counters, errors, in_flight};
use crate::pg::{self, Backend, Timestamptz};
use crate::sessions::resolve;
use crate::store::audit::{self, Repair};
use crate::store::catalog;
use crate::store::session::standing;
use pgrx::iter::TableIterator;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// Refuses a call where the library is not preloaded.
fn check_there(what: &'static str) -> Result<(), Error> {
    if monitor::is_there() { Ok(()) } else { Err(Error::NotPreloaded { what }) }
}

/// The counters of each session of this database that the caller may see.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.stats(OUT session text, OUT owner regrole, OUT kind text, OUT started bigint, OUT taken_over bigint,
                                  OUT replayed bigint, OUT recorded bigint, OUT failed bigint, OUT cancelled bigint, OUT released bigint,
                                  OUT in_progress bigint, OUT mismatched bigint, OUT discarded bigint, OUT fenced bigint,
                                  OUT out_of_sequence bigint, OUT unrecorded bigint, OUT waits bigint, OUT wait_ms bigint,
                                  OUT swept bigint, OUT since timestamptz) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
#[allow(clippy::type_complexity, reason = "an SQL function has as many columns as its view needs")]
fn stats() -> TableIterator<
    'static,
    (
        name!(session, Option<String>),
        name!(owner, Option<pg_sys::Oid>),
        name!(kind, &'static str),
        name!(started, i64),
        name!(taken_over, i64),
        name!(replayed, i64),
        name!(recorded, i64),
        name!(failed, i64),
        name!(cancelled, i64),
        name!(released, i64),
        name!(in_progress, i64),
        name!(mismatched, i64),
        name!(discarded, i64),
        name!(fenced, i64),
        name!(out_of_sequence, i64),
        name!(unrecorded, i64),
        name!(waits, i64),
        name!(wait_ms, i64),
        name!(swept, i64),
        name!(since, Timestamptz),
    ),
> {
    or_raise(check_there("the counters of idempotence.stats"));
    let is_monitor = catalog::is_monitor();
    let (known, mut others): (Vec<_>, Vec<_>) = counters::read()
        .into_iter()
        .map(|line| (Counted::of(&line), line))
        .partition(|(counted, _)| !matches!(counted, Counted::Others));
    // Sessions that are forgotten count with those that gave way: one line has what has no name.
    let unnamed = others.pop().map(|(_, mut sum)| {
        others.iter().for_each(|(_, line)| sum.add(line));
        (Counted::Others, sum)
    });
    let unnamed = unnamed.filter(|(_, sum)| !sum.is_of_errors());
    let rows = known.into_iter().chain(unnamed).filter_map(move |(counted, line)| {
        if !is_monitor && !counted.is_callers() {
            return None;
        }
        let of = |counter: Counter| i64::try_from(line.counts[counter as usize]).unwrap_or(i64::MAX);
        let (session, owner, kind) = counted.columns();
        Some((
            session,
            owner,
            kind,
            of(Counter::Started),
            of(Counter::TakenOver),
            of(Counter::Replayed),
            of(Counter::Recorded),
            of(Counter::Failed),
            of(Counter::Cancelled),
            of(Counter::Released),
            of(Counter::InProgress),
            of(Counter::Mismatched),
            of(Counter::Discarded),
            of(Counter::Fenced),
            of(Counter::OutOfSequence),
            of(Counter::Unrecorded),
            of(Counter::Waits),
            of(Counter::WaitMs),
            of(Counter::Swept),
            Timestamptz(line.since),
        ))
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// Whom a line counts for.
enum Counted {
    Standing(StandingSession),
    Clients(pg_sys::Oid),
    /// Lines that gave way, and a session that is forgotten.
    Others,
}

impl Counted {
    fn of(line: &Line) -> Counted {
        match line.key {
            key if key.is_others() => Counted::Others,
            Key { role: 0, session, .. } => standing::find_by_id(&session).map_or(Counted::Others, Counted::Standing),
            Key { role, .. } => Counted::Clients(role.into()),
        }
    }

    fn is_callers(&self) -> bool {
        match self {
            Counted::Standing(session) => resolve::may_use(session.owner, session.usable_by),
            Counted::Clients(role) => pg::has_privileges_of(*role),
            Counted::Others => false,
        }
    }

    fn columns(self) -> (Option<String>, Option<pg_sys::Oid>, &'static str) {
        match self {
            Counted::Standing(StandingSession { name, owner, inbox, .. }) => {
                (Some(name), Some(owner), if inbox { "inbox" } else { "standing" })
            }
            Counted::Clients(role) => (None, Some(role), "client"),
            Counted::Others => (None, None, "other"),
        }
    }
}

/// How many errors of each SQLSTATE of class `ID` were raised in this database.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.error_counts(OUT sqlstate text, OUT errors bigint) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn error_counts() -> TableIterator<'static, (name!(sqlstate, String), name!(errors, i64))> {
    or_raise(check_there("the counters of idempotence.error_counts"));
    let lines = counters::read();
    TableIterator::new((0..OWN_SQLSTATES).map(move |number| {
        let errors = lines.iter().map(|line| line.errors()[number]).fold(0, u64::saturating_add);
        (format!("ID{:03}", number + 1), i64::try_from(errors).unwrap_or(i64::MAX))
    }))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_stats_reset() -> Timestamptz {
    or_raise(check_there("the counters of idempotence.stats"));
    let found = "the counters of this database count from now on";
    if !pg::read_only() {
        audit::insert(&Repair { action: "stats_reset", session: "", request: "", reason: None, found });
    }
    // The counters do not come back with a rollback, and a standby has no audit of its own.
    let by = format!("Role \"{}\" of a connection of \"{}\" did it.", pg::current_role_name(), pg::login_name());
    pg::log_line(format!("the counters of database \"{}\" were set to 0", pg::current_database_name()), by);
    Timestamptz(counters::reset())
}

/// The requests in flight in this database that the caller may see, without those who wait for them. `lock_high` and
/// `lock_low` name the request's lock in `pg_locks`.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.held_requests(OUT session text, OUT stream text, OUT request text, OUT pid integer, OUT role regrole,
                                          OUT application text, OUT client text, OUT since timestamptz, OUT state text,
                                          OUT requests bigint, OUT lock_high oid, OUT lock_low oid,
                                          OUT backend_state text, OUT wait_event text) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
#[allow(clippy::type_complexity, reason = "an SQL function has as many columns as its view needs")]
fn held_requests() -> TableIterator<
    'static,
    (
        name!(session, Option<String>),
        name!(stream, Option<String>),
        name!(request, Option<String>),
        name!(pid, Option<i32>),
        name!(role, pg_sys::Oid),
        name!(application, Option<String>),
        name!(client, Option<String>),
        name!(since, Timestamptz),
        name!(state, Option<&'static str>),
        name!(requests, i64),
        name!(lock_high, Option<pg_sys::Oid>),
        name!(lock_low, Option<pg_sys::Oid>),
        name!(backend_state, Option<&'static str>),
        name!(wait_event, Option<String>),
    ),
> {
    or_raise(check_there("the requests of idempotence.in_flight"));
    let is_monitor = catalog::is_monitor();
    let sees = |held: &in_flight::InFlight| match &held.named {
        _ if is_monitor => true,
        Some(named) => resolve::may_use(named.owner, named.usable_by),
        None => pg::has_privileges_of(held.role),
    };
    let held: Vec<_> = in_flight::read().into_iter().filter(sees).collect();
    let backends = if held.is_empty() { Vec::new() } else { pg::backends() };
    let rows = held.into_iter().map(|held| {
        let backend = held.pid.and_then(|pid| backends.iter().find(|backend| backend.pid == pid));
        let (application, client) = match backend {
            Some(Backend { application, client, .. }) => (Some(application.clone()), client.clone()),
            None => (None, None),
        };
        let backend_state = backend.and_then(|backend| backend.state);
        let wait_event = backend.and_then(|backend| pg::wait_event(backend.pid));
        let half = |bits: u64| pg_sys::Oid::from(bits as u32);
        let (names, state, lock) = match held.named {
            Some(Named { session, stream, request, state, lock, .. }) => {
                ((Some(session), Some(stream), Some(request)), Some(state.name()), Some(lock))
            }
            None => ((None, None, None), None, None),
        };
        let (session, stream, request) = names;
        let (high, low) = (lock.map(|lock| half(lock >> 32)), lock.map(half));
        (
            session,
            stream,
            request,
            held.pid,
            held.role,
            application,
            client,
            Timestamptz(held.since),
            state,
            held.requests,
            high,
            low,
            backend_state,
            wait_event,
        )
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// The newest errors of this database that the caller may see: those that its own roles got, and those of sessions that it
/// may use.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.errors(OUT at timestamptz, OUT session text, OUT stream text, OUT request text, OUT role regrole,
                                   OUT sqlstate text, OUT application text, OUT pid integer) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
#[allow(clippy::type_complexity, reason = "an SQL function has as many columns as its view needs")]
fn errors() -> TableIterator<
    'static,
    (
        name!(at, Timestamptz),
        name!(session, Option<String>),
        name!(stream, Option<String>),
        name!(request, Option<String>),
        name!(role, pg_sys::Oid),
        name!(sqlstate, String),
        name!(application, String),
        name!(pid, i32),
    ),
> {
    or_raise(check_there("the errors of idempotence.errors"));
    let is_monitor = catalog::is_monitor();
    let sees = |error: &NotedError| {
        is_monitor
            || pg::has_privileges_of(error.role)
            // A session that was made after the error is another one of the same name.
            || resolve::even_dropped(&error.session)
                .is_some_and(|session| session.created_at <= error.at && resolve::may_use(session.owner, session.usable_by))
    };
    let named = |name: String| (!name.is_empty()).then_some(name);
    let rows = errors::read().into_iter().filter(sees).map(|error| {
        let (session, stream, request) = (named(error.session), named(error.stream), named(error.request));
        (Timestamptz(error.at), session, stream, request, error.role, error.sqlstate, error.application, error.pid)
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}
