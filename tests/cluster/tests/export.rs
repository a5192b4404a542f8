//! A session goes on at another server: `idem_export` there, `idem_import` here, in each way that rows can take.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::effort::requests;
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    what_was_done_there_is_answered_here,
    an_export_takes_little_memory_however_much_it_gives,
    who_is_at_work_is_told,
);

/// The columns of idem_export.
const COLUMNS: &str = "key text, status text, response jsonb, fingerprint uuid, token bigint, recorded_at timestamptz, \
                       expires_at timestamptz, attempt integer, begun_at timestamptz, leased_until timestamptz, \
                       point text, state jsonb";

/// A connection string as the options of a foreign server.
fn options(server: &Cluster) -> String {
    let string = server.connect_string(DATABASE, "postgres");
    let options = string.split(' ').filter_map(|option| option.split_once('=')).filter(|(name, _)| *name != "user");
    options.map(|(name, value)| format!("{name} '{}'", value.trim_matches('\''))).collect::<Vec<_>>().join(", ")
}

/// Makes a session with this number of outcomes, some of them too large for a page, and with requests in every other state.
async fn fill(connection: &Connection, outcomes: usize) -> Result<()> {
    connection
        .text(&format!(
            "SELECT idem_create_session('payments', ttl => '1 day');
             SELECT FROM idem_import('payments', $$
               SELECT 'k' || n AS key, to_jsonb(n) AS payload, n % 3 = 0 AS failed, now() - n % 1000 * interval '1 s' AS recorded_at,
                      CASE WHEN n % 1000 = 0 THEN (SELECT jsonb_agg(md5(n::text || m)) FROM generate_series(1, 1000) m) ELSE to_jsonb(n) END AS response
               FROM generate_series(1, {outcomes}) n $$, 'a test')"
        ))
        .await?;
    connection
        .text(
            "SELECT FROM idem_settle('payments', 'settled');
             SELECT idem_checkpoint('payments', 'half', 'charged', '17') FROM idem_begin('payments', 'half', payload => '1');
             SELECT idem_checkpoint('payments', 'lost', 'shipped', token => token) FROM idem_begin('payments', 'lost', lease => '1 hour')",
        )
        .await?;
    connection
        .text(
            "SELECT FROM idem_begin('payments', 'mute', lease => '1 hour');
             UPDATE idempotence.lease SET begun_at = begun_at - interval '2 h', leased_until = leased_until - interval '2 h'",
        )
        .await
        .map(drop)
}

/// All that callers could be told of the session's outcomes.
fn told(session: &str) -> String {
    format!(
        "SELECT count(*), md5(string_agg(concat_ws('|', request, status, response, fingerprint, recorded_at, expires_at), ';' ORDER BY request))
           FROM idempotence.outcomes WHERE session = '{session}'"
    )
}

// Goal: whichever way the rows take, the session here answers as it would have there.
// Method: a session with requests in every state goes over by COPY, by a foreign table and by dblink, the latter two in one
// statement each. The digests here are made with another secret.
async fn what_was_done_there_is_answered_here(version: Version) -> Result<()> {
    let (there, here) = (shop::start(version)?, shop::start(version)?);
    let (source, target) = (there.connect(DATABASE).await?, here.connect(DATABASE).await?);
    fill(&source, requests(20_000, 200_000)).await?;
    let secret = "SELECT encode(key, 'hex') FROM idempotence.secret";
    ensure!(source.text(secret).await? != target.text(secret).await?, "both databases have the same secret");
    source
        .text(
            "SELECT idem_drop_session('payments');
             CREATE VIEW leaving AS SELECT * FROM idem_export('payments', 'by a foreign table')",
        )
        .await?;
    target
        .text(&format!(
            "CREATE EXTENSION dblink; CREATE EXTENSION postgres_fdw;
             CREATE SERVER there FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({});
             CREATE USER MAPPING FOR postgres SERVER there OPTIONS (user 'postgres', password_required 'false');
             CREATE FOREIGN TABLE leaving ({COLUMNS}) SERVER there",
            options(&there)
        ))
        .await?;
    let copied = there.psql(DATABASE, "COPY (SELECT * FROM idem_export('payments', 'by COPY')) TO STDOUT")?;
    here.psql(DATABASE, &format!("CREATE TABLE came ({COLUMNS}); COPY came FROM STDIN;\n{copied}\\.\n"))?;
    let dblink = format!(
        "SELECT * FROM dblink(''{}'', ''SELECT * FROM idem_export(''''payments'''', ''''by dblink'''')'') AS t ({COLUMNS})",
        there.connect_string(DATABASE, "postgres").replace('\'', "''''")
    );
    let rows = copied.lines().count();
    for (session, query) in [("by COPY", "TABLE came"), ("by a foreign table", "TABLE leaving"), ("by dblink", &dblink)]
    {
        let import = format!(
            "BEGIN; SELECT FROM idem_create_session('{session}', ttl => '1 day');
             SELECT * FROM idem_import('{session}', '{query}', 'from the other server'); COMMIT"
        );
        let taken = target.text(&import).await?;
        ensure!(taken == format!("{rows}|0|0"), "{session}: {taken} instead of {rows} rows");
        answers_as_there(&target, session).await?;
        let (there, here) = (source.text(&told("payments")).await?, target.text(&told(session)).await?);
        ensure!(there == here, "{session}: {here} instead of {there}");
    }
    let audit =
        "SELECT string_agg(reason || ': ' || found, ', ' ORDER BY at) FROM idempotence.audit WHERE action = 'export'";
    let wanted = ["by COPY", "by a foreign table", "by dblink"].map(|way| format!("{way}: {rows} requests")).join(", ");
    let noted = source.text(audit).await?;
    ensure!(noted == wanted, "{noted}");
    Ok(())
}

