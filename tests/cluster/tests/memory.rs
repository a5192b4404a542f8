//! Memory that runs out ends a call, never the server.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use idempotence_demo::host::run;

on_each_version!(
    an_allocation_that_fails_ends_the_call_wherever_it_is,
    a_limit_of_memory_ends_the_call,
    a_payload_of_many_numbers_takes_little_memory,
);

/// The scripts in which each allocation fails in turn. `#` stands for another word each time.
const SCRIPTS: [&str; 10] = [
    "BEGIN; SELECT FROM idem_begin('payments', 'k#', payload => '{\"n\": [1, 2.5, \"x\"]}');
     SELECT FROM idem_record('payments', 'k#', '{\"done\": true}'); COMMIT",
    "SELECT status, response FROM idem_begin('payments', 'fixed')",
    "SELECT status, response FROM idem_lookup('payments', 'fixed')",
    "SELECT idem_fingerprint(jsonb_agg(n)) FROM generate_series(1, 3000) n",
    "SELECT count(*) FROM idem_once_many('mails', (SELECT array_agg('m#-' || n) FROM generate_series(1, 300) n))",
    "SELECT status FROM idem_begin('payments', 'held', wait => '5ms')",
    "SELECT status FROM idem_run('payments', 'r#', 'SELECT 1')",
    "SELECT status FROM idem_run('payments', 'e#', 'SELECT length(''#'')', on_error => 'record')",
    NO_COMMAND,
    "SELECT cardinality(idem_generate_ids(2000))",
];

/// A command that cannot be parsed, of which the error tells the whole text.
const NO_COMMAND: &str = "SELECT idem_run('payments', 's#', repeat('x', 20000))";

/// The control file that says which allocations of a process fail; see `c/failing_malloc.c`.
struct Failures(File);

impl Failures {
    fn set(&self, process: i32, before: i32, failures: i32) -> Result<()> {
        let words = [0, before, failures].map(i32::to_ne_bytes).concat();
        self.0.write_all_at(&words, 0)?;
        Ok(self.0.write_all_at(&process.to_ne_bytes(), 0)?)
    }

    /// Whether the process has come to the allocation that was to fail first.
    fn came(&self) -> Result<bool> {
        let mut left = [0; 4];
        self.0.read_exact_at(&mut left, 4)?;
        Ok(i32::from_ne_bytes(left) < 0)
    }
}

/// Starts a server whose processes load the library that makes allocations fail.
fn start_failing(version: Version) -> Result<(Cluster, Failures)> {
    let server =
        Cluster::start_with(version, &[("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1h")])?;
    set_up(&server)?;
    server.stop_fast()?;
    let (library, control) = (server.home().join("failing_malloc.so"), server.home().join("failures"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/failing_malloc.c");
    run(Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source), None, LIMIT)?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&control)?;
    fs::set_permissions(&control, fs::Permissions::from_mode(0o666))?;
    let failures = Failures(file);
    failures.set(0, 0, 0)?;
    let mut start = pg_ctl_start(&server);
    run(start.env("LD_PRELOAD", &library).env("FAILING_MALLOC", &control), None, LIMIT)?;
    Ok((server, failures))
}

fn pg_ctl_start(server: &Cluster) -> Command {
    let mut start = server.program("pg_ctl");
    start.args(["start", "-w", "-t", "60", "-l"]).arg(server.home().join("log")).arg("-D").arg(server.data_dir());
    start
}

fn set_up(server: &Cluster) -> Result<()> {
    server.create_database(DATABASE)?;
    server.psql(
        DATABASE,
        "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true);
         SELECT idem_run('payments', 'fixed', 'SELECT 1')",
    )?;
    Ok(())
}

// Goal: whichever allocation fails, the call ends with an answer or a clean error, and the next call works.
// Method: each script runs with its first allocation failing, then with its second, and so on to its last.
// One allocation fails, or several in a row, so that the handling of the error fails too.
async fn an_allocation_that_fails_ends_the_call_wherever_it_is(version: Version) -> Result<()> {
    let (server, failures) = start_failing(version)?;
    let holder = server.connect(DATABASE).await?;
    holder.text("BEGIN; SELECT FROM idem_begin('payments', 'held')").await?;
    let mut failed = 0;
    for in_a_row in [1, 5] {
        for script in SCRIPTS {
            let is_no_command = script == NO_COMMAND;
            for before in (0..).step_by(in_a_row as usize) {
                let connection = server.connect(DATABASE).await?;
                warm_up(version, &connection, &script.replace('#', &format!("warm {in_a_row}-{before}"))).await?;
                let script = script.replace('#', &format!("{in_a_row}-{before}"));
                failures.set(connection.pid().await?, before, in_a_row)?;
                let answer = connection.try_text(&script).await;
                let came = failures.came()?;
                failures.set(0, 0, 0)?;
                let what = || format!("{script}\nwith {in_a_row} failing after {before}: {answer:?}");
                if let Err(error) = &answer {
                    let state = error.code().with_context(what)?.code();
                    ensure!(came && state == "53200" || is_no_command && state == "42601", "{}", what());
                }
                works(&connection).await.with_context(what)?;
                if !came {
                    break;
                }
                failed += 1;
            }
        }
    }
    println!("{failed} allocations failed");
    ensure!(failed > 100, "only {failed} allocations failed");
    Ok(())
}

