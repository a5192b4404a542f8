//! The move from an application's own table of keys, by the steps of docs/migration.md themselves.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::load::{count, disturb, lock};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use idempotence_demo::server::SUPERUSER;
use rand::RngExt;
use std::sync::Mutex;
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep};

on_each_version!(a_move_by_the_documented_steps_executes_nothing_twice);

const DATABASE: &str = "shop";
const APPLICATION: &str = "migrating";
const CLIENTS: usize = 8;

/// What a request does: an effect that tells itself from a second one.
const WORK: &str = "
    CREATE SEQUENCE effects CACHE 1;
    CREATE TABLE effect (key text NOT NULL, n bigint NOT NULL);
    CREATE FUNCTION work(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
      n bigint := nextval('effects');
    BEGIN
      INSERT INTO effect VALUES (params ->> 'key', n);
      RETURN jsonb_build_object('n', n);
    END $$";

/// The statements of the section, in their order.
struct Steps {
    old: String,
    both: String,
    unfinished: String,
    import: String,
    missing: String,
    new: String,
    end: String,
}

impl Steps {
    fn read() -> Result<Self> {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/migration.md"))?;
        let (_, section) = page.split_once("# Moving from a table of keys").context("there is no such section")?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let blocks = section.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
        // A test cannot wait until a request counts as left behind.
        let blocks: Vec<String> = blocks.map(|block| block.replace("90 seconds", "300 milliseconds")).collect();
        let count = blocks.len();
        let blocks: [String; 7] = blocks.try_into().map_err(|_| anyhow::anyhow!("there are {count} steps"))?;
        let [old, both, unfinished, import, missing, new, end] = blocks;
        // The old code gets a chance between the look into its table and the claim.
        let claim = "t := idem_begin(";
        ensure!(both.contains(claim), "the code that looks at both has another claim");
        let both =
            both.replacen(claim, &format!("PERFORM pg_sleep(random() * 0.003 * (random() * 2)::int);\n  {claim}"), 1);
        Ok(Self { old, both, unfinished, import, missing, new, end })
    }
}

/// A version of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    Old,
    Both,
    New,
}

/// The clients, and what they were told.
struct Clients<'a> {
    server: &'a Cluster,
    /// What runs at present: half of the clients run the one, half the other. A client holds the lock while it calls.
    running: RwLock<[Code; 2]>,
    /// The answers, by key.
    answers: Mutex<HashMap<String, String>>,
    /// How many keys were in the table at first.
    kept: usize,
    fresh: AtomicUsize,
    answered: [AtomicUsize; 3],
    repeated: AtomicUsize,
    failed: AtomicUsize,
    finished: AtomicBool,
}

