//! The ring of segments: what emptying one costs, and what it does to those at work; what many kept
//! outcomes cost; what a busy sweep takes; whether the tables stay as large as they are.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::Plan;
use crate::found::{Found, Goal};
use crate::lab::{COPY, Lab};
use crate::rows::{CONSTANTS, KEY, Keygen, OFF_4, Row};
use crate::stats::Spread;

/// The row's id.
pub const RING: &str = "ring";

/// What the others are held against.
const FEW: u64 = 100_000;
const CLIENTS: u32 = 4;
const CYCLES: u64 = 12;

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

/// All of it.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Vec<Found>> {
    let rounds = plan.wal_rounds;
    let mut found = Vec::new();
    lab.fresh_copy()?;
    lab.psql(COPY, "CALL idem_sweep()")?;
    emptying(lab, plan.emptied, rounds, &mut found)?;
    while_it_happens(lab, plan, rounds, &mut found)?;
    busy(lab, plan, &mut found)?;
    many(lab, plan, &mut found)?;
    cycles(lab, plan.wal_transactions, &mut found)?;
    long_lived(lab, &mut found)?;
    Ok(found)
}

/// Rows as the extension writes them, expired or not, in one of its segments.
fn fill(segment: u64, rows: u64, expired: bool) -> String {
    let (expires_at, closed_at) = if expired {
        ("now() - interval '1 day'", "now() - interval '60 days'")
    } else {
        ("now() + interval '7 days'", "now()")
    };
    format!(
        "INSERT INTO idempotence.outcome_{segment} (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
         SELECT gen_random_uuid(), s.id, now(), {expires_at}, 10, 's', 'filled ' || n,
                '{{\"status\": \"booked\", \"transfer\": 4711}}'
           FROM generate_series(1, {rows}) n, idempotence.session s WHERE s.name = 'payments';
         UPDATE idempotence.segment SET closed_at = {closed_at} WHERE number = {segment} AND NOT current;
         CHECKPOINT"
    )
}

/// In so many transactions the sweep looks through the segment; the last one empties it.
const PARTS: &str = "SELECT greatest(1, ceil(pg_relation_size('idempotence.outcome_1') / 8192.0 / 4096))::int";

fn emptying(lab: &Lab, rows: u64, rounds: usize, found: &mut Vec<Found>) -> Result<()> {
    let (mut ours, mut locked, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut log, mut log_by_hand) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("ring: emptying {rows} outcomes, round {} of {rounds}", round + 1);
        lab.psql(COPY, &fill(1, rows, true))?;
        // The commit removes the files, after it has let the locks go.
        let bytes = lab.bytes_of_log(|| {
            // The first statement loads the library.
            let look = "SELECT idempotence.sweep_step('empty')";
            let mut steps = vec!["SELECT idempotence.sweep_step('close')"];
            let parts: usize = lab.psql(COPY, PARTS)?.parse()?;
            steps.extend(vec![look; parts - 1]);
            steps.extend(["BEGIN", look, "COMMIT"]);
            let times = timed(lab, &steps)?;
            ours.push(times[1..].iter().sum());
            locked.push(times[times.len() - 2]);
            Ok(())
        })?;
        log.push(bytes / 1024.0);
        if lab.psql(COPY, "SELECT pg_relation_size('idempotence.outcome_1')")? != "0" {
            bail!("the segment is not empty");
        }
        lab.psql(
            COPY,
            &format!(
                "INSERT INTO request (scope, key, fingerprint, response, expires_at)
                 SELECT 'filled', gen_random_uuid(), sha256(n::text::bytea), '{{\"status\": \"booked\", \"transfer\": 4711}}', now() - interval '1 day'
                   FROM generate_series(1, {rows}) n"
            ),
        )?;
        let bytes = lab.bytes_of_log(|| {
            theirs.push(timed(lab, &["DELETE FROM request WHERE expires_at < now()", "VACUUM request"])?.iter().sum());
            Ok(())
        })?;
        log_by_hand.push(bytes / 1024.0);
    }
    let ratios = Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours));
    found.push(Found::new(format!("emptying {rows} outcomes, ms"), Spread::of(ours), 1));
    found.push(Found::new("of these the transaction that locks the segment, ms", Spread::of(locked), 1));
    found.push(Found::new("`DELETE` and `VACUUM` of as many, ms", Spread::of(theirs), 0));
    found.push(Found::new("time by hand / emptying", ratios, 0).with_goal(Goal::AtLeast(100.0)));
    found.push(Found::new("log of emptying, kB", Spread::of(log), 0));
    found.push(Found::new("log of `DELETE` and `VACUUM`, kB", Spread::of(log_by_hand), 0));
    Ok(())
}

