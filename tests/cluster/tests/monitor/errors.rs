//! The view `errors`, and what needs the library preloaded.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version};

use super::expect::expect;
use super::preloaded::{PRELOADED, start};

const ROWS: &str = "SELECT session, stream, request, role, sqlstate, application FROM idempotence.errors";

/// What must be seen nowhere but in the statement.
const SECRET: &str = "s3cret-of-the-payload";

async fn refused(connection: &Connection, sql: &str, wanted: &str) -> Result<()> {
    let state = connection.sqlstate(sql).await?;
    ensure!(state == wanted, "{sql}\nis refused with {state} and not {wanted}");
    Ok(())
}

// Goal: each error of class ID is noted once, the newest first, with its names, its SQLSTATE and its role, whether the
// caller catches it or not; never with a payload. A role sees those of its sessions and its own, a monitor all.
// Method: an error of each kind, some caught, by roles of each kind; and one in another database.
pub async fn errors_show_who_was_refused_what(version: Version) -> Result<()> {
    let server = start(version)?;
    server.create_database("other")?;
    let superuser = server.connect(DATABASE).await?;
    superuser
        .text(
            "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE watcher LOGIN;
             SELECT idem_grant('app'), idem_grant('other'), idem_grant('watcher', 'monitor');
             SELECT idem_create_session('mine', owner => 'app'), idem_create_session('theirs', owner => 'other')",
        )
        .await?;
    let elsewhere = server.connect("other").await?;
    elsewhere.text("SELECT idem_create_session('far')").await?;
    refused(&elsewhere, "SELECT idem_record('far', 'k')", "ID007").await?;

    let app = server.connect_as(DATABASE, "app").await?;
    app.text("SET application_name = 'Kasse 7'").await?;
    let begin = |payload: i32| format!("SELECT FROM idem_begin('mine', 'k', payload => '[\"{SECRET}\", {payload}]')");
    app.text(&format!("BEGIN; {}; SELECT idem_record('mine', 'k', '\"{SECRET}\"'); COMMIT", begin(1))).await?;
    refused(&app, &begin(2), "ID001").await?;
    refused(&app, "SELECT idem_claim('mine', 'k')", "ID011").await?;
    app.text("DO $$ BEGIN PERFORM idem_record('mine', 'not begun'); EXCEPTION WHEN SQLSTATE 'ID007' THEN NULL; END $$")
        .await?;
    // An error that idem_run passes on was raised once.
    refused(&app, &format!("SELECT idem_run('mine', 'k', 'SELECT 1', '[\"{SECRET}\"]')"), "ID001").await?;
    refused(&app, "BEGIN; SELECT FROM idem_begin('mine', 'lost'); COMMIT", "ID008").await?;
    let session = app.register("'shop', window_size => 2").await?;
    refused(&app, &format!("SELECT FROM idem_begin('{session}', 9, stream => 'поток')"), "ID006").await?;
    // A warning in the place of the error is none.
    let warned = "BEGIN; SET LOCAL idempotence.unrecorded = warning; SELECT FROM idem_begin('mine', 'lost'); COMMIT";
    superuser.text(warned).await?;
    let other = server.connect_as(DATABASE, "other").await?;
    refused(&other, "SELECT idem_record('theirs', 'x')", "ID007").await?;
    // What is not of class ID is not in the view.
    refused(&other, "SELECT FROM idem_begin('mine', 'x')", "42501").await?;
    superuser.text("SET ROLE app").await?;
    refused(&superuser, "SELECT idem_release('mine', 'of a superuser')", "ID007").await?;
    superuser.text("RESET ROLE").await?;

    let mine = format!(
        "mine||of a superuser|app|ID007|\n{session}|поток|9|app|ID006|Kasse 7\nmine||lost|app|ID008|Kasse 7\n\
         mine||k|app|ID001|Kasse 7\nmine||not begun|app|ID007|Kasse 7\nmine||k|app|ID011|Kasse 7\nmine||k|app|ID001|Kasse 7"
    );
    let theirs = "theirs||x|other|ID007|";
    let (first, rest) = mine.split_once('\n').unwrap_or_default();
    let all = format!("{first}\n{theirs}\n{rest}");
    expect(&superuser, ROWS, &all).await?;
    expect(&server.connect_as(DATABASE, "watcher").await?, ROWS, &all).await?;
    expect(&app, ROWS, &mine).await?;
    expect(&other, ROWS, theirs).await?;
    expect(&elsewhere, ROWS, "far||k|postgres|ID007|").await?;
    let whole = superuser.text("SELECT e::text FROM idempotence.errors e").await?;
    ensure!(!whole.contains(SECRET), "the view shows a payload");
    let order = "SELECT every(at >= next) FROM (SELECT at, lead(at, 1, at) OVER () AS next FROM idempotence.errors) e";
    expect(&superuser, order, "t").await?;

    // Each is counted in its database, also those whose session nobody knows. A reset takes the counts back.
    refused(&app, "SELECT FROM idem_begin('01a1fe1a-7f9a-7683-bc4b-e332bd6a0bea', 1)", "ID004").await?;
    refused(&app, "SELECT FROM idem_begin('01a1fe1a-7f9a-7683-bc4b-e332bd6a0bea@paris', 1)", "ID012").await?;
    let counts = "SELECT sqlstate, errors FROM idempotence.error_counts() WHERE errors > 0";
    let counted = "ID001|2\nID004|1\nID006|1\nID007|3\nID008|1\nID011|1\nID012|1";
    expect(&server.connect_as(DATABASE, "watcher").await?, counts, counted).await?;
    expect(&elsewhere, counts, "ID007|1").await?;
    refused(&app, counts, "42501").await?;
    expect(&superuser, "SELECT count(*) FROM idempotence.error_counts()", "12").await?;
    expect(&elsewhere, "SELECT kind FROM idempotence.stats", "").await?;
    drop((superuser, app, other, elsewhere));
    server.stop_fast()?;
    server.start()?;
    let superuser = server.connect(DATABASE).await?;
    expect(&superuser, counts, counted).await?;
    superuser.text("SELECT idem_stats_reset()").await?;
    expect(&superuser, counts, "").await?;
    expect(&server.connect("other").await?, counts, "ID007|1").await
}