/// Prepares the connection for what PostgreSQL itself does not survive: a failure while PL/pgSQL is loaded, while a
/// table is counted for the first time (the entry that lacks memory stays in a hash table, and is followed later), or while
/// its caches are filled for the first time. PostgreSQL with assertions survives even less, so there
/// the script has run before. Elsewhere, allocations also fail while the extension fills its caches.
async fn warm_up(version: Version, connection: &Connection, script: &str) -> Result<()> {
    connection.text("LOAD 'plpgsql'; SELECT status FROM json_populate_record(NULL::idem_ticket, '{}')").await?;
    connection.text("SELECT sum(pg_stat_get_numscans(oid)) FROM pg_class").await?;
    if version == Version::Pg18 {
        // One script ends with an error of its own.
        let _ = connection.try_text(script).await;
        works(connection).await?;
    }
    Ok(())
}

/// Checks that the connection still works.
async fn works(connection: &Connection) -> Result<()> {
    connection.text("ROLLBACK").await?;
    ensure!(connection.replay("payments", "fixed").await? == "succeeded|1");
    Ok(())
}

// Goal: a limit of memory causes an error of the call, and does not end the server.
// Method: a server with as little memory as it can start with. The payloads of some calls fit, and others do
// not.
async fn a_limit_of_memory_ends_the_call(version: Version) -> Result<()> {
    let server = Cluster::start_with(version, &[("shared_buffers", "16MB"), ("idempotence.max_payload", "256MB")])?;
    set_up(&server)?;
    server.stop_fast()?;
    // All processes of the server inherit the limit.
    let start = pg_ctl_start(&server);
    let mut limited = Command::new("prlimit");
    limited.arg("--as=337920000").arg(start.get_program()).args(start.get_args()).current_dir("/");
    run(&mut limited, None, LIMIT)?;
    let mut refused = 0;
    for count in [100_000, 200_000, 400_000, 800_000, 1_600_000] {
        let payload = format!("(SELECT jsonb_agg(g) FROM generate_series(1, {count}) g)");
        let keys = format!("(SELECT array_agg('key ' || g) FROM generate_series(1, {count}) g)");
        for call in [
            format!("SELECT idem_fingerprint({payload})"),
            format!("BEGIN; SELECT FROM idem_begin('payments', 'large', payload => {payload}); ROLLBACK"),
            format!(
                "BEGIN; SET LOCAL idempotence.max_batch = 1000000; SELECT count(*) FROM idem_once_many('mails', {keys}); ROLLBACK"
            ),
        ] {
            let connection = server.connect(DATABASE).await?;
            let answer = connection.try_text(&call).await;
            if let Err(error) = &answer {
                let state = error.code().with_context(|| format!("{call}: {error:?}"))?.code();
                ensure!(["53200", "ID009"].contains(&state), "{call}: {error:?}");
                refused += 1;
            }
            works(&connection).await.with_context(|| call)?;
        }
    }
    ensure!(refused > 0, "there was memory for everything");
    Ok(())
}

// Goal: the fingerprint of a payload takes about as much memory as PostgreSQL's own hash of it, however many
// numbers it has.
// Method: a payload of nearly 1 MB, and the largest size that the process has had.
async fn a_payload_of_many_numbers_takes_little_memory(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    set_up(&server)?;
    let mut grown = Vec::new();
    for call in ["jsonb_hash_extended(payload, 0)", "idem_fingerprint(payload)"] {
        let connection = server.connect(DATABASE).await?;
        connection
            .text("CREATE TEMPORARY TABLE t AS SELECT jsonb_agg(g) AS payload FROM generate_series(1, 80000) g")
            .await?;
        connection.text("SELECT idem_fingerprint('1')").await?;
        let pid = connection.pid().await?;
        let before = peak_kb(pid)?;
        connection.text(&format!("SELECT {call} FROM t")).await?;
        grown.push(peak_kb(pid)? - before);
    }
    ensure!(grown[1] < grown[0] + 4096, "hashing takes {} kB, the fingerprint {} kB", grown[0], grown[1]);
    Ok(())
}

/// The largest size that a process has had.
fn peak_kb(pid: i32) -> Result<i64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
