//! Whether another transaction's commit is as durable as a commit by this backend would be.
//!
//! A commit can be seen before it is flushed, if the writer's `synchronous_commit` was off. It can also be seen before
//! a synchronous standby has it, if the writer was terminated, or the server restarted, while the writer waited for the
//! standby. A crash or a failover takes such a commit back, so its outcome must not be handed out yet.
//!
//! A standby may be the former primary. Then it shows commits that no other server has, until it is rewound. So a
//! standby hands out an outcome once the server that it follows has sent everything that the standby shows.
//!
//! Usually no question to the server is needed. The backend remembers a transaction id and a position in the log: all
//! transactions below that id had ended when the log stood there. Once the log is durable up to that position, so are
//! their commits.

use super::raw::harmless;
use super::server::in_recovery;
use super::standbys::{confirmed, has_received_what_it_shows, level_asked_for, level_of_commits, standbys_are_defined};
use super::wait::{Deadline, poll};
use pgrx::pg_sys;
use std::cell::Cell;

/// The transaction that wrote a row, as the row's header tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The id of the transaction or of its subtransaction; 0 stands for this transaction.
    xid: u32,
    /// Whether the row is frozen. Then the id may be too old to ask the server about.
    frozen: bool,
}

impl Writer {
    /// This transaction. Its own commit makes the row durable, so nothing is waited for.
    pub const THIS: Writer = Writer { xid: 0, frozen: false };

    /// The writer of a row, by the column `xmin` of the row. Where the row is frozen, the column still has the id. So
    /// it counts as frozen: the server may not be asked about the id.
    pub fn of_xid(xid: pg_sys::TransactionId) -> Writer {
        Writer { xid: xid.into_inner(), frozen: true }
    }

    /// The writer of a row.
    ///
    /// # Safety
    /// `tuple` must be valid.
    pub unsafe fn of(tuple: *const pg_sys::HeapTupleData) -> Writer {
        // SAFETY: as the caller warrants. A frozen row keeps the id.
        unsafe {
            let frozen = pg_sys::htup::HeapTupleHeaderFrozen((*tuple).t_data);
            Writer { xid: pg_sys::htup::HeapTupleHeaderGetRawXmin((*tuple).t_data).into_inner(), frozen }
        }
    }
}

/// All transactions with ids below `below` had ended when the log stood at `position`.
#[derive(Clone, Copy)]
struct Horizon {
    below: u32,
    position: u64,
    noted_at: i64,
}

thread_local! {
    /// A horizon whose position is durable to the given level of `synchronous_commit`.
    static DURABLE: Cell<Option<(Horizon, i32)>> = const { Cell::new(None) };
    /// A later horizon, whose position may not be durable yet.
    static NEXT: Cell<Option<Horizon>> = const { Cell::new(None) };
}

/// A horizon counts for an hour. Transaction ids wrap around, but not within that time.
const HORIZON_US_MAX: i64 = 3_600_000_000;

const OFF: i32 = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32;
const LOCAL: i32 = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32;

/// How durable a commit has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As durable as a commit by this backend would be now.
    OfCaller,
    /// The same, and flushed, whatever `synchronous_commit` says: somebody takes it for certain.
    Flushed,
}

/// Waits up to the deadline until the commit of `writer` is durable; gives whether it is.
pub fn wait_until_durable(
    writer: Writer,
    durability: Durability,
    now_us: i64,
    deadline: impl FnOnce() -> Deadline,
) -> bool {
    let level = match durability {
        Durability::OfCaller => level_of_commits(),
        Durability::Flushed => level_of_commits().max(LOCAL),
    };
    level == OFF || is_known(writer, level, now_us) || look_and_wait(writer, level, now_us, deadline())
}

fn is_known(writer: Writer, level: i32, now_us: i64) -> bool {
    let precedes = |horizon: Horizon| (writer.xid.wrapping_sub(horizon.below) as i32) < 0;
    writer == Writer::THIS
        || DURABLE.get().is_some_and(|(horizon, to)| {
            to >= level
                && now_us.wrapping_sub(horizon.noted_at) < HORIZON_US_MAX
                && now_us >= horizon.noted_at
                && precedes(horizon)
        })
}

