//! What becomes of the counters when the server stops, crashes or fails over.

use std::fs;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, LIMIT, Version};
use idempotence_demo::host::run;

use super::expect::expect;
use super::preloaded::{PRELOADED, start};

/// The file that keeps the counters while the server is down.
const FILE: &str = "pg_stat/idempotence.json";

const SUMS: &str =
    "SELECT session, started, recorded, replayed FROM idempotence.stats WHERE session IS NOT NULL ORDER BY 1";

fn stop(server: &Cluster, mode: &str) -> Result<()> {
    let mut stop = server.program("pg_ctl");
    stop.args(["stop", "-w", "-t", "60", "-m", mode, "-D"]).arg(server.data_dir());
    run(&mut stop, None, LIMIT).map(drop)
}

/// Lets nobody be connected, as a smart stop waits for.
async fn let_all_go(server: &Cluster) -> Result<()> {
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    server.wait_for(DATABASE, others, "0").await
}

// Goal: counters and their beginning live through a stop in good order. After a crash they begin anew, whatever the last
// stop has saved.
// Method: both ways to stop, three ways to crash, each with new counts in between.
pub async fn counters_live_through_a_restart_and_begin_anew_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    let mut connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('work')").await?;
    connection.execute("work", "0", "1").await?;
    let since = connection.text("SELECT since FROM idempotence.stats").await?;
    for (count, mode) in (1..).zip(["fast", "smart", "fast"]) {
        drop(connection);
        let_all_go(&server).await?;
        stop(&server, mode)?;
        ensure!(server.data_dir().join(FILE).exists(), "the counters are not kept");
        server.start()?;
        ensure!(!server.data_dir().join(FILE).exists(), "the file is still there");
        connection = server.connect(DATABASE).await?;
        connection.execute("work", &count.to_string(), "1").await?;
        expect(&connection, SUMS, &format!("work|{}|{}|0", count + 1, count + 1)).await?;
        expect(&connection, "SELECT since FROM idempotence.stats", &since).await?;
    }
    for crash in ["backend", "all", "immediate"] {
        connection.replay("work", "0").await?;
        ensure!(!connection.text(SUMS).await?.is_empty());
        match crash {
            "backend" => {
                let pid = server.connect(DATABASE).await?.pid().await?;
                let victim = server.connect(DATABASE).await?;
                ensure!(server.kill9_backend(victim.pid().await?), "process {pid} is no backend");
                connection.wait_for_end().await?;
            }
            "all" => server.crash()?,
            _ => {
                stop(&server, "immediate")?;
                ensure!(!server.data_dir().join(FILE).exists(), "an immediate stop has kept counters");
                server.start()?;
            }
        }
        connection = server.reconnect(DATABASE).await?;
        expect(&connection, SUMS, "").await?;
    }
    Ok(())
}

// Goal: a file that is not ours, is broken, or is of another form keeps no server from starting. A line of the log says
// that the counters begin anew.
// Method: such files, put there while the server is down; and a directory in its place.
pub async fn a_file_that_cannot_be_read_is_ignored_with_a_line_of_the_log(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('work')").await?;
    connection.execute("work", "0", "1").await?;
    drop(connection);
    server.stop_fast()?;
    let path = server.data_dir().join(FILE);
    let good = fs::read_to_string(&path)?;
    let contents = [
        good[..good.len() / 2].to_owned(),
        good.replacen("\"form\":1", "\"form\":2", 1),
        "[]".into(),
        "\u{0}x".into(),
        String::new(),
    ];
    for content in contents {
        ensure!(content != good);
        fs::write(&path, &content)?;
        let before = server.log().len();
        server.start()?;
        let log = server.log().split_off(before);
        ensure!(log.contains("the counters of idempotence begin anew"), "{content:?} is read without a word: {log}");
        expect(&server.connect(DATABASE).await?, SUMS, "").await?;
        server.stop_fast()?;
    }
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    fs::write(path.join("within"), "")?;
    server.start()?;
    let connection = server.connect(DATABASE).await?;
    connection.execute("work", "1", "1").await?;
    expect(&connection, SUMS, "work|1|1|0").await?;
    // It cannot be written either, and the server stops all the same.
    drop(connection);
    server.stop_fast()?;
    fs::remove_dir_all(&path)?;
    server.start()?;
    Ok(())
}

// Goal: with fewer lines than were saved, what the others had counted is kept in the line for others.
// Method: 60 sessions, and a restart with room for 16.
pub async fn fewer_lines_than_were_saved_keep_the_sums(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    let sums = "SELECT sum(started), sum(recorded), count(*) <= 16 FROM idempotence.stats";
    connection
        .text(
            "SELECT idem_create_session('s' || n) FROM generate_series(1, 60) n;
             SELECT count(idem_run('s' || n, 'k', 'SELECT 1')) FROM generate_series(1, 60) n",
        )
        .await?;
    expect(&connection, sums, "60|60|f").await?;
    // The number of backends decides how much shared memory there is, and may change too.
    for setting in ["idempotence.max_stats = 16", "max_connections = 30"] {
        connection.text(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    server.restart()?;
    let connection = server.connect(DATABASE).await?;
    expect(&connection, sums, "60|60|t").await?;
    // The sixteen that were used last have a line each, but for the room that others take.
    let newest = "SELECT count(*) >= 12 FROM idempotence.stats WHERE substr(session, 2)::integer > 44";
    expect(&connection, newest, "t").await?;
    connection.text("SELECT count(idem_run('s' || n, 'l', 'SELECT 1')) FROM generate_series(1, 60) n").await?;
    expect(&connection, sums, "120|120|t").await
}

// Goal: a standby counts its replays, keeps them through its own restart, and goes on counting when it is promoted.
// Method: a standby, restarted and promoted. Its counters are its own.
pub async fn a_standby_counts_its_own_replays(version: Version) -> Result<()> {
    let settings = [PRELOADED, ("idempotence.databases", "")];
    let primary = shop::start_with(version, &settings)?;
    let connection = primary.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('work')").await?;
    connection.execute("work", "0", "1").await?;
    let standby = primary.standby()?;
    standby.catch_up_with(&primary)?;
    for _ in 0..3 {
        standby.connect(DATABASE).await?.replay("work", "0").await?;
    }
    expect(&standby.connect(DATABASE).await?, SUMS, "work|0|0|3").await?;
    expect(&connection, SUMS, "work|1|1|0").await?;
    standby.restart()?;
    expect(&standby.connect(DATABASE).await?, SUMS, "work|0|0|3").await?;
    let refused = standby.connect(DATABASE).await?.sqlstate("SELECT FROM idem_begin('work', '1')").await?;
    ensure!(refused == "25006", "a standby says {refused}");
    standby.promote()?;
    let promoted = standby.connect(DATABASE).await?;
    promoted.execute("work", "1", "1").await?;
    promoted.replay("work", "1").await?;
    expect(&promoted, SUMS, "work|1|1|4").await?;
    standby.restart()?;
    let line = standby.connect(DATABASE).await?.text(SUMS).await?;
    ensure!(line == "work|1|1|4", "after the restart of a promoted standby: {line}");
    Ok(())
}
