//! Every case of clients/vectors.json, with each driver. IDEM_URI: a superuser's, of a database that has what the cases
//! need (run.sh). A line for each case; fails if one does.

mod common;

use common::{Application, Driver, Place, pid};
use deadpool_postgres::Pool;
use deadpool_postgres::tokio_postgres::{self, NoTls, SimpleQueryMessage, types::Type};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use idempotence::{Answer, BoxError, Cause, Client, Conn, Error, Final, Lease, Request, Ticket, check};
use serde_json::{Map, Value, json};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// Whether the edition for managed services is in the extension's place.
fn managed() -> bool {
    std::env::var_os("IDEM_MANAGED").is_some()
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors.json");

/// With {each} and {run} put in.
fn filled(value: &Value, each: &Value, run: &str) -> Value {
    let put = |text: &str| {
        let said = each.as_str().map_or_else(|| each.to_string(), String::from);
        text.replace("{each}", &said).replace("{run}", run)
    };
    match value {
        Value::String(text) if text == "{each}" => each.clone(),
        Value::String(text) => put(text).into(),
        Value::Array(list) => list.iter().map(|value| filled(value, each, run)).collect(),
        Value::Object(map) => map.iter().map(|(name, value)| (put(name), filled(value, each, run))).collect(),
        other => other.clone(),
    }
}

async fn connect(place: &Place) -> Result<tokio_postgres::Client, BoxError> {
    let (client, connection) = place.config().connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// What a statement returns, or the last of several.
async fn rows(client: &tokio_postgres::Client, sql: &str, wanted: bool) -> Result<Value, BoxError> {
    if !wanted {
        client.batch_execute(sql).await?;
        return Ok(Value::Null);
    }
    let types: Vec<_> = client.prepare(sql).await?.columns().iter().map(|column| column.type_().clone()).collect();
    let mut rows = Vec::new();
    for message in client.simple_query(sql).await? {
        if let SimpleQueryMessage::Row(row) = message {
            let value = |n: usize| match (row.get(n), &types[n]) {
                (None, _) => Ok(Value::Null),
                (Some(text), &Type::BOOL) => Ok((text == "t").into()),
                (Some(text), &(Type::INT4 | Type::INT8 | Type::JSONB)) => serde_json::from_str(text),
                (Some(text), _) => Ok(text.into()),
            };
            rows.push((0..types.len()).map(value).collect::<Result<Value, _>>()?);
        }
    }
    Ok(rows.into())
}

fn same(what: &str, found: &Value, wanted: &Value) -> Result<(), BoxError> {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found}, and not {wanted}").into()) }
}

fn text(value: &Value) -> String {
    let uuid = value["uuid"].as_str().map(str::to_lowercase);
    uuid.or_else(|| value.as_str().map(String::from)).unwrap_or_else(|| value.to_string())
}

/// One case, and what its steps have in common.
struct Case<D: Driver> {
    run: String,
    pools: Arc<HashMap<&'static str, D>>,
    owner: Place,
    calls: AtomicUsize,
}

impl<D: Driver> Case<D> {
    async fn sql(&self, sql: &str, wanted: Option<&Value>) -> Result<(), BoxError> {
        let found = rows(&connect(&self.owner).await?, sql, wanted.is_some()).await?;
        wanted.map_or(Ok(()), |wanted| same(sql, &found, wanted))
    }

    fn insert(&self, amount: &Value) -> String {
        format!("INSERT INTO client_effect VALUES ('{}', {amount})", self.run)
    }

    fn work(
        self: &Arc<Self>,
        step: &Value,
    ) -> impl FnMut(Conn<D>) -> BoxFuture<'static, Result<Value, BoxError>> + use<D> {
        let (case, lists) = (self.clone(), step["work"].clone());
        move |conn| {
            let call = case.calls.fetch_add(1, Ordering::Relaxed);
            let list = lists.as_array().and_then(|lists| lists.get(call).or(lists.last())).cloned().unwrap_or_default();
            case.clone().perform(conn, list).boxed()
        }
    }

    async fn perform(self: Arc<Self>, mut conn: Conn<D>, list: Value) -> Result<Value, BoxError> {
        for action in list.as_array().ok_or("no list")? {
            let (name, value) = action.as_object().and_then(|action| action.iter().next()).ok_or("no action")?;
            match &**name {
                "effect" => D::execute(&mut conn, self.insert(value)).await?,
                "sql" => D::execute(&mut conn, text(value)).await?,
                "caught" => {
                    D::execute(&mut conn, text(value)).await.expect_err("the statement fails");
                }
                "foreign" => D::foreign(&text(value)).await?,
                "sleep" => sleep(Duration::from_secs_f64(value.as_f64().unwrap_or(0.0))).await,
                "terminate" => {
                    let end = format!("SELECT pg_terminate_backend({}, 5000)", pid(&mut conn).await?);
                    self.sql(&end, None).await?;
                }
                "return" => return Ok(value.clone()),
                "final" => return Err(Final(value.clone()).into()),
                "raise" => return Err(Application(text(value)).into()),
                _ => return Err(format!("no action is known of the name {name}").into()),
            }
        }
        Err("the work returned nothing".into())
    }

    async fn hold(self: Arc<Self>, lease: Arc<Lease<D>>, list: Value, pool: D) -> Result<(), BoxError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for action in list.as_array().ok_or("no list")? {
            // The name of an action, which has no argument.
            let named = action["each"].as_str().map(|name| json!({name: true}));
            let action = named.as_ref().unwrap_or(action);
            let value = |name: &str| action.get(name).filter(|value| !value.is_null());
            if let Some(amount) = value("effect") {
                pool.outside(self.insert(amount)).await?;
            } else if let Some(sql) = value("sql") {
                self.sql(&text(sql).replace("{token}", &lease.token.to_string()), value("rows")).await?;
            } else if let Some(time) = value("sleep") {
                sleep(Duration::from_secs_f64(time.as_f64().unwrap_or(0.0))).await;
            } else if let Some(response) = value("record") {
                let response = if response == &json!(true) { &Value::Null } else { response };
                lease.record(response, value("failed") == Some(&json!(true))).await?;
            } else if let Some(point) = value("checkpoint") {
                lease.checkpoint(point.as_str().unwrap_or("half"), &action["state"]).await?;
            } else if value("release").is_some() {
                lease.release().await?;
            } else if value("extend").is_some() {
                lease.extend().await?;
            } else if let Some(limit) = value("until_lost") {
                sleep(Duration::from_secs_f64(limit.as_f64().unwrap_or(0.0))).await;
                return Err("the heartbeat has learnt nothing".into());
            } else {
                return Err(Application(text(&action["raise"])).into());
            }
        }
        Ok(())
    }

    fn request(&self, step: &Value) -> Request {
        let session = step["session"].as_str().unwrap_or(&self.run);
        let mut request = Request::new(session, text(&step["key"])).payload(&step["payload"]);
        let seconds = |name: &str| step[name].as_f64().map(Duration::from_secs_f64);
        request = seconds("wait").into_iter().fold(request, Request::wait);
        request = seconds("deadline").into_iter().fold(request, Request::deadline);
        request = seconds("ttl").into_iter().fold(request, Request::ttl);
        if step["claim"] == json!(true) { request.claim() } else { request }
    }

    async fn call(self: &Arc<Self>, step: &Value, client: &mut Option<Client<D>>) -> Result<Value, Error> {
        let pool = self.pools[step["pool"].as_str().unwrap_or("owner")].clone();
        let told =
            |answer: Answer| json!({"status": answer.status, "replayed": answer.replayed, "response": answer.response});
        match step["call"].as_str().unwrap_or_default() {
            "run" => self.request(step).run(&pool, self.work(step)).await.map(told),
            "lookup" => {
                let request = self.request(step).wait(Duration::from_secs_f64(step["wait"].as_f64().unwrap_or(0.0)));
                let Ticket { status, response, .. } = request.lookup(&pool).await?;
                Ok(json!({"status": status, "response": response}))
            }
            "lease" => self.lease(step, pool).await,
            "once" => {
                let keys: Vec<_> = step["keys"].as_array().into_iter().flatten().map(text).collect();
                let new = pool.once(&self.run, &keys, step["rollback"] != json!(true)).await?;
                Ok(json!({"new": new.into_iter().map(|place| keys[place].clone()).collect::<Vec<_>>()}))
            }
            "check" => {
                let session = step.get("session").map_or(Some(&*self.run), Value::as_str);
                let found = check(&pool, session).await;
                let words = found.problems.iter().map(|problem| problem.split(':').next());
                let wanted = if managed() { "managed " } else { "extension " };
                let edition = found.edition.as_ref().is_some_and(|edition| edition.starts_with(wanted));
                let said = |text: &&Value| {
                    text.as_str().is_some_and(|text| found.problems.iter().any(|told| told.contains(text)))
                };
                let says = step["expect"]["says"].as_array().into_iter().flatten().filter(said).collect::<Vec<_>>();
                Ok(json!({"problems": words.collect::<Vec<_>>(), "says": says, "edition": edition}))
            }
            "client" => {
                let window = step["window"].as_u64().map(|window| window as u32);
                *client = Some(Client::new(&pool, text(&step["name"]), window));
                Ok(Value::Null)
            }
            "send" => client.as_ref().expect("a client").send(&step["payload"], self.work(step)).await.map(told),
            "close" => client.take().expect("a client").close().await.map(|()| Value::Null),
            other => panic!("no call is known of the name {other}"),
        }
    }

    async fn lease(self: &Arc<Self>, step: &Value, mut pool: D) -> Result<Value, Error> {
        let list = step["do"].clone();
        let cuts = list.as_array().into_iter().flatten().any(|action| action.get("terminate").is_some());
        let wire = if cuts { Some(Wire::new(&self.owner, &self.run).await?) } else { None };
        if let Some(wire) = &wire {
            pool = D::open(&wire.place, 4);
        }
        let (case, held) = (self.clone(), Arc::new(std::sync::Mutex::new(None)));
        let kept = held.clone();
        let length = Duration::from_secs_f64(step["lease"].as_f64().unwrap_or(30.0));
        let own = pool.clone();
        let work = move |lease: Arc<Lease<D>>| {
            *kept.lock().expect("nobody panics") = Some((lease.ticket.clone(), lease.taken_over(), lease.token));
            case.hold(lease, list, own)
        };
        let answer = self.request(step).lease(&pool, length, work).await?;
        if wire.is_some_and(|wire| !wire.cut.load(Ordering::Relaxed)) {
            return Err(Error::Other("the wire was not cut".into()));
        }
        let begun = held.lock().expect("nobody panics").take();
        Ok(match (begun, answer) {
            (Some((Ticket { status, point, state, attempt, .. }, taken_over, token)), _) => json!({
                "status": status, "taken_over": taken_over, "point": point, "state": state, "attempt": attempt,
                "token": token > 0,
            }),
            (None, Some(answer)) => {
                json!({"status": answer.status, "replayed": answer.replayed, "response": answer.response})
            }
            (None, None) => Value::Null,
        })
    }

    async fn steps(self: Arc<Self>, case: &Value) -> Result<(), BoxError> {
        let mut named = HashMap::new();
        let mut later = Vec::new();
        let mut client = None;
        for sql in case["setup"].as_array().into_iter().flatten() {
            self.sql(&text(sql), None).await?;
        }
        for step in case["steps"].as_array().ok_or("no steps")? {
            if let Some(sql) = step["sql"].as_str() {
                let on = step["on"].as_str().unwrap_or_default().to_owned();
                if !named.contains_key(&on) {
                    named.insert(on.clone(), Arc::new(connect(&self.owner).await?));
                }
                let (connection, sql, wanted) = (named[&on].clone(), sql.to_owned(), step.get("rows").cloned());
                let after = step["after"].as_f64().map(Duration::from_secs_f64);
                let ran = tokio::spawn(async move {
                    sleep(after.unwrap_or_default()).await;
                    let found = rows(&connection, &sql, wanted.is_some()).await?;
                    wanted.map_or(Ok(()), |wanted| same(&sql, &found, &wanted))
                });
                if after.is_some() { later.push(ran) } else { ran.await?? }
            } else if let Some(time) = step["sleep"].as_f64() {
                sleep(Duration::from_secs_f64(time)).await;
            } else {
                self.calls.store(0, Ordering::Relaxed);
                let found = self.call(step, &mut client).await;
                let expect = step["expect"].as_object().cloned().unwrap_or_default();
                compare(found, expect, self.calls.load(Ordering::Relaxed))
                    .map_err(|error| format!("{error} in {step}"))?;
            }
        }
        for ran in later {
            ran.await??;
        }
        if let Some(effects) = case.get("effects") {
            let count = format!("SELECT count(*) FROM client_effect WHERE run = '{}'", self.run);
            self.sql(&count, Some(&json!([[effects]]))).await?;
        }
        Ok(())
    }
}

