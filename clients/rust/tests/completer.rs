//! The completer: what it takes over, and 200 completers that are killed while they work. IDEM_URI: see run.sh. A line
//! for each test; fails if one does. With the arguments DRIVER SESSION it is a completer that runs until it is killed.

mod common;

use common::{Driver, Place};
use deadpool_postgres::Pool;
use deadpool_postgres::tokio_postgres::{Client, NoTls};
use idempotence::{Ask, BoxError, Completer, Final, Lease, Leased, Request, complete};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

const SETUP: &str = "
    SET client_min_messages = error;
    CREATE EXTENSION IF NOT EXISTS idempotence;
    CREATE TABLE IF NOT EXISTS completer_effect (session text NOT NULL, key text NOT NULL)";
const KILLS: usize = 200;

fn place() -> Place {
    let uri = std::env::var("IDEM_URI").expect("IDEM_URI is a URI of a superuser, as in run.sh");
    Place { uri, user: None, database: None, host: None }
}

async fn connect() -> Result<Client, BoxError> {
    let (client, connection) = place().config().connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A session of its own.
async fn session(name: &str, options: &str) -> Result<String, BoxError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let session = format!("{name}-{now:x}");
    connect().await?.batch_execute(&format!("SELECT idem_create_session('{session}'{options})")).await?;
    Ok(session)
}

/// Begins a request and abandons it, after a checkpoint.
async fn abandon<D: Driver>(pool: &D, session: &str, key: &str) -> Result<(), BoxError> {
    match Request::new(session, key).hold(pool, Duration::from_millis(50)).await? {
        Leased::Held(lease) => Ok(lease.checkpoint("charged", &json!({"charge": key})).await?),
        Leased::Answered(answer) => Err(format!("{key} has the answer {answer:?}").into()),
    }
}

/// The outcomes of a session: key, status, response.
async fn outcomes(session: &str) -> Result<Vec<(String, String, Value)>, BoxError> {
    let outcomes = "SELECT request, status::text, coalesce(response, 'null')::text FROM idempotence.outcomes
        WHERE session = $1 ORDER BY request";
    let rows = connect().await?.query(outcomes, &[&session]).await?;
    rows.iter().map(|row| Ok((row.get(0), row.get(1), serde_json::from_str(row.get(2))?))).collect()
}

async fn recorded(session: &str, count: usize) -> Result<Vec<(String, String, Value)>, BoxError> {
    let (mut before, mut last) = (0, Instant::now());
    loop {
        let found = outcomes(session).await?;
        if found.len() >= count {
            return Ok(found);
        }
        // On a busy machine it takes longer, but it goes on.
        if found.len() > before {
            (before, last) = (found.len(), Instant::now());
        }
        if last.elapsed() > Duration::from_secs(30) {
            return Err(format!("no further outcome within 30 seconds; of {count} outcomes there are {found:?}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), BoxError> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}").into()) }
}

fn quick<D: Driver>(pool: &D, session: &str) -> Completer<D> {
    Completer::new(pool, session).interval(Duration::from_millis(50)).lease(Duration::from_secs(1))
}

/// Runs a completer until the check has ended.
async fn while_it_runs<T>(
    completer: impl Future<Output = ()>,
    check: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    tokio::select! {
        () = completer => Err("the completer has ended".into()),
        checked = check => checked,
    }
}

async fn it_continues_from_the_checkpoint_and_records<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("continues", "").await?;
    abandon(&pool, &session, "k").await?;
    let handler = async |lease: Arc<Lease<D>>| {
        let ticket = &lease.ticket;
        Ok::<_, BoxError>(json!({
            "key": lease.key(), "point": ticket.point, "state": ticket.state, "taken_over": lease.taken_over(),
        }))
    };
    // With the default options.
    let found = while_it_runs(complete(&pool, &session, handler), recorded(&session, 1)).await?;
    let response = json!({"key": "k", "point": "charged", "state": {"charge": "k"}, "taken_over": true});
    same("outcomes", found, vec![("k".into(), "succeeded".into(), response)])
}

