//! Several servers: a call that comes to another server than its session lives on.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use idempotence_cluster_tests::client::id_of;
use idempotence_cluster_tests::dump::{dump, restore};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, on_each_version};
use rand::RngExt;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

on_each_version!(
    a_call_that_comes_to_another_node_is_told_where_to_go,
    retries_at_random_nodes_take_effect_once,
    without_a_binding_retries_at_random_nodes_take_effect_twice,
    a_name_outlives_a_failover_and_a_copy_gets_its_own,
    a_server_is_renamed_by_a_restart_and_by_nobody_else,
    a_restored_session_stays_bound_until_its_server_is_named,
);

/// Starts a server with a table of effects, and a function that pays once for a key.
fn start(version: Version, settings: &[(&str, &str)]) -> Result<Cluster> {
    let server = shop::start_with(version, settings)?;
    server.psql(
        DATABASE,
        "CREATE TABLE effect (key text NOT NULL);
         CREATE FUNCTION pay(session text, key text) RETURNS text LANGUAGE plpgsql AS $$
         DECLARE
           ticket idem_ticket := idem_begin(session, key);
         BEGIN
           IF ticket.status = 'started' THEN
             INSERT INTO effect VALUES (key);
             ticket.response := to_jsonb(concat('paid for ', key, ' at ', idem_node()));
             PERFORM idem_record(session, key, ticket.response);
           ELSIF NOT ticket.replayed THEN
             RAISE lock_not_available;
           END IF;
           RETURN ticket.response;
         END $$",
    )?;
    Ok(server)
}

async fn node_of(connection: &Connection) -> Result<String> {
    connection.text("SELECT idem_node()").await
}

/// The calls on a request of a session. `$` stands for the session.
const CALLS: [&str; 9] = [
    "begin('$', 3)",
    "claim('$', '3')",
    "run('$', '3', 'SELECT 1')",
    "record('$', 3)",
    "record('$', 3, token => 1)",
    "checkpoint('$', 3, 'p')",
    "release('$', 3)",
    "lookup('$', 3)",
    "settle('$', 3)",
];

/// The calls on a client session.
const CLIENT_CALLS: [&str; 5] = ["heartbeat('$')", "ack('$', 1)", "allocate('$', 1)", "position('$')", "close('$')"];

/// Checks that each of these calls is told which node the session belongs to.
async fn check_told(there: &Connection, calls: &[&str], session: &str, node: &str) -> Result<()> {
    let here = node_of(there).await?;
    for call in calls {
        let error = there.error(&format!("SELECT FROM idem_{}", call.replace('$', session))).await?;
        let told = format!("session \"{session}\" belongs to node \"{node}\"");
        ensure!(error.code().code() == "ID012" && error.message() == told, "{call}: {error:?}");
        ensure!(error.detail().is_some_and(|detail| detail.contains(&here)), "{call}: {error:?}");
        ensure!(error.hint().is_some_and(|hint| hint.contains(node)), "{call}: {error:?}");
    }
    Ok(())
}

