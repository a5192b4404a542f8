//! `idempotence.restore`: that rows were restored, until it is known that their sessions were as well.
//!
//! A restore that failed half way may bring outcomes without their sessions: a role is missing, say, and so
//! the COPY of `session` fails. A session made anew under the same name would have another id, and what was
//! done would be executed again. So whoever fills `session`, or a table of outcomes, by SQL leaves a row here
//! with its transaction. The sweep then looks through these tables, a part in each transaction: if all have
//! their sessions the rows go, else they stay, and say so. A session that is new is not made meanwhile
//! without looking.
//!
//! The COPY of a table of outcomes may fail for the same reason. pg_dump has a COPY of every table, also of an
//! empty one. So where the key of the digests was restored, and another table was not, its COPY has failed or
//! is still to come; that is in question, too, until it has come.
//!
//! Tables may come in any order, in one transaction or in many, also side by side. Each that comes later has
//! the look begin anew; so a restore of `session` that makes up for it clears the finding by itself.

use crate::domain::limits::KEEP_SLACK_US;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::pg;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel, Snapshot};
use crate::store::sql;
use crate::store::tuple::{Tuple, columns};
use pgrx::datum::{TimestampWithTimeZone, Uuid};

/// Where there can be rows without a session.
/// A row that moves meanwhile moves to the last of them.
pub const TABLES: [Table; 6] =
    [Table::Outcome0, Table::Outcome1, Table::Outcome2, Table::Reply, Table::Checkpoint, Table::OutcomeLong];

/// Of a row `t` whose session is not there and that still counts; $2 is this moment, and $3 a retention
/// before. An abandoned checkpoint may outlive its session for a while.
pub fn condition(table: Table) -> &'static str {
    match table {
        Table::Reply => {
            "$2 IS NOT NULL AND $3 IS NOT NULL AND NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session OFFSET 0)"
        }
        Table::Checkpoint => {
            "$2 IS NOT NULL AND t.written_at OPERATOR(pg_catalog.>) $3
            AND NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session OFFSET 0)"
        }
        _ => {
            "t.expires_at OPERATOR(pg_catalog.>) $2 AND $3 IS NOT NULL
            AND NOT EXISTS (SELECT FROM idempotence.session s WHERE s.id OPERATOR(pg_catalog.=) t.session OFFSET 0)"
        }
    }
}

/// This moment, and a retention before it.
pub fn moments() -> [Option<TimestampWithTimeZone>; 2] {
    let now_us = pg::now_us();
    let abandoned_us = now_us.saturating_sub(guc::retention_us()).saturating_add(KEEP_SLACK_US);
    [sql::moment(now_us), sql::moment(abandoned_us)]
}

/// Notes that somebody fills one of these tables, `session` or `secret` by SQL. The sweep rests until the end
/// of that transaction. A row that nobody has looked at yet says it already.
pub fn note(table: &str) -> Result<(), Error> {
    Tag::sweep().share(None);
    let statement = "INSERT INTO idempotence.restore (noted_at, brought) SELECT pg_catalog.clock_timestamp(), $1
        WHERE NOT EXISTS (SELECT FROM idempotence.restore r
                          WHERE r.looked_at IS NULL AND r.brought OPERATOR(pg_catalog.=) $1)";
    sql::execute(statement, &[table.into()]).map(drop)
}

/// What pg_dump has a COPY of wherever it has one of the secret; the view `missing` says the same.
const DUMPED: [Table; 6] =
    [Table::Session, Table::Outcome0, Table::Outcome1, Table::Outcome2, Table::Reply, Table::Checkpoint];

columns! { "restore", COLUMNS: NOTED_AT, LOOKED_AT, PLACE, ORPHANS, BROUGHT }

/// The names of the tables that were restored.
fn brought() -> Vec<String> {
    let table = Rel::open(Table::Restore, Access::Read);
    let mut brought = Vec::new();
    if table.is_empty() {
        return brought;
    }
    table.find(None, &mut [], Snapshot::LatestMvcc, |row: &Tuple<'_, COLUMNS>| -> Option<()> {
        brought.push(row.text(BROUGHT)?);
        None
    });
    brought
}

/// Whether a table was restored.
pub fn has_come(table: Table) -> bool {
    brought().iter().any(|brought| brought == table.name())
}

/// The tables that a restore of the secret has left out so far, if it has.
pub fn missing() -> Option<String> {
    let brought = brought();
    let has = |table: Table| brought.iter().any(|brought| brought == table.name());
    let missing: Vec<String> =
        DUMPED.into_iter().filter(|table| !has(*table)).map(|table| format!("idempotence.{}", table.name())).collect();
    (has(Table::Secret) && !missing.is_empty()).then(|| missing.join(", "))
}

/// Whether something was restored of which it is not known that its sessions are there. Where nothing ever
/// was this costs a look at the table's size.
pub fn is_in_question() -> Result<bool, Error> {
    if Rel::open(Table::Restore, Access::Read).is_empty() {
        return Ok(false);
    }
    Ok(sql::first::<bool>("SELECT true FROM idempotence.restore WHERE orphans IS DISTINCT FROM 0 LIMIT 1")?.is_some())
}

/// Refuses a session that would be new while there are rows that may be of its former self.
pub fn check(session: &str) -> Result<(), Error> {
    // A restore that is at work shares this lock, and what it has brought cannot be seen yet.
    let sweep = Tag::sweep();
    if !sweep.acquire(guc::wait_us()) {
        let what = "a restore by another transaction, or a step of the sweep,".into();
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    sweep.release();
    if !is_in_question()? {
        return Ok(());
    }
    if let Some(missing) = missing() {
        return Err(Error::TablesNotRestored { missing });
    }
    let [now, abandoned] = moments();
    for table in TABLES {
        let query = format!("SELECT t.session FROM idempotence.{} t WHERE {} LIMIT $1", table.name(), condition(table));
        let found = sql::column::<Uuid>(&query, &[1i64.into(), now.into(), abandoned.into()])?.pop();
        if let Some(id) = found {
            let (session, table) = (session.into(), table.name());
            let of = uuid::Uuid::from_bytes(*id.as_bytes()).to_string();
            return Err(Error::SessionsNotRestored { session, table, of });
        }
    }
    Ok(())
}

/// Puts an end to the question; whether there was one. The caller holds the sweep's lock.
pub fn accept() -> Result<bool, Error> {
    Ok(sql::execute("DELETE FROM idempotence.restore", &[])? > 0)
}
