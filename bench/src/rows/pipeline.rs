//! The row about a whole transaction in one round trip.

use crate::row::{Comparison, GoalRatio, Metric, OFF_4, Row, Variant, cells_off};
use crate::script::{COUNT_LEDGER, COUNT_OUTCOMES, COUNT_REQUESTS, KEY, Keygen, pipeline, transaction};

// The positions of the variants in the row.
const HAND_WRITTEN: usize = 0;
const IDEMPOTENCE: usize = 1;
const CEILING_PIPELINE: usize = 2;
const HAND_WRITTEN_PIPELINE: usize = 3;
const IDEMPOTENCE_PIPELINE: usize = 4;

pub fn row() -> Row {
    let ceiling = [format!("SELECT {KEY}, :payload::jsonb"), format!("SELECT {KEY}, :response::jsonb")];
    let by_hand = [
        format!(
            "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {KEY}, :fingerprint, now() + interval '7 days')"
        ),
        format!("UPDATE request SET response = :response WHERE scope = 'payments' AND key = {KEY}"),
    ];
    let ours = [
        format!("SELECT idem_claim('payments', {KEY}, :payload)"),
        format!("SELECT idem_record('payments', {KEY}, :response)"),
    ];
    let variant = |name, count, [first, second]: &[String; 2], sent: fn(&str, &str) -> String| {
        Variant::new(name, count, sent(first, second), Keygen::Ascending)
    };
    let rate = |what, numerator, denominator, goal: Option<f64>| Comparison {
        what,
        metric: Metric::Rate,
        numerator,
        denominator,
        goal: goal.map(GoalRatio),
    };
    Row {
        id: "pipeline",
        title: "Claim, work, record, in one round trip",
        text: "The same work, in a transaction that needs no answer in between: where the request is not to be executed, its first \
step raises an error. With the extension that step is `idem_claim`. By hand it is an `INSERT` that violates the primary key. \
So the transaction can be sent statement by statement, in six round trips, or as one pipeline, in one. *Ceiling*: the pipeline \
with two `SELECT`s instead of the steps.",
        variants: vec![
            variant("hand-written, six trips", COUNT_REQUESTS, &by_hand, transaction),
            variant("idempotence, six trips", COUNT_OUTCOMES, &ours, transaction),
            variant("ceiling, one pipeline", COUNT_LEDGER, &ceiling, pipeline),
            variant("hand-written, one pipeline", COUNT_REQUESTS, &by_hand, pipeline),
            variant("idempotence, one pipeline", COUNT_OUTCOMES, &ours, pipeline),
        ],
        comparisons: vec![
            rate("transactions/s, idempotence, one pipeline / six trips", IDEMPOTENCE_PIPELINE, IDEMPOTENCE, Some(2.0)),
            rate(
                "transactions/s, one pipeline, idempotence / hand-written",
                IDEMPOTENCE_PIPELINE,
                HAND_WRITTEN_PIPELINE,
                None,
            ),
            rate("transactions/s, six trips, idempotence / hand-written", IDEMPOTENCE, HAND_WRITTEN, None),
            rate("transactions/s, hand-written, one pipeline / six trips", HAND_WRITTEN_PIPELINE, HAND_WRITTEN, None),
            Comparison {
                what: "server CPU beyond the ceiling's, one pipeline, idempotence / hand-written",
                metric: Metric::CpuBeyond(CEILING_PIPELINE),
                numerator: IDEMPOTENCE_PIPELINE,
                denominator: HAND_WRITTEN_PIPELINE,
                goal: None,
            },
        ],
        cells: cells_off(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}
