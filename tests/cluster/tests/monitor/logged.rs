//! What the server's log tells of requests.

use std::fs;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, Version};
use tokio::time::{Duration, Instant, sleep};

use super::preloaded::{PRELOADED, start};

const SECRET: &str = "s3cret-of-the-payload";

/// A message of the log.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    level: String,
    text: String,
    context: String,
    statement: String,
}

/// Reads the log in each of its three formats, once the message `last` is in all of them.
async fn messages(server: &Cluster, last: &str) -> Result<[Vec<Message>; 3]> {
    let directory = server.data_dir().join("log");
    for _ in 0..200 {
        let mut found = [Vec::new(), Vec::new(), Vec::new()];
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("log") => found[0].extend(of_stderr(&text)),
                Some("csv") => found[1].extend(of_csv(&text)),
                Some("json") => found[2].extend(of_json(&text)?),
                _ => {}
            }
        }
        if found.iter().all(|messages| messages.iter().any(|message| message.text.contains(last))) {
            return Ok(found);
        }
        sleep(Duration::from_millis(25)).await;
    }
    anyhow::bail!("a log never has {last:?}")
}

fn of_stderr(text: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    // Lines that go on begin with a tab.
    for line in text.replace("\n\t", " ").lines() {
        let Some((level, text)) = line.split_once(":  ") else { continue };
        let text = text.to_owned();
        match (level, messages.last_mut()) {
            ("CONTEXT", Some(message)) => message.context = text,
            ("STATEMENT", Some(message)) => message.statement = text,
            ("DETAIL" | "HINT", Some(message)) => message.text += &format!(" / {text}"),
            _ => messages.push(Message { level: level.into(), text, context: String::new(), statement: String::new() }),
        }
    }
    messages
}

fn of_csv(text: &str) -> Vec<Message> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    for letter in text.replace("\"\"", "\u{1}").chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            '\u{1}' if !quoted => {}
            '\u{1}' => field.push('"'),
            '\n' => field.push(' '),
            '\t' => {}
            letter => field.push(letter),
        }
    }
    let of = |row: Vec<String>| {
        let more: String =
            [14, 15].iter().filter(|at| !row[**at].is_empty()).map(|at| format!(" / {}", row[*at])).collect();
        let text = format!("{}{more}", row[13]);
        Message { level: row[11].clone(), text, context: row[18].clone(), statement: row[19].clone() }
    };
    rows.into_iter().filter(|row| row.len() > 20).map(of).collect()
}

fn of_json(text: &str) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let of = |name: &str| value[name].as_str().unwrap_or_default().replace('\n', " ").replace('\t', "");
        let more: String = ["detail", "hint"]
            .iter()
            .filter(|name| value[**name].is_string())
            .map(|name| format!(" / {}", of(name)))
            .collect();
        let text = format!("{}{more}", of("message"));
        messages.push(Message {
            level: of("error_severity"),
            text,
            context: of("context"),
            statement: of("statement"),
        });
    }
    Ok(messages)
}

/// A server that logs all, in all formats.
fn start_logging(version: Version) -> Result<Cluster> {
    let formats = if version == Version::Pg15 { "stderr,csvlog,jsonlog" } else { "stderr,jsonlog,csvlog" };
    let settings = [
        PRELOADED,
        ("idempotence.databases", ""),
        ("logging_collector", "on"),
        ("log_destination", formats),
        ("log_statement", "all"),
        ("log_line_prefix", ""),
        ("log_checkpoints", "off"),
    ];
    shop::start_with(version, &settings)
}

const NAMED: &str = "request \"k1\" of session \"work\"";

