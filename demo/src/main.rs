//! `idempotence-demo`: starts a private server, lets clients transfer money and workers charge orders outside
//! the database through a network that loses messages, while backends and workers are killed, and proves that
//! every request took effect exactly once. The exit status is 0 if the proof holds, 1 if it fails, and 2 if an
//! error kept the program from a proof.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use idempotence_demo::chaos::{Network, Saboteur};
use idempotence_demo::evidence::Evidence;
use idempotence_demo::found::Found;
use idempotence_demo::journal::{Book, Journal};
use idempotence_demo::leased::Shared;
use idempotence_demo::orders::Queue;
use idempotence_demo::outside::Service;
use idempotence_demo::plan::Plan;
use idempotence_demo::proof::finding::faults_were_real;
use idempotence_demo::proof::{self, fulfilment};
use idempotence_demo::proxy::{self, Proxy};
use idempotence_demo::server::{SUPERUSER, Server};
use idempotence_demo::signals::Signals;
use idempotence_demo::stats::{Stats, get};
use idempotence_demo::told::{Listener, ToldBook};
use idempotence_demo::{bank, load, tables};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};

const SECONDS: u64 = 20;
const SECONDS_QUICK: u64 = 8;

/// The longest time for which the load continues because a kind of fault has not occurred yet.
const FAULTS_MAX: Duration = Duration::from_secs(120);
/// The longest time that the clients may take to finish their last request.
const FINISH_MAX: Duration = Duration::from_secs(30);
/// The longest time that the server may take to notice that the clients are gone.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// The longest time that reading the evidence may take.
const EVIDENCE_MAX: Duration = Duration::from_secs(60);

/// How often the progress is redrawn on a terminal.
const REDRAW_EVERY: Duration = Duration::from_millis(200);
/// How often the progress is printed if there is no terminal to draw on.
const PRINT_EVERY: Duration = Duration::from_secs(5);

/// Money, retries and kill -9: shows that every request takes effect exactly once.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The pg_config of the PostgreSQL to use; the extension must be installed there.
    #[arg(long, env = "PG_CONFIG", default_value = "pg_config")]
    pg_config: PathBuf,
    /// A shorter run, of about 15 seconds in all.
    #[arg(long)]
    quick: bool,
    /// Seconds of load, instead of 20 (or 8 with --quick). The load continues until each kind of fault has occurred.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Clients at work at the same time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Additional clients, which number their requests and have five in flight.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    numbered_clients: u32,
    /// Workers that take orders with leases and charge them outside the database.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    workers: u32,
    /// Accounts to transfer between: the fewer, the more conflicts.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    accounts: u32,
    /// Whether to kill backends with SIGKILL.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    kill: bool,
    /// Repeats the choices of the run with this seed (their timing still depends on the machine).
    #[arg(long)]
    seed: Option<u64>,
    /// Where the server's files go, instead of a temporary directory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Sends the same load without the extension, to show that the proof then fails.
    #[arg(long)]
    without_keys: bool,
}

impl Options {
    fn duration(&self) -> Duration {
        let usual = if self.quick { SECONDS_QUICK } else { SECONDS };
        Duration::from_secs(self.seconds.unwrap_or(usual))
    }

    /// The number of workers. They cannot do without the extension.
    fn workers(&self) -> u32 {
        if self.without_keys { 0 } else { self.workers }
    }

    /// The most connections that there may be at once.
    fn max_connections(&self) -> u32 {
        // Each client sends up to four copies, or five numbers, at the same time, and connections that were cut
        // linger for a moment.
        self.clients * 8 + self.numbered_clients * 12 + self.workers * 2 + 40
    }

    /// The time between two kills: about ten kills in a run, but few enough for the clients to make progress.
    fn kill_every(&self) -> Option<Duration> {
        let every = (self.duration() / 10).clamp(Duration::from_secs(2), Duration::from_secs(5));
        self.kill.then_some(every)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = Runtime::new().context("starting the runtime").and_then(|runtime| runtime.block_on(run(&options)));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the demonstration and returns whether the proof holds. However this function ends, it stops the
/// server; it keeps the files of the server only if the proof fails unexpectedly.
async fn run(options: &Options) -> Result<bool> {
    let signals = Signals::listen()?;
    let seed = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));

