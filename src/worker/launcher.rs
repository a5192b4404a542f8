//! The launcher: a process that lists the databases and starts their visits, one at a time. Each database is due
//! once a naptime. The launcher itself is connected to no database.

use crate::board::{self, Ended, Report, Text};
use crate::domain::clock;
use crate::guc;
use crate::pg::{self, Failure};
use crate::store::blank;
use crate::sweep::Step;
use crate::wake;
use pgrx::bgworkers::{BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker};
use pgrx::memcxt::PgMemoryContexts;
use pgrx::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// A database without the extension is visited once in this number of naptimes.
const NAPTIMES_WITHOUT_EXTENSION: u32 = 30;

/// The longest pause after failures, in naptimes. Each failure doubles the pause until then.
const BACKOFF_MAX: u32 = 8;

/// The shortest time between two log messages about the same failure of a database.
const SAME_FAILURE_AGAIN: Duration = Duration::from_secs(3600);

/// For how many naptimes the sweep of a database has to be delayed before that is logged.
const NAPTIMES_TO_LOGGED_DELAY: u32 = 6;

/// The shortest pause between two visits of a database. CREATE DATABASE … TEMPLATE and the like need such a pause.
const PAUSE_MIN: Duration = Duration::from_millis(500);

/// How long a visit may take from its start on. Once connected, it limits itself to a second.
const VISIT_MAX: Duration = Duration::from_secs(5);

/// How long a visit may take to end when it was told to.
const END_MAX: Duration = Duration::from_secs(2);

/// How long after a failure of its own the launcher is started again. After a crash of the server the launcher
/// comes back together with the server.
const RESTART: Duration = Duration::from_secs(5);

/// Reserves the board and registers the launcher, while the postmaster preloads the library.
pub fn init() {
    if !pg::is_preloading() {
        return;
    }
    board::init();
    wake::init();
    blank::init();
    BackgroundWorkerBuilder::new("idempotence launcher")
        .set_library("idempotence")
        .set_function("idempotence_launcher")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(RESTART))
        .load();
}

/// The main function of the launcher's process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idempotence_launcher(_argument: pg_sys::Datum) {
    // SIGTERM sets a flag, which the main loop looks at.
    pg::let_signals_in(pg::SignalHandlerForShutdownRequest);
    // SAFETY: called once, in a worker registered with access to databases. Without a database the process
    // reads the shared catalogs only.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
        pg_sys::before_shmem_exit(Some(leave), pg_sys::Datum::null());
    }
    board::note_start();
    let mut launcher = Launcher::default();
    while !shutdown_requested() {
        // The memory context frees, at the end of each round, what PostgreSQL allocated in it.
        // SAFETY: nothing that is kept from one round to the next is allocated by PostgreSQL.
        let pause = unsafe { PgMemoryContexts::new("idempotence launcher").switch_to(|_| launcher.round()) };
        // Asked here as well: a wait inside the round may have reset the latch that the signal had set.
        if !shutdown_requested() {
            pg::nap(i64::try_from(pause.as_micros()).unwrap_or(i64::MAX));
        }
    }
    // Exit code 1 has the postmaster start the launcher again, unless the server is going down.
    // SAFETY: outside of any transaction.
    unsafe { pg_sys::proc_exit(1) };
}

#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, _argument: pg_sys::Datum) {
    // This comes before the server's own callbacks, which release what an error has left locked.
    // SAFETY: the process is about to end.
    unsafe { pg_sys::LWLockReleaseAll() };
    board::open().launcher = 0;
}

