//! Lines of the server's log that are written while a request is open name the request. So what the log tells of the time
//! before an outage can be held against what was recorded. Neither a payload nor a response goes there.

use crate::guc;
use crate::open;
use crate::pg;

/// Has the lines named, once a process.
pub fn init() {
    pg::add_log_context(context);
}

/// The line of CONTEXT, if a request is open.
fn context() -> Option<String> {
    if !guc::log_context() {
        return None;
    }
    let (name, others) = open::last_open()?;
    Some(match others {
        0 => name.to_string(),
        others => format!("{name}, and {others} more"),
    })
}
