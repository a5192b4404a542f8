//! What the view `in_flight` shows at its limits: little room, long names, prepared transactions, crashes, other roles.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};

use super::expect::expect;
use super::preloaded::{PRELOADED, start};

const ROWS: &str =
    "SELECT session, stream, request, state, prepared, requests FROM idempotence.in_flight ORDER BY 3, 5";

// Goal: where the names of a transaction find no room, a row without names tells how many there are, also after a rollback
// to a savepoint. Where they do, names are whole, however long.
// Method: a server with little room, and one with the default; names of four-byte letters, as long as names may be.
pub async fn requests_without_room_are_counted_and_long_names_are_whole(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[PRELOADED, ("idempotence.track_in_flight", "512B")])?;
    let [holder, watcher] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    holder.text("SELECT idem_create_session('work')").await?;
    let counts = "SELECT count(*) FILTER (WHERE session IS NOT NULL) BETWEEN 5 AND 15, sum(requests),
                         count(*) FILTER (WHERE session IS NULL AND state IS NULL AND pid IS NOT NULL) FROM idempotence.in_flight";
    let begin =
        |from: i32, to: i32| format!("SELECT count(idem_begin('work', 'k' || n)) FROM generate_series({from}, {to}) n");
    holder.text(&format!("BEGIN; {}; SAVEPOINT s; {}", begin(1, 30), begin(31, 50))).await?;
    expect(&watcher, counts, "t|50|1").await?;
    holder.text("ROLLBACK TO s").await?;
    expect(&watcher, counts, "t|30|1").await?;
    holder.text("ROLLBACK; BEGIN").await?;
    let long = "🔑".repeat(255);
    // A name that finds no room leaves it to a shorter one.
    holder.text(&format!("SELECT FROM idem_begin('work', '{long}'); SELECT FROM idem_begin('work', 'short')")).await?;
    expect(&watcher, ROWS, "work||short|begun||1\n|||||1").await?;
    holder
        .text(
            "SELECT idem_release('work', 'short'); SELECT FROM idem_record('work', '{long}')"
                .replace("{long}", &long)
                .as_str(),
        )
        .await?;
    expect(&watcher, ROWS, "work||short|released||1\n|||||1").await?;
    holder.text("PREPARE TRANSACTION 'half'").await?;
    // What has no name shows by its lock.
    expect(&watcher, ROWS, "work||short|released|half|1\n||||half|1").await?;
    holder.text("ROLLBACK PREPARED 'half'").await?;
    expect(&watcher, ROWS, "").await?;

    let server = start(version)?;
    let [holder, watcher] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    let name = "钥".repeat(255);
    holder.text(&format!("SELECT idem_create_session('{name}')")).await?;
    holder.text(&format!("BEGIN; SELECT FROM idem_begin('{name}', '{long}')")).await?;
    expect(&watcher, ROWS, &format!("{name}||{long}|begun||1")).await
}

// Goal: where `track_in_flight` is 0, each transaction shows how many requests it holds, and nothing breaks.
// Method: rollbacks to savepoints, and a prepared transaction.
pub async fn without_any_room_requests_are_counted(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[PRELOADED, ("idempotence.track_in_flight", "0")])?;
    let [holder, watcher] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    holder.text("SELECT idem_create_session('work')").await?;
    holder
        .text(
            "BEGIN; SELECT FROM idem_begin('work', 'a'); SAVEPOINT s; SELECT FROM idem_begin('work', 'b');
             SELECT FROM idem_record('work', 'b'); SELECT FROM idem_begin('work', 'c')",
        )
        .await?;
    expect(&watcher, ROWS, "|||||3").await?;
    holder.text("ROLLBACK TO s; SELECT FROM idem_record('work', 'a')").await?;
    expect(&watcher, ROWS, "|||||1").await?;
    holder.text("PREPARE TRANSACTION 'p'").await?;
    expect(&watcher, ROWS, "||||p|1").await?;
    holder.text("COMMIT PREPARED 'p'").await?;
    expect(&watcher, ROWS, "").await
}

async fn prepare(connection: &Connection, keys: &[&str], gid: &str) -> Result<String> {
    let record =
        |key: &&str| format!("SELECT FROM idem_begin('work', '{key}'); SELECT FROM idem_record('work', '{key}');");
    let steps: String = keys.iter().map(record).collect();
    connection.outcome_of(&format!("BEGIN; {steps} PREPARE TRANSACTION '{gid}'")).await
}

