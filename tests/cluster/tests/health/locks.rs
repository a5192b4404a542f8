//! Rows about those who hold requests, and those who wait for them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio::task::JoinHandle;

/// The level and the detail of a row.
pub fn row(name: &str) -> String {
    format!("SELECT level, detail FROM idempotence.health WHERE name = '{name}'")
}

/// The level of a row.
pub fn level(name: &str) -> String {
    format!("SELECT level FROM idempotence.health WHERE name = '{name}'")
}

/// Begins a request in a task of its own, and waits for whoever has it. The transaction is rolled back.
async fn waiter(server: &Cluster, request: &str) -> Result<JoinHandle<Result<String>>> {
    let connection = server.connect("shop").await?;
    let begin = format!(
        "SELECT status FROM idem_begin('payments', '{request}', wait => '1 min'); SELECT idem_release('payments', '{request}')"
    );
    Ok(tokio::spawn(async move { connection.text(&begin).await }))
}

// Goal: a transaction that holds a request for long is named, with its process, role and application, also before it
// is in anybody's way, and also to a monitor who may not see what others do.
// Method: a threshold of a second. A transaction in another database holds one too. At the end the row is ok again.
pub async fn who_holds_a_request_for_long_is_named(version: Version) -> Result<()> {
    let server = Cluster::start_with(version, &[("idempotence.warn_holder", "1s")])?;
    server.psql("postgres", "CREATE ROLE till LOGIN; CREATE ROLE watch LOGIN")?;
    for database in ["shop", "other"] {
        server.create_database(database)?;
        server.psql(database, "SELECT idem_create_session('payments', owner => 'till'), idem_grant('till'), idem_grant('watch', 'monitor')")?;
    }
    let (here, elsewhere) = (server.connect_as("shop", "till").await?, server.connect_as("other", "till").await?);
    let watch = server.connect_as("shop", "watch").await?;
    ensure!(watch.text(&row("holders")).await? == "0|no transaction has held a request for more than 00:00:01");
    elsewhere.text("BEGIN; SELECT FROM idem_begin('payments', '1')").await?;
    server.wait_for("other", &level("holders"), "1").await?;
    ensure!(watch.text(&level("holders")).await? == "0", "the holder is in another database");

    here.text(
        "SET application_name = 'till 7'; BEGIN; SELECT FROM idem_begin('payments', '1') a, idem_begin('payments', '2') b",
    )
    .await?;
    server.wait_for("shop", &level("holders"), "1").await?;
    let told = watch.text(&row("holders")).await?;
    let named =
        format!("1|process {} (till, \"till 7\", idle in transaction, Client/ClientRead), since 2", here.pid().await?);
    ensure!(told.starts_with(&named) && told.ends_with("holds 2 requests"), "health says {told}");

    here.text("SELECT idem_release('payments', '1'), idem_release('payments', '2'); PREPARE TRANSACTION 'left'")
        .await?;
    ensure!(watch.text(&level("holders")).await? == "0");
    server.wait_for("shop", &level("prepared transactions"), "1").await?;
    here.text("ROLLBACK PREPARED 'left'").await?;
    ensure!(watch.text(&level("prepared transactions")).await? == "0");
    Ok(())
}

