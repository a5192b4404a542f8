//! The errors of a call, and which of them a new attempt may solve.

use serde_json::Value;
use std::error::Error as StdError;
use std::fmt;
use std::time::{Duration, SystemTime};

/// An error of a driver, or of the application.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a call returned no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another process holds the claim on the request, and the deadline has passed. Send the request again later, with
    /// the same key and payload.
    InProgress {
        /// The request's key.
        key: String,
        /// When the lease of its holder expires, if the claim is a lease.
        expires_at: Option<SystemTime>,
    },
    /// An earlier attempt stopped in the middle, and its effect may have happened. Take the request over with a lease,
    /// and check first whether it did.
    Interrupted {
        /// The request's key.
        key: String,
        /// The last checkpoint.
        point: Option<String>,
        /// The state that was saved at the checkpoint.
        state: Value,
    },
    /// ID005: the lease is lost, and another process may be at work.
    Superseded {
        /// The request's key.
        key: String,
    },
    /// The work with a lease returned without a record and without a release. The lease expires.
    Unrecorded {
        /// The request's key.
        key: String,
    },
    /// The handler exceeded its time limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The pool had no connection in time.
    NoConnection,
    /// The server reported an error for a statement of the request's transaction, or its connection was lost.
    Database {
        /// What the driver knows of its error.
        cause: Cause,
        /// The driver's error.
        source: BoxError,
    },
    /// The work returned this error, and the request's transaction did not cause it. The work is not called again.
    Work {
        /// What the driver knows of the error, if it is one of its own, of another connection.
        cause: Option<Cause>,
        /// The error.
        source: BoxError,
    },
    /// The call cannot be made as it is.
    Other(BoxError),
}

/// What a driver knows of one of its errors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// The server reported an error.
    Reported {
        /// Its SQLSTATE.
        sqlstate: String,
        /// Its primary message.
        message: String,
        /// Its DETAIL.
        detail: Option<String>,
        /// Its HINT.
        hint: Option<String>,
    },
    /// The connection was lost, or could not be opened.
    Lost,
}

impl Cause {
    fn sqlstate(&self) -> Option<&str> {
        match self {
            Cause::Reported { sqlstate, .. } => Some(sqlstate),
            Cause::Lost => None,
        }
    }

    /// Whether the table "What to retry" of the reference lists it. 57014 is not retried: what was cancelled may take
    /// as long again.
    fn is_retryable(&self) -> bool {
        const STATES: [&str; 8] = ["25P03", "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57P05"];
        self.sqlstate()
            .is_none_or(|state| state.starts_with("08") || state.starts_with("53") || STATES.contains(&state))
    }
}

impl Error {
    /// The SQLSTATE, if a server reported one.
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Error::Superseded { .. } => Some("ID005".into()),
            Error::Database { cause, .. } | Error::Work { cause: Some(cause), .. } => {
                cause.sqlstate().map(String::from)
            }
            Error::Work { source, .. } => source.downcast_ref::<Error>().and_then(Error::sqlstate),
            _ => None,
        }
    }

    /// The error of the work or of the driver, if it is of this type.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Error::Database { source, .. } | Error::Work { source, .. } | Error::Other(source) => source.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the same request may be sent again. Never true for an error that the request's own connection did not
    /// raise.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::InProgress { .. } | Error::NoConnection => true,
            Error::Database { cause, .. } => cause.is_retryable(),
            _ => false,
        }
    }

    pub(crate) fn has(&self, state: &str) -> bool {
        self.sqlstate().is_some_and(|found| found == state)
    }

    /// Whether the connection that raised it is lost.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Error::Database { cause: Cause::Lost, .. })
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        error.downcast().map_or_else(Error::Other, |ours| *ours)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InProgress { key, .. } => write!(f, "the request {key} is still in progress"),
            Error::Interrupted { key, point, .. } => {
                let point = point.as_deref().map_or("in the middle".into(), |point| format!("at {point:?}"));
                write!(f, "the request {key} stopped {point}: take it over with a lease, and check what happened")
            }
            Error::Superseded { key } => {
                write!(f, "the lease of the request {key} is lost: another process may be at work, so stop")
            }
            Error::Unrecorded { key } => {
                write!(f, "the work on the request {key} ended without record or release: its lease expires")
            }
            Error::TimedOut { limit } => write!(f, "the handler did not return within {limit:?}"),
            Error::NoConnection => f.write_str("the pool had no connection in time"),
            Error::Database { cause: Cause::Reported { message, detail, hint, .. }, .. } => {
                f.write_str(message)?;
                [detail, hint]
                    .into_iter()
                    .flatten()
                    .try_for_each(|sentence| write!(f, ". {}", sentence.trim_end_matches('.')))
            }
            Error::Database { source, .. } | Error::Work { source, .. } | Error::Other(source) => source.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Database { source, .. } | Error::Work { source, .. } | Error::Other(source) => Some(&**source),
            _ => None,
        }
    }
}

/// Returned by the work as its error: the request has failed permanently. The response is recorded together with
/// everything that the work has written, and is the answer to each retry.
#[derive(Debug)]
pub struct Final(pub Value);

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request has failed permanently: {}", self.0)
    }
}

impl StdError for Final {}