// Goal: a prepared transaction shows its requests by name, once each; after a restart by its gid alone, and only to monitors.
// A PREPARE TRANSACTION that failed leaves nothing that would show.
// Method: a gid that is taken; a request that a transaction holds which tried to prepare it; a restart.
pub async fn prepared_transactions_show_by_name_and_after_a_restart_by_gid(version: Version) -> Result<()> {
    let server = start(version)?;
    let mut watcher = server.connect(DATABASE).await?;
    let [one, two] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    watcher
        .text("CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('work', usable_by => 'app')")
        .await?;
    ensure!(prepare(&one, &["first"], "taken").await? == "");
    ensure!(prepare(&one, &["a", "b"], "taken").await? == "42710");
    expect(&watcher, ROWS, "work||first|recorded|taken|1").await?;
    // One of its requests is somebody's, and the other one is prepared.
    two.text("BEGIN; SELECT FROM idem_begin('work', 'a')").await?;
    ensure!(prepare(&one, &["b"], "good").await? == "");
    let shown = "work||a|begun||1\nwork||b|recorded|good|1\nwork||first|recorded|taken|1";
    expect(&watcher, ROWS, shown).await?;
    two.text("ROLLBACK").await?;
    ensure!(prepare(&two, &["a"], "other").await? == "");
    let shown = "work||a|recorded|other|1\nwork||b|recorded|good|1\nwork||first|recorded|taken|1";
    expect(&watcher, ROWS, shown).await?;
    expect(&server.connect_as(DATABASE, "app").await?, ROWS, shown).await?;
    one.text("COMMIT PREPARED 'other'").await?;
    // Slots of prepared transactions that have ended are free again.
    for round in 0..30 {
        let gid = format!("round {round}");
        ensure!(prepare(&one, &[&gid], &gid).await? == "");
        let shown = format!("work||b|recorded|good|1\nwork||first|recorded|taken|1\nwork||{gid}|recorded|{gid}|1");
        expect(&watcher, ROWS, &shown).await?;
        one.text(&format!("COMMIT PREPARED '{gid}'")).await?;
    }
    server.restart()?;
    watcher = server.connect(DATABASE).await?;
    expect(&watcher, ROWS, "||||good|1\n||||taken|1").await?;
    expect(&watcher, "SELECT role, since IS NOT NULL, pid FROM idempotence.in_flight", "postgres|t|\npostgres|t|")
        .await?;
    expect(&server.connect_as(DATABASE, "app").await?, ROWS, "").await?;
    watcher.text("COMMIT PREPARED 'good'").await?;
    watcher.text("ROLLBACK PREPARED 'taken'").await?;
    expect(&watcher, ROWS, "").await
}

async fn hold(server: &Cluster, database: &str, key: &str) -> Result<Connection> {
    let holder = server.connect(database).await?;
    holder.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
    Ok(holder)
}

// Goal: after a crash nothing is in flight that is not, and requests of other databases are not shown.
// Method: a backend that is killed, which restarts all others, and a crash of the whole server.
pub async fn a_crash_leaves_no_request_in_flight(version: Version) -> Result<()> {
    let server = start(version)?;
    server.create_database("other")?;
    for database in [DATABASE, "other"] {
        server.connect(database).await?.text("SELECT idem_create_session('work')").await?;
    }
    for round in 0..3 {
        let held = [hold(&server, DATABASE, "here").await?, hold(&server, "other", "there").await?];
        expect(&server.connect(DATABASE).await?, ROWS, "work||here|begun||1").await?;
        expect(&server.connect("other").await?, ROWS, "work||there|begun||1").await?;
        match round {
            0 => {
                let pid = held[0].pid().await?;
                ensure!(server.kill9_backend(pid));
                held[1].wait_for_end().await?;
            }
            1 => server.crash()?,
            _ => drop(held),
        }
        let again = server.reconnect(DATABASE).await?;
        server.wait_for(DATABASE, "SELECT count(*) FROM idempotence.in_flight", "0").await?;
        expect(&again, ROWS, "").await?;
    }
    Ok(())
}

// Goal: a role sees the requests of sessions that it may use, a monitor all. The role that is shown is the one that was
// current at the begin.
// Method: SET ROLE, and roles of each kind.
pub async fn a_role_sees_the_requests_of_its_sessions(version: Version) -> Result<()> {
    let server = start(version)?;
    let superuser = server.connect(DATABASE).await?;
    superuser
        .text(
            "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE watcher LOGIN; CREATE ROLE nobody LOGIN;
             SELECT idem_grant('app'), idem_grant('other'), idem_grant('watcher', 'monitor');
             SELECT idem_create_session('mine', owner => 'app'), idem_create_session('theirs', owner => 'other')",
        )
        .await?;
    let holder = server.connect(DATABASE).await?;
    let begin = |session: &str| format!("SELECT FROM idem_begin('{session}', 'k')");
    holder
        .text(&format!("BEGIN; SET LOCAL ROLE app; {}; SET LOCAL ROLE other; {}", begin("mine"), begin("theirs")))
        .await?;
    let seen = "SELECT session, role FROM idempotence.in_flight ORDER BY 1";
    for (role, wanted) in [
        ("app", "mine|app"),
        ("other", "theirs|other"),
        ("watcher", "mine|app\ntheirs|other"),
        ("postgres", "mine|app\ntheirs|other"),
    ] {
        expect(&server.connect_as(DATABASE, role).await?, seen, wanted).await?;
    }
    let refused = server.connect_as(DATABASE, "nobody").await?.sqlstate(seen).await?;
    ensure!(refused == "42501", "a role without a level is told {refused}");
    Ok(())
}
