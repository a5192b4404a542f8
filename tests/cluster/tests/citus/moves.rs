//! Journals on Citus: any node, kills, and shards that move.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::citus::kills::Victim;
use idempotence_cluster_tests::citus::load::{Load, Report};
use idempotence_cluster_tests::citus::{Citus, DATABASE};
use idempotence_cluster_tests::effort::requests;
use rand::RngExt;

use crate::journal::{Journaled, Way};

const KILLS: usize = 6;
const MOVES: usize = 12;

fn told(what: &str, report: &Report) -> Result<()> {
    println!("{what}: {} answered, {} retries", report.answered, report.retries);
    report.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    report.check()
}

// Goal: a retry that comes to another node executes nothing again, whatever is killed.
// Method: each attempt goes to a node chosen at random. The coordinator, a worker or a backend is killed at random moments.
async fn killed_on_any_node(citus: &Citus, way: Way) -> Result<()> {
    let mut load = Load::start(citus, Journaled(way), 8);
    let (wanted, kills) = (requests(3000, 12_000), requests(KILLS, 24));
    for turn in 0..kills {
        load.progress(rand::rng().random_range(1..=2 * wanted / kills - 1)).await?;
        Victim::of_turn(turn, citus).kill(citus).await?;
    }
    load.progress(wanted.saturating_sub(load.answered()).max(100)).await?;
    let report = load.close(citus).await?;
    ensure!(report.retries > 0, "no client noticed any of the kills");
    told(&format!("{way:?}, {kills} kills"), &report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn requests_on_any_node_happen_once_through_kills() -> Result<()> {
    for way in [Way::Statements, Way::Delegated] {
        let citus = Citus::start(2)?;
        Journaled::create(&citus).await?;
        killed_on_any_node(&citus, way).await?;
    }
    Ok(())
}

// Goal: outcomes go with the shards that move, so that nothing is executed again.
// Method: under load from all nodes, shards move from one worker to the other and back, and then all are rebalanced.
async fn moved(citus: &Citus, way: Way) -> Result<()> {
    let mut load = Load::start(citus, Journaled(way), 6);
    for turn in 0..MOVES {
        load.progress(50).await?;
        let [from, to] = [turn % 2, (turn + 1) % 2].map(|number| {
            let worker = &citus.workers()[number];
            (worker.home().display().to_string(), worker.addr().port())
        });
        let shard = format!(
            "SELECT min(shardid) FROM citus_shards WHERE table_name = 'charge'::regclass AND nodeport = {}",
            from.1
        );
        let move_it = format!(
            "SELECT citus_move_shard_placement(({shard}), '{}', {}, '{}', {}, 'block_writes')",
            from.0, from.1, to.0, to.1
        );
        citus.coordinator().psql(DATABASE, &move_it)?;
    }
    load.progress(50).await?;
    // Everything on one worker first, so that there is something to do.
    let [(one, one_port), (other, other_port)] = [0, 1].map(|number| {
        let worker = &citus.workers()[number];
        (worker.home().display().to_string(), worker.addr().port())
    });
    let shards =
        format!("SELECT shardid FROM citus_shards WHERE table_name = 'charge'::regclass AND nodeport = {one_port}");
    for shard in citus.coordinator().psql(DATABASE, &shards)?.split_whitespace() {
        let move_it = format!(
            "SELECT citus_move_shard_placement({shard}, '{one}', {one_port}, '{other}', {other_port}, 'block_writes')"
        );
        citus.coordinator().psql(DATABASE, &move_it)?;
    }
    citus.coordinator().psql(DATABASE, "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')")?;
    load.progress(requests(3000, 12_000).saturating_sub(load.answered()).max(200)).await?;
    let report = load.close(citus).await?;
    told(&format!("{way:?}, {MOVES} moves and a rebalance"), &report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn requests_happen_once_while_their_shards_move() -> Result<()> {
    for way in [Way::Statements, Way::Delegated] {
        let citus = Citus::start(2)?;
        Journaled::create(&citus).await?;
        moved(&citus, way).await?;
    }
    Ok(())
}

// Goal: a journal in shards keeps the promises of waits and leases, also between two nodes.
// Method: a request is claimed on one worker and asked for on the other, in each way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn a_claim_and_a_lease_on_one_node_hold_on_another() -> Result<()> {
    let citus = Citus::start(2)?;
    Journaled::create(&citus).await?;
    let [here, there] = [citus.workers()[0].connect(DATABASE).await?, citus.workers()[1].connect(DATABASE).await?];
    for tenant in 1..=4 {
        let begin = |more: &str| {
            format!("SELECT status FROM idem_begin('charges', 'k', stream => '{tenant}', wait => '300ms'{more})")
        };
        let lookup = format!("SELECT status FROM idem_lookup('charges', 'k', stream => '{tenant}')");
        let asked = [
            (here.text(&format!("BEGIN; {}", begin(""))).await?, "started"),
            (there.text(&begin("")).await?, "in_progress"),
            (there.text(&lookup).await?, "in_progress"),
            (here.text(&format!("ROLLBACK; {lookup}")).await?, "unknown"),
            (here.text(&begin(", lease => '1 hour'")).await?, "started"),
            (there.text(&begin("")).await?, "in_progress"),
            (there.text(&lookup).await?, "in_progress"),
            (
                there
                    .text(&format!("SELECT status FROM idem_settle('charges', 'k', wait => '0', stream => '{tenant}')"))
                    .await?,
                "in_progress",
            ),
        ];
        for (number, (told, wanted)) in asked.iter().enumerate() {
            ensure!(told.trim() == *wanted, "tenant {tenant}, question {number}: {told} instead of {wanted}");
        }
        let refused =
            there.try_text(&format!("SELECT idem_claim('charges', 'k', stream => '{tenant}', wait => '0')")).await;
        let code = refused.err().and_then(|error| error.code().map(|code| code.code().to_owned()));
        ensure!(code.as_deref() == Some("55P03"), "tenant {tenant}: {code:?}");
    }
    Ok(())
}
