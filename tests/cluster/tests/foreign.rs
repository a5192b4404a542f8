//! Effects on another server. The check before the commit comes before the commit of a foreign data wrapper.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};

on_each_version!(
    a_commit_that_is_refused_has_no_effect_on_another_server,
    a_commit_that_is_refused_has_no_effect_on_another_server_preloaded,
);

/// Programs that begin a request, write on another server, and forget to record the outcome. Each program
/// uses a connection of its own, because a wrapper registers itself when a connection uses it for the first
/// time.
const FORGETFUL: [(&str, &str); 13] = [
    (
        "the wrapper comes first",
        "BEGIN; INSERT INTO effect VALUES ('a'); SELECT FROM idem_begin('payments', 'k'); COMMIT",
    ),
    (
        "the request comes first",
        "BEGIN; SELECT FROM idem_begin('payments', 'k'); INSERT INTO effect VALUES ('b'); COMMIT",
    ),
    (
        "inside a savepoint",
        "BEGIN; SELECT FROM idem_begin('payments', 'k'); SAVEPOINT s; INSERT INTO effect VALUES ('c'); RELEASE s; COMMIT",
    ),
    ("in one statement", "SELECT forgetful()"),
    (
        "in an anonymous block",
        "DO $$ BEGIN PERFORM idem_begin('payments', 'k'); INSERT INTO effect VALUES ('d'); END $$",
    ),
    ("a procedure that commits", "CALL forgetful_procedure()"),
    ("a statement that is no query", "BEGIN; SELECT FROM idem_begin('payments', 'k'); EXECUTE add; COMMIT"),
    (
        "a cursor that is left open",
        "BEGIN; SELECT FROM idem_begin('payments', 'k'); DECLARE c CURSOR FOR SELECT add(); FETCH c; COMMIT",
    ),
    (
        "a request after another that was recorded",
        "BEGIN; SELECT FROM idem_begin('payments', 'l'); INSERT INTO effect VALUES ('e');
         SELECT FROM idem_record('payments', 'l'); SELECT FROM idem_begin('payments', 'k'); COMMIT",
    ),
    (
        "in a block that the server makes of several statements",
        "SELECT FROM idem_begin('payments', 'k'); INSERT INTO effect VALUES ('f')",
    ),
    ("in a function of such a block", "SELECT 1; SELECT forgetful()"),
    (
        "in a block that is made of one",
        "SELECT FROM idem_begin('payments', 'k'); BEGIN; INSERT INTO effect VALUES ('g'); COMMIT AND CHAIN; ROLLBACK",
    ),
    (
        "a trigger that fires at the commit",
        "BEGIN; SELECT FROM idem_begin('payments', 'k'); INSERT INTO here VALUES (1); COMMIT",
    ),
];

async fn a_commit_that_is_refused_has_no_effect_on_another_server(version: Version) -> Result<()> {
    refused_everywhere(&Cluster::start(version)?).await
}

async fn a_commit_that_is_refused_has_no_effect_on_another_server_preloaded(version: Version) -> Result<()> {
    refused_everywhere(&Cluster::start_preloaded(version)?).await
}

// Goal: ID008 comes before postgres_fdw has committed on the other server, whichever of the two was used
// first.
// Method: a server that is foreign to itself. Each forgetful program must leave nothing there, on a new
// connection and on a connection that has used both. Then a program that records must leave its effect.
async fn refused_everywhere(server: &Cluster) -> Result<()> {
    server.create_database(DATABASE)?;
    server.psql(DATABASE, &set_up(server))?;
    for (what, program) in FORGETFUL {
        let fresh = connect(server).await?;
        refused(&fresh, what, program).await?;
        refused(&fresh, what, program).await?;
    }
    let connection = connect(server).await?;
    connection
        .text(
            "BEGIN; SELECT FROM idem_begin('payments', 'k'); INSERT INTO effect VALUES ('kept');
             SELECT FROM idem_record('payments', 'k'); COMMIT",
        )
        .await?;
    ensure!(connection.text("SELECT string_agg(what, ',') FROM there").await? == "kept");
    // Nobody can ask postgres_fdw for a two-phase commit, and the view health says so.
    let told = "SELECT detail FROM idempotence.health WHERE name = 'coordinator'";
    let told = connection.text(told).await?;
    ensure!(told.contains("1 table is of postgres_fdw"), "{told}");
    Ok(())
}

async fn connect(server: &Cluster) -> Result<Connection> {
    let connection = server.connect(DATABASE).await?;
    connection.text("PREPARE add AS INSERT INTO effect VALUES ('prepared')").await?;
    // A block that has failed says nothing of the next one.
    ensure!(connection.sqlstate("BEGIN; SELECT 1 / 0").await? == "22012");
    Ok(connection)
}

async fn refused(connection: &Connection, what: &str, program: &str) -> Result<()> {
    let state = connection.sqlstate(program).await?;
    ensure!(state == "ID008", "{what}: {state}");
    let left = connection.text("SELECT count(*) FROM there").await?;
    ensure!(left == "0", "{what}: refused here, and {left} effects there");
    Ok(())
}

fn set_up(server: &Cluster) -> String {
    let options: Vec<String> = server
        .connect_string(DATABASE, "postgres")
        .split(' ')
        .filter_map(|option| option.split_once('='))
        .filter(|(name, _)| *name != "user")
        .map(|(name, value)| format!("{name} '{}'", value.trim_matches('\'')))
        .collect();
    format!(
        "SELECT idem_create_session('payments');
         CREATE TABLE there (what text);
         CREATE EXTENSION postgres_fdw;
         CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({});
         CREATE USER MAPPING FOR postgres SERVER elsewhere OPTIONS (user 'postgres', password_required 'false');
         CREATE FOREIGN TABLE effect (what text) SERVER elsewhere OPTIONS (table_name 'there');
         CREATE FUNCTION add() RETURNS void LANGUAGE sql AS $$ INSERT INTO effect VALUES ('function') $$;
         CREATE TABLE here (number int);
         CREATE FUNCTION add_late() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
           INSERT INTO effect VALUES ('trigger');
           RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON here DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION add_late();
         CREATE FUNCTION forgetful() RETURNS void LANGUAGE plpgsql AS $$
         BEGIN
           PERFORM idem_begin('payments', 'k');
           INSERT INTO effect VALUES ('statement');
         END $$;
         CREATE PROCEDURE forgetful_procedure() LANGUAGE plpgsql AS $$
         BEGIN
           PERFORM idem_begin('payments', 'k');
           INSERT INTO effect VALUES ('procedure');
           COMMIT;
         END $$;",
        options.join(", ")
    )
}
