//! Load while servers are killed, while two shards become four, and while tenants move.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Cluster;
use idempotence_cluster_tests::driver::Load;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::plproxy::{Sharded, node};
use idempotence_cluster_tests::shop::DATABASE;

use super::tenants::{again, pack, resettle, unpack};
use super::work::{Payments, TENANTS, bind};

const CLIENTS: usize = 8;

/// Kills servers one after the other, with requests in between.
async fn kill(load: &mut Load, sharded: &Sharded, kills: usize, requests_each: usize) -> Result<()> {
    for turn in 0..kills {
        load.progress(requests_each).await?;
        let servers = sharded.shards().len() + 1;
        match turn % servers {
            0 => sharded.proxy().crash()?,
            shard => sharded.shards()[shard - 1].crash()?,
        }
    }
    load.progress(requests_each).await
}

/// Two shards become four. Each new shard is a copy of an old one, outcomes included. Of the tenants of the old one, it
/// takes over those that have a place there once there are four. Their sessions come open, since they are bound to it.
async fn grow(load: &mut Load, sharded: &mut Sharded) -> Result<()> {
    let old = sharded.shards().len();
    let copies = sharded.shards().iter().map(Cluster::standby).collect::<Result<Vec<_>>>()?;
    for (shard, copy) in copies.iter().enumerate() {
        copy.conf("idempotence.node", &node(shard + old))?;
        copy.restart()?;
    }
    load.progress(100).await?;
    // From here on the tenants that go wait.
    for tenant in (0..TENANTS).filter(|tenant| tenant % (2 * old) >= old) {
        let (from, to) = (tenant % old, tenant % (2 * old));
        for server in sharded.shards() {
            bind(server, tenant, to)?;
        }
        let at_rest = format!("SELECT count(*) FROM idem_export('tenant-{tenant}', 'goes to the copy')");
        again(|| sharded.shards()[from].psql(DATABASE, &at_rest)).await?;
    }
    for (server, copy) in sharded.shards().iter().zip(&copies) {
        copy.catch_up_with(server)?;
        copy.promote()?;
    }
    sharded.add(copies);
    sharded.switch()?;
    // Each shard still has the rows of both halves.
    let shards = sharded.shards().len();
    for (shard, server) in sharded.shards().iter().enumerate() {
        server.psql(DATABASE, &format!("DELETE FROM effect WHERE tenant % {shards} <> {shard}"))?;
    }
    load.progress(200).await
}

/// A tenant moves while servers are killed between the steps.
async fn move_tenant(sharded: &Sharded, tenant: usize, from: usize, to: usize, kills: bool) -> Result<()> {
    let (source, target) = (&sharded.shards()[from], &sharded.shards()[to]);
    let luggage = pack(source, tenant, to).await?;
    if kills {
        source.crash()?;
        target.crash()?;
    }
    unpack(&luggage, sharded, tenant, to)?;
    if kills {
        target.crash()?;
    }
    resettle(sharded, source, to, tenant)
}

// Goal: each request that was answered has taken effect once, through kills, growth and moves.
// Method: clients pay through the proxy all the time. Proxy and shards are killed; two shards become four by whole copies;
// tenants move to other shards, one of them there and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PL/Proxy: the suite runs it where Debian has it"]
async fn payments_take_effect_once_through_kills_growth_and_moves() -> Result<()> {
    let mut sharded = Sharded::start(2)?;
    Payments::create(&sharded)?;
    let proxy = sharded.proxy().connect_string(DATABASE, "postgres");
    let mut load = Load::through(vec![proxy], Payments, CLIENTS);
    let (kills, each) = (3 * requests(1, 4), requests(150, 500));
    kill(&mut load, &sharded, kills, each).await?;
    grow(&mut load, &mut sharded).await?;
    kill(&mut load, &sharded, kills, each).await?;
    for (tenant, from, to, kills) in [(5, 1, 2, false), (2, 2, 0, true), (5, 2, 1, false)] {
        move_tenant(&sharded, tenant, from, to, kills).await?;
        load.progress(each).await?;
    }
    load.progress(requests(3000, 20_000).saturating_sub(load.answered()).max(100)).await?;
    let connection = sharded.proxy().connect(DATABASE).await?;
    let report = load.close_on(&connection).await?;
    println!("{} answered, {} retries, {} kills", report.answered, report.retries, 2 * kills + 3);
    report.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    ensure!(report.retries > 0, "no client noticed any of the kills");
    ensure!(report.errors.keys().any(|error| error.starts_with("XX000")), "no lost shard came as XX000");
    report.check()?;
    // Every request once more, wherever its tenant lives now. None is executed.
    let again =
        "SELECT count(*) FILTER (WHERE pay(tenant_of(key), key, 'again') <> attempt), count(*) >= 3000 FROM effects()";
    let told = connection.text(again).await?;
    ensure!(told == "0|t", "answered otherwise when they were sent again, and whether they were enough: {told}");
    Ok(())
}
