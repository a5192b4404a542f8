//! How much a test does. The suite takes the short form of a test. `IDEM_LONG=1` asks for the long form, which
//! takes minutes.

use std::time::Duration;

/// The number of requests: `short` in the suite, `long` if the long form is asked for.
pub fn requests(short: usize, long: usize) -> usize {
    if std::env::var_os("IDEM_LONG").is_some() { long } else { short }
}

/// For how long a test goes on: `short` in the suite; as many minutes as `IDEM_MINUTES` says, or 30, if the long form is
/// asked for.
pub fn minutes(short: Duration) -> Duration {
    if std::env::var_os("IDEM_LONG").is_none() {
        return short;
    }
    let minutes = std::env::var("IDEM_MINUTES").ok().and_then(|minutes| minutes.parse().ok()).unwrap_or(30);
    Duration::from_secs(60 * minutes)
}
