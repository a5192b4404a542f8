//! What `pg_dump` saves of the extension, and what a restore makes of it.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::dump::{dump, dump_to_file, restore};
use idempotence_cluster_tests::fixture::{self, Fixture};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use idempotence_demo::host::run;

on_each_version!(
    a_dump_restores_into_a_new_database_and_a_new_cluster,
    a_dump_of_a_restored_database_restores,
    a_custom_dump_restores_in_parallel,
    a_warm_backend_sees_data_that_is_restored_beside_it,
    a_restore_into_an_older_extension_finds_its_outcomes,
    a_restore_beside_requests_of_another_secret_is_told,
    a_dump_restores_the_extension_in_its_own_schema,
    a_restored_lease_is_taken_over,
    sessions_of_a_dropped_role_are_the_superusers,
);

/// A cluster with the fixture in database `old`.
async fn filled(version: Version) -> Result<(Cluster, Fixture)> {
    let cluster = Cluster::start(version)?;
    fixture::create_roles(&cluster)?;
    cluster.create_database("old")?;
    let fixture = fixture::fill(&cluster, "old").await?;
    Ok((cluster, fixture))
}

// Goal: pg_dump | psql loses nothing, warns of nothing, and all of it works in the new place.
// Method: the fixture is restored in the same cluster and in another cluster. The rows are compared, and then
// every request is sent again.
async fn a_dump_restores_into_a_new_database_and_a_new_cluster(version: Version) -> Result<()> {
    let (source, fixture) = filled(version).await?;
    let mut warned = source.program("pg_dump");
    let warned = warned.arg("-d").arg(source.connect_string("old", "postgres")).output()?.stderr;
    ensure!(warned.is_empty(), "{}", String::from_utf8_lossy(&warned));
    let dump = dump(&source, &source, "old", &[])?;
    restore(&source, "new", &dump)?;
    fixture.check(&source, "new").await?;
    // A dump leaves out what is unlogged.
    let app = fixture::connect(&source, "new", "app").await?;
    ensure!(app.answer(&fixture.clients.unsaved, "1").await? == "ID004");

    let elsewhere = Cluster::start(version)?;
    // The oids of the roles differ from those in the source, so that owners must be restored by name.
    elsewhere.psql("postgres", "CREATE ROLE first; CREATE ROLE second")?;
    fixture::create_roles(&elsewhere)?;
    restore(&elsewhere, "new", &dump)?;
    fixture.check(&elsewhere, "new").await?;
    // The source is unchanged.
    let app = fixture::connect(&source, "old", "app").await?;
    ensure!(app.answer(&fixture.clients.unsaved, "1").await? == "started|");
    fixture.check(&source, "old").await
}

// Goal: the usual way to a new major version loses nothing.
// Method: the newer pg_dump reads the old server, and the newer psql fills the new server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_15_restores_into_18() -> Result<()> {
    let (source, fixture) = filled(Version::Pg15).await?;
    let target = Cluster::start(Version::Pg18)?;
    fixture::create_roles(&target)?;
    restore(&target, "new", &dump(&target, &source, "old", &[])?)?;
    fixture.check(&target, "new").await
}

// Goal: the next dump passes on the secret that a restore has brought.
// Method: two restores, one after the other. Each leaves a further secret of its own beside the first.
async fn a_dump_of_a_restored_database_restores(version: Version) -> Result<()> {
    let (source, fixture) = filled(version).await?;
    restore(&source, "child", &dump(&source, &source, "old", &[])?)?;
    restore(&source, "grandchild", &dump(&source, &source, "child", &[])?)?;
    fixture.check(&source, "grandchild").await
}

// Goal: the order in which the tables are filled does not matter.
// Method: a dump in the custom format, restored by two jobs at a time.
async fn a_custom_dump_restores_in_parallel(version: Version) -> Result<()> {
    let (source, fixture) = filled(version).await?;
    let file = dump_to_file(&source, "old")?;
    source.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    let mut pg_restore = source.program("pg_restore");
    pg_restore.args(["--exit-on-error", "-j", "2", "-d"]).arg(source.connect_string("new", "postgres")).arg(&file);
    run(&mut pg_restore, None, LIMIT)?;
    fixture.check(&source, "new").await
}

// Goal: no backend goes on with what it remembered from before a restore, least of all the secret.
// Method: a backend remembers everything from a transaction that was rolled back. Then another connection
// restores with --data-only, with and without triggers.
async fn a_warm_backend_sees_data_that_is_restored_beside_it(version: Version) -> Result<()> {
    let (source, fixture) = filled(version).await?;
    for (target, options) in
        [("plain", &["--data-only"] as &[&str]), ("without_triggers", &["--data-only", "--disable-triggers"])]
    {
        source.create_database(target)?;
        fixture::grant(&source.connect(target).await?).await?;
        let warm = fixture::connect(&source, target, "app").await?;
        warm_up(&warm).await?;
        fixture.clients.check_unknown(&warm).await?;
        // Of the grants above.
        source.psql(target, "DELETE FROM idempotence.audit")?;
        source.psql(target, &dump(&source, &source, "old", options)?)?;
        fixture.check_replays(&warm).await?;
        fixture.check(&source, target).await?;
    }
    Ok(())
}

