//! The statements on a journal. Each names a request by its tenant, its session and its key: the parameters $1 to $3.

use pgrx::pg_sys;

/// What is done to the row of a request.
#[derive(Clone, Copy)]
pub enum Act {
    /// Inserts it, unless it is there.
    Claim,
    /// Reads it.
    Look,
    /// Reads it and locks it to the end of the transaction.
    Lock,
    /// Reads it and locks it, unless another transaction has it locked.
    TryLock,
    /// Makes it an outcome.
    Record,
    /// Gives it a lease.
    Lease,
    /// Gives it a checkpoint.
    Checkpoint,
    /// Takes its lease away.
    EndLease,
    /// Takes its response and its state away.
    Redact,
    /// Deletes it.
    Delete,
}

/// The columns that are read, in their order.
pub mod place {
    use crate::store::tuple::places;

    places!(
        pub STATUS, RESPONSE, FINGERPRINT, TOKEN, RECORDED_AT, EXPIRES_AT, ATTEMPT, BEGUN_AT, LEASED_UNTIL, WRITTEN_AT,
        POINT, STATE, HOLDER, APPLICATION, WRITER
    );
}

const READ: &str = "j.status, j.response, j.fingerprint, j.token, j.recorded_at, j.expires_at, j.attempt, j.begun_at, \
                    j.leased_until, j.written_at, j.point, j.state, j.holder, j.application";

/// What an unfinished request has none of.
const NO_OUTCOME: &str = "status = NULL, response = NULL, recorded_at = NULL, recorded_by = NULL";

/// What a request without a lease has none of.
const NO_LEASE: &str = "attempt = NULL, begun_at = NULL, leased_until = NULL, holder = NULL, application = NULL";

impl Act {
    /// How many there are.
    pub const COUNT: usize = Act::Delete as usize + 1;

    /// The statement on the journal `table`, whose rows are named `rows`.
    pub fn text(self, table: &str, rows: &str, tenant: &str, is_local: bool) -> String {
        let is_its = format!(
            "j.{tenant} OPERATOR(pg_catalog.=) $1 AND j.session OPERATOR(pg_catalog.=) $2 AND j.request OPERATOR(pg_catalog.=) $3"
        );
        // Where Citus keeps the row, its writer is a transaction of another server.
        let writer = if is_local { ", j.xmin" } else { "" };
        let select = format!("SELECT {READ}{writer} FROM {rows} j WHERE {is_its}");
        let update = |columns: &str| format!("UPDATE {rows} j SET {columns} WHERE {is_its}");
        match self {
            Act::Claim => format!(
                "INSERT INTO {table} ({tenant}, session, request, expires_at) VALUES ($1, $2, $3, $4)
                 ON CONFLICT ({tenant}, session, request) DO NOTHING"
            ),
            Act::Look => select,
            Act::Lock => format!("{select} FOR NO KEY UPDATE"),
            Act::TryLock => format!("{select} FOR NO KEY UPDATE SKIP LOCKED"),
            // The row says already until when it counts, a little longer than it has to. If that will do, the column stays
            // as it is, and so does the index on it.
            Act::Record => format!(
                "{} RETURNING expires_at",
                update(&format!(
                    "status = $4, response = $5, fingerprint = $6, token = $7, recorded_at = $8, recorded_by = $9, {NO_LEASE},
                     expires_at = CASE WHEN j.expires_at OPERATOR(pg_catalog.>=) $10 AND j.expires_at OPERATOR(pg_catalog.<=) $11
                                       THEN j.expires_at ELSE $10 END,
                     point = NULL, state = NULL, written_at = NULL"
                ))
            ),
            Act::Lease => update(&format!(
                "{NO_OUTCOME}, fingerprint = $4, token = $5, attempt = $6, begun_at = $7, leased_until = $8, holder = $9,
                 application = $10, expires_at = $11"
            )),
            Act::Checkpoint => update(&format!(
                "{NO_OUTCOME}, point = $4, state = $5, fingerprint = $6, written_at = $7, expires_at = $8"
            )),
            Act::EndLease => update(&format!("token = NULL, {NO_LEASE}")),
            Act::Redact => update("response = NULL, state = NULL"),
            Act::Delete => format!("DELETE FROM {rows} j WHERE {is_its}"),
        }
    }

    /// The lock that the statement takes on its tables.
    pub fn lock(self) -> u32 {
        match self {
            Act::Look => pg_sys::AccessShareLock,
            Act::Lock | Act::TryLock => pg_sys::RowShareLock,
            _ => pg_sys::RowExclusiveLock,
        }
    }
}
