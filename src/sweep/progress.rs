//! The result of a step of the sweep.

use crate::error::Error;
use crate::store::sql;

/// The result of one transaction of a step.
#[derive(Default)]
pub struct Progress {
    /// What was done, in words, for notices and the log.
    pub done: Vec<String>,
    /// What could not be done yet, and who is in the way, in words.
    pub delayed: Vec<String>,
    /// Whether the step has more to do.
    pub more: bool,
}

impl Progress {
    /// The result of a step that counts what it does. Where the count is 0 nothing is said.
    pub fn counted(count: usize, what: &str, more: bool) -> Progress {
        let done = if count > 0 { vec![format!("{what}: {count}")] } else { Vec::new() };
        Progress { done, delayed: Vec::new(), more }
    }

    /// Notes what cannot be done yet, since somebody has a lock. The query names who that is.
    pub fn delay(&mut self, what: &str, query: &str) -> Result<(), Error> {
        let by = match sql::first::<String>(query)? {
            Some(holders) => format!("held by {holders}"),
            None => "whoever held it has just let go".into(),
        };
        self.delayed.push(format!("{what} yet: {by}"));
        Ok(())
    }
}
