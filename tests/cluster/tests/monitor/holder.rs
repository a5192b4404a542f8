//! A client that takes random steps with requests in a transaction, and keeps a list of what it holds.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection};
use tokio::task::JoinHandle;

/// A request: session, stream, key or number.
pub type Request = (String, String, String);

/// A request as the view is to show it.
#[derive(Clone, Debug)]
pub struct Shown {
    pub request: Request,
    pub pid: Option<i32>,
    pub role: &'static str,
    pub state: &'static str,
    pub prepared: String,
}

impl Shown {
    /// The row of the view.
    pub fn row(&self, waiters: &[Waiter]) -> String {
        let (session, stream, request) = &self.request;
        let pid = self.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let waiters = waiters.iter().filter(|waiter| waiter.waits_for(self)).count();
        let none = if waiters == 0 { 't' } else { 'f' };
        let Shown { role, state, prepared, .. } = self;
        format!("{session}|{stream}|{request}|{pid}|{role}|{state}|{waiters}|{prepared}|1|{none}|t|t")
    }
}

/// A request that the transaction has begun.
#[derive(Clone)]
struct Held {
    request: Request,
    state: &'static str,
    role: &'static str,
    /// The token of its lease, as an argument.
    token: String,
}

/// What the transaction has begun, in order.
type List = Vec<Held>;

/// A client.
pub struct Holder {
    connection: Connection,
    pid: i32,
    number: usize,
    numbered: String,
    made: usize,
    /// The list, while a transaction is open.
    list: Option<List>,
    /// The lists as they were at the savepoints.
    savepoints: Vec<List>,
    role: &'static str,
    prepared: Vec<(String, List)>,
}

impl Holder {
    /// Connects. `numbered` is a client session.
    pub async fn new(server: &Cluster, number: usize, numbered: &str) -> Result<Self> {
        let connection = server.connect(DATABASE).await?;
        let pid = connection.pid().await?;
        let (numbered, made, role) = (numbered.to_owned(), 0, "postgres");
        let (list, savepoints, prepared) = (None, Vec::new(), Vec::new());
        Ok(Holder { connection, pid, number, numbered, made, list, savepoints, role, prepared })
    }

    /// What it holds, as the view is to show it.
    pub fn shown(&self) -> Vec<Shown> {
        let of = |list: &List, pid: Option<i32>, gid: &str| {
            let shown = list.iter().map(move |Held { request, state, role, .. }| {
                let (request, prepared) = (request.clone(), gid.to_owned());
                Shown { request, pid, role, state, prepared }
            });
            shown.collect::<Vec<_>>()
        };
        let open = self.list.iter().flat_map(|list| of(list, Some(self.pid), ""));
        open.chain(self.prepared.iter().flat_map(|(gid, list)| of(list, None, gid))).collect()
    }

    /// The requests that others may wait for.
    pub fn held(&self) -> Vec<Request> {
        self.shown().into_iter().map(|shown| shown.request).collect()
    }

    /// Ends all that it has begun.
    pub async fn finish(&mut self, server: &Cluster) -> Result<()> {
        self.roll_back().await?;
        while !self.prepared.is_empty() {
            self.end_prepared(server).await?;
        }
        Ok(())
    }