// Goal: a call on another node's session executes nothing, and is told which node to go to.
// Method: two servers that nobody has named. A client session of each, at work and ended, and a session bound to
// each that was made on both. Every call on the wrong server, in both directions; then the calls on the right one.
async fn a_call_that_comes_to_another_node_is_told_where_to_go(version: Version) -> Result<()> {
    let servers = [start(version, &[])?, start(version, &[("shared_preload_libraries", "idempotence")])?];
    let connections = [servers[0].connect(DATABASE).await?, servers[1].connect(DATABASE).await?];
    let nodes = [node_of(&connections[0]).await?, node_of(&connections[1]).await?];
    ensure!(nodes[0] != nodes[1], "both servers are called {}", nodes[0]);
    for connection in &connections {
        for (session, node) in ["first", "second"].into_iter().zip(&nodes) {
            connection.text(&format!("SELECT idem_create_session('{session}', node => '{node}')")).await?;
        }
    }
    for (home, there, bound, node) in [
        (&connections[0], &connections[1], "first", &nodes[0]),
        (&connections[1], &connections[0], "second", &nodes[1]),
    ] {
        let (client, ended) = (home.register("").await?, home.register("").await?);
        ensure!(client == format!("{}@{node}", id_of(&client)), "a session is called {client}");
        home.execute(&ended, "1", "1").await?;
        home.text(&format!("SELECT idem_close('{ended}')")).await?;
        home.execute(bound, "3", "1").await?;
        for session in [&client, &ended] {
            check_told(there, &CALLS, session, node).await?;
            check_told(there, &CLIENT_CALLS, session, node).await?;
        }
        check_told(there, &CALLS, bound, node).await?;
        check_told(there, &["begin('$', 3, lease => '1 s')", "extend('$', 3, 1, '1 s')"], bound, node).await?;
        let left =
            format!("SELECT count(*) FROM idempotence.outcomes WHERE session IN ('{client}', '{ended}', '{bound}')");
        let left = there.text(&left).await?;
        ensure!(left == "0", "calls that came to another node have left {left} outcomes");

        home.execute(&client, "3", "1").await?;
        ensure!(home.text(&format!("SELECT idem_heartbeat('{client}') > now()")).await? == "t");
        ensure!(home.replay(bound, "3").await? == "succeeded|1");
        // Without its node a name says nothing of where it belongs, as in version 1.0.0.
        ensure!(there.answer(id_of(&client), "3").await? == "ID004");
        ensure!(home.replay(id_of(&client), "3").await? == "succeeded|1");
    }
    let noted = "SELECT count(*) > 20, bool_and(session IS NOT NULL AND stream IS NULL) FROM idempotence.errors WHERE sqlstate = 'ID012'";
    ensure!(connections[1].text(noted).await? == "t|t");
    Ok(())
}

/// What became of the requests of a load.
#[derive(Default)]
struct Load {
    /// The requests, and the node that each belongs to.
    requests: Vec<(String, usize)>,
    /// How many attempts were told to go elsewhere.
    elsewhere: usize,
    /// How many connections were lost.
    lost: usize,
}

const CLIENTS: usize = 6;
const REQUESTS: usize = 80;

