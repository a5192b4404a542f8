//! SQL that fills a segment, or the table by hand, and that makes the ring older.

/// Fills a segment with outcomes like those of the extension, which have expired or not.
pub fn fill(segment: u64, rows: u64, expired: bool) -> String {
    let (expires_at, closed_at) = if expired {
        ("now() - interval '1 day'", "now() - interval '60 days'")
    } else {
        ("now() + interval '7 days'", "now()")
    };
    format!(
        "INSERT INTO idempotence.outcome_{segment} (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
         SELECT gen_random_uuid(), s.id, now(), {expires_at}, 10, 's', 'filled ' || n,
                '{{\"status\": \"booked\", \"transfer\": 4711}}'
           FROM generate_series(1, {rows}) n, idempotence.session s WHERE s.name = 'payments';
         UPDATE idempotence.segment SET closed_at = {closed_at} WHERE number = {segment} AND NOT current;
         CHECKPOINT"
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
        "UPDATE idempotence.segment SET opened_at = opened_at - {interval}, closed_at = closed_at - {interval}, looked_at = looked_at - {interval}"
    )
}