// Goal: a request's name keeps no client from its errors and warnings, whatever encoding the client has, and the log names it.
// Method: a key with a character that LATIN1 lacks; errors, a warning and a statement that succeeds.
pub async fn a_name_that_the_client_cannot_read_keeps_no_message_away(version: Version) -> Result<()> {
    let server = start_logging(version)?;
    let connection = server.connect(DATABASE).await?;
    connection
        .text("SELECT idem_create_session('work'); CREATE TABLE own (n integer); SET client_encoding = 'LATIN1'")
        .await?;
    let begin = "SELECT FROM idem_begin('work', U&'caf\\00E9 \\20AC \\+01F600')";
    let raise = "DO $$ BEGIN RAISE 'in vain' USING ERRCODE = '40001'; END $$";
    for (statement, state) in [("SELECT 1 / 0", "22012"), (raise, "40001")] {
        connection.text(&format!("BEGIN; {begin}")).await?;
        let error = connection.error(statement).await?;
        ensure!(error.code().code() == state, "{error:?}");
        ensure!(error.where_().is_some_and(|context| context.contains("\\u20AC \\U0001F600")), "{error:?}");
        connection.text("ROLLBACK").await?;
    }
    connection.text(&format!("BEGIN; {begin}; DO $$ BEGIN RAISE WARNING 'beware'; END $$; ROLLBACK")).await?;
    connection.text(&format!("RESET client_encoding; BEGIN; {begin}")).await?;
    let error = connection.error("SELECT 1 / 0").await?;
    ensure!(error.where_() == Some("request \"caf\u{e9} \u{20ac} \u{1f600}\" of session \"work\""), "{error:?}");
    Ok(())
}

// Goal: in all three formats each line that is written while a request is open names it in its CONTEXT, and no other line
// does. Errors of class ID are logged once. No payload and no response goes to the log but in the user's own statement.
// Method: statements that mark themselves: between begin and the end, after it, with the setting off, with more requests.
pub async fn each_line_names_the_request_that_is_open(version: Version) -> Result<()> {
    let server = start_logging(version)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('work')").await?;
    for sql in [
        "SELECT 'bare 1'",
        "BEGIN",
        "SELECT FROM idem_begin('work', 'k1') -- bare 2",
        "SELECT 'one 1'",
        "SAVEPOINT s",
        "SELECT FROM idem_begin('work', 'k2') -- one 2",
        "SELECT FROM idem_begin('work', 'k3') -- two 1",
        "SELECT 'three 1'",
        "SELECT FROM idem_record('work', 'k3') -- three 2",
        "SELECT 'two 2'",
        "ROLLBACK TO s -- two 3",
        "SELECT 'one 3'",
        "SET idempotence.log_context = off -- one 4",
        "SELECT 'bare 3'",
        "SET idempotence.log_context = on -- bare 4",
        "DO $$ BEGIN RAISE LOG 'one 5'; END $$",
        "SELECT FROM idem_record('work', 'k1') -- one 6",
        "SELECT 'bare 5'",
        "COMMIT",
        "SELECT 'bare 6'",
        "BEGIN",
        "SELECT FROM idem_begin('work', 'k1b') -- bare 7",
        "ROLLBACK",
        "SELECT 'bare 8'",
    ] {
        connection.text(sql).await?;
    }
    // The client gets the CONTEXT with what was logged, and only with that.
    connection.text("BEGIN; SELECT FROM idem_begin('work', 'k1c')").await?;
    let error = connection.error("SELECT 1 / 0 -- logged").await?;
    ensure!(error.where_() == Some("request \"k1c\" of session \"work\""), "the context is {:?}", error.where_());
    connection.text("ROLLBACK; SET log_min_messages = fatal; BEGIN; SELECT FROM idem_begin('work', 'k1c')").await?;
    let error = connection.error("SELECT 1 / 0 -- not logged").await?;
    ensure!(error.where_().is_none(), "the context is {:?}", error.where_());
    connection.text("ROLLBACK; RESET log_min_messages").await?;
    let begin =
        |payload: i32| format!("SELECT FROM idem_begin('work', 'secret', payload => '[\"{SECRET}\", {payload}]')");
    let record = format!("SELECT FROM idem_record('work', 'secret', '\"{SECRET}\"')");
    connection.text(&format!("BEGIN; {}; {record}; COMMIT", begin(1))).await?;
    let state = connection.sqlstate(&begin(2)).await?;
    ensure!(state == "ID001");
    let caught = "DO $$ BEGIN PERFORM idem_claim('work', 'secret'); EXCEPTION WHEN SQLSTATE 'ID011' THEN NULL; END $$";
    connection.text(caught).await?;
    connection.text("SELECT 'the end'").await?;

    for (format, messages) in ["stderr", "csv", "json"].iter().zip(messages(&server, "the end").await?) {
        for (mark, wanted, at_least) in [
            ("bare", "", 7),
            ("one", NAMED, 6),
            ("two", "request \"k2\" of session \"work\", and 1 more", 3),
            ("three", "request \"k3\" of session \"work\", and 2 more", 2),
        ] {
            let marked: Vec<&Message> = messages
                .iter()
                .filter(|message| (1..9).any(|n| message.text.trim_end_matches('\'').ends_with(&format!("{mark} {n}"))))
                .collect();
            ensure!(marked.len() >= at_least, "{format}: {} lines have the mark {mark}", marked.len());
            for message in marked {
                // PL/pgSQL adds a line of its own.
                let own =
                    message.context.split("PL/pgSQL function inline_code_block line 1 at RAISE").collect::<String>();
                ensure!(own.trim() == wanted, "{format}: {message:?}");
            }
        }
        let errors: Vec<&Message> = messages.iter().filter(|message| message.level == "ERROR").collect();
        let mismatches = errors.iter().filter(|message| message.text.contains("payload")).count();
        ensure!(mismatches == 1, "{format}: an error of class ID is logged {mismatches} times");
        ensure!(
            !messages.iter().any(|message| message.level == "ERROR" && message.text.contains("already")),
            "{format}"
        );
        let is_statement = |message: &&Message| message.text.starts_with("statement: ");
        let told = messages.iter().filter(|message| !is_statement(message));
        let telling: Vec<&Message> = told.filter(|m| m.text.contains(SECRET) || m.context.contains(SECRET)).collect();
        ensure!(telling.is_empty(), "{format} tells what is secret: {telling:?}");
    }
    Ok(())
}

