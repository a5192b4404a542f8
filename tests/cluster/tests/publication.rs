//! Logical replication of the tables of the extension: it is of no use, but it must do no harm.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version, on_each_version};
use idempotence_demo::server::SUPERUSER;

on_each_version!(a_subscription_to_our_tables_goes_on);

// Goal: if the tables are published, a subscription survives each change of their rows.
// Method: the two tables without a primary key. A row of each table is changed or deleted, and the other
// server follows.
async fn a_subscription_to_our_tables_goes_on(version: Version) -> Result<()> {
    let publisher = Cluster::start_with(version, &[("wal_level", "logical")])?;
    let subscriber = Cluster::start(version)?;
    for server in [&publisher, &subscriber] {
        server.create_database(DATABASE)?;
    }
    let here = publisher.connect(DATABASE).await?;
    here.text("CREATE PUBLICATION p FOR TABLE idempotence.secret, idempotence.audit").await?;
    let there = subscriber.connect(DATABASE).await?;
    let source = publisher.connect_string(DATABASE, SUPERUSER).replace('\'', "''");
    there.text(&format!("CREATE SUBSCRIPTION s CONNECTION '{source}' PUBLICATION p")).await?;
    let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
    subscriber.wait_for(DATABASE, copied, "2").await?;

    let used = "SELECT count(*) FROM idempotence.secret WHERE in_use_since IS NOT NULL";
    ensure!(there.text(used).await? == "0");
    here.text("SELECT idem_create_session('s')").await?;
    subscriber.wait_for(DATABASE, used, "1").await?;

    let repairs = "SELECT count(*) FROM idempotence.audit";
    here.execute("s", "k", "1").await?;
    here.text("SELECT idem_forget('s', 'k', 'a test')").await?;
    subscriber.wait_for(DATABASE, repairs, "1").await?;
    here.text("DELETE FROM idempotence.audit").await?;
    subscriber.wait_for(DATABASE, repairs, "0").await?;
    there.text("DROP SUBSCRIPTION s").await?;
    Ok(())
}
