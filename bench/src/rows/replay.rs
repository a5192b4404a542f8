//! The row about requests that come again.

use crate::guarded::{DO_SELECT_SINCE, insert_or_select};
use crate::row::{Cell, Comparison, Metric, OFF_4, Row, Variant};
use crate::script::{COUNT_OUTCOMES, COUNT_REQUESTS, KEY, Keygen};

/// The columns that a program needs.
const COLUMNS: &str = "status, replayed, response";

pub fn row() -> Row {
    let variant = |name, count, sql| Variant { new_keys: 0, ..Variant::new(name, count, sql, Keygen::Kept) };
    Row {
        id: "replay",
        title: "Replays",
        text: "A request that was done comes again. Its answer is read in a transaction of its own, and its key is drawn from all \
keys that are kept. By hand, that is a `SELECT` by primary key, which compares no payload, or from PostgreSQL 19 on \
the `INSERT … ON CONFLICT … DO SELECT` that also begins a request; it returns the fingerprint, which the client \
compares. Nothing is written, so `synchronous_commit` makes no difference.",
        variants: vec![
            variant(
                "SELECT by hand",
                COUNT_REQUESTS,
                format!("SELECT response FROM request WHERE scope = 'payments' AND key = {KEY};\n"),
            ),
            variant("idem_begin", COUNT_OUTCOMES, format!("SELECT {COLUMNS} FROM idem_begin('payments', {KEY});\n")),
            variant(
                "idem_begin with payload",
                COUNT_OUTCOMES,
                format!("SELECT {COLUMNS} FROM idem_begin('payments', {KEY}, :payload);\n"),
            ),
            variant("idem_lookup", COUNT_OUTCOMES, format!("SELECT {COLUMNS} FROM idem_lookup('payments', {KEY});\n")),
            Variant {
                since: DO_SELECT_SINCE,
                ..variant("DO SELECT by hand", COUNT_REQUESTS, format!("{};\n", insert_or_select(KEY)))
            },
        ],
        comparisons: vec![
            Comparison {
                what: "replays/s, idem_begin / SELECT by hand",
                metric: Metric::Rate,
                numerator: 1,
                denominator: 0,
                goal: None,
            },
            Comparison {
                what: "replays/s, idem_begin with payload / SELECT by hand",
                metric: Metric::Rate,
                numerator: 2,
                denominator: 0,
                goal: None,
            },
            Comparison {
                what: "replays/s, idem_lookup / SELECT by hand",
                metric: Metric::Rate,
                numerator: 3,
                denominator: 0,
                goal: None,
            },
            Comparison {
                what: "replays/s, idem_begin with payload / DO SELECT by hand",
                metric: Metric::Rate,
                numerator: 2,
                denominator: 4,
                goal: None,
            },
        ],
        cells: [1, 4, 16].map(|clients| Cell { synchronous: false, clients }).into(),
        goal_cells: vec![OFF_4],
    }
}
