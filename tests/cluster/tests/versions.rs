//! A library and tables whose versions differ, as between the installation of a release and ALTER EXTENSION UPDATE.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version, fixture, on_each_version};

on_each_version!(versions_that_differ_are_told_and_do_no_harm);

const CALLS: [&str; 16] = [
    "SELECT * FROM idem_begin('payments', 'paid')",
    "SELECT * FROM idem_begin('payments', 42)",
    "SELECT * FROM idem_lookup('payments', 'paid')",
    "SELECT idem_record('payments', 'paid')",
    "SELECT idem_checkpoint('payments', 'paid', 'p')",
    "SELECT idem_release('payments', 'paid')",
    "SELECT idem_once('mails', 'm1')",
    "SELECT * FROM idem_once_many('mails', '{m1,m9}')",
    "SELECT * FROM idem_run('payments', 'paid', 'SELECT 1')",
    "SELECT idem_create_session('new one')",
    "SELECT idem_alter_session('payments', ttl => '1 day')",
    "SELECT idem_drop_session('payments')",
    "SELECT * FROM idem_register()",
    "SELECT idem_heartbeat('01a20002-48aa-7153-a79a-1975e4344702')",
    "SELECT idem_ack('01a20002-48aa-7153-a79a-1975e4344702', 1)",
    "SELECT * FROM idem_position('01a20002-48aa-7153-a79a-1975e4344702')",
];

async fn ensure_told(connection: &Connection, call: &str, tables: &str, library: &str) -> Result<()> {
    let error = connection.error(call).await?;
    connection.text("ROLLBACK").await?;
    let code = error.code().code();
    ensure!(code == "55000", "{call}: {code} {}", error.message());
    ensure!(error.message().contains(tables) && error.message().contains(library), "{call}: {}", error.message());
    ensure!(error.hint().is_some_and(|hint| !hint.is_empty()), "{call}: no hint");
    Ok(())
}

// Goal: while the tables are older or newer than the library, each call says what to do, and nothing is done. The worker
// says each once, and sweeps other databases. When they fit again, every backend goes on at once.
// Method: the version in the catalog is set by hand and set back, while backends remember everything.
async fn versions_that_differ_are_told_and_do_no_harm(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    fixture::create_roles(&server)?;
    server.create_database("shop")?;
    server.create_database("beside")?;
    // The first visit takes the hourly steps, one of which notes on a dropped session that it may be forgotten.
    server.wait_for("shop", "SELECT idempotence.last_sweep() IS NOT NULL", "t").await?;
    let kept = fixture::fill(&server, "shop").await?;
    let version_of = "SELECT extversion FROM pg_extension WHERE extname = 'idempotence'";
    let library = server.psql("shop", version_of)?.trim_end().to_owned();
    let [superuser, app, boss] = [
        fixture::connect(&server, "shop", "postgres").await?,
        fixture::connect(&server, "shop", "app").await?,
        fixture::connect(&server, "shop", "boss").await?,
    ];
    ensure!(app.replay("payments", "paid").await? == r#"succeeded|{"ok": true}"#);
    // This imitates the end of the script of a version, which changes a table.
    let set = |to: &str| {
        format!(
            "SET allow_system_table_mods = on; BEGIN; UPDATE pg_extension SET extversion = '{to}' WHERE extname = 'idempotence';
             ALTER TABLE idempotence.session SET (fillfactor = 100); ALTER TABLE idempotence.session RESET (fillfactor); COMMIT"
        )
    };
    // A failure that comes back is not said again, also after another one.
    for tables in ["0.9.0", "999.0.0", "0.9.0"] {
        server.psql("shop", &set(tables))?;
        for call in CALLS {
            ensure_told(&app, call, tables, &library).await?;
        }
        for call in ["SELECT idem_forget('payments', 'paid', 'a test')", "CALL idem_sweep()"] {
            ensure_told(&boss, call, tables, &library).await?;
        }
        ensure!(app.text("SELECT idem_key('1') IS NOT NULL").await? == "t", "what needs no table");
        // Triggers refuse restored rows: they must note a restore, and cannot do so.
        let insert = "BEGIN; INSERT INTO idempotence.outcome_1 SELECT * FROM idempotence.outcome_2";
        ensure_told(&superuser, insert, tables, &library).await?;

        // The worker goes on with the other database, again and again.
        let told = format!("could not sweep database \"shop\": extension \"idempotence\" is at version {tables}");
        server.wait_for_log(&told).await?;
        let failed = "SELECT failed_at FROM idempotence.visits() v JOIN pg_database d ON d.oid = v.database WHERE d.datname = 'shop'";
        for _ in 0..2 {
            let failed_at = server.psql("beside", failed)?;
            let again = format!("SELECT ({failed}) > '{}'", failed_at.trim_end());
            server.wait_for("beside", &again, "t").await?;
            let now = server.psql("beside", "SELECT clock_timestamp()")?;
            server.wait_for("beside", &format!("SELECT idempotence.last_sweep() > '{}'", now.trim_end()), "t").await?;
        }
        let times = server.log().matches(&told).count();
        ensure!(times == 1, "the worker says it {times} times");

        server.psql("shop", &set(&library))?;
        ensure!(app.replay("payments", "paid").await? == r#"succeeded|{"ok": true}"#);
        // The worker is told soon, because a backend has found the versions to fit.
        server.wait_for_log("sweeps database \"shop\" again").await?;
    }
    kept.check(&server, "shop").await
}
