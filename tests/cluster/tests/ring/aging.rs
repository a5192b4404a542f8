//! How a test lets time pass without waiting.

/// SQL that lets this time pass for the outcomes and for the segments. All connections read anew where the ring stands.
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
        "{outcomes} {} UPDATE recorded SET expires_at = expires_at - interval '{hours} hours'",
        clock_goes(&format!("- interval '{hours} hours'"))
    )
}

/// SQL that moves all that was noted of the ring by this, as if the clock had been another then.
pub fn clock_goes(by: &str) -> String {
    format!(
        "UPDATE idempotence.segment SET opened_at = opened_at {by}, closed_at = closed_at {by}, ends_at = ends_at {by},
                                        looked_at = looked_at {by};
         ALTER TABLE idempotence.segment RESET (fillfactor);"
    )
}
