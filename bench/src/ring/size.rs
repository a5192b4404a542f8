//! The size of the tables in the long run.

use anyhow::{Result, bail};

use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab};
use crate::ring::load::{self, CLIENTS, script};
use crate::ring::segments::{NOT_RESTORED, age};
use crate::script::Keygen;
use crate::spread::Spread;

/// The number of cycles, in each of which half of the retention passes.
const CYCLES: u64 = 12;

/// The size of all tables in the last four cycles, compared with their size in the four before: in four cycles the ring comes to
/// where it was.
pub fn after_cycles(lab: &Lab, requests: u64, findings: &mut Vec<Finding>) -> Result<()> {
    lab.fresh_copy()?;
    lab.psql(DATABASE, "CALL idem_sweep(); TRUNCATE idempotence.outcome_0")?;
    let per_client = (requests / u64::from(CLIENTS)).to_string();
    let size = || -> Result<f64> {
        let bytes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                      WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'r'
                         OR relname IN ('pg_class', 'pg_attribute', 'pg_depend', 'pg_index')";
        Ok(lab.psql(DATABASE, bytes)?.parse()?)
    };
    let mut sizes = Vec::new();
    for cycle in 0..CYCLES {
        eprintln!("ring: cycle {} of {CYCLES}", cycle + 1);
        let child = load::start(lab, 600 + cycle, ["-t", &per_client], &script(Keygen::Random), &[])?;
        load::finish(child)?;
        // More than half of the retention.
        let half = "interval '4 days'";
        for table in ["outcome_0", "outcome_1", "outcome_2"] {
            lab.psql(DATABASE, &format!("UPDATE idempotence.{table} SET recorded_at = recorded_at - {half}, expires_at = expires_at - {half}"))?;
        }
        lab.psql(DATABASE, &format!("{}; CALL idem_sweep(); CALL idem_sweep()", age(half)))?;
        sizes.push(size()?);
    }
    let sum = |cycles: &[f64]| cycles.iter().sum::<f64>();
    let ratio = sum(&sizes[8..]) / sum(&sizes[4..8]);
    let what = format!("size of all tables in cycles 9 to {CYCLES} of {requests} requests / in cycles 5 to 8");
    findings.push(Finding::new(what, Spread::of([ratio]), 2).with_goal(Goal::Between(0.8, 1.05)));
    Ok(())
}

/// The number of outcomes that are recorded in half a lap of the ring.
const OUTCOMES_PER_HALF_LAP: u64 = 10_000;
const HALF_LAPS: u64 = 140;
/// The number of half laps for which the long-lived outcomes live.
const LONG_LIFE: u64 = 100;
/// The number of half laps at the end in which the size is measured.
const MEASURED_HALF_LAPS: u64 = 20;

/// The size of the tables of outcomes.
const OUTCOMES_SIZE: &str = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relnamespace = 'idempotence'::regnamespace AND relname ~ '^outcome_[^_]*$' AND relkind = 'r'";

/// The size of the tables of outcomes in steady state if one outcome in a hundred lives fifty times as long as
/// the others, compared with their size without such outcomes.
///
/// Time passes by making the ring older. Outcomes that live for fifty days are written where a record would put them, and
/// expire after [`LONG_LIFE`] half laps.
pub fn with_long_lived(lab: &Lab, findings: &mut Vec<Finding>) -> Result<()> {
    let mut sizes = Vec::new();
    for one_in in [0, 100] {
        eprintln!("ring: {HALF_LAPS} half laps, {} of a hundred live long", u8::from(one_in > 0));
        lab.fresh_copy()?;
        lab.psql(
            DATABASE,
            "CALL idem_sweep(); TRUNCATE idempotence.outcome_0; CREATE TABLE half (number bigint, digest uuid)",
        )?;
        let mut sum_of_sizes = 0.0;
        for half in 0..HALF_LAPS {
            lab.psql(DATABASE, &format!("{}; {NOT_RESTORED}", record_half_lap(lab, half, one_in)?))?;
            let before = lab.psql(DATABASE, OUTCOMES_SIZE)?.parse::<f64>()?;
            lab.psql(DATABASE, &format!("{}; CALL idem_sweep()", age("interval '12 hours 4 minutes'")))?;
            // Autovacuum does the same when a fifth of the rows is dead.
            if half % 20 == 0 {
                lab.psql(DATABASE, "VACUUM idempotence.outcome_long")?;
            }
            if half >= HALF_LAPS - MEASURED_HALF_LAPS {
                // Measure when the current segment is full, and again when the next segment has become current.
                sum_of_sizes += before + lab.psql(DATABASE, OUTCOMES_SIZE)?.parse::<f64>()?;
            }
        }
        if one_in > 0
            && lab.psql(DATABASE, "SELECT count(*) FROM idempotence.outcome_long")?.parse::<u64>()?
                < OUTCOMES_PER_HALF_LAP / 2
        {
            bail!("too few outcomes live long");
        }
        sizes.push(sum_of_sizes);
    }
    let ratio = Spread::of([sizes[1] / sizes[0]]);
    let what = "bytes of outcomes, 1 in 100 living 50 times longer / without them";
    findings.push(Finding::new(what, ratio, 2).with_goal(Goal::AtMost(1.3)));
    Ok(())
}

