//! Journals on Citus: any node, kills, and shards that move.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::citus::{Citus, DATABASE, PRELOADED, kills};
use idempotence_cluster_tests::effort::requests;

use super::journal::{Journaled, Way};

const MOVES: usize = 12;

// Goal: a retry that comes to another node executes nothing again, whatever is killed.
// Method: each attempt goes to a node chosen at random. The coordinator, a worker or a backend is killed at random moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn requests_on_any_node_happen_once_through_kills() -> Result<()> {
    for way in [Way::Statements, Way::Delegated] {
        let citus = Citus::start(2)?;
        Journaled::create(&citus).await?;
        kills::survives(&citus, Journaled(way), &format!("{way:?}")).await?;
    }
    Ok(())
}

/// The shards of the effects that a worker has.
fn shards(citus: &Citus, worker: usize) -> Result<Vec<String>> {
    let port = citus.workers()[worker].addr().port();
    let of_worker = format!(
        "SELECT shardid FROM citus_shards WHERE table_name = 'charge'::regclass AND nodeport = {port} ORDER BY 1"
    );
    let shards = citus.coordinator().psql(DATABASE, &of_worker)?;
    Ok(shards.split_whitespace().map(str::to_owned).collect())
}

/// Moves a shard from this worker of two to the other, with what is distributed together with it.
fn move_shard(citus: &Citus, shard: &str, from: usize) -> Result<()> {
    let place = |number: usize| {
        let worker = &citus.workers()[number];
        format!("'{}', {}", worker.home().display(), worker.addr().port())
    };
    let to_move =
        format!("SELECT citus_move_shard_placement({shard}, {}, {}, 'block_writes')", place(from), place(1 - from));
    citus.coordinator().psql(DATABASE, &to_move).map(drop)
}

// Goal: outcomes go with the shards that move, so that nothing is executed again.
// Method: under load from all nodes, shards move from one worker to the other and back, and then all are rebalanced.
async fn moved(citus: &Citus, way: Way) -> Result<()> {
    let mut load = citus.start_load(Journaled(way), 6);
    for turn in 0..MOVES {
        load.progress(50).await?;
        let shard = shards(citus, turn % 2)?.into_iter().next().context("the worker has no shard left")?;
        move_shard(citus, &shard, turn % 2)?;
    }
    load.progress(50).await?;
    // Everything on one worker first, so that there is something to do.
    for shard in shards(citus, 0)? {
        move_shard(citus, &shard, 0)?;
    }
    citus.coordinator().psql(DATABASE, "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')")?;
    load.progress(requests(3000, 12_000).saturating_sub(load.answered()).max(200)).await?;
    let report = citus.close(load).await?;
    report.tell(&format!("{way:?}, {MOVES} moves and a rebalance"));
    report.check()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn requests_happen_once_while_their_shards_move() -> Result<()> {
    // A move first drops what the move before has left, and fails where Citus's daemon is at that.
    let without_daemon = [("citus.defer_shard_delete_interval", "-1")];
    for way in [Way::Statements, Way::Delegated] {
        let citus = Citus::start_with(2, PRELOADED, &without_daemon)?;
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
