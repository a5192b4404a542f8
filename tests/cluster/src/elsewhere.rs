//! The module `c/elsewhere.c`, which keeps effects outside of the server, and is killed at a moment that a test names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};

use crate::c_module::CModule;
use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::version::Version;

/// The module, built for one version of the server, and the file with the effects.
pub struct Elsewhere {
    module: CModule,
}

impl Elsewhere {
    /// Builds the module. With `two_phases` it can be asked for a two-phase commit.
    pub fn build(version: Version, two_phases: bool) -> Result<Self> {
        let flags: &[&str] = if two_phases { &["-DTWO_PHASES"] } else { &[] };
        let built = Self { module: CModule::build(version, "elsewhere", flags)? };
        fs::write(built.file(), "")?;
        fs::set_permissions(built.file(), Permissions::from_mode(0o666))?;
        Ok(built)
    }

    /// The path of the library, as it is preloaded.
    pub fn library(&self) -> String {
        self.module.library()
    }

    /// The file with the effects, for the setting `elsewhere.file`.
    pub fn file(&self) -> String {
        self.module.beside("effects")
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