    /// Takes a step at random. Gives what it did.
    pub async fn step(&mut self, server: &Cluster) -> Result<Option<&'static str>> {
        let Some(list) = &self.list else {
            match rand::random_range(0..4) {
                0 if !self.prepared.is_empty() => self.end_prepared(server).await?,
                _ => {
                    self.connection.text("BEGIN").await?;
                    (self.list, self.role) = (Some(Vec::new()), "postgres");
                }
            }
            return Ok(None);
        };
        let many = list.len() > 6;
        Ok(Some(match rand::random_range(0..22) {
            0..5 if !many => self.begin().await?,
            5 => self.begin_again().await?,
            6 => self.save().await?,
            7..10 => self.close("recorded").await?,
            10 => self.close("released").await?,
            11 | 12 => self.savepoint().await?,
            13 | 14 => self.roll_back_to().await?,
            15 => self.hand_up().await?,
            16 => self.catch().await?,
            17 => self.set_role().await?,
            18 => self.commit().await?,
            19 => self.prepare().await?,
            20 => self.roll_back().await?,
            21 if rand::random_bool(0.2) => self.terminate(server).await?,
            _ => self.begin().await?,
        }))
    }

    fn list(&mut self) -> &mut List {
        self.list.get_or_insert_default()
    }

    async fn begin(&mut self) -> Result<&'static str> {
        self.made += 1;
        let name = format!("{}.{}", self.number, self.made);
        let (request, lease): (Request, bool) = match rand::random_range(0..5) {
            0 if self.role == "postgres" => ((self.numbered.clone(), format!("поток {name}"), "1".into()), false),
            1 => (("Kasse \"№ 1\"".into(), String::new(), format!("заказ €{name}")), false),
            2 => (("work".into(), String::new(), name), true),
            _ => (("work".into(), String::new(), name), false),
        };
        let length = if lease { ", lease => '10 ms'" } else { "" };
        let token = self.connection.text(&call("SELECT token FROM idem_begin", &request, length)).await?;
        let token = if token.is_empty() { token } else { format!(", token => {token}") };
        let (role, state) = (self.role, if lease { "saved" } else { "begun" });
        self.list().push(Held { request, state, role, token });
        Ok("begin")
    }

    /// The last request of this transaction that is in one of these states. Role app may not use the client session.
    fn find(&mut self, states: &[&str]) -> Option<usize> {
        let is_app = self.role == "app";
        let list = self.list();
        let usable = |at: &usize| {
            let request = &list[*at].request;
            !list[*at + 1..].iter().any(|later| later.request == *request) && (!is_app || request.1.is_empty())
        };
        (0..list.len()).rev().filter(usable).find(|at| states.contains(&list[*at].state))
    }

    async fn begin_again(&mut self) -> Result<&'static str> {
        let Some(at) = self.find(&["released"]) else { return Ok("nothing") };
        let request = self.list()[at].request.clone();
        self.connection.text(&call("SELECT FROM idem_begin", &request, "")).await?;
        let (role, token) = (self.role, String::new());
        self.list().push(Held { request, state: "begun", role, token });
        Ok("begin again")
    }

    async fn save(&mut self) -> Result<&'static str> {
        let Some(at) = self.find(&["begun"]) else { return Ok("nothing") };
        let request = self.list()[at].request.clone();
        self.connection.text(&call("SELECT idem_checkpoint", &request, ", point => 'p'")).await?;
        self.list()[at].state = "saved";
        Ok("checkpoint")
    }

    async fn close(&mut self, state: &'static str) -> Result<&'static str> {
        let Some(at) = self.find(&["begun", "saved"]) else { return Ok("nothing") };
        let Held { request, token, .. } = self.list()[at].clone();
        let function = if state == "recorded" { "SELECT FROM idem_record" } else { "SELECT FROM idem_release" };
        self.connection.text(&call(function, &request, &token)).await?;
        self.list()[at].state = state;
        Ok(state)
    }

    async fn savepoint(&mut self) -> Result<&'static str> {
        let name = format!("s{}", self.savepoints.len());
        self.connection.text(&format!("SAVEPOINT {name}")).await?;
        let list = self.list().clone();
        self.savepoints.push(list);
        Ok("savepoint")
    }

    async fn roll_back_to(&mut self) -> Result<&'static str> {
        if self.savepoints.is_empty() {
            return Ok("nothing");
        }
        let at = rand::random_range(0..self.savepoints.len());
        self.connection.text(&format!("ROLLBACK TO s{at}")).await?;
        self.savepoints.truncate(at + 1);
        *self.list() = self.savepoints[at].clone();
        // A role that was set since is the former one again.
        self.role = match self.connection.text("SELECT current_user").await?.as_str() {
            "app" => "app",
            _ => "postgres",
        };
        Ok("rollback to")
    }

    async fn hand_up(&mut self) -> Result<&'static str> {
        if self.savepoints.is_empty() {
            return Ok("nothing");
        }
        let at = rand::random_range(0..self.savepoints.len());
        self.connection.text(&format!("RELEASE s{at}")).await?;
        self.savepoints.truncate(at);
        Ok("release savepoint")
    }

    /// A function begins, records and fails: its error takes all back.
    async fn catch(&mut self) -> Result<&'static str> {
        let known = self.find(&["begun"]).map(|at| self.list()[at].request.clone());
        let record = known.map(|request| call("PERFORM idem_record", &request, "") + ";").unwrap_or_default();
        let sql = format!(
            "DO $$ BEGIN PERFORM idem_begin('work', 'caught {}'); {record} PERFORM 1 / 0;
             EXCEPTION WHEN division_by_zero THEN NULL; END $$",
            self.number
        );
        self.connection.text(&sql).await?;
        Ok("catch")
    }

    async fn set_role(&mut self) -> Result<&'static str> {
        self.role = if self.role == "postgres" { "app" } else { "postgres" };
        self.connection.text(&format!("SET LOCAL ROLE {}", self.role)).await?;
        Ok("set role")
    }

    async fn roll_back(&mut self) -> Result<&'static str> {
        self.connection.text("ROLLBACK").await?;
        self.end();
        Ok("rollback")
    }

    fn end(&mut self) {
        self.list = None;
        self.savepoints.clear();
    }

    async fn commit(&mut self) -> Result<&'static str> {
        let refused = self.list().iter().any(|held| held.state == "begun");
        let found = self.connection.outcome_of("COMMIT").await?;
        ensure!(found == if refused { "ID008" } else { "" }, "COMMIT gives {found:?}");
        self.end();
        Ok("commit")
    }

    async fn prepare(&mut self) -> Result<&'static str> {
        let refused = self.list().iter().any(|held| held.state == "begun");
        if self.prepared.len() > 1 {
            return self.commit().await;
        }
        self.made += 1;
        let gid = format!("Übergabe {}.{}", self.number, self.made);
        let found = self.connection.outcome_of(&format!("PREPARE TRANSACTION '{gid}'")).await?;
        ensure!(found == if refused { "ID008" } else { "" }, "PREPARE TRANSACTION gives {found:?}");
        let list = self.list.take().context("a transaction is open")?;
        self.end();
        if !refused {
            self.prepared.push((gid, list));
        }
        Ok("prepare")
    }

    async fn end_prepared(&mut self, server: &Cluster) -> Result<()> {
        let (gid, _) = self.prepared.remove(0);
        let end = if rand::random_bool(0.5) { "COMMIT" } else { "ROLLBACK" };
        // Any connection may do so.
        let other = server.connect(DATABASE).await?;
        other.text(&format!("{end} PREPARED '{gid}'")).await?;
        Ok(())
    }

    /// The backend is terminated, or ends by a FATAL error of its own.
    async fn terminate(&mut self, server: &Cluster) -> Result<&'static str> {
        if rand::random_bool(0.5) {
            self.connection.text("SET LOCAL idle_in_transaction_session_timeout = '1 ms'").await?;
            self.connection.wait_for_end().await?;
        } else {
            let killer = server.connect(DATABASE).await?;
            killer.text(&format!("SELECT pg_terminate_backend({}, 10000)", self.pid)).await?;
        }
        server
            .wait_for(DATABASE, &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", self.pid), "0")
            .await?;
        self.connection = server.connect(DATABASE).await?;
        self.pid = self.connection.pid().await?;
        self.end();
        Ok("terminate")
    }
}

