//! The functions behind the checks of the view `health` and behind `idem_ready`. Only the extension's owner may execute
//! them: the checks run with the owner's rights.

use crate::board;
use crate::domain::identity::Digest;
use crate::error::{self, or_raise};
use crate::guc;
use crate::names;
use crate::pg::{self, Rows, Timestamptz};
use crate::store::catalog::Table;
use crate::store::{cache, ready};
use crate::transaction;
use pgrx::datum::Uuid;
use pgrx::pg_sys;
use pgrx::prelude::*;

/// The value of a setting in its base unit; NULL if there is no such setting. Where the library was not loaded yet, this
/// loads it, so that its settings are known.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn setting(name: Option<&str>) -> Option<String> {
    name.and_then(pg::setting)
}

/// What a text means as the value of a setting of time, in milliseconds; NULL if it means nothing.
#[pg_extern(schema = "idempotence", immutable, parallel_safe)]
fn milliseconds(value: Option<&str>) -> Option<i32> {
    value.and_then(pg::milliseconds)
}

/// A text that names what users have named, such that it fools no reader.
#[pg_extern(schema = "idempotence", immutable, parallel_safe)]
fn legible(words: Option<&str>) -> Option<String> {
    words.map(error::legible)
}

/// The tables that requests need, with the number of columns that the extension has made them with.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.table_columns(OUT name text, OUT columns integer) RETURNS SETOF record
LANGUAGE c IMMUTABLE PARALLEL SAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn table_columns() -> Rows {
    let rows = ready::NEEDED.iter();
    Rows(rows.map(|(table, columns)| vec![table.name().into_datum(), (*columns as i32).into_datum()]).collect())
}

/// How often the launcher was started anew: since the server came up, or lately, which is within the last hour. NULL when
/// the library is not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn restarts(lately: Option<bool>) -> Option<i64> {
    let (ever, within_the_hour) = board::restarts()?;
    i64::try_from(if lately? { within_the_hour as u64 } else { ever }).ok()
}

/// How many waits for locks of ours have ended in a deadlock within the last hour in this database; NULL when the library
/// is not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn deadlocks() -> Option<i64> {
    board::deadlocks().and_then(|count| i64::try_from(count).ok())
}

/// When somebody has set the clock last; NULL if that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn clock_jump() -> Option<Timestamptz> {
    board::jump().map(|(at_us, _)| Timestamptz(at_us))
}

/// By how much somebody has set the clock forward; less than nothing: back.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn clock_jump_by() -> Option<Interval> {
    board::jump().map(|(_, by_us)| pg::interval(by_us))
}

/// The number of locks that the server's lock table is made for.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn lock_table_size() -> Option<i64> {
    i64::try_from(pg::lock_table_size()).ok()
}

/// The bytes that are free where outcomes are recorded: the least of their tables' tablespaces. NULL if the system does not
/// tell.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn free_space() -> Option<i64> {
    let tables = [Table::Outcome0, Table::Outcome1, Table::Outcome2, Table::OutcomeLong];
    tables.into_iter().filter_map(|table| pg::free_bytes(cache::oid(table))).min()
}

/// The databases that the worker has swept, or could not sweep, since the server came up; none where the library is not
/// preloaded.
#[pg_extern(sql = r#"
CREATE FUNCTION idempotence.visits(OUT database oid, OUT swept_at timestamptz, OUT failed_at timestamptz, OUT error text) RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
"#)]
fn visits() -> Rows {
    let rows = board::visits().into_iter().map(|(database, visited)| {
        let (failed_at, error) = visited.failed.unzip();
        let [swept_at, failed_at] = [visited.swept_at, failed_at].map(|at| at.map(Timestamptz).into_datum());
        vec![pg_sys::Oid::from(database).into_datum(), swept_at, failed_at, error.into_datum()]
    });
    Rows(rows.collect())
}

/// The names in the setting `idempotence.databases`; NULL: all databases are visited.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn databases() -> Option<Vec<String>> {
    guc::databases()
}

/// The library of a commit coordinator that can be asked for a two-phase commit; NULL if none is loaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn coordinator() -> Option<String> {
    transaction::coordinator()
}

/// Whether an outcome's digest is the one that the key that counts makes of its session and its key.
#[pg_extern(schema = "idempotence", stable, parallel_unsafe)]
fn digest_fits(digest: Option<Uuid>, session: Option<Uuid>, key: Option<&str>) -> Option<bool> {
    Some(names::fits(&Digest(*digest?.as_bytes()), session?.as_bytes(), key?))
}

/// Raises the error that every request would meet.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn look_whether_ready() {
    or_raise(ready::look());
}