/// The lines of the log on waits.
fn waits(server: &Cluster) -> Vec<Message> {
    lines(server).into_iter().filter(|message| message.text.contains("still waits for")).collect()
}

/// The messages of the log in its plain format.
fn lines(server: &Cluster) -> Vec<Message> {
    let log = server.log();
    let lines: String =
        log.lines().map(|line| line.split_once("] ").map_or(line, |(_, line)| line).to_owned() + "\n").collect();
    of_stderr(&lines)
}

/// Has one wait for what another one holds until `let_go`, and gives its answer.
async fn wait_for(
    server: &Cluster,
    limit: &str,
    key: &str,
    waiting: Duration,
    let_go: &Connection,
    end: &str,
) -> Result<(i32, String)> {
    let waiter = server.connect(DATABASE).await?;
    let pid = waiter.pid().await?;
    waiter.text(&format!("SET idempotence.log_waits = '{limit}'")).await?;
    let sql = format!("SELECT status, replayed, response FROM idem_begin('work', '{key}', wait => '1 min')");
    let answer = tokio::spawn(async move { waiter.outcome_of(&sql).await });
    sleep(waiting).await;
    let_go.text(end).await?;
    Ok((pid, answer.await??))
}

// Goal: a wait that is longer than the limit is logged once, while it lasts, with both sides: the process that waits, and
// the process, role and application of the holder. Others are not logged. The answer is what it would have been.
// Method: waits for a transaction and for a lease, longer and shorter than the limit, and with -1.
pub async fn a_long_wait_is_logged_once_with_both_sides(version: Version) -> Result<()> {
    let server = start(version)?;
    let holder = server.connect(DATABASE).await?;
    holder
        .text("CREATE ROLE app LOGIN; SELECT idem_grant('app'); SELECT idem_create_session('work', usable_by => 'app')")
        .await?;
    let holder = server.connect_as(DATABASE, "app").await?;
    holder.text("SET application_name = 'Kasse 7'").await?;
    let holder_pid = holder.pid().await?;
    // Whoever waits for a lease looks at least once a second.
    let long = Duration::from_millis(1300);
    let short = Duration::from_millis(150);
    let mut logged = 0;
    for (round, (limit, waiting, is_logged)) in
        [("200ms", long, true), ("60s", short, false), ("-1", short, false)].into_iter().enumerate()
    {
        let key = format!("lock {round}");
        holder.text(&format!("BEGIN; SELECT FROM idem_begin('work', '{key}')")).await?;
        let end = format!("SELECT FROM idem_record('work', '{key}', '7'); COMMIT");
        let (pid, answer) = wait_for(&server, limit, &key, waiting, &holder, &end).await?;
        ensure!(answer == "succeeded|t|7", "who waited with the limit {limit} is told {answer}");
        check_line(
            &server,
            &mut logged,
            is_logged,
            pid,
            &key,
            &format!("Process {holder_pid} (role \"app\", application \"Kasse 7\") has it since "),
        )?;

        let key = format!("lease {round}");
        let token = holder.text(&format!("SELECT token FROM idem_begin('work', '{key}', lease => '10 min')")).await?;
        let end = format!("SELECT FROM idem_record('work', '{key}', '8', token => {token})");
        let (pid, answer) = wait_for(&server, limit, &key, waiting, &holder, &end).await?;
        ensure!(answer == "succeeded|t|8", "who waited with the limit {limit} is told {answer}");
        check_line(
            &server,
            &mut logged,
            is_logged,
            pid,
            &key,
            "Role \"app\" (application \"Kasse 7\") has a lease until ",
        )?;
    }
    // A prepared transaction has no process.
    holder.text("BEGIN; SELECT FROM idem_begin('work', 'p'); SELECT FROM idem_record('work', 'p', '9'); PREPARE TRANSACTION 'p'").await?;
    let (pid, answer) =
        wait_for(&server, "100ms", "p", Duration::from_millis(500), &holder, "COMMIT PREPARED 'p'").await?;
    ensure!(answer == "succeeded|t|9", "who waited for a prepared transaction is told {answer}");
    check_line(&server, &mut logged, true, pid, "p", "prepared transaction")?;
    // A wait that ends in an answer of its own is logged too, once.
    holder.text("BEGIN; SELECT FROM idem_begin('work', 'busy')").await?;
    let waiter = server.connect(DATABASE).await?;
    let busy = "SET idempotence.log_waits = '100ms'; SELECT status FROM idem_begin('work', 'busy', wait => '400 ms')";
    ensure!(waiter.text(busy).await? == "in_progress");
    check_line(&server, &mut logged, true, waiter.pid().await?, "busy", "has it since")
}

