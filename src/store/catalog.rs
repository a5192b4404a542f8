//! Our tables and indexes, and their oids.

use crate::domain::version;
use crate::error::Error;
use crate::pg;
use pgrx::pg_sys;

/// Our tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Table {
    /// `idempotence.outcome_0`
    Outcome0,
    /// `idempotence.outcome_1`
    Outcome1,
    /// `idempotence.outcome_2`
    Outcome2,
    /// `idempotence.session`
    Session,
    /// `idempotence.segment`
    Segment,
    /// `idempotence.checkpoint`
    Checkpoint,
    /// `idempotence.secret`
    Secret,
    /// `idempotence.audit`
    Audit,
    /// `idempotence.session_live`
    SessionLive,
    /// `idempotence.reply`
    Reply,
    /// `idempotence.stream`
    Stream,
    /// `idempotence.sweep`
    Sweep,
    /// `idempotence.restore`
    Restore,
    /// `idempotence.outcome_long`
    OutcomeLong,
    /// `idempotence.lease`
    Lease,
    /// `idempotence.persistence`
    Persistence,
    /// `idempotence.granted`
    Granted,
}

impl Table {
    /// Its name, in the schema `idempotence`.
    pub fn name(self) -> &'static str {
        TABLES[self as usize]
    }
}

pub(super) const TABLES: [&str; 17] = [
    "outcome_0",
    "outcome_1",
    "outcome_2",
    "session",
    "segment",
    "checkpoint",
    "secret",
    "audit",
    "session_live",
    "reply",
    "stream",
    "sweep",
    "restore",
    "outcome_long",
    "lease",
    "persistence",
    "granted",
];

/// Our indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Index {
    /// By digest.
    Outcome0,
    /// By digest.
    Outcome1,
    /// By digest.
    Outcome2,
    /// By name.
    SessionName,
    /// By digest.
    Checkpoint,
    /// By id.
    Session,
    /// By owner and client.
    SessionClient,
    /// By the id of the registration.
    SessionRequestId,
    /// By owner and end.
    SessionEnded,
    /// By id.
    SessionLive,
    /// By owner and client.
    SessionLiveClient,
    /// By the id of the registration.
    SessionLiveRequestId,
    /// By session, stream and slot.
    Reply,
    /// By session and stream.
    Stream,
    /// By digest.
    OutcomeLong,
    /// By digest.
    Lease,
    /// By session.
    LeaseSession,
}

pub(super) const INDEXES: [&str; 17] = [
    "outcome_0_pkey",
    "outcome_1_pkey",
    "outcome_2_pkey",
    "session_name_key",
    "checkpoint_pkey",
    "session_pkey",
    "session_client_idx",
    "session_request_id_idx",
    "session_ended_idx",
    "session_live_pkey",
    "session_live_client_idx",
    "session_live_request_id_idx",
    "reply_pkey",
    "stream_pkey",
    "outcome_long_pkey",
    "lease_pkey",
    "lease_session_idx",
];

impl Index {
    /// Whether the index leads, by its whole key, to rows that are written over again and again. While somebody holds
    /// an old snapshot, all former versions of such a row stay, and the index leads to them too. So scans of these
    /// indexes look for the newest version first.
    pub fn is_of_rewritten(self) -> bool {
        matches!(self, Index::Reply | Index::Stream | Index::SessionLive)
    }
}

/// Whether our tables exist.
pub fn is_installed() -> bool {
    TABLES.into_iter().all(|name| find(name) != pg_sys::InvalidOid)
}

/// Whether the current role is a monitor, that is, may read the view `health`. Superusers and admins are monitors too.
pub fn is_monitor() -> bool {
    may_read("health")
}

/// Whether the current role may read this table or view of ours.
pub fn may_read(name: &str) -> bool {
    let relation = find(name);
    // SAFETY: looks up the relation and the role in the system caches.
    relation != pg_sys::InvalidOid
        && unsafe { pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), pg_sys::ACL_SELECT as pg_sys::AclMode) }
            == pg_sys::AclResult::ACLCHECK_OK
}

/// Raises an error (55000) if the tables are not of this library's version: rows of another shape are never read or
/// written. The library may be replaced before the tables are, or after them. The check is made at each call until the
/// versions fit, and after that whenever one of our tables has changed. Each upgrade script changes one.
pub fn check_version() {
    if let Some(tables) = pg::extension_version()
        && tables != version::LIBRARY
    {
        Error::OtherVersion { tables }.raise();
    }
}

/// The oid of one of our tables or indexes. Raises an error if it does not exist.
pub(super) fn look_up(name: &str) -> pg_sys::Oid {
    let oid = find(name);
    if oid == pg_sys::InvalidOid {
        Error::NotInstalled { relation: format!("idempotence.{name}") }.raise();
    }
    oid
}

fn find(name: &str) -> pg_sys::Oid {
    let c_name = std::ffi::CString::new(name).expect("a name of ours has no NUL");
    // SAFETY: both calls look up a name in the system caches. The strings live as long as the calls.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idempotence".as_ptr(), true);
        pg_sys::get_relname_relid(c_name.as_ptr(), schema)
    }
}

#[cfg(test)]
mod tests {
    use super::{INDEXES, TABLES};
    use std::collections::BTreeSet;

    /// The names that follow one of these texts in the script that makes the tables.
    fn made_by(texts: &[&str]) -> BTreeSet<&'static str> {
        let made = |line: &'static str| {
            let rest = texts.iter().find_map(|text| line.trim_start().strip_prefix(text))?;
            rest.split([' ', '(']).next()
        };
        include_str!("../../sql/tables.sql").lines().filter_map(made).collect()
    }

    #[test]
    fn the_script_makes_these_tables_and_no_others() {
        let made = made_by(&["CREATE TABLE idempotence.", "CREATE UNLOGGED TABLE idempotence."]);
        assert_eq!(BTreeSet::from(TABLES), made);
        assert_eq!(made.len(), TABLES.len());
    }

    #[test]
    fn the_script_makes_these_indexes() {
        let made = made_by(&["CREATE INDEX ", "CONSTRAINT "]);
        let missing: Vec<_> = INDEXES.into_iter().filter(|name| !made.contains(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
        assert_eq!(BTreeSet::from(INDEXES).len(), INDEXES.len());
    }
}
