//! Large responses.

use anyhow::Result;

use super::ends::{End, GOAL, Grown};
use super::ground::Ground;
use crate::count::Load;
use crate::finding::{Finding, Goal};
use crate::script::{KEY, Keygen};
use crate::spread::Spread;

/// The sizes in bytes, with the transactions that are counted, and those if it has to be quick.
const SIZES: [(u64, u64, u64); 3] = [(100, 5_000, 2_000), (10_000, 2_000, 500), (1_000_000, 100, 40)];

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    ground.fresh()?;
    let record = ways(
        &format!(
            "SELECT status, replayed, response FROM idem_begin('payments', {KEY}, :payload);\nSELECT idem_record('payments', {KEY}, :body)"
        ),
        &format!(
            "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {KEY}, :fingerprint, now() + interval '7 days') ON CONFLICT (scope, key) DO NOTHING RETURNING true;
UPDATE request SET response = :body WHERE scope = 'payments' AND key = {KEY}"
        ),
        |statements| format!("{}BEGIN;\n{statements};\nCOMMIT;\n", Keygen::Ascending.script()),
    );
    let replay = ways(
        "SELECT status, replayed, response FROM idem_begin('payments', 'kept ' || :size, :payload)",
        "SELECT response FROM request WHERE scope = 'payments' AND key = 'kept ' || :size",
        |statement| format!("{statement};\n"),
    );
    for (what, [ours, by_hand]) in [("begin, record", record), ("replay", replay)] {
        let (mut ends, mut hand_ends) = (Vec::new(), Vec::new());
        for (size, complete, quick) in SIZES {
            if what == "begin, record" {
                keep(ground, size)?;
            }
            let first = format!("SELECT body FROM answer WHERE size = {size} \\gset\n");
            let variables = [("size", size)];
            for (script, name, ends) in [(&ours, "idempotence", &mut ends), (&by_hand, "by hand", &mut hand_ends)] {
                let more = ground.quick_or(quick, complete);
                let load = Load { first: &first, variables: &variables, ..Load::new(script, more / 5, more) };
                let costs = ground.costs(&format!("responses of {size} bytes, {what}, {name}"), &load)?;
                ends.push(End { name: name.into(), costs });
            }
        }
        grown.findings.push(each_byte(&format!("Responses: {what}"), &ends, Some(GOAL)));
        grown.findings.push(each_byte(&format!("Responses: {what} by hand"), &hand_ends, None));
        for ((ours, by_hand), (size, ..)) in ends.into_iter().zip(hand_ends).zip(SIZES) {
            grown.compare(format!("Responses of {size} bytes: {what}"), [by_hand, ours], Some(GOAL));
        }
    }
    Ok(())
}

/// The scripts of a step, with the extension and by hand.
fn ways(ours: &str, by_hand: &str, script: impl Fn(&str) -> String) -> [String; 2] {
    [script(ours), script(by_hand)]
}

/// Makes a response of this size, and keeps it under a key of its own.
fn keep(ground: &Ground<'_>, size: u64) -> Result<()> {
    let payload = r#"'{"account": 4711, "amount": 250, "note": "rent for May"}'"#;
    ground.psql(&format!(
        "CALL make_answer({size});
         BEGIN;
         SELECT idem_claim('payments', 'kept {size}', {payload});
         SELECT idem_record('payments', 'kept {size}', body::jsonb) FROM answer WHERE size = {size};
         COMMIT;
         INSERT INTO request (scope, key, response, expires_at)
         SELECT 'payments', 'kept {size}', body::jsonb, now() + interval '7 days' FROM answer WHERE size = {size}"
    ))?;
    Ok(())
}

/// What a byte more costs from the middle to the last size, against from the first to the middle one.
fn each_byte(what: &str, ends: &[End], goal: Option<Goal>) -> Finding {
    let ratio = |round: usize| {
        let number = |place: usize| ends[place].costs[round].number();
        let each = |from: usize, to: usize| (number(to) - number(from)) / (SIZES[to].0 - SIZES[from].0) as f64;
        each(1, 2) / each(0, 1)
    };
    let ratios = Spread::of((0..ends[0].costs.len()).map(ratio));
    let what = format!("{what}: a byte more, {} / {} bytes", SIZES[2].0, SIZES[1].0);
    Finding { goal, ..Finding::new(what, ratios, 2) }
}
