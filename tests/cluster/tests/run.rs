//! `idem_run`: errors as a client gets them, and what a backend keeps of the commands that it has executed.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use tokio::time::sleep;
use tokio_postgres::error::DbError;

on_each_version!(
    errors_reach_the_client_as_they_are,
    memory_is_bounded_whatever_comes,
    a_plan_sees_what_other_connections_change,
    a_backend_that_ends_while_it_looks_at_a_plan_leaves_no_lock,
);

fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, "SELECT idem_create_session('payments')")?;
    Ok(server)
}

/// Commands that fail, each another way.
const FAILING: [&str; 13] = [
    "SELECT 1 / 0",
    "SELECT 'x'::integer",
    "SELEC 1",
    "SELECT 1 +",
    "SELECT nothing FROM account",
    "SELECT nothing(1)",
    "INSERT INTO account VALUES (1)",
    "INSERT INTO account VALUES (NULL)",
    "INSERT INTO account VALUES (-1)",
    "SELECT refuse('AB123')",
    "SELECT refuse('42501')",
    "DO $do$ BEGIN PERFORM refuse('P0004'); END $do$",
    "INSERT INTO account VALUES (2); SELECT refuse('40001')",
];

const SCHEMA: &str = "
    CREATE TABLE account (id integer CONSTRAINT account_is_named PRIMARY KEY CONSTRAINT account_is_positive CHECK (id > 0));
    INSERT INTO account VALUES (1);
    CREATE FUNCTION refuse(state text) RETURNS integer LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'refused with %', state USING ERRCODE = state, DETAIL = 'a detail', HINT = 'a hint',
        COLUMN = 'a column', CONSTRAINT = 'a constraint', DATATYPE = 'a type', TABLE = 'a table', SCHEMA = 'a schema';
    END $$;
    CREATE FUNCTION by_execute(command text, args jsonb) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
      EXECUTE command USING args;
    END $$";

/// All fields of an error, and its CONTEXT without the lines of what has executed the command.
fn fields(error: &DbError) -> (String, String) {
    let told = format!(
        "{:?} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        error.parsed_severity(),
        error.code().code(),
        error.message(),
        error.detail(),
        error.hint(),
        error.position(),
        error.schema(),
        error.table(),
        error.column(),
        error.datatype(),
        error.constraint(),
        error.file(),
        error.line(),
        error.routine(),
    );
    let context = error.where_().unwrap_or_default();
    let users: Vec<&str> =
        context.lines().filter(|line| !line.contains("by_execute") && !line.starts_with("request \"")).collect();
    (told, users.join("\n"))
}

// Goal: an error of a command reaches the client with every field as it was raised, down to the place in the server's
// source: as from PL/pgSQL's EXECUTE, and with no line in CONTEXT but the user's own.
// Method: each command fails by EXECUTE, with on_error => 'raise', and with 'record' where that raises it again.
async fn errors_reach_the_client_as_they_are(version: Version) -> Result<()> {
    let server = start(version)?;
    server.psql(DATABASE, SCHEMA)?;
    let connection = server.connect(DATABASE).await?;
    let mut raised_again = 0;
    for (place, command) in FAILING.iter().enumerate() {
        let by_hand = fields(&connection.error(&format!("SELECT by_execute($x${command}$x$, NULL)")).await?);
        for on_error in ["raise", "record"] {
            let call = format!(
                "SELECT status FROM idem_run('payments', '{on_error} {place}', $x${command}$x$, on_error => '{on_error}')"
            );
            match connection.try_text(&call).await {
                Ok(status) => ensure!(on_error == "record" && status == "failed", "{call}: {status}"),
                Err(error) => {
                    let found = fields(error.as_db_error().context("not an error of the server")?);
                    ensure!(found == by_hand, "{call}\nby hand {by_hand:?}\nfound   {found:?}");
                    raised_again += usize::from(on_error == "record");
                }
            }
        }
    }
    ensure!(raised_again == 7, "{raised_again} errors were raised again");
    Ok(())
}

