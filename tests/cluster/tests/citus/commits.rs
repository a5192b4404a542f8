//! The commit of a transaction that has written on the coordinator and on a worker, step by step.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::citus::{Citus, DATABASE, PRELOADED};
use idempotence_cluster_tests::crashes::is_disconnected;
use idempotence_cluster_tests::driver::{Attempt, Work};
use idempotence_cluster_tests::elsewhere::Elsewhere;
use idempotence_cluster_tests::{Cluster, Connection, Version};

use super::work::Payment;

/// A cluster whose nodes preload the module that kills the process at a moment of its commit. It cannot be asked for
/// a two-phase commit itself.
struct Place {
    elsewhere: Elsewhere,
    citus: Citus,
}

impl Place {
    /// `preloaded` is what the nodes preload; `#` stands for the module.
    fn start(preloaded: &str) -> Result<Self> {
        let elsewhere = Elsewhere::build(Version::Pg18, false)?;
        let citus = Citus::start_with(2, &preloaded.replace('#', &elsewhere.library()), &[])?;
        Payment::create(&citus)?;
        elsewhere.create_function(citus.coordinator(), DATABASE)?;
        Ok(Self { elsewhere, citus })
    }

    async fn connect(&self, settings: &str) -> Result<Connection> {
        let connection = self.citus.coordinator().reconnect(DATABASE).await?;
        connection.text(&format!("SET elsewhere.file = '{}'; {settings}", self.elsewhere.file())).await?;
        Ok(connection)
    }

    /// Attempts a request that dies at this moment of its commit, and then attempts it again. Returns the statuses that
    /// the two begins gave, and how many effects there are for each tenant.
    async fn dies_at(&self, moment: &str, settings: &str, work: &Payment) -> Result<(String, usize)> {
        let mut attempt = Attempt { key: uuid::Uuid::new_v4().to_string(), name: "first".into() };
        let (witness, dying) = (self.connect("").await?, self.connect(settings).await?);
        let dies = format!("SET elsewhere.dies = '{moment}'; SET client_min_messages = error");
        dying.text(&dies).await?;
        let mut statuses = dying.text(&work.begin(&attempt)).await?;
        let mut steps = work.execute(&attempt);
        let commit = steps.pop();
        // The module has to have an effect to die for.
        steps.push(format!("SELECT elsewhere('{}')", attempt.key));
        for step in &steps {
            dying.text(step).await?;
        }
        match dying.try_text(&commit.unwrap_or_default()).await {
            Err(error) if is_disconnected(&error) => {}
            other => anyhow::bail!("the commit was to die {moment}, but: {other:?}"),
        }
        witness.wait_for_end().await?;

        attempt.name = "second".into();
        let retrying = self.connect(settings).await?;
        let status = retrying.text(&work.begin(&attempt)).await?;
        statuses = format!("{statuses}{status}");
        if status == "started|" {
            for step in work.execute(&attempt) {
                retrying.text(&step).await?;
            }
        }
        retrying.text("ROLLBACK").await?;
        self.citus.settle().await?;
        let count = format!("SELECT count(*) FROM effect WHERE key = '{}'", attempt.key);
        Ok((statuses, retrying.text(&count).await?.parse::<usize>()? / work.effects_each()))
    }
}

// Goal: no crash between the commit on a worker and the commit on the coordinator doubles an effect; and it is the
// two-phase commit that sees to it.
// Method: the module is preloaded before Citus, so that its callback comes after that of Citus and before the commit
// here. Effects on two workers are committed in two phases by Citus itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn a_crash_after_citus_and_before_the_commit_doubles_nothing_unless_switched_off() -> Result<()> {
    let place = Place::start("#,citus,idempotence")?;
    let one = Payment::on(&place.citus, &[1]).await?;
    let two = Payment::on(&place.citus, &[0, 1]).await?;
    let off = "SET idempotence.coordinate = off";
    for (settings, work, wanted) in [("", &one, 1), ("", &two, 1), (off, &one, 2), (off, &two, 1)] {
        let (statuses, times) = place.dies_at("between", settings, work).await?;
        ensure!(statuses == "started|started|", "{settings}: {statuses}");
        ensure!(times == wanted, "{settings}, {} workers: {times} times", work.effects_each());
    }
    Ok(())
}

