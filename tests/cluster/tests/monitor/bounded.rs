//! Counters where there are more sessions than lines, sessions that are forgotten, and databases that are dropped.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio::time::{Duration, Instant};

use super::expect::expect;
use super::preloaded::{PRELOADED, start};

const CLIENTS: usize = 8;
const SESSIONS: usize = 200;
const DATABASES: usize = 10;

/// What a client has counted: started, recorded, replayed.
type Sums = [i64; 3];

const SUMS: &str =
    "SELECT coalesce(sum(started), 0), coalesce(sum(recorded), 0), coalesce(sum(replayed), 0) FROM idempotence.stats";

fn start_small(version: Version) -> Result<Cluster> {
    shop::start_with(version, &[PRELOADED, ("idempotence.databases", ""), ("idempotence.max_stats", "16")])
}

/// Uses sessions at random for a time.
async fn use_sessions(connection: &Connection, client: usize, time: Duration) -> Result<Sums> {
    let (start, mut sums, mut key) = (Instant::now(), [0; 3], 0);
    while start.elapsed() < time {
        let session = rand::random_range(0..SESSIONS);
        key += 1;
        match rand::random_range(0..4) {
            0 => {
                connection.execute(&format!("s{session}"), &format!("{client}.{key}"), "1").await?;
                connection.replay(&format!("s{session}"), &format!("{client}.{key}")).await?;
                sums = [sums[0] + 1, sums[1] + 1, sums[2] + 1];
            }
            1 => {
                // More sessions than a backend has cells for, in one transaction that is rolled back.
                let begin = format!(
                    "BEGIN; SELECT count(idem_begin('s' || (n * 7 + {session}) % {SESSIONS}, '{client}.{key}')) FROM generate_series(1, 20) n; ROLLBACK"
                );
                connection.text(&begin).await?;
                sums[0] += 20;
            }
            2 => {
                connection
                    .text(&format!("SELECT FROM idem_once_many('inbox', '{{{client}.{key},{client}.{key}}}')"))
                    .await?;
                sums = [sums[0], sums[1] + 1, sums[2] + 1];
            }
            _ => {
                let begin = format!("BEGIN; SELECT FROM idem_begin('s{session}', '{client}.{key}'); ROLLBACK");
                connection.text(&begin).await?;
                sums[0] += 1;
            }
        }
    }
    Ok(sums)
}

fn total(sums: &[Sums]) -> Sums {
    std::array::from_fn(|counter| sums.iter().map(|sums| sums[counter]).sum())
}

fn row([started, recorded, replayed]: Sums) -> String {
    format!("{started}|{recorded}|{replayed}")
}

const MAKE: &str = "
    SELECT idem_create_session('s' || n) FROM generate_series(0, 199) n; SELECT idem_create_session('inbox', inbox => true)";

// Goal: there are never more lines than the setting allows, and sums over all lines are exact and never fall.
// Method: 8 clients use 201 sessions at random, and 16 lines are allowed. Somebody reads all the time.
pub async fn sums_are_exact_where_sessions_are_many_and_lines_few(version: Version) -> Result<()> {
    let server = start_small(version)?;
    let watcher = server.connect(DATABASE).await?;
    watcher.text(MAKE).await?;
    let connections = try_join_all((0..CLIENTS).map(|_| server.connect(DATABASE))).await?;
    let finished = AtomicBool::new(false);
    let work = async {
        let clients = connections.iter().enumerate();
        let done =
            try_join_all(clients.map(|(client, connection)| use_sessions(connection, client, Duration::from_secs(2))))
                .await;
        finished.store(true, Relaxed);
        done
    };
    let watch = async {
        let (mut last, mut others) = (0, 0);
        while !finished.load(Relaxed) {
            let found = watcher
                .text("SELECT count(*), sum(started + recorded + replayed), count(*) FILTER (WHERE kind = 'other') FROM idempotence.stats")
                .await?;
            let found: Vec<i64> = found.split('|').map(|count| count.parse().unwrap_or(0)).collect();
            ensure!(found[0] <= 16, "there are {} lines", found[0]);
            ensure!(found[1] >= last, "a sum of {last} has become {}", found[1]);
            (last, others) = (found[1], others + found[2]);
        }
        ensure!(others > 0, "no line gave way");
        Ok(())
    };
    let (sums, ()) = tokio::try_join!(work, watch)?;
    expect(&watcher, SUMS, &row(total(&sums))).await?;

    // A reset takes all to 0, and what comes then is counted.
    let reset = watcher.text("SELECT idem_stats_reset()").await?;
    expect(&watcher, SUMS, "0|0|0").await?;
    expect(&watcher, &format!("SELECT count(*) FROM idempotence.stats WHERE since <> '{reset}'"), "0").await?;
    watcher.execute("s1", "after", "1").await?;
    expect(&watcher, SUMS, "1|1|0").await
}

