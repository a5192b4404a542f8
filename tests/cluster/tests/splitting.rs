//! pgpool-II in front of a primary and a standby that is a minute behind. It sends reads to the standby, and has to
//! find out what reads. `make test-fleet` runs this; the other suites skip it.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::crashes::Crash;
use idempotence_cluster_tests::driver::{APPLICATION, Load};
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::payments::{Payments, SESSION};
use idempotence_cluster_tests::pgpool::Pgpool;
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, Version, documented};
use rand::RngExt;
use uuid::Uuid;

/// A database that is made without the extension.
const BARE: &str = "bare";

/// pgpool's defaults.
const DEFAULT: &str = "";

/// What was in the configuration that came with pgpool until 4.1: only these functions write.
const FORMER: &str = "write_function_list = 'currval,lastval,nextval,setval'\n";

/// Where a statement goes, with the defaults, with the former list, and with the documented configuration.
type Routes = [&'static str; 3];
const BY_VOLATILITY: Routes = ["primary", "standby", "primary"];
const READ: Routes = ["standby", "standby", "primary"];
const ANYWAY: Routes = ["primary"; 3];

/// A primary and a standby that shows what the primary had a minute ago.
struct Place {
    primary: Cluster,
    standby: Cluster,
}

impl Place {
    /// The standby has the extension, a session, and a request that is done.
    async fn start() -> Result<Self> {
        let primary = Cluster::start_with(Version::Pg15, &[("log_statement", "all")])?;
        primary.create_database(DATABASE)?;
        primary.psql("postgres", &format!("CREATE DATABASE {BARE}; CREATE ROLE app LOGIN"))?;
        let superuser = primary.connect(DATABASE).await?;
        Payments::create(&superuser, "app").await?;
        superuser
            .text(
                "SELECT idem_create_session('mails', inbox => true, owner => 'app');
                 CREATE FUNCTION pay(key text) RETURNS text LANGUAGE sql AS
                     $$SELECT status FROM idem_run('payments', key, 'INSERT INTO effect VALUES ($1 #>> ''{}'', ''pay'')', to_jsonb(key))$$;
                 CREATE FUNCTION pay_stable(key text) RETURNS text STABLE LANGUAGE sql AS
                     $$SELECT status FROM idem_run('payments', key, 'INSERT INTO effect VALUES ($1 #>> ''{}'', ''pay'')', to_jsonb(key))$$",
            )
            .await?;
        superuser.execute(SESSION, "of old", "1").await?;
        let standby = primary.standby()?;
        standby.conf("recovery_min_apply_delay", "1min")?;
        standby.reload()?;
        Ok(Self { primary, standby })
    }

    async fn pgpool(&self, lines: &str) -> Result<Pgpool> {
        Pgpool::start(&self.primary, &self.standby, lines).await
    }

    /// The servers that a statement goes to. Its error, if it has one, does not matter.
    async fn route(&self, client: &Connection, protocol: Protocol, sql: &str) -> Result<&'static str> {
        let tag = Uuid::new_v4().to_string();
        let sql = format!("{sql} /* {tag} */");
        let answer = match protocol {
            Protocol::Simple => client.try_text(&sql).await.map(drop),
            Protocol::Extended => client.prepared(&sql).await.map(drop),
        };
        if let Err(error) = &answer {
            error.code().with_context(|| format!("{sql}: {error}"))?;
        }
        Ok(match (self.primary.log().contains(&tag), self.standby.log().contains(&tag)) {
            (true, true) => "both",
            (true, false) => "primary",
            (false, true) => "standby",
            (false, false) => "neither",
        })
    }

    /// Fails unless each of these statements, one after the other on a connection, goes there.
    async fn check(&self, client: &Connection, routes: &[(&str, &str)]) -> Result<()> {
        for (sql, wanted) in routes {
            let found = self.route(client, Protocol::Simple, sql).await?;
            ensure!(found == *wanted, "{sql} went to {found}, and not to {wanted}");
        }
        Ok(())
    }

    /// How often this key has taken effect.
    fn effects(&self, key: &str) -> Result<String> {
        let count = format!("SELECT count(*) FROM effect WHERE key = '{key}'");
        Ok(self.primary.psql(DATABASE, &count)?.trim_end().to_owned())
    }
}

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Simple,
    Extended,
}

