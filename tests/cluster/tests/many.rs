//! Many requests in one transaction, and the lock table that ends it.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version, on_each_version};
use tokio_postgres::error::DbError;

on_each_version!(
    a_transaction_of_more_requests_than_the_lock_table_is_refused,
    numbers_that_share_a_lock_count_once,
    a_full_lock_table_names_the_request,
);

/// Starts a server that has room for about 300 locks.
fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start_with(
        version,
        &[
            ("max_locks_per_transaction", "10"),
            ("max_connections", "10"),
            ("max_worker_processes", "2"),
            ("max_wal_senders", "0"),
        ],
    )?;
    server.create_database(DATABASE)?;
    server.psql(DATABASE, "SELECT idem_create_session('payments')")?;
    Ok(server)
}

/// Begins requests until one is refused.
const BEGIN_MANY: &str = "DO $$
    DECLARE
      begun int := 0;
    BEGIN
      LOOP
        PERFORM idem_begin('payments', 'many-' || begun);
        PERFORM idem_record('payments', 'many-' || begun);
        begun := begun + 1;
      END LOOP;
    END $$";

// Goal: a transaction that begins more requests than its share of the lock table has places is refused with a clear error,
// and keeps nobody else from working. The share is a superuser's to choose.
// Method: a transaction begins requests without an end, with the share as it is and with others. Others connect and work
// beside it.
async fn a_transaction_of_more_requests_than_the_lock_table_is_refused(version: Version) -> Result<()> {
    let server = start(version)?;
    let (many, other) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    let error = many.error(BEGIN_MANY).await?;
    ensure!(error.code().code() == "ID009", "{error:?}");
    ensure!(error.message().contains("request \"many-"), "the message names no request: {error:?}");
    let places: u64 = other.text("SELECT idempotence.lock_table_size()").await?.parse()?;
    let (found, limit) = counts(&error)?;
    ensure!(found == limit + 1 && limit == places / 4, "{places} places: {error:?}");
    ensure!(error.hint().is_some_and(|hint| hint.contains("max_locks_per_transaction")), "{error:?}");
    many.text("SET idempotence.max_lock_share = 50").await?;
    let (_, limit) = counts(&many.error(BEGIN_MANY).await?)?;
    ensure!(limit == places / 2, "{limit} of {places} places");

    other.text("CREATE ROLE caller LOGIN; SELECT idem_grant('caller'); SELECT idem_create_session('calls', owner => 'caller')").await?;
    let caller = server.connect_as(DATABASE, "caller").await?;
    // That loads the library.
    ensure!(caller.lookup("calls", "k").await? == "unknown");
    ensure!(caller.sqlstate("SET idempotence.max_lock_share = 50").await? == "42501");
    caller.text("BEGIN").await?;
    let begin = |n: u64| format!("SELECT FROM idem_begin('calls', 'many-{n}')");
    for n in 0..places / 4 {
        caller.text(&begin(n)).await?;
    }
    let late = server.connect(DATABASE).await?;
    late.execute("payments", "late", "1").await?;
    ensure!(caller.sqlstate(&begin(places / 4)).await? == "ID009");

    ensure!(other.text("SELECT count(*) FROM idempotence.outcomes").await? == "1");
    other.execute("payments", "many-1", "1").await?;
    many.execute("payments", "many-2", "2").await
}

/// The two numbers of "Found 301; the limit is 300, …".
fn counts(error: &DbError) -> Result<(u64, u64)> {
    let detail = error.detail().context("no detail")?;
    let numbers: Vec<u64> = detail.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    ensure!(numbers.len() == 2, "{detail}");
    Ok((numbers[0], numbers[1]))
}

// Goal: the numbers of a slot or of a strict stream share a lock, so that a transaction may have any number
// of them.
// Method: a thousand numbers, one after the other, on a server that has no room for a thousand locks.
async fn numbers_that_share_a_lock_count_once(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    for ordering in ["any", "strict"] {
        let session = connection.text(&format!("SELECT session FROM idem_register(ordering => '{ordering}')")).await?;
        let numbers = format!(
            "DO $$ BEGIN FOR n IN 1..1000 LOOP
               PERFORM idem_begin('{session}', n); PERFORM idem_record('{session}', n, to_jsonb(n));
             END LOOP; END $$"
        );
        connection.text(&numbers).await?;
        let last = format!("SELECT last_number FROM idem_position('{session}')");
        ensure!(connection.text(&last).await? == "1000");
    }
    Ok(())
}

// Goal: if others have filled the lock table, PostgreSQL's own error names the request that it ended.
// Method: another connection takes every lock that there is.
async fn a_full_lock_table_names_the_request(version: Version) -> Result<()> {
    let server = start(version)?;
    let (greedy, other) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    other.execute("payments", "warm", "1").await?;
    greedy
        .text(
            "DO $$
             DECLARE n bigint := 0;
             BEGIN
               LOOP
                 PERFORM pg_advisory_lock(n);
                 n := n + 1;
               END LOOP;
             EXCEPTION WHEN out_of_memory THEN NULL;
             END $$",
        )
        .await?;
    let error = other.error("SELECT FROM idem_begin('payments', 'unlucky')").await?;
    ensure!(error.code().code() == "53200", "{error:?}");
    ensure!(error.detail().is_some_and(|detail| detail.contains("request \"unlucky\"")), "{error:?}");
    ensure!(error.hint().is_some_and(|hint| hint.contains("max_locks_per_transaction")), "{error:?}");
    greedy.text("SELECT pg_advisory_unlock_all()").await?;
    other.execute("payments", "unlucky", "2").await
}
