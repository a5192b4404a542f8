//! The creation and the end of the extension: where it may be created, what DROP EXTENSION leaves, and what
//! backends do that remember the former extension.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::text::lines_only_in;
use idempotence_cluster_tests::{Cluster, Connection, Runbook, Version, on_each_version};

on_each_version!(
    drop_extension_leaves_nothing,
    a_backend_starts_afresh_with_the_extension_made_anew,
    an_idle_backend_starts_afresh_with_the_extension_made_anew,
    a_drop_that_is_rolled_back_has_changed_nothing,
    a_drop_meets_open_requests,
    a_database_that_is_not_utf8_is_refused,
    the_page_lists_what_uses_the_extension,
);

const SESSIONS: &str = "SELECT idem_create_session('payments'); SELECT idem_create_session('mails', inbox => true)";

fn start(version: Version) -> Result<Cluster> {
    let server = shop::start(version)?;
    server.psql(DATABASE, SESSIONS)?;
    Ok(server)
}

/// Uses all functions, so that the backend remembers all it can. Each request must be new.
async fn use_all(connection: &Connection) -> Result<()> {
    connection.execute("payments", "a", "1").await?;
    ensure!(connection.replay("payments", "a").await? == "succeeded|1");
    ensure!(connection.text("SELECT idem_once('mails', 'm'), idem_once('mails', 'm')").await? == "t|f");
    let half = "BEGIN; SELECT status FROM idem_begin('payments', 'half'); SELECT idem_checkpoint('payments', 'half', 'p'); COMMIT";
    ensure!(connection.text(half).await? == "started");
    ensure!(connection.text("SELECT replayed FROM idem_run('payments', 'run', 'SELECT 1')").await? == "f");
    ensure!(connection.text("SELECT idem_forget('payments', 'run', 'a test')").await? == "t");
    Ok(())
}