/// The bytes in the backend's memory contexts, and those that the process has in memory.
async fn memory(connection: &Connection) -> Result<(i64, i64)> {
    let contexts = connection.text("SELECT sum(total_bytes) FROM pg_backend_memory_contexts").await?.parse()?;
    let status = fs::read_to_string(format!("/proc/{}/status", connection.pid().await?))?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kb: i64 = anonymous.trim().trim_end_matches(" kB").parse()?;
    Ok((contexts, kb * 1024))
}

// Goal: a backend that executes other commands all the time does not grow, nor does one whose commands fail.
// Method: 10 000 commands, each with another text, some of them failing in each way; the memory after the first 1000 of
// them and after all.
async fn memory_is_bounded_whatever_comes(version: Version) -> Result<()> {
    let server = start(version)?;
    server.psql(DATABASE, SCHEMA)?;
    let connection = server.connect(DATABASE).await?;
    let work = |from: usize, to: usize| {
        format!(
            "DO $do$
             DECLARE
               command text;
             BEGIN
               FOR n IN {from}..{to} LOOP
                 command := format(CASE n % 5 WHEN 0 THEN 'SELECT 1 / (id - 1) + %s FROM account'
                                              WHEN 1 THEN 'SELECT refuse(''42501'') + %s'
                                              WHEN 2 THEN 'SELECT refuse(''AB123'') + %s'
                                              WHEN 3 THEN 'DO $$ BEGIN PERFORM %s; END $$'
                                              ELSE 'SELECT id, ''x%s'' FROM account' END, n);
                 BEGIN
                   PERFORM idem_run('payments', 'k' || n, command, on_error => CASE WHEN n % 2 = 0 THEN 'raise' ELSE 'record' END);
                 EXCEPTION WHEN division_by_zero OR insufficient_privilege OR SQLSTATE 'AB123' THEN
                   NULL;
                 END;
                 IF n % 20 = 0 THEN
                   COMMIT;
                 END IF;
               END LOOP;
             END $do$"
        )
    };
    connection.text(&work(1, 1_000)).await?;
    let before = memory(&connection).await?;
    connection.text(&work(1_001, 11_000)).await?;
    let after = memory(&connection).await?;
    println!("memory contexts {} -> {}, process {} -> {}", before.0, after.0, before.1, after.1);
    ensure!(after.0 < before.0 + (1 << 20), "memory contexts: {} -> {}", before.0, after.0);
    ensure!(after.1 < before.1 + (4 << 20), "process: {} -> {}", before.1, after.1);
    let kept = "SELECT count(*) FROM pg_backend_memory_contexts
                WHERE name = 'CachedPlanSource' AND ident ~ '^SELECT (id, .x|refuse|1 / \\(id)'";
    let kept: i64 = connection.text(kept).await?.parse()?;
    ensure!((1..=64).contains(&kept), "{kept} plans are kept");
    Ok(())
}