async fn it_finds_a_request_that_stopped_at_a_checkpoint_without_a_lease<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("suspended", "").await?;
    let sql =
        format!("BEGIN; SELECT idem_begin('{session}', 'k'); SELECT idem_checkpoint('{session}', 'k', 'half'); COMMIT");
    connect().await?.batch_execute(&sql).await?;
    let handler = async |lease: Arc<Lease<D>>| Ok::<_, BoxError>(json!(lease.ticket.point));
    let run = quick(&pool, &session);
    let found = while_it_runs(run.run(handler, std::future::pending::<()>()), recorded(&session, 1)).await?;
    same("outcomes", found, vec![("k".into(), "succeeded".into(), json!("half"))])
}

async fn it_leaves_alone_what_is_in_progress_or_done<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("alone", "").await?;
    let Leased::Held(_held) = Request::new(&*session, "held").hold(&pool, Duration::from_secs(30)).await? else {
        return Err("it was begun before".into());
    };
    Request::new(&*session, "done").run(&pool, async |_| Ok::<_, BoxError>(1)).await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move |_: Arc<Lease<D>>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>(2) }
    };
    let stop = sleep(Duration::from_millis(500));
    quick(&pool, &session).run(handler, stop).await;
    same("calls", calls.load(Ordering::Relaxed), 0)
}

async fn an_error_backs_off_and_a_final_error_is_recorded<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("errors", "").await?;
    abandon(&pool, &session, "final").await?;
    abandon(&pool, &session, "k").await?;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = calls.clone();
    let answer = move |key: &str| -> Result<i32, BoxError> {
        if key == "final" {
            return Err(Final(json!({"no": 1})).into());
        }
        let mut calls = noted.lock().expect("no test panics");
        calls.push(Instant::now());
        if calls.len() < 3 { Err("the processor is unavailable".into()) } else { Ok(7) }
    };
    let handler = move |lease: Arc<Lease<D>>| std::future::ready(answer(lease.key()));
    let run = quick(&pool, &session).lease(Duration::from_millis(100)).interval(Duration::from_millis(200));
    let found = while_it_runs(run.run(handler, std::future::pending::<()>()), recorded(&session, 2)).await?;
    let expected = [("final", "failed", json!({"no": 1})), ("k", "succeeded", json!(7))];
    same("outcomes", found, expected.map(|(key, status, response)| (key.into(), status.into(), response)).to_vec())?;
    let calls = calls.lock().expect("no test panics").clone();
    same("pauses that are too short", calls[2] - calls[1] < Duration::from_millis(400), false)
}

async fn a_handler_may_record_or_release_itself<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("itself", "").await?;
    abandon(&pool, &session, "record").await?;
    abandon(&pool, &session, "release").await?;
    let released = Arc::new(AtomicUsize::new(0));
    let counted = released.clone();
    let handler = move |lease: Arc<Lease<D>>| {
        let counted = counted.clone();
        async move {
            if lease.key() == "record" {
                lease.record(&json!("mine"), false).await?;
            } else {
                lease.release().await?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, BoxError>(0)
        }
    };
    let run = quick(&pool, &session);
    let check = async {
        let found = recorded(&session, 1).await?;
        while released.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(found)
    };
    let found = timeout(Duration::from_secs(20), while_it_runs(run.run(handler, std::future::pending::<()>()), check))
        .await??;
    same("outcomes", found, vec![("record".into(), "succeeded".into(), json!("mine"))])
}

async fn it_stops_after_the_running_handlers<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("stops", "").await?;
    abandon(&pool, &session, "k").await?;
    sleep(Duration::from_millis(100)).await;
    let (started, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let begun = started.clone();
    let handler = move |_: Arc<Lease<D>>| {
        begun.notify_one();
        async {
            sleep(Duration::from_millis(500)).await;
            Ok::<_, BoxError>(1)
        }
    };
    let run = quick(&pool, &session);
    let (wait, ended) = (started.clone(), stop.clone());
    tokio::spawn(async move {
        wait.notified().await;
        ended.notify_one();
    });
    timeout(Duration::from_secs(10), run.run(handler, stop.notified())).await?;
    same("outcomes", outcomes(&session).await?.len(), 1)
}

async fn it_ignores_requests_with_too_many_attempts<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("attempts", "").await?;
    abandon(&pool, &session, "k").await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move |_: Arc<Lease<D>>| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Err::<i32, BoxError>("it always fails".into()))
    };
    let run = quick(&pool, &session).lease(Duration::from_millis(50)).max_attempts(3);
    run.run(handler, sleep(Duration::from_secs(3))).await;
    // The first attempt abandoned it, and two more were made here.
    same("calls", calls.load(Ordering::Relaxed), 2)
}