// Goal: the newest errors are kept, as many as the setting says, of all databases together; 0 keeps none. Where errors of
// several kinds come, none takes all the room.
// Method: more errors than that from two connections in turn.
pub async fn as_many_errors_are_kept_as_the_setting_says(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[PRELOADED, ("idempotence.max_errors", "10")])?;
    let connections = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    connections[0].text("SELECT idem_create_session('work')").await?;
    for number in 0..37 {
        refused(&connections[number % 2], &format!("SELECT idem_record('work', 'k{number}')"), "ID007").await?;
    }
    let newest: Vec<String> = (27..37).rev().map(|number| format!("k{number}")).collect();
    expect(&connections[0], "SELECT request FROM idempotence.errors", &newest.join("\n")).await?;
    let pids = [connections[0].pid().await?, connections[1].pid().await?];
    let by = "SELECT pid FROM idempotence.errors LIMIT 2";
    expect(&connections[0], by, &format!("{}\n{}", pids[0], pids[1])).await?;
    let long = "🔑".repeat(255);
    refused(&connections[0], &format!("SELECT idem_record('work', '{long}')"), "ID007").await?;
    let cut = "SELECT request = left(repeat('🔑', 255), length(request)), length(request) > 50 FROM idempotence.errors LIMIT 1";
    expect(&connections[0], cut, "t|t").await?;

    // A flood of one error leaves the others their share, and keeps its newest.
    let begin = |payload: i32| format!("SELECT FROM idem_begin('work', 'done', payload => '{payload}')");
    connections[0].text(&format!("BEGIN; {}; SELECT FROM idem_record('work', 'done'); COMMIT", begin(1))).await?;
    let mismatch = begin(2);
    let kept = "SELECT sqlstate, count(*) FROM idempotence.errors GROUP BY 1 ORDER BY 1";
    for (mismatches, flood, expected) in [(1, 30, "ID001|1\nID007|9"), (20, 0, "ID001|5\nID007|5")] {
        for _ in 0..mismatches {
            refused(&connections[0], &mismatch, "ID001").await?;
        }
        for number in 0..flood {
            refused(&connections[1], &format!("SELECT idem_record('work', 'f{number}')"), "ID007").await?;
        }
        expect(&connections[0], kept, expected).await?;
    }
    let of_flood = "SELECT request FROM idempotence.errors WHERE sqlstate = 'ID007'";
    expect(&connections[0], of_flood, "f29\nf28\nf27\nf26\nf25").await?;

    drop(connections);
    server.conf("idempotence.max_errors", "0")?;
    server.restart()?;
    let connection = server.connect(DATABASE).await?;
    refused(&connection, "SELECT idem_record('work', 'k')", "ID007").await?;
    expect(&connection, ROWS, "").await?;
    // What is not kept is counted all the same.
    expect(&connection, "SELECT errors > 0 FROM idempotence.error_counts() WHERE sqlstate = 'ID007'", "t").await
}

// Goal: where the library is not preloaded, what it would need shared memory for is refused and says what to do. All else
// works.
// Method: each of the five, and requests of each kind.
pub async fn without_preloading_all_but_the_views_works(version: Version) -> Result<()> {
    let server = shop::start(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('work'), idem_create_session('mail', inbox => true)").await?;
    for what in [
        "* FROM idempotence.stats",
        "* FROM idempotence.in_flight",
        "* FROM idempotence.errors",
        "idempotence.error_counts()",
        "idem_stats_reset()",
    ] {
        let error = connection.error(&format!("SELECT {what}")).await?;
        ensure!(error.code().code() == "55000", "{what}: {error}");
        let hint = error.hint().unwrap_or_default();
        ensure!(hint.contains("shared_preload_libraries"), "{what}: the hint is {hint:?}");
    }
    connection.execute("work", "k", "1").await?;
    connection.replay("work", "k").await?;
    refused(&connection, "SELECT idem_record('work', 'x')", "ID007").await?;
    connection.text("SELECT idem_once('mail', 'm'); SELECT FROM idem_settle('work', 'never')").await?;
    let token = connection.text("SELECT token FROM idem_begin('work', 'l', lease => '1 min')").await?;
    connection.text(&format!("SELECT idem_record('work', 'l', token => {token})")).await?;
    let prepared =
        "BEGIN; SELECT FROM idem_begin('work', 'p'); SELECT FROM idem_record('work', 'p'); PREPARE TRANSACTION 'p'";
    connection.text(prepared).await?;
    connection.text("COMMIT PREPARED 'p'").await?;
    // The log names requests here too.
    let error = connection.error("BEGIN; SELECT FROM idem_begin('work', 'named'); SELECT 1 / 0").await?;
    ensure!(error.where_() == Some("request \"named\" of session \"work\""), "the context is {:?}", error.where_());
    Ok(())
}
