//! The rows about requests that are a single call each, in which no round trips hide the cost.

use crate::row::{Comparison, Metric, OFF_4, Row, Variant, cells_off};
use crate::script::{COUNT_LEDGER, COUNT_OUTCOMES, COUNT_REQUESTS, KEY, Keygen};

/// The arguments of the function that does the work.
const ARGS: &str = "jsonb_build_object('account', :account::integer, 'amount', :amount::integer)";

/// `idem_run`, compared with a call of the function that it runs.
pub fn run() -> Row {
    let variant = |name, count, sql| Variant::new(name, count, sql, Keygen::Ascending);
    Row {
        id: "run",
        title: "idem_run",
        text: "A PL/pgSQL function does the same work. It is called directly (so the work is done twice when the call is sent \
twice), and it is made idempotent by `idem_run`. Each call is one statement, one round trip, one transaction.",
        variants: vec![
            variant("the function called", COUNT_LEDGER, format!("SELECT pay({ARGS});\n")),
            variant(
                "idem_run",
                COUNT_OUTCOMES,
                format!(
                    "SELECT status, replayed, response FROM idem_run('payments', {KEY}, 'SELECT pay($1)', {ARGS});\n"
                ),
            ),
        ],
        comparisons: vec![Comparison {
            what: "calls/s, idem_run / the function called",
            metric: Metric::Rate,
            numerator: 1,
            denominator: 0,
            goal: None,
        }],
        cells: cells_off(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

/// A function of the user that calls `idem_begin` and `idem_record`.
pub fn procedure() -> Row {
    let variant = |name, count, sql| Variant::new(name, count, sql, Keygen::Ascending);
    Row {
        id: "procedure",
        title: "Inside a function of one's own",
        text: "One PL/pgSQL function does all of a request: without protection, with the check and the record written by hand, and \
with `idem_begin` and `idem_record`. Here no round trips hide what the steps cost.",
        variants: vec![
            variant("unprotected", COUNT_LEDGER, format!("SELECT pay({ARGS});\n")),
            variant("hand-written", COUNT_REQUESTS, format!("SELECT pay_by_hand({KEY}, :fingerprint, {ARGS});\n")),
            variant("idempotence", COUNT_OUTCOMES, format!("SELECT pay_once({KEY}, {ARGS});\n")),
        ],
        comparisons: vec![
            Comparison {
                what: "calls/s, idempotence / hand-written",
                metric: Metric::Rate,
                numerator: 2,
                denominator: 1,
                goal: None,
            },
            Comparison {
                what: "calls/s, idempotence / unprotected",
                metric: Metric::Rate,
                numerator: 2,
                denominator: 0,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the unprotected's, idempotence / hand-written",
                metric: Metric::CpuBeyond(0),
                numerator: 2,
                denominator: 1,
                goal: None,
            },
        ],
        cells: cells_off(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}
