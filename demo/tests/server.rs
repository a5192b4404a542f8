//! The private server, on which other tests build: it recovers from crashes, has standbys, and leaves
//! nothing behind. `PG_CONFIG` names the PostgreSQL to use.

use std::net::TcpStream;

use idempotence_demo::server::Server;

fn start() -> Server {
    let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
    Server::builder(pg_config).conf("application_name", "it's \\ quoted").start().expect("a server")
}

fn ask(server: &Server, query: &str) -> String {
    let answer = server.psql("postgres", query).expect(query);
    answer.trim_end().to_owned()
}

#[test]
fn settings_are_in_force() {
    let server = start();
    assert_eq!(ask(&server, "SHOW listen_addresses"), "127.0.0.1");
    server.conf("work_mem", "7MB").expect("a writable file");
    server.reload().expect("reload");
    // Reloading is asynchronous: a new session may still start with the old value.
    let mut work_mem = ask(&server, "SHOW work_mem");
    for _ in 0..1000 {
        if work_mem == "7MB" {
            break;
        }
        work_mem = ask(&server, "SHOW work_mem");
    }
    assert_eq!(work_mem, "7MB");
}

#[test]
fn an_error_of_psql_tells_what_it_was() {
    let error = start().psql("postgres", "SELECT 1; SELECT 1/0; SELECT 2").expect_err("division by zero");
    assert!(format!("{error:#}").contains("division by zero"), "{error:#}");
}

#[test]
fn a_crash_keeps_what_was_committed_and_nothing_else() {
    let server = start();
    ask(&server, "CREATE TABLE kept (n int); CREATE UNLOGGED TABLE lost (n int)");
    ask(&server, "INSERT INTO kept VALUES (1); INSERT INTO lost VALUES (1)");
    server.kill9().expect("a crash");
    assert!(server.psql("postgres", "SELECT 1").is_err());
    server.start().expect("crash recovery");
    assert_eq!(ask(&server, "SELECT count(*) FROM kept"), "1");
    assert_eq!(ask(&server, "SELECT count(*) FROM lost"), "0");

    ask(&server, "INSERT INTO lost VALUES (1)");
    server.restart().expect("an orderly restart");
    assert_eq!(ask(&server, "SELECT count(*) FROM lost"), "1");
}

#[test]
fn only_its_own_backends_are_killed() {
    let server = start();
    assert!(!server.kill9_backend(std::process::id().cast_signed()));

    let checkpointer = ask(&server, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
    assert!(server.kill9_backend(checkpointer.parse().expect("a pid")));
}

#[test]
fn a_standby_follows_and_can_be_promoted() {
    let primary = start();
    ask(&primary, "CREATE TABLE t AS SELECT 1 AS n");
    let standby = primary.standby().expect("a standby");
    ask(&primary, "INSERT INTO t VALUES (2)");
    standby.catch_up_with(&primary).expect("replication");
    assert_eq!(ask(&standby, "SELECT sum(n) FROM t"), "3");
    assert_eq!(ask(&standby, "SELECT pg_is_in_recovery()"), "t");
    assert!(standby.psql("postgres", "INSERT INTO t VALUES (3)").is_err());

    primary.kill9().expect("a crash");
    standby.promote().expect("promotion");
    assert_eq!(ask(&standby, "SELECT pg_is_in_recovery()"), "f");
    ask(&standby, "INSERT INTO t VALUES (3)");
}

#[test]
fn nothing_is_left_when_dropped() {
    let server = start();
    let (home, addr) = (server.home().to_owned(), server.addr());
    assert!(TcpStream::connect(addr).is_ok());
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
    assert!(!home.exists());
}

#[test]
fn its_files_are_kept_on_demand() {
    let server = start();
    let home = server.home().to_owned();
    server.keep_files();
    drop(server);
    assert!(home.join("log").exists());
    std::fs::remove_dir_all(home).expect("removable");
}
