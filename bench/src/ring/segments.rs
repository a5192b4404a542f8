//! SQL that fills a segment, or the table by hand, and that makes the ring older.

/// Fills a segment with outcomes like those of the extension, which have expired or not.
pub fn fill(segment: u64, rows: u64, expired: bool) -> String {
    let expires_at = if expired { "now() - interval '1 day'" } else { "now() + interval '7 days'" };
    // Its end is known, as that of a segment that nothing was restored into.
    format!(
        "{};
         UPDATE idempotence.segment SET closed_at = now(), ends_at = {expires_at}, looked_to = NULL WHERE number = {segment} AND NOT current;
         CHECKPOINT",
        fill_table(&format!("idempotence.outcome_{segment}"), rows, expires_at)
    )
}

/// Rows that were inserted by SQL count as restored, and their keys would be compared with the secret.
pub const NOT_RESTORED: &str = "DELETE FROM idempotence.restore";

/// Fills a table that is made like those of outcomes.
pub fn fill_table(table: &str, rows: u64, expires_at: &str) -> String {
    format!(
        "INSERT INTO {table} (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
         SELECT gen_random_uuid(), s.id, now(), {expires_at}, 10, 's', 'filled ' || n,
                '{{\"status\": \"booked\", \"transfer\": 4711}}'
           FROM generate_series(1, {rows}) n, idempotence.session s WHERE s.name = 'payments';
         {NOT_RESTORED}"
    )
}

/// Fills the hand-written table with as many that have expired.
pub fn fill_by_hand(rows: u64) -> String {
    format!(
        "INSERT INTO request (scope, key, fingerprint, response, expires_at)
         SELECT 'filled', gen_random_uuid(), sha256(n::text::bytea), '{{\"status\": \"booked\", \"transfer\": 4711}}', now() - interval '1 day'
           FROM generate_series(1, {rows}) n"
    )
}

/// Makes the segments older by this interval.
pub fn age(interval: &str) -> String {
    format!(
        "UPDATE idempotence.segment SET opened_at = opened_at - {interval}, closed_at = closed_at - {interval}, ends_at = ends_at - {interval}, looked_at = looked_at - {interval}"
    )
}
