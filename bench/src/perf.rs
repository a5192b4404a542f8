//! Counts with the processor's own counters, by `perf stat`: instructions and cycles at user level.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The events, in the order in which they are asked for.
const EVENTS: [&str; 2] = ["instructions:u", "cycles:u"];

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    pub instructions: f64,
    pub cycles: f64,
}

/// A `perf` that counts in processes.
pub struct Perf(Child);

impl Perf {
    /// Tries whether it can count here. Many virtual machines have no counters.
    pub fn can_count() -> bool {
        let tried = Command::new("perf").args(["stat", "-x,", "-e", &EVENTS.join(","), "true"]).output();
        tried.is_ok_and(|output| counts(&String::from_utf8_lossy(&output.stderr)).is_some())
    }

    /// Starts counting in processes, until they or the counting end.
    pub fn attach(pids: &[i32]) -> Result<Perf> {
        let list = pids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", &EVENTS.join(","), "-p", &list]);
        let mut perf = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        // It counts as soon as it has opened each event for each process.
        let opened = format!("/proc/{}/fd", perf.id());
        while count_of_events(Path::new(&opened)) < pids.len() * EVENTS.len() && perf.try_wait()?.is_none() {
            thread::sleep(Duration::from_millis(2));
        }
        Ok(Perf(perf))
    }

    /// Ends the counting.
    pub fn finish(self) -> Result<Counts> {
        // The processes may live on, behind a pooler.
        let _ = kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGINT);
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        counts(&text).with_context(|| format!("perf says:\n{text}"))
    }
}

/// The number of events that a process has open.
fn count_of_events(opened: &Path) -> usize {
    let Ok(files) = fs::read_dir(opened) else { return 0 };
    let is_event = |link: &PathBuf| link.as_os_str() == "anon_inode:[perf_event]";
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).filter(is_event).count()
}

/// The counts in what `perf stat -x,` prints: a line for each event, which begins with its count.
fn counts(text: &str) -> Option<Counts> {
    let mut counts = text.lines().filter_map(|line| {
        let (count, rest) = line.split_once(',')?;
        rest.contains(":u,").then(|| count.parse::<f64>().ok())?
    });
    Some(Counts { instructions: counts.next()?, cycles: counts.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_prints_is_read() {
        let text = "123456,,instructions:u,1000,100.00,1.5,insn per cycle\n7890,,cycles:u,1000,100.00,,\n";
        assert_eq!(counts(text), Some(Counts { instructions: 123_456.0, cycles: 7_890.0 }));
        assert_eq!(counts("<not supported>,,instructions:u,0,100.00,,\n<not supported>,,cycles:u,0,100.00,,\n"), None);
        assert_eq!(counts("perf: command failed\n"), None);
    }
}