/// Lists the databases that can be visited: all except templates, databases that allow no connections, and
/// databases that were half dropped.
fn list_databases() -> Vec<(u32, String)> {
    /// `DATCONNLIMIT_INVALID_DB`
    const HALF_DROPPED: i32 = -2;
    // SAFETY: a row begins with its fixed-width columns, which the struct describes.
    let database = |row: pg_sys::HeapTuple, _| unsafe {
        let row: *const pg_sys::FormData_pg_database = pg_sys::GETSTRUCT(row).cast();
        let can_be_visited = !(*row).datistemplate && (*row).datallowconn && (*row).datconnlimit != HALF_DROPPED;
        let name = || CStr::from_ptr((*row).datname.data.as_ptr()).to_string_lossy().into_owned();
        can_be_visited.then(|| ((*row).oid.to_u32(), name()))
    };
    pg::catalog_rows(pg_sys::DatabaseRelationId, database)
}

fn shutdown_requested() -> bool {
    // SAFETY: a flag that a signal handler sets.
    unsafe { (&raw const pg_sys::ShutdownRequestPending).read_volatile() != 0 }
}

/// What the launcher knows of a database.
#[derive(Default)]
struct Database {
    name: String,
    /// When the next visit is due; `None`: at once.
    due: Option<Instant>,
    /// How the last visit ended.
    ended: Ended,
    /// The step that the next visit begins with.
    step: usize,
    /// The number of visits in a row, up to the last, that failed.
    failures: u32,
    /// The failures that were logged last, and when each was logged.
    failed_with: Vec<(String, Instant)>,
    /// Whether a failure was logged, and since then there was no visit without one.
    failing: bool,
    /// Since when each visit has been delayed, and whether that was logged.
    delayed: Option<(Instant, bool)>,
    /// The process of a visit that did not end when it was told to.
    left: Option<i32>,
}

#[derive(Default)]
struct Launcher {
    /// The databases that are visited, by oid.
    databases: BTreeMap<u32, Database>,
    /// Names in the setting that no database has, and that were logged.
    missing: BTreeSet<String>,
    /// Whether it was logged that there is no slot for a worker.
    no_slot_logged: bool,
    /// What the wall clock and the steady clock showed at the beginning of the last round.
    clocks: Option<(i64, i64)>,
}

impl Launcher {
    /// Visits all databases that are due. Returns the pause until the next one is.
    fn round(&mut self) -> Duration {
        self.reload();
        self.look_at_clocks();
        match pg::in_transaction(c"idempotence: list databases", list_databases) {
            Ok(found) => self.follow(&found),
            Err(Failure { said, .. }) => {
                pg::log_line("idempotence could not list the databases", &said, "Look at the message.")
            }
        }
        // Databases in which a backend has found the extension in this library's version, where the last visit did not.
        for oid in board::take_announced() {
            if let Some(database) = self.databases.get_mut(&oid)
                && matches!(database.ended, Ended::NotInstalled | Ended::OtherVersion)
            {
                database.due = None;
            }
        }
        let now = Some(Instant::now());
        let due: Vec<u32> = self.databases.iter().filter(|(_, is)| is.due <= now).map(|(oid, _)| *oid).collect();
        for oid in due {
            if shutdown_requested() {
                break;
            }
            self.visit(oid);
        }
        let next = self.databases.values().filter_map(|database| database.due).min();
        let pause = next.map_or(guc::naptime(), |due| due.saturating_duration_since(Instant::now()));
        pause.min(guc::naptime())
    }

    fn reload(&mut self) {
        // SAFETY: a flag that a signal handler sets; the settings are read between transactions.
        unsafe {
            if (&raw const pg_sys::ConfigReloadPending).read_volatile() != 0 {
                pg_sys::ConfigReloadPending = 0;
                pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
                self.missing.clear();
            }
        }
    }

    /// Notes and logs that somebody has set the clock since the last round.
    fn look_at_clocks(&mut self) {
        let (wall_us, steady_us) = (pg::now_us(), pg::steady_us());
        if let Some((last_wall_us, last_steady_us)) = self.clocks.replace((wall_us, steady_us))
            && let Some(by_us) = clock::jump_us(wall_us - last_wall_us, steady_us - last_steady_us)
        {
            board::note_jump(by_us);
            let direction = if by_us > 0 { "forward" } else { "back" };
            pg::log_line(
                &format!("the server's clock was set {direction} by {} seconds", by_us.abs() / 1_000_000),
                "Outcomes expire and leases run out by this clock.",
                "If it is right now, nothing is to be done. SELECT * FROM idempotence.health tells what was noted by a clock that was ahead.",
            );
        }
    }

