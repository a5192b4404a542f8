//! What a test asks the server about the worker, and the request that saves a session.

use std::time::Duration;

/// The worker may hold nobody up for longer than this.
pub const PROMPT: Duration = Duration::from_secs(2);

pub const LAUNCHERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'";

/// Whether this database was swept since the server started.
pub const SWEPT: &str = "SELECT idempotence.last_sweep() > pg_postmaster_start_time()";

/// SQL that executes a request of a client session, so that the session is saved.
pub fn send(session: &str, number: i32) -> String {
    format!(
        "BEGIN; SELECT FROM idem_begin('{session}', {number});
         SELECT FROM idem_record('{session}', {number}, '1'); COMMIT"
    )
}
