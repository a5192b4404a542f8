//! `check` on a server that does not preload the library, for a role that was granted nothing and for one that was.
//! IDEM_URI: a superuser's, of a database on such a server, see run.sh.

mod common;

use common::{Driver, Place};
use deadpool_postgres::Pool;
use deadpool_postgres::tokio_postgres::NoTls;
use sqlx::PgPool;

const SETUP: &str = "
    SET client_min_messages = error;
    CREATE EXTENSION idempotence;
    CREATE ROLE granted LOGIN;
    CREATE ROLE ungranted LOGIN;
    SELECT idem_grant('granted'), idem_create_session('checked', owner => 'granted')";

fn place(user: Option<&'static str>) -> Place {
    let uri = std::env::var("IDEM_URI").expect("IDEM_URI is a URI of a superuser, as in run.sh");
    Place { uri, user, database: None, host: None }
}

async fn problem<D: Driver>(user: &'static str) -> String {
    let found = idempotence::check(&D::open(&place(Some(user)), 1), Some("checked")).await;
    let [problem] = &found.problems[..] else { panic!("{}: one problem, and not {found:?}", D::NAME) };
    problem.clone()
}

async fn explains<D: Driver>() {
    let ungranted = problem::<D>("ungranted").await;
    assert!(ungranted.starts_with("rights: "), "{ungranted}");
    assert!(ungranted.contains("SELECT idem_grant('ungranted') as postgres"), "{ungranted}");
    let unpreloaded = problem::<D>("granted").await;
    assert!(unpreloaded.starts_with("preload: "), "{unpreloaded}");
    assert!(unpreloaded.contains("add idempotence to shared_preload_libraries and restart"), "{unpreloaded}");
}

#[tokio::test]
async fn a_missing_grant_and_a_missing_preload_are_explained() {
    let (client, connection) = place(None).config().connect(NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client.batch_execute(SETUP).await.expect("the setup succeeds");
    explains::<Pool>().await;
    explains::<PgPool>().await;
}
