//! Checks of arguments: lengths, sizes, intervals, and whether the transaction may write at all.

use crate::domain::limits::{
    DEPTH_MAX, LEASE_US_MAX, LEASE_US_MIN, NUMBER_MAX, NUMERIC_DIGITS_MAX, STREAM_CHARS_MAX, TEXT_BYTES_MAX,
};
use crate::error::{Error, RequestName};
use crate::guc;
use crate::pg::{self, Jsonb};
use pgrx::datum::Interval;
use std::fmt::Display;

/// Refuses a transaction that cannot write. `function` is the call that has to write, `detail` says why.
pub fn check_writable(function: &'static str, detail: impl FnOnce() -> String) -> Result<(), Error> {
    if pg::read_only() { Err(Error::ReadOnly { function, detail: detail() }) } else { Ok(()) }
}

/// The hint for a wait that the argument `wait` bounds.
pub const WAIT_BY_ARGUMENT: &str =
    "Try again as it is, or wait longer (argument \"wait\" or setting idempotence.wait).";

/// Refuses a text of more than `chars_max` characters. This is on the hot path, so the text of `what` is made only if it is
/// needed.
pub fn check_chars(what: impl Display, value: &str, chars_max: usize, hint: &'static str) -> Result<(), Error> {
    // A text has no more characters than bytes, and the bytes need no counting.
    let chars = if value.len() <= chars_max { 0 } else { value.chars().count() };
    if chars <= chars_max {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: what.to_string(),
        found: format!("{chars} characters"),
        limit: format!("{chars_max} characters"),
        hint,
    })
}

/// Refuses a jsonb value of more than `bytes_max` bytes, and one that is nested too deeply or too long as text; `what` says
/// what it is of the request. This is on the hot path, so the request's name is made only if it is needed.
pub fn check_jsonb(
    what: &str,
    of: impl FnOnce() -> RequestName,
    value: Jsonb,
    bytes_max: usize,
    hint: &'static str,
) -> Result<(), Error> {
    // A level takes eight bytes, and the innermost four. So a shorter value is not deeper, and is not read.
    const BYTES_OF_DEEP: usize = 8 * DEPTH_MAX;
    // Nor is a shorter value too long as text: a number takes twelve bytes, and is the least that can grow.
    const BYTES_OF_LONG: usize = 12 * (TEXT_BYTES_MAX / NUMERIC_DIGITS_MAX);
    match value.raw_bytes() {
        bytes if bytes > bytes_max => Err(Error::LimitExceeded {
            what: format!("the {what} of {}", of()),
            found: format!("{bytes} bytes"),
            limit: format!("{bytes_max} bytes"),
            hint,
        }),
        bytes if bytes > BYTES_OF_DEEP && value.is_deeper_than(DEPTH_MAX) => Err(Error::Invalid {
            message: format!("the {what} of {} is nested too deeply", of()),
            detail: format!(
                "It has more than {DEPTH_MAX} levels of arrays and objects, which a restore could not read."
            ),
            hint: "Write it flatter, or as a string.",
        }),
        bytes if bytes > BYTES_OF_LONG && value.is_longer_as_text_than(TEXT_BYTES_MAX) => Err(Error::Invalid {
            message: format!("the {what} of {} is too long as text", of()),
            detail: format!("It takes more than {} MiB, with which no dump could be made.", TEXT_BYTES_MAX >> 20),
            hint: "Write numbers of many digits as strings, or keep a reference to the answer instead.",
        }),
        _ => Ok(()),
    }
}

/// Refuses more things in one call than `idempotence.max_batch` allows.
pub fn check_batch(what: impl FnOnce() -> String, count: usize, hint: &'static str) -> Result<(), Error> {
    let most = guc::max_batch();
    if count <= most {
        return Ok(());
    }
    Err(Error::LimitExceeded { what: what(), found: count.to_string(), limit: most.to_string(), hint })
}

/// Refuses a stream name that is too long. The empty name stands for the session's own numbering.
pub fn check_stream(session: &str, stream: &str) -> Result<(), Error> {
    let what = format_args!("the name of a stream of session \"{session}\"");
    check_chars(what, stream, STREAM_CHARS_MAX, "Choose a shorter name.")
}

/// Refuses a mark that is neither 0 nor a number of a request.
pub fn check_mark(session: &str, argument: &'static str, mark: i64) -> Result<(), Error> {
    if (0..=NUMBER_MAX).contains(&mark) {
        return Ok(());
    }
    Err(Error::Invalid {
        message: format!("argument \"{argument}\" of session \"{session}\" is out of range"),
        detail: format!("Found {mark}; it must be between 0 and {NUMBER_MAX}."),
        hint: "Give the greatest number up to which every answer has arrived, or was given up.",
    })
}

/// How long to wait: as long as the argument says, or the setting where the argument is NULL. `None`: for ever.
pub fn wait_us(wait: Option<Interval>) -> Result<Option<i64>, Error> {
    let Some(wait) = wait else { return Ok(guc::wait_us()) };
    match pg::interval_us(&wait) {
        // The interval 'infinity', which servers from version 17 on know.
        None if wait.micros() == i64::MAX => Ok(None),
        Some(us) if us >= 0 => Ok(Some(us)),
        found => Err(Error::Invalid {
            message: format!("the wait is {}", if found.is_some() { "negative" } else { "out of range" }),
            detail: "A wait is '0' or longer.".into(),
            hint: "To wait for ever, SET idempotence.wait = -1.",
        }),
    }
}

/// The microseconds of an interval, which must lie between two bounds.
pub fn duration_us(argument: &str, value: &Interval, us_min: i64, us_max: i64) -> Result<i64, Error> {
    match pg::interval_us(value) {
        Some(us) if (us_min..=us_max).contains(&us) => Ok(us),
        found => Err(Error::Invalid {
            message: format!("the {argument} is out of range"),
            detail: format!(
                "Found {}; it must be at least {} and at most {}.",
                found.map_or("an interval beyond all bounds".into(), describe_us),
                describe_us(us_min),
                describe_us(us_max)
            ),
            hint: "Give an interval, such as '30 seconds' or '24 hours'; '30' is 30 seconds, and a month counts as 30 days.",
        }),
    }
}

/// The length of a lease.
pub fn lease_us(lease: &Interval) -> Result<i64, Error> {
    duration_us("lease", lease, LEASE_US_MIN, LEASE_US_MAX)
}

/// A length of time for messages, in the largest unit from the day to the millisecond of which it is a multiple.
pub fn describe_us(us: i64) -> String {
    const UNITS: [(i64, &str); 5] = [
        (86_400_000_000, "day"),
        (3_600_000_000, "hour"),
        (60_000_000, "minute"),
        (1_000_000, "second"),
        (1_000, "millisecond"),
    ];
    let whole = UNITS.into_iter().find(|(unit_us, _)| us >= *unit_us && us % unit_us == 0);
    let Some((unit_us, unit)) = whole else { return format!("{us} microseconds") };
    let count = us / unit_us;
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}