/// Makes the backend remember all that it can, and leaves no rows behind.
async fn warm_up(app: &Connection) -> Result<()> {
    ensure!(app.sqlstate("SELECT FROM idem_begin('payments', 'paid')").await? == "42704");
    app.text(
        "BEGIN; SELECT idem_create_session('warm'), idem_create_session('inbox', inbox => true);
         SELECT FROM idem_begin('warm', 'up'); SELECT FROM idem_record('warm', 'up', '1'); SELECT idem_once('inbox', 'up'); ROLLBACK",
    )
    .await?;
    Ok(())
}

// Goal: restored outcomes are found, whatever the age of the extension that they are restored into.
// Method: the target comes from a template that has had the extension for longer than the source.
async fn a_restore_into_an_older_extension_finds_its_outcomes(version: Version) -> Result<()> {
    let cluster = Cluster::start(version)?;
    fixture::create_roles(&cluster)?;
    cluster.create_database("template")?;
    cluster.create_database("old")?;
    let fixture = fixture::fill(&cluster, "old").await?;
    cluster.psql("postgres", "CREATE DATABASE new TEMPLATE template")?;
    cluster.psql("new", &dump(&cluster, &cluster, "old", &[])?)?;
    fixture.check_works(&cluster, "new").await
}

// Goal: if a database has outcomes of two secrets, nothing that was done looks new.
// Method: data is restored into a database that has executed requests. The requests of both sides are
// refused, not executed.
async fn a_restore_beside_requests_of_another_secret_is_told(version: Version) -> Result<()> {
    let (source, _) = filled(version).await?;
    source.create_database("used")?;
    fixture::grant(&source.connect("used").await?).await?;
    let app = fixture::connect(&source, "used", "app").await?;
    app.text("SELECT idem_create_session('orders')").await?;
    app.execute("orders", "done", "1").await?;
    source.psql("used", &dump(&source, &source, "old", &["--data-only"])?)?;
    for call in
        ["begin('orders', 'done')", "begin('payments', 'paid')", "lookup('payments', 'paid')", "once('mails', 'm1')"]
    {
        let state = app.sqlstate(&format!("SELECT FROM idem_{call}")).await?;
        ensure!(state == "XX001", "idem_{call}: {state}");
    }
    Ok(())
}

// Goal: the extension may share the schema of its tables, and a dump restores it there.
// Method: the same check as above, with the schema created before the extension.
async fn a_dump_restores_the_extension_in_its_own_schema(version: Version) -> Result<()> {
    let cluster = Cluster::start(version)?;
    fixture::create_roles(&cluster)?;
    cluster.psql("postgres", "CREATE DATABASE old")?;
    cluster.psql("old", "CREATE SCHEMA idempotence; CREATE EXTENSION idempotence SCHEMA idempotence")?;
    let fixture = fixture::fill(&cluster, "old").await?;
    restore(&cluster, "new", &dump(&cluster, &cluster, "old", &[])?)?;
    let schema = "SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotence'";
    ensure!(cluster.psql("new", schema)?.trim_end() == "idempotence");
    fixture.check(&cluster, "new").await?;
    fixture.check(&cluster, "old").await
}

// Goal: what was in flight at the dump is not new after the restore, and a token is not given twice.
// Method: a lease that lasts and a lease that has run out are dumped. In the restored database the first one is waited
// for, and its holder may still record. The second one is taken over, with a higher token. In the dumped database the
// work goes on by itself.
async fn a_restored_lease_is_taken_over(version: Version) -> Result<()> {
    let cluster = Cluster::start(version)?;
    cluster.create_database("old")?;
    let begin = |key: &str, lease: &str| {
        format!(
            "SELECT concat_ws('|', status, token, attempt, point) FROM idem_begin('payments', '{key}', lease => '{lease}', wait => '0')"
        )
    };
    let old = cluster.connect("old").await?;
    old.text("SELECT idem_create_session('payments')").await?;
    let long = old.text(&begin("long", "1 hour")).await?;
    let short = old.text(&begin("short", "10 ms")).await?;
    let token = |answer: &str| answer.split('|').nth(1).unwrap_or_default().to_owned();
    let checkpoint = format!("SELECT idem_checkpoint('payments', 'short', 'half', token => {})", token(&short));
    old.text(&checkpoint).await?;
    restore(&cluster, "new", &dump(&cluster, &cluster, "old", &[])?)?;

    let new = cluster.connect("new").await?;
    ensure!(new.text(&begin("long", "1 hour")).await?.starts_with("in_progress"));
    new.text(&format!("SELECT idem_record('payments', 'long', '1', token => {})", token(&long))).await?;
    let taken_over = new.text(&begin("short", "1 hour")).await?;
    ensure!(taken_over == format!("taken_over|{}|2|half", token(&taken_over)), "{taken_over}");
    ensure!(token(&taken_over).parse::<i64>()? > token(&short).parse::<i64>()?, "{taken_over} after {short}");
    ensure!(new.sqlstate(&checkpoint).await? == "ID005");
    old.text(&checkpoint).await?;
    ensure!(
        old.sqlstate(&format!("SELECT idem_record('payments', 'short', token => {})", token(&taken_over))).await?
            == "ID005"
    );
    Ok(())
}

