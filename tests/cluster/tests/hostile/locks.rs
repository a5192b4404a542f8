//! What a role locks, and what it makes of little, stops nobody else: no sweep, no dump, no server.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};

/// `bob` attacks.
const ROLES: &str = "
    CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE admin LOGIN;
    SELECT idem_grant('alice'), idem_grant('bob'), idem_grant('admin', 'admin');
    SELECT idem_create_session('orders', owner => 'alice', ttl => '300 days'), idem_create_session('own', owner => 'bob', ttl => '300 days')";

/// Starts a server and connects as alice, as bob and as the admin.
async fn start(version: Version, settings: &[(&str, &str)]) -> Result<(Cluster, [Connection; 3])> {
    let server = shop::start_with(version, settings)?;
    server.psql(DATABASE, ROLES)?;
    let connect = |role| server.connect_as(DATABASE, role);
    let connections = [connect("alice").await?, connect("bob").await?, connect("admin").await?];
    Ok((server, connections))
}

/// A client session of the caller's with a reply, closed.
const CLOSED: &str = "SELECT idem_run(session, '1', 'SELECT 1'), idem_close(session) FROM idem_register()";

/// A client session of the caller's in which a request that stopped at a checkpoint was given up.
async fn abandons(connection: &Connection) -> Result<String> {
    let session = connection.text("SELECT session FROM idem_register()").await?;
    let (begin, point) = (format!("idem_begin('{session}', 1)"), format!("idem_checkpoint('{session}', 1, 'p', '1')"));
    connection.text(&format!("BEGIN; SELECT status FROM {begin}; SELECT {point}; COMMIT")).await?;
    connection.text(&format!("SELECT idem_ack('{session}', 1)")).await?;
    Ok(session)
}

// Goal: rows that a role has locked keep the sweep from nobody else's, though they come first.
// Method: of bob and of alice a long-lived outcome, an ended client session and an abandoned checkpoint, all of which have had
// their time, bob's before hers. bob claims the one request and redacts the others in a transaction that stays open. The sweep
// looks at one row at a time.
pub async fn what_a_role_has_locked_hides_nothing_behind_it(version: Version) -> Result<()> {
    let (server, [alice, bob, admin]) = start(version, &[("idempotence.sweep_batch", "1")]).await?;
    bob.execute("own", "k", "1").await?;
    alice.execute("orders", "k", "1").await?;
    bob.text(CLOSED).await?;
    alice.text(CLOSED).await?;
    let closed = "SELECT id || '@' || node FROM idempotence.session WHERE name IS NULL AND owner = 'bob'::regrole";
    let closed = server.psql(DATABASE, closed)?;
    let (of_bob, _) = (abandons(&bob).await?, abandons(&alice).await?);
    server.psql(
        DATABASE,
        "UPDATE idempotence.outcome_long o SET expires_at = now() - CASE s.name WHEN 'own' THEN interval '2 h' ELSE '1 h' END
         FROM idempotence.session s WHERE s.id = o.session;
         UPDATE idempotence.session SET ended_at = now() - CASE owner WHEN 'bob'::regrole THEN interval '90 days' ELSE '80 days' END
         WHERE ended_at IS NOT NULL;
         UPDATE idempotence.checkpoint SET written_at = now() - interval '90 days'",
    )?;
    let mut locks = "BEGIN; SELECT FROM idem_begin('own', 'k')".to_owned();
    for session in [closed.trim(), &of_bob] {
        write!(locks, "; SELECT idem_redact('{session}', 1, reason => 'to lock it')")?;
    }
    bob.text(&locks).await?;
    admin.text("SET statement_timeout = '60s'").await?;
    admin.text("CALL idem_sweep()").await?;
    let left = "SELECT (SELECT count(*) FROM idempotence.outcome_long), (SELECT count(*) FROM idempotence.session WHERE ended_at IS NOT NULL),
                       (SELECT count(*) FROM idempotence.reply), (SELECT count(*) FROM idempotence.checkpoint)";
    let found = server.psql(DATABASE, left)?;
    ensure!(found.trim() == "1|1|1|1", "beside locked rows a sweep leaves {found}");
    bob.text("ROLLBACK").await?;
    server.psql(DATABASE, "DELETE FROM idempotence.sweep")?;
    admin.text("CALL idem_sweep()").await?;
    let found = server.psql(DATABASE, left)?;
    ensure!(found.trim() == "0|0|0|0", "a later sweep leaves {found}");
    Ok(())
}

