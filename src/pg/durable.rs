//! Whether what another transaction committed is as durable as a commit of this session would be.
//!
//! A commit can be seen before it is flushed (the writer's `synchronous_commit` was off), and before a
//! synchronous standby has it (the writer was terminated, or the server restarted, while it waited for
//! that). Whoever hands such an outcome out would promise what a crash or a failover takes back.
//!
//! Mostly it is known without asking: this backend remembers a transaction id below which all had ended when
//! the log stood at a position that has since become durable.

use super::server::server_version;
use super::wait::{Deadline, nap};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ffi::c_void;

/// The transaction that wrote a row, as the row tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// Its id, or its subtransaction's; 0: this transaction.
    xid: u32,
    /// The row is frozen: the id may be too old to ask the server about.
    frozen: bool,
}

impl Writer {
    /// This transaction, whose commit is waited for by whoever has it.
    pub const THIS: Writer = Writer { xid: 0, frozen: false };

    /// Of a row.
    ///
    /// # Safety
    /// `tuple` must be valid.
    pub unsafe fn of(tuple: *const pg_sys::HeapTupleData) -> Writer {
        // SAFETY: as the caller says. The id stays in the row when that is frozen.
        unsafe {
            let frozen = pg_sys::htup::HeapTupleHeaderFrozen((*tuple).t_data);
            Writer { xid: pg_sys::htup::HeapTupleHeaderGetRawXmin((*tuple).t_data).into_inner(), frozen }
        }
    }
}

/// All transactions below it had ended when the log stood at a position.
#[derive(Clone, Copy)]
struct Mark {
    below: u32,
    position: u64,
    noted_at: i64,
}

/// What this backend remembers.
struct Known {
    /// What is below it is durable, to this level of `synchronous_commit`.
    durable: Option<(Mark, i32)>,
    /// Not yet; looked at again.
    next: Option<Mark>,
}

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new(Known { durable: None, next: None }) };
}

/// Transaction ids come round again. Not within an hour.
const MARK_US_MAX: i64 = 3_600_000_000;

const OFF: i32 = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32;
const LOCAL: i32 = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32;

/// Waits until the commit of `writer` is as durable as one of this session would be now, up to the deadline;
/// whether it is. On a standby nothing is promised.
pub fn wait_until_durable(writer: Writer, now_us: i64, deadline: impl FnOnce() -> Deadline) -> bool {
    let level = level_of_this_session();
    level == OFF || is_known(writer, level, now_us) || look_and_wait(writer, level, now_us, deadline())
}

/// What `synchronous_commit` asks for, where there are standbys to ask it of.
fn level_of_this_session() -> i32 {
    // SAFETY: variables of this backend and of the server.
    let (level, senders) = unsafe { (pg_sys::synchronous_commit, pg_sys::max_wal_senders) };
    if level > LOCAL && (senders == 0 || !standbys_are_defined()) { LOCAL } else { level }
}

fn is_known(writer: Writer, level: i32, now_us: i64) -> bool {
    let durable = KNOWN.with_borrow(|known| known.durable);
    let precedes = |mark: Mark| (writer.xid.wrapping_sub(mark.below) as i32) < 0;
    writer == Writer::THIS
        || durable.is_some_and(|(mark, to)| {
            to >= level && now_us.wrapping_sub(mark.noted_at) < MARK_US_MAX && now_us >= mark.noted_at && precedes(mark)
        })
}

#[cold]
fn look_and_wait(writer: Writer, level: i32, now_us: i64, deadline: Deadline) -> bool {
    // SAFETY: reads the state of the server and of the transaction; the id is that of a row that was just
    // seen, so the server still knows it unless the row is frozen.
    unsafe {
        if pg_sys::RecoveryInProgress()
            || pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::TransactionId::from_inner(writer.xid))
        {
            return true;
        }
        note_progress(level, now_us);
        if is_known(writer, level, now_us) {
            return true;
        }
        // A commit that waited for its flush has no position here: it could not be seen before that.
        let committed = match writer.frozen {
            true => end_of_log(),
            false => pg_sys::TransactionIdGetCommitLSN(pg_sys::TransactionId::from_inner(writer.xid)),
        };
        if pg_sys::XLogNeedsFlush(committed) {
            pg_sys::XLogFlush(committed);
        }
        if level == LOCAL {
            return true;
        }
        wait_for_standbys(pg_sys::GetFlushRecPtr(std::ptr::null_mut()), deadline)
    }
}

/// Where the last record of the log ends. What is committed and can be seen lies before it.
fn end_of_log() -> u64 {
    // SAFETY: reads the state of the server, which is not in recovery, and a variable that it has set at its start.
    let (next, segment_bytes) = unsafe { (pg_sys::GetXLogInsertRecPtr(), pg_sys::wal_segment_size) };
    end_of_last_record(next, segment_bytes as u64)
}

