//! Our tables and indexes, and their oids.

use crate::domain::version;
use crate::error::Error;
use crate::pg;
use pgrx::pg_sys;

/// Declares an enum of tables or indexes with their names, which stand in the schema `idempotence`.
macro_rules! named {
    ($(#[$doc:meta])+ $type:ident, $names:ident: $($(#[$of:meta])* $variant:ident = $name:literal,)+) => {
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum $type {
            $($(#[$of])* #[doc = $name] $variant,)+
        }

        pub(super) const $names: [&str; [$($name),+].len()] = [$($name),+];
    };
}

named! {
    /// Our tables.
    Table, TABLES:
    Outcome0 = "outcome_0",
    Outcome1 = "outcome_1",
    Outcome2 = "outcome_2",
    Session = "session",
    Segment = "segment",
    Checkpoint = "checkpoint",
    Secret = "secret",
    Audit = "audit",
    SessionLive = "session_live",
    Reply = "reply",
    Stream = "stream",
    Sweep = "sweep",
    Restore = "restore",
    OutcomeLong = "outcome_long",
    Lease = "lease",
    Persistence = "persistence",
    Granted = "granted",
}

named! {
    /// Our indexes.
    Index, INDEXES:
    /// By digest.
    Outcome0 = "outcome_0_pkey",
    /// By digest.
    Outcome1 = "outcome_1_pkey",
    /// By digest.
    Outcome2 = "outcome_2_pkey",
    /// By name.
    SessionName = "session_name_key",
    /// By digest.
    Checkpoint = "checkpoint_pkey",
    /// By id.
    Session = "session_pkey",
    /// By owner and client.
    SessionClient = "session_client_idx",
    /// By the id of the registration.
    SessionRequestId = "session_request_id_idx",
    /// By owner and end.
    SessionEnded = "session_ended_idx",
    /// By id.
    SessionLive = "session_live_pkey",
    /// By owner and client.
    SessionLiveClient = "session_live_client_idx",
    /// By the id of the registration.
    SessionLiveRequestId = "session_live_request_id_idx",
    /// By session, stream and slot.
    Reply = "reply_pkey",
    /// By session and stream.
    Stream = "stream_pkey",
    /// By digest.
    OutcomeLong = "outcome_long_pkey",
    /// By digest.
    Lease = "lease_pkey",
    /// By session.
    LeaseSession = "lease_session_idx",
}

impl Table {
    /// Its name, in the schema `idempotence`.
    pub fn name(self) -> &'static str {
        TABLES[self as usize]
    }

    /// The index by digest of a table of requests.
    pub fn by_digest(self) -> Index {
        match self {
            Table::Outcome0 => Index::Outcome0,
            Table::Outcome1 => Index::Outcome1,
            Table::Outcome2 => Index::Outcome2,
            Table::OutcomeLong => Index::OutcomeLong,
            Table::Checkpoint => Index::Checkpoint,
            Table::Lease => Index::Lease,
            _ => unreachable!("the table keeps nothing under a digest"),
        }
    }
}

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
        let relation = format!("idempotence.{name}");
        match pg::extension_version() {
            None => Error::NotInstalled { relation },
            Some(_) => Error::Corrupted { message: format!("relation \"{relation}\" does not exist") },
        }
        .raise();
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
