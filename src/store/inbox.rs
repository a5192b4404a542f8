//! Outcomes of inboxes. Many are inserted at a time, without a lock for each key, since the lock table has room for
//! some thousands only. The unique indexes arbitrate: an insertion waits for another transaction that is inserting the
//! same key.
//!
//! Where nobody is at work on the same keys, they are inserted directly (`batch.rs`). Else the insertion is an SQL
//! statement, since `ON CONFLICT` is PostgreSQL's own arbitration, with its own rules for snapshots. It renews an expired
//! row in its place. No other update of an outcome's row exists.
//! A scan with `SnapshotSelf` can miss a row that is being renewed. So `idem_lookup` uses an MVCC snapshot in an inbox.
//! In `idem_once` such a miss does no harm, since the insertion then finds the key.

use crate::domain::identity::Digest;
use crate::error::{Error, RequestName};
use crate::model::StandingSession;
use crate::pg::{self, Sight, Statement, Statements, Timestamptz};
use crate::store::batch;
pub use crate::store::batch::Key;
use crate::store::blank;
use crate::store::catalog::Table;
use crate::store::outcome_columns::{CLASS, COLUMNS, Columns, EXPIRES_AT, RECORDED_AT, RECORDED_BY, SESSION};
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::segment;
use crate::store::snapshot::{RowState, row_state};
use crate::store::write::{self, as_ours};
use pgrx::PgSqlErrorCode;
use pgrx::datum::{IntoDatum, Uuid};
use pgrx::pg_sys::{self, TEXTARRAYOID, TEXTOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID, UUIDARRAYOID, UUIDOID};
use std::collections::HashSet;

static STATEMENTS: Statements<(Table, bool)> = Statements::new();

/// Inserts the keys; tells of each whether it had no outcome that lives. The keys must come in the order of their digests,
/// so that one of two overlapping batches waits for the other without a deadlock. `recorded_at` is noted with them.
/// `contended` says that somebody was seen at work on one of the keys, or a row that has expired.
pub fn insert(
    session: &StandingSession,
    keys: &[Key<'_>],
    recorded_at: i64,
    now_us: i64,
    contended: bool,
) -> Result<Vec<bool>, Error> {
    let last = keys.iter().map(|key| key.expires_at).max().unwrap_or(now_us);
    let table = segment::open_for_outcomes(last);
    let recorded_by = pg::current_role_name();
    debug_assert!(keys.is_sorted_by_key(|key| key.digest));
    let mut common = [None; COLUMNS];
    common[SESSION] = Some(pg::uuid(&session.id));
    common[RECORDED_AT] = Some(recorded_at.into());
    common[CLASS] = Some((b's' as i8).into());
    common[RECORDED_BY] = Some(pg::text(&recorded_by));
    let mut inserted = if !contended && batch::insert(&table, keys, &common) {
        vec![true; keys.len()]
    } else {
        insert_by_sql(session, &table, keys, [recorded_at, now_us], &recorded_by)?
    };
    blank::written(table.table);

    // Two transactions may insert the same key into different tables: when the ring turns between them, or where one of
    // the two expires before a segment's end and the other after it. Each inserts before it looks here, so at least one
    // sees the other.
    for other in segment::all().filter(|other| *other != table.table) {
        let other = Rel::open(other, Access::Read);
        if other.is_empty() {
            continue;
        }
        let mut there = Vec::new();
        let ours = keys.iter().enumerate().filter(|(place, _)| inserted[*place]);
        other.find_each(ours.map(|(place, key)| (&key.digest, place)), |place, _: &Columns<'_>| {
            there.push(*place);
            true
        });
        for key in there {
            if stands_in(&other, session, &keys[key], now_us)? {
                take_back(&table, &keys[key]);
                inserted[key] = false;
            }
        }
    }
    Ok(inserted)
}

