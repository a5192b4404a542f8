//! The row about the clock: a server whose clock can be set.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Version};

use super::locks::{level, row};

/// A library that a server is started with. Its gettimeofday(), which PostgreSQL asks for the time, adds the seconds that
/// a file has.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long *ahead;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("CLOCK_AHEAD");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        ahead = mapped;
    if (fd >= 0)
        close(fd);
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec now;
    (void) tz;
    clock_gettime(CLOCK_REALTIME, &now);
    tv->tv_sec = now.tv_sec + (ahead ? *ahead : 0);
    tv->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

/// A clock that the test sets. Its files are removed when it is dropped.
struct Clock(PathBuf);

impl Clock {
    fn new() -> Result<Clock> {
        let clock = Clock(std::env::temp_dir().join(format!("idempotence-clock-{}", rand::random::<u32>())));
        fs::create_dir(&clock.0)?;
        // The server may run as another user.
        fs::set_permissions(&clock.0, fs::Permissions::from_mode(0o755))?;
        fs::write(clock.file("clock.c"), LIBRARY)?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o", &clock.file("clock.so"), &clock.file("clock.c")])
            .status()?;
        ensure!(built.success(), "cc failed");
        clock.set(0)?;
        Ok(clock)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Sets the clock this many seconds ahead of the true time. The server sees the file's bytes, not a new file.
    fn set(&self, ahead: i64) -> Result<()> {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(self.file("ahead"))?;
        std::os::unix::fs::FileExt::write_all_at(&file, &ahead.to_ne_bytes(), 0)?;
        Ok(())
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

// Goal: a clock that somebody sets, forward or back, is told of by the row clock and in the log; small corrections are
// not. A crash forgets it.
// Method: a server whose clock is set by some seconds while it runs.
pub async fn a_clock_that_is_set_is_told_of(version: Version) -> Result<()> {
    let clock = Clock::new()?;
    let settings = [("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1s")];
    let environment = [("LD_PRELOAD", &*clock.file("clock.so")), ("CLOCK_AHEAD", &*clock.file("ahead"))];
    let server = Cluster::start_in(version, &settings, &environment)?;
    server.create_database("shop")?;
    let watch = server.connect("shop").await?;
    let well = "0|nothing was noted in the future, and the clock was not set within a day";
    server
        .wait_for("shop", "SELECT substring(detail, '^swept') FROM idempotence.health WHERE name = 'sweep'", "swept")
        .await?;
    // Less than ten seconds are no jump; the launcher has looked once more when it has swept again.
    clock.set(5)?;
    let swept = watch.text("SELECT idempotence.last_sweep()").await?;
    server
        .wait_for("shop", &format!("SELECT idempotence.last_sweep() > '{swept}'::timestamptz + interval '7 s'"), "t")
        .await?;
    ensure!(watch.text(&row("clock")).await? == well, "{}", watch.text(&row("clock")).await?);

    clock.set(35)?;
    server.wait_for("shop", &level("clock"), "1").await?;
    let told = watch.text(&row("clock")).await?;
    ensure!(
        told.starts_with("1|the clock was set forward by 00:00:") && told.contains(", seen at 2"),
        "health says {told}"
    );
    server.wait_for_log("the server's clock was set forward by ").await?;
    clock.set(0)?;
    let back = "SELECT detail LIKE 'the clock was set back by 00:00:3%, seen at 2%' FROM idempotence.health WHERE name = 'clock'";
    server.wait_for("shop", back, "t").await?;
    server.crash()?;
    let again = server.reconnect("shop").await?;
    ensure!(again.text(&row("clock")).await? == well, "{}", again.text(&row("clock")).await?);
    Ok(())
}