    let server = Arc::new(start_server(options)?);
    let password = bank::create(&server, options.accounts, !options.without_keys)?;
    if signals.seen() > 0 {
        bail!("interrupted");
    }
    println!(
        "{} clients, {} that number their requests, {} workers, {} accounts, {} s of load, seed {seed}; server in {}",
        options.clients,
        options.numbered_clients,
        options.workers(),
        options.accounts,
        options.duration().as_secs(),
        server.home().display()
    );
    let demo =
        Demo { options, seed, password, server, journal: Arc::default(), told: Arc::default(), stats: Arc::default() };
    let holds = tokio::select! {
        holds = demo.run(&signals) => holds?,
        () = signals.reach(2) => bail!("interrupted twice: no proof"),
    };
    if !holds && !options.without_keys {
        demo.server.keep_files();
        println!("the server's files are kept in {}", demo.server.home().display());
    }
    Ok(holds)
}

fn start_server(options: &Options) -> Result<Server> {
    let mut server =
        Server::builder(&options.pg_config).conf("max_connections", &options.max_connections().to_string());
    if let Some(dir) = &options.dir {
        server = server.dir(dir);
    }
    server.start().context("starting a private server")
}

/// Both sides of the proof.
struct Read {
    book: Book,
    evidence: Evidence,
    /// Those about the orders, unless this is a run without the extension.
    orders: Option<(ToldBook, Found)>,
}

/// A run of the demonstration.
struct Demo<'a> {
    options: &'a Options,
    seed: u64,
    password: String,
    server: Arc<Server>,
    journal: Arc<Journal>,
    told: Arc<Listener>,
    stats: Arc<Stats>,
}

