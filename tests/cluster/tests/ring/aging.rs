//! How a test lets time pass without waiting.

/// SQL that lets this time pass for the outcomes and for the segments.
pub fn time_passes(hours: i64) -> String {
    let outcomes: String = ["0", "1", "2", "long"]
        .iter()
        .map(|n| {
            format!(
                "UPDATE idempotence.outcome_{n} SET recorded_at = recorded_at - interval '{hours} hours',
                                                    expires_at = expires_at - interval '{hours} hours';"
            )
        })
        .collect();
    format!(
        "{outcomes} UPDATE idempotence.segment SET opened_at = opened_at - interval '{hours} hours',
                                                   closed_at = closed_at - interval '{hours} hours',
                                                   looked_at = looked_at - interval '{hours} hours';
         UPDATE recorded SET expires_at = expires_at - interval '{hours} hours'"
    )
}
