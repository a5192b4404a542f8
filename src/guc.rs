//! Settings, all under the reserved prefix `idempotence.`.

use crate::domain::databases_setting;
use crate::domain::limits::WINDOW_MAX;
use crate::domain::node;
use crate::pg;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::convert::identity;
use std::ffi::CString;
use std::time::Duration;

/// What becomes of a commit with a begun request that was neither recorded, checkpointed nor released.
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Unrecorded {
    /// The commit is refused (ID008).
    #[name = c"error"]
    Error,
    /// The transaction commits, with a warning.
    #[name = c"warning"]
    Warning,
    /// The transaction commits.
    #[name = c"off"]
    Off,
}

/// Whether commit coordinators are asked for a two-phase commit.
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Coordinate {
    /// If one is loaded that can be asked.
    #[name = c"auto"]
    Auto,
    /// None is asked.
    #[name = c"off"]
    Off,
}

/// Declares the settings that are numbers: the function that gives its value in its own unit, unless only SQL asks for it;
/// name and default, range, context, unit, and both descriptions.
macro_rules! numbers {
    ($($($(#[$doc:meta])+ pub fn $get:ident() -> $type:ty = $convert:expr;)?
       $setting:ident $name:literal = $default:expr, $least:expr => $most:expr, $context:expr, $unit:expr, $short:literal,
       $long:literal;)+) => {
        $(static $setting: GucSetting<i32> = GucSetting::<i32>::new($default);)+
        $($($(#[$doc])+ pub fn $get() -> $type { $convert($setting.get()) })?)+

        fn define_numbers() {
            $(GucRegistry::define_int_guc($name, $short, $long, &$setting, $least, $most, $context, $unit);)+
        }
    };
}

// The size of shared memory is fixed at the start; a library that is not preloaded has none. The view `health` reads its
// thresholds, `warn_…`, by their names.
numbers! {
    /// The ttl of standing sessions that have none of their own, and how long ended client sessions are kept, in
    /// microseconds.
    pub fn retention_us() -> i64 = seconds_in_us;
    RETENTION_S c"idempotence.retention" = 7 * 86_400, 1 => 10 * 365 * 86_400, GucContext::Sighup, GucFlags::UNIT_S,
        c"How long outcomes and checkpoints of sessions without a ttl of their own are kept.",
        c"Counts from the moment of recording, where a change holds for what is recorded from then on. Ended client sessions are kept for as long, too, counted back from now.";
    /// The longest ttl that a session may be made with, in microseconds.
    pub fn max_ttl_us() -> i64 = seconds_in_us;
    MAX_TTL_S c"idempotence.max_ttl" = 3650 * 86_400, 1 => 10 * 365 * 86_400, GucContext::Suset, GucFlags::UNIT_S,
        c"The longest ttl that a session may be made with, or be given.",
        c"A longer one is refused (ID009). Sessions that have one keep it, and those without a ttl follow idempotence.retention.";
    /// How long to wait for another transaction; `None` is for ever.
    pub fn wait_us() -> Option<i64> = ms_in_us;
    WAIT_MS c"idempotence.wait" = 5_000, -1 => i32::MAX, GucContext::Userset, GucFlags::UNIT_MS,
        c"How long to wait for another transaction that holds the request.",
        c"0 does not wait, -1 waits for ever. The argument \"wait\" of a call overrides it; a shorter lock_timeout wins.";
    /// The largest response or checkpoint state, in bytes of jsonb.
    pub fn max_response_bytes() -> usize = count;
    MAX_RESPONSE_BYTES c"idempotence.max_response" = 1 << 20, 64 => 256 << 20, GucContext::Suset, GucFlags::UNIT_BYTE,
        c"The largest response or checkpoint state that is kept.",
        c"Measured as jsonb, before compression.";
    /// The largest payload, in bytes of jsonb.
    pub fn max_payload_bytes() -> usize = count;
    MAX_PAYLOAD_BYTES c"idempotence.max_payload" = 1 << 20, 64 => 256 << 20, GucContext::Suset, GucFlags::UNIT_BYTE,
        c"The largest payload that is compared.",
        c"Measured as jsonb, before compression. Only a fingerprint of it is kept.";
    /// The most keys, identifiers or numbers in one call.
    pub fn max_batch() -> usize = count;
    MAX_BATCH c"idempotence.max_batch" = 10_000, 1 => 1_000_000, GucContext::Suset, GucFlags::empty(),
        c"The most keys, identifiers or numbers in one call.",
        c"Bounds idem_once_many, idem_generate_ids and idem_allocate.";
    /// The timeout of client sessions that are registered without one, in microseconds.
    pub fn session_timeout_us() -> i64 = seconds_in_us;
    SESSION_TIMEOUT_S c"idempotence.session_timeout" = 300, 2 => 7 * 86_400, GucContext::Userset, GucFlags::UNIT_S,
        c"How long a client session outlasts the silence of its client, where it was registered without a timeout.",
        c"Fixed for a session when it is registered.";
    /// The window of client sessions that are registered without one.
    pub fn window_size() -> i32 = identity;
    WINDOW_SIZE c"idempotence.window_size" = 5, 1 => WINDOW_MAX, GucContext::Userset, GucFlags::empty(),
        c"How many replies of each stream a client session keeps, where it was registered without a window_size.",
        c"Also how many requests of a stream can be in flight at once. Fixed for a session when it is registered.";
    /// The most client sessions that a role may have at work, and the most that are known for their end only.
    pub fn max_sessions_per_role() -> i64 = i64::from;
    MAX_SESSIONS_PER_ROLE c"idempotence.max_sessions_per_role" = 100_000, 1 => i32::MAX, GucContext::Suset, GucFlags::empty(),
        c"The most client sessions that a role may have at work, and the most that are known for their end only.",
        c"Registering one more is refused (ID009); none is ended for it. Registrations at the same moment may pass it by their number.";
    /// The most standing sessions that a role may have, dropped ones included.
    pub fn max_standing_sessions_per_role() -> i64 = i64::from;
    MAX_STANDING_SESSIONS_PER_ROLE c"idempotence.max_standing_sessions_per_role" = 100_000, 1 => i32::MAX, GucContext::Suset, GucFlags::empty(),
        c"The most standing sessions that a role may have, dropped ones included.",
        c"Making one more, or taking one over, is refused (ID009). Calls at the same moment may pass it by their number.";
    /// The most leases that a role may have, those that ran out included.
    pub fn max_leases_per_role() -> i64 = i64::from;
    MAX_LEASES_PER_ROLE c"idempotence.max_leases_per_role" = 100_000, 1 => i32::MAX, GucContext::Suset, GucFlags::empty(),
        c"The most leases that a role may have, those that ran out included.",
        c"Beginning one more request with a lease is refused (ID009). Begins at the same moment may pass it by their number.";
    /// The most named streams that a client session may have.
    pub fn max_streams() -> usize = count;
    MAX_STREAMS c"idempotence.max_streams" = 1_000, 1 => 1_000_000, GucContext::Suset, GucFlags::empty(),
        c"The most named streams that a client session may have.",
        c"One more is refused (ID009). Streams that come at the same moment may pass it by their number.";
    /// The most places of the server's lock table that one transaction may take for its requests.
    pub fn max_locks() -> usize = share_of_lock_table;
    MAX_LOCK_SHARE c"idempotence.max_lock_share" = 25, 1 => 100, GucContext::Suset, GucFlags::empty(),
        c"The share of the server's lock table that one transaction may take for its requests, in percent.",
        c"A begin of one more is refused (ID009). The lock table is shared by all transactions of the server, and new connections need a place, too.";
    /// The pause between two visits of a database by the background worker.
    pub fn naptime() -> Duration = seconds;
    NAPTIME_S c"idempotence.naptime" = 10, 1 => 86_400, GucContext::Sighup, GucFlags::UNIT_S,
        c"The pause between two visits of a database by the background worker.",
        c"A database without the extension is visited thirty times as rarely.";
    /// The most rows that one transaction of the sweep ends or deletes.
    pub fn sweep_batch() -> usize = count;
    SWEEP_BATCH c"idempotence.sweep_batch" = 1_000, 1 => 100_000, GucContext::Sighup, GucFlags::empty(),
        c"The most rows that one transaction of the sweep ends or deletes.",
        c"Smaller ones hold their locks for a shorter time; greater ones do the work with fewer commits.";
    /// The most lines of counters.
    pub fn max_stats() -> usize = count;
    MAX_STATS c"idempotence.max_stats" = 1_000, 16 => 1_000_000, at_start(), GucFlags::empty(),
        c"The most lines of the view stats: standing sessions, and roles with client sessions, of all databases together.",
        c"Where there are more, those that were used longest ago give way. Takes 200 bytes a line, and a restart.";
    /// The room that each backend has for the names of its requests in flight, in bytes.
    pub fn track_in_flight_bytes() -> usize = count;
    TRACK_IN_FLIGHT_BYTES c"idempotence.track_in_flight" = 4 << 10, 0 => 64 << 10, at_start(), GucFlags::UNIT_BYTE,
        c"The room that each backend has for the names of its requests in flight; 0 shows none.",
        c"A request takes 40 bytes and its names. Takes this for each backend and prepared transaction, and a restart.";
    /// The number of errors that are kept.
    pub fn max_errors() -> usize = count;
    MAX_ERRORS c"idempotence.max_errors" = 1_000, 0 => 100_000, at_start(), GucFlags::empty(),
        c"The number of errors that the view errors shows, of all databases together.",
        c"Takes 880 bytes an error, and a restart.";
    /// After how long a wait for another holder is logged; `None` is never.
    pub fn log_waits_us() -> Option<i64> = ms_in_us;
    LOG_WAITS_MS c"idempotence.log_waits" = 1_000, -1 => i32::MAX, GucContext::Suset, GucFlags::UNIT_MS,
        c"After how long a wait for another holder of a request is logged, with both sides.",
        c"-1 logs none.";
    WARN_HOLDER_S c"idempotence.warn_holder" = 300, 1 => 10 * 365 * 86_400, GucContext::Sighup, GucFlags::UNIT_S,
        c"From when on health warns of a transaction that holds requests, and of a wait for one.",
        c"Counts from the beginning of the transaction, from its PREPARE TRANSACTION, or from the beginning of the wait.";
    WARN_WAITERS c"idempotence.warn_waiters" = 10, 0 => i32::MAX, GucContext::Sighup, GucFlags::empty(),
        c"The most transactions that may wait for one request before health warns.",
        c"Those that wait for the end of a lease do not count.";
    WARN_SUSPENDED_S c"idempotence.warn_suspended" = 86_400, 1 => 10 * 365 * 86_400, GucContext::Sighup, GucFlags::UNIT_S,
        c"From when on health warns of a request that stopped at a checkpoint.",
        c"Counts from the moment at which the checkpoint was written.";
    WARN_STANDING_SESSIONS c"idempotence.warn_standing_sessions" = 1_000, 0 => i32::MAX, GucContext::Sighup, GucFlags::empty(),
        c"The most standing sessions that a role may have before health warns.",
        c"Dropped ones count. A session is a series of requests: whoever makes one for each request has misunderstood it.";
}

/// Declares the settings that are one of a few words: the function that gives its value; name and default, how it is
/// defined, and both descriptions.
macro_rules! words {
    ($($(#[$doc:meta])+ pub fn $get:ident() -> $type:ty;
       $setting:ident $name:literal = $default:expr, $define:ident, $short:literal, $long:literal;)+) => {
        $(static $setting: GucSetting<$type> = GucSetting::<$type>::new($default);)+
        $($(#[$doc])+ pub fn $get() -> $type { $setting.get() })+

        fn define_words() {
            $(GucRegistry::$define($name, $short, $long, &$setting, GucContext::Suset, GucFlags::default());)+
        }
    };
}

words! {
    /// What becomes of a commit with an unrecorded request.
    pub fn unrecorded() -> Unrecorded;
    UNRECORDED c"idempotence.unrecorded" = Unrecorded::Error, define_enum_guc,
        c"What becomes of a commit with a begun request that was neither recorded, checkpointed nor released.",
        c"error refuses it (ID008), warning lets it pass with a warning, off lets it pass.";
    /// Whether commit coordinators are asked for a two-phase commit.
    pub fn coordinate() -> Coordinate;
    COORDINATE c"idempotence.coordinate" = Coordinate::Auto, define_enum_guc,
        c"Whether a commit coordinator such as Citus is asked for a two-phase commit of what it does on other servers.",
        c"auto asks in each transaction that writes outcomes, checkpoints, leases or client sessions; off never asks, and a crash may then leave an effect there without its outcome.";
    /// Whether lines of the log name the request that is open.
    pub fn log_context() -> bool;
    LOG_CONTEXT c"idempotence.log_context" = true, define_bool_guc,
        c"Whether lines of the server's log name the request that is open, in their CONTEXT.",
        c"The client gets the same CONTEXT with a message that is both logged and sent to it.";
    /// Whether the log tells at the commit what became of each request.
    pub fn log_requests() -> bool;
    LOG_REQUESTS c"idempotence.log_requests" = false, define_bool_guc,
        c"Whether the server's log tells at the commit what became of each request.",
        c"A line for each request that was recorded, replayed or released. The lines have the names of sessions and requests.";
}

fn count(number: i32) -> usize {
    number.unsigned_abs() as usize
}

fn seconds(number: i32) -> Duration {
    Duration::from_secs(number.unsigned_abs().into())
}

fn seconds_in_us(number: i32) -> i64 {
    i64::from(number) * 1_000_000
}

/// -1 is none.
fn ms_in_us(number: i32) -> Option<i64> {
    u32::try_from(number).ok().map(|ms| i64::from(ms) * 1_000)
}

fn share_of_lock_table(percent: i32) -> usize {
    pg::lock_table_size() * count(percent) / 100
}

static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"*"));
static NODE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

/// The databases that the background worker visits; `None`: all.
pub fn databases() -> Option<Vec<String>> {
    databases_setting::names(&DATABASES.get().map(|names| names.to_string_lossy().into_owned()).unwrap_or_default())
}

/// The name of this server, which tells it from others: as it is set, or made from the system's identifier.
pub fn node() -> String {
    let set = NODE.get().map(|name| name.to_string_lossy().into_owned()).filter(|name| !name.is_empty());
    set.unwrap_or_else(|| node::of_system(pg::system_identifier()))
}

/// Defines the settings.
pub fn init() {
    define_numbers();
    define_words();
    GucRegistry::define_string_guc(
        c"idempotence.databases",
        c"The databases that the background worker visits.",
        c"Their names, with commas between them; a name that has a comma or a quote in it, or blanks at an end, goes in double quotes. * is all of them.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    // An export relies on it that a session that is bound elsewhere is so for every process of this server. A process
    // takes a reload in only between two statements, and not at all inside a procedure. This setting comes last, since the
    // configuration may be read anew for it.
    pg::define_node_guc(
        [
            c"idempotence.node",
            c"The name of this server, which tells it from others; empty: a name made from the system's identifier.",
            c"1 to 32 characters: letters of ASCII, digits, _, . and -. Client sessions carry the name of the server where they were registered, and standing sessions may be bound to it.",
        ],
        &NODE,
        at_start(),
    );
    pg::reserve_guc_prefix(c"idempotence");
}

/// The context of a setting that is fixed at the server's start. PostgreSQL does not let a library that is not preloaded
/// define such settings.
fn at_start() -> GucContext {
    if pg::is_preloading() { GucContext::Postmaster } else { GucContext::Sighup }
}