/// The requests of everybody in half a lap, a quarter of which one role may keep for fifty times as long.
const REQUESTS_PER_HALF_LAP: u64 = 2000;

/// The size of the segments if one role keeps its requests, a quarter of all, fifty times as long as the others keep theirs,
/// compared with their size without that role.
pub fn beside_one_role(lab: &Lab, findings: &mut Vec<Finding>) -> Result<()> {
    let requests = |session: &str, half: u64, count: u64| {
        format!(
            "DO $$ BEGIN FOR n IN 1..{count} LOOP
               PERFORM idem_begin('{session}', '{half} ' || n);
               PERFORM idem_record('{session}', '{half} ' || n, '{{\"status\": \"booked\", \"transfer\": 4711}}');
             END LOOP; END $$"
        )
    };
    let mut sizes = Vec::new();
    for beside in [false, true] {
        eprintln!("ring: segments, beside a role that keeps its outcomes for long: {beside}");
        lab.fresh_copy()?;
        let long = "SELECT idem_create_session('kept for long', ttl => '350 days')";
        lab.psql(DATABASE, &format!("CALL idem_sweep(); TRUNCATE idempotence.outcome_0; {long}"))?;
        let mut sum_of_sizes = 0.0;
        for half in 0..MEASURED_HALF_LAPS {
            lab.psql(DATABASE, &requests("payments", half, REQUESTS_PER_HALF_LAP * 3 / 4))?;
            if beside {
                lab.psql(DATABASE, &requests("kept for long", half, REQUESTS_PER_HALF_LAP / 4))?;
            }
            let segments = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                WHERE relnamespace = 'idempotence'::regnamespace AND relname ~ '^outcome_[0-2]$'";
            sum_of_sizes += lab.psql(DATABASE, segments)?.parse::<f64>()?;
            lab.psql(DATABASE, &format!("{}; CALL idem_sweep()", age("interval '4 days'")))?;
        }
        sizes.push(sum_of_sizes);
    }
    let ratio = Spread::of([sizes[1] / sizes[0]]);
    let what = "bytes of the others' outcomes, 1 in 4 living 50 times longer, made by one role / without that role";
    findings.push(Finding::new(what, ratio, 2).with_goal(Goal::AtMost(1.1)));
    Ok(())
}

/// SQL that records the outcomes of half a lap, and makes those long-lived outcomes expire whose time is over. The end of the current segment stays known.
fn record_half_lap(lab: &Lab, half: u64, one_in: u64) -> Result<String> {
    let current = lab.psql(DATABASE, "SELECT number FROM idempotence.segment WHERE current")?;
    let insert = |table: &str, rows: u64, ttl: &str| {
        format!(
            "INSERT INTO idempotence.outcome_{table} (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
             SELECT gen_random_uuid(), s.id, now(), now() + interval '{ttl}', 10, 's', 'filled {half} ' || n,
                    '{{\"status\": \"booked\", \"transfer\": 4711}}'
               FROM generate_series(1, {rows}) n, idempotence.session s WHERE s.name = 'payments'"
        )
    };
    let short = format!(
        "{}; UPDATE idempotence.segment SET looked_to = NULL WHERE current",
        insert(&current, OUTCOMES_PER_HALF_LAP * 99 / 100, "1 day")
    );
    if one_in == 0 {
        return Ok(short);
    }
    let long = insert("long", OUTCOMES_PER_HALF_LAP / one_in, "50 days");
    let expire = half.checked_sub(LONG_LIFE).map_or(String::new(), |past| {
        format!(
            "UPDATE idempotence.outcome_long SET expires_at = now() - interval '1 hour'
              WHERE digest IN (SELECT digest FROM half WHERE number = {past})"
        )
    });
    Ok(format!(
        "{short}; WITH long AS ({long} RETURNING digest) INSERT INTO half SELECT {half}, digest FROM long; {expire}"
    ))
}
