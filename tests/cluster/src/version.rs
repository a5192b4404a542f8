//! The versions of PostgreSQL that the tests run on, and the macros that make one test for each version.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use idempotence_demo::host::run;

use crate::limits::LIMIT;

/// Makes two tests of each `async fn(Version) -> Result<()>`: one for the oldest version and one for the
/// newest version that is built with assertions. `in module:` before the names says that the functions are in that module.
#[macro_export]
macro_rules! on_each_version {
    (in $module:ident: $($name:ident),+ $(,)?) => {
        $crate::on_versions!([$module] [pg15 Pg15, pg18 Pg18] $($name)+);
    };
    ($($name:ident),+ $(,)?) => {
        $crate::on_versions!([] [pg15 Pg15, pg18 Pg18] $($name)+);
    };
}

/// Makes one test for each version of each `async fn(Version) -> Result<()>`.
#[macro_export]
macro_rules! on_all_versions {
    (in $module:ident: $($name:ident),+ $(,)?) => {
        $crate::on_versions!(
            [$module] [pg15 Pg15, pg16 Pg16, pg17 Pg17, pg18 Pg18, pg19 Pg19] $($name)+
        );
    };
    ($($name:ident),+ $(,)?) => {
        $crate::on_versions!([] [pg15 Pg15, pg16 Pg16, pg17 Pg17, pg18 Pg18, pg19 Pg19] $($name)+);
    };
}

/// Makes one test for the newest version of each `async fn(Version) -> Result<()>`: of what only that version has.
#[macro_export]
macro_rules! on_newest_version {
    ($($name:ident),+ $(,)?) => {
        $crate::on_versions!([] [pg19 Pg19] $($name)+);
    };
}

/// Makes one test for each named version of each `async fn(Version) -> Result<()>`.
#[doc(hidden)]
#[macro_export]
macro_rules! on_versions {
    (@name $module:tt [$($test:ident $version:ident),+] $name:ident) => {
        mod $name {
            $($crate::on_versions!(@test $module $test $version $name);)+
        }
    };
    (@test [$($module:ident)?] $test:ident $version:ident $name:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() -> anyhow::Result<()> {
            super::$($module::)?$name($crate::version::Version::$version).await
        }
    };
    ($module:tt $versions:tt $($name:ident)+) => {
        $($crate::on_versions!(@name $module $versions $name);)+
    };
}

/// A version of PostgreSQL that the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The oldest version.
    Pg15,
    /// A version between the oldest and the newest.
    Pg16,
    /// A version between the oldest and the newest. It is best built with assertions.
    Pg17,
    /// The newest version that most tests run on. It is best built with assertions.
    Pg18,
    /// The newest version. It is tested where its packages are.
    Pg19,
}

impl Version {
    /// The `pg_config` of the installation that has this version.
    pub fn pg_config(self) -> Result<PathBuf> {
        let major = self.major();
        let variable = format!("IDEM_PG{major}_CONFIG");
        let default = || (self == Self::Pg15).then(|| "/usr/lib/postgresql/15/bin/pg_config".into());
        let named = std::env::var_os(&variable).map(PathBuf::from).or_else(default);
        let path = named.with_context(|| format!("set {variable} to the pg_config of a PostgreSQL {major}"))?;
        let version = run(Command::new(&path).arg("--version"), None, LIMIT)
            .with_context(|| format!("{variable} must name the pg_config of a PostgreSQL {major}"))?;
        let found = version.trim_start_matches(|c: char| !c.is_ascii_digit());
        ensure!(found.starts_with(&major.to_string()), "{variable} names a server of another version: {version}");
        Ok(path)
    }

    /// The cluster that servers of this version are copies of, if there is a directory for such clusters.
    pub fn cluster_to_copy(self) -> Option<PathBuf> {
        let clusters = PathBuf::from(std::env::var_os("IDEM_CLUSTERS")?);
        Some(clusters.join(format!("pg{}", self.major())))
    }

    fn major(self) -> u32 {
        match self {
            Self::Pg15 => 15,
            Self::Pg16 => 16,
            Self::Pg17 => 17,
            Self::Pg18 => 18,
            Self::Pg19 => 19,
        }
    }

    /// The directory of the programs of this version.
    pub fn bindir(self) -> Result<PathBuf> {
        let bindir = run(Command::new(self.pg_config()?).arg("--bindir"), None, LIMIT)?;
        Ok(bindir.trim_end().into())
    }
}