    /// Takes over the list of databases: adds new ones and forgets those that are gone or no longer wanted.
    fn follow(&mut self, found: &[(u32, String)]) {
        let wanted = guc::databases();
        let is_wanted = |name: &String| wanted.as_ref().is_none_or(|wanted| wanted.contains(name));
        self.databases.retain(|oid, _| found.iter().any(|(there, name)| there == oid && is_wanted(name)));
        for (oid, name) in found.iter().filter(|(_, name)| is_wanted(name)) {
            let database = self.databases.entry(*oid).or_default();
            // The database may have been renamed. The naptime may have become shorter, which counts at once.
            database.name.clone_from(name);
            database.due = database.due.min(Some(Instant::now() + database.pause()));
        }
        // The names in the setting that no database has are logged once each.
        for name in wanted.unwrap_or_default() {
            if !found.iter().any(|(_, there)| *there == name) && self.missing.insert(name.clone()) {
                pg::log_line(
                    &format!("idempotence finds no database \"{name}\" to visit"),
                    "The setting idempotence.databases names it. Templates and databases that allow no connections are not visited.",
                    "Correct the setting, or make the database.",
                );
            }
        }
    }

    fn visit(&mut self, oid: u32) {
        let Some(database) = self.databases.get_mut(&oid) else { return };
        if database.left.is_some_and(is_there) {
            // One process at a time is at work in a database.
            database.due = Some(Instant::now() + guc::naptime());
            return;
        }
        board::open().report = Report { database: oid, ended: Ended::Unknown, step: database.step, said: Text::EMPTY };
        let started = BackgroundWorkerBuilder::new("idempotence worker")
            .set_library("idempotence")
            .set_function("idempotence_visit")
            .enable_spi_access()
            .set_argument(Some(pg_sys::Datum::from(oid)))
            // SAFETY: a variable of the process.
            .set_notify_pid(unsafe { pg_sys::MyProcPid })
            .load_dynamic();
        let was_logged = std::mem::replace(&mut self.no_slot_logged, started.is_err());
        let Ok(worker) = started else {
            database.due = Some(Instant::now() + guc::naptime());
            if !was_logged {
                pg::log_line(
                    "idempotence has no slot for a worker",
                    "All of max_worker_processes are taken. Nothing is swept meanwhile.",
                    "Raise max_worker_processes: the launcher takes one, and a visit another.",
                );
            }
            return;
        };
        database.left = wait_for_end(worker);
        let mut report = board::open().report;
        if report.database != oid {
            // It is the report of a visit that an earlier launcher had started.
            report.ended = Ended::Unknown;
        }
        database.take_in(oid, &report);
    }
}

impl Database {
    /// The pause before the next visit, by how the last one ended.
    fn pause(&self) -> Duration {
        match (self.ended, self.failures) {
            (Ended::NotInstalled, _) => guc::naptime() * NAPTIMES_WITHOUT_EXTENSION,
            // The next visit goes on where the last one stopped.
            (Ended::Cut, _) => PAUSE_MIN,
            (_, 0) => guc::naptime(),
            (_, failures) => guc::naptime() * 2u32.saturating_pow(failures).min(BACKOFF_MAX),
        }
        .max(PAUSE_MIN)
    }

