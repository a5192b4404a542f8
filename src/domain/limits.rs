//! Limits that are not settings. Every name, list and lifetime has a limit.
//! `arguments.rs` refuses what is beyond most of them. The limits that are settings stand in `guc.rs`, those on what a role
//! or a session may have are kept in `sessions/quota.rs` and `sessions/save.rs`.

/// The longest request key, in characters: the length that Stripe documents for its keys.
pub const KEY_CHARS_MAX: usize = 255;

/// The longest name of a standing session, in characters.
pub const SESSION_CHARS_MAX: usize = 255;

/// The longest name of a node, in characters.
pub const NODE_CHARS_MAX: usize = 32;

/// The longest name of a client, in characters.
pub const CLIENT_CHARS_MAX: usize = 255;

/// The longest name of a stream, in characters.
pub const STREAM_CHARS_MAX: usize = 255;

/// The greatest number of a request. It is far enough from the end of bigint to be added to without an overflow.
pub const NUMBER_MAX: i64 = 1 << 62;

/// The widest window of a client session, in requests.
pub const WINDOW_MAX: i32 = 1024;

/// The shortest silence that a client session can be asked to outlast.
pub const TIMEOUT_US_MIN: i64 = 2 * 1_000_000;
/// The longest silence that a client session can be asked to outlast: seven days.
pub const TIMEOUT_US_MAX: i64 = 7 * 86_400 * 1_000_000;

/// How many signs of life are written in a timeout at most. A sign is written only when the last one is as old as
/// the timeout divided by this number.
pub const SIGNS_A_TIMEOUT: i64 = 8;

/// The longest name of a checkpoint's point, in characters.
pub const POINT_CHARS_MAX: usize = 255;

/// How many levels of arrays and objects a response, a state or a payload may have. PostgreSQL reads the text of a value
/// level by level, as deep as its stack allows, and a dump is read where that may be less than where it was made.
pub const DEPTH_MAX: usize = 1000;

/// The greatest size of a response, a state or a payload as text, in bytes, as COPY writes it. A number of a few bytes can have
/// 147 000 digits, and a dump can have no line of 1 GiB.
pub const TEXT_BYTES_MAX: usize = 512 << 20;

/// The digits that a numeric can have, before and behind its point.
pub const NUMERIC_DIGITS_MAX: usize = 131_072 + 16_383;

/// The longest reason given for a repair, in characters.
pub const REASON_CHARS_MAX: usize = 1000;

/// The shortest lease.
pub const LEASE_US_MIN: i64 = 10_000;
/// The longest lease: seven days. What takes longer extends its lease.
pub const LEASE_US_MAX: i64 = 7 * 86_400 * 1_000_000;

/// The greatest number of attempts that a session may allow.
pub const ATTEMPTS_MAX: i32 = 1_000_000;

/// The shortest ttl of an outcome.
pub const TTL_US_MIN: i64 = 1_000_000;
/// The longest ttl of an outcome: ten years of 365 days.
pub const TTL_US_MAX: i64 = 10 * 365 * 86_400 * 1_000_000;

/// How long the sweep keeps an outcome after it has expired. A caller that asked just before the expiry, and then
/// waited, still gets the outcome.
pub const EXPIRY_GRACE_US: i64 = 60_000_000;

/// How much longer than a ttl outcomes with that ttl are kept in a segment. The outcome of a time key can expire
/// later than its ttl after the record, by as much as the key is ahead; and see [`EXPIRY_GRACE_US`].
pub const KEEP_SLACK_US: i64 = super::time_key::AHEAD_US_MAX + EXPIRY_GRACE_US;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time_key::AHEAD_US_MAX;

    const SECOND: i64 = 1_000_000;
    const DAY: i64 = 86_400 * SECOND;

    /// The table of limits in the reference has these very numbers.
    #[test]
    fn the_reference_says_the_same() {
        let reference = include_str!("../../docs/reference.md");
        let names = if CLIENT_CHARS_MAX == STREAM_CHARS_MAX { CLIENT_CHARS_MAX } else { 0 };
        let (shortest, longest) = (TIMEOUT_US_MIN / SECOND, TIMEOUT_US_MAX / DAY);
        for line in [
            format!("| key | {KEY_CHARS_MAX} characters |"),
            format!("| session name | {SESSION_CHARS_MAX} characters |"),
            format!("| name of a node | {NODE_CHARS_MAX} characters |"),
            format!("| point of a checkpoint | {POINT_CHARS_MAX} characters |"),
            format!("| name of a client, of a stream | {names} characters |"),
            format!("| number of a request | 1 to 2^{} ({NUMBER_MAX}) |", NUMBER_MAX.ilog2()),
            format!("| window of a client session | 1 to {WINDOW_MAX}; more is clamped |"),
            format!(
                "| timeout of a client session | {shortest} seconds to {longest} days; less and more are clamped |"
            ),
            format!("| lease | {} milliseconds to {} days |", LEASE_US_MIN / 1000, LEASE_US_MAX / DAY),
            format!("| `max_attempts` of a session | 1 to {ATTEMPTS_MAX} |"),
            format!(
                "| nesting of a response, a state or a payload | {DEPTH_MAX} levels of arrays and objects (22023) |"
            ),
            format!("| a response, a state or a payload as text | {} MiB (22023) |", TEXT_BYTES_MAX >> 20),
            format!("| reason of a repair | {REASON_CHARS_MAX} characters |"),
            format!("| ttl | {} second to {} days; for a session at most", TTL_US_MIN / SECOND, TTL_US_MAX / DAY),
            format!("| time of a time key | {} minutes ahead of the database's clock |", AHEAD_US_MAX / (60 * SECOND)),
        ] {
            assert!(reference.contains(&line), "docs/reference.md does not say: {line}");
        }
    }
}