/// As [`insert`], by a statement.
fn insert_by_sql(
    session: &StandingSession,
    table: &Rel,
    keys: &[Key<'_>],
    [recorded_at, now_us]: [i64; 2],
    recorded_by: &str,
) -> Result<Vec<bool>, Error> {
    let as_made = write::way(table).direct;
    let parameters = [
        (UUIDARRAYOID, keys.iter().map(|key| Uuid::from_bytes(key.digest.0)).collect::<Vec<_>>().into_datum()),
        (TEXTARRAYOID, keys.iter().map(|key| key.key).collect::<Vec<_>>().into_datum()),
        (TIMESTAMPTZARRAYOID, keys.iter().map(|key| Timestamptz(key.expires_at)).collect::<Vec<_>>().into_datum()),
        (UUIDOID, Some(pg::uuid(&session.id))),
        (TIMESTAMPTZOID, Some(now_us.into())),
        (TEXTOID, recorded_by.into_datum()),
        (TIMESTAMPTZOID, Some(recorded_at.into())),
    ];
    let (types, values): (Vec<_>, Vec<_>) = parameters.into_iter().unzip();
    let statement = STATEMENTS.get((table.table, as_made), || (statement(table.table, as_made), types));
    let mut digests = HashSet::new();
    let run = || as_ours(|| statement.execute(&values, Sight::OfTransaction, |row| digests.extend(row.uuid(0))));
    let insert = || pg::as_role(table.owner(), run);
    // A unique violation may come from an index that REINDEX CONCURRENTLY is building beside ours. That index is already
    // unique, but `ON CONFLICT` does not use it yet. So a key that another transaction inserts at the same moment violates
    // it. A retry finds the key.
    pg::replacing_error(PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION, insert, |error| {
        let beside = error.message().contains(&format!("{}_pkey_cc", table.table.name()));
        beside.then(|| Error::SeenAtOnce { session: session.name.clone() })
    });
    let inserted: Vec<bool> = keys.iter().map(|key| digests.contains(&key.digest.0)).collect();
    // A trigger may have suppressed a row or changed it. Then the key was neither seen before nor is it noted now.
    if !as_made {
        for (key, _) in keys.iter().zip(&inserted).filter(|(_, inserted)| !**inserted) {
            if !stands_anywhere(session, key, now_us)? {
                return Err(Error::NotWritten { relation: format!("idempotence.{}", table.table.name()) });
            }
        }
    }
    Ok(inserted)
}

/// As [`stands_in`], for all tables of outcomes.
fn stands_anywhere(session: &StandingSession, key: &Key<'_>, now_us: i64) -> Result<bool, Error> {
    let mut stands = segment::all().map(|table| stands_in(&Rel::open(table, Access::Read), session, key, now_us));
    stands.find(|stands| !matches!(stands, Ok(false))).unwrap_or(Ok(false))
}

/// Deletes a key's outcome from every table that has one; gives whether there was one that lived. This is done by SQL:
/// if another transaction is renewing the row, DELETE waits for it and looks at the row again.
pub fn delete(digest: &Digest, now_us: i64) -> bool {
    let mut lived = false;
    for table in segment::all() {
        let (name, table) = (table.name(), Rel::open(table, Access::Write));
        let statement = format!(
            "DELETE FROM idempotence.{name} WHERE digest OPERATOR(pg_catalog.=) $1
             RETURNING expires_at OPERATOR(pg_catalog.>) $2"
        );
        let values = [Some(pg::uuid(&digest.0)), Some(now_us.into())];
        pg::as_role(table.owner(), || {
            let statement = Statement::prepare(&statement, &[UUIDOID, TIMESTAMPTZOID]);
            statement.execute(&values, Sight::OfTransaction, |row| lived |= row.get(0) == Some(true))
        });
    }
    lived
}

/// `as_made`: nobody has added anything to the table.
fn statement(table: Table, as_made: bool) -> String {
    let table = table.name();
    // All unique indexes on the column arbitrate, since one that is being rebuilt may stand beside ours. But somebody may have
    // added a deferrable constraint, which cannot arbitrate.
    let target = if as_made { "(digest)".into() } else { format!("ON CONSTRAINT {table}_pkey") };
    format!(
        "INSERT INTO idempotence.{table} AS o
                (digest, session, recorded_at, expires_at, recorded_by, class, key)
         SELECT k.digest, $4, $7, k.expires_at, $6, 's', k.key
         FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3)) AS k (digest, key, expires_at)
         ON CONFLICT {target} DO UPDATE
            SET recorded_at = EXCLUDED.recorded_at, expires_at = EXCLUDED.expires_at, recorded_by = EXCLUDED.recorded_by
            WHERE o.expires_at OPERATOR(pg_catalog.<=) $5
         RETURNING digest"
    )
}

/// Whether the key has an outcome in this table that lives. Waits for transactions that are at work on such a row.
fn stands_in(table: &Rel, session: &StandingSession, key: &Key<'_>, now_us: i64) -> Result<bool, Error> {
    loop {
        // The scan has ended before the wait.
        let state = table.find_digest(&key.digest, Snapshot::WithInserted, |_: &Columns<'_>| Some(row_state()));
        match state {
            None => return Ok(false),
            Some(RowState::BeingInserted(by) | RowState::Committed { changing: Some(by) }) => {
                pg::wait_for_transaction(by)
            }
            Some(RowState::Committed { changing: None }) => break,
        }
    }
    let lives = |row: &Columns<'_>| (row.get::<i64>(EXPIRES_AT)? > now_us).then(|| row.visible());
    match table.find_digest(&key.digest, Snapshot::LatestMvcc, lives) {
        Some(true) => Ok(true),
        Some(false) => Err(Error::Unserializable(RequestName::new(&session.name, key.key))),
        None => Ok(false),
    }
}

/// The transaction that is inserting the key's row, or is changing it, and has not ended.
pub fn at_work(digest: &Digest) -> Option<pg_sys::TransactionId> {
    segment::all().find_map(|table| {
        let table = Rel::open(table, Access::Read);
        table.find_digest(digest, Snapshot::WithInserted, |_: &Columns<'_>| match row_state() {
            RowState::BeingInserted(by) => Some(by),
            RowState::Committed { changing } => changing,
        })
    })
}

/// Deletes the row for the key that this transaction has inserted.
fn take_back<'rel>(table: &'rel Rel, key: &Key<'_>) {
    let ours = |row: &Columns<'rel>| row.is_ours().then(|| row.at());
    if let Some(at) = table.find_digest(&key.digest, Snapshot::Itself, ours) {
        write::delete(table, at);
    }
}
