//! The worker deletes what has expired in journals, which are tables of users.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::c_module::CModule;
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded};
use idempotence_demo::host;

/// Three journals of three owners, each with a row that has expired: one with a trigger of its owner's, one with a
/// superuser's that takes its time, and one without a trigger.
const JOURNALS: &str = "
    CREATE ROLE own; CREATE ROLE slow; CREATE ROLE plain;
    CREATE SCHEMA of_users;
    GRANT CREATE, USAGE ON SCHEMA of_users TO own, slow, plain;
    DO $$
    DECLARE
      of_role text;
    BEGIN
      FOREACH of_role IN ARRAY '{own,slow,plain}'::text[] LOOP
        PERFORM idem_grant(of_role::regrole);
        EXECUTE format('SET LOCAL ROLE %I', of_role);
        PERFORM idem_create_journal(format('of_users.%I', of_role));
        PERFORM idem_create_session(of_role, journal => format('of_users.%I', of_role));
        EXECUTE format('INSERT INTO of_users.%I (tenant, session, request, expires_at) VALUES ('''', %L, ''1'', ''-infinity'')', of_role, of_role);
        RESET ROLE;
      END LOOP;
    END $$;
    CREATE FUNCTION of_users.own() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN LOOP BEGIN PERFORM pg_catalog.pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$;
    ALTER FUNCTION of_users.own() OWNER TO own;
    CREATE TRIGGER own BEFORE DELETE ON of_users.own FOR EACH ROW EXECUTE FUNCTION of_users.own();
    CREATE FUNCTION of_users.sleep() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN OLD; END $$;
    REVOKE EXECUTE ON FUNCTION of_users.sleep() FROM PUBLIC;
    CREATE TRIGGER sleep BEFORE DELETE ON of_users.slow FOR EACH ROW EXECUTE FUNCTION of_users.sleep()";

// Goal: whatever becomes of users' journals, the worker goes on with all other work, and tells which it cannot sweep.
// Method: a trigger of an owner's that takes no notice of a cancel, which is refused, and a superuser's that sleeps, which is
// cut off. The row of another journal goes all the same, and silent client sessions end, again and again.
pub async fn a_journal_that_cannot_be_swept_keeps_the_worker_from_nothing(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.psql(DATABASE, JOURNALS)?;
    server.wait_for(DATABASE, "SELECT count(*) FROM of_users.plain", "0").await?;
    let connection = server.connect(DATABASE).await?;
    for round in 0..3 {
        let silent = connection.register_client(&format!("client {round}"), "2 s").await?;
        server.wait_for(DATABASE, &at_work(&[&silent]), "0").await?;
        connection
            .text("INSERT INTO of_users.plain (tenant, session, request, expires_at) VALUES ('', 'plain', '2', '-infinity')")
            .await?;
        server.wait_for(DATABASE, "SELECT count(*) FROM of_users.plain", "0").await?;
    }
    ensure!(connection.text("SELECT count(*) FROM of_users.own, of_users.slow").await? == "1");
    let told = "SELECT level, detail LIKE '%of_users.own of own (role own) cannot be swept: A journal carries nobody''s code%',
                       detail LIKE '%of_users.slow of slow (role slow) cannot be swept: it takes longer than 0.5 s%'
                FROM idempotence.health WHERE name = 'journals'";
    server.wait_for(DATABASE, told, "1|t|t").await?;
    connection.text("DROP TRIGGER own ON of_users.own; DROP TRIGGER sleep ON of_users.slow").await?;
    server.wait_for(DATABASE, "SELECT level FROM idempotence.health WHERE name = 'journals'", "0").await?;
    ensure!(connection.text("SELECT count(*) FROM of_users.own").await? == "0");
    Ok(())
}

// Goal: an error at the end of a subtransaction, as a journal on another server may raise it, neither brings the worker down
// nor keeps it from other journals.
// Method: a module whose release or rollback of a subtransaction fails each time that a row of a journal is deleted.
pub async fn a_subtransaction_that_cannot_end_ends_no_worker(version: Version) -> Result<()> {
    let module = CModule::build(version, "faulty_end", &[])?;
    let server = start_preloaded(version)?;
    server.psql(DATABASE, "ALTER SYSTEM SET idempotence.naptime = '1d'; SELECT pg_reload_conf()")?;
    server.psql(DATABASE, JOURNALS)?;
    let faulty = format!(
        "DROP TRIGGER own ON of_users.own; DROP TRIGGER sleep ON of_users.slow;
         CREATE FUNCTION of_users.faulty_end() RETURNS trigger LANGUAGE c AS '{}';
         REVOKE EXECUTE ON FUNCTION of_users.faulty_end() FROM PUBLIC;
         CREATE TRIGGER faulty BEFORE DELETE ON of_users.own FOR EACH ROW EXECUTE FUNCTION of_users.faulty_end('release');
         CREATE TRIGGER faulty BEFORE DELETE ON of_users.slow FOR EACH ROW EXECUTE FUNCTION of_users.faulty_end('rollback');
         ALTER SYSTEM RESET idempotence.naptime; SELECT pg_reload_conf()",
        module.library()
    );
    server.psql(DATABASE, &faulty)?;
    server.wait_for_log("could not sweep database \"shop\": the rollback fails").await?;
    let told = "SELECT detail LIKE '%of_users.own of own (role own) cannot be swept: the release fails%'
                FROM idempotence.health WHERE name = 'journals'";
    server.wait_for(DATABASE, told, "t").await?;
    let connection = server.connect(DATABASE).await?;
    for number in 2..5 {
        let insert = format!(
            "INSERT INTO of_users.plain (tenant, session, request, expires_at) VALUES ('', 'plain', '{number}', '-infinity')"
        );
        connection.text(&insert).await?;
        server.wait_for(DATABASE, "SELECT count(*) FROM of_users.plain", "0").await?;
    }
    Ok(())
}

// Goal: a visit that takes no notice of being told to end holds up no other database.
// Method: the process of a visit is stopped, so that no signal reaches it. Meanwhile sessions of another database end.
pub async fn a_visit_that_does_not_end_stops_no_other_database(version: Version) -> Result<()> {
    let server = start_preloaded(version)?;
    server.psql(DATABASE, JOURNALS)?;
    server.create_database("other")?;
    let pid = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotence worker' AND datname = 'shop' AND wait_event = 'PgSleep'";
    let watcher = server.connect(DATABASE).await?;
    let process: i32 = loop {
        let found = watcher.text(pid).await?;
        if !found.is_empty() {
            break found.parse()?;
        }
    };
    host::freeze(process);
    let left = format!("could not sweep database \"shop\": process {process} takes no notice of being told to end");
    server.wait_for_log(&left).await?;
    let other = server.connect("other").await?;
    let silent = other.register_client("client", "2 s").await?;
    server.wait_for("other", &at_work(&[&silent]), "0").await?;
    host::thaw(process);
    let silent = watcher.register_client("client", "2 s").await?;
    server.wait_for(DATABASE, &at_work(&[&silent]), "0").await
}
