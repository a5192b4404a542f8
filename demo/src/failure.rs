//! Why an attempt fails, and what to do then: part of the retry loop to copy.

use std::error::Error as _;
use std::{fmt, io};

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// Why an attempt brought no answer.
#[derive(Debug)]
pub enum Failure {
    /// The server reported an error, or the connection broke.
    Database(Error),
    /// Another attempt of the same request was still under way when the wait for it ran out.
    InProgress,
    /// The attempt took too long.
    TimedOut,
    /// The application failed half way and rolled back.
    RolledBack,
    /// A status that a request of this kind never has.
    Unexpected(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl Failure {
    /// The SQLSTATE, if the server reported an error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.code().map(SqlState::code),
            _ => None,
        }
    }

    /// What to do after an attempt that failed in this way.
    pub(crate) fn advice(&self) -> Advice {
        match self {
            Self::Database(error) => match error.code() {
                Some(code) => advice_for(code.code()),
                None if is_connection_error(error) => Advice::Reconnect,
                // For example, a value could not be converted: a bug, which a retry would only repeat.
                None => Advice::GiveUp,
            },
            Self::InProgress | Self::RolledBack => Advice::Retry,
            Self::TimedOut => Advice::Reconnect,
            Self::Unexpected(_) => Advice::GiveUp,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(error) => match error.as_db_error() {
                Some(error) => write!(f, "{}: {}", error.code().code(), error.message()),
                None => error.fmt(f),
            },
            failure => write!(f, "{failure:?}"),
        }
    }
}

/// Whether the connection broke. If a COMMIT was under way, nobody knows whether it arrived.
fn is_connection_error(error: &Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<io::Error>)
}

/// What to do after an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Retry on the same connection: the transaction was rolled back, and the connection is sound.
    Retry,
    /// Retry on a new connection: the old one is gone or in doubt.
    Reconnect,
    /// Do not retry: another attempt would fail in the same way.
    GiveUp,
}

/// What to do after an error that the server has reported.
fn advice_for(sqlstate: &str) -> Advice {
    match sqlstate {
        // serialization_failure, deadlock_detected: the next attempt may meet no conflict.
        // lock_not_available: the holder of the lock will release it. From idem_run this error also
        // means that another attempt of the request is in progress.
        // query_canceled: statement_timeout or an administrator interrupted the statement.
        "40001" | "40P01" | "55P03" | "57014" => Advice::Retry,
        // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout,
        // idle_in_transaction_session_timeout, too_many_connections, and class 08 (connection
        // exceptions): this connection is lost, or the server accepts no connection for a moment.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "53300" => Advice::Reconnect,
        _ if sqlstate.starts_with("08") => Advice::Reconnect,
        // All other errors are final. Among them are:
        // ID001 payload_mismatch: this key already names another request. A new key would hide the
        //       mistake and execute the request; find out instead how the key came to be used twice.
        // ID002, ID007, ID008: the transaction does not pair begin and record, which is a bug.
        // ID009 limit_exceeded, classes 22 and 42: the server does not accept what was sent.
        // ID010 key_too_old: the server can no longer tell whether the request was executed. Only a
        //       human can find out.
        // ID003, ID006 (of numbers): a client that sends number n only after it has the answer to
        //       number n - window never meets these.
        // ID004 session_ended, ID005 fenced: the code that registered the session decides what to do.
        _ => Advice::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_end_differently_is_retried_and_nothing_else() {
        for sqlstate in ["40001", "40P01", "55P03", "57014"] {
            assert_eq!(advice_for(sqlstate), Advice::Retry, "{sqlstate}");
        }
        for sqlstate in ["08006", "53300", "57P01", "57P02", "57P03"] {
            assert_eq!(advice_for(sqlstate), Advice::Reconnect, "{sqlstate}");
        }
        for sqlstate in
            ["ID001", "ID003", "ID004", "ID005", "ID006", "ID008", "ID010", "22004", "23505", "42501", "XX000"]
        {
            assert_eq!(advice_for(sqlstate), Advice::GiveUp, "{sqlstate}");
        }
    }
}
