//! What the moves of the other test would do without the outcomes: the load would find it.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::plproxy::Sharded;
use idempotence_cluster_tests::shop::DATABASE;

use super::tenants::{pack, resettle, unpack};
use super::work::Payments;

// Goal: it is the outcomes that keep a request from taking effect again where its tenant has moved.
// Method: two tenants have paid once. Each moves with its rows, one of them without its outcomes. Then each pays again under
// the key of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PL/Proxy: the suite runs it where Debian has it"]
async fn a_tenant_that_moves_without_its_outcomes_pays_twice() -> Result<()> {
    let sharded = Sharded::start(2)?;
    Payments::create(&sharded)?;
    let connection = sharded.proxy().connect(DATABASE).await?;
    let (from, to) = (&sharded.shards()[0], &sharded.shards()[1]);
    for (tenant, executed_by) in [(2, "first"), (4, "second")] {
        let pay = |attempt: &str| format!("SELECT pay({tenant}, 'k', '{attempt}')");
        ensure!(connection.text(&pay("first")).await? == "first");
        let luggage = pack(from, tenant, 1).await?;
        let luggage = if executed_by == "first" { luggage } else { luggage.without_outcomes() };
        unpack(&luggage, &sharded, tenant, 1)?;
        resettle(&sharded, from, 1, tenant)?;
        let answer = connection.text(&pay("second")).await?;
        ensure!(answer == executed_by, "tenant {tenant}: executed by {answer}");
        let effects = to.psql(DATABASE, &format!("SELECT count(*) FROM effect WHERE tenant = {tenant}"))?;
        let wanted = if executed_by == "first" { "1" } else { "2" };
        ensure!(effects.trim() == wanted, "tenant {tenant}: {effects} effects");
    }
    Ok(())
}
