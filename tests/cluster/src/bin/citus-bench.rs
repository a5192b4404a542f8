//! What requests cost on a Citus cluster, in rounds that alternate, once with disks that are waited for and once without.
//! Three questions: what the two-phase commit of a coordinator costs, what outcomes in the tenant's shard cost, and what a
//! journal costs on one server. `bench/citus.sh` runs this. All servers are on one machine, so only the ratios say something.

use std::env;
use std::fs;

use anyhow::{Context, Result};
use idempotence_cluster_tests::citus::{Citus, DATABASE, PRELOADED};
use idempotence_cluster_tests::{Cluster, LIMIT, Version};
use idempotence_demo::host::run;

/// What each script begins with: a tenant and a key.
const NAMES: &str = r"\set tenant random(1, 100000)
\set key random(1, 9000000000000000000)
";

const EFFECT: &str = "INSERT INTO effect VALUES (:tenant, :key);";
const BEGIN: &str = "SELECT status FROM idem_begin('payments', 'order-' || :key);";
const RECORD: &str = "SELECT FROM idem_record('payments', 'order-' || :key, '{}');";
const BEGIN_IN_JOURNAL: &str =
    "SELECT status FROM idem_begin('journaled', 'order-' || :key, stream => (:tenant)::text);";
const CLAIM_IN_JOURNAL: &str = "SELECT idem_claim('journaled', 'order-' || :key, stream => (:tenant)::text);";
const RECORD_IN_JOURNAL: &str =
    "SELECT FROM idem_record('journaled', 'order-' || :key, '{}', stream => (:tenant)::text);";
const BEGIN_BY_HAND: &str = "INSERT INTO by_hand VALUES (:tenant, 'order-' || :key) ON CONFLICT DO NOTHING;";
const RECORD_BY_HAND: &str = "UPDATE by_hand SET response = '{}' WHERE tenant = :tenant AND key = 'order-' || :key;";

/// The tables on all servers.
const TABLES: &str = "CREATE TABLE effect (tenant int, key bigint);
    CREATE TABLE by_hand (tenant int, key text, response jsonb, PRIMARY KEY (tenant, key)) WITH (fillfactor = 80);
    SELECT idem_create_journal('journal', 'tenant', 'int')";
const SESSIONS: &str = "SELECT idem_create_session('payments'), idem_create_session('journaled', journal => 'journal')";
const DISTRIBUTED: &str = "SELECT create_distributed_table('effect', 'tenant');
    SELECT create_distributed_table('by_hand', 'tenant', colocate_with => 'effect');
    SELECT create_distributed_table('journal', 'tenant', colocate_with => 'effect')";

/// Functions that do the same, and go to the tenant's node.
const FUNCTIONS: &str = "
    CREATE FUNCTION pay_bare(tenant int, key bigint) RETURNS void LANGUAGE plpgsql AS $$
      BEGIN INSERT INTO effect VALUES (tenant, key); END $$;
    CREATE FUNCTION pay_by_hand(tenant int, key bigint) RETURNS void LANGUAGE plpgsql AS $$
      BEGIN
        INSERT INTO by_hand VALUES (tenant, 'order-' || key) ON CONFLICT DO NOTHING;
        INSERT INTO effect VALUES (tenant, key);
        UPDATE by_hand h SET response = '{}' WHERE h.tenant = pay_by_hand.tenant AND h.key = 'order-' || pay_by_hand.key;
      END $$;
    CREATE FUNCTION pay_journal(tenant int, key bigint) RETURNS void LANGUAGE plpgsql AS $$
      BEGIN
        PERFORM idem_claim('journaled', 'order-' || key, stream => tenant::text);
        INSERT INTO effect VALUES (tenant, key);
        PERFORM idem_record('journaled', 'order-' || key, '{}', stream => tenant::text);
      END $$;
    SELECT create_distributed_function((f || '(int, bigint)')::regprocedure, 'tenant', colocate_with => 'effect', force_delegation => true)
    FROM unnest('{pay_bare,pay_by_hand,pay_journal}'::text[]) f";

