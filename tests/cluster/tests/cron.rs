//! `CALL idem_sweep()` by a scheduler, if the library is not preloaded. The scheduler is Debian's pg_cron.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::ring::CURRENT;
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version};

// Goal: without the worker, a scheduler does its work: silent sessions end, and the ring turns.
// Method: pg_cron, which can run a job at most once a minute, calls the procedure. The view health tells what
// was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pg_cron_sweeps_where_the_library_is_not_preloaded() -> Result<()> {
    let server = Cluster::start_with(
        Version::Pg15,
        &[("shared_preload_libraries", "pg_cron"), ("cron.database_name", DATABASE)],
    )?;
    // The sessions of pg_cron come through the socket, which asks for no password.
    server.conf("cron.host", &server.home().display().to_string())?;
    server.create_database(DATABASE)?;
    server.restart()?;
    let connection = server.connect(DATABASE).await?;
    let there = connection.text("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_cron'").await?;
    ensure!(there == "1", "this server has no pg_cron (Debian: postgresql-15-cron)");
    connection.text("CREATE EXTENSION pg_cron").await?;
    let health = "SELECT string_agg(name || ' ' || status, ', ') FROM idempotence.health WHERE status <> 'ok'";
    let swept = "SELECT substring(detail, '^not swept yet|^swept') FROM idempotence.health WHERE name = 'sweep'";
    ensure!(connection.text(health).await? == "worker warning");
    ensure!(connection.text(swept).await? == "not swept yet");

    let session = connection.register_client("c", "2 s").await?;
    connection.text("SELECT idem_create_session('s', ttl => '1 hour')").await?;
    connection.execute("s", "k", "1").await?;
    connection.text("UPDATE idempotence.segment SET opened_at = opened_at - interval '2 hours'").await?;
    connection.text("SELECT cron.schedule('sweep', '* * * * *', 'CALL idem_sweep()')").await?;
    server.wait_for(DATABASE, &at_work(&[&session]), "0").await?;
    server.wait_for(DATABASE, "SELECT status FROM cron.job_run_details ORDER BY runid LIMIT 1", "succeeded").await?;
    // The first sweep closes the segments that were never used. Then the second sweep can turn the ring.
    server.wait_for(DATABASE, CURRENT, "1").await?;
    ensure!(connection.replay("s", "k").await? == "succeeded|1");
    ensure!(connection.text(health).await?.is_empty());
    ensure!(connection.text(swept).await? == "swept");
    Ok(())
}
