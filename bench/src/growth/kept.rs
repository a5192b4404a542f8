//! Many kept outcomes.

use anyhow::{Result, ensure};

use super::ends::{End, GOAL, Grown};
use super::ground::{Ground, by_hand, request};
use crate::count::Load;
use crate::ring::segments::age;
use crate::script::{KEY, Keygen, RANDOM_KEY};

/// The number of outcomes that one statement brings.
const PART: u64 = 250_000;

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    let replay = format!(
        "{}SELECT status, replayed, response FROM idem_begin('payments', {KEY}, :payload);\n",
        Keygen::Kept.script()
    );
    let select =
        format!("{}SELECT response FROM request WHERE scope = 'payments' AND key = {KEY};\n", Keygen::Kept.script());
    let ways = [
        ("Kept: begin, record, UUIDv7 keys", Some(GOAL), request(Keygen::Ascending, "'payments'", KEY)),
        ("Kept: begin, record, random keys", Some(GOAL), request(Keygen::Random, "'payments'", RANDOM_KEY)),
        ("Kept: hand-written, random keys", None, by_hand(Keygen::Random, RANDOM_KEY)),
        ("Kept: replay", Some(GOAL), replay),
        ("Kept: SELECT by primary key", None, select),
    ];
    let sizes = [ground.quick_or(10_000, 100_000), ground.quick_or(300_000, ground.plan.many)];
    let mut ends: [Vec<End>; 2] = Default::default();
    for (kept, ends) in sizes.into_iter().zip(&mut ends) {
        fill(ground, kept)?;
        for (what, _, script) in &ways {
            let variables = [("kept", kept / 2)];
            let load = Load { variables: &variables, ..Load::new(script, 500, ground.quick_or(3_000, 10_000)) };
            ends.push(End { name: kept.to_string(), costs: ground.costs(&format!("{what}, {kept}"), &load)? });
        }
    }
    grown.tell_memory(ways[0].0, &ends[1][0]);
    let [small, large] = ends;
    for ((what, goal, _), ends) in ways.into_iter().zip(small.into_iter().zip(large)) {
        grown.compare(what, ends.into(), goal);
    }
    Ok(())
}

/// Fills the segments and the hand-written table with so many outcomes. Each second one has a random key.
fn fill(ground: &Ground<'_>, kept: u64) -> Result<()> {
    eprintln!("growth: keeping {kept} outcomes");
    ground.fresh()?;
    let key = "CASE WHEN n % 2 = 0 THEN kept_key(n / 2) ELSE kept_random_key(n) END";
    for third in 0..3 {
        for from in (kept * third / 3 + 1..=kept * (third + 1) / 3).step_by(PART as usize) {
            let to = (kept * (third + 1) / 3).min(from + PART - 1);
            ground.psql(&format!(
                "SELECT * FROM idem_import('payments', $$
                   SELECT {key} AS key, '{{\"account\": 4711, \"amount\": 250, \"note\": \"rent for May\"}}'::jsonb AS payload,
                          '{{\"status\": \"booked\", \"transfer\": 4711}}'::jsonb AS response FROM generate_series({from}, {to}) n $$, 'the benchmark');
                 INSERT INTO request (scope, key, fingerprint, response, expires_at)
                 SELECT 'payments', {key}, sha256(n::text::bytea), '{{\"status\": \"booked\", \"transfer\": 4711}}', now() + interval '7 days'
                   FROM generate_series({from}, {to}) n;
                 CHECKPOINT"
            ))?;
        }
        if third < 2 {
            // The ring turns when half of the time has passed that outcomes are kept for.
            ground.psql(&format!("{}; CALL idem_sweep(); CALL idem_sweep()", age("interval '3 days 14 hours'")))?;
        }
    }
    for table in ["idempotence.outcome_0", "idempotence.outcome_1", "idempotence.outcome_2", "request"] {
        ground.psql(&format!("VACUUM (ANALYZE) {table}"))?;
    }
    let least = ground.psql(
        "SELECT least((SELECT count(*) FROM idempotence.outcome_0), (SELECT count(*) FROM idempotence.outcome_1),
                      (SELECT count(*) FROM idempotence.outcome_2))",
    )?;
    ensure!(least.parse::<u64>()? >= kept / 3, "a segment has {least} outcomes only");
    Ok(())
}
