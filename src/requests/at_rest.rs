//! Waits until nobody can be at work in a session that was dropped or bound to another node.
//!
//! Whoever executes a request holds its claim to the end of the transaction, and whoever notes messages in an inbox holds a
//! lock on the table of outcomes, as does whoever has begun a request with a key. So this waits for every transaction of
//! the database that holds a claim, or in the case of an inbox such a lock, at the moment of the look. Transactions that
//! come later are not waited for. The name of a claim does not tell its session; where shared memory does, and it is
//! another one, the claim keeps nobody waiting.
//!
//! None slips through. The caller has the session's lock, which the transaction that closed the session has given back
//! after telling all backends. A begin finds the session, takes the claim and then asks whether the session is still there
//! (`sessions/resolve.rs`). If it took the claim before the look, it is waited for. If it took the claim later, it is
//! told of it when it asks.

use crate::error::{Error, RequestName};
use crate::lock::LockClass;
use crate::model::StandingSession;
use crate::monitor::in_flight;
use crate::pg::{self, Deadline, Holder};
use crate::store::catalog;
use crate::store::sql;

/// Waits for the transactions that may have executed requests of the session. The caller has the session's lock.
pub fn wait(session: &StandingSession, deadline: Deadline) -> Result<(), Error> {
    let holders = holders(session)?;
    if holders.iter().any(|(_, pid)| *pid == pg::process_id()) {
        return Err(Error::ExportsOwn { session: session.name.clone() });
    }
    for (transaction, _) in holders {
        let holder = Holder::named(&transaction).ok_or_else(|| Error::Corrupted {
            message: format!("pg_locks has a virtualtransaction of another form: {transaction}"),
        })?;
        if pg::bounded(deadline.left_us(), || holder.wait()).is_none() {
            let (name, request) = (session.name.clone(), at_work_in(session));
            return Err(Error::NotAtRest { session: name, request, holders: in_words(&self::holders(session)?)? });
        }
    }
    Ok(())
}

/// A request of the session that is at work, where the library is preloaded, so that this is known by name.
fn at_work_in(session: &StandingSession) -> Option<RequestName> {
    let owned = in_flight::read().into_iter().filter(|held| held.entry.owner == session.owner);
    let [name, _, request] = owned.filter_map(|held| held.names).find(|[name, _, _]| *name == session.name)?;
    Some(RequestName::new(&name, &request))
}

/// The transactions at work in the session, as `pg_locks` names them, and their processes; 0 for prepared ones. In an inbox
/// they hold the tables of outcomes, to write them, and otherwise claims.
fn holders(session: &StandingSession) -> Result<Vec<(String, i32)>, Error> {
    let (holds, arguments) = if session.inbox {
        let holds = format!(
            "l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.mode OPERATOR(pg_catalog.=) '{WRITES}'
             AND l.relation OPERATOR(pg_catalog.=) ANY ({TABLES})"
        );
        (holds, Vec::new())
    } else {
        let holds = format!(
            "l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) {}
             AND (((l.classid::pg_catalog.int8 OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) l.objid::pg_catalog.int8)
                    OPERATOR(pg_catalog.<>) ALL ($1)
                  OR l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())",
            LockClass::Request as u16
        );
        (holds, vec![locks_of_others(session).into()])
    };
    let query = format!(
        "SELECT DISTINCT l.virtualtransaction, COALESCE(l.pid, 0) FROM pg_catalog.pg_locks l
         WHERE l.granted AND {holds}
           AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d
                                                  WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())"
    );
    sql::pairs(&query, &arguments)
}

/// The claims of other sessions, by the numbers that name their locks, as far as shared memory knows them.
fn locks_of_others(session: &StandingSession) -> Vec<i64> {
    let others = in_flight::read().into_iter();
    let others = others.filter(|held| held.names.as_ref().is_some_and(|[name, _, _]| *name != session.name));
    others.map(|held| held.entry.lock.cast_signed()).collect()
}

/// These transactions in words. Whoever is no monitor is not told who works with the sessions of others.
fn in_words(holders: &[(String, i32)]) -> Result<String, Error> {
    const NOBODY: &str = "a transaction that has just ended";
    if !catalog::is_monitor() {
        return Ok(match holders.len() {
            0 => NOBODY.into(),
            1 => "one transaction; a monitor is told which".into(),
            several => format!("{several} transactions; a monitor is told which"),
        });
    }
    let transactions: Vec<String> = holders.iter().map(|(transaction, _)| transaction.clone()).collect();
    let query = "SELECT pg_catalog.string_agg(DISTINCT l.who, ', ') FROM idempotence.locks l
         WHERE l.virtualtransaction OPERATOR(pg_catalog.=) ANY ($1)";
    let words = sql::column::<String>(query, &[transactions.into()])?.pop();
    Ok(words.unwrap_or_else(|| NOBODY.into()))
}

const WRITES: &str = "RowExclusiveLock";

/// The tables that inboxes write.
const TABLES: &str =
    "ARRAY[pg_catalog.to_regclass('idempotence.outcome_0'), pg_catalog.to_regclass('idempotence.outcome_1'),
                            pg_catalog.to_regclass('idempotence.outcome_2'), pg_catalog.to_regclass('idempotence.outcome_long')]::pg_catalog.oid[]";
