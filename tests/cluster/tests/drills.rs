//! Drills: a server is brought into the state that a runbook of docs/operations.md is about, and its commands are typed
//! from the page, by the role that the page names. What the page promises is looked for. The runbook for a full disk is in
//! `full_disk`, and that for a lease whose worker died in the suite monitoring.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::dump::dump;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::standby::start_synchronous;
use idempotence_cluster_tests::{Cluster, LIMIT, Runbook, Version, on_each_version};
use idempotence_demo::host::run;
use idempotence_demo::server::SUPERUSER;
use tokio::time::{Duration, Instant, sleep};

on_each_version!(
    the_synchronous_standby_is_away,
    one_transaction_holds_all_up,
    a_restore_fails_half_way,
    a_role_is_to_be_dropped,
    a_role_was_dropped,
    the_names_of_databases_are_misspelt,
    somebody_has_locked_a_table,
);

/// The role on call, as the page makes it.
fn on_call(server: &Cluster) -> Result<()> {
    let mut page = Runbook::of("### On-call roles")?;
    page.sql(server, DATABASE)?;
    page.end()
}

/// Checks that these rows of health are ok.
async fn is_well(server: &Cluster, rows: &str) -> Result<()> {
    let unwell = format!("SELECT count(*) FROM idempotence.health WHERE level > 0 AND name IN ({rows})");
    server.wait_for(DATABASE, &unwell, "0").await
}

fn has(told: &str, words: &[&str]) -> Result<()> {
    for words in words {
        ensure!(told.contains(words), "{words:?} is not in:\n{told}");
    }
    Ok(())
}

