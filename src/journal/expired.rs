//! Deletes what has expired in journals.
//!
//! A journal belongs to a user, and so do its triggers. So its owner deletes here, and can do nothing else meanwhile, as
//! when PostgreSQL maintains a table. Rows are deleted only if the session's owner has the privileges of the table's owner:
//! a table may have changed hands since the session was made.

use super::table::{self, Journal};
use crate::domain::cursor::Cursor;
use crate::domain::limits::KEEP_SLACK_US;
use crate::error::Error;
use crate::pg::{self, Sight, Statement};
use crate::store::sql;
use pgrx::pg_sys;
use pgrx::pg_sys::BuiltinOid::{INT8OID, TIMESTAMPTZOID};
use std::cell::Cell;

/// How long the deletion of a batch may take. A user's journal may be wherever the user likes, and its triggers may do what
/// they like. It is shorter than the time after which PostgreSQL looks for a deadlock, so that nobody else becomes the victim.
const BATCH_US: i64 = 500_000;

/// How many batches of a journal are deleted before it is the turn of the next one.
const BATCHES: u16 = 10;

/// How many turns each journal gets in a sweep. A trigger may insert as many rows as are deleted.
const ROUNDS: u16 = 100;

/// Where a look through the journals is: the journals get their turns one after the other, round by round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Turn {
    round: u16,
    /// The number of the journal, in the order of the names.
    journal: u16,
    /// How many batches of the journal were deleted in this turn.
    batches: u16,
    /// Whether the next batch was announced.
    announced: bool,
    /// Whether a journal of this round has more than its turn took.
    more: bool,
}

impl Turn {
    fn at(cursor: Cursor) -> Turn {
        Turn {
            round: (cursor.page >> 16) as u16,
            journal: cursor.page as u16,
            batches: cursor.item >> 2,
            announced: cursor.item & 2 != 0,
            more: cursor.item & 1 != 0,
        }
    }

    fn cursor(self) -> Cursor {
        Cursor {
            page: u32::from(self.round) << 16 | u32::from(self.journal),
            item: self.batches << 2 | u16::from(self.announced) << 1 | u16::from(self.more),
        }
    }

    /// What follows, if there are so many journals. `full`: the batch was a full one. `None`: all have had their turns.
    fn next(self, full: bool, journals: usize) -> Option<Turn> {
        let batches = self.batches + 1;
        if full && batches < BATCHES {
            return Some(Turn { batches, ..self });
        }
        let more = self.more || full;
        match self.journal.checked_add(1) {
            Some(journal) if usize::from(journal) < journals => {
                Some(Turn { round: self.round, journal, more, ..Turn::default() })
            }
            _ if more && self.round + 1 < ROUNDS => Some(Turn { round: self.round + 1, ..Turn::default() }),
            _ => None,
        }
    }
}

thread_local! {
    /// The batch that this process has announced.
    static ANNOUNCED: Cell<Option<Turn>> = const { Cell::new(None) };
}

/// What was deleted.
#[derive(Default)]
pub struct Deleted {
    /// How many rows.
    pub rows: usize,
    /// Why nothing was deleted from a journal, in words.
    pub failed: Option<String>,
    /// Where to go on; `None`: everything was looked through.
    pub next: Option<Cursor>,
}

/// Deletes about `limit` expired rows of the journal whose turn it is. Each turn is announced first, in a transaction of its
/// own: a trigger may take no notice of an alarm, and whoever ends its process then lets the next sweep pass it by.
pub fn delete(from: Cursor, limit: usize) -> Result<Deleted, Error> {
    let query = "SELECT s.journal, s.owner::pg_catalog.oid FROM idempotence.session s WHERE s.journal IS NOT NULL AND s.ended_at IS NULL GROUP BY 1, 2 ORDER BY 1, 2";
    let of_owners = sql::pairs::<String, pg_sys::Oid>(query, &[])?;
    let journals: Vec<_> = of_owners.chunk_by(|one, other| one.0 == other.0).collect();
    let turn = Turn::at(from);
    // Journals may have come and gone since.
    let Some(of_owners) = journals.get(usize::from(turn.journal)) else { return Ok(Deleted::default()) };
    let next = |full| turn.next(full, journals.len()).map(Turn::cursor);
    if !turn.announced {
        let announced = Turn { announced: true, ..turn };
        ANNOUNCED.set(Some(announced));
        return Ok(Deleted { next: Some(announced.cursor()), ..Deleted::default() });
    }
    let told = |why: String| {
        of_owners.first().map(|(name, _)| format!("what has expired in journal {name} cannot be deleted yet: {why}"))
    };
    if ANNOUNCED.get() != Some(turn) {
        return Ok(Deleted { rows: 0, failed: told(ENDED.into()), next: next(false) });
    }
    let mut why = None;
    for (name, session_owner) in *of_owners {
        match pg::undone_on_error(BATCH_US, || delete_for(name, *session_owner, limit)) {
            Ok(Ok(Some(rows))) => {
                let next = next(rows >= limit);
                ANNOUNCED.set(next.map(Turn::at));
                return Ok(Deleted { rows, failed: None, next });
            }
            Ok(Ok(None)) => why = Some("the table is another role's".to_owned()),
            Ok(Err(_)) => why = Some("there is no such table, or it does not fit".to_owned()),
            Err(Some(message)) => why = Some(message),
            Err(None) => why = Some(TOO_LONG.to_owned()),
        }
    }
    Ok(Deleted { rows: 0, failed: why.and_then(told), next: next(false) })
}