/// Milliseconds that each of the statements takes, as psql measures them.
fn timed(lab: &Lab, statements: &[&str]) -> Result<Vec<f64>> {
    // As in the worker.
    let script = format!("SET jit = off;\n\\timing on\n{};\n", statements.join(";\n"));
    let output = lab.psql(COPY, &script)?;
    let times: Vec<f64> =
        output.lines().filter_map(|line| line.strip_prefix("Time: ")?.split(' ').next()?.parse().ok()).collect();
    if times.len() != statements.len() {
        bail!("psql measured {} of {} statements:\n{output}", times.len(), statements.len());
    }
    Ok(times)
}

/// Begin and record, nothing between.
fn script(keys: Keygen) -> String {
    format!(
        "{}BEGIN;\nSELECT * FROM idem_begin('payments', {KEY});\nSELECT idem_record('payments', {KEY}, :response);\nCOMMIT;\n",
        keys.script()
    )
}

fn load(lab: &Lab, number: u64, how_long: [&str; 2], script: &str, extra: &[&str]) -> Result<Child> {
    let path = lab.data_dir().join(format!("ring_{number}.sql"));
    fs::write(&path, script)?;
    let mut command = lab.program("pgbench");
    command.args(["-n", "-M", "prepared", "-c", &CLIENTS.to_string(), "-j", "2"]).args(how_long);
    for (name, value) in CONSTANTS {
        command.arg("-D").arg(format!("{name}={value}"));
    }
    command.arg("-D").arg(format!("n={}", number * 1_000_000)).args(extra);
    command.arg("-f").arg(&path).arg(format!("{} options='-c synchronous_commit=off'", lab.connect_string()));
    command.current_dir(lab.data_dir()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot run pgbench")
}

fn output(child: Child) -> Result<String> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("pgbench failed:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn while_it_happens(lab: &Lab, plan: &Plan, rounds: usize, found: &mut Vec<Found>) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 0..rounds.max(3) {
        eprintln!("ring: emptying under load, round {} of {}", round + 1, rounds.max(3));
        lab.psql(COPY, &fill(1, plan.emptied, true))?;
        let child =
            load(lab, 100 + round as u64, ["-T", "6"], &script(Keygen::Ascending), &["-l", "--log-prefix=ring"])?;
        std::thread::sleep(Duration::from_secs(3));
        let at: f64 = lab
            .psql(COPY, "SELECT extract(epoch FROM clock_timestamp()) AS at \\gset\nCALL idem_sweep();\nSELECT :at")?
            .lines()
            .last()
            .and_then(|line| line.parse().ok())
            .context("no time")?;
        output(child)?;
        let transactions = read_log(lab)?;
        let p99 = |from: f64| {
            let inside = transactions.iter().filter(|(ended, _)| (from..from + 1.0).contains(ended));
            let mut latencies: Vec<f64> = inside.map(|(_, us)| *us).collect();
            latencies.sort_by(f64::total_cmp);
            latencies.get(latencies.len() * 99 / 100).copied().context("no transaction in that second")
        };
        ratios.push(p99(at)? / p99(at - 1.0)?);
    }
    found.push(
        Found::new("begin and record, 99th percentile while it happens / before", Spread::of(ratios), 2)
            .with_goal(Goal::AtMost(2.0)),
    );
    Ok(())
}

/// When each transaction ended, and how long it took; the files are read once.
fn read_log(lab: &Lab) -> Result<Vec<(f64, f64)>> {
    let mut transactions = Vec::new();
    for entry in fs::read_dir(lab.data_dir())? {
        let path = entry?.path();
        let is_log = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ring."));
        if !is_log {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let words: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            if let [_, _, latency_us, _, seconds, us] = words[..] {
                transactions.push((seconds + us / 1e6, latency_us));
            }
        }
        fs::remove_file(&path)?;
    }
    Ok(transactions)
}

/// Transactions a second.
fn rate(lab: &Lab, number: u64, seconds: u64, script: &str) -> Result<f64> {
    let text = output(load(lab, number, ["-T", &seconds.to_string()], script, &[])?)?;
    let line = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    line.with_context(|| format!("pgbench gives no rate:\n{text}"))
}

