//! What a private server needs from the machine: an account to run as, a directory to live in, and a
//! way to run programs and to end processes in bounded time.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};

/// PostgreSQL refuses to run as root. When we are root, its programs run as this user.
const SERVER_USER: &str = "postgres";

/// The path of a Unix socket, with its terminating zero, must fit into the 108 bytes of `sockaddr_un`.
const SOCKET_PATH_MAX: usize = 107;

/// The account that runs the server's programs.
#[derive(Clone, Copy, Debug)]
pub enum Account {
    /// The account of this process.
    Own,
    /// The user `postgres`, because this process runs as root and the server must not.
    Postgres {
        /// Its user id.
        uid: u32,
        /// The id of its group.
        gid: u32,
    },
}

impl Account {
    /// The account for a server that this process starts.
    pub fn for_server() -> Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self::Own);
        }
        let user = User::from_name(SERVER_USER)?
            .with_context(|| format!("running as root, and there is no user {SERVER_USER} for the server to run as"))?;
        Ok(Self::Postgres { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// A command that will run as this account, in a directory that every account can enter. It does
    /// not inherit the environment variables that would lead it to another server (`PG*`) or add
    /// backtraces to error messages (`RUST_*`).
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self {
            Self::Own => Command::new(program),
            Self::Postgres { .. } => {
                let mut command = Command::new("runuser");
                command.args(["-u", SERVER_USER, "--"]).arg(program);
                command
            }
        };
        plain_surroundings(&mut command);
        command
    }

    /// As [`command`](Self::command), for a program that goes on: its process is the child of this one, so that it can
    /// be killed.
    pub fn daemon(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Self::Postgres { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        plain_surroundings(&mut command);
        command
    }

    /// Whether this account can reach files below `directory`.
    fn reaches(self, directory: &Path) -> bool {
        let mut test = self.command("test");
        test.arg("-x").arg(directory);
        run(&mut test, None, Duration::from_secs(10)).is_ok()
    }
}

/// A directory that every account can enter, and no variables that would lead a program elsewhere.
fn plain_surroundings(command: &mut Command) {
    command.current_dir("/").env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        let name_bytes = name.as_encoded_bytes();
        if name_bytes.starts_with(b"PG") || name_bytes.starts_with(b"RUST_") {
            command.env_remove(name);
        }
    }
}

/// The directory of one server. Dropping the value removes the directory, unless it is to be kept.
///
/// Only the server's account can enter the directory, because the server trusts everybody who can
/// reach the socket in it.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    keep: AtomicBool,
}

impl Home {
    /// Creates the directory below `parent` if the server's account can reach it and the path of the
    /// socket is short enough, and in a temporary directory otherwise.
    pub fn create(account: Account, parent: Option<&Path>) -> Result<Self> {
        if let Some(parent) = parent {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        let requested = parent.map(fs::canonicalize).transpose()?;
        let name = format!("idempotence-{:08x}", rand::random::<u32>());
        let candidates = [requested, Some(std::env::temp_dir()), Some("/tmp".into())];
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory stay when the value is dropped.
    pub fn keep(&self) {
        self.keep.store(true, Relaxed);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.keep.load(Relaxed) {
            // Nothing sensible can be done about an error, and a panic may already be under way.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

pub(crate) fn socket_path(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

/// Runs a program to its end and returns its standard output. `input` is written to its standard input.
///
/// The program is terminated if it does not end within `limit`. If it fails, the error quotes
/// everything that it has printed.
pub fn run(command: &mut Command, input: Option<&str>, limit: Duration) -> Result<String> {
    let command_line = command_line(command);
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {command_line}"))?;
    let pid = child.id().cast_signed();

    // One thread writes the input and another one reads the output: a pipe that is full must not keep
    // us from emptying or filling another pipe.
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input.map(str::to_owned)) {
        // An error means that the program has ended without reading all its input. Its output says why.
        thread::spawn(move || _ = stdin.write_all(input.as_bytes()));
    }
    let (done, output) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));

    let Ok(output) = output.recv_timeout(limit) else {
        // The thread has not waited for the child yet, so no other process can have been given its pid.
        signal(pid, Signal::SIGTERM);
        bail!("{command_line} did not end within {} s", limit.as_secs());
    };
    let output = output.with_context(|| format!("waiting for {command_line}"))?;
    if !output.status.success() {
        bail!(
            "{command_line} failed ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The state and the parent of a process, or `None` if there is no such process.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before these two fields is in parentheses, and may itself contain parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

pub(crate) fn is_child(pid: i32, parent: i32) -> bool {
    state_and_parent(pid).is_some_and(|(_, its_parent)| its_parent == parent)
}

/// The processes that this process has started and that have not ended.
pub(crate) fn living_children(parent: i32) -> Result<Vec<i32>> {
    Ok(fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| is_child(pid, parent) && !has_ended(pid))
        .collect())
}

/// Whether a process that was frozen has stopped, or has ended. It stops when it returns from the kernel, where it may
/// have been starting another process.
pub(crate) fn stands_still(pid: i32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| "TtZ".contains(state))
}

/// Whether a process has ended. A zombie counts as ended: in some containers nobody reaps the dead, and
/// they stay zombies.
pub fn has_ended(pid: i32) -> bool {
    state_and_parent(pid).is_none_or(|(state, _)| state == 'Z')
}

/// Stops a process without ending it.
pub fn freeze(pid: i32) {
    signal(pid, Signal::SIGSTOP);
}

/// Lets a process go on that was stopped.
pub fn thaw(pid: i32) {
    signal(pid, Signal::SIGCONT);
}

/// Kills a process with signal 9.
pub fn kill9(pid: i32) {
    signal(pid, Signal::SIGKILL);
}

/// Asks a process to end now, as Ctrl-C does.
pub fn interrupt(pid: i32) {
    signal(pid, Signal::SIGINT);
}

fn signal(pid: i32, signal: Signal) {
    // The only error to expect is ESRCH: the process is gone, and nothing is left to do.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Polls `condition` until it holds, at most for `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
