//! The drivers by their names, and what the tests do with each.

#![allow(dead_code)] // each program uses a part

use deadpool_postgres::tokio_postgres::{self, Config, NoTls};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use idempotence::{Ask, BoxError, Conn, Database};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::fmt;

/// Where a pool connects to.
#[derive(Clone)]
pub struct Place {
    pub uri: String,
    pub user: Option<&'static str>,
    pub database: Option<&'static str>,
    /// A folder with a socket, or an address, and a port.
    pub host: Option<(String, u16)>,
}

impl Place {
    pub fn config(&self) -> Config {
        let mut config: Config = self.uri.parse().expect("a URI");
        if let Some((host, port)) = &self.host {
            let (user, database) = (config.get_user().map(String::from), config.get_dbname().map(String::from));
            config = Config::new();
            user.map(|user| config.user(user));
            database.map(|database| config.dbname(database));
            config.host(host).port(*port);
        }
        self.user.map(|user| config.user(user));
        self.database.map(|database| config.dbname(database));
        config
    }

    pub fn options(&self) -> PgConnectOptions {
        let mut options: PgConnectOptions = self.uri.parse().expect("a URI");
        if let Some((host, port)) = &self.host {
            options = if host.starts_with('/') { options.socket(host) } else { self.on(host) }.port(*port);
        }
        options = self.user.into_iter().fold(options, PgConnectOptions::username);
        self.database.into_iter().fold(options, PgConnectOptions::database)
    }

    fn on(&self, host: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host(host)
            .username("postgres")
            .database(self.config().get_dbname().unwrap_or("postgres"))
    }
}

pub trait Driver: Database {
    const NAME: &str;
    fn open(place: &Place, size: usize) -> Self;
    /// Statements without arguments, as a user of the driver runs them.
    fn execute(conn: &mut Conn<Self>, sql: String) -> impl Future<Output = Result<(), BoxError>> + Send;
    /// The same on a connection of its own.
    fn outside(&self, sql: String) -> impl Future<Output = Result<(), BoxError>> + Send;
    /// Raises an error of another connection: of a server that does not exist (`unreachable`), or with this SQLSTATE.
    fn foreign(error: &str) -> impl Future<Output = Result<(), BoxError>> + Send;
    /// In a transaction of the caller's, which is committed or rolled back.
    fn once(
        &self,
        session: &str,
        keys: &[String],
        commit: bool,
    ) -> impl Future<Output = Result<Vec<usize>, BoxError>> + Send;
}

impl Driver for Pool {
    const NAME: &str = "tokio-postgres";

    fn open(place: &Place, size: usize) -> Pool {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        Pool::builder(Manager::from_config(place.config(), NoTls, config)).max_size(size).build().expect("a pool")
    }

    async fn execute(conn: &mut Conn<Pool>, sql: String) -> Result<(), BoxError> {
        Ok(conn.batch_execute(&sql).await?)
    }

    async fn outside(&self, sql: String) -> Result<(), BoxError> {
        Ok(self.get().await?.batch_execute(&sql).await?)
    }

    async fn foreign(error: &str) -> Result<(), BoxError> {
        if error == "unreachable" {
            drop(tokio_postgres::connect("host=127.0.0.1 port=1 user=postgres", NoTls).await?);
        }
        let config: Config = std::env::var("IDEM_URI")?.parse()?;
        let (client, connection) = config.connect(NoTls).await?;
        let connection = tokio::spawn(connection);
        let raised = client.batch_execute(&raise(error)).await;
        drop(client);
        connection.await??;
        Ok(raised?)
    }

    async fn once(&self, session: &str, keys: &[String], commit: bool) -> Result<Vec<usize>, BoxError> {
        let mut client = self.get().await?;
        let mut transaction = client.transaction().await?;
        let new = idempotence::once(&mut transaction, session, keys).await?;
        if commit {
            transaction.commit().await?
        } else {
            transaction.rollback().await?
        }
        Ok(new)
    }
}

impl Driver for PgPool {
    const NAME: &str = "sqlx";

    fn open(place: &Place, size: usize) -> PgPool {
        PgPoolOptions::new().max_connections(size as u32).connect_lazy_with(place.options())
    }

    async fn execute(conn: &mut Conn<PgPool>, sql: String) -> Result<(), BoxError> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **conn).await?;
        Ok(())
    }

    async fn outside(&self, sql: String) -> Result<(), BoxError> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self).await?;
        Ok(())
    }

    async fn foreign(error: &str) -> Result<(), BoxError> {
        if error == "unreachable" {
            PgConnection::connect("postgres://postgres@127.0.0.1:1/postgres").await?;
        }
        let mut connection = PgConnection::connect(&std::env::var("IDEM_URI")?).await?;
        let raised = sqlx::raw_sql(AssertSqlSafe(raise(error))).execute(&mut connection).await;
        connection.close().await?;
        raised?;
        Ok(())
    }

    async fn once(&self, session: &str, keys: &[String], commit: bool) -> Result<Vec<usize>, BoxError> {
        let mut transaction = self.begin().await?;
        let new = idempotence::once(&mut transaction, session, keys).await?;
        if commit {
            transaction.commit().await?
        } else {
            transaction.rollback().await?
        }
        Ok(new)
    }
}

fn raise(sqlstate: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION 'of another connection' USING ERRCODE = '{sqlstate}'; END $$")
}

pub async fn pid(conn: &mut impl Ask) -> Result<String, BoxError> {
    let rows = conn.ask("SELECT pg_backend_pid()::text", &[]).await?;
    Ok(rows[0][0].clone().expect("a number"))
}

/// An error of the application.
#[derive(Debug)]
pub struct Application(pub String);

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Application {}
