//! Clients behind a pooler in transaction mode. Each transaction of a client may meet another backend, and
//! each backend may meet other clients. The tests need `pgbouncer`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use idempotence_demo::host::run;
use tokio::time::{Instant, sleep};

on_each_version!(
    clients_that_share_backends_share_nothing_else,
    many_clients_over_few_backends_execute_each_request_once,
);

/// The path of the program on Debian, or its name on the PATH.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "pgbouncer"];

/// A pgbouncer in front of a server, with two backends for each role.
struct Pooler<'a> {
    server: &'a Cluster,
    directory: PathBuf,
    port: u16,
}

impl<'a> Pooler<'a> {
    async fn start(server: &'a Cluster) -> Result<Self> {
        let directory = server.home().join("pooler");
        // The port only names the socket, and the directory has no other socket.
        let pooler = Self { server, directory, port: 6432 };
        run(as_server(server, "mkdir").arg(&pooler.directory), None, LIMIT)?;
        let upstream = server.connect_string(DATABASE, "app").replace(" user='app'", "");
        let (path, port) = (pooler.directory.display(), pooler.port);
        let settings = format!(
            "[databases]\n{DATABASE} = {upstream}\n\
             [pgbouncer]\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n\
             listen_addr =\nlisten_port = {port}\nunix_socket_dir = {path}\n\
             auth_type = trust\nauth_file = {path}/users\nadmin_users = postgres\n\
             logfile = {path}/log\npidfile = {path}/pid\n"
        );
        fs::write(pooler.directory.join("settings"), settings)?;
        fs::write(pooler.directory.join("users"), "\"app\" \"\"\n\"postgres\" \"\"\n")?;

        let program = PROGRAMS.iter().find(|program| Path::new(program).exists()).unwrap_or(&"pgbouncer");
        // pgbouncer refuses to run as root too, so it runs as the server's account.
        let mut pgbouncer = as_server(server, program);
        pgbouncer.arg("--daemon").arg(pooler.directory.join("settings"));
        run(&mut pgbouncer, None, LIMIT).context("is pgbouncer installed?")?;
        let start = Instant::now();
        while let Err(error) = pooler.connect().await {
            ensure!(start.elapsed() <= LIMIT, "the pooler does not answer: {error:#}");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(pooler)
    }

    fn connect_string(&self, database: &str, role: &str) -> String {
        format!("host='{}' port={} dbname={database} user={role}", self.directory.display(), self.port)
    }

    async fn connect(&self) -> Result<Connection> {
        Ok(Connection::open(&self.connect_string(DATABASE, "app")).await?)
    }
}

/// A program of the machine, to be run as the server's account.
fn as_server(server: &Cluster, program: &str) -> Command {
    // With an absolute path, `program` does not look among the server's own programs.
    let mut command = server.program("/usr/bin/env");
    command.arg(program);
    command
}

impl Drop for Pooler<'_> {
    fn drop(&mut self) {
        let mut psql = self.server.program("psql");
        psql.args(["-X", "-c", "SHUTDOWN", "-d"]).arg(self.connect_string("pgbouncer", "postgres"));
        // An error is expected, because pgbouncer breaks the connection instead of answering.
        let _ = run(&mut psql, None, LIMIT);
    }
}

fn start(version: Version) -> Result<Cluster> {
    let server = shop::start(version)?;
    server.psql(
        DATABASE,
        "CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('payments', owner => 'app');
         SELECT idem_create_session('mails', inbox => true, owner => 'app');
         CREATE TABLE effect (key text NOT NULL); GRANT ALL ON effect TO app",
    )?;
    Ok(server)
}

