//! A restore that failed half way: outcomes were restored, and their sessions were not.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::dump::dump_to_file;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    outcomes_without_their_session_are_not_executed_again,
    what_failed_to_come_at_all_is_not_executed_again,
    a_missing_recorder_costs_nothing,
    an_admin_may_give_up_what_has_no_session,
    a_whole_restore_is_cleared_by_itself,
    what_is_unfinished_without_its_session_counts_too,
    a_session_is_not_made_beside_a_restore,
    outcomes_without_their_key_are_found_out,
    rights_that_a_restore_has_lost_are_told_of,
    an_audit_that_has_not_come_is_told_of,
    what_is_restored_twice_is_there_once,
    a_dump_over_sessions_is_taken_out_again,
    outcomes_of_another_key_are_not_accepted,
);

const HEALTH: &str = "SELECT status FROM idempotence.health WHERE name = 'restore'";
const NOTES: &str = "SELECT count(*) FROM idempotence.restore";
const PAYMENTS: &str = "SELECT idem_create_session('payments', ttl => '6 days', owner => 'app')";

/// Makes a dump of a cluster of its own. It has 500 outcomes in a session of role `app`. Role `clerk` has
/// recorded them.
async fn dumped(version: Version) -> Result<(Cluster, String)> {
    let source = Cluster::start(version)?;
    source.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    source.create_database("old")?;
    source.psql(
        "old",
        "SELECT idem_grant('clerk'); SELECT idem_create_session('payments', ttl => '6 days', owner => 'app')",
    )?;
    let app = source.connect_as("old", "clerk").await?;
    app.text(
        "SELECT count(r.status) FROM generate_series(1, 500) n, idem_begin('payments', n::text) b,
                LATERAL (SELECT b.status, idem_record('payments', n::text, to_jsonb(n))) r WHERE b.status = 'started'",
    )
    .await?;
    let client = app.register("timeout => '1 day'").await?;
    app.execute(&client, "1", "1").await?;
    app.text("BEGIN; SELECT FROM idem_begin('payments', 'steps'); SELECT idem_checkpoint('payments', 'steps', 'half'); COMMIT")
        .await?;
    app.text("SELECT FROM idem_begin('payments', 'charge', lease => '1 day')").await?;
    ensure!(source.psql("old", "SELECT count(*) FROM idempotence.outcomes")?.trim_end() == "501");
    let file = dump_to_file(&source, "old")?;
    Ok((source, file))
}

/// Runs `pg_restore` with these options. Returns whether it ended without an error.
fn restore(target: &Cluster, file: &str, options: &[&str]) -> Result<bool> {
    let mut command = target.program("pg_restore");
    command.args(options).arg("-d").arg(target.connect_string("new", "postgres")).arg(file);
    Ok(command.output()?.status.success())
}

/// The contents of a dump without the rows of one table, for option -L of `pg_restore`.
fn without_rows_of(target: &Cluster, file: &str, table: &str) -> Result<String> {
    let listed = String::from_utf8(target.program("pg_restore").arg("-l").arg(file).output()?.stdout)?;
    let rows = format!("TABLE DATA idempotence {table} ");
    let wanted: Vec<&str> = listed.lines().filter(|line| !line.contains(&rows)).collect();
    ensure!(wanted.len() + 1 == listed.lines().count(), "{listed}");
    let list = format!("{file}.without.{table}");
    std::fs::write(&list, wanted.join("\n"))?;
    Ok(list)
}

/// Restores into a cluster in which the owner of the session is missing, so that the COPY of `session` fails.
/// The role is created afterwards, when it is too late.
async fn half_restored(version: Version, file: &str) -> Result<(Cluster, Connection)> {
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE clerk LOGIN")?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    ensure!(!restore(&target, file, &[])?, "pg_restore has not complained");
    ensure!(target.psql("new", "SELECT count(*) FROM idempotence.session")?.trim_end() == "0");
    ensure!(target.psql("new", "SELECT count(*) FROM idempotence.outcome_0")?.trim_end() == "500");
    target.psql("new", "CREATE ROLE app; GRANT app TO clerk")?;
    let app = target.connect_as("new", "clerk").await?;
    Ok((target, app))
}