fn busy(lab: &Lab, plan: &Plan, found: &mut Vec<Found>) -> Result<()> {
    let seconds = u64::from(plan.seconds) + 1;
    let (mut nothing_to_do, mut much_to_do) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds as u64 {
        eprintln!("ring: a busy sweep, round {} of {}", round + 1, plan.rounds);
        let (mut idle, mut looks, mut works) = (0.0, 0.0, 0.0);
        // Another one first each time.
        for turn in 0..3 {
            let number = 200 + 3 * round + turn;
            let rate = || rate(lab, number, seconds, &script(Keygen::Ascending));
            match (round + turn) % 3 {
                0 => idle = rate()?,
                1 => {
                    let sweeps = sweep_without_pause(lab, seconds)?;
                    looks = rate()?;
                    output(sweeps)?;
                }
                _ => {
                    lab.psql(COPY, SESSIONS_TO_SWEEP)?;
                    let sweeps = sweep_without_pause(lab, seconds)?;
                    works = rate()?;
                    let left = lab.psql(COPY, "SELECT count(*) FROM idempotence.reply")?;
                    output(sweeps)?;
                    if left == "0" {
                        bail!("the sweep had too little to do");
                    }
                    lab.psql(COPY, "TRUNCATE idempotence.session_live, idempotence.reply; DELETE FROM idempotence.session WHERE ended IS NOT NULL")?;
                }
            }
        }
        nothing_to_do.push(looks / idle);
        much_to_do.push(works / idle);
    }
    let what = "begin and record a second, beside a sweep without pause";
    found.push(Found::new(format!("{what} that finds nothing to do / without one"), Spread::of(nothing_to_do), 2));
    found.push(Found::new(
        format!("{what} that ends and deletes client sessions / without one"),
        Spread::of(much_to_do),
        2,
    ));
    Ok(())
}

/// Client sessions that have fallen silent, and such as ended long ago, with their replies.
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

