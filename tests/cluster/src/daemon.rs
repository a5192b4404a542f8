//! Programs that run in the background beside the servers, as poolers and managers do.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use idempotence_demo::host;

/// How long a program has to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(20);

const LOG_LINES_SHOWN: usize = 60;

/// A program in the background. Dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a program. What it prints is added to `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}: is it installed?", command.get_program().display()))?;
        Ok(Self { child, log: log.into() })
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The end of what it has printed, for the message of an error.
    pub fn end_of_log(&self) -> String {
        end_of(&read_log(&self.log))
    }

    /// Kills it with signal 9.
    pub fn kill9(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        host::interrupt(self.pid());
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            sleep(Duration::from_millis(10));
        }
        // It fails if the program has ended, which it has by now.
        let _ = self.kill9();
    }
}

/// All that is in a log. It is empty if there is none yet.
pub fn read_log(path: &Path) -> String {
    fs::read(path).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned())
}

/// The last lines of a log, each on a line of its own.
pub fn end_of(log: &str) -> String {
    let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
    log.lines().skip(skipped).map(|line| format!("\n  {line}")).collect()
}

/// The first of these programs that is there, or the last of them for the message that it is not.
pub fn installed(programs: &[&'static str]) -> &'static str {
    let there = programs.iter().find(|program| Path::new(program).exists());
    there.or(programs.last()).copied().unwrap_or_default()
}