// Goal: if the owner of a session was dropped, only a superuser can use the session, and it does not stop a
// dump.
// Method: the owner's role is dropped while a backend remembers the session. Others send its requests, before
// and after a restore.
async fn sessions_of_a_dropped_role_are_the_superusers(version: Version) -> Result<()> {
    let cluster = Cluster::start(version)?;
    cluster.create_database("old")?;
    cluster.psql(
        "old",
        "CREATE ROLE leaver LOGIN; CREATE ROLE stayer LOGIN; SELECT idem_grant('leaver'), idem_grant('stayer')",
    )?;
    let leaver = cluster.connect_as("old", "leaver").await?;
    leaver.text("SELECT idem_create_session('orphaned'), idem_create_session('gone')").await?;
    leaver.execute("orphaned", "k", "1").await?;
    let client = leaver.register("client => 'orphan'").await?;
    leaver.execute(&client, "1", "1").await?;
    leaver.text("SELECT idem_drop_session('gone')").await?;
    drop(leaver);
    let superuser = cluster.connect("old").await?;
    let stayer = cluster.connect_as("old", "stayer").await?;
    ensure!(superuser.replay("orphaned", "k").await? == "succeeded|1");
    ensure!(stayer.sqlstate("SELECT FROM idem_begin('orphaned', 'k')").await? == "42501");

    cluster.psql("old", "SELECT idem_revoke('leaver'); DROP OWNED BY leaver; DROP ROLE leaver")?;
    check_orphaned(&superuser, &stayer, &client).await?;
    restore(&cluster, "new", &dump(&cluster, &cluster, "old", &[])?)?;
    check_orphaned(&cluster.connect("new").await?, &cluster.connect_as("new", "stayer").await?, &client).await?;

    // When the session gets a new owner, the owner can use it. The repair of the page finds it before a sweep has come and
    // after one.
    let page = include_str!("../../../docs/operations.md");
    let (_, after) = page.split_once("### After a role was dropped").context("the page tells of owners")?;
    let begin = after.find("SELECT idem_alter_session(").context("the page has a repair")?;
    let (repair, _) = after[begin..].split_once(";\n").context("the repair ends")?;
    let repair = repair.replace("'app2'", "'stayer'");
    for swept in [false, true] {
        if swept {
            superuser.text("CALL idem_sweep()").await?;
            ensure!(
                superuser
                    .text("SELECT count(*) FROM idempotence.sessions WHERE owner = '-'::regrole AND kind = 'standing'")
                    .await?
                    == "1"
            );
        }
        superuser.text(&format!("BEGIN; {repair}")).await?;
        ensure!(stayer_owns(&superuser).await? == "orphaned", "{}", stayer_owns(&superuser).await?);
        superuser.text("ROLLBACK").await?;
    }
    superuser.text(&repair).await?;
    ensure!(stayer.replay("orphaned", "k").await? == "succeeded|1");
    Ok(())
}

async fn stayer_owns(superuser: &Connection) -> Result<String> {
    superuser.text("SELECT string_agg(session, ', ') FROM idempotence.sessions WHERE owner = 'stayer'::regrole").await
}

async fn check_orphaned(superuser: &Connection, stayer: &Connection, client: &str) -> Result<()> {
    ensure!(superuser.replay("orphaned", "k").await? == "succeeded|1");
    ensure!(superuser.replay(client, "1").await? == "succeeded|1");
    for (session, request) in [("orphaned", "'fresh'"), (client, "2")] {
        ensure!(superuser.answer(session, request).await? == "started|");
    }
    for call in [
        "begin('orphaned', 'k')",
        "lookup('orphaned', 'k')",
        "drop_session('orphaned')",
        "create_session('gone')",
        "begin('$', 1)",
        "lookup('$', 1)",
        "close('$')",
        "heartbeat('$')",
    ] {
        let state = stayer.sqlstate(&format!("SELECT FROM idem_{}", call.replace('$', client))).await?;
        ensure!(state == "42501", "idem_{call} of a dropped role's session: {state}");
    }
    // The name of a client belongs to its owner, so another role may use the same name.
    stayer.text("BEGIN; SELECT FROM idem_register(client => 'orphan'); ROLLBACK").await?;
    ensure!(superuser.text("SELECT count(*) FROM idempotence.sessions").await? == "2");
    ensure!(superuser.text("SELECT count(*) FROM idempotence.outcomes").await? == "2");
    Ok(())
}