/// The three configurations, in the order of [`Routes`].
fn configurations() -> Result<[String; 3]> {
    Ok([DEFAULT.into(), FORMER.into(), documented::block("pgpool")?])
}

/// Statements that call functions by themselves, and where they go.
const STATEMENTS: [(&str, Routes); 11] = [
    ("SELECT status FROM public.idem_lookup('payments', 'k')", BY_VOLATILITY),
    ("SELECT pay('k')", BY_VOLATILITY),
    ("WITH new AS (SELECT * FROM idem_once_many('mails', '{a,b}')) SELECT * FROM new", BY_VOLATILITY),
    ("SELECT count(*) FROM effect WHERE EXISTS (SELECT FROM idem_lookup('payments', key))", BY_VOLATILITY),
    // Whoever declares a function as one that only reads is believed, by everything but a pattern that knows its name.
    ("SELECT pay_stable('k')", ["standby"; 3]),
    ("INSERT INTO effect SELECT request, request FROM idem_once_many('mails', '{c,d}')", ANYWAY),
    ("WITH done AS (INSERT INTO effect VALUES ('w', 'w') RETURNING 1) SELECT FROM done, idem_ready()", ANYWAY),
    ("DO $$ BEGIN PERFORM idem_lookup('payments', 'k'); END $$", ANYWAY),
    ("CALL idem_sweep()", ANYWAY),
    ("BEGIN; SELECT FROM idem_begin('payments', 'several'); ROLLBACK", ANYWAY),
    ("/* a comment in front */ SELECT status FROM idem_lookup('payments', 'k')", ANYWAY),
];

// Goal: it is known to which server pgpool sends each function and each view: with its defaults every function that
// may write to the primary; with a former list everything to the standby; with the documented lines all to the primary.
// Method: each function and view of the catalog, called by itself, and its mark in the logs of the two servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgpool-II: make test-fleet"]
async fn each_function_goes_where_the_configuration_says() -> Result<()> {
    let place = Place::start().await?;
    let functions = "
        SELECT DISTINCT ON (proname) proname, provolatile,
               (SELECT string_agg('NULL::' || replace(t::regtype::text, 'anycompatiblearray', 'text[]'), ', ' ORDER BY n)
                  FROM unnest(proargtypes) WITH ORDINALITY AS argument (t, n))
          FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
          JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotence'
         WHERE pronamespace = 'public'::regnamespace AND prokind = 'f' ORDER BY proname, provolatile DESC";
    let functions = place.primary.psql(DATABASE, functions)?;
    let views = "SELECT relname FROM pg_class WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'v'";
    let views = place.primary.psql(DATABASE, views)?;
    ensure!(functions.lines().count() > 30 && views.lines().count() > 10, "{functions}{views}");

    for (number, lines) in configurations()?.into_iter().enumerate() {
        let pgpool = place.pgpool(&lines).await?;
        let client = pgpool.connect(DATABASE, "postgres").await?;
        for function in functions.lines() {
            let [name, volatility, arguments] = function.split('|').collect::<Vec<_>>()[..] else {
                anyhow::bail!("cannot read {function:?}");
            };
            let routes = if volatility == "v" { BY_VOLATILITY } else { READ };
            let call = format!("SELECT FROM {name}({arguments})");
            place.check(&client, &[(call.as_str(), routes[number])]).await?;
        }
        for view in views.lines() {
            let look = format!("SELECT count(*) FROM idempotence.{view}");
            place.check(&client, &[(look.as_str(), READ[number])]).await?;
        }
        for (sql, routes) in STATEMENTS {
            place.check(&client, &[(sql, routes[number])]).await?;
        }
        // What drivers prepare goes the same ways. What SQL prepares by name goes to the primary.
        for sql in ["SELECT status FROM idem_lookup('payments', 'k')", "SELECT FROM idem_claim('payments', 'k')"] {
            let found = place.route(&client, Protocol::Extended, sql).await?;
            ensure!(found == BY_VOLATILITY[number], "prepared, {sql} went to {found}");
        }
        client.text("PREPARE kept AS SELECT status FROM idem_lookup('payments', 'k')").await?;
        place.check(&client, &[("EXECUTE kept", "primary")]).await?;
    }
    Ok(())
}

