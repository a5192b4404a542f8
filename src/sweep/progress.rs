//! The result of a step of the sweep.

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
}