    /// Notes how a visit ended, logs what is news, and sets when the next one is due.
    fn take_in(&mut self, oid: u32, report: &Report) {
        self.ended = report.ended;
        // Whether a visit that had too little time has come to the tables of users: all of ours were swept. Users' tables may
        // take all the time there is. So the other steps come first in the next visit too.
        let is_through = report.ended == Ended::Cut && Step::ALL.get(report.step).is_some_and(Step::is_on_journals);
        self.step = if is_through { 0 } else { report.step };
        let failed = match report.ended {
            Ended::Swept | Ended::Delayed | Ended::Cut | Ended::NotInstalled => {
                self.failures = 0;
                if std::mem::take(&mut self.failing) {
                    pg::log_line(&format!("idempotence sweeps database \"{}\" again", self.name), "", "");
                }
                self.tell_delay(&report.said.get());
                None
            }
            Ended::Failed | Ended::OtherVersion => {
                self.failures += 1;
                self.tell_failure(&report.said.get());
                Some(report.said)
            }
            // The database was dropped meanwhile, or the visit was told to stop, or it left its error in the log.
            Ended::Unknown => {
                self.failures += 1;
                if let Some(process) = self.left {
                    self.tell_failure(&format!("process {process} takes no notice of being told to end"));
                }
                Some(Text::of("the visit ended without a report; the server log may tell why"))
            }
        };
        board::note_visit(oid, report.ended == Ended::Swept || is_through, failed);
        self.due = Some(Instant::now() + self.pause());
    }

    fn tell_failure(&mut self, said: &str) {
        // A failure that comes and goes, or takes turns with another one, is logged once in a while only.
        self.failed_with.retain(|(_, at)| at.elapsed() < SAME_FAILURE_AGAIN);
        if !self.failed_with.iter().any(|(known, _)| known == said) {
            self.failed_with.push((said.to_owned(), Instant::now()));
            self.failing = true;
            pg::log_line(
                &format!("idempotence could not sweep database \"{}\": {said}", self.name),
                "It is tried again and again, less and less often; other databases are swept as ever. The same error is logged once an hour.",
                "Was the library replaced? Then ALTER EXTENSION idempotence UPDATE in that database. CALL idem_sweep() there shows the error too.",
            );
        }
    }

    /// Logs a delay that has lasted for some naptimes, and the end of a delay that was logged.
    fn tell_delay(&mut self, said: &str) {
        if said.is_empty() {
            if let Some((_, true)) = self.delayed.take() {
                let ended = format!("idempotence, database \"{}\": nothing delays the sweep any more", self.name);
                pg::log_line(&ended, "", "");
            }
            return;
        }
        let (since, logged) = self.delayed.get_or_insert_with(|| (Instant::now(), false));
        if !*logged && since.elapsed() >= guc::naptime() * NAPTIMES_TO_LOGGED_DELAY {
            *logged = true;
            pg::log_line(
                &format!("idempotence, database \"{}\": {said}", self.name),
                "What has expired or ended takes space until then.",
                "It goes on by itself once what holds it has ended. SELECT * FROM idempotence.health tells how it stands.",
            );
        }
    }
}

/// Waits for the end of a visit. The board says how the visit ended. A visit that takes too long is terminated:
/// it may be waiting for a database that somebody is renaming, moving or copying, and other databases are due. Gives its
/// process if that does not end even then: there are functions that look at no signal while they compute.
fn wait_for_end(worker: DynamicBackgroundWorker) -> Option<i32> {
    let wait = |until: Instant| {
        while let process @ (Ok(_) | Err(BackgroundWorkerStatus::NotYetStarted)) = worker.pid() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || shutdown_requested() {
                return Some(process.ok());
            }
            // The postmaster sets the launcher's latch when the worker starts and when it ends.
            pg::nap(i64::try_from(left.as_micros()).unwrap_or(i64::MAX));
        }
        None
    };
    let Some(process) = wait(Instant::now() + VISIT_MAX)? else {
        let _ = worker.terminate();
        return None;
    };
    // SAFETY: the signal for a request to end, to a process that has not ended yet.
    unsafe { libc::kill(process, libc::SIGTERM) };
    wait(Instant::now() + END_MAX).flatten()
}

/// Whether a process has not ended.
fn is_there(process: i32) -> bool {
    // SAFETY: asks about a process, and sends no signal.
    unsafe { libc::kill(process, 0) == 0 }
}
