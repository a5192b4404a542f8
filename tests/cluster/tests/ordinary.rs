//! The everyday work of a DBA, on the tables of the extension and under load. Nothing is done twice, nothing
//! is lost, and nobody gets an error that the reference does not name.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::workload::{DATABASE, Workload};
use idempotence_cluster_tests::{Cluster, Connection, LIMIT, Version, describe, on_each_version};
use idempotence_demo::host::run;
use tokio::task::spawn_blocking;
use tokio_postgres::error::SqlState;

on_each_version!(rewrites, indexes, triggers, pg_repack, dumps);

const DATABASES: [&str; 2] = ["bank", DATABASE];

/// The tables of the extension, with the index that CLUSTER uses.
const TABLES: &str = "SELECT c.relname, coalesce(min(i.relname), '') FROM pg_class c
    LEFT JOIN pg_index x ON x.indrelid = c.oid AND x.indisunique LEFT JOIN pg_class i ON i.oid = x.indexrelid
    WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind = 'r' GROUP BY 1 ORDER BY 1";

struct Table {
    name: String,
    index: String,
}

async fn tables(dba: &Connection) -> Result<Vec<Table>> {
    let rows = dba.text(TABLES).await?;
    let table = |row: &str| row.split_once('|').map(|(name, index)| Table { name: name.into(), index: index.into() });
    let tables: Vec<Table> = rows.lines().filter_map(table).collect();
    ensure!(tables.len() >= 12, "there are only {} tables", tables.len());
    Ok(tables)
}

/// Executes statements for each table in each database.
async fn on_each_table(server: &Cluster, statements: &[&str]) -> Result<()> {
    for database in DATABASES {
        let dba = server.connect(database).await?;
        for table in tables(&dba).await? {
            for statement in statements {
                if statement.contains("{index}") && table.index.is_empty() {
                    continue;
                }
                let statement = statement.replace("{table}", &table.name).replace("{index}", &table.index);
                execute_despite_deadlocks(&dba, &statement).await?;
            }
        }
    }
    Ok(())
}

/// Executes a statement. The server may end it in a deadlock; then it is executed again.
async fn execute_despite_deadlocks(dba: &Connection, statement: &str) -> Result<()> {
    while let Err(error) = dba.try_text(statement).await {
        if error.code() != Some(&SqlState::T_R_DEADLOCK_DETECTED) {
            return Err(describe(error)).with_context(|| statement.to_owned());
        }
        dba.text("ROLLBACK").await?;
    }
    Ok(())
}

async fn disturb(version: Version, rounds: usize, statements: &[&str]) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    let mut load = Workload::open(&server).await?;
    for _ in 0..rounds {
        load.beside(on_each_table(&server, statements)).await?;
    }
    load.close(&server).await
}

// Goal: the place of a row is never used after another row may have got it.
// Method: every table gets a new file and its rows get new places, again and again.
async fn rewrites(version: Version) -> Result<()> {
    let statements = [
        "VACUUM FULL idempotence.{table}",
        "CLUSTER idempotence.{table} USING {index}",
        "ALTER TABLE idempotence.{table} SET (fillfactor = 70)",
        "REINDEX TABLE CONCURRENTLY idempotence.{table}",
        "ANALYZE idempotence.{table}",
    ];
    disturb(version, 6, &statements).await
}

// Goal: a DBA can create and drop an index of any kind while clients are at work.
// Method: indexes on an expression, partial, with other methods, and created concurrently.
async fn indexes(version: Version) -> Result<()> {
    let server = Cluster::start_preloaded(version)?;
    let mut load = Workload::open(&server).await?;
    for round in 0..4 {
        load.beside(async {
            for database in DATABASES {
                let dba = server.connect(database).await?;
                for (table, column, expression, predicate) in INDEXED {
                    for index in [
                        format!("CREATE INDEX dba ON idempotence.{table} ({expression})"),
                        format!("CREATE INDEX CONCURRENTLY dba ON idempotence.{table} ({column}) WHERE {predicate}"),
                        format!("CREATE INDEX CONCURRENTLY dba ON idempotence.{table} USING hash ({column})"),
                        format!("CREATE INDEX dba ON idempotence.{table} USING brin ({column})"),
                    ] {
                        dba.text(&index).await?;
                        if round % 2 == 0 {
                            dba.text("DROP INDEX idempotence.dba").await?;
                        } else {
                            dba.text("DROP INDEX CONCURRENTLY idempotence.dba").await?;
                        }
                    }
                }
            }
            Ok(())
        })
        .await?;
    }
    load.close(&server).await
}

/// Tables with a column, an expression and a predicate for an index.
const INDEXED: [(&str, &str, &str, &str); 10] = [
    ("outcome_0", "session", "(recorded_at AT TIME ZONE 'utc')", "class = 's'"),
    ("outcome_1", "session", "(recorded_at AT TIME ZONE 'utc')", "class = 's'"),
    ("outcome_2", "session", "(recorded_at AT TIME ZONE 'utc')", "class = 's'"),
    ("session", "owner", "lower(client)", "ended_at IS NOT NULL"),
    ("session_live", "owner", "lower(client)", "client IS NOT NULL"),
    ("reply", "first", "((first % 7))", "slot = 0"),
    ("stream", "acked", "((acked % 7))", "acked > 3"),
    ("checkpoint", "session", "upper(point)", "point <> 'half'"),
    ("segment", "keep_us", "((keep_us % 7))", "current"),
    ("audit", "session", "lower(session)", "action = 'x'"),
];

