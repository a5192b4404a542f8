//! The row about deduplicating a batch of keys.

use crate::row::{Comparison, GoalRatio, Metric, Row, Variant, cells};
use crate::script::{COUNT_OUTCOMES, COUNT_REQUESTS, KEY, Keygen};

/// The number of keys in a batch.
const BATCH: u32 = 1000;

pub fn row() -> Row {
    let prefix = "'01' || :t || '-' || :u || '-7a3c-8b5c-' || :c";
    let keys = format!("ARRAY(SELECT {prefix} || i FROM generate_series(1000, {}) i)", 999 + BATCH);
    let insert = |key: &str| {
        format!(
            "INSERT INTO request (scope, key, expires_at) VALUES ('events', {key}, now() + interval '7 days') ON CONFLICT (scope, key) DO NOTHING"
        )
    };
    let mut one_by_one = String::from("BEGIN;\n");
    for i in 1000..1000 + BATCH {
        one_by_one += &format!("{};\n", insert(&format!("{prefix} || '{i}'")));
    }
    one_by_one += "COMMIT;\n";
    let batch =
        |name, count, sql| Variant { keys: BATCH, new_keys: BATCH, ..Variant::new(name, count, sql, Keygen::Batch) };
    let by_hand = format!(
        "INSERT INTO request (scope, key, expires_at) SELECT 'events', k, now() + interval '7 days' FROM unnest({keys}) k
ON CONFLICT (scope, key) DO NOTHING RETURNING key"
    );
    Row {
        id: "once",
        title: "Deduplicating a batch",
        text: "A consumer of events finds out which of 1000 events it has not seen. It does so with one statement for each event, \
each in its own transaction; with the same thousand statements in one transaction; with one call of `idem_once_many`; and, for \
comparison, with one hand-written statement for all events. In the last two cases the server makes up the array of keys, so their \
cost includes that.",
        variants: vec![
            Variant::new("single statements", COUNT_REQUESTS, format!("{};\n", insert(KEY)), Keygen::Ascending),
            batch("1000 statements, one transaction", COUNT_REQUESTS, one_by_one),
            batch(
                "one statement by hand",
                COUNT_REQUESTS,
                format!("WITH new AS ({by_hand}) SELECT count(*) FROM new;\n"),
            ),
            batch(
                "idem_once_many",
                COUNT_OUTCOMES,
                format!("SELECT count(*) FROM idem_once_many('events', {keys});\n"),
            ),
        ],
        comparisons: vec![
            Comparison {
                what: "keys/s, idem_once_many / single statements",
                metric: Metric::Rate,
                numerator: 3,
                denominator: 0,
                goal: Some(GoalRatio(20.0)),
            },
            Comparison {
                what: "keys/s, idem_once_many / 1000 statements, one transaction",
                metric: Metric::Rate,
                numerator: 3,
                denominator: 1,
                goal: None,
            },
            Comparison {
                what: "keys/s, idem_once_many / one statement by hand",
                metric: Metric::Rate,
                numerator: 3,
                denominator: 2,
                goal: None,
            },
        ],
        cells: cells(&[1, 4]),
        goal_cells: cells(&[1]),
    }
}