/// Checks that the creation of the session is refused, with a hint.
async fn refused(app: &Connection) -> Result<()> {
    let error = app.error(PAYMENTS).await?;
    ensure!(error.code().code() == "XX001", "{error:?}");
    ensure!(error.message() == "session \"payments\" cannot be new: a restore has left out sessions", "{error:?}");
    ensure!(error.detail().is_some_and(|detail| detail.contains("has rows of session")), "{error:?}");
    ensure!(error.hint().is_some_and(|hint| hint.contains("idem_accept_restore()")), "{error:?}");
    Ok(())
}

// Goal: a deployment script that creates its sessions after half a restore does not start a new series.
// Method: the creation is refused before a sweep has looked, and after it; the view health tells about it.
// Then the sessions are restored, and the requests that were done are replayed.
async fn outcomes_without_their_session_are_not_executed_again(version: Version) -> Result<()> {
    let (source, file) = dumped(version).await?;
    let (target, app) = half_restored(version, &file).await?;
    let dba = target.connect("new").await?;
    ensure!(dba.text(HEALTH).await? == "critical");
    incomplete(&app, PAYMENTS, "idempotence.session").await?;
    for _ in 0..2 {
        dba.text("CALL idem_sweep()").await?;
        ensure!(dba.text(HEALTH).await? == "critical");
        incomplete(&app, PAYMENTS, "idempotence.session").await?;
    }
    // The session was not created, and the backend does not remember it. Nobody is told to make it, nor to register anew.
    incomplete(&app, "SELECT idem_begin('payments', '17')", "idempotence.session").await?;
    let client = client_session(&source)?;
    let (_, node) = client.split_once('@').context("its name tells the node")?;
    target.conf("idempotence.node", node)?;
    target.restart()?;
    let (dba, app) = (target.connect("new").await?, target.connect_as("new", "clerk").await?);
    incomplete(&app, &format!("SELECT idem_begin('{client}', '1')"), "idempotence.session").await?;

    ensure!(restore(&target, &file, &["--data-only", "-n", "idempotence", "-t", "session"])?);
    app.text(PAYMENTS).await?;
    ensure!(app.replay("payments", "17").await? == "succeeded|17");
    app.text("SELECT idem_create_session('more')").await?;
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(HEALTH).await? == "ok");
    ensure!(dba.text(NOTES).await? == "0");
    Ok(())
}

/// The client session of the dumped database.
fn client_session(source: &Cluster) -> Result<String> {
    let session = source.psql("old", "SELECT session FROM idempotence.sessions WHERE kind = 'client'")?;
    Ok(session.trim_end().to_owned())
}

/// Checks that a call is refused because the restore of this table is missing.
async fn incomplete(app: &Connection, sql: &str, table: &str) -> Result<()> {
    let error = app.error(sql).await?;
    app.text("ROLLBACK").await?;
    ensure!(error.code().code() == "XX001", "{error:?}");
    ensure!(error.message() == "a restore of the extension's tables is not complete", "{error:?}");
    ensure!(error.detail().is_some_and(|detail| detail.contains(table)), "{error:?}");
    Ok(())
}

