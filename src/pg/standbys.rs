//! Synchronous standbys, as this server knows them, and on a standby the server that it follows.
//!
//! A commit waits for standbys if a flag in shared memory says so (`WalSndCtl`). Only the checkpointer sets this flag,
//! when it reads `synchronous_standby_names` again. A checkpointer that is writing a checkpoint may read the setting
//! much later than all other processes. Meanwhile `pg_stat_replication` already shows the standby as `sync`, but
//! commits are acknowledged without it. So a transaction that records something compares its own setting with the flag
//! before it commits, and waits for the checkpointer.

use super::server::server_version;
use super::wait::{Deadline, poll};
use pgrx::pg_sys;

const LOCAL: i32 = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32;

/// The level of `synchronous_commit`.
pub fn level_asked_for() -> i32 {
    // SAFETY: a variable of this backend.
    unsafe { pg_sys::synchronous_commit }
}

/// The level to which a commit of this backend has to be durable: that of `synchronous_commit`, and at most the local
/// flush if neither the setting nor the flag names standbys.
pub fn level_of_commits() -> i32 {
    // SAFETY: a variable of the server, set when it started.
    let has_senders = unsafe { pg_sys::max_wal_senders } > 0;
    let level = level_asked_for();
    if level > LOCAL && !(has_senders && (standbys_are_named() || standbys_are_defined())) { LOCAL } else { level }
}

/// Whether a commit of this backend would be acknowledged without the standby that it has to wait for: the setting
/// names one, and the checkpointer has not set the flag yet.
pub fn commit_would_not_wait() -> bool {
    level_asked_for() > LOCAL && standbys_are_named() && lacks_flag()
}

/// Waits up to the deadline until a commit of this backend waits for its standbys; gives whether it does.
#[cold]
pub fn wait_until_commits_wait(deadline: impl FnOnce() -> Deadline) -> bool {
    poll(deadline(), || !commit_would_not_wait())
}

/// Whether the flag is missing. Without senders there are no standbys, and commits never wait.
fn lacks_flag() -> bool {
    // SAFETY: a variable of the server, set when it started.
    (unsafe { pg_sys::max_wal_senders }) > 0 && !standbys_are_defined()
}

/// Whether `synchronous_standby_names` names standbys, as this backend has read it.
fn standbys_are_named() -> bool {
    // SAFETY: the setting of this backend, which is null or a terminated string.
    unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        !names.is_null() && *names != 0
    }
}

/// Whether commits wait for standbys, as the checkpointer has noted it.
pub fn standbys_are_defined() -> bool {
    // SAFETY: the shared memory exists as long as the server. The byte after the positions has another name in some
    // minor versions, but the same place in all of them. PostgreSQL's commit reads it without SyncRepLock, too: a byte
    // is read in one access, and a commit that sees a former value is one that came a moment before the change.
    let status = unsafe {
        let status: *const u8 = (&raw const (*pg_sys::WalSndCtl).lsn).add(1).cast();
        status.read_volatile()
    };
    means_defined(status, server_version(), standbys_are_named())
}

/// What the status byte means, which differs between minor versions. Before May 2025 any value but 0 means that
/// standbys are defined. Since then one bit says that the checkpointer has read the setting, and another that the
/// setting names standbys. While neither bit is set, the setting of the backend (`names`) counts.
fn means_defined(status: u8, version: i32, names: bool) -> bool {
    const INITIALIZED: u8 = 1;
    const DEFINED: u8 = 2;
    let has_two_bits = match version / 10_000 {
        15 => version >= 150_013,
        16 => version >= 160_009,
        17 => version >= 170_005,
        _ => true,
    };
    match has_two_bits {
        false => status != 0,
        true if status & (INITIALIZED | DEFINED) == 0 => names,
        true => status & DEFINED != 0,
    }
}

/// The position up to which the synchronous standbys have confirmed the log, as the level demands. Their senders note
/// it by their own setting, whatever the flag says.
pub fn confirmed(level: i32) -> u64 {
    let mode = (level - LOCAL - 1).clamp(0, 2) as usize;
    // SAFETY: the shared memory exists as long as the server. A position is read in one access.
    unsafe { (&raw const (*pg_sys::WalSndCtl).lsn[mode]).read_volatile() }
}

/// Whether this standby has received everything that it shows from the server that it follows, since its own start. A
/// former primary has written commits itself that the new one may lack. It receives the log from the new primary at
/// most up to the point where their histories part, which lies before such a commit.
///
/// A standby that follows no server and reads the log from an archive has nothing to compare with. It counts as
/// complete.
pub fn has_received_what_it_shows() -> bool {
    // SAFETY: reads shared memory, with no need for the other results. The settings are null or terminated strings.
    unsafe {
        let is_empty = |setting: *const std::ffi::c_char| setting.is_null() || *setting == 0;
        let reads_archive = is_empty(pg_sys::PrimaryConnInfo) && !is_empty(pg_sys::recoveryRestoreCommand);
        let shown = pg_sys::GetXLogReplayRecPtr(std::ptr::null_mut());
        reads_archive || pg_sys::GetWalRcvFlushRecPtr(std::ptr::null_mut(), std::ptr::null_mut()) >= shown
    }
}

#[cfg(test)]
mod tests {
    use super::means_defined;

    #[test]
    fn standbys_are_defined_as_each_minor_version_says_it() {
        assert!(means_defined(1, 150_012, false) && !means_defined(0, 150_012, true));
        for version in [150_013, 160_009, 170_005, 180_000] {
            assert!(!means_defined(1, version, true));
            assert!(means_defined(3, version, false));
            assert!(means_defined(0, version, true) && !means_defined(0, version, false));
        }
    }
}