/// A call on a request, with more arguments.
fn call(function: &str, (session, stream, request): &Request, more: &str) -> String {
    let stream = if stream.is_empty() { String::new() } else { format!(", stream => '{stream}'") };
    format!("{function}('{session}', '{request}'{stream}{more})")
}

/// A client that waits for a request, and gives it back.
pub struct Waiter {
    request: Request,
    answer: JoinHandle<Result<String>>,
}

impl Waiter {
    /// Begins to wait for a request that somebody holds.
    pub async fn start(server: &Cluster, request: Request) -> Result<Self> {
        let connection = server.connect(DATABASE).await?;
        let begin = call("SELECT status FROM idem_begin", &request, ", wait => '2 min'");
        let answer = tokio::spawn(async move { connection.outcome_of(&format!("BEGIN; {begin}; ROLLBACK")).await });
        Ok(Waiter { request, answer })
    }

    /// Whether it waits for this one.
    pub fn waits_for(&self, shown: &Shown) -> bool {
        self.request == shown.request
    }

    /// Waits until it has its answer.
    pub async fn end(self) -> Result<()> {
        let answer = self.answer.await??;
        ensure!(["started", "taken_over", "succeeded"].contains(&answer.as_str()), "who waited is told {answer}");
        Ok(())
    }
}
