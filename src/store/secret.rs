//! `idempotence.secret`: the key of the digests.
//!
//! CREATE EXTENSION seeds a key. A restore adds the key that the restored digests were made with. The key that is
//! marked as in use counts. A key is marked when the first session is made, and only requests of sessions have digests.
//! So at most one key is in use, unless data was restored into a database that had sessions of its own. And where there
//! are sessions a key is in use, unless the restore was not complete. In both exceptions every call is refused: with
//! the wrong key, requests that were done would look new. So they would where somebody has taken out one of two keys in
//! use, although the sessions of both are here. The outcomes tell that, and no call is answered while a restore that
//! brought them is in question.

use crate::domain::identity::Secret;
use crate::error::{Error, WAIT_BY_SETTING, or_raise};
use crate::guc;
use crate::lock::{LockClass, Tag};
use crate::pg;
use crate::store::cache::{self, Cache};
use crate::store::catalog::Table;
use crate::store::message;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::restore;
use crate::store::session;
use crate::store::sql;
use crate::store::tuple::{Tid, columns};
use crate::store::write;
use pgrx::datum::IntoDatum;

columns! { "secret", Columns, COLUMNS: IN_USE_SINCE, KEY }

/// A row of the table.
struct KeyRow<'rel> {
    at: Tid<'rel>,
    key: Secret,
    in_use: bool,
    committed: bool,
}

/// The key that counts, whether it is in use or not. Locks that are taken before there is a session are named by it
/// too.
pub fn key_for_locks() -> Secret {
    cache::with(|cache| cache.secret).unwrap_or_else(|| or_raise(row_that_counts(&read())).key)
}

/// The key of the digests. Raises an error where it is not certain that the digests were made with this key.
pub fn key() -> Secret {
    let look = || {
        let table = read();
        let row = or_raise(row_that_counts(&table));
        if !row.in_use {
            // A request has a session, and whoever made the session marked a key. That key is missing.
            not_restored().raise();
        }
        or_raise(check_restored());
        (row.key, row.committed)
    };
    cache::remembered(|cache| cache.secret, look, |cache, secret| cache.secret = Some(secret))
}

/// Raises the error that [`key`] would raise, except where there is no session yet; and, whether a restore is in question or
/// not, that of outcomes of another key.
pub fn check() -> Result<(), Error> {
    if !row_that_counts(&read())?.in_use && session::any() {
        return Err(not_restored());
    }
    restore::check_complete()?;
    check_alone()
}

/// Refuses to answer requests while a restore lacks tables, or has brought outcomes of another key.
fn check_restored() -> Result<(), Error> {
    restore::check_complete()?;
    if restore::is_in_question()? { check_alone() } else { Ok(()) }
}

/// Raises no error if the outcomes of the sessions that are here, as far as the first and the last ones tell, were
/// recorded with the key in use, and that is the only one. Outcomes without a session can be nobody's.
pub fn check_alone() -> Result<(), Error> {
    if !row_that_counts(&read())?.in_use {
        return Ok(());
    }
    let session = sql::first::<String>("SELECT o.session FROM idempotence.of_another_key o LIMIT 1")?;
    session.map_or(Ok(()), |session| Err(Error::OfAnotherKey { session }))
}

/// Marks the key as in use if it is not. Called in each transaction that makes a session or
/// registers a client.
pub fn put_in_use() -> Result<(), Error> {
    let look = || {
        let table = read();
        let row = or_raise(row_that_counts(&table));
        // As in key(), what is remembered is certain. Backends that only register and give signs of life never ask key().
        ((row.key, row.in_use), row.in_use && row.committed && check_restored().is_ok())
    };
    let key_in_use = |cache: &Cache| cache.secret.map(|key| (key, true));
    let (_, in_use) = cache::remembered(key_in_use, look, |cache, (key, _)| cache.secret = Some(key));
    if in_use {
        return Ok(());
    }
    let what = || "the making of the first session by another transaction".into();
    Tag::of_all(LockClass::Secret).acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)?;
    let table = Rel::open(Table::Secret, Access::Write);
    let row = row_that_counts(&table)?;
    if !row.in_use {
        if session::any() {
            return Err(not_restored());
        }
        write::update(&table, row.at, &[Some(pg::now_us().into()), row.key.as_slice().into_datum()]);
        message::all_changed(cache::oid(Table::Secret));
    }
    Ok(())
}

fn not_restored() -> Error {
    Error::Corrupted { message: "there are sessions, but table \"idempotence.secret\" has no key in use".into() }
}

fn read() -> Rel {
    Rel::open(Table::Secret, Access::Read)
}

/// The row of the key that counts: the one in use; if none is, the one with the smallest key.
fn row_that_counts<'rel>(table: &'rel Rel) -> Result<KeyRow<'rel>, Error> {
    let rows = table.all(None, &mut [], Snapshot::LatestMvcc, |row: &Columns<'rel>| {
        Some(KeyRow {
            at: row.at(),
            key: row.get::<Vec<u8>>(KEY)?.try_into().ok()?,
            in_use: row.datum(IN_USE_SINCE).is_some(),
            committed: !row.is_ours(),
        })
    });
    let (used, unused): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.in_use);
    // The same dump restored twice without triggers brings the same key twice.
    if used.windows(2).any(|pair| pair[0].key != pair[1].key) {
        let message = "table \"idempotence.secret\" has two keys in use".into();
        return Err(Error::Corrupted { message });
    }
    let counts = used.into_iter().chain(unused).min_by_key(|row| (!row.in_use, row.key));
    counts.ok_or_else(|| Error::Corrupted { message: "table \"idempotence.secret\" has no row".into() })
}
