//! Leases of numbered requests, and what becomes of their client session in a crash.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::crashes::Crash;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version};

const APPLICATION: &str = "holder";

/// Begins request 1 with a lease. Returns its token.
async fn lease(connection: &Connection, session: &str, length: &str) -> Result<i64> {
    let begin = format!("SELECT token FROM idem_begin('{session}', 1, lease => '{length}')");
    Ok(connection.text(&begin).await?.parse()?)
}

fn record(session: &str, token: i64) -> String {
    format!("SELECT FROM idem_record('{session}', 1, '1', token => {token})")
}

// Goal: a lease saves its client session. While it lives, no crash, no silence and no other registration ends the
// session. Once it has run out, they do, and its holder is refused.
// Method: two sessions that have done nothing else, one with a long lease and one with a short one. A crash of each
// kind, silence, and registrations of the same clients.
pub async fn a_session_with_a_lease_goes_on_after_a_crash(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    for crash in Crash::ALL {
        let before = server.reconnect(DATABASE).await?;
        before.text(&format!("SET application_name = '{APPLICATION}'")).await?;
        let clients = [format!("long {crash:?}"), format!("short {crash:?}")];
        let (long, short) =
            (before.register_client(&clients[0], "1 s").await?, before.register_client(&clients[1], "1 s").await?);
        let (held, out) = (lease(&before, &long, "10 min").await?, lease(&before, &short, "10 ms").await?);
        crash.of(&server, DATABASE, APPLICATION).await?;

        let after = server.reconnect(DATABASE).await?;
        after.text("SET idempotence.wait = '10 ms'").await?;
        after.text("CALL idem_sweep()").await?;
        ensure!(after.text(&at_work(&[&long])).await? == "1", "{crash:?}: the sweep does not restore the session");
        for session in [&long, &short] {
            after.silence(session).await?;
        }
        after.text("CALL idem_sweep()").await?;
        ensure!(after.answer(&long, "1").await? == "in_progress|", "{crash:?}");
        // Its slot is taken, but other numbers are due.
        ensure!(after.answer(&long, "2").await? == "started|", "{crash:?}");
        let fence = format!("SELECT FROM idem_register(client => '{}')", clients[0]);
        ensure!(after.sqlstate(&fence).await? == "55P03", "{crash:?}: the session was fenced under a lease");
        after.text(&record(&long, held)).await?;
        ensure!(after.replay(&long, "1").await? == "succeeded|1", "{crash:?}");
        after.text(&fence).await?;
        ensure!(after.answer(&long, "1").await? == "ID005", "{crash:?}");

        ensure!(
            after.answer(&short, "1").await? == "ID004",
            "{crash:?}: the session outlives its lease and its timeout"
        );
        ensure!(after.sqlstate(&record(&short, out)).await? == "ID004", "{crash:?}");
        let verdict = after.text(&format!("SELECT status, attempt FROM idem_settle('{short}', 1)")).await?;
        ensure!(verdict == "cancelled|1", "{crash:?}: the verdict is {verdict}");
    }
    Ok(())
}
