//! A worker that is a process of its own, stopped by a signal while it has a lease.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Version};
use idempotence_demo::host;
use idempotence_demo::server::SUPERUSER;

/// A psql that takes statements, each of which returns one line.
struct Worker {
    psql: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(version: Version, server: &Cluster) -> Result<Self> {
        // The shell makes errors part of the output. It hands its process on to psql.
        let script = r#"exec "$0" -XAtq -v VERBOSITY=sqlstate -d "$1" 2>&1"#;
        let mut psql = Command::new("sh")
            .args(["-c", script])
            .arg(version.bindir()?.join("psql"))
            .arg(server.connect_string(DATABASE, SUPERUSER))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (psql.stdin.take(), psql.stdout.take());
        let output = BufReader::new(output.context("no output")?);
        Ok(Self { psql, input: input.context("no input")?, output })
    }

    fn send(&mut self, sql: &str) -> Result<()> {
        writeln!(self.input, "{sql};")?;
        Ok(())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().trim_start_matches("ERROR:").trim_start().to_owned())
    }

    fn ask(&mut self, sql: &str) -> Result<String> {
        self.send(sql)?;
        self.answer()
    }

    fn pid(&self) -> i32 {
        self.psql.id().cast_signed()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

fn start(version: Version) -> Result<(Cluster, Worker)> {
    let server = shop::start_preloaded(version)?;
    server.psql(DATABASE, "SELECT idem_create_session('jobs'); CREATE TABLE effect (worker text NOT NULL)")?;
    let worker = Worker::start(version, &server)?;
    Ok((server, worker))
}

const BEGIN: &str = "SELECT token FROM idem_begin('jobs', 'j', lease => '300 ms')";

fn calls(token: &str) -> [String; 4] {
    [
        format!("SELECT idem_extend('jobs', 'j', {token}, '1 hour') IS NOT NULL"),
        format!("SELECT idem_checkpoint('jobs', 'j', 'late', token => {token}), 'done'"),
        format!("SELECT idem_release('jobs', 'j', token => {token}), 'done'"),
        format!(
            "WITH e AS (INSERT INTO effect VALUES ('first')) SELECT idem_record('jobs', 'j', token => {token}), 'done'"
        ),
    ]
}

// Goal: a worker that was stopped, and taken over from, cannot complete the request, not even after a crash.
// Method: SIGSTOP, a take-over, SIGCONT. What it was about to do is refused, and so is each other call. Then all
// of it once more after a crash, and after the other worker has recorded.
pub async fn a_worker_that_was_stopped_for_longer_than_its_lease_is_refused(version: Version) -> Result<()> {
    let (server, mut worker) = start(version)?;
    let token = worker.ask(BEGIN)?;
    host::freeze(worker.pid());
    // It goes on with this when it is continued.
    worker.send(&calls(&token)[3])?;

    let other = server.connect(DATABASE).await?;
    let take_over = "SELECT status, attempt, token FROM idem_begin('jobs', 'j', wait => '1 min', lease => '1 min')";
    let ticket = other.text(take_over).await?;
    let newer = ticket.strip_prefix("taken_over|2|").with_context(|| format!("the take-over gives {ticket}"))?;
    ensure!(newer.parse::<i64>()? > token.parse()?, "token {newer} follows {token}");
    host::thaw(worker.pid());
    let refused = worker.answer()?;
    ensure!(refused == "ID005", "the stopped worker is told {refused}");

    for moment in ["before the crash", "after the crash", "after the record"] {
        match moment {
            "after the crash" => {
                server.crash()?;
                worker = Worker::start(version, &server)?;
            }
            "after the record" => {
                let record = format!(
                    "INSERT INTO effect VALUES ('second'); SELECT FROM idem_record('jobs', 'j', '2', token => {newer})"
                );
                server.connect(DATABASE).await?.text(&record).await?;
            }
            _ => {}
        }
        for call in calls(&token) {
            let refused = worker.ask(&call)?;
            ensure!(refused == "ID005", "{moment}, {call} gives {refused}");
        }
    }
    let after = server.connect(DATABASE).await?;
    ensure!(after.text("SELECT string_agg(worker, ' ') FROM effect").await? == "second");
    ensure!(after.replay("jobs", "j").await? == "succeeded|2");
    Ok(())
}

// Goal: a worker that comes late may go on as long as nobody has taken over.
// Method: SIGSTOP until the lease has run out, SIGCONT, and each call, but for the release.
pub async fn a_worker_that_nobody_challenged_goes_on_after_its_lease(version: Version) -> Result<()> {
    let (server, mut worker) = start(version)?;
    let token = worker.ask(BEGIN)?;
    host::freeze(worker.pid());
    server.wait_for(DATABASE, "SELECT state FROM idempotence.unfinished", "run out").await?;
    let [extend, checkpoint, _, record] = calls(&token);
    worker.send(&checkpoint)?;
    host::thaw(worker.pid());
    ensure!(worker.answer()? == "|done");
    ensure!(worker.ask(&extend)? == "t");
    let other = server.connect(DATABASE).await?;
    let ticket = "SELECT b.status, l.point, b.expires_at = l.expires_at AND b.expires_at > now()
                    FROM idem_begin('jobs', 'j', wait => '0') b, idem_lookup('jobs', 'j') l";
    let found = other.text(ticket).await?;
    ensure!(found == "in_progress|late|t", "the extended lease gives {found}");
    ensure!(worker.ask(&record)?.ends_with("|done"));
    ensure!(other.replay("jobs", "j").await? == "succeeded|");
    Ok(())
}
