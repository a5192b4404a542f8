//! The row about a whole transaction: begin, work and record, each a round trip.

use crate::guarded::{CEILING, CLAIMED, DO_SELECT, FLOOR, HAND_WRITTEN, IDEMPOTENCE, claimed, do_select, guarded};
use crate::row::{Comparison, GoalRatio, Metric, OFF_4, Row, cells_off};
use crate::script::{KEY, Keygen};

pub fn row() -> Row {
    let mut variants = guarded(KEY, Keygen::Ascending);
    variants.extend([claimed(KEY, Keygen::Ascending), do_select(KEY, Keygen::Ascending)]);
    Row {
        id: "request",
        title: "Begin, work, record",
        text: "Each client sends the same transaction again and again: `BEGIN`, a first step, the work (one account updated by \
primary key, one line added to a ledger), a second step, `COMMIT`. These are six statements, each a round trip, all prepared. Only \
the two steps differ. *Ceiling*: two `SELECT`s that take the same parameters and do nothing with them. *Floor*: one `INSERT` of \
the outcome's row replaces the second `SELECT`. That is the least that any durable scheme writes, and it protects against nothing. \
*Hand-written*: `INSERT … ON CONFLICT`, then `UPDATE`. Here the client computes the fingerprint, at no cost to the server, whereas \
`idem_begin` is given the payload and digests it. *Idempotence*: the three columns of `idem_begin` that a program needs, then \
`idem_record`. *By a claim*: `idem_claim` in the place of `idem_begin`. It has no answer, and raises an error where the request is not to \
be executed. *DO SELECT* (from PostgreSQL 19 on): hand-written with `ON CONFLICT … DO SELECT`, which returns the row of \
a request that was done in the same statement.",
        variants,
        comparisons: vec![
            Comparison {
                what: "transactions/s, idempotence / floor",
                metric: Metric::Rate,
                numerator: IDEMPOTENCE,
                denominator: FLOOR,
                goal: None,
            },
            Comparison {
                what: "transactions/s, idempotence / hand-written",
                metric: Metric::Rate,
                numerator: IDEMPOTENCE,
                denominator: HAND_WRITTEN,
                goal: Some(GoalRatio(1.05)),
            },
            Comparison {
                what: "transactions/s, idempotence by a claim / hand-written",
                metric: Metric::Rate,
                numerator: CLAIMED,
                denominator: HAND_WRITTEN,
                goal: Some(GoalRatio(1.1)),
            },
            Comparison {
                what: "transactions/s, idempotence / ceiling",
                metric: Metric::Rate,
                numerator: IDEMPOTENCE,
                denominator: CEILING,
                goal: None,
            },
            Comparison {
                what: "transactions/s, hand-written / ceiling",
                metric: Metric::Rate,
                numerator: HAND_WRITTEN,
                denominator: CEILING,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the ceiling's, idempotence / hand-written",
                metric: Metric::CpuBeyond(CEILING),
                numerator: IDEMPOTENCE,
                denominator: HAND_WRITTEN,
                goal: None,
            },
            Comparison {
                what: "transactions/s, idempotence / hand-written, DO SELECT",
                metric: Metric::Rate,
                numerator: IDEMPOTENCE,
                denominator: DO_SELECT,
                goal: None,
            },
            Comparison {
                what: "transactions/s, idempotence by a claim / hand-written, DO SELECT",
                metric: Metric::Rate,
                numerator: CLAIMED,
                denominator: DO_SELECT,
                goal: None,
            },
        ],
        cells: cells_off(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}