/// Completes a request as an application must: it checks first whether the effect has happened.
async fn effect<D: Driver>(pool: D, session: String, lease: Arc<Lease<D>>) -> Result<Value, BoxError> {
    let key = lease.key().to_owned();
    let mut conn = pool.connect().await?;
    let found = "SELECT count(*)::text FROM completer_effect WHERE session = $1::text AND key = $2::text";
    let args = [Some(&*session), Some(&*key)];
    let happened = conn.ask(found, &args).await?[0][0].as_deref() != Some("0");
    sleep(Duration::from_millis(20)).await;
    if !happened {
        conn.ask("INSERT INTO completer_effect VALUES ($1::text, $2::text)", &args).await?;
    }
    sleep(Duration::from_millis(20)).await;
    Ok(json!({"done": key}))
}

async fn work_until_killed<D: Driver>(session: String) {
    let pool = D::open(&place(), 8);
    let own = (pool.clone(), session.clone());
    let handler = move |lease: Arc<Lease<D>>| effect(own.0.clone(), own.1.clone(), lease);
    let run = quick(&pool, &session).lease(Duration::from_millis(500)).interval(Duration::from_millis(20));
    run.run(handler, std::future::pending::<()>()).await;
}

fn worker<D: Driver>(session: &str) -> Result<Child, BoxError> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args([D::NAME, session]).stdin(Stdio::null()).kill_on_drop(true).spawn()?)
}

/// Three processes complete abandoned requests, and one after the other is killed.
async fn killed_completers_complete_every_request_once<D: Driver>(pool: D) -> Result<(), BoxError> {
    let session = session("killed", "").await?;
    let mut workers = (0..3).map(|_| worker::<D>(&session)).collect::<Result<Vec<_>, _>>()?;
    let mut keys = BTreeSet::new();
    for kill in 0..KILLS {
        for n in 0..2 {
            let key = format!("{kill:03}-{n}");
            abandon(&pool, &session, &key).await?;
            keys.insert(key);
        }
        sleep(Duration::from_millis(100)).await;
        // Tokio's kill is SIGKILL, and waits for the end.
        workers[kill % 3].kill().await?;
        workers[kill % 3] = worker::<D>(&session)?;
    }
    let found = recorded(&session, keys.len()).await?;
    let done: BTreeSet<_> = found.iter().map(|(key, _, _)| key.clone()).collect();
    same("requests with an outcome", done, keys.clone())?;
    for (key, status, response) in found {
        same(&key, (&*status, response), ("succeeded", json!({"done": key})))?;
    }
    let rows =
        connect().await?.query("SELECT key FROM completer_effect WHERE session = $1 ORDER BY key", &[&session]).await?;
    same("effects", rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), keys.into_iter().collect())
}

macro_rules! tests {
    ($good:ident, $driver:ty, $($name:ident),*) => { $(
        match $name(<$driver>::open(&place(), 8)).await {
            Ok(()) => println!("ok {}: {}", <$driver>::NAME, stringify!($name).replace('_', " ")),
            Err(error) => {
                $good = false;
                println!("not ok {}: {}: {error}", <$driver>::NAME, stringify!($name).replace('_', " "));
            }
        }
    )* };
}

async fn all<D: Driver>() -> bool {
    let mut good = true;
    tests!(
        good,
        D,
        it_continues_from_the_checkpoint_and_records,
        it_finds_a_request_that_stopped_at_a_checkpoint_without_a_lease,
        it_leaves_alone_what_is_in_progress_or_done,
        an_error_backs_off_and_a_final_error_is_recorded,
        a_handler_may_record_or_release_itself,
        it_stops_after_the_running_handlers,
        it_ignores_requests_with_too_many_attempts,
        killed_completers_complete_every_request_once
    );
    good
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [driver, session] = &args[..] {
        match &**driver {
            Pool::NAME => work_until_killed::<Pool>(session.clone()).await,
            _ => work_until_killed::<PgPool>(session.clone()).await,
        }
        return Ok(());
    }
    connect().await?.batch_execute(SETUP).await?;
    let good = all::<Pool>().await & all::<PgPool>().await;
    if good { Ok(()) } else { Err("some tests failed".into()) }
}