// Goal: DROP EXTENSION leaves nothing of the extension. A schema that the user has created stays, empty.
// Method: the names in all catalogs before CREATE EXTENSION and after DROP EXTENSION are compared.
async fn drop_extension_leaves_nothing(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    let catalogs = "
        SELECT 'relation', relnamespace::regnamespace, relname FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace
        UNION ALL SELECT 'toast', NULL, count(*)::text FROM pg_class WHERE relnamespace = 'pg_toast'::regnamespace
        UNION ALL SELECT 'function', pronamespace::regnamespace, proname FROM pg_proc
        UNION ALL SELECT 'type', typnamespace::regnamespace, typname FROM pg_type
                   WHERE typnamespace <> 'pg_toast'::regnamespace
        UNION ALL SELECT 'schema', NULL, nspname FROM pg_namespace
        UNION ALL SELECT 'trigger', NULL, tgname FROM pg_trigger
        UNION ALL SELECT 'constraint', connamespace::regnamespace, conname FROM pg_constraint
        UNION ALL SELECT 'init privileges', NULL, count(*)::text FROM pg_init_privs
        UNION ALL SELECT 'extension', NULL, extname FROM pg_extension
        ORDER BY 1, 2, 3";
    for schema in ["public", "idempotence"] {
        server.psql("postgres", &format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
        let before = server.psql("postgres", catalogs)?;
        let connection = server.connect("postgres").await?;
        connection
            .text(&format!("SET search_path = {schema}; CREATE EXTENSION idempotence SCHEMA {schema}; {SESSIONS}"))
            .await?;
        use_all(&connection).await?;
        connection.text("DROP EXTENSION idempotence").await?;
        let after = server.psql("postgres", catalogs)?;
        ensure!(after == before, "in schema {schema}: {}", difference(&before, &after));
    }
    Ok(())
}

fn difference(before: &str, after: &str) -> String {
    let (gone, left) = (lines_only_in(before, after), lines_only_in(after, before));
    format!("gone is {}; left is {}", gone.join(", "), left.join(", "))
}

// Goal: a backend that has dropped the extension and created it again knows nothing of the former one.
// Method: everything is used, and then the extension is created again: in two transactions, in one
// transaction, and in a transaction that has used it.
async fn a_backend_starts_afresh_with_the_extension_made_anew(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    use_all(&connection).await?;

    connection.text("DROP EXTENSION idempotence").await?;
    ensure!(connection.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "42883");
    connection.text("CREATE EXTENSION idempotence").await?;
    ensure!(connection.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "42704");
    connection.text(SESSIONS).await?;
    use_all(&connection).await?;

    connection
        .text(&format!("BEGIN; DROP EXTENSION idempotence; CREATE EXTENSION idempotence; {SESSIONS}; COMMIT"))
        .await?;
    use_all(&connection).await?;

    let within = format!(
        "BEGIN; SELECT FROM idem_begin('payments', 'b'); SELECT FROM idem_record('payments', 'b', '1');
         DROP EXTENSION idempotence; CREATE EXTENSION idempotence; {SESSIONS};
         SELECT status FROM idem_begin('payments', 'b'); SELECT FROM idem_record('payments', 'b', '2');
         SELECT idem_once('mails', 'm'); COMMIT"
    );
    ensure!(connection.text(&within).await? == "started\nt");
    ensure!(connection.replay("payments", "b").await? == "succeeded|2");
    Ok(())
}

// Goal: a backend that was idle in the meantime knows nothing of the former extension either.
// Method: the backend remembers everything, and is idle while another backend drops the extension and creates
// it again. Then it is used; at last inside a transaction that began before the drop.
async fn an_idle_backend_starts_afresh_with_the_extension_made_anew(version: Version) -> Result<()> {
    let server = start(version)?;
    let idle = server.connect(DATABASE).await?;
    use_all(&idle).await?;
    for sessions_by_idle in [false, true] {
        server.psql(DATABASE, "DROP EXTENSION idempotence; CREATE EXTENSION idempotence")?;
        if sessions_by_idle {
            ensure!(idle.sqlstate("SELECT FROM idem_begin('payments', 'a')").await? == "42704");
            idle.text(SESSIONS).await?;
        } else {
            server.psql(DATABASE, SESSIONS)?;
        }
        use_all(&idle).await?;
    }
    // Now the extension is dropped for good, while the idle backend has an open transaction.
    idle.text("BEGIN").await?;
    server.psql(DATABASE, "DROP EXTENSION idempotence")?;
    // The backend may still find the function, but then not the tables: undefined_function, undefined_table.
    let state = idle.sqlstate("SELECT FROM idem_begin('payments', 'a')").await?;
    ensure!(["42883", "42P01"].contains(&state.as_str()), "a call without the extension: {state}");
    Ok(())
}

// Goal: a DROP EXTENSION that is rolled back changes nothing about requests, nor about what backends remember
// of them.
// Method: the extension is dropped, or dropped, created again and used. Then this is rolled back, also to a
// savepoint.
async fn a_drop_that_is_rolled_back_has_changed_nothing(version: Version) -> Result<()> {
    let server = start(version)?;
    let connection = server.connect(DATABASE).await?;
    use_all(&connection).await?;
    let anew = format!(
        "DROP EXTENSION idempotence; CREATE EXTENSION idempotence; {SESSIONS};
         SELECT status FROM idem_begin('payments', 'a'); SELECT FROM idem_record('payments', 'a', '2'); SELECT idem_once('mails', 'm')"
    );
    connection.text("BEGIN; DROP EXTENSION idempotence; ROLLBACK").await?;
    ensure!(connection.replay("payments", "a").await? == "succeeded|1");
    ensure!(connection.text(&format!("BEGIN; {anew}; ROLLBACK")).await? == "started\nt");
    ensure!(connection.replay("payments", "a").await? == "succeeded|1");
    ensure!(connection.text("SELECT idem_once('mails', 'm')").await? == "f");

    connection.text("BEGIN; SELECT FROM idem_begin('payments', 'outer'); SAVEPOINT s").await?;
    ensure!(connection.text(&anew).await? == "started\nt");
    connection.text("ROLLBACK TO s; SELECT FROM idem_record('payments', 'outer', '3'); COMMIT").await?;
    ensure!(connection.replay("payments", "outer").await? == "succeeded|3");
    ensure!(connection.replay("payments", "a").await? == "succeeded|1");
    Ok(())
}

// Goal: DROP EXTENSION waits for an open transaction that has begun or recorded a request with a key. If a transaction has
// only begun a numbered request, it fails with a clear error afterwards.
// Method: one backend with a recorded request, another with an unrecorded request, and a third that drops.
async fn a_drop_meets_open_requests(version: Version) -> Result<()> {
    let server = start(version)?;
    let recorder = server.connect(DATABASE).await?;
    recorder
        .text("BEGIN; SELECT FROM idem_begin('payments', 'r'); SELECT FROM idem_record('payments', 'r', '1')")
        .await?;
    let beginner = server.connect(DATABASE).await?;
    beginner.text("BEGIN; SELECT FROM idem_begin('payments', 'b')").await?;

    let dropper = server.connect(DATABASE).await?;
    for open in [recorder, beginner] {
        ensure!(dropper.sqlstate("SET lock_timeout = '100 ms'; DROP EXTENSION idempotence").await? == "55P03");
        open.text("ROLLBACK").await?;
    }
    dropper.text("SET lock_timeout = '1 min'").await?;

    let begin = async || {
        let beginner = server.connect(DATABASE).await?;
        let session = beginner.text("SELECT session FROM idem_register()").await?;
        beginner.text(&format!("BEGIN; SELECT FROM idem_begin('{session}', 1)")).await?;
        anyhow::Ok((beginner, session))
    };
    let (beginner, session) = begin().await?;
    dropper.text("DROP EXTENSION idempotence").await?;
    let late = beginner.error(&format!("SELECT FROM idem_record('{session}', 1, '1')")).await?;
    ensure!(late.code().code() == "42883", "a record without the extension: {}", late.code().code());
    // The same without a further call: the COMMIT must not succeed.
    dropper.text(&format!("CREATE EXTENSION idempotence; {SESSIONS}")).await?;
    let (beginner, _) = begin().await?;
    dropper.text("DROP EXTENSION idempotence").await?;
    ensure!(beginner.sqlstate("COMMIT").await? == "ID008");
    Ok(())
}

// Goal: the extension cannot be created where clients may send other bytes for the same key.
// Method: CREATE EXTENSION in databases of other encodings is refused, with a hint, and leaves nothing
// behind.
async fn a_database_that_is_not_utf8_is_refused(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    for encoding in ["SQL_ASCII", "LATIN1", "EUC_JP"] {
        let database = encoding.to_lowercase();
        server.psql("postgres", &format!("CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}'"))?;
        let connection = server.connect(&database).await?;
        let error = connection.error("CREATE EXTENSION idempotence").await?;
        ensure!(error.code().code() == "0A000", "{}", error.code().code());
        ensure!(error.message() == "extension \"idempotence\" needs a database in encoding UTF8");
        ensure!(error.detail().is_some_and(|detail| detail.contains(encoding)));
        ensure!(error.hint() == Some("Create the database with ENCODING 'UTF8' TEMPLATE template0."));
        let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotence'";
        ensure!(connection.text(left).await? == "0");
    }
    Ok(())
}

// Goal: the query of operations.md, Removal, lists all that DROP EXTENSION would break or be stopped by, and nothing else.
// Method: functions that name it in their text, however written, and objects that depend on it.
async fn the_page_lists_what_uses_the_extension(version: Version) -> Result<()> {
    let server = start(version)?;
    server.psql(
        DATABASE,
        "CREATE FUNCTION mixed() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM Idem_Begin(''payments'', ''k''); END';
         CREATE FUNCTION by_schema() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM idempotence.sessions';
         CREATE FUNCTION atomic() RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT idem_node(); END;
         CREATE FUNCTION takes(ticket idem_ticket) RETURNS jsonb LANGUAGE sql AS 'SELECT ticket.response';
         CREATE VIEW names AS SELECT session FROM idempotence.sessions;
         CREATE VIEW nodes AS SELECT idem_node();
         CREATE TABLE kept (ticket idem_ticket);
         CREATE TABLE made (work jsonb, print uuid GENERATED ALWAYS AS (idem_fingerprint(work)) STORED, CHECK (idem_node() <> ''));
         CREATE OPERATOR @@@ (FUNCTION = idem_fingerprint, RIGHTARG = jsonb);
         CREATE TABLE idempotency_keys (key text PRIMARY KEY DEFAULT 'idem');
         CREATE VIEW other AS SELECT key FROM idempotency_keys;
         CREATE FUNCTION other() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM idempotency_keys'",
    )?;
    let mut page = Runbook::of("### Removal")?;
    let listed = page.sql(&server, DATABASE)?;
    page.end()?;
    let wanted = "default value for column print of table made\nfunction atomic()\nfunction by_schema()\nfunction mixed()\nfunction takes(idem_ticket)\noperator @@@(NONE,jsonb)\ntable kept\ntable made\nview names\nview nodes";
    ensure!(listed.trim_end() == wanted, "{listed}");
    Ok(())
}
