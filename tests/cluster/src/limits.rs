//! How long a test waits.

use std::time::Duration;

/// A test fails if it has waited for anything for longer than this.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The longest wait of a client for another client, as SQL. On any machine, a client that waits for longer
/// is stuck.
pub const PATIENCE: &str = "2 min";
