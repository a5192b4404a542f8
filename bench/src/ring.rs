//! The row about the ring of segments: what it costs to empty a segment, what many kept outcomes cost, what
//! a busy sweep takes, and whether the tables stay as large as they are.

mod emptying;
mod load;
mod many_kept;
mod segments;
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
        text: "*Emptying*: a segment full of expired outcomes, as the sweep does it (`TRUNCATE`, its locks taken one by one without \
waiting), against `DELETE` and `VACUUM` of as many rows in the hand-written table. *While it happens*: four clients begin and record \
without a pause; the 99th percentile of their transactions in the second of the emptying, against that of the second before. *Many \
kept*: time of begin and record under random keys, outcomes spread over the three segments, a third each. *A busy sweep*: the \
same clients' rate beside a connection that calls `idem_sweep()` without a pause, on a machine that has no processor to spare for it; \
the worker sweeps for a second in ten at most. *Cycles*: \
requests, then half a retention passes, and a sweep, again and again; what all tables take at the end, catalogs included, against what they take \
after the third turn. *A few that live long*: one outcome in a hundred has a ttl fifty times that of the others; what the tables of outcomes \
take, on average over the last laps, when as many of the long ones are deleted as come in, against the same without them.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Measures all that the row shows.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Finding>> {
    let rounds = plan.wal_rounds;
    let mut findings = Vec::new();
    lab.fresh_copy()?;
    lab.psql(DATABASE, "CALL idem_sweep()")?;
    emptying::cost(lab, plan.emptied, rounds, &mut findings)?;
    emptying::under_load(lab, plan.emptied, rounds, &mut findings)?;
    sweep::beside_load(lab, plan, &mut findings)?;
    many_kept::measure(lab, plan, &mut findings)?;
    size::after_cycles(lab, plan.wal_transactions, &mut findings)?;
    size::with_long_lived(lab, &mut findings)?;
    Ok(findings)
}
