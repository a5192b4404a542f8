//! The move to another server, by the steps of docs/operations.md themselves.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, LIMIT, Version, fixture};
use idempotence_demo::host::run;
use idempotence_demo::server::SUPERUSER;

/// What an application may have: sequences of both kinds, and functions that use the type idem_ticket, in
/// their arguments and in their body.
const BUSINESS: &str = "
    CREATE TABLE effect (id bigserial PRIMARY KEY, place int GENERATED ALWAYS AS IDENTITY (INCREMENT -1), key text);
    CREATE FUNCTION answer(ticket idem_ticket) RETURNS jsonb LANGUAGE sql AS 'SELECT ticket.response';
    CREATE FUNCTION pay(key text) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
      ticket idem_ticket := idem_begin('payments', key);
    BEGIN
      IF ticket.status = 'started' THEN
        INSERT INTO effect (key) VALUES (key);
        ticket.response := to_jsonb('paid for ' || key);
        PERFORM idem_record('payments', key, ticket.response);
      END IF;
      RETURN answer(ticket);
    END $$;
    GRANT ALL ON effect TO app;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app";

/// The scripts of the section, in their order.
fn steps() -> Result<Vec<String>> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md"))?;
    let (_, section) = page.split_once("### Moving to another server").context("there is no such section")?;
    let section = section.split("\n### ").next().unwrap_or_default();
    Ok(section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect())
}

/// Runs a script of the page, with the programs of the new server.
fn take(step: &str, old: &Cluster, new: &Cluster) -> Result<()> {
    let source = old.connect_string(DATABASE, SUPERUSER);
    let programs = Version::Pg18.bindir()?;
    let script = step
        .replace("CONNECTION 'old'", &format!("CONNECTION '{}'", source.replace('\'', "''")))
        .replace("-d old", &format!("-d \"{source}\""))
        .replace("-d new", &format!("-d \"{}\"", new.connect_string(DATABASE, SUPERUSER)));
    let script = format!("set -e -o pipefail\nexport PATH={}:$PATH\n{script}", programs.display());
    run(new.program("/bin/bash").arg("-c").arg(&script), None, LIMIT).with_context(|| script)?;
    Ok(())
}

// Goal: after the steps, the new server replays everything that was done, and executes what is new.
// Method: the fixture is on a server of version 15. More requests are executed while a server of version 18
// follows it. The new server also records something of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_by_the_documented_steps_repeats_nothing() -> Result<()> {
    let old = Cluster::start_with(Version::Pg15, &[("wal_level", "logical")])?;
    fixture::create_roles(&old)?;
    old.create_database(DATABASE)?;
    let fixture = fixture::fill(&old, DATABASE).await?;
    old.psql(DATABASE, BUSINESS)?;
    let clients = old.connect_as(DATABASE, "app").await?;
    clients.text("SELECT pay('before the copy')").await?;

    let steps = steps()?;
    let [copy, wait, sequences, data] = steps.as_slice() else { anyhow::bail!("there are {} steps", steps.len()) };
    let new = Cluster::start(Version::Pg18)?;
    new.psql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
    take(copy, &old, &new)?;
    new.wait_for(DATABASE, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel", "t").await?;
    ensure!(clients.text("SELECT pay('after the copy')").await? == r#""paid for after the copy""#);
    let warm = new.connect_as(DATABASE, "app").await?;
    warm.text("SELECT idem_create_session('payments')").await?;
    warm.execute("payments", "by itself", "1").await?;

    for step in [wait, sequences, data] {
        take(step, &old, &new)?;
    }
    ensure!(warm.lookup("payments", "by itself").await? == "unknown", "what the new server recorded is still there");
    for key in ["before the copy", "after the copy", "at last"] {
        ensure!(warm.text(&format!("SELECT pay('{key}')")).await? == format!("\"paid for {key}\""));
    }
    let effects = warm.text("SELECT id, place, key FROM effect ORDER BY id").await?;
    ensure!(effects == "1|-1|before the copy\n2|-2|after the copy\n3|-3|at last", "{effects}");
    let superuser = new.connect(DATABASE).await?;
    new.psql(DATABASE, "CALL idem_sweep()")?;
    let unwell = "SELECT name, detail FROM idempotence.health WHERE status <> 'ok' AND name <> 'worker'";
    ensure!(superuser.text(unwell).await? == "");
    fixture.check_works(&new, DATABASE).await
}
