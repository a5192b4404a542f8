//! When a coordinator is asked, and what the view `health` says of it.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::elsewhere::Elsewhere;
use idempotence_cluster_tests::shop::{DATABASE, start_with};
use idempotence_cluster_tests::{Cluster, Connection, Version};

const HEALTH: &str = "SELECT status, detail FROM idempotence.health WHERE name = 'coordinator'";

/// Transactions that write nothing here, or take all of it back. Each has the effect `#` elsewhere.
const WRITE_NOTHING: [&str; 5] = [
    "SELECT elsewhere('#')",
    "BEGIN; SELECT status FROM idem_begin('payments', 'done'); SELECT elsewhere('#'); COMMIT",
    "BEGIN; SELECT status FROM idem_lookup('payments', '#'); SELECT elsewhere('#'); COMMIT",
    "BEGIN; SELECT status FROM idem_begin('payments', '#'); SELECT elsewhere('#');
     SELECT FROM idem_release('payments', '#'); COMMIT",
    "BEGIN; SELECT idem_once('mails', 'done'); SELECT elsewhere('#'); COMMIT",
];

/// Transactions that write here, in ways that the crashes do not go.
const WRITE: [&str; 6] = [
    "BEGIN; SELECT FROM idem_begin('payments', '#', lease => '1 hour'); SELECT elsewhere('#'); COMMIT",
    "SELECT FROM idem_run('payments', '#', 'SELECT FROM elsewhere(''#'')')",
    "BEGIN; SELECT FROM idem_register(); SELECT elsewhere('#'); COMMIT",
    "BEGIN; SELECT elsewhere('#'); SELECT count(*) FROM idem_once_many('mails', ARRAY['#']); COMMIT",
    "DO $$ BEGIN PERFORM elsewhere('#'); PERFORM idem_once('mails', '#'); END $$",
    "CALL once_and_commit('#')",
];

async fn start(version: Version, elsewhere: &Elsewhere, preloaded: &str) -> Result<(Cluster, Connection)> {
    let server = start_with(version, &[("shared_preload_libraries", preloaded)])?;
    elsewhere.create_function(&server, DATABASE)?;
    server.psql(
        DATABASE,
        "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true);
         SELECT FROM idem_run('payments', 'done', 'SELECT 1'); SELECT idem_once('mails', 'done');
         CREATE PROCEDURE once_and_commit(what text) LANGUAGE plpgsql AS
           $$ BEGIN PERFORM elsewhere(what); PERFORM idem_once('mails', what); COMMIT; END $$",
    )?;
    let connection = server.connect(DATABASE).await?;
    connection.text(&format!("SET elsewhere.file = '{}'", elsewhere.file())).await?;
    Ok((server, connection))
}

// Goal: a two-phase commit costs something, so only a transaction that writes here asks for one, in whatever way it
// writes.
// Method: the file tells whether an effect was prepared.
pub async fn only_a_transaction_that_writes_here_asks(version: Version) -> Result<()> {
    let elsewhere = Elsewhere::build(version, true)?;
    for preloaded in ["idempotence", ""] {
        let (_server, connection) = start(version, &elsewhere, preloaded).await?;
        for (kind, programs, wanted) in
            [("nothing", &WRITE_NOTHING[..], "committed"), ("something", &WRITE[..], "prepared,committed")]
        {
            for (number, program) in programs.iter().enumerate() {
                let effect = format!("{kind} {number} {preloaded}");
                connection.text(&program.replace('#', &effect)).await?;
                let written = elsewhere.written(&effect)?;
                ensure!(written == wanted, "{program}: {written}");
            }
        }
    }
    Ok(())
}

// Goal: a coordinator that comes late is found too, by the next transaction and by the view health.
// Method: a connection that has looked before it loads the module. Then the setting is off for a role.
pub async fn a_coordinator_that_is_loaded_late_is_noticed(version: Version) -> Result<()> {
    let elsewhere = Elsewhere::build(version, true)?;
    let (server, connection) = start(version, &elsewhere, "idempotence").await?;
    let none = "ok|no commit coordinator is loaded that can be asked for a two-phase commit";
    ensure!(connection.text(HEALTH).await? == none);
    connection.text("SELECT FROM idem_run('payments', 'before', 'SELECT 1')").await?;
    connection.text(&format!("LOAD '{}'", elsewhere.library())).await?;
    let loaded = "elsewhere is loaded, and can be asked for a two-phase commit";
    ensure!(connection.text(HEALTH).await? == format!("ok|{loaded}"));
    ensure!(server.connect(DATABASE).await?.text(HEALTH).await? == none);
    server.psql(DATABASE, "ALTER DATABASE shop SET idempotence.coordinate = off")?;
    let off = format!("warning|{loaded}; idempotence.coordinate is off for this database");
    ensure!(connection.text(HEALTH).await? == off);
    let unprivileged = server.connect(DATABASE).await?;
    unprivileged.text("CREATE ROLE app; SET ROLE app").await?;
    ensure!(unprivileged.sqlstate("SET idempotence.coordinate = off").await? == "42501");
    Ok(())
}
