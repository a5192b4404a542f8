//! The load: clients that begin and record without any work between.

use std::fs;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};

use crate::lab::Lab;
use crate::script::{CONSTANTS, KEY, Keygen};

/// The number of clients.
pub const CLIENTS: u32 = 4;

/// A transaction that begins and records, and does nothing else.
pub fn script(keygen: Keygen) -> String {
    format!(
        "{}BEGIN;\nSELECT * FROM idem_begin('payments', {KEY});\nSELECT idem_record('payments', {KEY}, :response);\nCOMMIT;\n",
        keygen.script()
    )
}

/// Starts pgbench. `number` is different for each run in the same database, so that no two runs send the same
/// keys.
pub fn start(lab: &Lab, number: u64, how_long: [&str; 2], script: &str, extra: &[&str]) -> Result<Child> {
    let path = lab.data_dir().join(format!("ring_{number}.sql"));
    fs::write(&path, script)?;
    let mut command = lab.program("pgbench");
    command.args(["-n", "-M", "prepared", "-c", &CLIENTS.to_string(), "-j", "2"]).args(how_long);
    for (name, value) in CONSTANTS {
        command.arg("-D").arg(format!("{name}={value}"));
    }
    command.arg("-D").arg(format!("n={}", number * 1_000_000)).args(extra);
    command.arg("-f").arg(&path).arg(format!("{} options='-c synchronous_commit=off'", lab.connect_string()));
    command.current_dir(lab.data_dir()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot run pgbench")
}

/// Waits until a program ends, and returns its output.
pub fn finish(child: Child) -> Result<String> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("pgbench failed:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// The transactions per second that the load reaches.
pub fn rate(lab: &Lab, number: u64, seconds: u64, script: &str) -> Result<f64> {
    let text = finish(start(lab, number, ["-T", &seconds.to_string()], script, &[])?)?;
    let line = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    line.with_context(|| format!("pgbench gives no rate:\n{text}"))
}
