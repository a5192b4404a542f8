//! What the log tells of requests at the commit of their transaction, under `idempotence.log_requests`: a line for each
//! that was recorded, replayed or released. What a savepoint takes back is not told.
//!
//! The lines are made when it happens. At the commit they are only written, and to the log only: what fails there can no
//! longer be taken back, and a client may not know every character of a key.

use crate::guc;
use crate::pg;
use std::cell::RefCell;

thread_local! {
    /// The lines, each with the nesting level that it belongs to.
    static LINES: RefCell<Vec<(i32, String)>> = const { RefCell::new(Vec::new()) };
}

/// Has the commit of this transaction log what became of a request.
pub fn at_commit(line: impl FnOnce() -> String) {
    if guc::log_requests() {
        let line = (pg::nesting_level(), line());
        LINES.with_borrow_mut(|lines| lines.push(line));
    }
}

/// The end of the transaction: logs the lines if it has committed, or was prepared.
pub fn end_transaction(detail: Option<&str>) {
    // An abort must not fail, whatever it interrupts.
    let lines = LINES.with(|lines| lines.try_borrow_mut().map(|mut lines| std::mem::take(&mut *lines)));
    let (Some(detail), Ok(lines)) = (detail, lines) else { return };
    for (_, line) in lines {
        pg::log_line(line, detail.to_owned());
    }
}

/// Forgets what happened in the innermost subtransaction.
pub fn roll_back() {
    let level = pg::nesting_level();
    LINES.with(|lines| lines.try_borrow_mut().map(|mut lines| lines.retain(|(of, _)| *of < level)).ok());
}

/// Makes what happened in the innermost subtransaction part of its parent.
pub fn hand_up() {
    let parent = pg::nesting_level() - 1;
    LINES.with_borrow_mut(|lines| lines.iter_mut().for_each(|(of, _)| *of = (*of).min(parent)));
}