// Goal: it is known where the statements of a transaction go, and that after a begin none goes to the standby, unless
// pgpool is told not to care.
// Method: transactions, statement by statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgpool-II: make test-fleet"]
async fn a_transaction_stays_at_the_primary_from_its_begin_on() -> Result<()> {
    let place = Place::start().await?;
    let read = "SELECT count(*) FROM effect";
    let begin = "SELECT status FROM idem_begin('payments', 'here')";
    let record = "SELECT FROM idem_record('payments', 'here')";
    let [default, former, documented] = configurations()?;
    for lines in [&default, &documented] {
        let pgpool = place.pgpool(lines).await?;
        let client = pgpool.connect(DATABASE, "app").await?;
        let whole = [
            ("BEGIN", "both"),
            (read, "standby"),
            (begin, "primary"),
            (read, "primary"),
            (record, "primary"),
            (read, "primary"),
            ("COMMIT", "both"),
            (read, "standby"),
        ];
        place.check(&client, &whole).await?;
        // A replay leaves its transaction at the primary too.
        place.check(&client, &[("BEGIN", "both"), (begin, "primary"), (read, "primary"), ("COMMIT", "both")]).await?;
        ensure!(client.replay(SESSION, "here").await? == "succeeded|");
        place.primary.psql(DATABASE, "SELECT idem_forget('payments', 'here', 'a test')")?;
    }
    // A transaction that reads beside its begin reads what was there a minute ago.
    let careless = place.pgpool("disable_load_balance_on_write = 'off'\n").await?;
    let client = careless.connect(DATABASE, "app").await?;
    let whole = [("BEGIN", "both"), (begin, "primary"), (read, "standby"), ("ROLLBACK", "both")];
    place.check(&client, &whole).await?;
    // The former list splits a transaction in the middle.
    let misled = place.pgpool(&former).await?;
    let client = misled.connect(DATABASE, "app").await?;
    place.check(&client, &[("BEGIN", "both"), (begin, "standby"), ("ROLLBACK", "both")]).await?;
    let insert = "INSERT INTO effect VALUES ('first', 'first')";
    place.check(&client, &[("BEGIN", "both"), (insert, "primary"), (begin, "primary"), ("ROLLBACK", "both")]).await?;
    Ok(())
}

// Goal: a misrouted request is refused, and never executed again; a misrouted lookup does not say that nothing was done.
// Method: requests that are done at the primary, sent to the standby by the former list: one that has arrived there
// and one that has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgpool-II: make test-fleet"]
async fn what_is_misrouted_is_refused_and_nothing_is_doubled() -> Result<()> {
    let place = Place::start().await?;
    let [_, former, documented] = configurations()?;
    ensure!(place.primary.psql(DATABASE, "SELECT pay('new')")?.trim_end() == "succeeded");
    place.primary.psql(DATABASE, "SELECT idem_once('mails', 'new')")?;
    let pgpool = place.pgpool(&former).await?;
    let client = pgpool.connect(DATABASE, "app").await?;
    for key in ["new", "never sent"] {
        for call in ["idem_begin('payments', #)", "idem_claim('payments', #)", "idem_once('mails', #)", "pay(#)"] {
            let call = call.replace('#', &format!("'{key}'"));
            let found = client.sqlstate(&format!("SELECT FROM {call}")).await?;
            ensure!(found == "25006", "{call} gives {found}");
        }
        ensure!(client.sqlstate(&format!("SELECT FROM idem_settle('payments', '{key}')")).await? == "25006");
        ensure!(client.sqlstate(&format!("SELECT pay_stable('{key}')")).await? == "25006");
        ensure!(client.lookup(SESSION, key).await? == "not_here", "{key}");
        let explain = format!("SELECT e #>> '{{of,server}}' FROM idem_explain('payments', '{key}') e");
        ensure!(client.text(&explain).await? == "standby");
    }
    ensure!(client.replay(SESSION, "of old").await? == "succeeded|1");
    ensure!(client.lookup(SESSION, "of old").await? == "succeeded");
    ensure!(place.effects("new")? == "1" && place.effects("never sent")? == "0");

    // The same retries, once pgpool knows better.
    let pgpool = place.pgpool(&documented).await?;
    let client = pgpool.connect(DATABASE, "app").await?;
    ensure!(client.text("SELECT pay('new')").await? == "succeeded");
    ensure!(client.text("SELECT idem_once('mails', 'new')").await? == "f");
    ensure!(client.lookup(SESSION, "never sent").await? == "unknown");
    ensure!(place.effects("new")? == "1");
    Ok(())
}

