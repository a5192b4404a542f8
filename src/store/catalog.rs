//! Which tables and indexes are ours, and where PostgreSQL has them.

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
}

impl Table {
    /// Its name, in the schema `idempotence`.
    pub fn name(self) -> &'static str {
        TABLES[self as usize]
    }
}

pub(super) const TABLES: [&str; 14] = [
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
}

pub(super) const INDEXES: [&str; 15] = [
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
];

impl Index {
    /// Whether it leads to rows that are written over again and again, and to each by the whole key. While
    /// somebody holds an old snapshot, all that was there before stays, and the index leads to it too: so
    /// the newest is looked for first.
    pub fn is_of_rewritten(self) -> bool {
        matches!(self, Index::Reply | Index::Stream | Index::SessionLive)
    }
}

/// Whether our tables are there.
pub fn is_installed() -> bool {
    TABLES.into_iter().all(|name| find(name) != pg_sys::InvalidOid)
}

/// The library may have been replaced before the tables were, or after them. Rows of another shape are
/// never read or written: 55000 then. Asked again at each call until they fit, and after that whenever a
/// table of ours has changed, which each upgrade script sees to.
pub fn check_version() {
    if let Some(tables) = pg::extension_version()
        && tables != version::LIBRARY
    {
        Error::OtherVersion { tables }.raise();
    }
}

/// The oid of a table or index of ours.
pub(super) fn look_up(name: &str) -> pg_sys::Oid {
    let oid = find(name);
    if oid == pg_sys::InvalidOid {
        Error::NotInstalled { relation: format!("idempotence.{name}") }.raise();
    }
    oid
}

fn find(name: &str) -> pg_sys::Oid {
    let c_name = std::ffi::CString::new(name).expect("a name of ours has no NUL");
    // SAFETY: both look a name up in the system caches; the strings live as long as the calls.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idempotence".as_ptr(), true);
        pg_sys::get_relname_relid(c_name.as_ptr(), schema)
    }
}
