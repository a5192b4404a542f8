//! Who has locked our tables against writers, or waits to, in words.

use crate::error::Error;
use pgrx::spi::Spi;

/// Which of our tables are locked, and by whom; `None`: none is any more. Asked as the caller: to find out who owns the tables
/// would take one of them.
pub fn by() -> Result<Option<String>, Error> {
    Spi::get_one("SELECT idempotence.locked_by()")
        .map_err(|error| Error::Corrupted { message: format!("could not look who has locked a table: {error}") })
}

/// The error of a call that has waited for such a table in vain.
pub fn error() -> Error {
    let by = by().ok().flatten();
    Error::TableLocked { by: by.unwrap_or_else(|| "a table of schema idempotence was locked".into()) }
}
