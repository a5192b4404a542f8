//! `idempotence.secret`: the key of the digests.
//!
//! CREATE EXTENSION seeds a key, and a restore adds the one that the restored digests were made with.
//! Which one counts is told by use: a key is marked when the first session is made, and only requests
//! of sessions have digests. So there is at most one key in use, unless data was restored into a
//! database that had requests of its own, and where there are sessions there is one, unless data was
//! restored in part. Otherwise nothing is answered: with the wrong key, requests that were done would
//! look new.

use crate::domain::identity::{Digest, Lane, Secret, SessionId};
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::cache::{self, Table};
use crate::store::message;
use crate::store::orphans;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::session;
use crate::store::tuple::{Tid, Tuple};
use pgrx::datum::IntoDatum;

const IN_USE_SINCE: usize = 0;
const KEY: usize = 1;
type Columns<'a> = Tuple<'a, 2>;

/// A row.
struct Row<'rel> {
    at: Tid<'rel>,
    key: Secret,
    in_use: bool,
    committed: bool,
}

/// Digests a request's name with the database's secret.
pub fn digest(session: &SessionId, stream: &str, request: &str) -> Digest {
    Digest::of(&key(), session, stream, request)
}

/// Digests the name of what is locked for a numbered request.
pub fn digest_of_lane(session: &SessionId, stream: &str, lane: Lane) -> Digest {
    Digest::of_lane(&key(), session, stream, lane)
}

/// Digests the name of anything else that is locked; also where there is no session yet, and no key in use.
pub fn digest_of_parts(parts: &[&[u8]]) -> Digest {
    let key = cache::with(|cache| cache.secret).unwrap_or_else(|| one_that_counts(&read()).key);
    Digest::of_parts(&key, parts)
}

fn key() -> Secret {
    let look = || {
        let table = read();
        let row = one_that_counts(&table);
        if !row.in_use {
            // A request has a session, and whoever made that put a key to use: this is not the one.
            not_restored().raise();
        }
        if let Some(missing) = orphans::missing() {
            Error::TablesNotRestored { missing }.raise();
        }
        (row.key, row.committed)
    };
    cache::remembered(|cache| cache.secret, look, |cache, secret| cache.secret = Some(secret))
}

/// Marks the key as in use, in the transaction that makes a session.
pub fn put_in_use() -> Result<(), Error> {
    if cache::with(|cache| cache.secret.is_some()) || one_that_counts(&read()).in_use {
        return Ok(());
    }
    if !Tag::secret().acquire(guc::wait_us()) {
        let what = "the making of the first session by another transaction".into();
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    let table = Rel::open(Table::Secret, Access::Write);
    let row = one_that_counts(&table);
    if !row.in_use {
        if session::any() {
            return Err(not_restored());
        }
        table.update(row.at, &[Some(pg::now_us().into()), row.key.as_slice().into_datum()]);
        message::all_changed();
    }
    Ok(())
}

fn not_restored() -> Error {
    Error::Corrupted { message: "there are sessions, but table \"idempotence.secret\" has no key in use".into() }
}

fn read() -> Rel {
    Rel::open(Table::Secret, Access::Read)
}

fn one_that_counts(table: &Rel) -> Row<'_> {
    let (used, unused): (Vec<Row<'_>>, Vec<Row<'_>>) = rows(table).into_iter().partition(|row| row.in_use);
    // The same dump restored twice brings the same key twice.
    if used.windows(2).any(|pair| pair[0].key != pair[1].key) {
        let message = "table \"idempotence.secret\" has two keys in use".into();
        Error::Corrupted { message }.raise();
    }
    match used.into_iter().chain(unused).min_by_key(|row| (!row.in_use, row.key)) {
        Some(row) => row,
        None => Error::Corrupted { message: "table \"idempotence.secret\" has no row".into() }.raise(),
    }
}

fn rows<'rel>(table: &'rel Rel) -> Vec<Row<'rel>> {
    let mut rows = Vec::new();
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| -> Option<()> {
        rows.push(Row {
            at: row.at(),
            key: row.bytes(KEY)?.try_into().ok()?,
            in_use: row.int8(IN_USE_SINCE).is_some(),
            committed: !row.is_ours(),
        });
        None
    });
    rows
}
