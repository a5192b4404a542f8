//! A backend does not keep the memory of errors that were caught.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(caught_errors_leave_no_memory_behind);

/// The statements that catch an error of PostgreSQL or pass one on: a name, the settings, the statement and its result. `#`
/// stands for a number that is different each time. A result of five characters in capitals is an SQLSTATE.
const KINDS: [(&str, &str, &str, &str); 13] = [
    ("begin", "", "SELECT status FROM idem_begin('payments', 'held', wait => '1 ms')", "in_progress"),
    ("lookup", "", "SELECT status FROM idem_lookup('payments', 'held', wait => '1 ms')", "in_progress"),
    ("claim", "", "SELECT idem_claim('payments', 'held', wait => '1 ms')", "55P03"),
    ("settle", "", "SELECT status FROM idem_settle('payments', 'held', wait => '1 ms')", "in_progress"),
    ("run", "", "SELECT status FROM idem_run('payments', 'held', 'SELECT 1', wait => '1 ms')", "55P03"),
    (
        "lock_timeout",
        "SET LOCAL lock_timeout = '1 ms'",
        "SELECT status FROM idem_begin('payments', 'held', wait => '1 min')",
        "55P03",
    ),
    (
        "statement_timeout",
        "SET LOCAL statement_timeout = '2 ms'",
        "SELECT status FROM idem_begin('payments', 'held', wait => '1 min')",
        "57014",
    ),
    ("recorded", "", "SELECT status FROM idem_run('payments', 'a#', 'SELECT 1 / 0', on_error => 'record')", "failed"),
    (
        "recorded with detail and hint",
        "",
        "SELECT status FROM idem_run('payments', 'b#', 'SELECT refuse(''AB123'')', on_error => 'record')",
        "failed",
    ),
    (
        "recorded, of a constraint",
        "",
        "SELECT status FROM idem_run('payments', 'c#', 'INSERT INTO single VALUES (1)', on_error => 'record')",
        "failed",
    ),
    (
        "raised again",
        "",
        "SELECT status FROM idem_run('payments', 'd#', 'SELECT refuse(''40001'')', on_error => 'record')",
        "40001",
    ),
    ("raised", "", "SELECT status FROM idem_run('payments', 'e#', 'SELECT 1 / 0')", "22012"),
    ("of ours", "", "SELECT idem_record('payments', 'f#')", "ID007"),
];

/// A table whose second row is refused, and a function that fails as it is told.
const SCHEMA: &str = "
    CREATE TABLE single (id int PRIMARY KEY); INSERT INTO single VALUES (1);
    CREATE FUNCTION refuse(state text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = state, DETAIL = 'a detail', HINT = 'a hint'; END $$";

/// How each statement is run: what comes before and after it.
const PER_TRANSACTION: [&str; 2] = ["BEGIN", "COMMIT"];
const PER_SAVEPOINT: [&str; 2] = ["SAVEPOINT s", "ROLLBACK TO s; RELEASE s"];

/// The bytes in use in the backend's memory contexts: those of the extension, and all.
async fn used(connection: &Connection) -> Result<[i64; 2]> {
    let used = connection
        .text(
            "SELECT coalesce(sum(used_bytes) FILTER (WHERE name LIKE 'idempotence%'), 0) || ' ' || sum(used_bytes)
             FROM pg_backend_memory_contexts",
        )
        .await?;
    let (ours, all) = used.split_once(' ').unwrap_or_default();
    Ok([ours.parse()?, all.parse()?])
}

/// Runs a kind of statement with these numbers.
async fn fail(
    connection: &Connection,
    (name, settings, statement, result): (&str, &str, &str, &str),
    [before, after]: [&str; 2],
    numbers: std::ops::Range<usize>,
) -> Result<()> {
    for number in numbers {
        let statement = statement.replace('#', &format!("{number} {name}"));
        let found = match connection.try_text(&format!("{before}; {settings}; {statement}")).await {
            Ok(text) => text,
            Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
        };
        ensure!(found.ends_with(result), "{name}: {found}");
        connection.text(after).await?;
    }
    Ok(())
}

// Goal: a backend that catches errors does not grow, however it runs them: each in a transaction, or each in a savepoint of
// one transaction.
// Method: each kind of error again and again; the memory that is in use before and after. The suite runs each 200 times, the
// long form 20 000 times.
async fn caught_errors_leave_no_memory_behind(version: Version) -> Result<()> {
    const SLACK_BYTES: i64 = 16 << 10;
    let times = requests(200, 20_000);
    let server = Cluster::start(version)?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, SCHEMA)?;
    let holder = server.connect(DATABASE).await?;
    holder.text("SELECT idem_create_session('payments')").await?;
    holder.text("BEGIN; SELECT FROM idem_begin('payments', 'held')").await?;
    let mut grown = Vec::new();
    for kind in KINDS {
        let connection = server.connect(DATABASE).await?;
        fail(&connection, kind, PER_TRANSACTION, 0..50).await?;
        let [ours, all] = used(&connection).await?;
        fail(&connection, kind, PER_TRANSACTION, 50..times).await?;
        let [ours_now, all_now] = used(&connection).await?;
        connection.text("BEGIN").await?;
        fail(&connection, kind, PER_SAVEPOINT, times..2 * times).await?;
        let [ours_in_savepoints, _] = used(&connection).await?;
        connection.text("COMMIT").await?;
        let more = [ours_now - ours, all_now - all, ours_in_savepoints - ours_now];
        if more[0] > 0 || more[1] > SLACK_BYTES || more[2] > 0 {
            grown.push(format!("{}: {more:?}", kind.0));
        }
    }
    ensure!(
        grown.is_empty(),
        "after {times} errors each, bytes [ours, all, ours in savepoints]:\n{}",
        grown.join("\n")
    );
    Ok(())
}
