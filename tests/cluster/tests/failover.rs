//! Three servers under Patroni. Clients find the leader by a string with several hosts, and through HAProxy.
//! `make test-fleet` runs this; the other suites skip it.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::driver::Load;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::frozen::Frozen;
use idempotence_cluster_tests::haproxy::Haproxy;
use idempotence_cluster_tests::patroni::{DATABASE, Fleet, ROLE, Victim};
use idempotence_cluster_tests::payments::{Payments, SESSION};
use idempotence_cluster_tests::standby::receiver;
use idempotence_cluster_tests::{Connection, LIMIT, Version};
use idempotence_demo::host;
use rand::RngExt;
use tokio::pin;
use tokio::time::{Duration, Instant, sleep, timeout};

const CLIENTS: usize = 8;

/// How soon the launcher of the worker has to be there, once a server accepts connections as the leader.
const SOON: Duration = Duration::from_secs(10);

/// How long a server that has lost its standby is watched: it must not answer.
const WATCHED: Duration = Duration::from_secs(2);

// Goal: with a synchronous standby, the loss of leaders costs no answer, repeats no effect and ends no client session.
// Method: clients send requests while the leader's processes are killed, those of its Patroni too, or those of its
// Patroni alone, so that for a while two servers take themselves for the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Patroni, etcd and HAProxy: make test-fleet"]
async fn lost_leaders_cost_no_answer_and_repeat_no_effect() -> Result<()> {
    let fleet = Fleet::start(Version::Pg15, true).await?;
    let haproxy = Haproxy::start(&fleet)?;
    let mut leader = fleet.wait_until_whole(true).await?;
    Payments::create(&fleet.connect(leader, DATABASE).await?, ROLE).await?;
    let ways = vec![fleet.hosts(), haproxy.connect_string(&fleet)];
    let mut session = ClientSession::register(&ways[0]).await?;

    let mut load = Load::through(ways.clone(), Payments, CLIENTS);
    let (wanted, kills) = (requests(900, 6000), requests(3, 9));
    for turn in 0..kills {
        load.progress(rand::rng().random_range(1..=2 * wanted / kills - 1)).await?;
        let next = lose(&fleet, leader, Victim::of_turn(turn)).await?;
        // The clients go on while the former leader is still away.
        load.progress(50).await?;
        leader = fleet.wait_until_whole(true).await?;
        ensure!(leader == next, "another server leads than the one that was chosen");
        session.go_on(&ways[turn % 2]).await?;
    }
    load.progress(wanted.saturating_sub(load.answered()).max(100)).await?;

    let report = load.close_on(&fleet.connect(leader, DATABASE).await?).await?;
    println!("{} answered, {} retries, {kills} kills", report.answered, report.retries);
    report.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    for number in 0..fleet.nodes().len() {
        let launchers = if number == leader { "1" } else { "0" };
        let found = fleet.connect(number, DATABASE).await?.text(LAUNCHERS).await?;
        ensure!(found == launchers, "{found} launchers on {}", fleet.nodes()[number].name());
    }
    ensure!(report.retries > 0, "no client noticed any of the kills");
    report.check()
}

// Goal: a former leader that is a standby by now, and is not rewound yet, answers no client with an outcome that the
// next leader lacks.
// Method: nothing of the last commits reaches the standbys before the leader is killed. Patroni starts the former
// leader as a standby. HAProxy stands still until then, so it has not noticed yet, and sends clients there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Patroni, etcd and HAProxy: make test-fleet"]
async fn a_former_leader_answers_nothing_that_the_next_one_lacks() -> Result<()> {
    let fleet = Fleet::start(Version::Pg15, true).await?;
    let haproxy = Haproxy::start(&fleet)?;
    let leader = fleet.wait_until_whole(true).await?;
    let watch = fleet.connect(leader, DATABASE).await?;
    Payments::create(&watch, ROLE).await?;
    let mut load = Load::through(vec![haproxy.connect_string(&fleet)], Payments, CLIENTS);
    load.progress(200).await?;
    for sender in watch.text("SELECT pid FROM pg_stat_replication").await?.lines() {
        host::freeze(sender.parse()?);
    }
    wait_for_commits_that_wait(&watch).await?;
    let late = Frozen::stop(haproxy.pid());
    fleet.nodes()[leader].kill(Victim::Server)?;
    wait_until_it_is_a_standby(&fleet, leader).await?;
    drop(late);
    let next = fleet.wait_for_leader(Some(leader)).await?;
    load.progress(50).await?;
    ensure!(fleet.wait_until_whole(true).await? == next, "another server leads than the one that was chosen");
    load.progress(50).await?;
    let report = load.close_on(&fleet.connect(next, DATABASE).await?).await?;
    report.tell("through a late HAProxy");
    ensure!(report.errors.keys().any(|error| error.starts_with("25006")), "no client reached the former leader");
    report.check()
}