fn word(error: &Error) -> String {
    match error {
        Error::InProgress { .. } => "in_progress".into(),
        Error::Interrupted { .. } => "interrupted".into(),
        Error::Unrecorded { .. } => "unrecorded".into(),
        Error::NoConnection => "connection".into(),
        Error::Database { cause: Cause::Lost, .. } | Error::Work { cause: Some(Cause::Lost), .. } => {
            "connection".into()
        }
        _ if error.downcast_ref::<Application>().is_some() => "application".into(),
        _ => error.sqlstate().unwrap_or_else(|| error.to_string()),
    }
}

fn compare(found: Result<Value, Error>, mut expect: Map<String, Value>, works: usize) -> Result<(), BoxError> {
    if let Some(wanted) = expect.remove("works") {
        same("works", &works.into(), &wanted)?;
    }
    match (found, expect.remove("error")) {
        (Ok(found), None) => expect.iter().try_for_each(|(name, wanted)| same(name, &found[name], wanted)),
        (Ok(found), Some(wanted)) => Err(format!("no {wanted}, but {found}").into()),
        (Err(error), None) => Err(error.into()),
        (Err(error), Some(wanted)) => {
            same("the error", &word(&error).into(), &wanted)?;
            let (expires, at) = match error {
                Error::InProgress { expires_at, .. } => (expires_at.is_some(), None),
                Error::Interrupted { point, .. } => (false, point),
                _ => (false, None),
            };
            let found = json!({"expires": expires, "point": at});
            expect.iter().try_for_each(|(name, wanted)| same(name, &found[name], wanted))
        }
    }
}

