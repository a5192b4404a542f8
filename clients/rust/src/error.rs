//! What a call may end with, and which errors another attempt may mend.

use serde_json::Value;
use std::error::Error as StdError;
use std::time::SystemTime;
use std::{fmt, iter};

/// An error of a driver, or of the application.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else is at work on the request, and the time is over. Ask again later, with the same key and payload.
    InProgress {
        /// The request's key.
        key: String,
        /// When the lease of whoever is at work runs out, if it is a lease.
        expires_at: Option<SystemTime>,
    },
    /// Somebody has left the request in the middle: an effect may have happened, so it is not simply executed. Take it
    /// over with a lease, and look first.
    Interrupted {
        /// The request's key.
        key: String,
        /// The last checkpoint.
        point: Option<String>,
        /// What was saved there.
        state: Value,
    },
    /// ID005: the lease is lost, and somebody else may be at work.
    Superseded {
        /// The request's key.
        key: String,
    },
    /// No connection was to be had in time.
    NoConnection,
    /// An error of the database, or one that the work has returned.
    Other(BoxError),
}

impl Error {
    /// The SQLSTATE, if the database has told one.
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Error::Superseded { .. } => Some("ID005".into()),
            Error::Other(error) => match cause(&**error) {
                Some(Cause::State(state)) => Some(state),
                _ => None,
            },
            _ => None,
        }
    }

    /// The work's own error, if it is one of this type.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Error::Other(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the same request may be sent again: the table "What to retry" of the reference. 57014 is not in it: what
    /// was cancelled may take as long again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::InProgress { .. } | Error::NoConnection => true,
            Error::Other(error) => cause(&**error).is_some_and(|cause| match cause {
                Cause::Lost => true,
                Cause::State(state) => {
                    state.starts_with("08")
                        || state.starts_with("53")
                        || ["25P03", "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57P05"].contains(&&*state)
                }
            }),
            _ => false,
        }
    }

    pub(crate) fn has(&self, state: &str) -> bool {
        self.sqlstate().is_some_and(|found| found == state)
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
                write!(f, "the request {key} stopped {point}: take it over with a lease, and look what happened")
            }
            Error::Superseded { key } => {
                write!(f, "the lease of the request {key} is lost: somebody else may be at work, so stop")
            }
            Error::NoConnection => f.write_str("no connection to the database was to be had in time"),
            Error::Other(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Other(error) => Some(&**error),
            _ => None,
        }
    }
}

/// Returned by the work as its error: the request has failed for good. This response is recorded, with all that the work
/// has written, and is the answer to each retry.
#[derive(Debug)]
pub struct Final(pub Value);

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the request has failed for good: {}", self.0)
    }
}

impl StdError for Final {}

/// What a driver says of an error of its own.
pub(crate) enum Cause {
    State(String),
    /// The connection is gone, or none was to be had.
    Lost,
}

fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
    let drivers: &[fn(&(dyn StdError + 'static)) -> Option<Cause>] = &[
        #[cfg(feature = "tokio-postgres")]
        crate::tokio_postgres::cause,
        #[cfg(feature = "sqlx")]
        crate::sqlx::cause,
    ];
    iter::successors(Some(error), |error| (**error).source())
        .find_map(|error| drivers.iter().find_map(|cause| cause(error)))
}
