//! The row about the ring of segments: what it costs to empty a segment, what
//! a busy sweep takes, and whether the tables stay as large as they are.

mod emptying;
mod load;
pub mod segments;
mod size;
mod sweep;

use anyhow::Result;

use crate::finding::Finding;
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::row::{OFF_4, Row};

/// The id of the row.
pub const RING: &str = "ring";

pub fn row() -> Row {
    Row {
        id: RING,
        title: "The ring of segments",
        text: "*Emptying*: the sweep empties a segment full of expired outcomes (`TRUNCATE`, its locks taken one by one without \
waiting). This is compared with a plain `TRUNCATE` of a table like it, also with ten times as many rows, and with `DELETE` and `VACUUM` of as \
many rows in the hand-written table. *While it happens*: four clients \
begin and record without a pause. The 99th percentile of their transactions in the second of the emptying is compared with that of \
the second before, and so is that beside `DELETE` and `VACUUM`. *A busy sweep*: the rate of the same clients beside a connection that calls `idem_sweep()` without a pause, on a machine \
that has no processor to spare for it. The worker sweeps for a second in ten at most. *Cycles*: requests are sent, half a \
retention passes, and a sweep comes, again and again. What all tables take in the last four cycles, catalogs included, is compared with \
what they take in the four before. *A few that live long*: one outcome in a hundred has a ttl fifty times that of the others. What \
the tables of outcomes take is averaged over the last laps, when as many of the long-lived outcomes are deleted as come in. It is \
compared with what they take without long-lived outcomes. *One role*: a quarter of the requests are those of a role that keeps them so \
long. What the segments take is compared with what they take without that role.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Measures all that the row shows.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Finding>> {
    let rounds = plan.few_rounds;
    let mut findings = Vec::new();
    lab.fresh_copy()?;
    lab.psql(DATABASE, "CALL idem_sweep()")?;
    emptying::cost(lab, plan.emptied, rounds, &mut findings)?;
    emptying::under_load(lab, plan.emptied, rounds, &mut findings)?;
    sweep::beside_load(lab, plan, &mut findings)?;
    size::after_cycles(lab, plan.wal_transactions, &mut findings)?;
    size::with_long_lived(lab, &mut findings)?;
    size::beside_one_role(lab, &mut findings)?;
    Ok(findings)
}
