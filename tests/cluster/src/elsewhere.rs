//! The module `c/elsewhere.c`, which keeps effects outside of the server, and is killed at a moment that a test names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use idempotence_demo::host::run;

use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::limits::LIMIT;
use crate::version::Version;

/// The module, built for one version of the server, and the file with the effects.
pub struct Elsewhere {
    directory: PathBuf,
}

impl Elsewhere {
    /// Builds the module. With `two_phases` it can be asked for a two-phase commit.
    pub fn build(version: Version, two_phases: bool) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("elsewhere-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&directory)?;
        let built = Self { directory };
        fs::set_permissions(&built.directory, Permissions::from_mode(0o755))?;
        let headers = run(Command::new(version.pg_config()?).arg("--includedir-server"), None, LIMIT)?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/elsewhere.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I"]).arg(headers.trim_end());
        if two_phases {
            compiler.arg("-DTWO_PHASES");
        }
        run(compiler.arg("-o").arg(built.library()).arg(source), None, LIMIT)?;
        fs::write(built.file(), "")?;
        fs::set_permissions(built.file(), Permissions::from_mode(0o666))?;
        Ok(built)
    }

    /// The path of the library, as it is preloaded.
    pub fn library(&self) -> String {
        self.directory.join("elsewhere.so").display().to_string()
    }

    /// The file with the effects, for the setting `elsewhere.file`.
    pub fn file(&self) -> String {
        self.directory.join("effects").display().to_string()
    }

    /// Creates the function `elsewhere(what)`. The first call in a connection loads the module.
    pub fn create_function(&self, server: &Cluster, database: &str) -> Result<()> {
        let library = self.library();
        let create =
            format!("CREATE FUNCTION elsewhere(text) RETURNS void LANGUAGE c VOLATILE AS '{library}', 'elsewhere'");
        server.psql(database, &create).map(drop)
    }

    /// What was written about an effect, for example `prepared,committed`.
    pub fn written(&self, effect: &str) -> Result<String> {
        Ok(self.lines(effect)?.into_iter().map(|(phase, _)| phase).collect::<Vec<_>>().join(","))
    }

    /// How many times an effect has happened.
    pub async fn times(&self, connection: &Connection, effect: &str) -> Result<usize> {
        let lines = self.lines(effect)?;
        let mut times = lines.iter().filter(|(phase, _)| phase == "committed").count();
        for (number, (phase, transaction)) in lines.iter().enumerate() {
            if phase != "prepared" || lines.get(number + 1).is_some_and(|(next, _)| next == "committed") {
                continue;
            }
            let status = connection.text(&format!("SELECT pg_xact_status('{transaction}')")).await?;
            ensure!(["committed", "aborted"].contains(&status.as_str()), "{transaction} of {effect} is {status:?}");
            times += usize::from(status == "committed");
        }
        Ok(times)
    }

    /// The lines about an effect: the phase, and the transaction if there is one.
    fn lines(&self, effect: &str) -> Result<Vec<(String, String)>> {
        let all = fs::read_to_string(self.file()).context("the effects cannot be read")?;
        let of_it = |line: &str| {
            let line = line.strip_suffix(effect)?.strip_suffix(' ')?;
            let (phase, transaction) = line.split_once(' ').unwrap_or((line, ""));
            Some((phase.to_owned(), transaction.to_owned()))
        };
        Ok(all.lines().filter_map(of_it).collect())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // What stays behind does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
