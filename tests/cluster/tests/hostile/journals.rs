//! Journals, which are tables of users: no code of their owners is called in the processes of others, and nobody waits for
//! them.

use super::names;
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

/// What an owner may hang on his table, and how he takes it away.
const WAYS: [(&str, &str); 27] = [
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
    // It lets nobody's code in, but hides from others what is done.
    ("ALTER TABLE s.j ENABLE ROW LEVEL SECURITY", "ALTER TABLE s.j DISABLE ROW LEVEL SECURITY"),
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
    // Functions of PostgreSQL that take long, and look at no signal.
    ("CREATE INDEX i ON s.j (request) WHERE btrim(repeat('a', 4500), repeat('b', 4500) || 'a') = ''", "DROP INDEX s.i"),
    // Foreign keys: a deferred trigger of the other table, and that of a table it refers to.
    (
        "CREATE TABLE s.refers (tenant text, session text, request text, FOREIGN KEY (tenant, session, request) REFERENCES s.j ON DELETE CASCADE);
         INSERT INTO s.refers VALUES ('7', 'j', 'done');
         CREATE CONSTRAINT TRIGGER t AFTER DELETE ON s.refers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION s.note_row()",
        "DROP TABLE s.refers",
    ),
    (
        "CREATE TABLE s.referred (id int PRIMARY KEY); INSERT INTO s.referred VALUES (1);
         CREATE POLICY p ON s.referred USING (s.note()); ALTER TABLE s.referred ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         ALTER TABLE s.j ADD c int; ALTER TABLE s.j ALTER c SET DEFAULT 1; ALTER TABLE s.j ADD FOREIGN KEY (c) REFERENCES s.referred",
        "ALTER TABLE s.j DROP c; DROP TABLE s.referred",
    ),
    // Functions of a superuser, or of PostgreSQL, that execute what they are given, or change something.
    (RUN_BY_DEFAULT, "ALTER TABLE s.j DROP c"),
    (RUN_BY_QUERY, DROP),
    (CHANGE_FOR_GOOD, DROP),
    (
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON s.j FOR EACH ROW
         WHEN ((idem_run('own', clock_timestamp()::text, 'INSERT INTO s.loot VALUES (current_user)')).status IS NOT NULL)
         EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TRIGGER t ON s.j",
    ),
    (
        "CREATE TRIGGER t BEFORE DELETE ON s.j FOR EACH ROW EXECUTE FUNCTION check_foreign_key(1, 'cascade', 'request', 'public.ledger', 'id')",
        "DROP TRIGGER t ON s.j",
    ),
    ("ALTER TABLE s.j ADD c bigint; ALTER TABLE s.j ALTER c SET DEFAULT nextval('public.numbers')", "ALTER TABLE s.j DROP c"),
    ("ALTER TABLE s.j ADD c oid; ALTER TABLE s.j ALTER c SET DEFAULT lo_create(0)", "ALTER TABLE s.j DROP c"),
    (
        "ALTER TABLE s.j ADD c text; ALTER TABLE s.j ALTER c SET DEFAULT set_config('application_name', 'changed', false)",
        "ALTER TABLE s.j DROP c",
    ),
];

/// Has whoever inserts a row execute a command.
const RUN_BY_DEFAULT: &str = "ALTER TABLE s.j ADD c text; ALTER TABLE s.j ALTER c
    SET DEFAULT (idem_run('own', clock_timestamp()::text, 'INSERT INTO s.loot VALUES (current_user)')).status";

/// The same, by a built-in function for queries, for whoever writes a row.
const RUN_BY_QUERY: &str = "ALTER TABLE s.j ADD CONSTRAINT c CHECK (ts_rewrite('a'::tsquery,
    $$SELECT 'a'::tsquery, 'b'::tsquery FROM idem_run('own', clock_timestamp()::text, 'INSERT INTO s.loot VALUES (current_user)')$$) IS NOT NULL) NOT VALID";

/// Changes what is another role's, also where the statement is undone afterwards.
const CHANGE_FOR_GOOD: &str = "ALTER TABLE s.j ADD CONSTRAINT c CHECK (setval('public.numbers', 2) > 0) NOT VALID";

const DROP: &str = "ALTER TABLE s.j DROP CONSTRAINT c";

/// What belongs to others, which an attack would change; what is there to be called; and a role to lend sessions to.
const OF_OTHERS: &str = "
    CREATE ROLE lent; GRANT lent TO alice, monitor, bob;
    CREATE EXTENSION refint;
    CREATE TABLE public.ledger (id text); INSERT INTO public.ledger VALUES ('done'); ALTER TABLE public.ledger OWNER TO alice;
    CREATE SEQUENCE public.numbers; ALTER SEQUENCE public.numbers OWNER TO alice";