// Goal: a wait that is logged is found to be a deadlock as soon as one that is not.
// Method: two that wait for each other, with the same time for both, as by default.
pub async fn the_log_of_a_wait_puts_off_no_deadlock(version: Version) -> Result<()> {
    let server = start(version)?;
    let [one, two] = [server.connect(DATABASE).await?, server.connect(DATABASE).await?];
    one.text("SELECT idem_create_session('work')").await?;
    for limit in ["600ms", "-1"] {
        let settings = format!("SET deadlock_timeout = '600ms'; SET idempotence.log_waits = '{limit}'; BEGIN");
        let begin = |key: &str| format!("SELECT status FROM idem_begin('work', '{key}', wait => '1 min')");
        for (connection, key) in [(&one, "a"), (&two, "b")] {
            connection.text(&settings).await?;
            connection.text(&begin(key)).await?;
        }
        let start = Instant::now();
        let (of_one, of_two) = (begin("b"), begin("a"));
        let (first, second) = tokio::try_join!(one.outcome_of(&of_one), two.outcome_of(&of_two))?;
        let took = start.elapsed();
        ensure!([first.as_str(), &second].contains(&"40P01"), "they are told {first} and {second}");
        ensure!(took < Duration::from_millis(1000), "with log_waits = {limit} a deadlock is found after {took:?}");
        for connection in [&one, &two] {
            connection.text("ROLLBACK").await?;
        }
    }
    Ok(())
}

