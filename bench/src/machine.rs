//! The machine on which the benchmark runs: what readers of the page must know, and nothing that identifies
//! the machine.

use std::fs;

use anyhow::Result;

/// The processor, the memory and the kernel.
pub fn describe() -> Result<String> {
    let processor = field("/proc/cpuinfo", "model name")?.unwrap_or_else(|| std::env::consts::ARCH.into());
    let memory_kb: u64 = field("/proc/meminfo", "MemTotal")?
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let release: Vec<&str> = kernel.trim().split(['.', '-']).take(2).collect();
    let memory_gb = memory_kb.div_ceil(1 << 20);
    Ok(format!("{processor}, {} logical cores, {memory_gb} GB of memory, Linux {}", cores(), release.join(".")))
}

/// The number of processor cores, which pgbench shares with the server.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The private memory of a process; `None` once it has ended.
pub fn private_memory_kb(pid: i32) -> Option<f64> {
    field(&format!("/proc/{pid}/status"), "RssAnon").ok()??.split_whitespace().next()?.parse().ok()
}

/// The value of the first line `name: value` in a file.
fn field(path: &str, name: &str) -> Result<Option<String>> {
    let text = fs::read_to_string(path)?;
    let value = text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    });
    Ok(value)
}