impl Demo<'_> {
    async fn run(&self, signals: &Signals) -> Result<bool> {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let network = Arc::new(Network::new(rng.random()));
        let faults = network.clone();
        let faults = Arc::new(move |message: proxy::Message<'_>| faults.fate(message));
        let proxy = Proxy::start(self.server.addr(), faults).await?;
        let service = Service::start(rng.random()).await?;
        let shared = Shared {
            queue: Arc::new(Queue::new(rng.random())),
            service: service.caller(),
            told: self.told.clone(),
            stats: self.stats.clone(),
        };

        let start = Instant::now();
        self.run_load(&proxy, &network, &shared, rng, signals).await?;
        let duration = start.elapsed();
        let counts = proxy.counts().clone();
        drop(proxy);

        let restarts = self.server.log().matches("all server processes terminated").count();
        let replays = self.journal.replays();
        println!("\n{}", self.stats.table(&counts, replays, restarts, duration));

        let read =
            timeout(EVIDENCE_MAX, self.evidence(&service)).await.context("reading the evidence took too long")?;
        let Read { book, evidence, orders } = read?;
        if let Some(kept) = &evidence.kept {
            println!("{}", tables::sessions(&kept.sessions));
        }
        if let Some((told, found)) = &orders {
            println!("{}", tables::orders(told, found, &self.stats));
        }
        let mut findings = proof::judge(&book, &evidence);
        findings.extend(orders.iter().flat_map(|(told, found)| fulfilment::judge(told, found)));
        // After an interruption, the run may have been too short for all kinds of faults.
        if signals.seen() == 0 {
            findings.push(faults_were_real("the faults were real", &self.faults(&counts)));
            findings.extend(orders.iter().map(|(told, found)| fulfilment::faults_were_real(told, found)));
        }
        println!("proof");
        for finding in &findings {
            println!("{finding}");
        }
        let holds = findings.iter().all(|finding| finding.holds);
        println!("{}", if holds { "all holds" } else { "the proof FAILED" });
        Ok(holds)
    }

    /// How often each kind of fault has occurred to the clients. Every kind must occur in a run.
    fn faults(&self, network: &proxy::Counts) -> Vec<(&'static str, u64)> {
        let mut faults = vec![("replies lost", get(&network.commit_replies_lost))];
        if !self.options.without_keys {
            faults.push(("replays", self.journal.replays()));
        }
        if self.options.kill {
            faults.push(("kills", get(&self.stats.kills)));
        }
        faults
    }

    /// Waits until the time is over and every kind of fault has occurred. On a slow machine few requests fit into the
    /// time, and a rare fault may need longer.
    async fn load_is_enough(&self, proxy: &Proxy) {
        sleep(self.options.duration()).await;
        let limit = Instant::now() + FAULTS_MAX;
        loop {
            let missing = self.faults(proxy.counts()).iter().any(|(_, count)| *count == 0)
                || self.options.workers() > 0 && self.told.faults().contains(&0);
            if !missing || Instant::now() > limit {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Runs the load and the saboteur until there was enough load or the user interrupts.
    async fn run_load(
        &self,
        proxy: &Proxy,
        network: &Network,
        orders: &Shared,
        mut rng: SmallRng,
        signals: &Signals,
    ) -> Result<()> {
        let (stop, stopped) = watch::channel(false);
        let plan = Plan {
            keyed_clients: self.options.clients,
            numbered_clients: self.options.numbered_clients,
            workers: self.options.workers(),
            accounts: self.options.accounts,
            seed: rng.random(),
            config: self.client_config(proxy),
            with_keys: !self.options.without_keys,
        };
        let mut clients = load::start(&plan, &self.journal, &self.stats, &stopped);
        load::start_orders(&mut clients, &plan, orders, &stopped);
        let saboteur = Saboteur {
            server: self.server.clone(),
            stats: self.stats.clone(),
            rng,
            kill_every: self.options.kill_every(),
        };
        let mut saboteur = tokio::spawn(saboteur.run(stopped));

        tokio::select! {
            () = self.load_is_enough(proxy) => {}
            () = signals.reach(1) => eprintln!("interrupted: proving what was done so far"),
            () = self.show_progress(proxy) => {}
            ended = &mut saboteur => return ended?.context("before the time was over"),
        }

        // Once the saboteur has ended and the network is reliable, each client can finish its request.
        stop.send_replace(true);
        saboteur.await??;
        network.calm_down();
        orders.queue.calm_down();
        finish(clients).await
    }

    fn client_config(&self, proxy: &Proxy) -> Config {
        let mut config = Config::new();
        config
            .host(proxy.addr().ip().to_string())
            .port(proxy.addr().port())
            .ssl_mode(SslMode::Disable)
            .dbname(bank::DATABASE)
            .user(bank::ROLE)
            .password(&self.password)
            .application_name("idempotence-demo");
        config
    }

    /// Shows the progress until the future is dropped.
    async fn show_progress(&self, proxy: &Proxy) {
        let seconds = self.options.duration().as_secs();
        let bar = ProgressBar::new(seconds)
            .with_style(ProgressStyle::with_template("{bar:24} {pos:>3}/{len} s  {msg}").expect("valid"));
        let on_terminal = std::io::stderr().is_terminal();
        let pause = if on_terminal { REDRAW_EVERY } else { PRINT_EVERY };
        let mut ticks = interval(pause);
        let start = Instant::now();
        loop {
            ticks.tick().await;
            let message = format!(
                "{} requests, {} replays, {} replies lost, {} kills",
                get(&self.stats.requests),
                self.journal.replays(),
                get(&proxy.counts().commit_replies_lost),
                get(&self.stats.kills)
            );
            let elapsed = start.elapsed().as_secs();
            if on_terminal {
                bar.set_position(elapsed);
                bar.set_message(message);
            } else {
                println!("{elapsed:>4} s  {message}");
            }
        }
    }

    /// Reads both sides of the proof.
    async fn evidence(&self, service: &Service) -> Result<Read> {
        let bank = self.connect(bank::ROLE).await?;
        let dba = self.connect(SUPERUSER).await?;
        wait_for_quiet(&dba).await?;
        let book = self.journal.snapshot();
        let with_keys = !self.options.without_keys;
        let evidence = Evidence::read(&bank, &dba, &book, with_keys).await?;
        let orders = if with_keys {
            let told = self.told.snapshot();
            let found = Found::read(&bank, &dba, &told, service.ledger()).await?;
            Some((told, found))
        } else {
            None
        };
        Ok(Read { book, evidence, orders })
    }

    /// Connects to the server directly, not through the proxy.
    async fn connect(&self, user: &str) -> Result<Client> {
        let connect_string = self.server.connect_string(bank::DATABASE, user);
        let (client, socket) = tokio_postgres::connect(&connect_string, NoTls).await?;
        tokio::spawn(socket);
        Ok(client)
    }
}

/// Waits until the clients have ended. A client that takes too long for its last request is aborted: the
/// proof allows for requests without an answer.
async fn finish(mut clients: JoinSet<()>) -> Result<()> {
    let all = async {
        while let Some(ended) = clients.join_next().await {
            ended.context("a worker")?;
        }
        Ok(())
    };
    let ended = timeout(FINISH_MAX, all).await;
    clients.shutdown().await;
    ended.unwrap_or(Ok(()))
}

/// Waits until the server has noticed that the clients are gone. Until then their transactions may still
/// commit or roll back, and it is too early to read the evidence.
async fn wait_for_quiet(dba: &Client) -> Result<()> {
    let query =
        format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{}' AND xact_start IS NOT NULL", bank::ROLE);
    timeout(QUIET_MAX, async {
        while dba.query_one(&query, &[]).await?.get::<_, i64>(0) > 0 {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    })
    .await
    .context("transactions of clients that are gone do not end")?
}