/// Between a client and the server. It is cut once, when the answer to idem_record is there and has not arrived.
struct Wire {
    place: Place,
    cut: Arc<AtomicBool>,
    folder: std::path::PathBuf,
}

impl Wire {
    async fn new(owner: &Place, run: &str) -> Result<Wire, BoxError> {
        let folder = std::env::temp_dir().join(format!("wire-{run}"));
        std::fs::create_dir(&folder)?;
        let listener = UnixListener::bind(folder.join(".s.PGSQL.5432"))?;
        let there = match &owner.config().get_hosts()[0] {
            tokio_postgres::config::Host::Unix(folder) => folder.join(".s.PGSQL.5432"),
            _ => return Err("IDEM_URI is to name a folder with a socket".into()),
        };
        let cut = Arc::new(AtomicBool::new(false));
        let at = cut.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = UnixStream::connect(&there).await {
                    tokio::spawn(carry(client, server, at.clone()));
                }
            }
        });
        let host = Some((folder.to_string_lossy().into_owned(), 5432));
        Ok(Wire { place: Place { host, ..owner.clone() }, cut, folder })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn carry(mut client: UnixStream, mut server: UnixStream, cut: Arc<AtomicBool>) -> std::io::Result<()> {
    let contains = |data: &[u8], text: &[u8]| data.windows(text.len()).any(|window| window == text);
    let (mut up, mut down, mut asked) = ([0; 1 << 16], [0; 1 << 16], false);
    loop {
        tokio::select! {
            count = client.read(&mut up) => match count? {
                0 => return Ok(()),
                count => {
                    asked |= contains(&up[..count], b"idem_record");
                    server.write_all(&up[..count]).await?;
                }
            },
            count = server.read(&mut down) => match count? {
                0 => return Ok(()),
                count if asked && contains(&down[..count], b"SELECT 1\0") && !cut.swap(true, Ordering::Relaxed) => {
                    return Ok(());
                }
                count => client.write_all(&down[..count]).await?,
            },
        }
    }
}

