//! Dumps by `pg_dump`, and restores by `psql`.

use anyhow::Result;
use idempotence_demo::host::run;
use idempotence_demo::server::SUPERUSER;

use crate::cluster::Cluster;
use crate::limits::LIMIT;

/// What `pg_dump` prints for a database. The program is that of `programs`, whose version may be newer than
/// the server's version.
pub fn dump(programs: &Cluster, source: &Cluster, database: &str, options: &[&str]) -> Result<String> {
    let mut pg_dump = programs.program("pg_dump");
    pg_dump.args(options).arg("-d").arg(source.connect_string(database, SUPERUSER));
    run(&mut pg_dump, None, LIMIT)
}

/// Writes a dump in the custom format, for `pg_restore`. Returns the path of the file.
pub fn dump_to_file(source: &Cluster, database: &str) -> Result<String> {
    let file = source.home().join("dump").display().to_string();
    dump(source, source, database, &["-Fc", "-f", &file])?;
    Ok(file)
}

/// Restores a dump in plain text into a new database.
pub fn restore(target: &Cluster, database: &str, dump: &str) -> Result<()> {
    target.psql("postgres", &format!("CREATE DATABASE {database} TEMPLATE template0"))?;
    target.psql(database, dump)?;
    Ok(())
}