// Goal: exports that follow each other without a pause do not keep the sweep away.
// Method: bob exports three sessions again and again, each in a connection. An export reads a hundred thousand outcomes.
pub async fn exports_without_a_pause_keep_no_sweep_away(version: Version) -> Result<()> {
    let (server, [_, bob, admin]) = start(version, &[]).await?;
    bob.text("SELECT idem_create_session(name), idem_drop_session(name) FROM unnest('{a,b,c}'::text[]) name").await?;
    server.psql(
        DATABASE,
        "INSERT INTO idempotence.outcome_0 (digest, session, key, class, recorded_by, recorded_at, expires_at)
         SELECT gen_random_uuid(), id, n, 's', owner, now(), now() + interval '1 day' FROM idempotence.session, generate_series(1, 100000) n
         WHERE name = 'orders'",
    )?;
    for session in ["a", "b", "c"] {
        let bob = server.connect_as(DATABASE, "bob").await?;
        tokio::spawn(async move {
            let export = format!("BEGIN; SELECT count(*) FROM idem_export('{session}', 'again')");
            // Until the server is stopped. While the sweep is at work, an export may be refused.
            loop {
                let _ = bob.try_text(&export).await;
                if bob.try_text("ROLLBACK").await.is_err() {
                    break;
                }
            }
        });
    }
    let shared = "SELECT count(*) > 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted";
    server.wait_for(DATABASE, shared, "t").await?;
    for turn in 0..5 {
        let done = admin.text("SELECT idempotence.sweep_step('close') IS NOT NULL").await?;
        ensure!(done == "t", "in turn {turn} the sweep finds the exports in its way");
    }
    Ok(())
}

// Goal: a response of some kilobytes makes no dump of the database fail.
// Method: numbers of 131 072 digits, as many as no text can hold; and as many as are taken.
pub async fn a_response_that_no_text_can_hold_is_refused(version: Version) -> Result<()> {
    let (server, [_, bob, _]) = start(version, &[]).await?;
    let run = |key: &str, count: usize| {
        let response = format!("(SELECT jsonb_agg('1e131071'::numeric) FROM generate_series(1, {count}))");
        format!(
            "BEGIN; SELECT FROM idem_begin('own', '{key}'); SELECT idem_record('own', '{key}', {response}) IS NOT NULL; COMMIT"
        )
    };
    let refused = bob.error(&run("many", 9000)).await?;
    ensure!(refused.code().code() == "22023" && refused.message().contains("too long as text"), "{refused}");
    bob.text("ROLLBACK").await?;
    bob.text(&run("few", 1000)).await?;
    let dump = server.psql(DATABASE, "COPY idempotence.outcome_long TO STDOUT")?;
    ensure!(dump.len() > 131_000_000, "the dump has {} bytes", dump.len());
    Ok(())
}

// Goal: an error of the server's while requests are looked for by a prefix ends the transaction, and nothing else.
// Method: SERIALIZABLE transactions that have read what the other has written. One has committed, so that the other one cannot go
// on with what it reads next.
pub async fn a_search_by_prefix_that_must_fail_only_fails(version: Version) -> Result<()> {
    let (server, [_, bob, admin]) = start(version, &[]).await?;
    server.psql(DATABASE, "CREATE TABLE seen AS SELECT 1 AS a; GRANT ALL ON seen TO PUBLIC")?;
    bob.execute("own", "prefix 1", "1").await?;
    bob.text("SELECT FROM idem_begin('own', 'prefix 2', lease => '1 hour')").await?;
    for search in [
        "idem_redact_prefix('own', 'prefix', reason => 'a test')",
        "idem_forget_prefix('own', 'prefix', reason => 'a test')",
        "idem_force_release_prefix('own', 'prefix', reason => 'a test')",
    ] {
        admin.text("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM seen").await?;
        bob.text("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM seen").await?;
        admin.text("INSERT INTO seen VALUES (2)").await?;
        bob.text("INSERT INTO seen VALUES (3); COMMIT").await?;
        let state = admin.sqlstate(&format!("SELECT {search}")).await?;
        ensure!(state == "40001", "{search}: {state}");
        admin.text("ROLLBACK").await?;
    }
    Ok(())
}

// Goal: no role keeps a table of ours from being altered by a column of its row type.
// Method: such a column of each table.
pub async fn nobody_else_uses_the_row_types(version: Version) -> Result<()> {
    let (server, [_, bob, _]) = start(version, &[]).await?;
    let tables = "SELECT relname FROM pg_class WHERE relnamespace = 'idempotence'::regnamespace AND relkind = 'r'";
    let tables = server.psql(DATABASE, tables)?;
    ensure!(tables.lines().count() > 10, "{tables}");
    for table in tables.lines() {
        let state = bob.sqlstate(&format!("CREATE TEMP TABLE held (y idempotence.{table})")).await?;
        ensure!(state == "42501", "{table}: {state}");
    }
    Ok(())
}