// Goal: the page says whom commits wait for. Who only reads gets answers again, and so do all once the standby is left out;
// no commit that waited is lost. The standby is taken in again.
// Method: a request is recorded while the standby is down.
async fn the_synchronous_standby_is_away(version: Version) -> Result<()> {
    let primary = shop::start_with(version, &[("idempotence.log_requests", "on")])?;
    on_call(&primary)?;
    primary.psql(
        DATABASE,
        "CREATE ROLE support LOGIN; SELECT idem_grant('support'); SELECT idem_create_session('payments', usable_by => 'support')",
    )?;
    primary.connect(DATABASE).await?.execute("payments", "before", "1").await?;
    let standby = start_synchronous(&primary, "on").await?;
    primary.conf("synchronous_standby_names", "walreceiver")?;
    primary.reload()?;
    is_well(&primary, "'standby'").await?;
    standby.catch_up_with(&primary)?;
    standby.stop_fast()?;
    let recorder = primary.connect(DATABASE).await?;
    recorder.text("SET application_name = 'till 7'").await?;
    let pid = recorder.pid().await?;
    let recording = tokio::spawn(async move { recorder.execute("payments", "order-17", "1").await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    primary.wait_for(DATABASE, waits, "1").await?;
    let lookup = "SET idempotence.wait = '50ms'; SELECT a.status, b.status FROM idem_lookup('payments', 'before') a, idem_lookup('payments', 'order-17') b";
    ensure!(primary.connect_as(DATABASE, "support").await?.text(lookup).await? == "in_progress|in_progress");

    let mut page = Runbook::of("### While the synchronous standby is away")?;
    let told = page.sql(&primary, DATABASE)?;
    has(
        &told,
        &[
            "2|0 of 1 synchronous standbys are there, missing: walreceiver; 1 commits wait for them",
            &format!("{pid}|{SUPERUSER}|till 7|"),
            &format!("Wait: process {pid} has written its commit here, and waits for a synchronous standby."),
        ],
    )?;
    page.sql(&primary, DATABASE)?;
    ensure!(primary.connect_as(DATABASE, "support").await?.text(lookup).await? == "succeeded|in_progress");
    ensure!(primary.psql(DATABASE, waits)?.trim_end() == "1", "the recorder waits no longer");
    let line = "request \"order-17\" of session \"payments\": succeeded, recorded";
    ensure!(!primary.log().contains(line), "the log tells of a commit that hangs");
    page.sql(&primary, DATABASE)?;
    recording.await??;
    primary.wait_for_log(line).await?;
    ensure!(primary.connect(DATABASE).await?.replay("payments", "order-17").await? == "succeeded|1");
    is_well(&primary, "'standby'").await?;

    standby.start()?;
    primary.wait_for(DATABASE, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await?;
    standby.catch_up_with(&primary)?;
    has(&page.sql(&primary, DATABASE)?, &["walreceiver|streaming|async|"])?;
    page.sql(&primary, DATABASE)?;
    page.end()?;
    let there = "SELECT count(*) FROM idempotence.health WHERE name = 'standby' AND detail LIKE '1 of 1 synchronous standbys are there;%'";
    primary.wait_for(DATABASE, there, "1").await?;
    let support = primary.connect_as(DATABASE, "support").await?;
    ensure!(support.text("SHOW synchronous_commit").await? == "on");
    // The standby has yet to say that it has them.
    let start = Instant::now();
    while support.text(lookup).await? != "succeeded|succeeded" {
        ensure!(start.elapsed() <= LIMIT, "what the standby has is in progress");
    }
    Ok(())
}

// Goal: the page leads to the one who holds all up and has no request himself. Ended, all others go on.
// Method: one has changed a row and idles. Three who hold a request wait for the row, and a retry for one of them.
async fn one_transaction_holds_all_up(version: Version) -> Result<()> {
    let settings = [("shared_preload_libraries", "idempotence"), ("idempotence.warn_holder", "1s")];
    let server = shop::start_with(version, &settings)?;
    on_call(&server)?;
    server.psql(
        DATABASE,
        "CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('payments', owner => 'app');
         CREATE ROLE batch LOGIN; CREATE TABLE account (balance numeric); INSERT INTO account VALUES (100);
         GRANT SELECT, UPDATE ON account TO app, batch",
    )?;
    let root = server.connect_as(DATABASE, "batch").await?;
    root.text("BEGIN; UPDATE account SET balance = balance").await?;
    let (pid, mut victims) = (root.pid().await?.to_string(), Vec::new());
    let mut holder = 0;
    for n in 17..20 {
        let app = server.connect_as(DATABASE, "app").await?;
        if n == 17 {
            holder = app.pid().await?;
        }
        let pay = format!(
            "SELECT status FROM idem_run('payments', 'order-{n}', 'UPDATE account SET balance = balance - 1 RETURNING to_jsonb(balance)')"
        );
        victims.push(tokio::spawn(async move { app.text(&pay).await }));
    }
    let blocked = "SELECT count(*) FROM idempotence.in_flight WHERE blocked_by IS NOT NULL";
    server.wait_for(DATABASE, blocked, "3").await?;
    let retry = server.connect_as(DATABASE, "app").await?;
    let again = "SELECT status FROM idem_begin('payments', 'order-17', wait => '1 min')";
    let retry = tokio::spawn(async move { retry.text(again).await });
    server.wait_for(DATABASE, "SELECT max(waiters) FROM idempotence.in_flight", "1").await?;
    server.wait_for(DATABASE, "SELECT level FROM idempotence.health WHERE name = 'holders'", "1").await?;

    let mut page = Runbook::of("### A request is stuck")?;
    let told = page.sql(&server, DATABASE)?;
    has(
        &told,
        &[
            &format!("1|process {pid} (batch, idle in transaction, Client/ClientRead), since "),
            "holds up 3 others that hold requests",
            &format!("waits for process {pid} (idle in transaction)"),
            &format!("{pid}|batch|"),
        ],
    )?;
    let told = page.sql(&server, DATABASE)?;
    has(&told, &[&format!("{holder}|app|"), &format!("|{{{holder}}}")])?;
    let told = page.sql_with(&server, DATABASE, &[("4711", &pid)])?;
    has(&told, &["t"])?;
    page.end()?;
    for victim in victims {
        ensure!(victim.await?? == "succeeded");
    }
    ensure!(retry.await?? == "succeeded");
    is_well(&server, "'holders', 'waiters'").await
}

// Goal: the page finds out what half a restore has left out, and brings it: requests replay, and all roles have their rights.
// Method: the owner of the sessions, and a role that is gone for good, are missing where a dump is restored.
async fn a_restore_fails_half_way(version: Version) -> Result<()> {
    let source = shop::start(version)?;
    on_call(&source)?;
    source.psql(
        DATABASE,
        "CREATE ROLE app LOGIN; CREATE ROLE former; SELECT idem_grant('app'), idem_grant('former');
         SELECT idem_create_session('payments', owner => 'app')",
    )?;
    source.connect_as(DATABASE, "app").await?.execute("payments", "order-17", "1").await?;
    let target = Cluster::start(version)?;
    let file = target.home().join("shop.dump").display().to_string();
    dump(&source, &source, DATABASE, &["-Fc", "-f", &file])?;
    drop(source);
    target.psql("postgres", &format!("CREATE ROLE on_call LOGIN; CREATE DATABASE {DATABASE} TEMPLATE template0"))?;
    let mut whole = target.program("pg_restore");
    whole.arg("-d").arg(target.connect_string(DATABASE, SUPERUSER)).arg(&file);
    ensure!(run(&mut whole, None, LIMIT).is_err(), "pg_restore has not complained");
    ensure!(target.psql_as(DATABASE, "on_call", "SELECT FROM idempotence.health").is_err(), "no right was lost");

    let mut page = Runbook::of("### A restore that fails half way")?;
    let told = page.sql(&target, DATABASE)?;
    has(
        &told,
        &[
            "restore|2|of what was restored since ",
            " these tables are missing: idempotence.session",
            "rights|2|role on_call lacks ",
            "role app, which was granted level user, does not exist",
            "role former, which was granted level user, does not exist",
            "secret|0|",
        ],
    )?;
    page.sql(&target, DATABASE)?;
    page.sh(&target)?;
    let app = target.connect_as(DATABASE, "app").await?;
    ensure!(app.sqlstate("SELECT FROM idem_begin('payments', 'order-17')").await? == "42501");
    page.sql(&target, DATABASE)?;
    ensure!(app.replay("payments", "order-17").await? == "succeeded|1");
    has(&page.sql(&target, DATABASE)?, &["restore|0|", "rights|0|", "secret|0|"])?;
    page.end()?;
    ensure!(app.text("SELECT idem_ready()").await? == "t");
    app.text("SELECT idem_create_session('new')").await?;
    ensure!(target.psql_as(DATABASE, "on_call", "SELECT count(*) > 0 FROM idempotence.audit")?.trim_end() == "t");
    Ok(())
}

/// A role as the README makes it, with a table, a session, a client session, and what it has done.
async fn app_at_work(version: Version) -> Result<Cluster> {
    let server = shop::start(version)?;
    on_call(&server)?;
    server.psql(
        DATABASE,
        "CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('payments', ttl => '24 hours', owner => 'app');
         GRANT CREATE ON SCHEMA public TO app",
    )?;
    let app = server.connect_as(DATABASE, "app").await?;
    app.text("CREATE TABLE account (balance numeric); INSERT INTO account VALUES (100)").await?;
    app.execute("payments", "order-17", "1").await?;
    let client = app.register("client => 'c'").await?;
    app.execute(&client, "1", "1").await?;
    drop(app);
    server.wait_for(DATABASE, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'", "0").await?;
    Ok(server)
}

const OWNERS: &str = "'owners', 'rights'";
const AS_APP2: &str = "SET ROLE app2; SELECT replayed, status FROM idem_begin('payments', 'order-17')";

/// Makes operators in schema public for types that PostgreSQL compares only as oids. Each of them fails.
fn operators_fail(server: &Cluster) -> Result<()> {
    server.psql(
        DATABASE,
        "DO $do$ DECLARE l text; r text; BEGIN
           FOREACH l IN ARRAY '{oid, regrole, regclass}'::text[] LOOP FOREACH r IN ARRAY '{oid, regrole, regclass}'::text[] LOOP
             CONTINUE WHEN (l, r) = ('oid', 'oid');
             EXECUTE format('CREATE FUNCTION fail(%1$s, %2$s) RETURNS boolean LANGUAGE plpgsql AS ''BEGIN ASSERT false; END'';
                             CREATE OPERATOR public.= (leftarg = %1$s, rightarg = %2$s, function = fail)', l, r);
           END LOOP; END LOOP; END $do$",
    )
    .map(drop)
}

// Goal: dropped in the page's order, a role leaves nothing behind: its sessions go on as another's, and so do its tables.
// Method: a role as the README makes it. A session of somebody else is lent to it.
async fn a_role_is_to_be_dropped(version: Version) -> Result<()> {
    let server = app_at_work(version).await?;
    server.psql(DATABASE, "SELECT idem_create_session('lent', usable_by => 'app')")?;
    ensure!(server.psql(DATABASE, "DROP ROLE app").is_err(), "the role could be dropped at once");
    operators_fail(&server)?;
    let mut page = Runbook::of("### Before you drop a role")?;
    page.sql(&server, DATABASE)?;
    page.end()?;
    ensure!(server.psql(DATABASE, "SELECT count(*) FROM pg_roles WHERE rolname = 'app'")?.trim_end() == "0");
    is_well(&server, OWNERS).await?;
    ensure!(server.psql(DATABASE, AS_APP2)?.trim_end() == "t|succeeded");
    ensure!(server.psql_as(DATABASE, "app2", "SELECT balance FROM account")?.trim_end() == "100");
    let lent = "SELECT count(*) FROM idempotence.sessions WHERE session = 'lent' AND usable_by IS NULL";
    ensure!(server.psql(DATABASE, lent)?.trim_end() == "1", "the loan goes on");
    let at_work = "SELECT count(*) FROM idempotence.sessions WHERE kind = 'client' AND ended IS NULL";
    ensure!(server.psql(DATABASE, at_work)?.trim_end() == "0");
    Ok(())
}

// Goal: health tells of a role that was dropped all the same, and the page gives its sessions to another one at once.
// Method: as before, but the role is dropped as roles are elsewhere. No sweep has looked.
async fn a_role_was_dropped(version: Version) -> Result<()> {
    let server = app_at_work(version).await?;
    server.psql(DATABASE, "CREATE ROLE app2 LOGIN; DROP OWNED BY app; DROP ROLE app")?;
    operators_fail(&server)?;
    let mut page = Runbook::of("### After a role was dropped")?;
    has(
        &page.sql(&server, DATABASE)?,
        &[
            "owners|1|sessions without an owner: payments",
            "rights|1|role app, which was granted level user, does not exist",
        ],
    )?;
    page.sql(&server, DATABASE)?;
    page.end()?;
    is_well(&server, OWNERS).await?;
    ensure!(server.psql(DATABASE, AS_APP2)?.trim_end() == "t|succeeded");
    Ok(())
}

// Goal: a name that no database has is told of at once, and the page's commands have the database swept again.
// Method: the only name of two is misspelt, while the worker visits both.
async fn the_names_of_databases_are_misspelt(version: Version) -> Result<()> {
    let server = shop::start_preloaded(version)?;
    server.create_database("billing")?;
    on_call(&server)?;
    for database in [DATABASE, "billing"] {
        server.wait_for(database, "SELECT idempotence.last_sweep() IS NOT NULL", "t").await?;
    }
    server.conf("idempotence.databases", "shpo")?;
    server.reload()?;
    server.wait_for_log("idempotence finds no database \"shpo\" to visit").await?;
    // A visit that had begun ends within a second.
    sleep(Duration::from_secs(2)).await;
    let last = server.psql(DATABASE, "SELECT idempotence.last_sweep()")?;
    let mut page = Runbook::of("### A database that is not swept")?;
    has(
        &page.sql(&server, DATABASE)?,
        &[
            "worker|0|the launcher is process ",
            "databases|1|idempotence.databases names what cannot be visited: \"shpo\"; this database is not visited; ",
            "Correct idempotence.databases and reload.",
        ],
    )?;
    page.sql(&server, DATABASE)?;
    is_well(&server, "'databases'").await?;
    let swept = format!("SELECT idempotence.last_sweep() > '{}'", last.trim_end());
    for database in [DATABASE, "billing"] {
        server.wait_for(database, &swept, "t").await?;
    }
    has(&page.sql(&server, DATABASE)?, &["0|\"shop\" swept at ", "\"billing\" swept at "])?;
    page.end()
}

// Goal: the page names who has locked a table of the extension, for as long as calls hang, and has them go on.
// Method: somebody adds an index to a segment and idles. A payment waits for it.
async fn somebody_has_locked_a_table(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    on_call(&server)?;
    server.psql(
        DATABASE,
        "CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('payments', owner => 'app')",
    )?;
    server.connect_as(DATABASE, "app").await?.execute("payments", "order-17", "1").await?;
    let dba = server.connect(DATABASE).await?;
    let current = dba.text("SELECT segment FROM idempotence.segments WHERE state = 'current'").await?;
    dba.text(&format!("SET application_name = 'desk 3'; BEGIN; ALTER TABLE idempotence.outcome_{current} ADD CHECK (token IS NULL) NOT VALID"))
        .await?;
    let pid = dba.pid().await?.to_string();
    let app = server.connect_as(DATABASE, "app").await?;
    let pay =
        tokio::spawn(async move { app.text("SELECT status FROM idem_run('payments', 'order-18', 'SELECT 1')").await });
    server.wait_for(DATABASE, "SELECT count(*) FROM pg_locks WHERE NOT granted", "1").await?;
    let critical = format!(
        "SELECT level, detail LIKE '%table idempotence.outcome_{current} is locked: held by process {pid} (%\"desk 3\", idle in transaction)%1 wait for the table%'
         FROM idempotence.health WHERE name = 'tables'"
    );
    server.wait_for(DATABASE, &critical, "2|t").await?;

    let mut page = Runbook::of("### Somebody has locked a table")?;
    let refused = page.sql(&server, DATABASE).err().map(|error| format!("{error:#}")).unwrap_or_default();
    has(&refused, &["a table of the extension is locked", &format!("is locked: held by process {pid} (")])?;
    let told = page.sql_with(&server, DATABASE, &[("4711", &pid)])?;
    has(&told, &["t", "0|all tables are as the extension has made them, and nobody has locked one"])?;
    page.end()?;
    ensure!(pay.await?? == "succeeded");
    is_well(&server, "'tables'").await
}
