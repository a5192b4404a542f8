//! Looks for the outcomes of many requests at once: each table is opened once, and one scan of its index goes from digest
//! to digest.
//!
//! The scans use a dirty snapshot. It shows what `SnapshotSelf` shows, and also the rows that other transactions are
//! inserting. So whoever wants to insert learns who is at work on the same requests.

use crate::domain::identity::Digest;
use crate::domain::time_key;
use crate::error::Error;
use crate::model::StandingSession;
use crate::pg::Writer;
use crate::store::outcome;
use crate::store::outcome_columns::Columns;
use crate::store::probe::Probe;
use crate::store::rel::Access;
use crate::store::segment;
use crate::store::snapshot::{RowState, row_state};

/// An outcome that lives: whether the transaction's snapshot sees it, and the transaction that wrote it.
pub type Living = (bool, Writer);

/// Finds the outcomes of requests, of a key and a digest each, that live at `now_us`. Tells besides whether another transaction
/// is at work on one of the requests, or one of them has a row that has expired. To insert such a request takes more than an
/// insertion.
pub fn find(
    session: &StandingSession,
    asked: &[(&str, Digest)],
    now_us: i64,
) -> Result<(Vec<Option<Living>>, bool), Error> {
    let (mut outcomes, mut contended) = (vec![None; asked.len()], false);
    let made_at = || time_key::made_from_to(asked.iter().map(|(key, _)| *key));
    segment::probe(Access::Read, made_at, |table| {
        if table.is_empty() {
            return Ok(None);
        }
        let mut broken = None;
        let left = asked.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none());
        let left = left.map(|((key, digest), outcome)| (digest, (*key, *digest, outcome)));
        table.find_each(left, |(key, digest, outcome), row: &Columns<'_>| {
            let RowState::Committed { changing } = row_state() else {
                contended = true;
                return false;
            };
            let (session, session_name) = (&session.id, &*session.name);
            let probe = Probe { session, session_name, stream: "", key, digest: *digest };
            let expires_at = outcome::expires_at(row, table.table, &probe);
            let has_expired = matches!(expires_at, Ok(expires_at) if expires_at <= now_us);
            contended |= changing.is_some() || has_expired;
            match expires_at {
                Ok(_) if has_expired => {}
                Ok(_) => **outcome = Some((row.visible(), row.writer())),
                Err(error) => broken = Some(error),
            }
            !has_expired
        });
        broken.map_or(Ok(None::<()>), Err)
    })?;
    Ok((outcomes, contended))
}