// Goal: what one client does in a backend does not affect the next client of the backend.
// Method: more clients than backends. Requests are left open, failed, recorded and replayed, each by another
// client.
async fn clients_that_share_backends_share_nothing_else(version: Version) -> Result<()> {
    let server = start(version)?;
    let pooler = Pooler::start(&server).await?;
    let clients = try_join_all((0..6).map(|_| pooler.connect())).await?;

    // For other clients, an open request is in progress, whichever backends they have.
    clients[0].text("BEGIN; SELECT FROM idem_begin('payments', 'k')").await?;
    for client in &clients[1..] {
        let begin = "SELECT status FROM idem_begin('payments', 'k', wait => '0')";
        ensure!(client.text(begin).await? == "in_progress");
        ensure!(client.lookup("payments", "k").await? == "in_progress");
        let record = client.sqlstate("SELECT FROM idem_record('payments', 'k', '1')").await?;
        ensure!(record == "ID007", "another client's record: {record}");
    }
    clients[0].text("SELECT FROM idem_record('payments', 'k', '1'); COMMIT").await?;
    for client in &clients {
        ensure!(client.replay("payments", "k").await? == "succeeded|1");
    }

    // A request can be begun again after a ROLLBACK, an error, a refused COMMIT, or the end of the client.
    for (turn, end) in ["ROLLBACK", "SELECT 1/0", "COMMIT", ""].into_iter().enumerate() {
        let leaver = pooler.connect().await?;
        leaver.text("BEGIN; SELECT FROM idem_begin('payments', 'left')").await?;
        if !end.is_empty() {
            let _ = leaver.try_text(end).await;
        }
        drop(leaver);
        let next = &clients[turn];
        let begin = "BEGIN; SELECT status FROM idem_begin('payments', 'left', wait => '1 min'); ROLLBACK";
        ensure!(next.text(begin).await? == "started", "after {end:?}");
    }

    // Each step of a workflow comes from another client.
    for (step, client) in clients.iter().enumerate() {
        let ticket = client.text("BEGIN; SELECT status, state FROM idem_begin('payments', 'workflow')").await?;
        let before = if step == 0 { String::new() } else { (step - 1).to_string() };
        ensure!(ticket == format!("started|{before}"), "step {step}: {ticket}");
        client.text(&format!("SELECT idem_checkpoint('payments', 'workflow', 'step', '{step}'); COMMIT")).await?;
    }
    // A session that one client creates exists for all clients at once, and so does its end.
    clients[0].text("SELECT idem_create_session('brief')").await?;
    clients[1].execute("brief", "k", "1").await?;
    for client in &clients {
        ensure!(client.replay("brief", "k").await? == "succeeded|1");
    }
    clients[2].text("SELECT idem_drop_session('brief')").await?;
    for client in &clients {
        ensure!(client.sqlstate("SELECT FROM idem_begin('brief', 'k')").await? == "42704");
    }
    ensure!(server.psql(DATABASE, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'")?.trim_end() <= "2");
    Ok(())
}

// Goal: each request is executed once, whichever backends its attempts meet.
// Method: ten clients over two backends send the same hundred keys at once, each client in its own order.
async fn many_clients_over_few_backends_execute_each_request_once(version: Version) -> Result<()> {
    let server = start(version)?;
    let pooler = Pooler::start(&server).await?;
    let clients = try_join_all((0..10).map(|_| pooler.connect())).await?;
    try_join_all(clients.iter().enumerate().map(async |(number, client)| {
        for turn in 0..100 {
            let key = (turn * 7 + number * 13) % 100;
            let status = client.text(&format!("BEGIN; SELECT status FROM idem_begin('payments', '{key}', wait => '1 min')")).await?;
            if status == "started" {
                client
                    .text(&format!("INSERT INTO effect VALUES ('{key}'); SELECT FROM idem_record('payments', '{key}', '{key}'); COMMIT"))
                    .await?;
            } else {
                ensure!(status == "succeeded", "{status}");
                client.text("COMMIT").await?;
            }
            client.text(&format!("SELECT idem_once('mails', '{key}')")).await?;
        }
        Ok(())
    }))
    .await?;
    let effects = "SELECT count(*), count(DISTINCT key) FROM effect";
    ensure!(server.psql(DATABASE, effects)?.trim_end() == "100|100");
    Ok(())
}