/// The server tells where the next record begins. Where the last one has filled its page, that is behind the
/// header of a page which is not written yet; to flush the log up to there is an error.
fn end_of_last_record(next: u64, segment_bytes: u64) -> u64 {
    const HEADER: u64 = size_of::<pg_sys::XLogPageHeaderData>() as u64;
    /// That of the first page of a segment is longer.
    const FIRST_HEADER: u64 = size_of::<pg_sys::XLogLongPageHeaderData>() as u64;
    let (in_page, in_segment) = (next % u64::from(pg_sys::XLOG_BLCKSZ), next % segment_bytes);
    match (in_page, in_segment) {
        (_, FIRST_HEADER) => next - FIRST_HEADER,
        (HEADER, _) => next - HEADER,
        _ => next,
    }
}

/// Takes the next mark over, if it has become durable, and notes another.
fn note_progress(level: i32, now_us: i64) {
    KNOWN.with_borrow_mut(|known| {
        if let Some(mark) = known.next {
            // SAFETY: reads the state of the server.
            let flushed = unsafe { !pg_sys::XLogNeedsFlush(mark.position) };
            match level {
                LOCAL if flushed => known.durable = Some((mark, LOCAL)),
                LOCAL => return,
                _ if flushed && confirmed(level) >= mark.position => known.durable = Some((mark, level)),
                _ => return,
            }
        }
        // SAFETY: reads the active snapshot, if there is one, and the state of the server. What the snapshot
        // takes as ended has its commit in the log, before the position read after it.
        known.next = unsafe {
            pg_sys::ActiveSnapshotSet().then(|| Mark {
                below: (*pg_sys::GetActiveSnapshot()).xmin.into_inner(),
                position: end_of_log(),
                noted_at: now_us,
            })
        };
    });
}

/// Waits until the synchronous standbys have confirmed the position, or none are asked for any more.
fn wait_for_standbys(position: u64, deadline: Deadline) -> bool {
    let mut nap_us = 1_000;
    loop {
        let level = level_of_this_session();
        if level <= LOCAL || confirmed(level) >= position {
            return true;
        }
        match deadline.left_us() {
            Some(0) => return false,
            left_us => nap(nap_us.min(left_us.unwrap_or(i64::MAX))),
        }
        nap_us = (nap_us * 2).min(20_000);
    }
}

/// The beginning of WalSndCtlData, which is laid out alike in all versions.
#[repr(C)]
struct Senders {
    queues: [[*mut c_void; 2]; 3],
    /// Up to where the synchronous standbys have written, flushed and applied.
    confirmed: [u64; 3],
    /// Whether there are to be any.
    status: u8,
}

unsafe extern "C" {
    static WalSndCtl: *const Senders;
    static SyncRepStandbyNames: *const std::ffi::c_char;
}

/// Up to where the synchronous standbys have the log as this level asks for.
fn confirmed(level: i32) -> u64 {
    let mode = (level - LOCAL - 1).clamp(0, 2) as usize;
    // SAFETY: shared memory that is there as long as the server; a position is read at once.
    unsafe { (&raw const (*WalSndCtl).confirmed[mode]).read_volatile() }
}

/// Whether commits have to wait for standbys, as the checkpointer has noted it.
fn standbys_are_defined() -> bool {
    // SAFETY: as above; the setting is a string or null.
    let (status, names) = unsafe {
        let names = SyncRepStandbyNames;
        ((&raw const (*WalSndCtl).status).read_volatile(), !names.is_null() && *names != 0)
    };
    means_defined(status, server_version(), names)
}

/// Minor versions since May 2025 also note whether the setting has been looked at; then the lowest bit alone
/// says that it names nobody. Where it has not, the setting counts.
fn means_defined(status: u8, version: i32, names: bool) -> bool {
    const LOOKED_AT: u8 = 1;
    const DEFINED: u8 = 2;
    let has_two_bits = match version / 10_000 {
        15 => version >= 150_013,
        16 => version >= 160_009,
        17 => version >= 170_005,
        _ => true,
    };
    match has_two_bits {
        false => status != 0,
        true if status & (LOOKED_AT | DEFINED) == 0 => names,
        true => status & DEFINED != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{end_of_last_record, means_defined};

    #[test]
    fn the_log_ends_before_the_header_of_a_page_that_has_no_record() {
        let (page, segment) = (8192, 16 << 20);
        let ends = |next| end_of_last_record(next, segment);
        assert_eq!(ends(5 * segment + 3 * page + 24), 5 * segment + 3 * page);
        assert_eq!(ends(5 * segment + 40), 5 * segment);
        for within in [3 * page + 32, 3 * page + 40, 48, 4 * page - 8, 4 * page] {
            assert_eq!(ends(5 * segment + within), 5 * segment + within);
        }
    }

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
