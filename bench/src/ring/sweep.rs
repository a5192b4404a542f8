//! A busy sweep: how it slows down the clients beside it.

use std::fs;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};

use crate::finding::{Finding, Goal};
use crate::lab::{DATABASE, Lab};
use crate::plan::Plan;
use crate::ring::load::{finish, rate, script};
use crate::ring::segments::NOT_RESTORED;
use crate::script::Keygen;
use crate::spread::Spread;

/// The rate of clients beside a sweep without pause, compared with their rate without a sweep.
pub fn beside_load(lab: &Lab, plan: &Plan, findings: &mut Vec<Finding>) -> Result<()> {
    let seconds = u64::from(plan.seconds) + 1;
    let (mut idle_ratios, mut busy_ratios) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds as u64 {
        eprintln!("ring: a busy sweep, round {} of {}", round + 1, plan.rounds);
        let (mut without_sweep, mut beside_idle_sweep, mut beside_busy_sweep) = (0.0, 0.0, 0.0);
        // Each round begins with a different one of the three measurements.
        for turn in 0..3 {
            let number = 200 + 3 * round + turn;
            let rate = || rate(lab, number, seconds, &script(Keygen::Ascending));
            match (round + turn) % 3 {
                0 => without_sweep = rate()?,
                1 => {
                    let sweeps = sweep_without_pause(lab, seconds)?;
                    beside_idle_sweep = rate()?;
                    finish(sweeps)?;
                }
                _ => {
                    lab.psql(DATABASE, &format!("{SESSIONS_TO_SWEEP}; {NOT_RESTORED}"))?;
                    let sweeps = sweep_without_pause(lab, seconds)?;
                    beside_busy_sweep = rate()?;
                    let left = lab.psql(DATABASE, "SELECT count(*) FROM idempotence.reply")?;
                    finish(sweeps)?;
                    if left == "0" {
                        bail!("the sweep had too little to do");
                    }
                    lab.psql(DATABASE, "TRUNCATE idempotence.session_live, idempotence.reply; DELETE FROM idempotence.session WHERE ended IS NOT NULL")?;
                }
            }
        }
        idle_ratios.push(beside_idle_sweep / without_sweep);
        busy_ratios.push(beside_busy_sweep / without_sweep);
    }
    let what = "begin and record a second, beside a sweep without pause";
    findings.push(
        Finding::new(format!("{what} that finds nothing to do / without one"), Spread::of(idle_ratios), 2)
            .with_goal(Goal::AtLeast(0.95)),
    );
    findings.push(Finding::new(
        format!("{what} that ends and deletes client sessions / without one"),
        Spread::of(busy_ratios),
        2,
    ));
    Ok(())
}

/// Inserts client sessions that have sent nothing for a long time, and client sessions that ended long ago,
/// with their replies.
const SESSIONS_TO_SWEEP: &str = "
    INSERT INTO idempotence.session_live (id, created_at, last_seen, owner, window_size, ordering, timeout)
    SELECT gen_random_uuid(), now(), now() - interval '1 hour', current_user::regrole, 5, 'a', interval '2 s'
      FROM generate_series(1, 50000);
    WITH s AS (INSERT INTO idempotence.session (id, created_at, ended_at, owner, window_size, require_payload, inbox, time_keys, ordering, ended, timeout)
               SELECT gen_random_uuid(), now(), now() - interval '30 days', current_user::regrole, 5, false, false, false, 'a', 'c', interval '2 s'
                 FROM generate_series(1, 100000) RETURNING id)
    INSERT INTO idempotence.reply (session, first, last, recorded_at, recorded_by, slot, class, stream, response)
    SELECT s.id, n, n, now(), current_user::regrole, n % 5, 's', '', '{\"status\": \"booked\", \"transfer\": 4711}'
      FROM s, generate_series(1, 5) n;
    CHECKPOINT";

/// Starts a connection that calls `idem_sweep` again and again.
fn sweep_without_pause(lab: &Lab, seconds: u64) -> Result<Child> {
    let path = lab.data_dir().join("ring_sweep.sql");
    fs::write(&path, "CALL idem_sweep();\n")?;
    let mut command = lab.program("pgbench");
    command.args(["-n", "-c", "1", "-T", &seconds.to_string(), "-f"]).arg(&path);
    command.arg(format!("{} options='-c client_min_messages=warning'", lab.connect_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot run pgbench")
}
