//! What the SQL functions on requests have in common, and arguments that must not be NULL.

use crate::error::Error;
use crate::monitor::{Counter, counters};
use crate::pg::{self, CompositeRow};
use crate::requests::answer::Ticket;
use crate::requests::numbered::Numbering;
use crate::requests::request::{Request, Rules};
use pgrx::datum::Uuid;
use pgrx::pg_sys::Datum;
use pgrx::pg_sys::panic::ErrorReport;
use std::borrow::Cow;

/// What an SQL function gives to pgrx, which raises an error.
pub type Result<T, E = ErrorReport> = std::result::Result<T, E>;

/// Begins a call of an SQL function of this name. Every function that is declared PARALLEL UNSAFE calls this first.
/// PostgreSQL plans no parallel query that calls such a function, but it does not see the calls within a function that a
/// user has declared PARALLEL SAFE.
pub fn enter(function: &str) {
    pg::begin_call();
    if let Some(process) = pg::parallel_process() {
        Error::InParallelQuery { function: function.to_owned(), process }.raise()
    }
}

/// Declares an SQL function of this name three times, since its argument `request` may be a text, a bigint or a uuid. Each is
/// a C function of its own. In the body `request` is the key: `'42'` and 42 name the same request, and so do a UUID and its
/// text.
macro_rules! by_key {
    ($name:tt: $text:ident, $bigint:ident, $uuid:ident;
     fn($session:ident: Option<&str>, $request:ident: key $(, $($more:tt)+)?) $(-> $result:ident $(<$of:ident>)?)? $body:block) => {
        #[pg_extern(name = $name, volatile, parallel_unsafe)]
        fn $text($session: Option<&str>, $request: Option<&str> $(, $($more)+)?) $(-> $result $(<$of>)?)? {
            $crate::api::call::enter($name);
            let $request = $request.map(Cow::from);
            $body
        }

        #[pg_extern(name = $name, volatile, parallel_unsafe)]
        fn $bigint($session: Option<&str>, $request: Option<i64> $(, $($more)+)?) $(-> $result $(<$of>)?)? {
            $crate::api::call::enter($name);
            let $request = $request.map($crate::api::call::key_of_number);
            $body
        }

        #[pg_extern(name = $name, volatile, parallel_unsafe)]
        fn $uuid($session: Option<&str>, $request: Option<Uuid> $(, $($more)+)?) $(-> $result $(<$of>)?)? {
            $crate::api::call::enter($name);
            let $request = $request.map($crate::api::call::key_of_uuid);
            $body
        }
    };
}
pub(super) use by_key;

/// The key that a number stands for.
pub fn key_of_number(number: i64) -> Cow<'static, str> {
    number.to_string().into()
}

/// The key that a UUID stands for.
pub fn key_of_uuid(id: Uuid) -> Cow<'static, str> {
    pg::uuid_key(*id.as_bytes()).into()
}

/// The numbering for functions that are given no last number and no mark.
pub fn in_stream(stream: Option<&str>) -> Numbering<'_> {
    Numbering { stream, ..Numbering::default() }
}

/// As [`in_stream`], where any number of a range stands for the range.
pub fn by_any_number(stream: Option<&str>) -> Numbering<'_> {
    Numbering { by_any_number: true, ..in_stream(stream) }
}

/// Answers `in_progress` for a session of which nothing is known, but which another transaction holds.
pub fn in_progress_if_in_doubt(result: Result<Ticket, Error>) -> Result<Ticket, Error> {
    match result {
        Err(Error::SessionInDoubt { .. }) => Ok(Ticket::in_progress()),
        result => result,
    }
}

/// Resolves a request and runs `work` on it.
pub fn with_request<T>(
    rules: Rules,
    session: Option<&str>,
    request: Option<Cow<'_, str>>,
    numbering: Numbering<'_>,
    work: impl FnOnce(&Request<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let session = required("session", session)?;
    let key = required("request", request)?;
    let request = Request::resolve(session, &key, numbering, rules)?;
    let done = work(&request).inspect_err(|error| count_refused(&request, error))?;
    pg::check_memory()?;
    Ok(done)
}

/// Counts an error that a call on a request ends with.
fn count_refused(request: &Request<'_>, error: &Error) {
    let counter = match error {
        Error::PayloadMismatch(_) => Counter::Mismatched,
        Error::Discarded { .. } => Counter::Discarded,
        Error::SessionFenced { .. } | Error::ClaimSuperseded { .. } => Counter::Fenced,
        Error::OutOfSequence { .. } => Counter::OutOfSequence,
        _ => return,
    };
    counters::count(&request.session(), counter);
}

/// The numbering for a call that completes a request. With a token the outcome of a range may be asked for, of which
/// the call does not tell the last number.
pub fn to_complete(token: Option<i64>, stream: Option<&str>) -> Numbering<'_> {
    if token.is_some() { by_any_number(stream) } else { in_stream(stream) }
}

/// The rules for a call that completes a request.
pub fn rules_to_complete(token: Option<i64>) -> Rules {
    if token.is_some() { Rules::OfLease } else { Rules::OfBegin }
}

/// The value of an argument that must not be null.
pub fn required<T>(argument: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::NullArgument {
        what: format!("argument \"{argument}\""),
        because: "The function cannot do without it.".into(),
    })
}

impl CompositeRow for Ticket {
    const SQL_TYPE: &'static str = "idem_ticket";

    fn columns(self) -> impl AsRef<[Option<Datum>]> {
        let outcome = self.outcome.as_ref();
        let checkpoint = self.checkpoint.as_ref();
        [
            Some(pg::text(self.status)),
            Some(self.replayed.into()),
            outcome.and_then(|outcome| outcome.response).map(pg::Jsonb::datum),
            self.token.map(Into::into),
            self.attempt.map(Into::into),
            checkpoint.map(|checkpoint| pg::text(&checkpoint.point)),
            checkpoint.and_then(|checkpoint| checkpoint.state).map(pg::Jsonb::datum),
            outcome.map(|outcome| outcome.recorded_at.into()),
            outcome.and_then(|outcome| outcome.expires_at).or(self.leased_until).map(Into::into),
        ]
    }
}
