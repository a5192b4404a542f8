//! What begin and record cost when many outcomes are kept.

use anyhow::Result;

use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::ring::load::{rate, script};
use crate::ring::segments::fill;
use crate::script::Keygen;
use crate::spread::Spread;

/// The number of kept outcomes with which many kept outcomes are compared.
const FEW: u64 = 100_000;

/// The time of begin and record with many kept outcomes, compared with few.
pub fn measure(lab: &Lab, plan: &Plan, findings: &mut Vec<Finding>) -> Result<()> {
    let seconds = u64::from(plan.seconds) + 2;
    let mut times = [Vec::new(), Vec::new()];
    for (kept, times) in [FEW, plan.many].into_iter().zip(&mut times) {
        eprintln!("ring: {kept} kept outcomes");
        lab.fresh_copy()?;
        lab.psql(DATABASE, "TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2")?;
        for segment in 0..3 {
            lab.psql(DATABASE, &fill(segment, kept / 3, false))?;
        }
        lab.psql(DATABASE, "VACUUM (ANALYZE) idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2")?;
        for round in 0..plan.rounds as u64 {
            let rate = rate(lab, 400 + round, seconds, &script(Keygen::Random))?;
            times.push(1.0 / rate);
        }
    }
    let [few, many] = times;
    let ratio = Spread::of(many).median / Spread::of(few).median;
    let what = format!("time of begin and record, random keys, {} kept / {FEW}", plan.many);
    findings.push(Finding::new(what, Spread::of([ratio]), 2).with_goal(Goal::AtMost(1.3)));
    Ok(())
}
