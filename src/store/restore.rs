//! `idempotence.restore`: notes that rows were restored, until it is known that their sessions were restored as well.
//!
//! A restore that fails half way may bring outcomes without their sessions. For example, a role is missing, and so the
//! COPY of `session` fails. A session made anew under the same name would have another id, and requests that were done
//! would be executed again. So a trigger leaves a row here when anybody fills one of the tables in question by SQL, in
//! the same transaction. The sweep then looks through the tables, a part in each transaction. If all rows have their
//! sessions, it deletes the notes. Otherwise it keeps them and writes into them how many rows it found. While there are
//! notes, whoever makes a session of a new name looks through the tables first.
//!
//! The COPY of another table may fail for the same reason. A dump has a COPY of every table, even of an empty one. So
//! if the secret was restored and another table was not, that table's COPY has failed or is still to come. Until it
//! comes, the restore is in question too.
//!
//! Tables may come in any order, in one transaction or in many, even at the same time. Each table that comes later
//! makes the look begin anew. So a later restore of `session` clears a finding by itself.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::pg::{self, Timestamptz};
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use crate::store::sweep;
use crate::store::tuple::columns;
use pgrx::datum::Uuid;

/// The tables that can have rows without a session.
pub const TABLES: [Table; 7] = [
    Table::Outcome0,
    Table::Outcome1,
    Table::Outcome2,
    Table::Reply,
    Table::Checkpoint,
    Table::Lease,
    Table::OutcomeLong,
];

/// The SQL condition that a row `t` still counts and that its session is missing. $2 and $3 are the [`moments`]. An
/// abandoned checkpoint or lease may outlive its session for a while, so it does not count.
pub fn orphan_condition(table: Table) -> String {
    let counts = match table {
        Table::Reply => "$2 IS NOT NULL AND $3 IS NOT NULL",
        Table::Checkpoint => "$2 IS NOT NULL AND t.written_at OPERATOR(pg_catalog.>) $3",
        Table::Lease => "$2 IS NOT NULL AND t.leased_until OPERATOR(pg_catalog.>) $3",
        _ => "t.expires_at OPERATOR(pg_catalog.>) $2 AND $3 IS NOT NULL",
    };
    format!(
        "{counts}
         AND NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session OFFSET 0)"
    )
}

/// This moment, and the moment before which a checkpoint or a lease without a session is abandoned: about a retention
/// before.
pub fn moments() -> [Timestamptz; 2] {
    let now_us = pg::now_us();
    let abandoned_us = now_us.saturating_sub(guc::retention_us()).saturating_add(KEEP_SLACK_US);
    [Timestamptz(now_us), Timestamptz(abandoned_us)]
}

/// Notes that this transaction fills a table by SQL: one of [`TABLES`], `session`, `secret`, `audit` or `granted`. The
/// sweep rests until the end of this transaction. Nothing is added if the table is noted already, and no look for orphans
/// has begun since.
pub fn note(table: &str) -> Result<(), Error> {
    sweep::rest()?;
    let statement = "INSERT INTO idempotence.restore (noted_at, brought) SELECT pg_catalog.clock_timestamp(), $1
        WHERE NOT EXISTS (SELECT FROM idempotence.restore r
                          WHERE r.looked_at IS NULL AND r.brought OPERATOR(pg_catalog.=) $1)";
    sql::execute(statement, &[table.into()]).map(drop)
}

/// Takes back the rows of `secret`, `audit` or `granted` that this transaction has brought although they were there. A
/// second COPY of the other tables fails by their unique keys. That of the secret has to fail too: if it passed, it would
/// be noted, and where the notes of the first restore are gone, the other tables would count as missing. A unique key
/// would tell the key of the digests in its error.
pub fn undouble(table: &str) -> Result<(), Error> {
    // Records are equal where each column is, or is NULL in both.
    let same =
        if table == Table::Secret.name() { "o.key OPERATOR(pg_catalog.=) t.key" } else { "o OPERATOR(pg_catalog.=) t" };
    let statement = format!(
        "DELETE FROM ONLY idempotence.{table} t WHERE EXISTS (
            SELECT FROM ONLY idempotence.{table} o WHERE {same} AND o.ctid OPERATOR(pg_catalog.<) t.ctid)"
    );
    let doubled = sql::execute(&statement, &[])? > 0;
    if doubled && table == Table::Secret.name() { Err(Error::SecretRestoredTwice) } else { Ok(()) }
}

