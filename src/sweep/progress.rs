//! What a step of the sweep came to.

/// What one transaction of a step came to.
#[derive(Default)]
pub struct Progress {
    /// What was done, in words.
    pub done: Vec<String>,
    /// What could not be done, and who is in the way.
    pub delayed: Vec<String>,
    /// Whether the step has more to do.
    pub more: bool,
}

impl Progress {
    /// What a step did, counted; nothing where the count is 0.
    pub fn counted(count: usize, what: &str, more: bool) -> Progress {
        let done = if count > 0 { vec![format!("{what}: {count}")] } else { Vec::new() };
        Progress { done, delayed: Vec::new(), more }
    }
}