/// Sends a request to a random node each time, until it was answered twice. Both answers must be the same if `bound`.
async fn send(
    servers: &[Cluster; 2],
    load: &Mutex<Load>,
    session: &str,
    key: &str,
    home: usize,
    bound: bool,
) -> Result<()> {
    let start = Instant::now();
    let mut answers: Vec<String> = Vec::new();
    while answers.len() < 2 {
        ensure!(start.elapsed() < LIMIT, "request {key} is never answered");
        let node = rand::rng().random_range(0..servers.len());
        let Ok(connection) = servers[node].connect(DATABASE).await else {
            load.lock().await.lost += 1;
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        match connection.try_text(&format!("SELECT pay('{session}', '{key}')")).await {
            Ok(answer) => {
                ensure!(!bound || node == home, "node {node} has answered request {key} of node {home}");
                answers.push(answer);
            }
            Err(error) => match error.code().map(|state| state.code()) {
                Some("ID012") if node != home => load.lock().await.elsewhere += 1,
                Some("55P03") => {}
                Some(state) if !state.starts_with("57P") => bail!("request {key} gets {state}: {error}"),
                _ => load.lock().await.lost += 1,
            },
        }
    }
    ensure!(!bound || answers[0] == answers[1], "request {key} was answered {answers:?}");
    load.lock().await.requests.push((key.into(), home));
    Ok(())
}

/// Sends requests to random nodes, while the nodes crash by turns. Gives how often each request took effect, on all
/// nodes together, in the order of the requests.
async fn drive(version: Version, bound: bool) -> Result<(Load, Vec<usize>)> {
    let servers = [start(version, &[("idempotence.node", "a")])?, start(version, &[("idempotence.node", "b")])?];
    for server in &servers {
        for node in ["a", "b"] {
            let node_of_it = if bound { format!("'{node}'") } else { "NULL".into() };
            server.psql(DATABASE, &format!("SELECT idem_create_session('of {node}', node => {node_of_it})"))?;
        }
    }
    let load = Mutex::default();
    let clients = try_join_all((0..CLIENTS).map(async |client| {
        for request in 0..REQUESTS {
            let home = rand::rng().random_range(0..2);
            let session = ["of a", "of b"][home];
            send(&servers, &load, session, &format!("{client}/{request}"), home, bound).await?;
        }
        Ok(())
    }));
    let crashes = async {
        for crash in 0..4 {
            let sent = CLIENTS * REQUESTS * (crash + 1) / 5;
            let start = Instant::now();
            while load.lock().await.requests.len() < sent {
                ensure!(start.elapsed() < LIMIT, "the load stands still");
                sleep(Duration::from_millis(10)).await;
            }
            servers[crash % 2].crash()?;
        }
        Ok(())
    };
    tokio::try_join!(clients, crashes)?;
    let load = load.into_inner();
    let mut effects = Vec::new();
    for server in &servers {
        effects.push(server.psql(DATABASE, "SELECT key FROM effect")?);
    }
    let mut counts = Vec::new();
    for (key, home) in &load.requests {
        let of = |effects: &String| effects.lines().filter(|line| line == key).count();
        let found: Vec<usize> = effects.iter().map(of).collect();
        ensure!(!bound || found[1 - home] == 0, "request {key} took effect on another node than its own");
        counts.push(found.iter().sum());
    }
    Ok((load, counts))
}

// Goal: with sessions that are bound to nodes, it does not matter to which node a retry goes: each request that was
// answered took effect once, on its own node.
// Method: each attempt, also after an answer, goes to a random one of two nodes, which crash by turns.
async fn retries_at_random_nodes_take_effect_once(version: Version) -> Result<()> {
    let (load, effects) = drive(version, true).await?;
    ensure!(effects.len() == CLIENTS * REQUESTS);
    ensure!(effects.iter().all(|count| *count == 1), "the requests took effect so often: {effects:?}");
    ensure!(load.elsewhere > CLIENTS * REQUESTS / 2, "only {} attempts went to the other node", load.elsewhere);
    ensure!(load.lost > 0, "no client noticed a crash");
    Ok(())
}

// Goal: the test before this one would find a request that takes effect twice.
// Method: the same with sessions that are bound to no node.
async fn without_a_binding_retries_at_random_nodes_take_effect_twice(version: Version) -> Result<()> {
    let (_, effects) = drive(version, false).await?;
    let doubled = effects.iter().filter(|count| **count == 2).count();
    ensure!(doubled > CLIENTS * REQUESTS / 10, "only {doubled} of {} took effect twice", effects.len());
    Ok(())
}

// Goal: a failover keeps the name of the server, and with it every session. A physical copy that goes its own way has
// the same name until it gets its own; from then on each of the two tells its own sessions from those of the other.
// Method: two standbys. One is promoted in the place of the primary. Another one is promoted beside it, under a name
// of its own.
async fn a_name_outlives_a_failover_and_a_copy_gets_its_own(version: Version) -> Result<()> {
    let primary = start(version, &[])?;
    let (standby, copy) = (primary.standby()?, primary.standby()?);
    let before = primary.connect(DATABASE).await?;
    let node = node_of(&before).await?;
    before.text(&format!("SELECT idem_create_session('bound', node => '{node}')")).await?;
    before.execute("bound", "done", "1").await?;
    let (saved, unsaved) = (before.register("").await?, before.register("").await?);
    before.execute(&saved, "1", "1").await?;
    for server in [&standby, &copy] {
        server.catch_up_with(&primary)?;
    }
    let foreign = format!("{}@elsewhere", id_of(&unsaved));
    let on_standby = standby.connect(DATABASE).await?;
    ensure!(node_of(&on_standby).await? == node);
    ensure!(on_standby.replay("bound", "done").await? == "succeeded|1");
    ensure!(on_standby.replay(&saved, "1").await? == "succeeded|1");
    ensure!(on_standby.answer(&unsaved, "1").await? == "25006");
    ensure!(on_standby.lookup(&unsaved, "1").await? == "not_here");
    check_told(&on_standby, &["begin('$', 1)", "lookup('$', 1)", "position('$')"], &foreign, "elsewhere").await?;

    primary.kill9()?;
    standby.promote()?;
    ensure!(node_of(&on_standby).await? == node);
    on_standby.execute(&saved, "2", "2").await?;
    on_standby.execute("bound", "new", "2").await?;
    ensure!(on_standby.answer(&unsaved, "1").await? == "ID004");
    let later = on_standby.register("").await?;
    ensure!(later.ends_with(&format!("@{node}")), "after the failover a session is called {later}");

    // The copy goes its own way. As long as nobody names it, it takes itself for its original.
    copy.promote()?;
    let on_copy = copy.connect(DATABASE).await?;
    ensure!(node_of(&on_copy).await? == node);
    ensure!(on_copy.answer(&later, "1").await? == "ID004");
    copy.conf("idempotence.node", "copy")?;
    copy.restart()?;
    let on_copy = copy.connect(DATABASE).await?;
    check_told(&on_copy, &CALLS, &later, &node).await?;
    check_told(&on_copy, &CLIENT_CALLS, &later, &node).await?;
    check_told(&on_copy, &CALLS, "bound", &node).await?;
    let own = on_copy.register("").await?;
    ensure!(own.ends_with("@copy"), "a session of the copy is called {own}");
    check_told(&on_standby, &CALLS, &own, "copy").await?;
    // What was there when the copy was made is the copy's too: what was done before is answered by both.
    ensure!(on_copy.replay(&saved, "1").await? == "succeeded|1");
    ensure!(
        on_copy.text(&format!("SELECT session FROM idempotence.sessions WHERE session = '{saved}'")).await? == saved
    );
    // It is for the DBA to end it there, so that nothing is executed in it twice.
    ensure!(on_copy.text(&format!("SELECT idem_close('{saved}')")).await? == "t");
    ensure!(on_copy.answer(&saved, "2").await? == "ID004");
    ensure!(on_standby.replay(&saved, "2").await? == "succeeded|2");
    Ok(())
}

// Goal: a restart renames the server. Where the library is preloaded nothing else does, so that all its processes have
// one name at all times. No role can, in any way, nor take the name away. A value that is no name is refused, and the
// server starts without it.
// Method: a preloaded server, and one that is not; the settings of connections, roles and databases; a reload.
async fn a_server_is_renamed_by_a_restart_and_by_nobody_else(version: Version) -> Result<()> {
    let of_database = format!("DATABASE {DATABASE}");
    for preloaded in ["", "idempotence"] {
        let settings = [("shared_preload_libraries", preloaded), ("idempotence.node", "two words")];
        let server = shop::start_with(version, &settings)?;
        let warm = server.connect(DATABASE).await?;
        let node = node_of(&warm).await?;
        let identifier = "SELECT lpad(to_hex(system_identifier), 16, '0') FROM pg_control_system()";
        ensure!(node == warm.text(identifier).await?, "the server is called {node}");
        server.wait_for_log("invalid value for parameter \"idempotence.node\": \"two words\"").await?;
        let session = warm.register("").await?;
        warm.execute(&session, "1", "1").await?;

        server.conf("idempotence.node", "Orders-2.eu_west")?;
        if !preloaded.is_empty() {
            server.reload()?;
            server
                .wait_for_log("parameter \"idempotence.node\" cannot be changed without restarting the server")
                .await?;
            let fresh = server.connect(DATABASE).await?;
            for connection in [&warm, &fresh] {
                ensure!(node_of(connection).await? == node, "a reload has renamed the server");
            }
        }
        server.restart()?;
        let warm = server.connect(DATABASE).await?;
        ensure!(node_of(&warm).await? == "Orders-2.eu_west", "a restart has not renamed the server");
        // The session has its former name, and goes on. A new one has the new name.
        warm.execute(&session, "2", "2").await?;
        ensure!(server.connect(DATABASE).await?.replay(&session, "1").await? == "succeeded|1");
        let newer = warm.register("").await?;
        ensure!(newer.ends_with("@Orders-2.eu_west"), "a new session is called {newer}");
        let names = format!("SELECT string_agg(node, ' ' ORDER BY node = '{node}') FROM idempotence.sessions");
        ensure!(warm.text(&names).await? == format!("Orders-2.eu_west {node}"));
        // Of one that is gone, the former name says that it was elsewhere, and the new one that it was here.
        let gone = format!("01890a5d-ac96-774b-bcce-b302099a8057@{node}");
        check_told(&warm, &["begin('$', 1)"], &gone, &node).await?;
        ensure!(warm.answer("01890a5d-ac96-774b-bcce-b302099a8057@Orders-2.eu_west", "1").await? == "ID004");

        server.psql("postgres", "CREATE ROLE app LOGIN; CREATE ROLE boss LOGIN SUPERUSER")?;
        server.psql(DATABASE, "SELECT idem_grant('app')")?;
        for (role, name) in [("app", "mine"), ("boss", "mine"), ("app", ""), ("boss", "")] {
            let options = format!("{} options='-c idempotence.node={name}'", server.connect_string(DATABASE, role));
            // A server that does not know the setting yet takes it for a setting of somebody else's, and drops it later.
            match Connection::open(&options).await {
                Ok(connection) => ensure!(node_of(&connection).await? == "Orders-2.eu_west", "{role} has renamed it"),
                Err(error) => ensure!(error.code().is_some_and(|state| state.code() == "55P02"), "{error:?}"),
            }
            let connection = server.connect_as(DATABASE, role).await?;
            let set = format!("SET idempotence.node = '{name}'");
            let _ = connection.try_text(&set).await;
            ensure!(node_of(&connection).await? == "Orders-2.eu_west", "{role} has renamed it");
            ensure!(connection.sqlstate(&set).await? == "55P02");
        }
        for (what, value) in [("ROLE app", "mine"), ("ROLE app", ""), (&*of_database, "mine"), (&*of_database, "")] {
            let fresh = server.connect("postgres").await?;
            let _ = fresh.try_text(&format!("ALTER {what} SET idempotence.node = '{value}'")).await;
            let connection = server.connect_as(DATABASE, "app").await?;
            ensure!(node_of(&connection).await? == "Orders-2.eu_west", "ALTER {what} has renamed it");
            server.psql("postgres", &format!("ALTER {what} RESET ALL"))?;
        }
    }
    Ok(())
}

// Goal: a dump takes bindings along, so that a restored session executes nothing before a DBA has said whose it is.
// Method: a dump is restored on another server, which is then given the name of the first, and the binding is changed.
async fn a_restored_session_stays_bound_until_its_server_is_named(version: Version) -> Result<()> {
    let old = start(version, &[])?;
    let before = old.connect(DATABASE).await?;
    let node = node_of(&before).await?;
    before.text(&format!("SELECT idem_create_session('bound', node => '{node}')")).await?;
    before.execute("bound", "done", "1").await?;
    let session = before.register("").await?;
    before.execute(&session, "1", "1").await?;

    let new = Cluster::start(version)?;
    restore(&new, DATABASE, &dump(&old, &old, DATABASE, &[])?)?;
    let after = new.connect(DATABASE).await?;
    check_told(&after, &CALLS, "bound", &node).await?;
    // A client session was restored with all that it keeps, and has the name that its client knows.
    ensure!(after.replay(&session, "1").await? == "succeeded|1");
    after.execute(&session, "2", "2").await?;
    let shown = after.text("SELECT session FROM idempotence.sessions WHERE kind = 'client'").await?;
    ensure!(shown == session, "the session is called {shown}");

    new.conf("idempotence.node", &node)?;
    new.restart()?;
    let named = new.connect(DATABASE).await?;
    ensure!(named.replay("bound", "done").await? == "succeeded|1");
    new.conf("idempotence.node", "other")?;
    new.restart()?;
    let renamed = new.connect(DATABASE).await?;
    check_told(&renamed, &["begin('$', 'done')"], "bound", &node).await?;
    // As the runbook says.
    let rebind = "SELECT idem_alter_session(session, node => 'other') FROM idempotence.sessions";
    renamed.text(&format!("{rebind} WHERE node = '{node}' AND kind <> 'client'")).await?;
    renamed.replay("bound", "done").await.map(drop).context("a session that was bound anew")
}
