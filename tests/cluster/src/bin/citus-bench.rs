//! What the two-phase commit costs on a Citus coordinator: requests with an effect on one worker, with it and without
//! it, in rounds that alternate; once with disks that are waited for and once without. `bench/citus.sh` runs this. All
//! servers are on one machine, so only the ratio says something.

use std::env;
use std::fs;

use anyhow::{Context, Result};
use idempotence_cluster_tests::LIMIT;
use idempotence_cluster_tests::citus::{Citus, DATABASE, PRELOADED};
use idempotence_demo::host::run;

/// A request as a program sends it, and the same effect without a request.
const REQUEST: &str = r"\set tenant random(1, 100000)
\set key random(1, 9000000000000000000)
BEGIN;
SELECT status FROM idem_begin('payments', 'order-' || :key);
INSERT INTO effect VALUES (:tenant, :key);
SELECT FROM idem_record('payments', 'order-' || :key, '{}');
COMMIT;
";
const BARE: &str = r"\set tenant random(1, 100000)
\set key random(1, 9000000000000000000)
BEGIN;
INSERT INTO effect VALUES (:tenant, :key);
COMMIT;
";

/// What is compared: a name, the script, and options of the connection.
const WAYS: [(&str, &str, &str); 3] = [
    ("two phases", REQUEST, "-c idempotence.coordinate=auto"),
    ("one phase", REQUEST, "-c idempotence.coordinate=off"),
    ("no request", BARE, ""),
];

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<()> {
    for fsync in ["on", "off"] {
        compare(fsync)?;
    }
    Ok(())
}

fn compare(fsync: &str) -> Result<()> {
    let (rounds, seconds, clients) = (number("ROUNDS", 5), number("ROUND_SECONDS", 10), number("CLIENTS", 8));
    let citus = Citus::start_with(2, PRELOADED, &[("fsync", fsync)])?;
    let coordinator = citus.coordinator();
    coordinator.psql(
        DATABASE,
        "CREATE TABLE effect (tenant int, key bigint); SELECT create_distributed_table('effect', 'tenant');
         SELECT idem_create_session('payments')",
    )?;
    let mut rates = vec![Vec::new(); WAYS.len()];
    for _ in 0..rounds {
        for ((name, script, options), rates) in WAYS.iter().zip(&mut rates) {
            let file = coordinator.home().join("script.sql");
            fs::write(&file, script)?;
            let mut pgbench = coordinator.program("pgbench");
            pgbench.args(["-n", "-M", "prepared", "-j", "2", "-c", &clients.to_string(), "-T", &seconds.to_string()]);
            pgbench.arg("-f").arg(&file).arg(coordinator.connect_string(DATABASE, "postgres"));
            let told = run(pgbench.env("PGOPTIONS", options), None, LIMIT).with_context(|| (*name).to_owned())?;
            let rate =
                told.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
            rates.push(rate.with_context(|| told.clone())?);
        }
    }
    // What the servers write to their logs is printed at their end.
    drop(citus);
    let what = format!("fsync {fsync}, {clients} clients, an effect on one worker of two");
    println!("requests a second, {what}, median of {rounds} rounds of {seconds} s:");
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    for ((name, ..), median) in WAYS.iter().zip(&medians) {
        println!("  {name:12} {median:8.0}   {:.2} of one phase", median / medians[1]);
    }
    Ok(())
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