/// Waits until commits of the clients wait for a standby.
async fn wait_for_commits_that_wait(leader: &Connection) -> Result<()> {
    let start = Instant::now();
    let waiting = format!("SELECT count(*) > {} FROM pg_stat_activity WHERE wait_event = 'SyncRep'", CLIENTS / 2);
    while leader.text(&waiting).await? != "t" {
        ensure!(start.elapsed() <= LIMIT, "the commits do not wait");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Waits until a killed leader accepts connections as a standby.
async fn wait_until_it_is_a_standby(fleet: &Fleet, former: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        if let Ok(connection) = fleet.connect(former, DATABASE).await
            && connection.text("SELECT pg_is_in_recovery()").await? == "t"
        {
            return Ok(());
        }
        ensure!(start.elapsed() <= LIMIT, "the former leader accepts no connections");
        sleep(Duration::from_millis(5)).await;
    }
}

// Goal: the proof of lost_leaders_cost_no_answer_and_repeat_no_effect can fail: without a synchronous standby, a
// failover loses what it had not received.
// Method: nothing reaches the standbys for the last requests before the leader is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Patroni, etcd and HAProxy: make test-fleet"]
async fn without_a_synchronous_standby_answers_are_lost() -> Result<()> {
    let fleet = Fleet::start(Version::Pg15, false).await?;
    let leader = fleet.wait_until_whole(false).await?;
    Payments::create(&fleet.connect(leader, DATABASE).await?, ROLE).await?;
    let mut load = Load::through(vec![fleet.hosts()], Payments, CLIENTS);
    load.progress(50).await?;
    let mut receivers = Vec::new();
    for number in (0..fleet.nodes().len()).filter(|&number| number != leader) {
        receivers.push(receiver(&fleet.connect(number, DATABASE).await?).await?);
    }
    receivers.iter().for_each(|&pid| host::freeze(pid));
    load.progress(100).await?;
    fleet.nodes()[leader].kill(Victim::Both)?;
    // What is still in their sockets must not arrive.
    receivers.iter().for_each(|&pid| host::kill9(pid));
    let next = fleet.wait_for_leader(Some(leader)).await?;
    load.progress(50).await?;
    let report = load.close_on(&fleet.connect(next, DATABASE).await?).await?;
    println!("{} answered, {} lost", report.answered, report.lost.len());
    ensure!(report.lost.len() >= 50, "only {} answers were lost", report.lost.len());
    ensure!(report.doubled.is_empty() && report.torn.is_empty(), "{report:#?}");
    Ok(())
}

/// The launchers of the worker on a server.
const LAUNCHERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idempotence launcher'";

/// Kills the leader or what manages it, and returns the next leader, which has its launcher.
async fn lose(fleet: &Fleet, leader: usize, victim: Victim) -> Result<usize> {
    let start = Instant::now();
    fleet.nodes()[leader].kill(victim)?;
    let next = fleet.wait_for_leader(Some(leader)).await?;
    let chosen = Instant::now();
    let connection = fleet.connect(next, DATABASE).await?;
    while connection.text(LAUNCHERS).await? != "1" {
        ensure!(chosen.elapsed() < SOON, "the next leader has no launcher");
        sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{victim:?} killed: the next leader after {:.1} s, its launcher {:.1} s later",
        (chosen - start).as_secs_f64(),
        chosen.elapsed().as_secs_f64()
    );
    if victim == Victim::Manager {
        check_former(fleet, leader).await?;
        // As docs/scaling.md asks for: a Patroni that starts beside its server lets the commits go that wait there.
        fleet.nodes()[leader].kill(Victim::Server)?;
    }
    if victim != Victim::Server {
        fleet.nodes()[leader].manage()?;
    }
    Ok(next)
}

/// Checks that a leader that nobody told of the next one takes no request, though it is no standby yet.
async fn check_former(fleet: &Fleet, leader: usize) -> Result<()> {
    ensure!(fleet.nodes()[leader].postmaster().is_some(), "the former leader does not run");
    let former = fleet.connect(leader, DATABASE).await?;
    ensure!(former.text("SELECT pg_is_in_recovery()").await? == "f", "the former leader is a standby already");
    let pid = former.pid().await?;
    let answer = former.execute(SESSION, "at the former leader", "1");
    pin!(answer);
    let early = timeout(WATCHED, &mut answer).await;
    ensure!(early.is_err(), "the former leader has answered: {early:?}");
    // PostgreSQL answers a commit whose wait was cancelled. Nobody else gets that answer.
    let other = fleet.connect(leader, DATABASE).await?;
    other.text(&format!("SET idempotence.wait = '100ms'; SELECT pg_cancel_backend({pid})")).await?;
    answer.await?;
    let found = other.lookup(SESSION, "at the former leader").await?;
    ensure!(found == "in_progress", "the former leader hands out what no standby has: {found}");
    Ok(())
}

/// A client session, whose requests have numbers.
struct ClientSession {
    name: String,
    done: u32,
}

impl ClientSession {
    /// Registers it, and executes its first request.
    async fn register(way: &str) -> Result<Self> {
        let connection = Connection::open(way).await?;
        let mut session = Self { name: connection.register_client("a client", "1 hour").await?, done: 0 };
        session.execute(&connection).await?;
        Ok(session)
    }

    /// Replays the last request, and executes the next.
    async fn go_on(&mut self, way: &str) -> Result<()> {
        let start = Instant::now();
        let connection = loop {
            match Connection::open(way).await {
                Ok(connection) => break connection,
                Err(error) => ensure!(start.elapsed() < LIMIT, "no way to the leader: {error}"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        let last = self.done.to_string();
        let replay = connection.replay(&self.name, &last).await?;
        ensure!(replay == format!("succeeded|{last}"), "the last request of the client session is {replay}");
        self.execute(&connection).await
    }

    async fn execute(&mut self, connection: &Connection) -> Result<()> {
        self.done += 1;
        let number = self.done.to_string();
        connection.execute(&self.name, &number, &number).await
    }
}