// Goal: a kept plan sees what another connection has changed: a table, its rows, a right.
// Method: one connection executes the same command again and again; another one changes what it depends on.
async fn a_plan_sees_what_other_connections_change(version: Version) -> Result<()> {
    let server = start(version)?;
    let admin = server.connect(DATABASE).await?;
    admin
        .text(
            "CREATE ROLE caller LOGIN; SELECT idem_grant('caller'); CREATE TABLE price (of text, amount text);
             INSERT INTO price VALUES ('tea', '3'); GRANT SELECT, UPDATE ON price TO caller;
             SELECT idem_create_session('calls', owner => 'caller')",
        )
        .await?;
    let caller = server.connect_as(DATABASE, "caller").await?;
    let mut calls = 0;
    let mut call = async |command: &str| {
        calls += 1;
        let call = format!("SELECT response FROM idem_run('calls', 'k{calls}', $x${command}$x$)");
        match caller.try_text(&call).await {
            Ok(response) => Ok(response),
            Err(error) => error.code().map(|code| code.code().to_owned()).context("not an error of the server"),
        }
    };
    let ask = "SELECT amount FROM price WHERE of = 'tea'";
    let set = "UPDATE price SET amount = 'now' WHERE of = 'clock' RETURNING amount::timestamptz = now()";
    for _ in 0..8 {
        ensure!(call(ask).await? == r#""3""#);
        ensure!(call(set).await?.is_empty());
    }
    admin.text("UPDATE price SET amount = '4'").await?;
    ensure!(call(ask).await? == r#""4""#);
    admin.text("ALTER TABLE price ALTER amount TYPE integer USING amount::integer").await?;
    ensure!(call(ask).await? == "4");
    admin.text("REVOKE SELECT ON price FROM caller").await?;
    ensure!(call(ask).await? == "42501");
    admin.text("GRANT SELECT ON price TO caller; ALTER TABLE price RENAME TO prices").await?;
    ensure!(call(ask).await? == "42P01");
    admin
        .text(
            "CREATE VIEW price AS SELECT of, amount * 2 AS amount FROM prices;
             GRANT SELECT ON price TO caller",
        )
        .await?;
    ensure!(call(ask).await? == "8");
    // A column becomes a moment: what the literal means must not be kept from here on.
    admin
        .text(
            "DROP VIEW price; CREATE TABLE price (of text, amount timestamptz);
             INSERT INTO price VALUES ('clock', 'epoch'); GRANT SELECT, UPDATE ON price TO caller",
        )
        .await?;
    for _ in 0..3 {
        ensure!(call(set).await? == "true");
    }
    Ok(())
}

// Goal: a backend that is terminated while it looks at a kept plan ends in order, and leaves no lock.
// Method: a function that a kept command calls has changed, and another transaction has the catalog of functions locked.
async fn a_backend_that_ends_while_it_looks_at_a_plan_leaves_no_lock(version: Version) -> Result<()> {
    let server = start(version)?;
    let admin = server.connect(DATABASE).await?;
    admin
        .text(
            "CREATE TABLE work (n integer);
             CREATE FUNCTION f(n integer) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RETURN n; END $$",
        )
        .await?;
    let caller = server.connect(DATABASE).await?;
    let pid = caller.pid().await?;
    let run = |key: &str| format!("SELECT response FROM idem_run('payments', '{key}', 'SELECT f(1)')");
    for key in ["a", "b", "c"] {
        caller.text(&run(key)).await?;
    }
    admin.text("ALTER FUNCTION f(integer) COST 7").await?;
    caller.text(&run("d")).await?;
    caller.text("BEGIN; INSERT INTO work VALUES (1)").await?;
    admin.text("ALTER FUNCTION f(integer) COST 8").await?;
    admin.text("BEGIN; LOCK TABLE pg_proc IN ACCESS EXCLUSIVE MODE").await?;
    let ended = async {
        ensure!(caller.try_text(&run("e")).await.is_err(), "the call has an answer");
        Ok(())
    };
    let meanwhile = async {
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        while admin.text(&waits).await? != "1" {
            sleep(Duration::from_millis(10)).await;
        }
        admin.text(&format!("SELECT pg_terminate_backend({pid}); ROLLBACK")).await
    };
    tokio::try_join!(ended, meanwhile)?;
    server.wait_for(DATABASE, &format!("SELECT count(*) FROM pg_locks WHERE pid = {pid}"), "0").await?;
    admin.text("SET lock_timeout = '5s'; BEGIN; LOCK TABLE work; COMMIT").await?;
    ensure!(admin.text(&run("e")).await? == "1");
    let log = server.log();
    ensure!(!log.contains("already borrowed") && !log.contains("panicked"), "the backend has panicked");
    Ok(())
}
