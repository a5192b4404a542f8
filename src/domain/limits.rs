//! Limits that are no settings. Every name, list and lifetime has one.

/// The longest request key, in characters, as Stripe documents it.
pub const KEY_CHARS_MAX: usize = 255;

/// The longest name of a standing session, in characters.
pub const SESSION_CHARS_MAX: usize = 255;

/// The longest name of a client, in characters.
pub const CLIENT_CHARS_MAX: usize = 255;

/// The longest name of a stream, in characters.
pub const STREAM_CHARS_MAX: usize = 255;

/// The greatest number of a request; far enough from the end of bigint to count on from it.
pub const NUMBER_MAX: i64 = 1 << 62;

/// The widest window of a client session, in requests.
pub const WINDOW_MAX: i32 = 1024;

/// The shortest and the longest silence that a client session can be asked to outlast.
pub const TIMEOUT_US_MIN: i64 = 2 * 1_000_000;
/// Seven days.
pub const TIMEOUT_US_MAX: i64 = 7 * 86_400 * 1_000_000;

/// A sign of life is written when the last one is older than this part of the timeout: so there are at
/// most so many in a timeout.
pub const SIGNS_A_TIMEOUT: i64 = 8;

/// The longest name of a checkpoint's point, in characters.
pub const POINT_CHARS_MAX: usize = 255;

/// The longest reason given for a repair, in characters.
pub const REASON_CHARS_MAX: usize = 1000;

/// The shortest and the longest time an outcome can be asked to live.
pub const TTL_US_MIN: i64 = 1_000_000;
/// Ten years of 365 days.
pub const TTL_US_MAX: i64 = 10 * 365 * 86_400 * 1_000_000;

/// So long after its end an outcome is left where it is found: whoever asked at the last moment is still to
/// be answered.
pub const ASKED_US: i64 = 60_000_000;

/// How much longer than a ttl a segment is kept before it is looked through: a time key may be so far ahead,
/// and see [`ASKED_US`].
pub const KEEP_SLACK_US: i64 = super::time_key::AHEAD_US_MAX + ASKED_US;
