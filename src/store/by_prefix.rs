//! Finds the requests of a standing session whose keys begin with a prefix, in all tables that keep something of them.
//!
//! The query is an ordinary one on session and key, so that it uses an index on these two columns where a DBA has added
//! one. Without it the query reads the tables from their beginning.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::pg;
use crate::store::segment;
use crate::store::sql;
use pgrx::datum::Uuid;
use pgrx::spi::{self, Spi};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;

/// What is to be found of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// An outcome, a checkpoint or a lease.
    Anything,
    /// A response or a state.
    Contents,
    /// A lease that has not run out, or one that ran out.
    Lease {
        /// Which of the two.
        live: bool,
    },
}

/// How many keys are read at a time.
const PAGE: i64 = 1000;

/// Shows `visit` the keys, until it breaks off. A key may come twice. What is found was there when the search began.
pub fn visit(
    session: &SessionId,
    prefix: &str,
    wanted: Wanted,
    mut visit: impl FnMut(&str) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    let name = open(session, prefix, wanted).map_err(failed)?;
    loop {
        let keys = next(&name).map_err(failed)?;
        for key in &keys {
            if visit(key)?.is_break() {
                return close(&name).map_err(failed);
            }
        }
        if keys.is_empty() {
            return close(&name).map_err(failed);
        }
    }
}

fn failed(error: spi::Error) -> Error {
    Error::Corrupted { message: format!("could not find requests by a prefix: {error}") }
}

/// Opens a cursor; gives its name.
fn open(session: &SessionId, prefix: &str, wanted: Wanted) -> Result<String, spi::Error> {
    let arguments = &[Uuid::from_bytes(*session).into(), prefix.into()];
    // The role is looked at when the cursor is opened.
    pg::as_role(sql::owner(), || {
        Spi::connect_mut(|client| Ok(client.try_open_cursor_mut(query(wanted).as_str(), arguments)?.detach_into_name()))
    })
}

fn next(name: &str) -> Result<Vec<String>, spi::Error> {
    Spi::connect(|client| {
        // An error of the query may come while the server holds a lock on a page, under which nothing can be closed. The
        // abort closes the cursor.
        let mut cursor = ManuallyDrop::new(client.find_cursor(name)?);
        cursor.fetch(PAGE)?.map(|row| row.get::<String>(1)).filter_map(Result::transpose).collect()
    })
}

fn close(name: &str) -> Result<(), spi::Error> {
    Spi::connect(|client| client.find_cursor(name).map(drop))
}

/// The plan is made for the arguments. So the planner makes a range of keys of the prefix, which an index finds.
fn query(wanted: Wanted) -> String {
    let part = |table: &str, key: &str, condition: &str| {
        format!(
            "SELECT t.{key} FROM {table} t
             WHERE t.session OPERATOR(pg_catalog.=) $1 AND t.{key} OPERATOR(pg_catalog.^@) $2{condition}"
        )
    };
    let (of_outcomes, of_checkpoints, of_leases) = match wanted {
        Wanted::Anything => (Some(""), Some(""), Some("")),
        Wanted::Contents => (Some(" AND t.response IS NOT NULL"), Some(" AND t.state IS NOT NULL"), None),
        Wanted::Lease { live: true } => {
            (None, None, Some(" AND t.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"))
        }
        Wanted::Lease { live: false } => {
            (None, None, Some(" AND t.leased_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"))
        }
    };
    let parts = [
        of_outcomes.map(|condition| segment::each_outcome(|table| part(table, "key", condition))),
        of_checkpoints.map(|condition| part("idempotence.checkpoint", "request", condition)),
        of_leases.map(|condition| part("idempotence.lease", "request", condition)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" UNION ALL ")
}