/// Why a journal is passed by.
const ENDED: &str = "the process that tried last was ended meanwhile";

/// Why a batch was given up.
const TOO_LONG: &str = "it takes longer than 0.5 s; somebody is at work on such rows, a trigger takes its time, or no index on expires_at helps";

/// Deletes about `limit` expired rows, if whoever owns the session has the rights of the table's owner. `None`: not so.
fn delete_for(name: &str, session_owner: pg_sys::Oid, limit: usize) -> Result<Option<usize>, Error> {
    let journal = table::find(name)?;
    if !pg::has_privileges(session_owner, journal.owner) {
        return Ok(None);
    }
    let now_us = pg::now_us().saturating_sub(KEEP_SLACK_US);
    let deleted = pg::as_owner_alone(journal.owner, || match journal.is_local {
        true => delete_here(&journal, now_us, limit),
        false => delete_elsewhere(&journal, now_us, limit),
    });
    Ok(Some(deleted as usize))
}

/// What has expired. $1 is the present moment, less the slack that time keys ahead of the clock need.
const EXPIRED: &str =
    "j.expires_at OPERATOR(pg_catalog.<=) $1 AND (j.leased_until IS NULL OR j.leased_until OPERATOR(pg_catalog.<=) $1)";

/// Passes by the rows that somebody is at work on.
fn delete_here(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let (name, tenant) = (&journal.name, &journal.tenant);
    let delete = Statement::prepare(
        &format!(
            "DELETE FROM {name} d USING (SELECT j.{tenant} AS tenant, j.session, j.request FROM {name} j WHERE {EXPIRED}
                                         ORDER BY j.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED) e
             WHERE d.{tenant} OPERATOR(pg_catalog.=) e.tenant AND d.session OPERATOR(pg_catalog.=) e.session
               AND d.request OPERATOR(pg_catalog.=) e.request"
        ),
        &[TIMESTAMPTZOID.value(), INT8OID.value()],
    );
    delete.execute(&[Some(now_us.into()), Some((limit as i64).into())], Sight::OfTransaction, |_| ()).0
}

/// A batch ends at a moment, and not at a number of rows: a table that is distributed is not deleted from by a LIMIT.
fn delete_elsewhere(journal: &Journal, now_us: i64, limit: usize) -> u64 {
    let name = &journal.name;
    let last = Statement::prepare(
        &format!("SELECT j.expires_at FROM {name} j WHERE {EXPIRED} ORDER BY j.expires_at OFFSET $2 LIMIT 1"),
        &[TIMESTAMPTZOID.value(), INT8OID.value()],
    );
    let delete = Statement::prepare(
        &format!("DELETE FROM {name} j WHERE {EXPIRED} AND j.expires_at OPERATOR(pg_catalog.<=) $2"),
        &[TIMESTAMPTZOID.value(), TIMESTAMPTZOID.value()],
    );
    let place = limit.saturating_sub(1) as i64;
    let found = last.execute(&[Some(now_us.into()), Some(place.into())], Sight::OfTransaction, |row| row.int8(0));
    let upto: i64 = found.1.flatten().unwrap_or(now_us);
    delete.execute(&[Some(now_us.into()), Some(upto.into())], Sight::OfTransaction, |_| ()).0
}

#[cfg(test)]
mod tests {
    use super::{BATCHES, ROUNDS, Turn};
    use crate::domain::cursor::Cursor;

    /// The journals of the batches, if those of these numbers never come to an end.
    fn journals(endless: &[u16], count: usize) -> Vec<u16> {
        let (mut seen, mut cursor) = (Vec::new(), Some(Cursor::START));
        while let Some(at) = cursor {
            let turn = Turn::at(at);
            if !turn.announced {
                cursor = Some(Turn { announced: true, ..turn }.cursor());
                continue;
            }
            seen.push(turn.journal);
            cursor = turn.next(endless.contains(&turn.journal), count).map(Turn::cursor);
        }
        seen
    }

    #[test]
    fn each_journal_gets_its_turn_and_a_sweep_ends() {
        assert_eq!(journals(&[], 3), [0, 1, 2]);
        let seen = journals(&[0], 3);
        let turns = |journal| seen.iter().filter(|seen| **seen == journal).count();
        assert_eq!(turns(0), usize::from(BATCHES) * usize::from(ROUNDS));
        assert_eq!(turns(2), usize::from(ROUNDS));
        assert_eq!(seen[..usize::from(BATCHES) + 1], [vec![0; usize::from(BATCHES)], vec![1]].concat());
    }
}
