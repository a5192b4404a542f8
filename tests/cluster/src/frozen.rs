//! A process that is stopped for a while.

use idempotence_demo::host;

/// A process that is stopped (SIGSTOP) until this value is dropped.
#[derive(Debug)]
pub struct Frozen(i32);

impl Frozen {
    /// Stops a process.
    pub fn stop(pid: i32) -> Self {
        host::freeze(pid);
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        host::thaw(self.0);
    }
}
