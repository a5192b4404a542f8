//! The four ways to guard a transaction, which several rows compare.

use crate::row::Variant;
use crate::script::{COUNT_FLOOR_OUTCOMES, COUNT_LEDGER, COUNT_OUTCOMES, COUNT_REQUESTS, Keygen, transaction};

// The positions of the variants in the list that `guarded` gives.
pub const CEILING: usize = 0;
pub const FLOOR: usize = 1;
pub const HAND_WRITTEN: usize = 2;
pub const IDEMPOTENCE: usize = 3;
/// The position of what [`claimed`] gives, where it comes after these.
pub const CLAIMED: usize = 4;
/// The position of what [`do_select`] gives, where it comes after that.
pub const DO_SELECT: usize = 5;

/// The same transaction, guarded in each of the four ways.
pub fn guarded(key: &str, keygen: Keygen) -> Vec<Variant> {
    let variant = |name, count, sql| Variant::new(name, count, sql, keygen);
    vec![
        variant(
            "ceiling",
            COUNT_LEDGER,
            transaction(&format!("SELECT {key}, :payload::jsonb"), &format!("SELECT {key}, :response::jsonb")),
        ),
        variant(
            "floor",
            COUNT_FLOOR_OUTCOMES,
            transaction(
                &format!("SELECT {key}, :payload::jsonb"),
                &format!(
                    "INSERT INTO outcome (id, session, recorded_at, expires_at, recorded_by, class, key, response)
VALUES (({key})::uuid, '01990000-0000-7000-8000-000000000000', now(), now() + interval '7 days', 10, 's', {key}, :response)"
                ),
            ),
        ),
        variant(
            "hand-written",
            COUNT_REQUESTS,
            transaction(
                &format!(
                    "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {key}, :fingerprint, now() + interval '7 days')
ON CONFLICT (scope, key) DO NOTHING RETURNING true"
                ),
                &format!("UPDATE request SET response = :response WHERE scope = 'payments' AND key = {key}"),
            ),
        ),
        variant(
            "idempotence",
            COUNT_OUTCOMES,
            transaction(
                &format!("SELECT status, replayed, response FROM idem_begin('payments', {key}, :payload)"),
                &format!("SELECT idem_record('payments', {key}, :response)"),
            ),
        ),
    ]
}

/// The first major version that has `ON CONFLICT … DO SELECT`.
pub const DO_SELECT_SINCE: u32 = 19;

/// The hand-written first step where the same statement also returns the row of a request that was done.
pub fn insert_or_select(key: &str) -> String {
    format!(
        "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {key}, :fingerprint, now() + interval '7 days')
ON CONFLICT (scope, key) DO SELECT RETURNING response, fingerprint"
    )
}

/// The same transaction, guarded by hand with `ON CONFLICT … DO SELECT`.
pub fn do_select(key: &str, keygen: Keygen) -> Variant {
    let update = format!("UPDATE request SET response = :response WHERE scope = 'payments' AND key = {key}");
    let sql = transaction(&insert_or_select(key), &update);
    Variant { since: DO_SELECT_SINCE, ..Variant::new("hand-written, DO SELECT", COUNT_REQUESTS, sql, keygen) }
}

/// The same transaction, guarded by a claim.
pub fn claimed(key: &str, keygen: Keygen) -> Variant {
    Variant::new(
        "idempotence, by a claim",
        COUNT_OUTCOMES,
        transaction(
            &format!("SELECT idem_claim('payments', {key}, :payload)"),
            &format!("SELECT idem_record('payments', {key}, :response)"),
        ),
        keygen,
    )
}