// Goal: if neither the sessions nor the outcomes are restored, since roles are missing or for another reason, only the
// restored secret shows that something is missing.
// Method: nothing is answered until the data of all tables has been restored once more, as the hint says.
async fn what_failed_to_come_at_all_is_not_executed_again(version: Version) -> Result<()> {
    let (_source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    let list = without_rows_of(&target, &file, "outcome_0")?;
    ensure!(!restore(&target, &file, &["-L", &list])?, "pg_restore has not complained");
    ensure!(target.psql("new", "SELECT count(*) FROM idempotence.outcome_0")?.trim_end() == "0");
    let dba = target.connect("new").await?;
    target.psql("new", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app; SELECT idem_grant('clerk')")?;
    let app = target.connect_as("new", "clerk").await?;
    for _ in 0..2 {
        incomplete(&app, PAYMENTS, "idempotence.session").await?;
        ensure!(dba.text(HEALTH).await? == "critical");
        dba.text("CALL idem_sweep()").await?;
    }
    // The sessions without the outcomes are not enough.
    ensure!(restore(&target, &file, &["--data-only", "-n", "idempotence", "-t", "session"])?);
    incomplete(&app, "SELECT idem_begin('payments', '17')", "idempotence.outcome_0").await?;
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(HEALTH).await? == "critical");
    // The rows that were restored the first time cannot be restored again.
    restore(&target, &file, &["--data-only", "-n", "idempotence"])?;
    ensure!(app.replay("payments", "17").await? == "succeeded|17");
    app.text("SELECT idem_create_session('more')").await?;
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(HEALTH).await? == "ok");
    Ok(())
}

// Goal: a recorder whose role is missing costs no outcome, and no other role takes his name.
// Method: he is dropped before the dump, or missing after it. On the other server his oid is that of somebody else.
async fn a_missing_recorder_costs_nothing(version: Version) -> Result<()> {
    let source = Cluster::start(version)?;
    source.psql(
        "postgres",
        "CREATE ROLE app LOGIN; CREATE ROLE gone LOGIN IN ROLE app; CREATE ROLE clerk LOGIN IN ROLE app",
    )?;
    source.create_database("old")?;
    source.psql("old", &format!("SELECT idem_grant('clerk'), idem_grant('gone'); {PAYMENTS}"))?;
    source.connect_as("old", "gone").await?.execute("payments", "16", "16").await?;
    source.connect_as("old", "clerk").await?.execute("payments", "17", "17").await?;
    source.psql("old", "SELECT idem_revoke('gone'); DROP ROLE gone")?;
    let file = dump_to_file(&source, "old")?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app LOGIN; CREATE ROLE innocent")?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    ensure!(!restore(&target, &file, &[])?, "pg_restore has not complained of the rights of a missing role");
    target.psql("new", "SELECT idem_grant('app')")?;
    let app = target.connect_as("new", "app").await?;
    ensure!(app.replay("payments", "17").await? == "succeeded|17");
    let recorders = "SELECT string_agg(recorded_by, ', ' ORDER BY request) FROM idempotence.outcomes";
    ensure!(app.text(recorders).await? == "gone, clerk");
    let dba = target.connect("new").await?;
    let granted =
        "SELECT count(*) FROM idempotence.audit WHERE action = 'grant' AND found LIKE '%gone' AND login <> ''";
    ensure!(dba.text(granted).await? == "1");
    Ok(())
}

// Goal: an admin may give up what is missing, and must say why.
// Method: half a restore as above. A role that may not decide tries to, and then an admin decides.
async fn an_admin_may_give_up_what_has_no_session(version: Version) -> Result<()> {
    let (_source, file) = dumped(version).await?;
    let (target, app) = half_restored(version, &file).await?;
    let dba = target.connect("new").await?;
    dba.text("CALL idem_sweep()").await?;
    incomplete(&app, PAYMENTS, "idempotence.session").await?;
    ensure!(app.sqlstate("SELECT idem_accept_restore('please')").await? == "42501");
    ensure!(dba.sqlstate("SELECT idem_accept_restore(' ')").await? == "22023");
    dba.text("BEGIN; SELECT idem_accept_restore('a try'); ROLLBACK").await?;
    incomplete(&app, PAYMENTS, "idempotence.session").await?;
    ensure!(dba.text("SELECT idem_accept_restore('ticket 4711: a test system')").await? == "t");
    ensure!(dba.text("SELECT idem_accept_restore('again')").await? == "f");
    let decided = "SELECT action, reason FROM idempotence.audit WHERE action = 'accept_restore'";
    ensure!(dba.text(decided).await? == "accept_restore|ticket 4711: a test system");
    ensure!(dba.text(HEALTH).await? == "ok");
    app.text(PAYMENTS).await?;
    app.execute("payments", "17", "18").await?;
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(HEALTH).await? == "ok");
    Ok(())
}