// Goal: a crowd that waits for one request is told of, and so is a wait that lasts long; each names the request where
// the library is preloaded.
// Method: thresholds of two waiters, and an hour, and then of two seconds. Two wait for one request and one for another;
// then a third comes.
pub async fn those_who_wait_are_counted(version: Version) -> Result<()> {
    let settings = [
        ("idempotence.warn_waiters", "2"),
        ("idempotence.warn_holder", "1h"),
        ("shared_preload_libraries", "idempotence"),
    ];
    for preloaded in [false, true] {
        let server = Cluster::start_with(version, if preloaded { &settings } else { &settings[..2] })?;
        server.create_database("shop")?;
        let holder = server.connect("shop").await?;
        holder.text("SELECT idem_create_session('payments')").await?;
        ensure!(holder.text(&row("waiters")).await? == "0|nobody waits for a request");
        holder.text("BEGIN; SELECT FROM idem_begin('payments', '1') a, idem_begin('payments', '2') b").await?;
        let mut waiters = Vec::new();
        for request in ["1", "1", "2"] {
            waiters.push(waiter(&server, request).await?);
        }
        let two = "SELECT level FROM idempotence.health WHERE name = 'waiters' AND detail LIKE '3 wait for 2 requests; at most 2 for the same one; %'";
        server.wait_for("shop", two, "0").await?;
        waiters.push(waiter(&server, "1").await?);
        server.wait_for("shop", &level("waiters"), "1").await?;
        let told = holder.text(&row("waiters")).await?;
        let named =
            format!(r#"; most wait for request "1" of session "payments", which process {} has"#, holder.pid().await?);
        ensure!(
            told.contains("at most 3 for the same one") && told.ends_with(&named) == preloaded,
            "health says {told}"
        );
        holder.text("SELECT idem_release('payments', '1'), idem_release('payments', '2'); ROLLBACK").await?;
        for waiter in waiters {
            ensure!(waiter.await??.starts_with("started"));
        }
        ensure!(holder.text(&level("waiters")).await? == "0");

        // One that waits for long. Its wait is cut in two when it is logged, after a second, and is told of as a whole.
        server.conf("idempotence.warn_holder", "2s")?;
        server.reload()?;
        holder.text("BEGIN; SELECT FROM idem_begin('payments', '1')").await?;
        let waiter = waiter(&server, "1").await?;
        server.wait_for("shop", &level("waiters"), "1").await?;
        ensure!(holder.text(&row("waiters")).await?.starts_with("1|1 wait for 1 requests"));
        let whole = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
            WHERE l.objsubid = 7649 AND NOT l.granted AND clock_timestamp() - l.waitstart > '1.5 s'
              AND l.waitstart BETWEEN a.query_start AND a.query_start + '0.3 s'";
        ensure!(holder.text(whole).await? == "1", "the wait is told of as if it had begun when it was logged");
        if preloaded {
            let told = "SELECT longest_wait > '1.5 s' FROM idempotence.in_flight WHERE waiters = 1";
            ensure!(holder.text(told).await? == "t");
        }
        holder.text("ROLLBACK").await?;
        waiter.await??;
        ensure!(holder.text(&level("waiters")).await? == "0");
    }
    Ok(())
}

// Goal: whoever holds up those that hold requests is named, though it holds no request itself: by the row holders first, by
// the row waiters, by in_flight, and by idem_explain, which tell not to end a victim. So is a prepared transaction.
// Method: somebody changes a row and idles. Twelve payments begin a request each and want the row, and twelve others wait
// for the first of these requests. The threshold is an hour, which a crowd does not wait for.
pub async fn whoever_holds_up_the_holders_is_named(version: Version) -> Result<()> {
    let settings = [("idempotence.warn_holder", "1h"), ("shared_preload_libraries", "idempotence")];
    let server = Cluster::start_with(version, &settings)?;
    server.create_database("shop")?;
    server.psql("postgres", "CREATE ROLE till LOGIN; CREATE ROLE dba LOGIN SUPERUSER")?;
    server.psql(
        "shop",
        "SELECT idem_create_session('payments', owner => 'till'), idem_grant('till');
         CREATE TABLE account AS SELECT 1 AS id, 0 AS balance; GRANT ALL ON account TO till",
    )?;
    let watch = server.connect_as("shop", "till").await?;
    let (health, root) = (server.connect("shop").await?, server.connect_as("shop", "dba").await?);
    root.text("SET application_name = 'psql'; BEGIN; UPDATE account SET balance = 1").await?;
    let root_pid = root.pid().await?;
    let mut victims = Vec::new();
    for request in 1..=12 {
        let connection = server.connect_as("shop", "till").await?;
        let pid = connection.pid().await?;
        let work = format!(
            "BEGIN; SELECT status FROM idem_begin('payments', '{request}'); UPDATE account SET balance = balance + 1;
             SELECT FROM idem_record('payments', '{request}', '1'); COMMIT"
        );
        victims.push((pid, tokio::spawn(async move { connection.text(&work).await })));
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        server.wait_for("shop", &waits, "1").await?;
    }
    let mut waiters = Vec::new();
    for _ in 0..12 {
        waiters.push(waiter(&server, "1").await?);
    }
    server.wait_for("shop", "SELECT max(waiters) FROM idempotence.in_flight", "12").await?;
    let in_flight =
        "SELECT DISTINCT state, backend_state, split_part(wait_event, '/', 1), blocked_by FROM idempotence.in_flight";
    ensure!(
        watch.text(in_flight).await? == format!("begun|active|Lock|{root_pid}"),
        "{}",
        watch.text(in_flight).await?
    );

    let explain = |what: &str| format!("SELECT idem_explain('payments', '1') #>> '{{{what}}}'");
    let blocker = watch
        .text("SELECT b ->> 'pid', b ->> 'role', b ->> 'application', b ->> 'state', b ->> 'wait_event' FROM (SELECT idem_explain('payments', '1') #> '{now,blocker}') e (b)")
        .await?;
    ensure!(blocker == format!("{root_pid}|dba|psql|idle in transaction|Client/ClientRead"), "{blocker}");
    ensure!(watch.text(&explain("now,waiters")).await? == "12");
    ensure!(watch.text("SELECT jsonb_array_length(idem_explain('payments', '1') #> '{now,waiting}')").await? == "10");
    let advice = watch.text(&explain("what_to_do_next")).await?;
    let victim = victims[0].0;
    ensure!(advice.contains(&format!("waits for process {root_pid} (idle in transaction)")), "{advice}");
    ensure!(!advice.contains(&format!("pg_terminate_backend({victim})")), "{advice}");

    server.wait_for("shop", &level("holders"), "1").await?;
    let told = health.text(&row("holders")).await?;
    let named = format!("1|process {root_pid} (dba, \"psql\", idle in transaction, Client/ClientRead), since 2");
    ensure!(told.starts_with(&named) && told.ends_with("holds up 12 others that hold requests"), "health says {told}");
    let told = health.text(&row("waiters")).await?;
    ensure!(
        told.ends_with(&format!("which process {victim} has, held up by process {root_pid}")),
        "health says {told}"
    );

    // The same root, prepared, is named by its gid everywhere.
    root.text("PREPARE TRANSACTION 'it''s the root'").await?;
    let advice = watch.text(&explain("what_to_do_next")).await?;
    ensure!(advice.contains("ROLLBACK PREPARED 'it''s the root'"), "{advice}");
    let blocker = watch
        .text("SELECT b ->> 'pid', b ->> 'role', b ->> 'prepared', b ->> 'since' LIKE '2%' FROM (SELECT idem_explain('payments', '1') #> '{now,blocker}') e (b)")
        .await?;
    ensure!(blocker == "|dba|it's the root|t", "{blocker}");
    let in_flight = "SELECT DISTINCT blocked_by, blocked_by_prepared FROM idempotence.in_flight";
    ensure!(watch.text(in_flight).await? == "0|it's the root", "{}", watch.text(in_flight).await?);
    let told = health.text(&row("holders")).await?;
    ensure!(
        told.starts_with("1|prepared transaction 'it''s the root' (dba), since 2")
            && told.ends_with(", holds up 12 others that hold requests"),
        "{told}"
    );
    let told = health.text(&row("waiters")).await?;
    ensure!(
        told.ends_with(&format!("which process {victim} has, held up by prepared transaction 'it''s the root'")),
        "health says {told}"
    );
    // What the advice promises: it goes, and all go on.
    root.text("ROLLBACK PREPARED 'it''s the root'").await?;
    for (_, victim) in victims {
        ensure!(victim.await?? == "started");
    }
    for waiter in waiters {
        // They waited for what is done now, and give nothing back.
        let _ = waiter.await?;
    }
    ensure!(health.text(&row("holders")).await? == "0|no transaction has held a request for more than 01:00:00");
    Ok(())
}

/// Has two transactions wait for each other's request; PostgreSQL ends one of them.
async fn deadlock(one: &Connection, two: &Connection, wait: &str) -> Result<()> {
    one.text("BEGIN; SELECT FROM idem_begin('payments', 'a')").await?;
    two.text("BEGIN; SELECT FROM idem_begin('payments', 'b')").await?;
    let begin = |request: &str| format!("SELECT FROM idem_begin('payments', '{request}', wait => '{wait}')");
    let (b, a) = (begin("b"), begin("a"));
    let (first, second) = tokio::join!(one.try_text(&b), async {
        let second = two.try_text(&a).await;
        two.text("ROLLBACK").await.and(Ok(second))
    });
    one.text("ROLLBACK").await?;
    let codes =
        [first, second?].map(|ended| ended.err().and_then(|error| error.code().map(|code| code.code().to_owned())));
    ensure!(codes.iter().flatten().eq(["40P01"]), "the transactions ended with {codes:?}");
    Ok(())
}

// Goal: deadlocks on requests are counted in the database where they happen, for bounded and unbounded waits, and
// nothing else comes of the counting.
// Method: eleven deadlocks, which is one too many. A crash of the server forgets them.
pub async fn deadlocks_are_counted(version: Version) -> Result<()> {
    let plain = Cluster::start(version)?;
    plain.create_database("shop")?;
    ensure!(plain.psql("shop", &row("deadlocks"))?.trim_end() == "0|not counted, since the library is not preloaded");
    drop(plain);

    let settings = [("shared_preload_libraries", "idempotence"), ("deadlock_timeout", "50ms")];
    let server = Cluster::start_with(version, &settings)?;
    for database in ["shop", "other"] {
        server.create_database(database)?;
    }
    let (one, two) = (server.connect("shop").await?, server.connect("shop").await?);
    one.text("SELECT idem_create_session('payments')").await?;
    // Waits that run out, and deadlocks of others, are none of ours.
    one.text("BEGIN; SELECT FROM idem_begin('payments', 'a')").await?;
    ensure!(two.text("SELECT status FROM idem_begin('payments', 'a', wait => '10 ms')").await? == "in_progress");
    one.text("ROLLBACK").await?;
    let told = |times: u32| format!("{times} waits for a request or a session ended in a deadlock in the last hour");
    for times in 1..=11 {
        deadlock(&one, &two, if times % 2 == 0 { "1 min" } else { "10 days" }).await?;
        let expected = format!("{}|{}", i32::from(times > 10), told(times));
        ensure!(one.text(&row("deadlocks")).await? == expected, "after {times} deadlocks");
    }
    ensure!(server.psql("other", &row("deadlocks"))?.trim_end() == format!("0|{}", told(0)));
    one.execute("payments", "a", "1").await?;
    server.crash()?;
    let again = server.reconnect("shop").await?;
    ensure!(again.text(&row("deadlocks")).await? == format!("0|{}", told(0)));
    Ok(())
}

/// What idem_explain says while a table is locked, within moments.
async fn locker_told(watch: &Connection) -> Result<String> {
    let start = Instant::now();
    let refused = watch.error("SELECT idem_explain('payments', '1')").await?;
    ensure!(start.elapsed() < Duration::from_secs(4), "idem_explain took {:?}", start.elapsed());
    ensure!(refused.code().code() == "55P03", "{refused}");
    Ok(refused.detail().unwrap_or_default().to_owned())
}

// Goal: health answers soon and never fails, and idem_ready answers false, while somebody has locked tables.
// Method: all tables are locked as VACUUM FULL locks one. Rows that need none of them are as usual.
pub async fn a_locked_table_is_told_of(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database("shop")?;
    server.psql("shop", "SELECT idem_create_session('payments'); CALL idem_sweep()")?;
    let (locker, watch) = (server.connect("shop").await?, server.connect("shop").await?);
    let bad = "SELECT count(*) FROM idempotence.health WHERE level > 0";
    watch.text("SET statement_timeout = '1min'").await?;
    ensure!(watch.text(bad).await? == "0");
    for table in ["session", "outcome_1", "lease", "secret", "restore", "segment", "session_live"] {
        locker.text(&format!("BEGIN; LOCK TABLE idempotence.{table} IN ACCESS EXCLUSIVE MODE")).await?;
        let start = Instant::now();
        let told = watch.text("SELECT DISTINCT level, detail FROM idempotence.health WHERE level > 0").await?;
        let locked = format!("table idempotence.{table} is locked: held by process {} (", locker.pid().await?);
        ensure!(told.starts_with(&format!("1|could not be looked at: {locked}")), "{table}: health says {told}");
        ensure!(told.lines().count() == 1, "{table}: health says {told}");
        ensure!(start.elapsed() < Duration::from_secs(4), "{table}: health took {:?}", start.elapsed());
        ensure!(watch.text("SELECT count(*) > 10 FROM idempotence.health WHERE level = 0").await? == "t", "{table}");
        ensure!(watch.text("SELECT idem_ready()").await? == "f", "{table}");
        if ["session", "outcome_1", "segment"].contains(&table) {
            let refused = locker_told(&watch).await?;
            ensure!(refused.contains(&locked), "{table}: idem_explain says {refused}");
        }
        locker.text("ROLLBACK").await?;
        ensure!(watch.text(bad).await? == "0", "{table}");
        ensure!(watch.text("SELECT idem_ready()").await? == "t", "{table}");
    }
    // What belongs to a table, and is locked without it.
    let toast = watch
        .text("SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'idempotence.outcome_0'::regclass")
        .await?;
    for part in ["INDEX idempotence.outcome_0_pkey", &format!("TABLE {toast}")] {
        locker.text(&format!("BEGIN; REINDEX {part}")).await?;
        let locked = format!("table idempotence.outcome_0 is locked: held by process {} (", locker.pid().await?);
        let told = watch.text("SELECT idempotence.locked_by()").await?;
        ensure!(told.matches(&locked).count() == 1, "{part}: {told}");
        locker.text("ROLLBACK").await?;
    }
    // No call needs the first of them.
    locker.text("BEGIN; LOCK TABLE idempotence.audit, idempotence.session").await?;
    let told = locker_told(&watch).await?;
    ensure!(told.starts_with("Found: table idempotence.session is locked: held by process"), "{told}");
    locker.text("ROLLBACK").await?;
    locker.text("BEGIN; LOCK TABLE idempotence.segment, idempotence.outcome_0; DROP EXTENSION idempotence").await?;
    locker_told(&watch).await?;
    locker.text("ROLLBACK").await?;
    // As CREATE INDEX does: nothing can be recorded then, but only in the current segment.
    for (table, ready) in [("outcome_0", "f"), ("outcome_1", "t")] {
        locker.text(&format!("BEGIN; LOCK TABLE idempotence.{table} IN SHARE MODE")).await?;
        ensure!(watch.text("SELECT idem_ready()").await? == ready, "{table}");
        locker.text("ROLLBACK").await?;
    }
    ensure!(watch.text("SELECT idem_ready()").await? == "t");
    Ok(())
}

// Goal: the command that calls queue behind is named, with a transaction that it waits for, and ending it helps. Commands
// without a call behind them are no error. What anybody may ask does not tell for whom they wait.
// Method: CREATE INDEX and VACUUM FULL of the segment wait, both for a begun request, and only the second for a reader, who
// came first. A payment comes after them.
pub async fn a_lock_that_is_waited_for_is_told_of(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.create_database("shop")?;
    server.psql("shop", "SELECT idem_create_session('payments'); CALL idem_sweep()")?;
    let watch = server.connect("shop").await?;
    let (reader, idle) = (server.connect("shop").await?, server.connect("shop").await?);
    reader.text("BEGIN; SELECT FROM idempotence.outcome_0").await?;
    idle.text("BEGIN; SELECT FROM idem_begin('payments', 'order-17')").await?;
    let (mut commands, mut pids) = (Vec::new(), Vec::new());
    for command in ["CREATE INDEX ON idempotence.outcome_0 (token)", "VACUUM FULL idempotence.outcome_0"] {
        let connection = server.connect("shop").await?;
        pids.push(connection.pid().await?);
        commands.push(tokio::spawn(async move { connection.text(command).await }));
        server.wait_for("shop", WAITING, &pids.len().to_string()).await?;
    }
    let told = |command: usize, behind: i32| {
        let by = format!("table idempotence.outcome_0 is about to be locked by process {} (", pids[command]);
        format!(
            "SELECT level, detail LIKE '{by}%, behind process {behind} (%, idle in transaction)%',
                    detail LIKE '%; 1 wait for the table'
             FROM idempotence.health WHERE name = 'tables'"
        )
    };
    server.wait_for("shop", &told(0, idle.pid().await?), "1|t|f").await?;
    let pay = server.connect("shop").await?;
    let pay =
        tokio::spawn(async move { pay.text("SELECT status FROM idem_run('payments', 'order-18', 'SELECT 1')").await });
    server.wait_for("shop", WAITING, "3").await?;
    ensure!(watch.text(&told(0, idle.pid().await?)).await? == "2|t|t");

    watch.text(&format!("SELECT pg_terminate_backend({})", pids[0])).await?;
    server.wait_for("shop", WAITING, "2").await?;
    server.wait_for("shop", &told(1, reader.pid().await?), "2|t|t").await?;
    let refused = locker_told(&watch).await?;
    ensure!(refused.contains(&format!("is about to be locked by process {} (", pids[1])), "{refused}");
    ensure!(!refused.contains(&format!("process {}", reader.pid().await?)), "{refused}");
    watch.text(&format!("SELECT pg_terminate_backend({})", pids[1])).await?;
    ensure!(pay.await?? == "succeeded");
    for command in commands {
        ensure!(command.await?.is_err());
    }
    ensure!(watch.text(&level("tables")).await? == "0");
    reader.text("ROLLBACK").await?;
    idle.text("ROLLBACK").await?;
    // A command that has one lock and waits for another, and a reader that a weaker lock waits for.
    for (reading, command) in [
        ("SELECT FROM idempotence.outcome_0", "REINDEX TABLE idempotence.outcome_0"),
        ("SELECT FROM idempotence.outcome_0 FOR UPDATE", "BEGIN; LOCK TABLE idempotence.outcome_0 IN EXCLUSIVE MODE"),
    ] {
        reader.text(&format!("BEGIN; {reading}")).await?;
        let connection = server.connect("shop").await?;
        let command = tokio::spawn(async move { connection.text(command).await });
        server.wait_for("shop", WAITING, "1").await?;
        let behind = format!("SELECT behind LIKE 'process {} (%' FROM idempotence.locked", reader.pid().await?);
        ensure!(watch.text(&behind).await? == "t", "{reading}");
        reader.text("ROLLBACK").await?;
        command.await??;
    }
    Ok(())
}

/// How many wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE NOT granted";
