//! The space that client sessions take under a steady load: the space of their slots, and no more.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version, on_each_version};

on_each_version!(
    a_steady_load_leaves_tables_as_large_as_its_first_lap_did,
    a_request_costs_the_same_while_an_old_snapshot_is_held,
);

const SESSIONS: usize = 200;
const WINDOW: usize = 5;

/// A procedure with a transaction for each request of each session. Some requests have an acknowledgement.
const LAPS: &str = "
    CREATE PROCEDURE laps(sessions text[], from_number int, to_number int) LANGUAGE plpgsql AS $$
    DECLARE
      session text;
    BEGIN
      FOR number IN from_number..to_number LOOP
        FOREACH session IN ARRAY sessions LOOP
          IF (idem_begin(session, number::bigint, ack => CASE WHEN number % 5 = 0 THEN number - 5 END)).status <> 'started' THEN
            RAISE EXCEPTION 'request % of session % was not to be executed', number, session;
          END IF;
          PERFORM idem_record(session, number::bigint, jsonb_build_object('number', number, 'id', gen_random_uuid()));
          COMMIT;
        END LOOP;
      END LOOP;
    END $$";

/// The size of a table with its indexes, and the number of its updates. A hot update stays on its page.
#[derive(Debug)]
struct Space {
    table: String,
    bytes: i64,
    updates: i64,
    hot_updates: i64,
}

async fn spaces(connection: &Connection) -> Result<Vec<Space>> {
    let rows = connection
        .text(
            "SELECT relname, pg_relation_size(relid) + pg_indexes_size(relid), n_tup_upd, n_tup_hot_upd
             FROM pg_stat_user_tables
             WHERE schemaname = 'idempotence' AND relname IN ('reply', 'stream', 'session', 'session_live') ORDER BY 1",
        )
        .await?;
    rows.lines()
        .map(|row| {
            let columns: Vec<&str> = row.split('|').collect();
            let [table, bytes, updates, hot_updates] = columns[..] else { anyhow::bail!("{row}") };
            let number = |column: &str| column.parse().with_context(|| row.to_owned());
            let table = table.to_owned();
            Ok(Space { table, bytes: number(bytes)?, updates: number(updates)?, hot_updates: number(hot_updates)? })
        })
        .collect()
}

// Goal: replies, marks and signs of life are overwritten in place. The tables do not grow, however many
// requests a session sends, with the default settings of autovacuum.
// Method: 200 sessions. In the first lap they take every slot; then comes another lap, and then many more. All
// laps use one connection, so that no other transaction keeps earlier row versions. The benchmark shows what
// such versions add.
async fn a_steady_load_leaves_tables_as_large_as_its_first_lap_did(version: Version) -> Result<()> {
    let laps_more = requests(20, 50);
    let server = shop::start(version)?;
    server.psql(DATABASE, LAPS)?;
    let client = server.connect(DATABASE).await?;
    let register = format!(
        "SELECT string_agg(quote_literal((idem_register(timeout => '5 s', window_size => {WINDOW})).session), ',')
         FROM generate_series(1, {SESSIONS})"
    );
    let sessions = client.text(&register).await?;
    let run = async |from: usize, to: usize| {
        client.text(&format!("CALL laps(ARRAY[{sessions}], {from}, {to})")).await?;
        client.text("SELECT pg_stat_force_next_flush()").await
    };
    // The first acknowledgement of the second lap creates the marks.
    run(1, 2 * WINDOW).await?;
    let first = spaces(&client).await?;
    run(2 * WINDOW + 1, (2 + laps_more) * WINDOW).await?;
    let last = spaces(&client).await?;
    println!("{first:?}\n{last:?}");

    for (first, last) in first.iter().zip(&last) {
        let Space { table, bytes, .. } = last;
        // A small table may grow by a page.
        ensure!(*bytes <= first.bytes * 6 / 5 + 8192, "{table} has grown from {} to {bytes} bytes", first.bytes);
        let (updates, hot) = (last.updates - first.updates, last.hot_updates - first.hot_updates);
        let wanted = match table.as_str() {
            "reply" => SESSIONS * laps_more * WINDOW,
            "stream" => SESSIONS * laps_more,
            _ => 0,
        };
        ensure!(updates >= wanted as i64, "{updates} updates of {table} instead of {wanted}");
        ensure!(hot * 100 >= updates * 99, "of {updates} updates of {table} only {hot} were in their place");
    }
    let replies = client.text("SELECT count(*), min(first) FROM idempotence.reply").await?;
    ensure!(replies == format!("{}|{}", SESSIONS * WINDOW, (1 + laps_more) * WINDOW + 1), "there are {replies}");
    Ok(())
}

// Goal: while somebody holds an old snapshot, as pg_dump does, the earlier versions of the rows of a session
// stay. Nevertheless, a request of the session costs no more than at the beginning.
// Method: thousands of requests of a session under such a snapshot, each with an acknowledgement. The test compares
// how many pages of tables and indexes the first thousand and each other thousand requests visit, not how long
// they take.
async fn a_request_costs_the_same_while_an_old_snapshot_is_held(version: Version) -> Result<()> {
    const FIRST: usize = 1000;
    let last = requests(6_000, 20_000);
    let server = shop::start(version)?;
    server.psql(DATABASE, LAPS)?;
    let client = server.connect(DATABASE).await?;
    let dump = server.connect(DATABASE).await?;
    dump.text("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
    for ordering in ["any", "strict"] {
        let session = client.register(&format!("timeout => '20 s', ordering => '{ordering}'")).await?;
        let run = async |from: usize, to: usize| -> Result<i64> {
            let before = visits(&client).await?;
            client.text(&format!("CALL laps('{{{session}}}', {from}, {to})")).await?;
            Ok((visits(&client).await? - before) / (to + 1 - from) as i64)
        };
        let first = run(1, FIRST).await?;
        let mut most = 0;
        for before in (FIRST..last).step_by(FIRST) {
            most = most.max(run(before + 1, before + FIRST).await?);
        }
        println!("{ordering}: {first} pages a request, then {most} at most");
        ensure!(most <= first * 2, "{ordering}: from {first} pages a request to {most}");
    }
    // A page has room for less than a hundred versions.
    let pages: usize = client
        .text("SELECT pg_relation_size('idempotence.reply') / current_setting('block_size')::int")
        .await?
        .parse()?;
    ensure!(pages >= 2 * last / 100, "the former versions are gone: {pages} pages");
    dump.text("COMMIT").await?;
    Ok(())
}

/// The number of visits to pages of these tables and their indexes so far.
async fn visits(connection: &Connection) -> Result<i64> {
    let query = "SELECT pg_stat_force_next_flush()";
    connection.text(query).await?;
    let query = "
        SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_user_tables
        WHERE schemaname = 'idempotence' AND relname IN ('reply', 'stream', 'session_live')";
    Ok(connection.text(query).await?.parse()?)
}