columns! { "restore", Columns, COLUMNS: NOTED_AT, PLACE, BROUGHT, LOOKED_AT, ORPHANS }

/// The tables that have not come yet, if the secret was restored and any are missing.
pub fn missing() -> Result<Option<String>, Error> {
    if Rel::open(Table::Restore, Access::Read).is_empty() {
        return Ok(None);
    }
    sql::first("SELECT m.missing FROM idempotence.missing m")
}

/// Refuses what needs all tables while a restore lacks any.
pub fn check_complete() -> Result<(), Error> {
    missing()?.map_or(Ok(()), |missing| Err(Error::TablesNotRestored { missing }))
}

/// The error for a session that nothing is known of, if a restore has left out the sessions. It is in question then whether
/// there is such a session, and nobody must make it anew.
pub fn sessions_left_out() -> Option<Error> {
    match missing().transpose()? {
        Ok(missing) if missing.split(", ").all(|table| table != "idempotence.session") => None,
        Ok(missing) => Some(Error::TablesNotRestored { missing }),
        Err(error) => Some(error),
    }
}

/// Whether rows were restored whose sessions are not yet known to be there. If nothing was ever restored,
/// this costs a look at the table's size.
pub fn is_in_question() -> Result<bool, Error> {
    if Rel::open(Table::Restore, Access::Read).is_empty() {
        return Ok(false);
    }
    let query = "SELECT true FROM idempotence.restore r
        WHERE r.orphans IS NULL OR r.orphans OPERATOR(pg_catalog.<>) 0 LIMIT 1";
    Ok(sql::first::<bool>(query)?.is_some())
}

/// Refuses to make a session of a new name while there are rows that may belong to a former session of that name.
pub fn refuse_new_session(session: &str) -> Result<(), Error> {
    // A transaction that is restoring shares this lock, and what it has brought cannot be seen yet.
    let restore = Tag::restore();
    restore.acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, || "a restore by another transaction".into())?;
    restore.release();
    if !is_in_question()? {
        return Ok(());
    }
    check_complete()?;
    let [now, abandoned] = moments();
    for table in TABLES {
        let query =
            format!("SELECT t.session FROM idempotence.{} t WHERE {} LIMIT $1", table.name(), orphan_condition(table));
        let found = sql::column::<Uuid>(&query, &[1i64.into(), now.into(), abandoned.into()])?.pop();
        if let Some(id) = found {
            let (session, table) = (session.into(), table.name());
            let of = uuid::Uuid::from_bytes(*id.as_bytes()).to_string();
            return Err(Error::SessionsNotRestored { session, table, of });
        }
    }
    Ok(())
}

/// Ends the question by deleting all notes; gives whether there were any. The caller holds the sweep's lock.
pub fn accept() -> Result<bool, Error> {
    debug_assert!(Tag::sweep().is_held_by_us());
    Ok(sql::execute("DELETE FROM idempotence.restore", &[])? > 0)
}

#[cfg(test)]
mod tests {
    /// Each table that a dump has is known to be missing if it does not come, or its absence does no harm.
    #[test]
    fn what_a_dump_has_is_missed() {
        const HARMLESS: [&str; 3] = ["stream", "persistence", "secret"];
        let (_, view) = include_str!("../../sql/checks.sql").split_once("VIEW idempotence.missing").expect("the view");
        let (_, missed) = view.split_once("unnest('{").expect("its tables");
        let (missed, _) = missed.split_once('}').expect("their end");
        let missed: Vec<&str> = missed.split(',').chain(HARMLESS).collect();
        let script = include_str!("../../sql/tables.sql");
        let dumped = script.lines().filter_map(|line| {
            line.strip_prefix("SELECT pg_catalog.pg_extension_config_dump('idempotence.")?.split('\'').next()
        });
        let dumped: Vec<&str> = dumped.collect();
        assert_eq!(dumped.len(), missed.len());
        assert!(dumped.iter().all(|table| missed.contains(table)), "{dumped:?}");
    }
}
