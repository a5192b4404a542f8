//! What a private server needs of the machine: an account to run as, a directory to live in, and
//! a way to run programs and to end processes that never waits for ever.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};

/// PostgreSQL refuses to run as root; there its programs run as this user.
const SERVER_USER: &str = "postgres";

/// A Unix socket's path, its terminating zero included, must fit in `sockaddr_un`.
const SOCKET_PATH_MAX: usize = 107;

/// Who runs the server's programs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Account {
    /// Whoever we are.
    Own,
    /// We are root, the server must not be.
    Postgres { uid: u32, gid: u32 },
}

impl Account {
    pub fn for_server() -> Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self::Own);
        }
        let user = User::from_name(SERVER_USER)?
            .with_context(|| format!("running as root, and there is no user {SERVER_USER} for the server to run as"))?;
        Ok(Self::Postgres { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// A command that will run as this account, from a directory it can surely enter. Of our
    /// environment it gets nothing that would lead it to another server, or make this one's errors
    /// carry backtraces.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self {
            Self::Own => Command::new(program),
            Self::Postgres { .. } => {
                let mut command = Command::new("runuser");
                command.args(["-u", SERVER_USER, "--"]).arg(program);
                command
            }
        };
        command.current_dir("/").env("LC_ALL", "C");
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"PG") || name_bytes.starts_with(b"RUST_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Can it reach files below `directory`?
    fn reaches(self, directory: &Path) -> bool {
        let mut test = self.command("test");
        test.arg("-x").arg(directory);
        run(&mut test, None, Duration::from_secs(10)).is_ok()
    }
}

/// A directory of its own for one server, gone when dropped unless it is to be kept.
///
/// Only the server's account can enter it: the socket in it lets in whoever reaches it.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    keep: AtomicBool,
}

impl Home {
    /// Below `parent` where the server can live there, else in a temporary directory.
    pub fn create(account: Account, parent: Option<&Path>) -> Result<Self> {
        if let Some(parent) = parent {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        let wanted = match parent {
            Some(parent) => Some(fs::canonicalize(parent)?),
            None => None,
        };
        let name = format!("idempotence-{:08x}", rand::random::<u32>());
        let candidates = [wanted, Some(std::env::temp_dir()), Some("/tmp".into())];
        for parent in candidates.into_iter().flatten() {
            let path = parent.join(&name);
            if socket_path(&path, u16::MAX).as_os_str().len() > SOCKET_PATH_MAX || !account.reaches(&parent) {
                continue;
            }
            fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("creating {}", path.display()))?;
            let home = Self { path, keep: AtomicBool::new(false) };
            if let Account::Postgres { uid, gid } = account {
                chown(&home.path, Some(uid), Some(gid))?;
            }
            return Ok(home);
        }
        bail!("found no directory that the server's user can reach, not even /tmp")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn keep(&self) {
        self.keep.store(true, Relaxed);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.keep.load(Relaxed) {
            // Nothing sensible can be done about a failure, and a panic may be on its way.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

pub(crate) fn socket_path(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

/// Runs a program to its end, at most for `limit`; gives its output, or an error that quotes it.
pub(crate) fn run(command: &mut Command, input: Option<&str>, limit: Duration) -> Result<String> {
    let what = describe(command);
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {what}"))?;
    let pid = child.id().cast_signed();

    // One thread feeds, one collects, so that neither pipe can fill up and block the other.
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input.map(str::to_owned)) {
        // A program that ends without reading all of it says why by itself.
        thread::spawn(move || _ = stdin.write_all(input.as_bytes()));
    }
    let (done, output) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));

    let Ok(output) = output.recv_timeout(limit) else {
        // The thread still holds the child, so the pid cannot have passed to anybody else.
        signal(pid, Signal::SIGTERM);
        bail!("{what} did not end within {} s", limit.as_secs());
    };
    let output = output.with_context(|| format!("waiting for {what}"))?;
    if !output.status.success() {
        bail!(
            "{what} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The state and the parent of a process; `None` once it is gone.
fn process(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before them stands in parentheses and may itself hold some.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

pub(crate) fn is_child(pid: i32, parent: i32) -> bool {
    process(pid).is_some_and(|(_, its_parent)| its_parent == parent)
}

pub(crate) fn children(parent: i32) -> Result<Vec<i32>> {
    Ok(fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| is_child(pid, parent))
        .collect())
}

/// Has it ended? A zombie has: where nobody reaps, as in some containers, it stays one.
pub(crate) fn has_ended(pid: i32) -> bool {
    process(pid).is_none_or(|(state, _)| state == 'Z')
}

/// Freezes a process.
pub(crate) fn freeze(pid: i32) {
    signal(pid, Signal::SIGSTOP);
}

pub(crate) fn kill9(pid: i32) {
    signal(pid, Signal::SIGKILL);
}

fn signal(pid: i32, signal: Signal) {
    // ESRCH, the only error to be expected, says that there is nothing left to do.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Looks again and again until `condition` holds, at most for `limit`.
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
