//! `idempotence`: a retried request takes effect once and is answered the same way every time.
//!
//! | noun | meaning |
//! |---|---|
//! | request | one operation that must take effect once; named by its session and, within it, by a key or a number |
//! | standing session | an owned series of requests with one policy; it has a name and lasts |
//! | client session | the same, registered by a client; it ends when the client falls silent |
//! | stream | a separate numbering in a client session |
//! | payload, fingerprint | a request's content and its digest, kept to recognise another payload under the same name |
//! | claim | the right to execute a request: an advisory lock that ends with the transaction |
//! | checkpoint | how far a multi-step request got: a point and a state |
//! | outcome | what was recorded: a response, as `succeeded` or as `failed` |
//! | replay | the outcome, handed out instead of executing the request again |
//!
//! The modules, from the top down. A module uses the modules below it and none above it. `make lint` fails if modules
//! use each other in a circle.
//!
//! | module | what it holds |
//! |---|---|
//! | [`api`] | the SQL functions |
//! | [`worker`] | the background worker, which sweeps |
//! | [`sweep`] | the sweep: the upkeep of a database, done now and then |
//! | [`requests`] | what each call on a request does, step by step |
//! | [`transaction`] | the end of a transaction: refuses a commit with unrecorded requests, has other servers commit in two phases, has signs of life given |
//! | [`sessions`] | which session a name means, who may use it, and the life of client sessions |
//! | [`arguments`] | checks of arguments |
//! | [`journal`] | tables of users that keep the requests of a session |
//! | [`names`] | keyed names of requests and locks |
//! | [`open`] | the requests that this transaction has begun |
//! | [`store`] | our tables |
//! | [`lock`] | advisory locks |
//! | [`wake`] | waking those who wait for a lease |
//! | [`monitor`] | shared memory: counters, the requests in flight, the newest errors |
//! | [`board`] | shared memory: what the launcher, workers and backends tell each other |
//! | [`model`] | sessions as plain data |
//! | [`guc`] | settings |
//! | [`pg`] | what we need from PostgreSQL and pgrx does not offer |
//! | [`mod@error`] | every mistake a caller can make |
//! | [`domain`] | the rules, without a server |

use pgrx::prelude::*;

pub mod api;
pub mod arguments;
pub mod board;
pub mod domain;
pub mod error;
pub mod guc;
pub mod journal;
pub mod lock;
pub mod model;
pub mod monitor;
pub mod names;
pub mod open;
pub mod pg;
pub mod requests;
pub mod sessions;
pub mod store;
pub mod sweep;
pub mod transaction;
pub mod wake;
pub mod worker;

pgrx::pg_module_magic!(name, version);

extension_sql_file!("../sql/tables.sql", bootstrap);
extension_sql_file!("../sql/run.sql", name = "run");
extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [retention, up_since, forget_cached, note_restored, stats, errors, held_requests]
);
extension_sql_file!("../sql/sweep.sql", name = "sweep", requires = [sweep_step, note_sweep]);
extension_sql_file!("../sql/holders.sql", name = "holders", requires = ["views"]);
extension_sql_file!("../sql/segments.sql", name = "segments", requires = ["holders"]);
extension_sql_file!(
    "../sql/checks.sql",
    name = "checks",
    requires = [
        "segments",
        naptime,
        max_sessions_per_role,
        launcher,
        is_visited,
        last_sweep,
        unswept,
        setting,
        milliseconds,
        restarts,
        deadlocks,
        clock_jump,
        clock_jump_by,
        lock_table_size,
        free_space,
        digest_fits,
        coordinator,
        idem_node
    ]
);
extension_sql_file!("../sql/health.sql", name = "health", requires = ["checks", setting, look_whether_ready]);
extension_sql_file!("../sql/grants.sql", name = "grants", requires = ["views", "sweep", "health"]);
extension_sql_file!("../sql/comments.sql", name = "comments", finalize);

/// Called when the library is loaded, by the postmaster or by a backend.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::init_memory();
    pg::init_trusted();
    error::init();
    guc::init();
    monitor::init();
    transaction::init();
    store::invalidation::init();
    worker::init();
}