// Goal: pgpool remembers that a function is unknown, and the documented lines help.
// Method: a client calls a function before the extension is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgpool-II: make test-fleet"]
async fn a_function_that_was_unknown_stays_with_the_standby_until_a_restart() -> Result<()> {
    let place = Place::start().await?;
    let [default, _, documented] = configurations()?;
    let call = "SELECT FROM idem_begin('payments', 'k')";
    let (mut pgpool, known) = (place.pgpool(&default).await?, place.pgpool(&documented).await?);
    let before = pgpool.connect(BARE, "postgres").await?;
    place.check(&before, &[(call, "standby")]).await?;
    place.check(&known.connect(BARE, "postgres").await?, &[(call, "primary")]).await?;
    place.primary.psql(BARE, "CREATE EXTENSION idempotence")?;
    place.check(&before, &[(call, "standby")]).await?;
    place.check(&pgpool.connect(BARE, "postgres").await?, &[(call, "standby")]).await?;
    drop(before);
    pgpool.restart().await?;
    place.check(&pgpool.connect(BARE, "postgres").await?, &[(call, "primary")]).await
}

// Goal: behind pgpool as documented, each request that was answered has taken effect once.
// Method: clients send transactions and lone SELECTs, while the primary, its backends, the standby and pgpool die.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgpool-II: make test-fleet"]
async fn each_request_takes_effect_once_while_all_that_is_there_is_killed() -> Result<()> {
    let place = Place::start().await?;
    let mut pgpool = place.pgpool(&documented::block("pgpool")?).await?;
    let mut load = Load::through(vec![pgpool.connect_string(DATABASE, "app")], Payments, 8);
    let (wanted, kills) = (requests(3000, 12_000), requests(8, 24));
    for turn in 0..kills {
        load.progress(rand::rng().random_range(1..=2 * wanted / kills - 1)).await?;
        match turn % 4 {
            0 => place.primary.crash()?,
            1 => Crash::Backend.of(&place.primary, DATABASE, APPLICATION).await?,
            2 => pgpool.restart().await?,
            _ => place.standby.crash()?,
        }
    }
    load.progress(wanted.saturating_sub(load.answered()).max(100)).await?;
    let report = load.close_on(&place.primary.connect(DATABASE).await?).await?;
    println!("{} answered, {} retries, {kills} kills", report.answered, report.retries);
    report.errors.iter().for_each(|(error, count)| println!("  {count} × {error}"));
    ensure!(report.retries > 0, "no client noticed any of the kills");
    // The standby was behind all the time, so whatever a client was answered came from the primary.
    let there = place.standby.psql(DATABASE, "SELECT count(*) FROM effect")?;
    let all = place.primary.psql(DATABASE, "SELECT count(*) FROM effect")?;
    println!("{} of {} effects have arrived on the standby", there.trim_end(), all.trim_end());
    ensure!(there != all, "the standby was not behind");
    report.check()
}