/// What has changed of it, and as whom a function of the attacker was called.
const LOOT: &str = "
    SELECT DISTINCT 'as ' || who FROM s.loot WHERE who <> 'bob'
    UNION ALL SELECT 'ledger' WHERE NOT EXISTS (SELECT FROM public.ledger)
    UNION ALL SELECT 'sequence' FROM public.numbers WHERE is_called
    UNION ALL SELECT 'large object' FROM pg_largeobject_metadata
    UNION ALL SELECT 'setting' FROM pg_stat_activity WHERE application_name = 'changed'";

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
// Method: each way to hang code on a table, and each function of the extension, as a superuser; those that come to a
// journal also as an admin, a monitor and a user to whom the session was lent; and the worker. The attacker's functions note as whom they were called. Each way is
// also refused in so many words.
pub async fn a_journal_runs_no_code_in_the_processes_of_others(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    server.psql(DATABASE, ROLES)?;
    let bob = attacker(&server).await?;
    bob.text("SELECT idem_create_journal('s.j'); SELECT idem_create_session('j', journal => 's.j')").await?;
    bob.text("GRANT ALL ON s.j TO PUBLIC; SELECT idem_alter_session('j', usable_by => 'lent')").await?;
    let dba = server.connect(DATABASE).await?;
    let every_function = dba.text(&names::calls("j")).await?;
    let every_function: Vec<&str> = every_function.lines().filter(|call| call.contains("session")).collect();
    let mut victims = Vec::new();
    for role in ["postgres", "admin", "monitor", "alice"] {
        victims.push(server.connect_as(DATABASE, role).await?);
        victims[victims.len() - 1].text("SET idempotence.wait = '50ms'").await?;
    }
    for (hang, take_away) in WAYS {
        bob.text(
            "TRUNCATE s.j;
             SELECT idem_settle('j', 'done', stream => '7'), idem_begin('j', 'leased', stream => '7', lease => '1 hour'), idem_settle('j', '7');
             INSERT INTO s.j (tenant, session, request, expires_at) VALUES ('7', 'j', 'old', '-infinity')",
        )
        .await?;
        bob.text(hang).await?;
        bob.text("TRUNCATE s.loot").await?;
        for (nth, victim) in victims.iter().enumerate() {
            // The others come to a journal by no other function. The superuser tries them all the same.
            let others = if nth == 0 { &every_function[..] } else { &[] };
            for call in CALLS.iter().chain(others) {
                // It may be refused, and it may not matter to this call.
                victim.outcome_of(call).await?;
                let _ = victim.try_text("ROLLBACK").await;
            }
        }
        let loot = dba.text(LOOT).await?;
        ensure!(loot.is_empty(), "{hang} was executed: {loot}");
        for refused in [&CALLS[0], &CALLS[2], &CALLS[9]] {
            let state = victims[0].sqlstate(refused).await?;
            ensure!(state == "42P16", "{hang}: {refused}: {state}");
        }
        bob.text(take_away).await?;
    }
    // Without all that, the journal is as good as ever.
    ensure!(victims[2].text("SELECT status FROM idem_settle('j', 'again', stream => '7')").await.is_err());
    ensure!(bob.text("SELECT status FROM idem_settle('j', 'again', stream => '7')").await? == "cancelled");
    Ok(())
}

/// A trigger of a superuser on a journal. It runs a parallel query whose workers execute a function of the superuser, which
/// calls a function of the attacker. The leader of the query computes nothing itself where there is a worker.
const PARALLEL_TRIGGER: &str = "
    CREATE TABLE public.large WITH (parallel_workers = 2) AS SELECT n FROM generate_series(1, 1000) n; ANALYZE public.large;
    CREATE FUNCTION public.indirect(n int) RETURNS boolean PARALLEL SAFE LANGUAGE plpgsql AS
      $$ BEGIN RETURN s.raise(current_user); END $$;
    CREATE FUNCTION public.in_parallel() RETURNS trigger LANGUAGE plpgsql
      SET parallel_setup_cost = 0 SET parallel_tuple_cost = 0 SET min_parallel_table_scan_size = 0
      SET parallel_leader_participation = off SET max_parallel_workers = 8 AS
      $$ BEGIN PERFORM count(*) FROM public.large l WHERE public.indirect(l.n); RETURN NEW; END $$;
    REVOKE ALL ON FUNCTION public.in_parallel() FROM PUBLIC; GRANT EXECUTE ON FUNCTION public.in_parallel() TO postgres;
    CREATE TRIGGER t BEFORE INSERT ON s.j FOR EACH ROW EXECUTE FUNCTION public.in_parallel()";

