//! Counts instructions without the processor's help, by `valgrind --tool=cachegrind`: the server is started again under
//! it, and each of its processes leaves its own count when it ends. That takes some twenty times as long. The counts hardly
//! differ from those of `perf`, and by about one percent from one time to the next.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use idempotence_demo::server::Server;

/// How long a process may take to write its count, after its client has gone.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// Some servers, which run under valgrind.
pub struct Valgrind<'a> {
    servers: Vec<&'a Server>,
}

impl<'a> Valgrind<'a> {
    /// Tries whether it can count here.
    pub fn can_count() -> bool {
        let tried = Command::new("valgrind").args(["--tool=cachegrind", "--help"]).output();
        tried.is_ok_and(|output| output.status.success())
    }

    /// Starts servers again under valgrind.
    pub fn start(servers: &[&'a Server]) -> Result<Self> {
        for server in servers {
            let program = server.home().join("counted-postgres");
            fs::write(&program, script(server))?;
            // The server's account has to execute it.
            fs::set_permissions(&program, Permissions::from_mode(0o755))?;
            server.stop_fast()?;
            server.start_by(&program)?;
        }
        Ok(Self { servers: servers.to_vec() })
    }

    /// The instructions that processes of one of the servers have run, from their start to their end, which is near.
    pub fn instructions(&self, server: &Server, pids: &[i32]) -> Result<f64> {
        pids.iter().map(|pid| count_of(&count_path(server, &pid.to_string()))).sum()
    }

    /// Starts the servers as before.
    pub fn end(self) -> Result<()> {
        self.servers.iter().try_for_each(|server| server.restart())
    }
}

/// What takes the place of `postgres`.
fn script(server: &Server) -> String {
    let (counts, postgres) = (count_path(server, "%p"), server.path_of("postgres"));
    format!(
        "#!/bin/sh\nexec valgrind --quiet --tool=cachegrind --cache-sim=no --log-file=/dev/null \
         --cachegrind-out-file='{}' '{}' \"$@\"\n",
        counts.display(),
        postgres.display()
    )
}

/// Where a process leaves its count.
fn count_path(server: &Server, pid: &str) -> PathBuf {
    server.home().join(format!("count.{pid}"))
}

/// The count in the file that a process leaves. The last line has it.
fn count_of(path: &Path) -> Result<f64> {
    let start = Instant::now();
    while start.elapsed() < WRITE_LIMIT {
        if let Some(count) = fs::read_to_string(path).ok().and_then(|text| summary(&text)) {
            fs::remove_file(path)?;
            return Ok(count);
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("valgrind has left no count in {}", path.display())
}

fn summary(text: &str) -> Option<f64> {
    // Without the end of the line it is still being written.
    text.strip_suffix('\n')?.lines().next_back()?.strip_prefix("summary: ")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cachegrind_writes_is_read() {
        assert_eq!(
            summary("desc: I1 cache: ...\nevents: Ir\nfl=a.c\nfn=main\n3 5\nsummary: 123456 \n"),
            Some(123_456.0)
        );
        assert_eq!(summary("events: Ir\nfl=a.c\nfn=main\n3 5\n"), None);
        assert_eq!(summary("events: Ir\nsummary: 1234"), None);
        assert_eq!(summary(""), None);
    }
}
