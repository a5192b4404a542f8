//! The row about claims that are committed before the work: begin with a lease, and record with its token.

use crate::row::{Cell, Comparison, GoalRatio, Metric, Row, Variant};
use crate::script::{COUNT_OUTCOMES, KEY, Keygen};

// The positions of the variants in the row.
const HAND_WRITTEN: usize = 0;
const LOGGED: usize = 1;
const UNLOGGED: usize = 2;

/// Counts the requests in the hand-written table with leases.
const COUNT_LEASED_REQUESTS: &str = "SELECT count(*) FROM leased_request";

/// Makes claims logged or unlogged. Autovacuum may be at the table for a moment.
macro_rules! make_claims {
    ($how:literal) => {
        concat!(
            "DO $$ BEGIN LOOP BEGIN PERFORM idem_set_persistence('claims', '",
            $how,
            "'); EXIT; EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.1); END; END LOOP; END $$"
        )
    };
}

pub fn row() -> Row {
    let variant = |name, count, before, sql| Variant { before, ..Variant::new(name, count, sql, Keygen::Ascending) };
    let by_hand = format!(
        "INSERT INTO leased_request (scope, key, fingerprint, leased_until, expires_at)
VALUES ('payments', {KEY}, :fingerprint, now() + interval '30 s', now() + interval '7 days')
ON CONFLICT (scope, key) DO NOTHING RETURNING token \\gset
UPDATE leased_request SET response = :response
WHERE scope = 'payments' AND key = {KEY} AND token = :token;
"
    );
    let ours = format!(
        "SELECT status, token FROM idem_begin('payments', {KEY}, :payload, lease => '30 s') \\gset
SELECT idem_record('payments', {KEY}, :response, token => :token);
"
    );
    let rate = |what, numerator, denominator, goal: Option<f64>| Comparison {
        what,
        metric: Metric::Rate,
        numerator,
        denominator,
        goal: goal.map(GoalRatio),
    };
    let cells: Vec<Cell> = [1, 4, 16].map(|clients| Cell { synchronous: true, clients }).into();
    Row {
        id: "lease",
        title: "Leases",
        text: "The work is outside of the database, so the claim is committed before it, and the outcome after it: two statements, \
two transactions, two round trips. The work itself takes no time here. By hand, that is `INSERT … ON CONFLICT` and an `UPDATE` of \
the row that still has the token, in a logged table. The extension's claims are logged, or unlogged \
(`idem_set_persistence('claims', 'unlogged')`). Its outcomes are always logged.",
        variants: vec![
            variant("hand-written", COUNT_LEASED_REQUESTS, "", by_hand),
            variant("idempotence, claims logged", COUNT_OUTCOMES, make_claims!("logged"), ours.clone()),
            variant("idempotence, claims unlogged", COUNT_OUTCOMES, make_claims!("unlogged"), ours),
        ],
        comparisons: vec![
            rate("requests/s, idempotence, claims logged / hand-written", LOGGED, HAND_WRITTEN, Some(1.0)),
            rate("requests/s, idempotence, claims unlogged / hand-written", UNLOGGED, HAND_WRITTEN, Some(1.4)),
            rate("requests/s, idempotence, claims unlogged / logged", UNLOGGED, LOGGED, None),
        ],
        cells: cells.clone(),
        goal_cells: cells,
    }
}