// Goal: where it is asked for, the commit logs a line for each request that was recorded, replayed or released.
// Method: each of these, in savepoints that are rolled back and released, in a rollback, and in a prepared transaction.
pub async fn the_commit_logs_what_became_of_requests(version: Version) -> Result<()> {
    let server = start(version)?;
    let app = server.connect(DATABASE).await?;
    let told = || -> Vec<String> {
        let of_requests = |message: Message| message.text.strip_prefix("request ").map(str::to_owned);
        lines(&server).into_iter().filter_map(of_requests).collect()
    };
    let record =
        |key: &str| format!("SELECT FROM idem_begin('work', '{key}'); SELECT FROM idem_record('work', '{key}')");
    app.text("SELECT idem_create_session('work')").await?;
    app.text(&format!("BEGIN; {}; COMMIT", record("unasked"))).await?;
    app.text("SET idempotence.log_requests = on").await?;
    app.text(&format!("BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s", record("a"), record("undone"))).await?;
    app.text("SELECT FROM idem_begin('work', 'b'); SELECT FROM idem_record('work', 'b', failed => true)").await?;
    app.text(
        "RELEASE s; SAVEPOINT t; SELECT FROM idem_begin('work', 'c'); SELECT FROM idem_release('work', 'c'); RELEASE t",
    )
    .await?;
    ensure!(told().is_empty(), "before the commit: {:?}", told());
    app.text("COMMIT").await?;
    app.text(&format!("BEGIN; {}; ROLLBACK", record("undone"))).await?;
    app.text("SELECT FROM idem_begin('work', 'a')").await?;
    app.text(&format!("BEGIN; {}; PREPARE TRANSACTION 'p'", record("p"))).await?;
    app.text("ROLLBACK PREPARED 'p'").await?;
    let of_commit = |line: &str| format!("{line} / The transaction has committed.");
    let wanted = [
        of_commit(r#""a" of session "work": succeeded, recorded"#),
        of_commit(r#""b" of session "work": failed, recorded"#),
        of_commit(r#""c" of session "work": released"#),
        of_commit(r#""a" of session "work": succeeded, replayed"#),
        r#""p" of session "work": succeeded, recorded / The transaction is prepared: COMMIT PREPARED makes it so."#
            .into(),
    ];
    ensure!(told() == wanted, "{:#?}", told());
    Ok(())
}

fn check_line(server: &Cluster, logged: &mut usize, is_logged: bool, pid: i32, key: &str, holder: &str) -> Result<()> {
    let lines = waits(server);
    *logged += usize::from(is_logged);
    ensure!(lines.len() == *logged, "after {key}, {} waits are logged and not {logged}: {lines:#?}", lines.len());
    if is_logged {
        let line = &lines[*logged - 1];
        let told = format!("process {pid} still waits for request \"{key}\" of session \"work\" after ");
        ensure!(
            line.level.ends_with("LOG") && line.text.starts_with(&told) && line.text.contains(holder),
            "{line:?} is not\n{told} ... {holder}"
        );
        let ms: u64 = line.text[told.len()..].split(' ').next().unwrap_or_default().parse()?;
        ensure!((95..1000).contains(&ms), "it is logged after {ms} ms");
    }
    Ok(())
}