// Goal: a parallel worker executes no function of the attacker either, where a superuser's trigger on a journal runs a
// parallel query.
// Method: the attacker's function raises an error that shows where it was executed. The trigger alone shows that the query
// has parallel workers.
pub async fn a_parallel_worker_runs_no_code_of_others(version: Version) -> Result<()> {
    let server = start(version)?;
    let bob = server.connect_as(DATABASE, "bob").await?;
    bob.text(
        "SELECT idem_create_journal('s.j'); SELECT idem_create_session('j', journal => 's.j');
         CREATE FUNCTION s.raise(name) RETURNS boolean PARALLEL SAFE LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'executed as %', $1 USING ERRCODE = 'BOB01'; END $$",
    )
    .await?;
    server.psql(DATABASE, PARALLEL_TRIGGER)?;
    let dba = server.connect(DATABASE).await?;
    let alone = dba.error("INSERT INTO s.j (tenant, session, request) VALUES ('7', 'j', 'alone')").await?;
    ensure!(alone.code().code() == "BOB01", "the trigger alone: {alone:?}");
    ensure!(alone.where_().is_some_and(|context| context.contains("parallel worker")), "no parallel worker: {alone:?}");
    for call in ["SELECT idem_settle('j', 'a', stream => '7')", "SELECT idem_run('j', 'b', 'SELECT 1', stream => '7')"]
    {
        let state = dba.sqlstate(call).await?;
        ensure!(state == "42P16", "{call}: {state}");
    }
    // The setting of the session is as it was.
    ensure!(dba.text("SHOW max_parallel_workers").await? == "8");
    Ok(())
}

/// The one who attacks, with his functions, and a session whose requests others may execute for him.
async fn attacker(server: &Cluster) -> Result<Connection> {
    server.psql(DATABASE, OF_OTHERS)?;
    let bob = server.connect_as(DATABASE, "bob").await?;
    bob.text(FUNCTIONS).await?;
    bob.text("SELECT idem_create_session('own'); SELECT idem_alter_session('own', usable_by => 'lent')").await?;
    Ok(bob)
}

/// A journal that has partitions: as many statements as what has none.
const PARTITIONED: &str = "
    SELECT idem_create_journal('s.shape');
    CREATE TABLE s.j (LIKE s.shape INCLUDING ALL) PARTITION BY LIST (tenant);
    CREATE TABLE s.part PARTITION OF s.j FOR VALUES IN ('7');
    SELECT idem_create_session('j', journal => 's.j'); GRANT ALL ON s.j TO PUBLIC";

// Goal: a journal is what it was when it was looked at, also where it changes at that moment.
// Method: a superuser has used the journal. The attacker changes it in a transaction that is open while the superuser calls
// again, and commits it once that call waits: the table itself or its partition, in a transaction that has used it before,
// or one that keeps an old snapshot.
pub async fn a_change_that_comes_with_a_call_is_not_executed(version: Version) -> Result<()> {
    for (journal, table) in [
        (
            "SELECT idem_create_journal('s.j'); SELECT idem_create_session('j', journal => 's.j'); GRANT ALL ON s.j TO PUBLIC",
            "s.j",
        ),
        (PARTITIONED, "s.j"),
        (PARTITIONED, "s.part"),
    ] {
        let server = start(version)?;
        let bob = attacker(&server).await?;
        bob.text(journal).await?;
        let watcher = server.connect(DATABASE).await?;
        for (change, undo) in
            [(RUN_BY_DEFAULT, "ALTER TABLE s.j DROP c"), (RUN_BY_QUERY, DROP), (CHANGE_FOR_GOOD, DROP)]
        {
            // A partition has the constraint of its own; a default is that of the table that is named.
            if table == "s.part" && change == RUN_BY_DEFAULT {
                continue;
            }
            let (change, undo) = (change.replace("s.j", table), undo.replace("s.j", table));
            for call in [CALLS[0], CALLS[1], CALLS[4], CALLS[5], CALLS[8], CALLS[10]] {
                for before in ["", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"] {
                    bob.text("TRUNCATE s.loot; TRUNCATE s.j; SELECT idem_settle('j', 'done', stream => '7', response => '1')").await?;
                    let victim = server.connect(DATABASE).await?;
                    victim.text("SELECT idem_lookup('j', 'done', stream => '7')").await?;
                    victim.text(before).await?;
                    bob.text(&format!("BEGIN; {change}")).await?;
                    let pid = victim.pid().await?;
                    let called = tokio::spawn(async move {
                        let called = victim.outcome_of(call).await;
                        let _ = victim.try_text("COMMIT").await;
                        called
                    });
                    let waits = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}");
                    while !called.is_finished() && watcher.text(&waits).await? != "t" {}
                    bob.text("COMMIT").await?;
                    let outcome = called.await??;
                    let loot = watcher.text(LOOT).await?;
                    ensure!(loot.is_empty(), "{before}; {call}: {change} was executed: {loot}; {outcome:?}");
                    bob.text(&undo).await?;
                }
            }
        }
    }
    Ok(())
}