/// A way to do the work: a name, its statements, whether these are a transaction, and options of the connection.
struct Way {
    name: &'static str,
    statements: Vec<&'static str>,
    is_transaction: bool,
    options: &'static str,
}

fn way(name: &'static str, statements: &[&'static str]) -> Way {
    Way { name, statements: statements.to_vec(), is_transaction: true, options: "" }
}

fn call(name: &'static str, statement: &'static str) -> Way {
    Way { is_transaction: false, ..way(name, &[statement]) }
}

impl Way {
    fn script(&self) -> String {
        let statements = self.statements.join("\n");
        match self.is_transaction {
            true => format!("{NAMES}BEGIN;\n{statements}\nCOMMIT;\n"),
            false => format!("{NAMES}{statements}\n"),
        }
    }
}

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<()> {
    let bare = || way("no request", &[EFFECT]);
    let by_hand = || way("by hand", &[BEGIN_BY_HAND, EFFECT, RECORD_BY_HAND]);
    let journal = || way("journal, idem_begin", &[BEGIN_IN_JOURNAL, EFFECT, RECORD_IN_JOURNAL]);
    let claim = || way("journal, idem_claim", &[CLAIM_IN_JOURNAL, EFFECT, RECORD_IN_JOURNAL]);
    let ordinary = || way("session without a journal", &[BEGIN, EFFECT, RECORD]);
    let one_phase =
        Way { name: "session without a journal, one phase", options: "-c idempotence.coordinate=off", ..ordinary() };
    let delegated = [
        call("delegated, no request", "SELECT pay_bare(:tenant, :key);"),
        call("delegated, by hand", "SELECT pay_by_hand(:tenant, :key);"),
        call("delegated, journal", "SELECT pay_journal(:tenant, :key);"),
    ];
    let on_citus: Vec<Way> =
        [bare(), by_hand(), journal(), claim(), ordinary(), one_phase].into_iter().chain(delegated).collect();
    for fsync in ["on", "off"] {
        let citus = Citus::start_with(2, PRELOADED, &[("fsync", fsync)])?;
        let coordinator = citus.coordinator();
        coordinator.psql(DATABASE, TABLES)?;
        coordinator.psql(DATABASE, DISTRIBUTED)?;
        for node in citus.nodes() {
            node.psql(DATABASE, SESSIONS)?;
        }
        coordinator.psql(DATABASE, FUNCTIONS)?;
        compare(&format!("Citus, fsync {fsync}"), coordinator, DATABASE, &on_citus)?;
    }
    let server = Cluster::start_with(Version::Pg18, &[("shared_preload_libraries", "idempotence")])?;
    server.psql("postgres", "CREATE EXTENSION idempotence")?;
    server.psql("postgres", TABLES)?;
    server.psql("postgres", SESSIONS)?;
    compare("one server", &server, "postgres", &[bare(), by_hand(), journal(), claim(), ordinary()])
}

/// Prints the rate of each way, as a part of that of the first one.
fn compare(what: &str, server: &Cluster, database: &str, ways: &[Way]) -> Result<()> {
    let (rounds, seconds, clients) = (number("ROUNDS", 5), number("ROUND_SECONDS", 8), number("CLIENTS", 4));
    let mut rates = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, rates) in ways.iter().zip(&mut rates) {
            let file = server.home().join("script.sql");
            fs::write(&file, way.script())?;
            let mut pgbench = server.program("pgbench");
            pgbench.args(["-n", "-M", "prepared", "-j", "2", "-c", &clients.to_string(), "-T", &seconds.to_string()]);
            pgbench.arg("-f").arg(&file).arg(server.connect_string(database, "postgres"));
            let told = run(pgbench.env("PGOPTIONS", way.options), None, LIMIT).with_context(|| way.name.to_owned())?;
            let rate =
                told.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
            rates.push(rate.with_context(|| told.clone())?);
        }
    }
    println!("requests a second, {what}, {clients} clients, median of {rounds} rounds of {seconds} s:");
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    for (way, median) in ways.iter().zip(&medians) {
        println!("  {:38} {median:8.0}   {:.2} of no request", way.name, median / medians[0]);
    }
    Ok(())
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