async fn answers_as_there(target: &Connection, session: &str) -> Result<()> {
    let begin = |request: &str| {
        format!(
            "BEGIN; SELECT status, replayed, response #>> '{{}}', point, state, attempt FROM idem_begin('{session}', {request}); ROLLBACK"
        )
    };
    for (request, wanted) in [
        ("'k1', payload => '1'", "succeeded|t|1|||"),
        ("'k3'", "failed|t|3|||"),
        ("'settled'", "cancelled|t||||"),
        ("'half', payload => '1'", "started|f||charged|17|1"),
        ("'lost', lease => '1 s'", "taken_over|f||shipped||2"),
        ("'mute', lease => '1 s'", "taken_over|f||||2"),
        ("'new'", "started|f||||1"),
    ] {
        let answer = target.text(&begin(request)).await?;
        ensure!(answer == wanted, "{session}, {request}: {answer} instead of {wanted}");
    }
    for (request, state) in [("'k1', payload => '2'", "ID001"), ("'half', payload => '2'", "ID001")] {
        let found = target.sqlstate(&begin(request)).await?;
        ensure!(found == state, "{session}, {request}: {found}");
    }
    Ok(())
}

// Goal: the memory of a backend that exports does not depend on how much it exports.
// Method: the rows of a large export are read through a cursor; what the backend's own memory contexts hold is looked at
// while they are.
async fn an_export_takes_little_memory_however_much_it_gives(version: Version) -> Result<()> {
    let server = shop::start_with(version, &[("work_mem", "1MB")])?;
    let connection = server.connect(DATABASE).await?;
    fill(&connection, requests(50_000, 1_000_000)).await?;
    connection.text("SELECT idem_drop_session('payments')").await?;
    let exporting = server.connect(DATABASE).await?;
    exporting.text("BEGIN; DECLARE c CURSOR FOR SELECT * FROM idem_export('payments', 'a test')").await?;
    let bytes = async || {
        let bytes = exporting.text("SELECT sum(total_bytes) FROM pg_backend_memory_contexts").await?;
        anyhow::Ok(bytes.parse::<i64>()?)
    };
    let before = bytes().await?;
    ensure!(exporting.text("FETCH 1 FROM c").await?.contains('|'), "nothing was fetched");
    let during = bytes().await?;
    ensure!(during < before + (8 << 20), "{} bytes more", during - before);
    let stored = exporting.text("SELECT count(*) > 0 FROM pg_ls_tmpdir()").await?;
    ensure!(stored == "t", "the rows are in no file");
    exporting.text("COMMIT").await.map(drop)
}

// Goal: an export that is refused tells a monitor who is at work and, where the library is preloaded, on which request.
// Method: a request of the session is open in another connection, beside one of another session.
async fn who_is_at_work_is_told(version: Version) -> Result<()> {
    for (server, request) in
        [(shop::start(version)?, ""), (shop::start_preloaded(version)?, "request \"k\" of session \"s\"")]
    {
        let connection = server.connect(DATABASE).await?;
        connection.text("SELECT idem_create_session('s'), idem_create_session('other')").await?;
        let worker = server.connect(DATABASE).await?;
        worker
            .text("SET application_name = 'worker'; BEGIN; SELECT FROM idem_begin('other', 'o'); SELECT FROM idem_begin('s', 'k')")
            .await?;
        connection.text("SELECT idem_drop_session('s')").await?;
        let error = connection.error("SET idempotence.wait = '10 ms'; SELECT idem_export('s', 'a test')").await?;
        let detail = error.detail().unwrap_or_default();
        ensure!(error.code().code() == "55006", "{error:?}");
        ensure!(detail.contains(&format!("process {}", worker.pid().await?)) && detail.contains("worker"), "{detail}");
        ensure!(detail.contains(request) && !detail.contains("\"o\""), "{detail}");
        ensure!(request.is_empty() != detail.starts_with("At work is"), "{detail}");

        // To the owner of the session, who is no monitor, the same is told without the holders.
        server.psql("postgres", "CREATE ROLE app LOGIN")?;
        server.psql(DATABASE, "SELECT idem_grant('app'); SELECT idem_create_session('of app', owner => 'app')")?;
        let app = server.connect_as(DATABASE, "app").await?;
        app.text("SELECT idem_drop_session('of app')").await?;
        let export = "SET idempotence.wait = '10 ms'; SELECT idem_export('of app', 'a test')";
        if !request.is_empty() {
            // Who is known to be at work elsewhere holds nobody up. What a repair holds has no name.
            app.text(export).await?;
            worker.text("SELECT idem_forget('other', 'never', 'a test')").await?;
        }
        let error = app.error(export).await?;
        let detail = error.detail().unwrap_or_default();
        let told = "What was begun before that may be held by one transaction; a monitor is told which.";
        ensure!(error.code().code() == "55006" && detail == told, "{error:?}");
    }
    Ok(())
}
