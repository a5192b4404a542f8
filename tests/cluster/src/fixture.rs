//! Rows of each kind that the extension keeps, and the check that all of them are still there and work, in
//! another database, cluster or version.

pub mod clients;

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use uuid::{NoContext, Timestamp, Uuid};

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::fixture::clients::Clients;

/// Every schema that the extension may be in, in these tests.
const SEARCH_PATH: &str = r#"SET search_path = public, idempotence, "Odd Schema""#;

/// The roles with the level that each role gets. `stranger` gets no level.
const ROLES: [(&str, &str); 5] =
    [("app", "user"), ("other", "user"), ("watcher", "monitor"), ("boss", "admin"), ("stranger", "")];

/// The requests of session `payments` that have an outcome, with what their replays return.
const OUTCOMES: [(&str, &str); 7] = [
    ("paid", r#"t|succeeded|{"ok": true}"#),
    ("declined", r#"t|failed|{"reason": "no funds"}"#),
    ("empty", "t|succeeded|"),
    ("42", r#"t|succeeded|42"#),
    ("ключ-🔑", r#"t|succeeded|"unicode""#),
    ("of segment 1", r#"t|succeeded|1"#),
    ("of segment 2", r#"t|succeeded|2"#),
];

/// All rows that the extension keeps, but for the secrets: a restore adds a secret, and the replays show that
/// the right secret counts.
const KEPT: &str = "
    SELECT 'session', s::text FROM idempotence.session s ORDER BY 2;
    SELECT o.tableoid::regclass, o::text FROM idempotence.outcome_0 o ORDER BY 2;
    SELECT o.tableoid::regclass, o::text FROM idempotence.outcome_1 o ORDER BY 2;
    SELECT o.tableoid::regclass, o::text FROM idempotence.outcome_2 o ORDER BY 2;
    SELECT o.tableoid::regclass, o::text FROM idempotence.outcome_long o ORDER BY 2;
    SELECT 'reply', r::text FROM idempotence.reply r ORDER BY 2;
    SELECT 'stream', s::text FROM idempotence.stream s ORDER BY 2;
    SELECT 'checkpoint', c::text FROM idempotence.checkpoint c ORDER BY 2;
    SELECT 'audit', a::text FROM idempotence.audit a ORDER BY 2";

/// The privileges of the roles. The owner's privileges are left out: they differ from version to version.
const GRANTED: &str = "
    WITH granted (object, acl) AS (
        SELECT p.oid::regprocedure::text, p.proacl FROM pg_proc p WHERE p.proname LIKE 'idem%' OR p.pronamespace = 'idempotence'::regnamespace
        UNION ALL SELECT c.oid::regclass::text, c.relacl FROM pg_class c WHERE c.relnamespace = 'idempotence'::regnamespace
        UNION ALL SELECT n.nspname, n.nspacl FROM pg_namespace n WHERE n.nspname IN ('idempotence', 'Odd Schema')
    )
    SELECT g.object, a.grantee::regrole, a.privilege_type, a.is_grantable
    FROM granted g, aclexplode(g.acl) a
    WHERE a.grantee <> 10
    ORDER BY 1, 2, 3";

/// What a fixture has put into a database.
pub struct Fixture {
    kept: String,
    granted: String,
    time_key: String,
    /// The client sessions.
    pub clients: Clients,
}

/// Creates the roles that own the sessions of the fixture.
pub fn create_roles(cluster: &Cluster) -> Result<()> {
    for (role, _) in ROLES {
        cluster.psql("postgres", &format!("CREATE ROLE {role} LOGIN"))?;
    }
    Ok(())
}

/// Grants each role its level.
pub async fn grant(superuser: &Connection) -> Result<()> {
    superuser.text(SEARCH_PATH).await?;
    for (role, level) in ROLES.iter().filter(|(_, level)| !level.is_empty()) {
        superuser.text(&format!("SELECT idem_grant('{role}', '{level}')")).await?;
    }
    Ok(())
}

/// Fills a database that has the extension.
pub async fn fill(cluster: &Cluster, database: &str) -> Result<Fixture> {
    let superuser = cluster.connect(database).await?;
    grant(&superuser).await?;

    let app = connect(cluster, database, "app").await?;
    let time_key = key_made_before(Duration::ZERO)?;
    app.text(
        "SELECT idem_create_session('payments', ttl => '30 days');
         SELECT idem_create_session('retired');
         SELECT idem_create_session('lent', usable_by => 'other');
         SELECT idem_create_session('mails', inbox => true);
         SELECT idem_create_session('timed', ttl => '2 days', time_keys => true);
         SELECT idem_create_session('strict', require_payload => true)",
    )
    .await?;
    connect(cluster, database, "other").await?.text("SELECT idem_create_session('theirs')").await?;

    app.execute("payments", "paid", r#"{"ok": true}"#).await?;
    app.text(
        "BEGIN; SELECT FROM idem_begin('payments', 'empty'); SELECT FROM idem_record('payments', 'empty'); COMMIT;
         BEGIN; SELECT FROM idem_begin('payments', 'declined');
         SELECT FROM idem_record('payments', 'declined', '{\"reason\": \"no funds\"}', failed => true); COMMIT;
         BEGIN; SELECT FROM idem_begin('payments', 42::bigint); SELECT FROM idem_record('payments', 42::bigint, '42'); COMMIT",
    )
    .await?;
    app.execute("payments", "ключ-🔑", r#""unicode""#).await?;
    app.execute("payments", "of segment 1", "1").await?;
    app.execute("payments", "of segment 2", "2").await?;
    // After the ring has turned, outcomes are in these tables.
    for segment in [1, 2] {
        superuser
            .text(&format!(
                "WITH moved AS (DELETE FROM idempotence.outcome_0 WHERE key = 'of segment {segment}' RETURNING *)
                 INSERT INTO idempotence.outcome_{segment} SELECT * FROM moved"
            ))
            .await?;
    }
    // Random digits do not compress, so the response goes to the TOAST table.
    app.text(
        "BEGIN; SELECT FROM idem_begin('payments', 'large');
         SELECT FROM idem_record('payments', 'large', (SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 200))); COMMIT",
    )
    .await?;
    app.text(
        "BEGIN; SELECT FROM idem_begin('payments', 'workflow', payload => '{\"order\": 7}');
         SELECT idem_checkpoint('payments', 'workflow', 'charged', '{\"charge\": 11}'); COMMIT;
         BEGIN; SELECT FROM idem_begin('strict', 'matched', payload => '{\"a\": 1, \"b\": [1.0, null]}');
         SELECT FROM idem_record('strict', 'matched', '1'); COMMIT",
    )
    .await?;
    app.execute("retired", "done", "1").await?;
    app.text("SELECT idem_drop_session('retired'); SELECT FROM idem_once_many('mails', '{m1,m2}')").await?;
    app.execute("timed", &time_key, "1").await?;
    app.execute("payments", "forgotten", "1").await?;
    connect(cluster, database, "boss").await?.text("SELECT idem_forget('payments', 'forgotten', 'a test')").await?;

    let clients = clients::fill(&superuser, &app).await?;

    let toasted = "SELECT every(pg_relation_size(reltoastrelid) > 0) FROM pg_class
         WHERE oid IN ('idempotence.outcome_long'::regclass, 'idempotence.reply'::regclass)";
    ensure!(superuser.text(toasted).await? == "t", "the large responses are stored inline");
    Ok(Fixture { kept: superuser.text(KEPT).await?, granted: superuser.text(GRANTED).await?, time_key, clients })
}

impl Fixture {
    /// Checks that every row and every privilege is there, and that all works as if nothing had happened. The
    /// checks execute requests, so a test can check a database only once.
    pub async fn check(&self, cluster: &Cluster, database: &str) -> Result<()> {
        self.check_kept(cluster, database).await?;
        let granted = connect(cluster, database, "postgres").await?.text(GRANTED).await?;
        ensure!(granted == self.granted, "privileges were:\n{}\nand are:\n{granted}", self.granted);
        self.check_works(cluster, database).await
    }

    /// Checks that every row is there.
    pub async fn check_kept(&self, cluster: &Cluster, database: &str) -> Result<()> {
        let kept = connect(cluster, database, "postgres").await?.text(KEPT).await?;
        ensure!(kept == self.kept, "kept was:\n{}\nand is:\n{kept}", abridged(&self.kept), kept = abridged(&kept));
        Ok(())
    }

    /// Checks that requests are answered as if nothing had happened.
    pub async fn check_works(&self, cluster: &Cluster, database: &str) -> Result<()> {
        let app = connect(cluster, database, "app").await?;
        self.check_replays(&app).await?;
        self.check_continues(&app).await?;

        // A new request is executed, and another role's request is refused, as before.
        let before = app.sqlstate("SELECT FROM idem_begin('strict', 'matched', payload => '{\"a\": 2}')").await?;
        ensure!(before == "ID001", "another payload: {before}");
        app.execute("payments", "new", "\"new\"").await?;
        ensure!(app.replay("payments", "new").await? == "succeeded|\"new\"");
        app.execute("payments", "forgotten", "2").await?;
        let others = connect(cluster, database, "other").await?;
        for call in [
            "begin('payments', 'paid')",
            "lookup('payments', 'paid')",
            "create_session('retired')",
            "once('mails', 'm1')",
        ] {
            let state = others.sqlstate(&format!("SELECT FROM idem_{call}")).await?;
            ensure!(state == "42501", "another role's idem_{call}: {state}");
        }
        self.clients.check_works(&app, &others).await?;
        let stranger = connect(cluster, database, "stranger").await?;
        // If the extension is in its own schema, a stranger does not even see its functions.
        let refusal = stranger.sqlstate("SELECT idem_generate_id()").await?;
        ensure!(["42501", "42883"].contains(&refusal.as_str()), "a stranger: {refusal}");
        let watcher = connect(cluster, database, "watcher").await?;
        watcher.text("SELECT FROM idempotence.sessions, idempotence.outcomes").await?;
        let boss = connect(cluster, database, "boss").await?;
        ensure!(boss.text("SELECT idem_forget('payments', 'new', 'a test')").await? == "t");

        // If its owner makes the dropped session again, it continues the same series.
        ensure!(app.sqlstate("SELECT FROM idem_begin('retired', 'done')").await? == "42704");
        app.text("SELECT idem_create_session('retired')").await?;
        ensure!(app.replay("retired", "done").await? == "succeeded|1");
        Ok(())
    }

    /// Checks that every outcome is replayed, in every way.
    pub async fn check_replays(&self, app: &Connection) -> Result<()> {
        for (key, ticket) in OUTCOMES {
            let replay =
                app.text(&format!("SELECT replayed, status, response FROM idem_begin('payments', '{key}')")).await?;
            ensure!(replay == ticket, "request {key} gives {replay} instead of {ticket}");
        }
        let large = "SELECT replayed, jsonb_array_length(response) FROM idem_begin('payments', 'large')";
        ensure!(app.text(large).await? == "t|200");
        let matched = "SELECT replayed FROM idem_begin('strict', 'matched', payload => '{\"b\": [1, null], \"a\": 1}')";
        ensure!(app.text(matched).await? == "t", "the fingerprint of the same payload is another");
        ensure!(app.replay("timed", &self.time_key).await? == "succeeded|1");
        ensure!(app.text("SELECT idem_once('mails', 'm2'), idem_once('mails', 'm1')").await? == "f|f");
        self.clients.check_replays(app).await
    }

    async fn check_continues(&self, app: &Connection) -> Result<()> {
        let begin = |order: i32| {
            format!(
                "SELECT status, point, state FROM idem_begin('payments', 'workflow', payload => '{{\"order\": {order}}}')"
            )
        };
        ensure!(app.sqlstate(&begin(8)).await? == "ID001", "a checkpoint forgot its payload");
        let sql =
            format!("BEGIN; {}; SELECT FROM idem_record('payments', 'workflow', '\"shipped\"'); COMMIT", begin(7));
        let ticket = app.text(&sql).await?;
        ensure!(ticket == "started|charged|{\"charge\": 11}", "the checkpoint is {ticket}");
        ensure!(app.replay("payments", "workflow").await? == "succeeded|\"shipped\"");
        ensure!(app.text("SELECT idem_once('mails', 'm3')").await? == "t");
        Ok(())
    }
}

/// Connects, with a search path that finds the extension in each of its schemas.
pub async fn connect(cluster: &Cluster, database: &str, role: &str) -> Result<Connection> {
    let connection = cluster.connect_as(database, role).await?;
    connection.text(SEARCH_PATH).await?;
    Ok(connection)
}

fn key_made_before(age: Duration) -> Result<String> {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.saturating_sub(age);
    Ok(Uuid::new_v7(Timestamp::from_unix(NoContext, time.as_secs(), time.subsec_nanos())).to_string())
}

fn abridged(rows: &str) -> String {
    rows.lines().map(|row| row.chars().take(300).collect::<String>()).collect::<Vec<_>>().join("\n")
}
