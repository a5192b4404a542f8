//! A client that does all kinds of calls in random order, and counts its own answers. Its keys are its own, so it knows
//! each answer beforehand and checks it.

use std::future::Future;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, LIMIT};
use rand::RngExt;
use tokio::time::{Duration, Instant, sleep};

use super::books::Books;

/// The sessions that the clients use, as SQL that makes them.
pub const SESSIONS: &str = "
    SELECT idem_create_session('work'), idem_create_session('leased'), idem_create_session('dead', max_attempts => 1),
           idem_create_session('mail', inbox => true)";

/// The client sessions of a client keep so many replies.
const WINDOW: i64 = 4;

/// The client.
pub struct Client<'a> {
    server: &'a Cluster,
    name: String,
    /// The connection that holds, and another one that meets it.
    first: Connection,
    second: Connection,
    pids: [i32; 2],
    keys: usize,
    /// Keys of session `work` that are recorded.
    done: Vec<String>,
    /// Its client session, and the last number that was recorded there.
    numbered: (String, i64),
    /// What it counts.
    pub books: Books,
}

impl<'a> Client<'a> {
    /// Connects.
    pub async fn new(server: &'a Cluster, number: usize) -> Result<Self> {
        let [first, second] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
        let pids = [first.pid().await?, second.pid().await?];
        let name = format!("c{number}");
        let session = first.register(&register(&name)).await?;
        let (keys, done, books) = (0, Vec::new(), Books::default());
        Ok(Client { server, name, first, second, pids, keys, done, numbered: (session, 0), books })
    }

    /// Does one thing at random.
    pub async fn step(&mut self) -> Result<()> {
        match rand::rng().random_range(0..31) {
            0..3 => self.record().await,
            3 => self.roll_back().await,
            4 => self.roll_back_to_savepoint().await,
            5 => self.fail().await,
            6 => self.release().await,
            7..10 => self.replay().await,
            10 => self.mismatch().await,
            11 => self.meet_at_once().await,
            12 | 13 => self.wait().await,
            14 => self.break_off_a_wait().await,
            15 => self.deadlock().await,
            16 => self.claim().await,
            17 => self.take_over().await,
            18 => self.wait_for_a_lease().await,
            19 => self.give_up().await,
            20 | 21 => self.settle().await,
            22 | 23 => self.number().await,
            24 => self.fence().await,
            25 => self.once().await,
            26 => self.run().await,
            27 => self.commit_unrecorded().await,
            28 => self.prepare().await,
            29 => self.repair().await,
            _ => self.terminate().await,
        }
    }

    fn key(&mut self) -> String {
        self.keys += 1;
        format!("{} {}", self.name, self.keys)
    }

