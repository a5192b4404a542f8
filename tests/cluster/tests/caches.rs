//! What backends remember of standing sessions. They must forget it as soon as it has changed, and only then.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version, on_each_version};

on_each_version!(
    a_change_is_seen_by_every_backend_at_once,
    a_change_is_seen_on_a_standby,
    a_session_that_is_altered_in_a_loop_costs_others_nothing,
);

// Goal: a change of a session counts for the next call in every other backend, for any session.
// Method: a backend remembers 300 sessions. Another backend alters each of them, at first in a transaction
// that is rolled back. Then it drops each session, creates it again, and gives it to another owner.
async fn a_change_is_seen_by_every_backend_at_once(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    server.psql(DATABASE, "CREATE ROLE app LOGIN; CREATE ROLE app2; SELECT idem_grant('app'), idem_grant('app2')")?;
    let make = "SELECT count(idem_create_session('s' || n, owner => 'app')) FROM generate_series(1, 300) n";
    server.psql(DATABASE, make)?;
    let app = server.connect_as(DATABASE, "app").await?;
    let other = server.connect(DATABASE).await?;
    for n in 1..=300 {
        let (name, begin) = (format!("s{n}"), format!("SELECT status FROM idem_begin('s{n}', 'k', wait => '0')"));
        app.execute(&name, "k", "1").await?;
        ensure!(app.text(&begin).await? == "succeeded");
        let alter = format!("SELECT idem_alter_session('{name}', require_payload => true)");
        other.text(&format!("BEGIN; {alter}; ROLLBACK")).await?;
        ensure!(app.text(&begin).await? == "succeeded", "{name} was not altered");
        other.text(&alter).await?;
        ensure!(app.sqlstate(&begin).await? == "22004", "{name} requires a payload");
        other.text(&format!("SELECT idem_drop_session('{name}')")).await?;
        ensure!(app.sqlstate(&begin).await? == "42704", "{name} was dropped");
        other.text(&format!("SELECT idem_create_session('{name}')")).await?;
        ensure!(app.text(&begin).await? == "succeeded", "{name} is there again");
        other.text(&format!("SELECT idem_alter_session('{name}', owner => 'app2')")).await?;
        ensure!(app.sqlstate(&begin).await? == "42501", "{name} was given away");
    }
    Ok(())
}

// Goal: the same is true for the backends of a standby, once the change has arrived there.
// Method: a backend of the standby remembers a session, which is then dropped on the primary.
async fn a_change_is_seen_on_a_standby(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let primary = server.connect(DATABASE).await?;
    primary.text("SELECT idem_create_session('a'), idem_create_session('b')").await?;
    for session in ["a", "b"] {
        primary.execute(session, "k", "1").await?;
    }
    let standby = server.standby()?;
    standby.wait_for(DATABASE, "SELECT count(*) FROM idempotence.outcomes", "2").await?;
    let reader = standby.connect(DATABASE).await?;
    for session in ["a", "b"] {
        ensure!(reader.replay(session, "k").await? == "succeeded|1");
    }
    primary.text("SELECT idem_drop_session('a')").await?;
    // A commit can be seen on a standby a moment before its messages to other backends are sent.
    standby.catch_up_with(&server)?;
    ensure!(reader.sqlstate("SELECT idem_begin('a', 'k')").await? == "42704");
    ensure!(reader.replay("b", "k").await? == "succeeded|1");
    Ok(())
}

// Goal: a role that alters its own session, however often, does not make other backends forget their sessions.
// Method: replays in one session, while another role alters its own session before each replay. The number of
// lookups in the table of sessions is compared with that of the same changes without replays.
async fn a_session_that_is_altered_in_a_loop_costs_others_nothing(version: Version) -> Result<()> {
    const CHANGES: i64 = 200;
    let server = shop::start(version)?;
    let payments = server.connect(DATABASE).await?;
    server.psql(DATABASE, "CREATE ROLE other LOGIN; SELECT idem_grant('other')")?;
    payments.text("SELECT idem_create_session('payments', ttl => '1 day')").await?;
    payments.execute("payments", "k", "1").await?;
    let other = server.connect_as(DATABASE, "other").await?;
    // A change makes backends forget each session whose id has the same last byte, on average one in 256.
    for n in 0.. {
        other.text(&format!("SELECT idem_create_session('mine {n}', ttl => '1 hour')")).await?;
        let ends = "SELECT count(DISTINCT right(id::text, 2)) FROM idempotence.session";
        if payments.text(ends).await? != "1" {
            other.text(&format!("SELECT idem_alter_session('mine {n}', ttl => '61 minutes')")).await?;
            let alone = looks(&payments, &other, n, CHANGES, false).await?;
            let beside = looks(&payments, &other, n, CHANGES, true).await?;
            println!("{CHANGES} changes take {alone} looks, with a replay after each {beside}");
            ensure!(alone >= CHANGES, "the looks of the other backend do not count");
            ensure!(beside <= alone + CHANGES / 10, "replays looked for their session {} times", beside - alone);
            return Ok(());
        }
        payments.text(&format!("DELETE FROM idempotence.session WHERE name = 'mine {n}'")).await?;
    }
    unreachable!("ids end at random")
}

async fn looks(payments: &Connection, other: &Connection, n: i32, changes: i64, replays: bool) -> Result<i64> {
    let flush = "SELECT pg_stat_force_next_flush()";
    let count = "SELECT idx_scan FROM pg_stat_all_indexes WHERE indexrelid = 'idempotence.session_name_key'::regclass";
    payments.text(flush).await?;
    other.text(flush).await?;
    let before: i64 = payments.text(count).await?.parse()?;
    for change in 0..changes {
        // Every other change raises the ttl.
        let ttl = format!("{} minutes", 61 + change % 2);
        other.text(&format!("SELECT idem_alter_session('mine {n}', ttl => '{ttl}')")).await?;
        if replays {
            ensure!(payments.replay("payments", "k").await? == "succeeded|1");
        }
    }
    payments.text(flush).await?;
    other.text(flush).await?;
    Ok(payments.text(count).await?.parse::<i64>()? - before)
}
