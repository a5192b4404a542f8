//! The failing network: each fate of a COMMIT has the effect on the client and on the data that it is said
//! to have. `PG_CONFIG` names the PostgreSQL to use.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use idempotence_demo::proxy::{Fate, Message, Proxy};
use idempotence_demo::server::{SUPERUSER, Server};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Error, NoTls};

struct Setup {
    server: Server,
    proxy: Proxy,
}

/// A server behind a proxy under which every COMMIT has this fate.
async fn setup(fate: Fate) -> Setup {
    let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
    let server = Server::builder(pg_config).start().expect("a server");
    server.psql("postgres", "ALTER ROLE postgres PASSWORD 'secret'; CREATE TABLE t (n int)").expect("a table");
    let faults = move |message: Message<'_>| {
        if message.is_commit() { fate } else { Fate::Arrives }
    };
    let proxy = Proxy::start(server.addr(), Arc::new(faults)).await.expect("a proxy");
    Setup { server, proxy }
}

impl Setup {
    async fn connect(&self) -> (Client, JoinHandle<Result<(), Error>>) {
        let (client, socket) = Config::new()
            .host(self.proxy.addr().ip().to_string())
            .port(self.proxy.addr().port())
            .ssl_mode(SslMode::Disable)
            .user(SUPERUSER)
            .password("secret")
            .connect(NoTls)
            .await
            .expect("a connection through the proxy");
        (client, tokio::spawn(socket))
    }

    async fn insert(&self) -> Result<(), Error> {
        let (mut client, _socket) = self.connect().await;
        let tx = client.transaction().await?;
        tx.execute("INSERT INTO t VALUES (1)", &[]).await?;
        tx.commit().await
    }

    /// The number of committed rows, once no transaction of a client is open.
    async fn rows(&self) -> String {
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL
                       AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        while self.server.psql("postgres", busy).expect(busy).trim_end() != "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let rows = self.server.psql("postgres", "SELECT count(*) FROM t");
        rows.expect("the table").trim_end().to_owned()
    }
}

#[tokio::test]
async fn what_arrives_is_answered() {
    let setup = setup(Fate::Arrives).await;
    setup.insert().await.expect("a commit");
    assert_eq!(setup.rows().await, "1");

    // Long messages arrive in both directions.
    let (client, _socket) = setup.connect().await;
    let text = "x".repeat(5_000_000);
    let row = client.query_one("SELECT $1::text", &[&text]).await;
    assert_eq!(row.expect("an echo").get::<_, String>(0), text);
}

#[tokio::test]
async fn a_cancel_request_passes() {
    let setup = setup(Fate::Arrives).await;
    let (client, _socket) = setup.connect().await;
    let cancel = client.cancel_token();
    let (result, ()) = tokio::join!(client.batch_execute("SELECT pg_sleep(60)"), async {
        // Wait until there is a query to cancel.
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while setup.server.psql("postgres", busy).expect(busy).trim_end() != "1" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cancel.cancel_query(NoTls).await.expect("a cancel request");
    });
    let error = result.expect_err("cancelled");
    assert_eq!(error.code().expect("from the server").code(), "57014");
}

#[tokio::test]
async fn a_lost_commit_never_happens() {
    let setup = setup(Fate::Lost).await;
    let error = setup.insert().await.expect_err("a broken connection");
    assert!(error.code().is_none(), "{error}");
    assert_eq!(setup.rows().await, "0");
    assert_eq!(setup.proxy.counts().lost.load(Relaxed), 1);
}

#[tokio::test]
async fn a_lost_reply_looks_the_same_but_the_commit_happened() {
    let setup = setup(Fate::ReplyLost).await;
    let error = setup.insert().await.expect_err("a broken connection");
    assert!(error.code().is_none(), "{error}");
    assert_eq!(setup.rows().await, "1");
    assert_eq!(setup.proxy.counts().commit_replies_lost.load(Relaxed), 1);
}

#[tokio::test]
async fn a_late_commit_happens_after_its_client_has_gone() {
    let setup = setup(Fate::Late(Duration::from_millis(500))).await;
    let (mut client, socket) = setup.connect().await;
    let tx = client.transaction().await.expect("begin");
    tx.execute("INSERT INTO t VALUES (1)", &[]).await.expect("insert");
    tokio::select! {
        _ = tx.commit() => panic!("committed before its time"),
        // When the proxy counts the message, it has received it.
        () = async {
            while setup.proxy.counts().late.load(Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        } => {}
    }
    socket.abort();
    assert_eq!(setup.rows().await, "1");
}
