//! Logical replication of the tables of the extension: it is of no use, but it must do no harm.

use anyhow::{Result, ensure};
use futures_util::future::try_join;
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version, on_each_version};
use idempotence_demo::server::SUPERUSER;

on_each_version!(a_subscription_to_our_tables_goes_on, a_subscription_gets_each_key_of_racing_batches_once);

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

// Goal: a subscriber gets each key that a batch has inserted directly, and nothing of a batch that lost a race or was
// rolled back. A key that came twice would be the end of the subscription.
// Method: the second of two overlapping batches looks before the first inserts, and inserts after the first has committed.
// A lock on the table, which the first holds, keeps the second waiting in between.
async fn a_subscription_gets_each_key_of_racing_batches_once(version: Version) -> Result<()> {
    let publisher = Cluster::start_with(version, &[("wal_level", "logical")])?;
    let subscriber = Cluster::start(version)?;
    for server in [&publisher, &subscriber] {
        server.create_database(DATABASE)?;
    }
    let (first, second) = (publisher.connect(DATABASE).await?, publisher.connect(DATABASE).await?);
    first.text("CREATE PUBLICATION p FOR TABLE idempotence.outcome_0").await?;
    first.text("SELECT idem_create_session('in', inbox => true)").await?;
    let there = subscriber.connect(DATABASE).await?;
    let source = publisher.connect_string(DATABASE, SUPERUSER).replace('\'', "''");
    there.text(&format!("CREATE SUBSCRIPTION s CONNECTION '{source}' PUBLICATION p")).await?;
    let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
    subscriber.wait_for(DATABASE, copied, "1").await?;

    let batch = |from: usize, to: usize| {
        format!(
            "SELECT count(*) FROM idem_once_many('in', ARRAY(SELECT 'k' || n FROM generate_series({from}, {to}) n))"
        )
    };
    ensure!(first.text(&format!("BEGIN; {}; ROLLBACK", batch(1, 300))).await? == "300");
    first.text("BEGIN; LOCK TABLE idempotence.outcome_0 IN SHARE MODE").await?;
    let (overtaking, overtaken) = (batch(1, 200), batch(101, 300));
    let overtake = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE relation = 'idempotence.outcome_0'::regclass AND NOT granted";
        publisher.wait_for(DATABASE, waits, "1").await?;
        let new = first.text(&overtaking).await?;
        first.text("COMMIT").await?;
        anyhow::Ok(new)
    };
    let new = try_join(overtake, second.text(&overtaken)).await?;
    ensure!(new == ("200".into(), "100".into()), "new were {new:?}");
    // What comes last has come after all the others.
    ensure!(first.text("SELECT idem_once('in', 'last')").await? == "t");
    subscriber.wait_for(DATABASE, "SELECT count(*) FROM idempotence.outcome_0 WHERE key = 'last'", "1").await?;
    let rows = "SELECT count(*), md5(string_agg(o::text, ',' ORDER BY key)) FROM idempotence.outcome_0 o";
    let (here, there_too) = (first.text(rows).await?, there.text(rows).await?);
    ensure!(here.starts_with("301|") && here == there_too, "{here} here, {there_too} there");
    there.text("DROP SUBSCRIPTION s").await?;
    Ok(())
}
