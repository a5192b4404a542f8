//! Journals, which are tables of users: no code of their owners is called in the processes of others, and nobody waits for
//! them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version};

const DATABASE: &str = "postgres";

/// Two roles that may make sessions, one that looks, and one that repairs. `bob` is the one who attacks; `loot` is where he
/// keeps what he gets.
const ROLES: &str = "
    CREATE EXTENSION idempotence;
    CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE monitor LOGIN; CREATE ROLE admin LOGIN;
    SELECT idem_grant('alice'), idem_grant('bob'), idem_grant('monitor', 'monitor'), idem_grant('admin', 'admin');
    GRANT CREATE ON DATABASE postgres TO bob;
    CREATE SCHEMA s AUTHORIZATION bob; GRANT ALL ON SCHEMA s TO alice; GRANT USAGE ON SCHEMA s TO PUBLIC;
    CREATE TABLE s.loot (who text); ALTER TABLE s.loot OWNER TO bob; GRANT INSERT ON s.loot TO PUBLIC";

fn start(version: Version) -> Result<Cluster> {
    let server = Cluster::start(version)?;
    server.psql(DATABASE, ROLES)?;
    Ok(server)
}

/// Functions of the attacker. Each notes as whom it is called.
const FUNCTIONS: &str = "
    CREATE FUNCTION s.take() RETURNS void LANGUAGE sql AS 'INSERT INTO s.loot VALUES (current_user)';
    CREATE FUNCTION s.note(VARIADIC text[] DEFAULT '{}') RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
      $$ BEGIN PERFORM s.take(); RETURN true; END $$;
    CREATE FUNCTION s.note_set(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql SET work_mem = '1MB' AS
      $$ BEGIN PERFORM s.take(); RETURN true; END $$;
    CREATE FUNCTION s.note_row() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN INSERT INTO s.loot VALUES (current_user); RETURN coalesce(NEW, OLD); END $$;
    CREATE DOMAIN s.noting AS text CHECK (s.note(VALUE));
    CREATE VIEW s.seen AS SELECT s.note('a')";

/// What an owner may hang on his table, and how he takes it away. What no catalog tells of comes last.
const WAYS: [(&str, &str); 15] = [
    (
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON s.j FOR EACH ROW EXECUTE FUNCTION s.note_row()",
        "DROP TRIGGER t ON s.j",
    ),
    ("CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON s.j EXECUTE FUNCTION s.note_row()", "DROP TRIGGER t ON s.j"),
    (
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON s.j DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION s.note_row()",
        "DROP TRIGGER t ON s.j",
    ),
    ("CREATE RULE r AS ON INSERT TO s.j DO ALSO INSERT INTO s.loot VALUES (current_user)", "DROP RULE r ON s.j"),
    (
        "ALTER TABLE s.j ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON s.j USING (s.note(request))",
        "DROP POLICY p ON s.j; ALTER TABLE s.j DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY",
    ),
    ("ALTER TABLE s.j ADD CONSTRAINT c CHECK (s.note(request)) NOT VALID", "ALTER TABLE s.j DROP CONSTRAINT c"),
    ("ALTER TABLE s.j ADD CONSTRAINT c CHECK (s.note_set(request)) NOT VALID", "ALTER TABLE s.j DROP CONSTRAINT c"),
    ("ALTER TABLE s.j ADD c s.noting", "ALTER TABLE s.j DROP c"),
    ("ALTER TABLE s.j ADD c boolean; ALTER TABLE s.j ALTER c SET DEFAULT s.note('a')", "ALTER TABLE s.j DROP c"),
    ("CREATE INDEX i ON s.j (s.note(request))", "DROP INDEX s.i"),
    ("CREATE STATISTICS s.x ON (s.note('constant')), (s.note(request)) FROM s.j", "DROP STATISTICS s.x"),
    ("ALTER TABLE s.j ADD c boolean GENERATED ALWAYS AS (s.note(request)) STORED", "ALTER TABLE s.j DROP c"),
    (
        "ALTER TABLE s.j ADD CONSTRAINT c CHECK (query_to_xml('SELECT s.note(1::text)', true, true, '') IS NOT NULL) NOT VALID",
        "ALTER TABLE s.j DROP CONSTRAINT c",
    ),
    (
        "ALTER TABLE s.j ADD CONSTRAINT c CHECK (table_to_xml('s.seen'::text::regclass, true, true, '') IS NOT NULL) NOT VALID",
        "ALTER TABLE s.j DROP CONSTRAINT c",
    ),
    (
        "ALTER TABLE s.j ADD CONSTRAINT c CHECK (domain_in('a', ('s.noting'::text)::regtype, -1) IS NULL) NOT VALID",
        "ALTER TABLE s.j DROP CONSTRAINT c",
    ),
];

/// Every function that comes to a journal.
const CALLS: [&str; 16] = [
    "SELECT idem_explain('j', 'done', stream => '7')",
    "SELECT idem_explain('j', 'new', stream => '7')",
    "SELECT idem_lookup('j', 'done', stream => '7')",
    "SELECT idem_lookup('j', 'new', stream => '7')",
    "SELECT idem_redact('j', 'done', 'test', stream => '7')",
    "SELECT idem_forget('j', 'done', 'test', stream => '7')",
    "SELECT idem_force_release('j', 'leased', 'test', stream => '7', live => true)",
    "SELECT idem_force_record('j', 'leased', '1', 'test', stream => '7')",
    "SELECT idem_settle('j', 'new', stream => '7')",
    "SELECT idem_begin('j', 'done', stream => '7')",
    "SELECT idem_begin('j', 'new', stream => '7'), idem_record('j', 'new', '1', stream => '7')",
    "SELECT idem_begin('j', 'new', stream => '7', lease => '1 hour')",
    "SELECT idem_claim('j', 'new', stream => '7'), idem_checkpoint('j', 'new', 'half', stream => '7'), idem_release('j', 'new', stream => '7')",
    "SELECT idem_run('j', 'new', 'SELECT 1', stream => '7')",
    "SELECT idem_create_session('more', journal => 's.j')",
    "CALL idem_sweep()",
];

// Goal: nothing that its owner hangs on a journal is called in the process of anybody else, whoever that is and whatever
// the call, and the owner's own sessions do not run it as somebody else either.
// Method: each way to hang code on a table, and each function that comes to one, as a superuser, an admin and a monitor to
// whom the session was lent, and by the sweep. The attacker's functions note as whom they were called.
pub async fn a_journal_runs_no_code_in_the_processes_of_others(version: Version) -> Result<()> {
    let server = start(version)?;
    let bob = server.connect_as(DATABASE, "bob").await?;
    bob.text(FUNCTIONS).await?;
    bob.text(
        "SELECT idem_create_journal('s.j', 'tenant', 'bigint'); SELECT idem_create_session('j', journal => 's.j')",
    )
    .await?;
    bob.text("GRANT ALL ON s.j TO PUBLIC; SELECT idem_alter_session('j', usable_by => 'monitor')").await?;
    let mut victims = Vec::new();
    for role in ["postgres", "admin", "monitor"] {
        victims.push(server.connect_as(DATABASE, role).await?);
    }
    for (hang, take_away) in WAYS {
        bob.text(
            "TRUNCATE s.j;
             SELECT idem_settle('j', 'done', stream => '7'), idem_begin('j', 'leased', stream => '7', lease => '1 hour');
             INSERT INTO s.j (tenant, session, request, expires_at) VALUES (7, 'j', 'old', '-infinity')",
        )
        .await?;
        bob.text(hang).await?;
        bob.text("TRUNCATE s.loot").await?;
        for victim in &victims {
            for call in CALLS {
                // It may be refused, and it may not matter to this call.
                victim.outcome_of(call).await?;
                let _ = victim.try_text("ROLLBACK").await;
            }
        }
        let loot = bob.text("SELECT DISTINCT who FROM s.loot WHERE who <> 'bob'").await?;
        ensure!(loot.is_empty(), "{hang} was executed as {loot}");
        bob.text(take_away).await?;
    }
    // Without all that, the journal is as good as ever.
    ensure!(victims[1].text("SELECT status FROM idem_settle('j', 'again', stream => '7')").await.is_err());
    ensure!(bob.text("SELECT status FROM idem_settle('j', 'again', stream => '7')").await? == "cancelled");
    Ok(())
}

/// Makes a session of alice's with a journal in the schema of bob, who may rename it, and executes a request in it.
async fn journal_in_a_schema_of_another(server: &Cluster) -> Result<Connection> {
    let alice = server.connect_as(DATABASE, "alice").await?;
    alice
        .text(
            "SELECT idem_create_journal('s.j', 'tenant', 'bigint'); SELECT idem_create_session('j', journal => 's.j')",
        )
        .await?;
    alice.text(EXECUTE).await?;
    Ok(alice)
}

const EXECUTE: &str = "BEGIN; SELECT status FROM idem_begin('j', 'k', stream => '7'); SELECT FROM idem_record('j', 'k', '1', stream => '7'); COMMIT";

/// Puts another table in the place of the journal.
const SWAP: &str = "
    ALTER SCHEMA s RENAME TO former; CREATE SCHEMA s; GRANT ALL ON SCHEMA s TO PUBLIC;
    CREATE TABLE s.j (LIKE former.j INCLUDING ALL); GRANT ALL ON s.j TO PUBLIC";

// Goal: who renames the schema of a journal and puts a table of his own in its place gets nobody to use that.
// Method: connections that have used the journal before, of its owner and of a superuser, and fresh ones.
pub async fn a_table_in_the_place_of_a_journal_is_not_used(version: Version) -> Result<()> {
    let server = start(version)?;
    let alice = journal_in_a_schema_of_another(&server).await?;
    let dba = server.connect(DATABASE).await?;
    ensure!(dba.text("SELECT status FROM idem_lookup('j', 'k', stream => '7')").await? == "succeeded");
    // bob cannot copy a table that he may not read, but knows its columns.
    server.psql(DATABASE, "GRANT SELECT ON s.j TO bob")?;
    server.connect_as(DATABASE, "bob").await?.text(SWAP).await?;
    for connection in [&alice, &dba, &server.connect_as(DATABASE, "alice").await?, &server.connect(DATABASE).await?] {
        ensure!(connection.sqlstate("SELECT status FROM idem_lookup('j', 'k', stream => '7')").await? == "42501");
        ensure!(connection.sqlstate("SELECT status FROM idem_begin('j', 'k', stream => '7')").await? == "42501");
    }
    ensure!(dba.text("SELECT count(*) FROM s.j").await? == "0");
    // With its name back it is the journal again.
    dba.text("DROP SCHEMA s CASCADE; ALTER SCHEMA former RENAME TO s").await?;
    ensure!(alice.text("SELECT status, replayed FROM idem_begin('j', 'k', stream => '7')").await? == "succeeded|t");
    Ok(())
}

// Goal: what a journal was under an old snapshot is not taken for what it is now.
// Method: while a transaction keeps its snapshot, the table gets another owner. The journal is used in that transaction and
// in the next one.
pub async fn a_journal_that_changed_hands_under_an_old_snapshot_is_not_used(version: Version) -> Result<()> {
    let server = start(version)?;
    let alice = journal_in_a_schema_of_another(&server).await?;
    let fresh = server.connect_as(DATABASE, "alice").await?;
    for connection in [&alice, &fresh] {
        connection.text("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await?;
    }
    server.psql(DATABASE, "ALTER TABLE s.j OWNER TO bob; GRANT ALL ON s.j TO alice")?;
    for connection in [&alice, &fresh] {
        let refused = connection.sqlstate("SELECT status FROM idem_begin('j', 'k2', stream => '7')").await?;
        ensure!(refused == "42501" || refused == "40001", "{refused}");
        ensure!(connection.sqlstate("SELECT status FROM idem_begin('j', 'k3', stream => '7')").await? == "42501");
    }
    Ok(())
}

// Goal: whatever becomes of a user's table, the sweep goes on with the other journals, and nobody who makes a session waits.
// Method: journals that their owner has locked for himself; a sweep by hand, and a step of it in a transaction that stays
// open. The view health names the role, as a warning and no more.
pub async fn a_journal_that_is_locked_stops_nobody(version: Version) -> Result<()> {
    let server = start(version)?;
    let (alice, bob) = (server.connect_as(DATABASE, "alice").await?, server.connect_as(DATABASE, "bob").await?);
    let dba = server.connect(DATABASE).await?;
    for n in 0..10 {
        bob.text(&format!(
            "SELECT idem_create_journal('s.j{n}'); SELECT idem_create_session('j{n}', journal => 's.j{n}')"
        ))
        .await?;
    }
    alice.text("SELECT idem_create_journal('s.tidy'); SELECT idem_create_session('tidy', journal => 's.tidy')").await?;
    alice
        .text("INSERT INTO s.tidy (tenant, session, request, expires_at) VALUES ('', 'tidy', '1', '-infinity')")
        .await?;
    let tables: Vec<String> = (0..10).map(|n| format!("s.j{n}")).collect();
    bob.text(&format!("BEGIN; LOCK TABLE {}", tables.join(", "))).await?;

    let start = Instant::now();
    dba.text("CALL idem_sweep()").await?;
    ensure!(start.elapsed() < Duration::from_secs(2), "a sweep takes {:?}", start.elapsed());
    ensure!(alice.text("SELECT count(*) FROM s.tidy").await? == "0");
    let health =
        "SELECT level, detail LIKE '%journal s.j0 of j0 (role bob) cannot be swept: somebody has locked the table%'
                  FROM idempotence.health WHERE name = 'journals'";
    ensure!(dba.text(health).await? == "1|t");
    bob.text("ROLLBACK; DROP TABLE s.j0").await?;
    dba.text("CALL idem_sweep()").await?;
    let health = "SELECT level, detail FROM idempotence.health WHERE name = 'journals'";
    ensure!(dba.text(health).await? == "1|journal s.j0 of j0 (role bob) is not there");

    for step in ["journals", "long"] {
        dba.text(&format!("BEGIN; SELECT idempotence.sweep_step('{step}')")).await?;
        let start = Instant::now();
        alice.text(&format!("SELECT idem_create_session('new for {step}')")).await?;
        ensure!(start.elapsed() < Duration::from_secs(1), "waited for {step}: {:?}", start.elapsed());
        dba.text("COMMIT").await?;
    }
    Ok(())
}

// Goal: a restore that meets a step of the sweep which does not end says so.
// Method: a step in a transaction that stays open, and a row as a restore brings it.
pub async fn a_restore_does_not_wait_for_ever(version: Version) -> Result<()> {
    let server = start(version)?;
    let (dba, other) = (server.connect(DATABASE).await?, server.connect(DATABASE).await?);
    dba.text("BEGIN; SELECT idempotence.sweep_step('long')").await?;
    let start = Instant::now();
    let refused = other.sqlstate("INSERT INTO idempotence.secret SELECT * FROM idempotence.secret").await?;
    ensure!(refused == "55P03" && start.elapsed() < Duration::from_secs(90), "{refused} after {:?}", start.elapsed());
    Ok(())
}
