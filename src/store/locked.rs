//! Who has locked our tables against writers, or waits to, in words.

use crate::error::Error;
use crate::pg;
use pgrx::spi::Spi;

/// Which of our tables are locked, and by whom; `None`: none is any more. Asked as the caller: to find out who owns the tables
/// would take one of them.
pub fn by() -> Result<Option<String>, Error> {
    Spi::get_one("SELECT idempotence.locked_by()")
        .map_err(|error| Error::Corrupted { message: format!("could not look who has locked a table: {error}") })
}

/// How long to wait for a table of ours that somebody has locked.
pub const AT_MOST_US: i64 = 1_000_000;

/// The error of a call that has waited for such a table in vain. DROP EXTENSION locks what is looked at here, too.
pub fn error() -> Error {
    let by = pg::bounded(Some(AT_MOST_US), by).and_then(Result::ok).flatten();
    Error::TableLocked { by: by.unwrap_or_else(|| "a table of schema idempotence was locked".into()) }
}