// Goal: what was committed on the coordinator is committed on the worker too, if late.
// Method: the module is preloaded after Citus, so that it dies after the commit here and before Citus finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn a_crash_after_the_commit_and_before_citus_loses_nothing() -> Result<()> {
    let place = Place::start("citus,#,idempotence")?;
    for workers in [&[0][..], &[0, 1]] {
        let work = Payment::on(&place.citus, workers).await?;
        let (statuses, times) = place.dies_at("after", "", &work).await?;
        ensure!(statuses == "started|succeeded|first", "workers {workers:?}: {statuses}");
        ensure!(times == 1, "workers {workers:?}: {times} times");
    }
    Ok(())
}

// Goal: what docs/scaling.md says of functions that write in a SELECT is so: Citus does not prepare their part.
// Method: such a function writes into a table of the worker, and the process dies after the commit here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn a_write_that_citus_takes_for_a_read_is_lost() -> Result<()> {
    let place = Place::start("citus,#,idempotence")?;
    let work = Payment::on(&place.citus, &[0]).await?;
    let worker = &place.citus.workers()[0];
    worker.psql(DATABASE, "CREATE TABLE aside (key text)")?;
    let setup = "CREATE FUNCTION put_aside(tenant int, key text) RETURNS int LANGUAGE plpgsql
                 AS $$ BEGIN INSERT INTO aside VALUES (key); RETURN tenant; END $$";
    place.citus.coordinator().psql(DATABASE, setup)?;
    let there = Attempt { key: "there".into(), name: "there".into() };
    place.citus.coordinator().psql(DATABASE, &work.insert(&there).join(";"))?;
    let (witness, connection) = (place.connect("").await?, place.connect("").await?);
    for (key, dies, left) in [("lives", "", "1"), ("dies", "after", "0")] {
        let attempt = Attempt { key: key.into(), name: key.into() };
        connection.text(&format!("SET elsewhere.dies = '{dies}'")).await?;
        connection.text(&work.begin(&attempt)).await?;
        let tenant = connection
            .text(&format!(
                "SELECT put_aside(tenant, '{key}') FROM effect WHERE key = 'there' AND {}",
                work.is_tenant()
            ))
            .await?;
        ensure!(!tenant.is_empty(), "the function was not called");
        let committed = connection.try_text(&format!("SELECT elsewhere('{key}'); {}", work.record(&attempt))).await;
        ensure!(committed.is_ok() == dies.is_empty(), "{key}: {committed:?}");
        if !dies.is_empty() {
            witness.wait_for_end().await?;
            place.citus.settle().await?;
        }
        let aside = worker.psql(DATABASE, &format!("SELECT count(*) FROM aside WHERE key = '{key}'"))?;
        ensure!(aside.trim() == left, "{key}: {aside}");
        let outcome = place.connect("").await?.lookup("payments", key).await?;
        ensure!(outcome == "succeeded", "{key}: {outcome}");
    }
    Ok(())
}

