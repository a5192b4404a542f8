//! What the log tells of requests at the commit of their transaction, under `idempotence.log_requests`: a line for each
//! that was recorded, replayed or released. What a savepoint takes back is not told.
//!
//! The lines are made when it happens. At the commit they are only written, and to the log only: what fails there can no
//! longer be taken back, and a client may not know every character of a key.

use crate::guc;
use crate::pg;

/// The lines, each with the nesting level that it belongs to.
static LINES: pg::Own<Vec<(i32, String)>> = pg::Own::new();

/// Has the commit of this transaction log what became of a request.
pub fn at_commit(line: impl FnOnce() -> String) {
    if guc::log_requests() {
        let line = (pg::nesting_level(), line());
        LINES.with(|lines| lines.push(line));
    }
}

/// The end of the transaction: logs the lines if it has committed, or was prepared.
pub fn end_transaction(detail: Option<&str>) {
    let lines = LINES.take();
    let Some(detail) = detail else { return };
    for (_, line) in lines {
        pg::log_line(&line, detail, "");
    }
}

/// Forgets what happened in the innermost subtransaction.
pub fn roll_back() {
    let level = pg::nesting_level();
    LINES.with(|lines| lines.retain(|(of, _)| *of < level));
}

/// Makes what happened in the innermost subtransaction part of its parent.
pub fn hand_up() {
    let parent = pg::nesting_level() - 1;
    LINES.with(|lines| lines.iter_mut().for_each(|(of, _)| *of = (*of).min(parent)));
}