/// One connection that calls the procedure again and again.
fn sweep_without_pause(lab: &Lab, seconds: u64) -> Result<Child> {
    let path = lab.data_dir().join("ring_sweep.sql");
    fs::write(&path, "CALL idem_sweep();\n")?;
    let mut command = lab.program("pgbench");
    command.args(["-n", "-c", "1", "-T", &seconds.to_string(), "-f"]).arg(&path);
    command.arg(format!("{} options='-c client_min_messages=warning'", lab.connect_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot run pgbench")
}

fn many(lab: &Lab, plan: &Plan, found: &mut Vec<Found>) -> Result<()> {
    let seconds = u64::from(plan.seconds) + 2;
    let mut of = [Vec::new(), Vec::new()];
    for (kept, times) in [FEW, plan.many].into_iter().zip(&mut of) {
        eprintln!("ring: {kept} kept outcomes");
        lab.fresh_copy()?;
        lab.psql(COPY, "TRUNCATE idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2")?;
        for segment in 0..3 {
            lab.psql(COPY, &fill(segment, kept / 3, false))?;
        }
        lab.psql(COPY, "VACUUM (ANALYZE) idempotence.outcome_0, idempotence.outcome_1, idempotence.outcome_2")?;
        for round in 0..plan.rounds as u64 {
            let rate = rate(lab, 400 + round, seconds, &script(Keygen::Random))?;
            times.push(1.0 / rate);
        }
    }
    let [few, many] = of;
    let ratio = Spread::of(many).median / Spread::of(few).median;
    let what = format!("time of begin and record, random keys, {} kept / {FEW}", plan.many);
    found.push(Found::new(what, Spread::of([ratio]), 2).with_goal(Goal::AtMost(1.3)));
    Ok(())
}

/// Lets time pass for the ring.
fn passes(interval: &str) -> String {
    format!(
        "UPDATE idempotence.segment SET opened_at = opened_at - {interval}, closed_at = closed_at - {interval}, looked_at = looked_at - {interval}"
    )
}

fn cycles(lab: &Lab, requests: u64, found: &mut Vec<Found>) -> Result<()> {
    lab.fresh_copy()?;
    lab.psql(COPY, "CALL idem_sweep(); TRUNCATE idempotence.outcome_0")?;
    let each = (requests / u64::from(CLIENTS)).to_string();
    let size = || -> Result<f64> {
        let bytes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
                      WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'r'
                         OR relname IN ('pg_class', 'pg_attribute', 'pg_depend', 'pg_index')";
        Ok(lab.psql(COPY, bytes)?.parse()?)
    };
    let mut sizes = Vec::new();
    for cycle in 0..CYCLES {
        eprintln!("ring: cycle {} of {CYCLES}", cycle + 1);
        let child = load(lab, 600 + cycle, ["-t", &each], &script(Keygen::Random), &[])?;
        output(child)?;
        // Half a retention and a little more.
        let half = "interval '3 days 14 hours'";
        for table in ["outcome_0", "outcome_1", "outcome_2"] {
            lab.psql(COPY, &format!("UPDATE idempotence.{table} SET recorded_at = recorded_at - {half}, expires_at = expires_at - {half}"))?;
        }
        lab.psql(COPY, &format!("{}; CALL idem_sweep(); CALL idem_sweep()", passes(half)))?;
        sizes.push(size()?);
    }
    let ratio = sizes[sizes.len() - 1] / sizes[3];
    let what = format!("size of all tables after {CYCLES} cycles of {requests} requests / after the fourth");
    found.push(Found::new(what, Spread::of([ratio]), 2).with_goal(Goal::Between(0.8, 1.2)));
    Ok(())
}

/// Outcomes in each lap's half, and how many laps' halves: the long ones live for a hundred.
const HALF: u64 = 10_000;
const HALVES: u64 = 140;
const LONG_HALVES: u64 = 100;
/// The sizes count from the last of these on.
const COUNTED: u64 = 20;

const OF_OUTCOMES: &str = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relnamespace = 'idempotence'::regnamespace AND relname ~ '^outcome_[^_]*$' AND relkind = 'r'";

/// Bytes in steady state with one outcome in a hundred that lives fifty times as long as the others, against
/// those without it. Time passes by making the ring older. Outcomes for a day are written as they will be
/// when their segment's time has come, expired; those for fifty days expire when so many halves have passed.
fn long_lived(lab: &Lab, found: &mut Vec<Found>) -> Result<()> {
    let mut sizes = Vec::new();
    for one_in in [0, 100] {
        eprintln!("ring: {HALVES} half laps, {} of a hundred live long", u8::from(one_in > 0));
        lab.fresh_copy()?;
        lab.psql(
            COPY,
            "CALL idem_sweep(); TRUNCATE idempotence.outcome_0; CREATE TABLE half (number bigint, digest uuid)",
        )?;
        let mut of_halves = 0.0;
        for half in 0..HALVES {
            lab.psql(COPY, &record_half(lab, half, one_in)?)?;
            let before = lab.psql(COPY, OF_OUTCOMES)?.parse::<f64>()?;
            lab.psql(COPY, &format!("{}; CALL idem_sweep()", passes("interval '12 hours 4 minutes'")))?;
            // As autovacuum does when a fifth is dead.
            if half % 20 == 0 {
                lab.psql(COPY, "VACUUM idempotence.outcome_long")?;
            }
            if half >= HALVES - COUNTED {
                // When the current segment is full, and when it has just been turned away from.
                of_halves += before + lab.psql(COPY, OF_OUTCOMES)?.parse::<f64>()?;
            }
        }
        if one_in > 0 && lab.psql(COPY, "SELECT count(*) FROM idempotence.outcome_long")?.parse::<u64>()? < HALF / 2 {
            bail!("too few outcomes were moved");
        }
        sizes.push(of_halves);
    }
    let ratio = Spread::of([sizes[1] / sizes[0]]);
    let what = "bytes of outcomes, 1 in 100 living 50 times longer / without them";
    found.push(Found::new(what, ratio, 2).with_goal(Goal::AtMost(1.6)));
    Ok(())
}

/// What is recorded in half a lap, and the expiring of the long ones whose time is over.
fn record_half(lab: &Lab, half: u64, one_in: u64) -> Result<String> {
    let current = lab.psql(COPY, "SELECT number FROM idempotence.segment WHERE current")?;
    let insert = |rows: u64, at: &str, ttl: &str| {
        format!(
            "INSERT INTO idempotence.outcome_{current} (digest, session, recorded_at, expires_at, recorded_by, class, key, response)
             SELECT gen_random_uuid(), s.id, {at}, {at} + interval '{ttl}', 10, 's', 'filled {half} ' || n,
                    '{{\"status\": \"booked\", \"transfer\": 4711}}'
               FROM generate_series(1, {rows}) n, idempotence.session s WHERE s.name = 'payments'"
        )
    };
    let short = insert(HALF * 99 / 100, "now() - interval '25 hours'", "1 day");
    if one_in == 0 {
        return Ok(short);
    }
    let long = insert(HALF / one_in, "now()", "50 days");
    let over = half.checked_sub(LONG_HALVES).map_or(String::new(), |over| {
        format!(
            "UPDATE idempotence.outcome_long SET expires_at = now() - interval '1 hour'
              WHERE digest IN (SELECT digest FROM half WHERE number = {over})"
        )
    });
    Ok(format!(
        "{short}; WITH long AS ({long} RETURNING digest) INSERT INTO half SELECT {half}, digest FROM long; {over}"
    ))
}