impl Clients<'_> {
    /// A key: mostly a new one or one that somebody has sent before, sometimes one that was in the table at first.
    fn choose(&self) -> String {
        let mut rng = rand::rng();
        match rng.random_range(0..10) {
            0 => format!("kept {}", rng.random_range(1..=self.kept)),
            1..5 => format!("new {}", self.fresh.fetch_add(1, Relaxed)),
            _ => {
                // Mostly one that somebody is just sending.
                let newest = self.fresh.load(Relaxed);
                let back = if rng.random_bool(0.7) { 4 } else { 200 };
                format!("new {}", rng.random_range(newest.saturating_sub(back)..=newest))
            }
        }
    }

    /// Sends requests until the end, each until it is answered or somebody is at it.
    async fn work(&self, number: usize) -> Result<()> {
        let address = format!("{} application_name={APPLICATION}", self.server.connect_string(DATABASE, SUPERUSER));
        let mut connection = None;
        while !self.finished.load(Relaxed) {
            let key = self.choose();
            let running = self.running.read().await;
            let open = match connection.take() {
                Some(open) => open,
                None => match Connection::open(&address).await {
                    Ok(open) => open,
                    Err(_) => continue,
                },
            };
            let code = running[number % 2];
            match call(&open, code, &key).await {
                Ok(answer) => {
                    count(&self.answered[code as usize]);
                    self.told(key, answer)?;
                    connection = Some(open);
                }
                Err(error) => match error.code().map(|state| state.code().to_owned()).as_deref() {
                    // In progress, begun elsewhere, cancelled: the key is sent again, by somebody, some time.
                    Some("55P03" | "40001" | "57014") => {
                        count(&self.failed);
                        connection = Some(open);
                    }
                    // The connection was killed.
                    None | Some("57P01") => count(&self.failed),
                    Some(_) => return Err(idempotence_cluster_tests::describe(error)).context(key),
                },
            }
        }
        Ok(())
    }

    /// Checks an answer against those that were given before.
    fn told(&self, key: String, answer: String) -> Result<()> {
        if let Some(kept) = key.strip_prefix("kept ") {
            let unfinished = kept.parse::<usize>()? % 1000 == 0;
            ensure!(unfinished || answer == format!("{{\"kept\": {kept}}}"), "{key} is answered {answer}");
        }
        let mut answers = lock(&self.answers);
        match answers.get(&key) {
            Some(former) => {
                ensure!(*former == answer, "{key} was answered {former}, and then {answer}");
                count(&self.repeated);
            }
            None => drop(answers.insert(key, answer)),
        }
        Ok(())
    }

    /// Lets clients run these versions: those who call at present end first.
    async fn deploy(&self, running: [Code; 2]) {
        *self.running.write().await = running;
    }

    /// Lets the clients work for a while.
    async fn go_on(&self) -> Result<()> {
        let start = Instant::now();
        let before: [usize; 3] = std::array::from_fn(|code| self.answered[code].load(Relaxed));
        let running = *self.running.read().await;
        let enough = requests(400, 4_000);
        while running.iter().any(|code| self.answered[*code as usize].load(Relaxed) < before[*code as usize] + enough) {
            ensure!(start.elapsed() < LIMIT * 4, "the clients make no progress with {running:?}");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Sends a request to one version of the application.
async fn call(connection: &Connection, code: Code, key: &str) -> Result<String, tokio_postgres::Error> {
    let params = format!("{{\"key\": \"{key}\"}}");
    match code {
        Code::Old => {
            let take =
                format!("SELECT recovery_point, response_body, locked_at::text FROM pay_old_take('{key}', '{params}')");
            let taken = connection.try_text(&take).await?;
            let (state, rest) = taken.split_once('|').unwrap_or_default();
            let (answer, mine) = rest.rsplit_once('|').unwrap_or_default();
            if state == "finished" {
                return Ok(answer.to_owned());
            }
            connection.try_text(&format!("SELECT pay_old_finish('{key}', '{params}', '{mine}')")).await
        }
        Code::Both => connection.try_text(&format!("SELECT pay_both('{key}', '{params}')")).await,
        Code::New => connection.try_text(&format!("SELECT pay_new('{key}', '{params}')")).await,
    }
}

/// Repeats a statement while it meets requests at work.
async fn patiently(connection: &Connection, statement: &str) -> Result<String> {
    let start = Instant::now();
    loop {
        match connection.try_text(statement).await {
            Ok(rows) => return Ok(rows),
            Err(error) => match error.code().map(|state| state.code()) {
                Some("55P03" | "40001") if start.elapsed() < LIMIT => {}
                _ => return Err(idempotence_cluster_tests::describe(error)).context(statement.to_owned()),
            },
        }
    }
}

/// Takes the steps while the clients work.
async fn migrate(steps: &Steps, clients: &Clients<'_>) -> Result<()> {
    let dba = clients.server.connect(DATABASE).await?;
    clients.go_on().await?;

    dba.text(&steps.both).await?;
    clients.deploy([Code::Old, Code::Both]).await;
    clients.go_on().await?;

    clients.deploy([Code::Both; 2]).await;
    let start = Instant::now();
    while dba.text(&steps.unfinished).await? != "0" {
        ensure!(start.elapsed() < LIMIT, "some requests stay unfinished");
        let left = "SELECT key FROM idempotency_keys WHERE recovery_point <> 'finished' LIMIT 100";
        for key in dba.text(left).await?.lines() {
            match call(&dba, Code::Both, key).await {
                Ok(answer) => clients.told(key.to_owned(), answer)?,
                Err(error) if matches!(error.code().map(|state| state.code()), Some("55P03" | "40001")) => {}
                Err(error) => bail!("{key}: {}", idempotence_cluster_tests::describe(error)),
            }
        }
    }
    clients.go_on().await?;

    let start = Instant::now();
    let imported = patiently(&dba, &steps.import).await?;
    let (seconds, rows) = (start.elapsed().as_secs_f64(), clients.kept);
    println!("{rows} keys and those of the clients: {imported} in {seconds:.1} s, under load");
    ensure!(dba.text(&steps.missing).await? == "0", "the import has left something out");
    ensure!(dba.text(&steps.unfinished).await? == "0", "something is unfinished again");
    clients.go_on().await?;

    dba.text(&steps.new).await?;
    clients.deploy([Code::Both, Code::New]).await;
    clients.go_on().await?;

    clients.deploy([Code::New; 2]).await;
    dba.text(&steps.end).await?;
    clients.go_on().await?;
    clients.finished.store(true, Relaxed);
    Ok(())
}

// Goal: at no moment of the move is a request executed twice, or answered in two ways, whichever two versions of the
// application serve.
// Method: the table of the page with many finished keys and some that were left unfinished. Eight clients send new keys, keys
// that were sent before by any version, and keys of the table; backends are killed and cancelled. The steps of the page
// are taken meanwhile. At the end each key has one effect, and all answers to it were the same.
async fn a_move_by_the_documented_steps_executes_nothing_twice(version: Version) -> Result<()> {
    let (steps, kept) = (Steps::read()?, requests(50_000, 1_000_000));
    let server = Cluster::start_with(
        version,
        &[
            ("shared_preload_libraries", "idempotence"),
            ("idempotence.naptime", "1s"),
            ("idempotence.wait", "100ms"),
            ("autovacuum", "off"),
        ],
    )?;
    server.create_database(DATABASE)?;
    let dba = server.connect(DATABASE).await?;
    dba.text(WORK).await?;
    dba.text(&steps.old).await?;
    dba.text("SELECT idem_create_session('payments', ttl => '30 days')").await?;
    dba.text(&format!(
        "INSERT INTO idempotency_keys
         SELECT 'kept ' || n, jsonb_build_object('key', 'kept ' || n), 200, jsonb_build_object('kept', n), now() - interval '1 day', NULL, 'finished'
         FROM generate_series(1, {kept}) n;
         UPDATE idempotency_keys SET response_code = NULL, response_body = NULL, locked_at = now() - interval '1 hour', recovery_point = 'started'
         WHERE (response_body ->> 'kept')::int % 1000 = 0;
         ANALYZE idempotency_keys"
    ))
    .await?;
    let clients = Clients {
        server: &server,
        running: RwLock::new([Code::Old; 2]),
        answers: Mutex::default(),
        kept,
        fresh: AtomicUsize::new(0),
        answered: Default::default(),
        repeated: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        finished: AtomicBool::new(false),
    };
    let migration = async {
        let migrated = migrate(&steps, &clients).await;
        clients.finished.store(true, Relaxed);
        migrated
    };
    tokio::try_join!(
        try_join_all((0..CLIENTS).map(|number| clients.work(number))),
        migration,
        disturb(&server, DATABASE, APPLICATION, &clients.finished)
    )?;

    ensure!(dba.text("SELECT key, count(*) FROM effect GROUP BY key HAVING count(*) > 1").await? == "");
    let effects: HashMap<String, String> = dba
        .text("SELECT key, jsonb_build_object('n', n) FROM effect")
        .await?
        .lines()
        .filter_map(|line| line.split_once('|').map(|(key, answer)| (key.to_owned(), answer.to_owned())))
        .collect();
    let twice = "SELECT request, count(*) FROM idempotence.outcomes GROUP BY request HAVING count(*) > 1";
    ensure!(dba.text(twice).await? == "");
    let answers = lock(&clients.answers);
    for (key, answer) in answers.iter().filter(|(_, answer)| !answer.contains("kept")) {
        ensure!(
            effects.get(key) == Some(answer),
            "{key} was answered {answer}, and its effect is {:?}",
            effects.get(key)
        );
    }
    let (answered, repeated, failed) = (answers.len(), clients.repeated.load(Relaxed), clients.failed.load(Relaxed));
    println!("{answered} keys answered, {repeated} answers repeated, {failed} attempts failed");
    ensure!(repeated > 100 && failed > 10, "nothing was retried");
    Ok(())
}
