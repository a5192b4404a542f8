//! Modules of the tests that are written in C, in `c/`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use idempotence_demo::host::run;

use crate::limits::LIMIT;
use crate::version::Version;

/// A module, built for one version of the server, in a directory of its own that is removed with it.
pub struct CModule {
    directory: PathBuf,
    name: &'static str,
}

impl CModule {
    /// Builds `c/NAME.c` with these flags of the compiler.
    pub fn build(version: Version, name: &'static str, flags: &[&str]) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("{name}-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&directory)?;
        let built = Self { directory, name };
        fs::set_permissions(&built.directory, Permissions::from_mode(0o755))?;
        let headers = run(Command::new(version.pg_config()?).arg("--includedir-server"), None, LIMIT)?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I"]).arg(headers.trim_end()).args(flags);
        run(compiler.arg("-o").arg(built.library()).arg(source), None, LIMIT)?;
        Ok(built)
    }

    /// The path of the library, as it is preloaded.
    pub fn library(&self) -> String {
        self.beside(&format!("{}.so", self.name))
    }

    /// The path of a file beside the library.
    pub fn beside(&self, file: &str) -> String {
        self.directory.join(file).display().to_string()
    }
}

impl Drop for CModule {
    fn drop(&mut self) {
        // What is left behind is a small directory of temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