#[cold]
fn look_and_wait(writer: Writer, level: i32, now_us: i64, deadline: Deadline) -> bool {
    // SAFETY: reads the state of the transaction.
    if unsafe { harmless::TransactionIdIsCurrentTransactionId(pg_sys::TransactionId::from_inner(writer.xid)) } {
        return true;
    }
    let durable = !in_recovery() || wait_for_upstream(deadline);
    // It may have been promoted meanwhile.
    if in_recovery() || !durable {
        return durable;
    }
    // SAFETY: reads the state of the server, which is not in recovery. The id comes from a row that was just seen, so
    // the server still knows it unless the row is frozen.
    unsafe {
        note_progress(level, now_us);
        if is_known(writer, level, now_us) {
            return true;
        }
        // For a commit that waited for its flush the server gives no position. It could not be seen before the flush.
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

/// Where the last record of the log ends. Every commit that can be seen lies before it.
fn end_of_log() -> u64 {
    // SAFETY: reads the state of the server, which is not in recovery, and a variable that it set at its start.
    let (next, segment_bytes) = unsafe { (pg_sys::GetXLogInsertRecPtr(), pg_sys::wal_segment_size) };
    end_of_last_record(next, segment_bytes as u64)
}

/// The end of the last record, where the next one begins at `next`. If the last record filled its page, `next` lies
/// behind the header of a page that is not written yet. A flush up to `next` would then be an error.
fn end_of_last_record(next: u64, segment_bytes: u64) -> u64 {
    const HEADER: u64 = size_of::<pg_sys::XLogPageHeaderData>() as u64;
    /// The header of a segment's first page is longer.
    const FIRST_HEADER: u64 = size_of::<pg_sys::XLogLongPageHeaderData>() as u64;
    let (in_page, in_segment) = (next % u64::from(pg_sys::XLOG_BLCKSZ), next % segment_bytes);
    match (in_page, in_segment) {
        (_, FIRST_HEADER) => next - FIRST_HEADER,
        (HEADER, _) => next - HEADER,
        _ => next,
    }
}

/// If the next horizon has become durable, remembers it as durable and notes another next horizon.
fn note_progress(level: i32, now_us: i64) {
    if let Some(horizon) = NEXT.get() {
        // SAFETY: reads the state of the server.
        let flushed = unsafe { !pg_sys::XLogNeedsFlush(horizon.position) };
        if !flushed || level != LOCAL && confirmed(level) < horizon.position {
            return;
        }
        DURABLE.set(Some((horizon, level)));
    }
    // SAFETY: reads the active snapshot, if there is one, and the state of the server. The position is read after
    // the snapshot was taken. So it lies behind the commits of all transactions that the snapshot takes as ended.
    let next = unsafe {
        pg_sys::ActiveSnapshotSet().then(|| Horizon {
            below: (*pg_sys::GetActiveSnapshot()).xmin.into_inner(),
            position: end_of_log(),
            noted_at: now_us,
        })
    };
    NEXT.set(next);
}

/// Waits until the synchronous standbys have confirmed the position, or until no standby has to confirm commits any
/// more: no setting names one, or the checkpointer has withdrawn its flag. In the latter case this backend reads the
/// new setting only after its statement.
fn wait_for_standbys(position: u64, deadline: Deadline) -> bool {
    let mut were_defined = false;
    poll(deadline, || {
        let (level, are_defined) = (level_of_commits(), standbys_are_defined());
        let withdrawn = were_defined && !are_defined;
        were_defined |= are_defined;
        level <= LOCAL || confirmed(level) >= position || withdrawn
    })
}

/// Waits until this standby has received what it shows from the server that it follows, or is promoted. A caller that
/// asks for no standby gets what is flushed here.
fn wait_for_upstream(deadline: Deadline) -> bool {
    level_asked_for() <= LOCAL || poll(deadline, || has_received_what_it_shows() || !in_recovery())
}

#[cfg(test)]
mod tests {
    use super::end_of_last_record;

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
}