// Goal: only a transaction that has written both here and on a worker is committed in two phases, or one whose lease or
// verdict in a journal must outlast a crash; and the view health names Citus.
// Method: the workers log their statements, of which Citus sends them a PREPARE TRANSACTION or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Citus: make test-citus"]
async fn only_transactions_that_write_here_and_there_are_prepared() -> Result<()> {
    let citus = Citus::start_with(2, PRELOADED, &[("log_statement", "all")])?;
    Payment::create(&citus)?;
    citus.coordinator().psql(
        DATABASE,
        "CREATE TABLE everywhere (n int); SELECT create_reference_table('everywhere');
         CREATE TABLE managed (n int); SELECT citus_add_local_table_to_metadata('managed');
         CREATE TABLE here (n int);
         SELECT idem_create_journal('kept', 'tenant', 'int');
         SELECT create_distributed_table('kept', 'tenant', colocate_with => 'effect');
         SELECT idem_create_session('kept', journal => 'kept')",
    )?;
    let work = Payment::on(&citus, &[0]).await?;
    let connection = citus.coordinator().connect(DATABASE).await?;
    let pid = connection.pid().await?;
    let attempt = |key: &str| Attempt { key: key.into(), name: key.into() };
    let insert = work.insert(&attempt("x")).remove(0);
    let request = |key: &str| {
        let attempt = attempt(key);
        format!("{}; {}", work.begin(&attempt), work.execute(&attempt).join("; "))
    };
    let tenant = citus.tenant_on("effect", 0, &[]).await?;
    let kept = |key: &str, effect: &str| {
        let of = format!("'kept', '{key}', stream => '{tenant}'");
        format!("BEGIN; SELECT FROM idem_begin({of}); {effect}; SELECT FROM idem_record({of}); COMMIT")
    };
    let lease = format!("SELECT FROM idem_begin('kept', 'r', lease => '1 s', stream => '{tenant}')");
    let programs = [
        ("an outcome in a journal", kept("o", "SELECT 1"), false),
        ("an outcome in a journal and a row beside it", kept("p", &insert), false),
        ("an outcome in a journal and a row here", kept("q", "INSERT INTO here VALUES (1)"), true),
        ("a lease in a journal", lease, true),
        ("a verdict in a journal", format!("SELECT FROM idem_settle('kept', 's', stream => '{tenant}')"), true),
        ("an outcome and a row", request("k"), true),
        ("a replay and a row", format!("{}; {insert}; COMMIT", work.begin(&attempt("k"))), false),
        ("a row", insert.clone(), false),
        ("an outcome", "SELECT FROM idem_run('payments', 'l', 'SELECT 1')".into(), false),
        ("an outcome and a look", "SELECT FROM idem_run('payments', 'm', 'SELECT count(*) FROM effect')".into(), false),
        ("an outcome and a row in one statement", format!("SELECT FROM idem_run('payments', 'n', $${insert}$$)"), true),
    ];
    for (what, program, prepares) in programs {
        let before = prepared(&citus, pid);
        connection.text(&program).await?;
        let prepared = prepared(&citus, pid) - before;
        ensure!(prepared == usize::from(prepares), "{what}: {prepared} prepared");
    }
    // Where Citus cannot be asked, a second write that it sees does as well.
    for second in ["everywhere", "managed"] {
        let before = prepared(&citus, pid);
        let both = request(second).replace("; COMMIT", &format!("; INSERT INTO {second} VALUES (1); COMMIT"));
        connection.text(&format!("SET idempotence.coordinate = off; {both}; RESET idempotence.coordinate")).await?;
        ensure!(prepared(&citus, pid) > before, "with a row in {second}: nothing prepared");
    }
    let health = "SELECT status, detail FROM idempotence.health WHERE name = 'coordinator'";
    let told = connection.text(health).await?;
    ensure!(told == "ok|citus is loaded, and can be asked for a two-phase commit", "{told}");
    Ok(())
}

/// How many transactions were prepared on the workers.
fn prepared(citus: &Citus, pid: i32) -> usize {
    // Citus names a transaction after the coordinator's group, 0, and the backend. Its own background processes prepare
    // transactions, too, while they copy metadata to the workers.
    let statement = format!("statement: PREPARE TRANSACTION 'citus_0_{pid}_");
    citus.workers().iter().map(|worker| worker.log().matches(&statement).count()).sum()
}

// Goal: the order in which Citus has to be preloaded is known.
// Method: the other order does not start.
#[test]
#[ignore = "needs Citus: make test-citus"]
fn citus_refuses_to_be_preloaded_second() -> Result<()> {
    let settings = [("shared_preload_libraries", "idempotence,citus")];
    let error = Cluster::start_with(Version::Pg18, &settings).err().map(|error| format!("{error:#}"));
    ensure!(error.as_ref().is_some_and(|error| error.contains("Citus has to be loaded first")), "{error:?}");
    Ok(())
}