async fn all<D: Driver>(file: &Value, uri: &str) -> Result<bool, BoxError> {
    let owner = Place { uri: uri.into(), user: Some("client_owner"), database: None, host: None };
    let nobody = Place { user: Some("client_nobody"), ..owner.clone() };
    let places = [
        ("owner", owner.clone()),
        ("stranger", Place { user: Some("client_stranger"), ..owner.clone() }),
        ("ungranted", nobody.clone()),
        // The edition for managed services has a schema of its own.
        ("hidden", Place { database: (!managed()).then_some("client_hidden"), ..nobody }),
        ("empty", Place { database: Some("client_empty"), ..owner.clone() }),
        ("unreachable", Place { host: Some(("127.0.0.1".into(), 1)), ..owner.clone() }),
    ];
    let pools =
        Arc::new(places.map(|(name, place)| (name, D::open(&place, 16))).into_iter().collect::<HashMap<_, _>>());
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let mut cases = Vec::new();
    for case in file["cases"].as_array().ok_or("no cases")? {
        if managed() && case["needs"].as_array().is_some_and(|needs| needs.contains(&json!("client sessions"))) {
            continue;
        }
        for each in case["each"].as_array().unwrap_or(&vec![Value::Null]) {
            let run = format!("{:012x}", (now & 0xffff_ffff_ff00) + cases.len() as u128);
            let (case, owner, calls) = (filled(case, each, &run), owner.clone(), AtomicUsize::new(0));
            cases.push((case, Arc::new(Case { run, pools: pools.clone(), owner, calls })));
        }
    }
    let mut good = true;
    // Some at once: they wait more than they work.
    for some in cases.chunks(8) {
        let done = some.iter().map(async |(case, steps)| (text(&case["name"]), steps.clone().steps(case).await));
        for (name, result) in join_all(done).await {
            match result {
                Ok(()) => println!("ok {}: {name}", D::NAME),
                Err(error) => {
                    good = false;
                    println!("not ok {}: {name}: {error}", D::NAME);
                }
            }
        }
    }
    Ok(good)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let uri = std::env::var("IDEM_URI")?;
    let file: Value = serde_json::from_slice(&std::fs::read(FILE)?)?;
    let place = Place { uri: uri.clone(), user: Some("client_owner"), database: None, host: None };
    let connection = connect(&place).await?;
    connection.batch_execute("SET client_min_messages = warning").await?;
    for sql in file["setup"].as_array().ok_or("no setup")? {
        connection.batch_execute(&text(sql)).await?;
    }
    let good = all::<Pool>(&file, &uri).await? & all::<PgPool>(&file, &uri).await?;
    if good { Ok(()) } else { Err("some cases failed".into()) }
}