// Goal: a complete restore asks nobody for a decision, however it was done.
// Method: restores by parallel jobs, in one transaction, and with the outcomes in a transaction before or
// after their sessions.
async fn a_whole_restore_is_cleared_by_itself(version: Version) -> Result<()> {
    let (_source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    let dba = target.connect("postgres").await?;
    // An option -t of pg_restore takes one name.
    let others = ["outcome_1", "outcome_2", "outcome_long", "reply", "checkpoint", "lease", "audit", "granted"]
        .map(|table| ["-t", table])
        .concat();
    let outcomes = [&["--data-only", "-t", "outcome_0"], &others[..]].concat();
    let sessions = ["--data-only", "-t", "session", "-t", "secret"];
    let ways: [&[&[&str]]; 5] = [
        &[&["-j", "2"]],
        &[&["--single-transaction"]],
        &[&["--schema-only"], &outcomes, &sessions],
        &[&["--schema-only"], &sessions, &outcomes],
        &[&["--schema-only"], &["--data-only", "-t", "session"], &outcomes, &["--data-only", "-t", "secret"]],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        dba.text("DROP DATABASE IF EXISTS new").await?;
        dba.text("CREATE DATABASE new TEMPLATE template0").await?;
        for (part, options) in way.iter().enumerate() {
            ensure!(restore(&target, &file, options)?, "{options:?}");
            if number == 2 && part == 1 {
                target.psql("new", "CALL idem_sweep()")?;
                ensure!(target.psql("new", HEALTH)?.trim_end() == "critical");
            }
            // The worker may sweep between two COPYs.
            if number == 4 && part < 3 {
                target.psql("new", "CALL idem_sweep()")?;
            }
        }
        // The restore is known to be complete even if nobody has swept.
        target.psql("new", "SELECT idem_create_session('more')")?;
        ensure!(target.psql("new", HEALTH)?.trim_end() != "ok");
        target.psql("new", "CALL idem_sweep()")?;
        ensure!(target.psql("new", HEALTH)?.trim_end() == "ok", "{way:?}");
        ensure!(target.psql("new", NOTES)?.trim_end() == "0");
        let replay = "SELECT status || (response #>> '{}') FROM idem_begin('payments', '17')";
        ensure!(target.psql("new", replay)?.trim_end() == "succeeded17");
    }
    Ok(())
}

// Goal: rows of client sessions and of unfinished requests count like outcomes.
// Method: only these tables are restored, one after the other.
async fn what_is_unfinished_without_its_session_counts_too(version: Version) -> Result<()> {
    let (_source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    let dba = target.connect("postgres").await?;
    for table in ["reply", "checkpoint", "lease"] {
        dba.text("DROP DATABASE IF EXISTS new").await?;
        dba.text("CREATE DATABASE new TEMPLATE template0").await?;
        for options in [&["--schema-only"] as &[&str], &["--data-only", "-t", table]] {
            ensure!(restore(&target, &file, options)?, "{options:?}");
        }
        let new = target.connect("new").await?;
        refused(&new).await?;
        new.text("CALL idem_sweep()").await?;
        ensure!(new.text(HEALTH).await? == "critical", "{table}");
        // Rows that are gone need no session. The sweep looks for rows again an hour later.
        new.text(&format!("DELETE FROM idempotence.{table}")).await?;
        new.text(PAYMENTS).await?;
        new.text("CALL idem_sweep()").await?;
        ensure!(new.text(HEALTH).await? == "critical", "{table}");
        new.text("UPDATE idempotence.restore SET looked_at = looked_at - interval '61 minutes'").await?;
        new.text("CALL idem_sweep()").await?;
        ensure!(new.text(HEALTH).await? == "ok", "{table}");
    }
    Ok(())
}

// Goal: while a restore is at work, nobody can tell whether a session is new.
// Method: a restoring transaction stays open. Others create sessions that are new, and sessions that exist.
async fn a_session_is_not_made_beside_a_restore(version: Version) -> Result<()> {
    const MAKE: &str = "SELECT idem_create_session('new')";
    let server = Cluster::start(version)?;
    server.create_database("new")?;
    let (restorer, app) = (server.connect("new").await?, server.connect("new").await?);
    app.text("SELECT idem_create_session('there'); SET idempotence.wait = '50ms'").await?;
    restorer.text("BEGIN; INSERT INTO idempotence.outcome_0 SELECT * FROM idempotence.outcome_0").await?;
    ensure!(app.sqlstate(MAKE).await? == "55P03");
    app.text("SELECT idem_create_session('there')").await?;
    // The restoring transaction may create sessions itself.
    restorer.text("SELECT idem_create_session('mine'); COMMIT").await?;
    app.text(MAKE).await?;
    Ok(())
}

// Goal: sessions or outcomes that were restored without the key that their digests were made with are found out at once,
// however they came, whether a sweep has looked or not.
// Method: all but the secret, into a database that has a key in use, with and without triggers; and into one that has
// none. Each is put right.
async fn outcomes_without_their_key_are_found_out(version: Version) -> Result<()> {
    const SECRET: &str = "SELECT level, detail FROM idempotence.health WHERE name = 'secret'";
    const WELL: &str = "0|outcomes are found by the key that they were recorded with";
    let (_source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    let dba = target.connect("postgres").await?;
    let but_the_secret =
        ["--data-only", "-t", "session", "-t", "outcome_0", "-t", "outcome_1", "-t", "outcome_2", "-t", "reply"];
    for triggers in [true, false] {
        dba.text("DROP DATABASE IF EXISTS new").await?;
        dba.text("CREATE DATABASE new TEMPLATE template0").await?;
        ensure!(restore(&target, &file, &["--schema-only"])?);
        target.psql("new", "SELECT idem_create_session('own'); SELECT idem_run('own', 'k', 'SELECT 1')")?;
        ensure!(target.psql("new", SECRET)?.trim_end() == WELL);
        let disable: &[&str] = if triggers { &[] } else { &["--disable-triggers"] };
        ensure!(restore(&target, &file, &[&but_the_secret, disable].concat())?);
        for _ in 0..2 {
            let told = target.psql("new", SECRET)?;
            ensure!(
                told.trim_end() == "2|there are outcomes that were recorded with another key than the one in use",
                "{told}"
            );
            target.psql("new", "CALL idem_sweep()")?;
        }
        // This is what the row warns of, where nothing tells of a restore.
        let new = target.connect("new").await?;
        let found = match new.try_text("SELECT status FROM idem_lookup('payments', '17')").await {
            Ok(status) => status,
            Err(error) => error.code().context("an SQLSTATE")?.code().to_owned(),
        };
        ensure!(found == if triggers { "XX001" } else { "unknown" }, "{found}");
        ensure!(new.text("SELECT idem_ready()").await? == "f");
        drop(new);
        target.psql("new", "DELETE FROM idempotence.outcome_0 WHERE session = (SELECT id FROM idempotence.session WHERE name = 'payments')")?;
        ensure!(target.psql("new", SECRET)?.trim_end() == WELL, "{}", target.psql("new", SECRET)?);
    }

    dba.text("DROP DATABASE new").await?;
    dba.text("CREATE DATABASE new TEMPLATE template0").await?;
    ensure!(restore(&target, &file, &["--schema-only"])?);
    ensure!(restore(&target, &file, &but_the_secret)?);
    let new = target.connect("new").await?;
    ensure!(new.text(SECRET).await? == "2|there are sessions, but table idempotence.secret has no key in use");
    ensure!(new.text("SELECT idem_ready()").await? == "f");
    ensure!(new.sqlstate("SELECT idem_begin('payments', '17')").await? == "XX001");
    for table in ["outcome_long", "checkpoint", "lease", "stream", "secret"] {
        ensure!(restore(&target, &file, &["--data-only", "-t", table])?, "{table}");
    }
    ensure!(new.text(SECRET).await? == WELL);
    ensure!(new.text("SELECT idem_ready()").await? == "t");
    ensure!(new.replay("payments", "17").await? == "succeeded|17");
    Ok(())
}

// Goal: rights that are lost because another role was missing are told of, and the hint gives them back.
// Method: two roles of one level, one of which is missing, since pg_restore sends the GRANTs on an object at once.
async fn rights_that_a_restore_has_lost_are_told_of(version: Version) -> Result<()> {
    const RIGHTS: &str = "SELECT status || ': ' || detail FROM idempotence.health WHERE name = 'rights'";
    const REPAIR: &str =
        "SELECT idem_grant(r.oid::regrole, g.level) FROM idempotence.granted g JOIN pg_roles r ON r.rolname = g.role";
    let (source, _) = dumped(version).await?;
    source.psql("old", "CREATE ROLE missing; SELECT idem_grant('missing')")?;
    let file = dump_to_file(&source, "old")?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    ensure!(!restore(&target, &file, &[])?, "pg_restore has not complained");
    let (dba, app) = (target.connect("new").await?, target.connect_as("new", "clerk").await?);
    ensure!(app.sqlstate("SELECT idem_begin('payments', '17')").await? == "42501");
    let told = dba.text(RIGHTS).await?;
    ensure!(told.starts_with("critical: role clerk lacks "), "{told}");
    ensure!(told.contains("role missing, which was granted level user, does not exist"), "{told}");
    let hint = dba.text("SELECT hint FROM idempotence.health WHERE name = 'rights'").await?;
    ensure!(hint.contains(REPAIR), "{hint}");
    dba.text(REPAIR).await?;
    ensure!(app.replay("payments", "17").await? == "succeeded|17");
    let told = dba.text(RIGHTS).await?;
    ensure!(told == "warning: role missing, which was granted level user, does not exist", "{told}");
    dba.text("DELETE FROM idempotence.granted WHERE role = 'missing'").await?;
    ensure!(dba.text(RIGHTS).await? == "ok: each role has the rights that idem_grant gave it");
    Ok(())
}

// Goal: that the audit was left out is told of until it comes or is given up, and keeps no request from its answer.
// Method: all of a dump but the rows of the audit is restored, and then these.
async fn an_audit_that_has_not_come_is_told_of(version: Version) -> Result<()> {
    let (_source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    let list = without_rows_of(&target, &file, "audit")?;
    ensure!(restore(&target, &file, &["-L", &list])?);
    let dba = target.connect("new").await?;
    for _ in 0..2 {
        dba.text("CALL idem_sweep()").await?;
        let told = dba.text("SELECT status || detail FROM idempotence.health WHERE name = 'restore'").await?;
        ensure!(told.starts_with("warning") && told.ends_with(": idempotence.audit"), "{told}");
    }
    ensure!(dba.replay("payments", "17").await? == "succeeded|17");
    dba.text("SELECT idem_create_session('more')").await?;
    ensure!(restore(&target, &file, &["--data-only", "-n", "idempotence", "-t", "audit"])?);
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(HEALTH).await? == "ok");
    ensure!(dba.text(NOTES).await? == "0");
    ensure!(dba.text("SELECT count(*) FROM idempotence.audit WHERE action = 'grant'").await? == "1");
    Ok(())
}

// Goal: data that is restored once more than needed does no harm: no row of it is there twice, and no restore that was
// complete is in question again.
// Method: a database that was swept is dumped and restored, and swept. Then all its data is restored once more, at once
// and table by table, with and without a sweep in between, and with new grants beside the restored ones.
async fn what_is_restored_twice_is_there_once(version: Version) -> Result<()> {
    const ROWS: &str = "SELECT (SELECT count(*) FROM idempotence.secret), (SELECT count(*) FROM idempotence.audit),
        (SELECT count(*) FROM idempotence.granted), (SELECT count(*) FROM idempotence.outcomes)";
    const TROUBLE: &str =
        "SELECT name, detail FROM idempotence.health WHERE level > 0 AND name IN ('restore', 'secret')";
    let (source, _) = dumped(version).await?;
    source.psql("old", "CALL idem_sweep(); SELECT idem_grant('app', 'monitor')")?;
    let file = dump_to_file(&source, "old")?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    target.psql("postgres", "CREATE DATABASE new TEMPLATE template0")?;
    ensure!(restore(&target, &file, &["--schema-only"])?);
    // What was granted anew before its row comes.
    target.psql("new", "SELECT idem_grant('clerk')")?;
    ensure!(restore(&target, &file, &["--data-only"])?);
    let (dba, app) = (target.connect("new").await?, target.connect_as("new", "clerk").await?);
    ensure!(app.replay("payments", "17").await? == "succeeded|17");
    let rows = dba.text(ROWS).await?;
    ensure!(rows.starts_with("2|") && rows.ends_with("|2|501"), "{rows}");
    let doubled: [&[&str]; 5] = [
        &["--data-only", "-n", "idempotence"],
        &["--data-only", "-t", "audit"],
        &["--data-only", "-t", "granted"],
        &["--data-only", "-t", "secret"],
        &["--data-only", "-t", "session"],
    ];
    for swept in [false, true] {
        for options in doubled {
            if swept {
                dba.text("CALL idem_sweep()").await?;
                ensure!(dba.text(TROUBLE).await?.is_empty(), "before {options:?}: {}", dba.text(TROUBLE).await?);
            }
            let passed = restore(&target, &file, options)?;
            ensure!(passed == (options.contains(&"audit") || options.contains(&"granted")), "{options:?}");
            ensure!(dba.text(ROWS).await? == rows, "after {options:?}: {}", dba.text(ROWS).await?);
            ensure!(app.replay("payments", "18").await? == "succeeded|18");
            app.text("SELECT idem_create_session('more')").await?;
        }
    }
    // The refusal says what is the matter, and never what the key is.
    let mut command = target.program("pg_restore");
    command.args(["--data-only", "-t", "secret", "-d"]).arg(target.connect_string("new", "postgres")).arg(&file);
    let told = String::from_utf8(command.output()?.stderr)?;
    ensure!(told.contains("the key of the digests has been restored before") && !told.contains("\\x"), "{told}");
    dba.text("CALL idem_sweep()").await?;
    ensure!(dba.text(TROUBLE).await?.is_empty(), "{}", dba.text(TROUBLE).await?);
    Ok(())
}

// Goal: a dump that was restored over sessions is told of with one voice, and can be taken out again: what was there goes on.
// Method: two databases with a session of one name, and outcomes of their own; the rows of health that speak of it, and the
// steps of docs/operations.md.
async fn a_dump_over_sessions_is_taken_out_again(version: Version) -> Result<()> {
    let (source, file) = dumped(version).await?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    target.create_database("new")?;
    target.psql("new", &format!("SELECT idem_grant('clerk'); {PAYMENTS}"))?;
    let app = target.connect_as("new", "clerk").await?;
    app.execute("payments", "here", "1").await?;
    ensure!(!restore(&target, &file, &["--data-only"])?, "pg_restore has not complained");
    let told = target.psql(
        "new",
        "SELECT name, hint LIKE '%the row secret tells what to do%' OR hint LIKE '%Dump and restore%', hint LIKE '%idem_accept_restore%'
         FROM idempotence.health WHERE level = 2 ORDER BY name",
    )?;
    ensure!(told.trim_end() == "restore|t|f\nsecret|t|f", "{told}");
    ensure!(app.sqlstate("SELECT FROM idem_begin('payments', 'here')").await? == "XX001");

    let key = source.psql("old", "SELECT in_use_since FROM idempotence.secret")?;
    let mut shows = target.program("pg_restore");
    let shown = shows.args(["-a", "-n", "idempotence", "-t", "secret", "-f", "-", &file]).output()?.stdout;
    ensure!(String::from_utf8(shown)?.contains(key.trim_end()), "the key of the dump is not shown");
    target.psql("new", &format!("DELETE FROM idempotence.secret WHERE in_use_since = '{}'", key.trim_end()))?;
    target.psql("new", "SELECT idem_accept_restore('it came over what was there')")?;
    ensure!(app.replay("payments", "here").await? == "succeeded|1");
    let level = "SELECT count(*) FROM idempotence.health WHERE level > 0 AND name IN ('restore', 'secret')";
    target.wait_for("new", level, "0").await?;
    app.text("SELECT idem_create_session('another')").await?;
    Ok(())
}

// Goal: where a dump came in beside sessions of other names, nobody is told that all is well once its key is gone, and
// nothing that it says is done is executed again.
// Method: as above, with a session of another name, so that all sessions come in. The dump's key is deleted, with and
// without a sweep before; then its outcomes are.
async fn outcomes_of_another_key_are_not_accepted(version: Version) -> Result<()> {
    const BEGIN: &str = "SELECT FROM idem_begin('payments', '17')";
    const ACCEPT: &str = "SELECT idem_accept_restore('it came over what was there')";
    let (source, file) = dumped(version).await?;
    let key = source.psql("old", "SELECT in_use_since FROM idempotence.secret")?;
    let target = Cluster::start(version)?;
    target.psql("postgres", "CREATE ROLE app; CREATE ROLE clerk LOGIN IN ROLE app")?;
    for (database, swept) in [("new", false), ("swept", true)] {
        target.create_database(database)?;
        target.psql(database, "SELECT idem_grant('clerk'); SELECT idem_create_session('orders', owner => 'app')")?;
        let (dba, app) = (target.connect(database).await?, target.connect_as(database, "clerk").await?);
        app.execute("orders", "here", "1").await?;
        let mut command = target.program("pg_restore");
        command.arg("--data-only").arg("-d").arg(target.connect_string(database, "postgres")).arg(&file);
        ensure!(command.output()?.status.success(), "pg_restore has complained");
        for deleted in [false, true] {
            if deleted {
                dba.text(&format!("DELETE FROM idempotence.secret WHERE in_use_since = '{}'", key.trim_end())).await?;
            }
            // With two keys other steps fail, and the worker goes on to this one.
            while swept && dba.text("SELECT idempotence.sweep_step('orphans')").await? == "t" {}
            for caller in [&app, &target.connect_as(database, "clerk").await?] {
                let answer = caller.sqlstate(BEGIN).await?;
                ensure!(answer == "XX001", "deleted: {deleted}, swept: {swept}: {answer}");
                ensure!(caller.text("SELECT idem_ready()").await? == "f", "deleted: {deleted}, swept: {swept}");
            }
            let refused = dba.error(ACCEPT).await?;
            ensure!(refused.code().code() == "XX001" && refused.detail().is_some(), "{refused:?}");
            let hint = refused.hint().unwrap_or_default();
            ensure!(hint.contains(if deleted { "Dump and restore" } else { "secret of idempotence.health" }), "{hint}");
            if deleted {
                ensure!(refused.detail().is_some_and(|detail| detail.contains("\"payments\"")), "{refused:?}");
            }
            let told = dba
                .text("SELECT name, level, hint LIKE '%row secret tells what to do%' OR hint LIKE '%Dump and restore%', hint LIKE '%idem_accept_restore%'
                       FROM idempotence.health WHERE name IN ('restore', 'secret') ORDER BY name")
                .await?;
            ensure!(told == "restore|1|t|f\nsecret|2|t|f", "deleted: {deleted}, swept: {swept}: {told}");
        }
        dba.text("DELETE FROM idempotence.outcome_0 WHERE session = (SELECT id FROM idempotence.session WHERE name = 'payments')")
            .await?;
        ensure!(dba.text(ACCEPT).await? == "t");
        ensure!(dba.text("SELECT idem_ready()").await? == "t");
        ensure!(app.replay("orders", "here").await? == "succeeded|1");
        let level = "SELECT count(*) FROM idempotence.health WHERE level > 0 AND name IN ('restore', 'secret')";
        ensure!(dba.text(level).await? == "0");
    }
    Ok(())
}