    fn count(&mut self, line: &str, counters: &[&'static str]) {
        counters.iter().for_each(|counter| self.books.add(line, counter, 1));
    }

    async fn expect(connection: &Connection, sql: &str, wanted: &str) -> Result<()> {
        let found = connection.outcome_of(sql).await?;
        ensure!(found == wanted, "{sql}\ngives {found:?} and not {wanted:?}");
        Ok(())
    }

    async fn record(&mut self) -> Result<()> {
        let key = self.key();
        self.first.execute("work", &key, "1").await?;
        self.done.push(key);
        self.count("work", &["started", "recorded"]);
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<()> {
        let key = self.key();
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('work', '{key}'); SELECT FROM idem_record('work', '{key}'); ROLLBACK"
        );
        Self::expect(&self.first, &sql, "started").await?;
        // The same inside of a function, whose error is caught.
        let caught = format!(
            "DO $$ BEGIN PERFORM idem_begin('work', '{key}'); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END $$"
        );
        self.first.text(&caught).await?;
        self.count("work", &["started", "recorded", "started"]);
        Ok(())
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<()> {
        let (outer, inner) = (self.key(), self.key());
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('work', '{outer}'); SAVEPOINT s;
             SELECT FROM idem_record('work', '{outer}');
             SELECT status FROM idem_begin('work', '{inner}'); SELECT FROM idem_record('work', '{inner}', failed => true);
             ROLLBACK TO s; SELECT FROM idem_record('work', '{outer}'); COMMIT"
        );
        Self::expect(&self.first, &sql, "started\nstarted").await?;
        self.count("work", &["started", "recorded", "started", "failed", "recorded"]);
        self.done.push(outer);
        Ok(())
    }

    async fn fail(&mut self) -> Result<()> {
        let key = self.key();
        let sql = format!(
            "BEGIN; SELECT FROM idem_begin('work', '{key}'); SELECT FROM idem_record('work', '{key}', failed => true); COMMIT;
             SELECT status, replayed FROM idem_begin('work', '{key}')"
        );
        Self::expect(&self.first, &sql, "failed|t").await?;
        self.count("work", &["started", "failed", "replayed"]);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let key = self.key();
        let sql = format!(
            "BEGIN; SELECT FROM idem_begin('work', '{key}'); SELECT idem_release('work', '{key}');
             SELECT status FROM idem_begin('work', '{key}'); SELECT idem_release('work', '{key}'); COMMIT"
        );
        Self::expect(&self.first, &sql, "started").await?;
        self.count("work", &["started", "released", "started", "released"]);
        Ok(())
    }

    async fn replay(&mut self) -> Result<()> {
        let Some(key) = self.done.get(rand::rng().random_range(0..self.done.len().max(1))).cloned() else {
            return self.record().await;
        };
        self.second.replay("work", &key).await?;
        // What looks and does not begin is not counted.
        ensure!(self.second.lookup("work", &key).await? == "succeeded");
        self.count("work", &["replayed"]);
        Ok(())
    }

    async fn mismatch(&mut self) -> Result<()> {
        let key = self.key();
        let begin = |payload: i32| format!("SELECT status FROM idem_begin('work', '{key}', payload => '{payload}')");
        let sql = format!("BEGIN; {}; SELECT FROM idem_record('work', '{key}'); COMMIT", begin(1));
        Self::expect(&self.first, &sql, "started").await?;
        Self::expect(&self.second, &begin(2), "ID001").await?;
        let caught = format!("DO $$ BEGIN {}; EXCEPTION WHEN SQLSTATE 'ID001' THEN NULL; END $$", begin(3))
            .replace("SELECT", "PERFORM");
        self.second.text(&caught).await?;
        self.count("work", &["started", "recorded", "mismatched", "mismatched"]);
        Ok(())
    }

    async fn meet_at_once(&mut self) -> Result<()> {
        let key = self.key();
        self.first.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
        let begin = format!("SELECT status FROM idem_begin('work', '{key}', wait => '0')");
        Self::expect(&self.second, &begin, "in_progress").await?;
        Self::expect(&self.second, &format!("SELECT idem_claim('work', '{key}', wait => '0')"), "55P03").await?;
        let settle = format!("SELECT status FROM idem_settle('work', '{key}', wait => '0')");
        Self::expect(&self.second, &settle, "in_progress").await?;
        let run = format!("SELECT status FROM idem_run('work', '{key}', 'SELECT 1', wait => '0')");
        Self::expect(&self.second, &run, "55P03").await?;
        self.first.text("ROLLBACK").await?;
        self.count("work", &["started", "in_progress", "in_progress", "in_progress", "in_progress"]);
        Ok(())
    }

    /// Has the second connection wait for what the first one holds. Once it waits, `end` ends that.
    async fn while_waiting(
        &self,
        sql: &str,
        kind: &str,
        end: impl Future<Output = Result<()>>,
    ) -> Result<(Result<String>, Duration, Duration)> {
        let start = Instant::now();
        let pid = self.pids[1];
        let ended = async {
            let waits = match kind {
                // pg_stat_activity stands still within a transaction.
                "Lock" => format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted"),
                kind => format!(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = '{kind}' AND state = 'active'"
                ),
            };
            while self.first.text(&waits).await? != "1" {
                ensure!(start.elapsed() < LIMIT, "nobody waits: {sql}");
                sleep(Duration::from_millis(2)).await;
            }
            let waiting = Instant::now();
            end.await?;
            Ok(waiting.elapsed())
        };
        let answered = async { (self.second.outcome_of(sql).await, start.elapsed()) };
        let ((answer, most), least) = tokio::join!(answered, ended);
        Ok((answer, least?, most))
    }

    async fn wait(&mut self) -> Result<()> {
        let key = self.key();
        self.first.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
        let sql = format!("BEGIN; SELECT status, replayed FROM idem_begin('work', '{key}', wait => '1 min'); ROLLBACK");
        let records = rand::rng().random_bool(0.7);
        let end = async {
            sleep(Duration::from_millis(rand::rng().random_range(0..30))).await;
            match records {
                true => self.first.text(&format!("SELECT FROM idem_record('work', '{key}'); COMMIT")).await?,
                false => self.first.text("ROLLBACK").await?,
            };
            Ok(())
        };
        let (answer, least, most) = self.while_waiting(&sql, "Lock", end).await?;
        let wanted = if records { "succeeded|t" } else { "started|f" };
        let answer = answer?;
        ensure!(answer == wanted, "who waited is told {answer}");
        // Whoever waits is let go while the commit goes on.
        self.books.waited("work", least.saturating_sub(Duration::from_millis(50)), most);
        self.count("work", if records { &["started", "recorded", "replayed"] } else { &["started", "started"] });
        Ok(())
    }

    async fn break_off_a_wait(&mut self) -> Result<()> {
        let (key, pid) = (self.key(), self.pids[1]);
        self.first.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
        let begin = |wait: &str| format!("SELECT status FROM idem_begin('work', '{key}', wait => '{wait}')");
        // Each is one wait, whatever ends it. It has to be seen: a time that runs out before the wait begins is none.
        let (sql, wanted) = match rand::random_range(0..3) {
            0 => (begin("400 ms"), "in_progress"),
            1 => (format!("SET LOCAL statement_timeout = '400 ms'; {}", begin("1 min")), "57014"),
            _ => (format!("SET LOCAL lock_timeout = '400 ms'; {}", begin("1 min")), "55P03"),
        };
        let nothing = async { Ok(()) };
        let (answer, _, most) = self.while_waiting(&format!("BEGIN; {sql}; ROLLBACK"), "Lock", nothing).await?;
        let answer = answer?;
        ensure!(answer == wanted, "{sql} gives {answer} and not {wanted}");
        self.books.waited("work", Duration::from_millis(300), most);
        if wanted == "in_progress" {
            self.count("work", &["in_progress"]);
        }
        let cancel = async {
            let cancelled = self.first.text(&format!("SELECT pg_cancel_backend({pid})")).await?;
            ensure!(cancelled == "t");
            Ok(())
        };
        let (answer, _, most) = self.while_waiting(&begin("1 min"), "Lock", cancel).await?;
        ensure!(answer? == "57014");
        self.books.waited("work", Duration::ZERO, most);
        self.count("work", &["started"]);

        let killed = async {
            self.first.text(&format!("SELECT pg_terminate_backend({pid}, 10000)")).await?;
            Ok(())
        };
        let (answer, _, most) = self.while_waiting(&begin("1 min"), "Lock", killed).await?;
        ensure!(answer.is_err(), "a backend that was terminated answers");
        // It loses the length of this wait at most.
        self.books.waited("work", Duration::ZERO, most);
        self.first.text("ROLLBACK").await?;
        self.second = self.server.connect(DATABASE).await?;
        self.pids[1] = self.second.pid().await?;
        Ok(())
    }

    async fn deadlock(&mut self) -> Result<()> {
        let (mine, yours) = (self.key(), self.key());
        let begin = |key: &str| format!("SELECT status FROM idem_begin('work', '{key}', wait => '1 min')");
        self.first.text(&format!("BEGIN; {}", begin(&mine))).await?;
        self.second.text(&format!("BEGIN; {}", begin(&yours))).await?;
        let (start, [mine, yours]) = (Instant::now(), [begin(&mine), begin(&yours)]);
        // One of the two is refused, and its ROLLBACK lets the other one go on.
        let both = async |connection: &Connection, sql: &str| -> Result<(String, Duration)> {
            let found = connection.outcome_of(sql).await?;
            Ok((found, start.elapsed()))
        };
        let (one, other) = tokio::try_join!(both(&self.first, &yours), both(&self.second, &mine))?;
        let mut answers = [one.0.as_str(), other.0.as_str()];
        answers.sort_unstable();
        ensure!(answers == ["40P01", "started"], "two that wait for each other are told {answers:?}");
        for connection in [&self.first, &self.second] {
            connection.text("ROLLBACK").await?;
        }
        self.books.waited("work", Duration::ZERO, one.1);
        self.books.waited("work", Duration::ZERO, other.1);
        self.count("work", &["started", "started", "started"]);
        Ok(())
    }

    async fn claim(&mut self) -> Result<()> {
        let key = self.key();
        let sql =
            format!("BEGIN; SELECT idem_claim('work', '{key}'); SELECT FROM idem_record('work', '{key}'); COMMIT");
        self.first.text(&sql).await?;
        Self::expect(&self.second, &format!("SELECT idem_claim('work', '{key}')"), "ID011").await?;
        // Where it has to look first, the claim is neither given nor answered.
        let saved = self.key();
        self.first
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('work', '{saved}'); SELECT idem_checkpoint('work', '{saved}', 'p'); COMMIT"
            ))
            .await?;
        Self::expect(&self.second, &format!("SELECT idem_claim('work', '{saved}')"), "55000").await?;
        self.count("work", &["started", "recorded", "replayed", "started"]);
        Ok(())
    }

    async fn take_over(&mut self) -> Result<()> {
        let key = self.key();
        let begin = |lease: &str| format!("SELECT token FROM idem_begin('leased', '{key}', lease => '{lease}')");
        let lost = self.first.text(&begin("10 ms")).await?;
        sleep(Duration::from_millis(13)).await;
        let token = self.second.text(&begin("10 min")).await?;
        for call in ["record", "release"] {
            let sql = format!("SELECT FROM idem_{call}('leased', '{key}', token => {lost})");
            Self::expect(&self.first, &sql, "ID005").await?;
        }
        let meet = format!("SELECT status FROM idem_begin('leased', '{key}', wait => '0')");
        Self::expect(&self.first, &meet, "in_progress").await?;
        self.count("leased", &["started", "taken_over", "fenced", "fenced", "in_progress"]);
        let with = |call: &str| format!("SELECT FROM idem_{call}('leased', '{key}', token => {token})");
        if rand::rng().random_bool(0.3) {
            self.second.text(&with("release")).await?;
            self.count("leased", &["released"]);
            return Ok(());
        }
        // The repeat with the same token records nothing, and is no replay either.
        self.second.text(&format!("{}; {}", with("record"), with("record"))).await?;
        self.second.text(&with("record")).await?;
        self.count("leased", &["recorded"]);
        Ok(())
    }

    async fn wait_for_a_lease(&mut self) -> Result<()> {
        let key = self.key();
        let token =
            self.first.text(&format!("SELECT token FROM idem_begin('leased', '{key}', lease => '10 min')")).await?;
        let sql = format!("SELECT status FROM idem_begin('leased', '{key}', wait => '1 min')");
        let record = async {
            let sql = format!("SELECT FROM idem_record('leased', '{key}', token => {token})");
            self.first.text(&sql).await?;
            Ok(())
        };
        let (answer, _, most) = self.while_waiting(&sql, "Extension", record).await?;
        let answer = answer?;
        ensure!(answer == "succeeded", "who waited for a lease is told {answer}");
        self.books.waited("leased", Duration::ZERO, most);
        self.count("leased", &["started", "recorded", "replayed"]);
        Ok(())
    }

    async fn give_up(&mut self) -> Result<()> {
        let key = self.key();
        self.first.text(&format!("SELECT FROM idem_begin('dead', '{key}', lease => '10 ms')")).await?;
        sleep(Duration::from_millis(13)).await;
        // The claim takes back what it has recorded.
        Self::expect(&self.second, &format!("SELECT idem_claim('dead', '{key}')"), "55000").await?;
        let begin = format!("SELECT status FROM idem_begin('dead', '{key}')");
        Self::expect(&self.second, &begin, "failed").await?;
        Self::expect(&self.first, &begin, "failed").await?;
        self.count("dead", &["started", "failed", "replayed"]);
        Ok(())
    }

    async fn repair(&mut self) -> Result<()> {
        let (lost, ended) = (self.key(), self.key());
        for key in [&lost, &ended] {
            self.first.text(&format!("SELECT FROM idem_begin('leased', '{key}', lease => '10 ms')")).await?;
        }
        sleep(Duration::from_millis(13)).await;
        let record = format!("SELECT FROM idem_force_record('leased', '{lost}', 'a test', failed => true)");
        self.second.text(&record).await?;
        Self::expect(&self.second, &record, "ID011").await?;
        // A repair gives nobody the request, and gives up none that was held.
        self.second.text(&format!("SELECT idem_force_release('leased', '{ended}', 'a test')")).await?;
        self.count("leased", &["started", "started", "failed"]);
        Ok(())
    }

    async fn settle(&mut self) -> Result<()> {
        let key = self.key();
        let settle = format!("SELECT status, replayed FROM idem_settle('work', '{key}')");
        Self::expect(&self.first, &settle, "cancelled|f").await?;
        Self::expect(&self.first, &settle, "cancelled|t").await?;
        Self::expect(&self.second, &format!("SELECT status FROM idem_begin('work', '{key}')"), "cancelled").await?;
        self.count("work", &["cancelled", "replayed", "replayed"]);
        Ok(())
    }

    async fn number(&mut self) -> Result<()> {
        let (session, last) = self.numbered.clone();
        let number = last + 1;
        self.first.execute(&session, &number.to_string(), "1").await?;
        self.second.replay(&session, &number.to_string()).await?;
        self.count("client", &["started", "recorded", "replayed"]);
        let begin = |number: i64| format!("SELECT status FROM idem_begin('{session}', {number})");
        if number > WINDOW {
            Self::expect(&self.second, &begin(number - WINDOW), "ID003").await?;
            self.count("client", &["discarded"]);
        }
        Self::expect(&self.first, &begin(number + WINDOW + 1), "ID006").await?;
        self.count("client", &["out_of_sequence"]);
        self.numbered.1 = number;
        Ok(())
    }

    async fn fence(&mut self) -> Result<()> {
        let (old, last) = self.numbered.clone();
        let session = self.second.register(&register(&self.name)).await?;
        let begin = format!("SELECT status FROM idem_begin('{old}', {})", last + 1);
        Self::expect(&self.first, &begin, "ID005").await?;
        let settle = format!("SELECT status FROM idem_settle('{old}', {})", last + 1);
        Self::expect(&self.first, &settle, "cancelled").await?;
        self.count("client", &["fenced", "cancelled"]);
        self.numbered = (session, 0);
        Ok(())
    }

    async fn once(&mut self) -> Result<()> {
        let [one, two, three] = [self.key(), self.key(), self.key()];
        Self::expect(&self.first, &format!("SELECT idem_once('mail', '{one}')"), "t").await?;
        Self::expect(&self.second, &format!("SELECT idem_once('mail', '{one}')"), "f").await?;
        let many = format!("SELECT ord FROM idem_once_many('mail', '{{{one},{two},{three},{two}}}')");
        Self::expect(&self.first, &many, "2\n3").await?;
        self.count("mail", &["recorded", "replayed"]);
        self.books.add("mail", "recorded", 2);
        self.books.add("mail", "replayed", 2);
        Ok(())
    }

    async fn run(&mut self) -> Result<()> {
        let (good, bad) = (self.key(), self.key());
        let run = |key: &str, command: &str, on_error: &str| {
            format!("SELECT status, replayed FROM idem_run('work', '{key}', '{command}', on_error => '{on_error}')")
        };
        Self::expect(&self.first, &run(&good, "SELECT 1", "raise"), "succeeded|f").await?;
        Self::expect(&self.second, &run(&good, "SELECT 1", "raise"), "succeeded|t").await?;
        Self::expect(&self.first, &run(&bad, "SELECT 1 / 0", "raise"), "22012").await?;
        Self::expect(&self.first, &run(&bad, "SELECT 1 / 0", "record"), "failed|f").await?;
        self.count("work", &["started", "recorded", "replayed", "started", "started", "failed"]);
        Ok(())
    }

    async fn commit_unrecorded(&mut self) -> Result<()> {
        let [one, two] = [self.key(), self.key()];
        let commit = |set: &str| {
            format!(
                "BEGIN; {set}; SELECT FROM idem_begin('work', '{one}'); SELECT FROM idem_begin('leased', '{two}'); COMMIT"
            )
        };
        Self::expect(&self.first, &commit("SELECT"), "ID008").await?;
        Self::expect(&self.first, &commit("SET LOCAL idempotence.unrecorded = warning"), "").await?;
        Self::expect(&self.first, &commit("SET LOCAL idempotence.unrecorded = off"), "").await?;
        for line in ["work", "leased"] {
            self.count(line, &["started", "started", "started", "unrecorded", "unrecorded"]);
        }
        Ok(())
    }

    async fn prepare(&mut self) -> Result<()> {
        let key = self.key();
        let sql = format!(
            "BEGIN; SELECT status FROM idem_begin('work', '{key}'); SELECT FROM idem_record('work', '{key}');
             PREPARE TRANSACTION '{key}'"
        );
        Self::expect(&self.first, &sql, "started").await?;
        self.second.text(&format!("COMMIT PREPARED '{key}'")).await?;
        self.count("work", &["started", "recorded"]);
        Ok(())
    }

    /// The backend of a connection that holds a request is terminated: the request is nobody's at once.
    async fn terminate(&mut self) -> Result<()> {
        let (key, pid) = (self.key(), self.pids[0]);
        self.first.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
        let held = format!("SELECT request FROM idempotence.in_flight WHERE pid = {pid}");
        Self::expect(&self.second, &held, &key).await?;
        self.second.text(&format!("SELECT pg_terminate_backend({pid}, 10000)")).await?;
        Self::expect(&self.second, &held, "").await?;
        self.first = self.server.connect(DATABASE).await?;
        self.pids[0] = self.first.pid().await?;
        self.count("work", &["started"]);
        Ok(())
    }
}

/// What a client registers with. The second one of a name takes over from the first.
fn register(name: &str) -> String {
    format!("'{name}', window_size => {WINDOW}")
}