// Goal: the same where the attacker cannot have others wait, but tries again and again to come between two steps of a call.
// Method: he swaps the journal's schema for one with another table, or attaches a partition, and takes that back, while a
// superuser calls.
pub async fn changes_again_and_again_are_not_executed(version: Version) -> Result<()> {
    const SWAP_AND_BACK: [&str; 2] = [
        "BEGIN; ALTER SCHEMA at RENAME TO former; ALTER SCHEMA trap RENAME TO at; COMMIT",
        "BEGIN; ALTER SCHEMA at RENAME TO trap; ALTER SCHEMA former RENAME TO at; COMMIT",
    ];
    const ATTACH_AND_DETACH: [&str; 2] =
        ["ALTER TABLE s.j ATTACH PARTITION s.trap FOR VALUES IN ('7')", "ALTER TABLE s.j DETACH PARTITION s.trap"];
    let swapped = format!(
        "CREATE SCHEMA at; CREATE SCHEMA trap; SELECT idem_create_journal('at.j'), idem_create_journal('trap.j');
         SELECT idem_create_session('j', journal => 'at.j'); {}",
        CHANGE_FOR_GOOD.replace("s.j", "trap.j")
    );
    let attached = format!(
        "{}; DROP TABLE s.part; CREATE TABLE s.trap (LIKE s.shape INCLUDING ALL); {}",
        PARTITIONED,
        CHANGE_FOR_GOOD.replace("s.j", "s.trap")
    );
    for (journal, changes) in [(swapped, SWAP_AND_BACK), (attached, ATTACH_AND_DETACH)] {
        let server = start(version)?;
        let (bob, victim) = (attacker(&server).await?, server.connect(DATABASE).await?);
        let watcher = server.connect(DATABASE).await?;
        bob.text(&journal).await?;
        let end = Instant::now() + Duration::from_secs(4);
        let attack = async {
            while Instant::now() < end {
                for change in changes {
                    // It may meet the victim's call in a deadlock, and is made again.
                    while let Err(error) = bob.try_text(change).await {
                        ensure!(error.code().is_some_and(|code| code.code() == "40P01"), "{change}: {error}");
                        bob.text("ROLLBACK").await?;
                    }
                }
            }
            anyhow::Ok(())
        };
        let calls = async {
            let mut refused = 0;
            while Instant::now() < end {
                let called = victim.try_text("SELECT idem_explain('j', 'new', stream => '7'), idem_settle('j', clock_timestamp()::text, stream => '7')").await;
                refused += i32::from(called.is_err());
            }
            anyhow::Ok(refused)
        };
        let ((), refused) = tokio::try_join!(attack, calls)?;
        ensure!(refused > 0, "nothing was swapped");
        let loot = watcher.text(LOOT).await?;
        ensure!(loot.is_empty(), "{} was executed: {loot}", changes[0]);
    }
    Ok(())
}

// Goal: a journal has no partition that is no ordinary table: one that is unlogged would forget what was done. (PostgreSQL
// refuses foreign ones beside a unique index.)
// Method: such a partition is made after the journal was used.
pub async fn a_partition_of_a_journal_is_an_ordinary_table(version: Version) -> Result<()> {
    let server = start(version)?;
    let bob = attacker(&server).await?;
    bob.text(PARTITIONED).await?;
    for partition in [
        "CREATE UNLOGGED TABLE s.odd PARTITION OF s.j FOR VALUES IN ('8')",
        "CREATE TABLE s.odd PARTITION OF s.j FOR VALUES IN ('8') PARTITION BY LIST (session)",
    ] {
        ensure!(bob.text("SELECT status FROM idem_settle('j', 'a', stream => '7')").await? == "cancelled");
        bob.text(partition).await?;
        let state = bob.sqlstate("SELECT idem_settle('j', 'a', stream => '7')").await?;
        ensure!(state == "42P16", "{partition}: {state}");
        bob.text("DROP TABLE s.odd").await?;
    }
    Ok(())
}

// Goal: a table that goes with the connection is no journal.
pub async fn a_temporary_table_is_no_journal(version: Version) -> Result<()> {
    let server = start(version)?;
    let bob = server.connect_as(DATABASE, "bob").await?;
    for call in
        ["SELECT idem_create_journal('pg_temp.x')", "SET search_path = pg_temp; SELECT public.idem_create_journal('x')"]
    {
        let state = bob.sqlstate(call).await?;
        ensure!(state == "42P16", "{call}: {state}");
    }
    ensure!(bob.text("SELECT count(*) FROM pg_class WHERE relname = 'x'").await? == "0");
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
