//! How much a test does. The suite takes the short form of a test. `IDEM_LONG=1` asks for the long form, which
//! takes minutes.

/// The number of requests: `short` in the suite, `long` if the long form is asked for.
pub fn requests(short: usize, long: usize) -> usize {
    if std::env::var_os("IDEM_LONG").is_some() { long } else { short }
}
