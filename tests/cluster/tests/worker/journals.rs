//! The worker deletes what has expired in journals, whose triggers are code of users.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::client::at_work;
use idempotence_cluster_tests::shop::{DATABASE, start_preloaded};

/// Three journals of three owners, each with a row that has expired. In the order of their names: one whose trigger takes
/// its time, one whose trigger brings back more than is deleted, and one without a trigger.
const JOURNALS: &str = "
    CREATE ROLE slow; CREATE ROLE endless; CREATE ROLE plain;
    CREATE SCHEMA of_users;
    GRANT CREATE, USAGE ON SCHEMA of_users TO slow, endless, plain;
    DO $$
    DECLARE
      of_role text;
    BEGIN
      FOREACH of_role IN ARRAY '{slow,endless,plain}'::text[] LOOP
        PERFORM idem_grant(of_role::regrole);
        EXECUTE format('SET LOCAL ROLE %I', of_role);
        PERFORM idem_create_journal(format('of_users.%I', of_role));
        PERFORM idem_create_session(of_role, journal => format('of_users.%I', of_role));
        EXECUTE format('INSERT INTO of_users.%I (tenant, session, request, expires_at) VALUES ('''', %L, ''1'', ''-infinity'')', of_role, of_role);
        RESET ROLE;
      END LOOP;
    END $$;
    CREATE FUNCTION of_users.sleep() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN OLD; END $$;
    CREATE FUNCTION of_users.sleep_on() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN
        LOOP
          BEGIN
            PERFORM pg_catalog.pg_sleep(60);
          EXCEPTION WHEN query_canceled THEN
            NULL;
          END;
        END LOOP;
      END $$;
    CREATE TRIGGER sleep BEFORE DELETE ON of_users.slow FOR EACH ROW EXECUTE FUNCTION of_users.sleep();
    CREATE FUNCTION of_users.bring_back() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN
        INSERT INTO of_users.endless (tenant, session, request, expires_at)
        SELECT '', 'endless', pg_catalog.gen_random_uuid(), '-infinity' FROM pg_catalog.generate_series(1, 1100);
        RETURN NULL;
      END $$;
    CREATE TRIGGER bring_back AFTER DELETE ON of_users.endless FOR EACH STATEMENT EXECUTE FUNCTION of_users.bring_back()";

// Goal: whatever the triggers of a journal do, the worker goes on with all other work.
// Method: triggers that sleep, and that bring back more than is deleted. The row of another journal goes all the same, and
// silent client sessions end, again and again. The log names the journal that cannot be swept.
pub async fn triggers_of_users_keep_the_worker_from_nothing(version: Version) -> Result<()> {
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
    ensure!(connection.text("SELECT count(*) FROM of_users.slow").await? == "1");
    server.wait_for_log("what has expired in journal of_users.slow cannot be deleted yet: it takes longer").await?;

    // The launcher ends a process that takes no notice of a cancel. The next one passes the journal by.
    connection
        .text(
            "DROP TRIGGER bring_back ON of_users.endless; DROP TRIGGER sleep ON of_users.slow;
             CREATE TRIGGER sleep_on BEFORE DELETE ON of_users.slow FOR EACH ROW EXECUTE FUNCTION of_users.sleep_on()",
        )
        .await?;
    server.wait_for_log("terminating background worker \"idempotence worker\"").await?;
    // Made after the journal that is slow, by the order of their names.
    let later = "SELECT idem_create_journal('of_users.tidy'); SELECT idem_create_session('tidy', journal => 'of_users.tidy');
                 INSERT INTO of_users.tidy (tenant, session, request, expires_at) VALUES ('', 'tidy', '1', '-infinity')";
    connection.text(later).await?;
    server.wait_for(DATABASE, "SELECT count(*) FROM of_users.tidy", "0").await
}
