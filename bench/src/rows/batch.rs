//! The row about deduplicating a batch of keys.

use crate::row::{Comparison, GoalRatio, Metric, Row, cells};
use crate::variants::in_batches;

pub fn row() -> Row {
    Row {
        id: "once",
        title: "Deduplicating a batch",
        text: "A consumer of events finds out which of 1000 events it has not seen. It does so with one statement for each event, \
each in its own transaction; with the same thousand statements in one transaction; with one call of `idem_once_many`; and, for \
comparison, with one hand-written statement for all events. In the last two cases the server makes up the array of keys, so their \
cost includes that.",
        variants: in_batches().into(),
        comparisons: vec![
            Comparison {
                what: "keys/s, idem_once_many / single statements",
                metric: Metric::Rate,
                numerator: 3,
                denominator: 0,
                goal: None,
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
                goal: Some(GoalRatio(1.2)),
            },
        ],
        cells: cells(&[1, 4]),
        goal_cells: cells(&[1]),
    }
}