// Goal: a program that follows a table by row triggers, as replication and auditing tools do, sees every row
// of it.
// Method: under load, a trigger on each table notes the rows that come and go. Together these changes must
// give the rows of the table.
async fn triggers(version: Version) -> Result<()> {
    const FOLLOW: &str = "
        CREATE TABLE followed (of name NOT NULL, row text NOT NULL, change int NOT NULL);
        CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          INSERT INTO public.followed SELECT TG_TABLE_NAME, r.row, r.change
            FROM (VALUES (NEW::text, 1), (OLD::text, -1)) r (row, change) WHERE r.row IS NOT NULL;
          RETURN NULL;
        END $$";
    let follow = [
        "BEGIN; LOCK idempotence.{table} IN SHARE ROW EXCLUSIVE MODE;
         INSERT INTO followed SELECT '{table}', t::text, 1 FROM idempotence.{table} t;
         CREATE TRIGGER follow AFTER INSERT OR UPDATE OR DELETE ON idempotence.{table} FOR EACH ROW EXECUTE FUNCTION follow(); COMMIT",
    ];
    // The lock keeps the table unchanged during the comparison.
    let compare = ["BEGIN; LOCK idempotence.{table} IN SHARE MODE;
         DO $$ BEGIN
           IF EXISTS (SELECT FROM (SELECT row, change FROM followed WHERE of = '{table}'
                                   UNION ALL SELECT t::text, -1 FROM idempotence.{table} t) r
                      GROUP BY row HAVING sum(change) <> 0) THEN
             RAISE EXCEPTION 'table {table} is not what its trigger saw';
           END IF;
         END $$; COMMIT"];
    let server = Cluster::start_preloaded(version)?;
    let mut load = Workload::open(&server).await?;
    for database in DATABASES {
        server.psql(database, FOLLOW)?;
    }
    load.beside(on_each_table(&server, &follow)).await?;
    load.beside(async { Ok(()) }).await?;
    load.beside(on_each_table(&server, &compare)).await?;
    for database in DATABASES {
        let seen = server.psql(database, "SELECT count(*) > 100 FROM followed WHERE change = 1")?;
        ensure!(seen.trim() == "t", "the triggers of {database} saw next to nothing");
    }
    load.beside(on_each_table(&server, &["DROP TRIGGER follow ON idempotence.{table}"])).await?;
    load.close(&server).await
}

// Goal: pg_repack loses nothing. It copies a table, and replays the changes that its trigger saw in the
// meantime.
// Method: the real program, on every table with a primary key, several times.
async fn pg_repack(version: Version) -> Result<()> {
    let program = version.bindir()?.join("pg_repack");
    ensure!(program.exists(), "there is no {}: install pg_repack for this server", program.display());
    let server = Cluster::start_preloaded(version)?;
    let mut load = Workload::open(&server).await?;
    for database in DATABASES {
        server.psql(database, "CREATE EXTENSION pg_repack")?;
    }
    for _ in 0..3 {
        load.beside(repack_each_database(&server)).await?;
    }
    load.close(&server).await
}

/// Runs pg_repack on each database. The server may end it in a deadlock. Then its extension is made anew, which
/// removes what it has left behind, and it is run again, as its documentation says for any table.
async fn repack_each_database(server: &Cluster) -> Result<()> {
    let repack = ["--schema=idempotence", "--wait-timeout=10"];
    while let Err(error) = on_each_database(server, "pg_repack", &repack).await {
        ensure!(format!("{error:#}").contains("deadlock detected"), error);
        for database in DATABASES {
            let dba = server.connect(database).await?;
            execute_despite_deadlocks(&dba, "DROP EXTENSION pg_repack CASCADE; CREATE EXTENSION pg_repack").await?;
        }
    }
    Ok(())
}

// Goal: dumps are taken while clients are at work, and neither waits for the other.
// Method: pg_dump of both databases, several times.
async fn dumps(version: Version) -> Result<()> {
    let program = "pg_dump";
    let server = Cluster::start_preloaded(version)?;
    let mut load = Workload::open(&server).await?;
    let file = format!("--file={}", server.home().join("dump").display());
    for _ in 0..3 {
        load.beside(on_each_database(&server, program, &["--format=custom", &file])).await?;
    }
    load.close(&server).await
}

/// Runs a program of the server's installation on each database.
async fn on_each_database(server: &Cluster, program: &str, arguments: &[&str]) -> Result<()> {
    for database in DATABASES {
        let mut command = server.program(program);
        command.env("PGHOST", server.home()).env("PGPORT", server.addr().port().to_string()).env("PGUSER", "postgres");
        command.args(arguments).args(["--dbname", database]);
        spawn_blocking(move || run(&mut command, None, LIMIT)).await??;
    }
    Ok(())
}