// Goal: sessions that are used once each, however many, do not take the lines of those that are used all the time. And one
// that is used again and again gets a line, though it comes when there is no room.
// Method: 16 lines, of which 10 sessions have one. 190 others come in one statement, and then one of them many times.
pub async fn sessions_that_are_used_once_leave_the_lines_to_others(version: Version) -> Result<()> {
    let server = start_small(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text(MAKE).await?;
    let run = |sessions: &str, key: &str| {
        format!("SELECT count(idem_run('s' || n, '{key} ' || n, 'SELECT 1')) FROM generate_series({sessions}) n")
    };
    connection.text(&run("0, 9", "first")).await?;
    let with_line = |sessions: &str| {
        format!("SELECT count(*) FROM idempotence.stats WHERE substr(session, 2)::integer BETWEEN {sessions}")
    };
    expect(&connection, &with_line("0 AND 9"), "10").await?;
    let start = Instant::now();
    connection.text(&run("10, 199", "once")).await?;
    // Two lines give way in a tenth of a second, and at first one more for the line for others. Those of the first ten
    // sessions are the oldest.
    let most = 1 + 2 * (1 + start.elapsed().as_millis() / 100);
    let kept: u128 = connection.text(&with_line("0 AND 9")).await?.parse()?;
    ensure!(kept + most >= 10, "{kept} of ten lines are left, and {most} may be gone");
    expect(&connection, SUMS, "200|200|0").await?;

    // All of the time this connection counts for one session only.
    let start = Instant::now();
    let mut runs = 0;
    while connection.text(&with_line("150 AND 150")).await? == "0" {
        ensure!(start.elapsed() < Duration::from_secs(20), "the session has no line after {runs} calls");
        runs += 1;
        connection.text(&format!("SELECT idem_run('s150', 'again {runs}', 'SELECT 1')")).await?;
    }
    expect(&connection, SUMS, &row([200 + runs, 200 + runs, 0])).await
}

// Goal: each database has its own sums, exactly, where databases are almost as many as lines. The lines of a database that
// is dropped are in nobody's way, and its number in no other's counts.
// Method: 10 databases and 16 lines. First each database uses a session in turn, then a client of each uses 201 sessions.
// Then one database is dropped, and a new one made.
pub async fn databases_share_the_lines_and_keep_their_sums(version: Version) -> Result<()> {
    let server = start_small(version)?;
    server.connect(DATABASE).await?.text(MAKE).await?;
    server.wait_for("postgres", "SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop'", "0").await?;
    let names: Vec<String> = (0..DATABASES).map(|number| format!("d{number}")).collect();
    for name in &names {
        server.psql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {DATABASE}"))?;
    }
    let mut sums = vec![[0; 3]; DATABASES];
    // Each database has lines, none has one for others yet, and the oldest lines are of different databases.
    let connections = try_join_all(names.iter().map(|name| server.connect(name))).await?;
    for session in 0..3 {
        for (connection, sum) in connections.iter().zip(&mut sums) {
            connection.execute(&format!("s{session}"), "first", "1").await?;
            *sum = total(&[*sum, [1, 1, 0]]);
            expect(connection, SUMS, &row(*sum)).await?;
        }
    }
    drop(connections);
    for round in 0..2 {
        // New connections come to places where others have counted for other databases.
        let work = names.iter().enumerate().map(|(number, name)| {
            let server = &server;
            async move {
                let connection = server.connect(name).await?;
                use_sessions(&connection, round * DATABASES + number, Duration::from_millis(700)).await
            }
        });
        for (sum, more) in sums.iter_mut().zip(try_join_all(work).await?) {
            *sum = total(&[*sum, more]);
        }
    }
    for (name, sum) in names.iter().zip(&sums) {
        let connection = server.connect(name).await?;
        expect(&connection, SUMS, &row(*sum)).await.with_context(|| format!("database {name}"))?;
        expect(&connection, "SELECT count(*) <= 16 FROM idempotence.stats", "t").await?;
    }
    // What one database resets, the others keep.
    server.connect("d1").await?.text("SELECT idem_stats_reset()").await?;
    sums[1] = [0; 3];
    server.psql("postgres", "DROP DATABASE d0 WITH (FORCE)")?;
    server.psql("postgres", &format!("CREATE DATABASE fresh TEMPLATE {DATABASE}"))?;
    let fresh = server.connect("fresh").await?;
    expect(&fresh, "SELECT count(*) FROM idempotence.stats", "0").await?;
    let more = use_sessions(&fresh, 0, Duration::from_millis(300)).await?;
    expect(&fresh, SUMS, &row(more)).await?;
    for (name, sum) in names.iter().zip(&sums).skip(1) {
        expect(&server.connect(name).await?, SUMS, &row(*sum)).await.with_context(|| format!("database {name}"))?;
    }
    Ok(())
}

// Goal: what was counted for a session that is forgotten stays in the sum.
// Method: a session with a few requests is dropped and forgotten.
pub async fn what_a_forgotten_session_has_counted_stays_in_the_sum(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    let requests = "SELECT count(idem_run(name, 'k' || n, 'SELECT 1')) FROM generate_series(1, 7) n, unnest('{kept,gone}'::text[]) name";
    connection.text("SELECT idem_create_session('kept'), idem_create_session('gone')").await?;
    connection.text(requests).await?;
    let counted = "SELECT COALESCE(session, kind), started FROM idempotence.stats ORDER BY 1";
    expect(&connection, counted, "gone|7\nkept|7").await?;
    connection.text("SELECT idem_drop_session('gone')").await?;
    expect(&connection, counted, "gone|7\nkept|7").await?;
    connection.text("DELETE FROM idempotence.session WHERE name = 'gone'").await?;
    expect(&connection, counted, "kept|7\nother|7").await
}
