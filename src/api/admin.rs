//! The functions behind `idem_sweep` and the views for monitoring, and `idem_accept_restore`.

use super::null::required;
use crate::board;
use crate::error::{Error, legible, or_raise};
use crate::guc;
use crate::pg::{self, Regrole, Timestamptz};
use crate::requests::repair;
use crate::sweep::{self, Step};
use pgrx::prelude::*;

/// Takes a step of `idem_sweep`, or a batch of it. Returns whether the step has more to do; NULL when another
/// sweep is at work. Notices tell what was done.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn sweep_step(step: Option<&str>) -> Option<bool> {
    let name = or_raise(required("step", step));
    let step = Step::ALL.into_iter().find(|step| step.name == name).unwrap_or_else(|| {
        let names = Step::ALL.map(|step| step.name).join(", ");
        Error::Invalid {
            message: format!("there is no step \"{name}\" of the sweep"),
            detail: format!("The steps are {names}."),
            hint: "CALL idem_sweep() takes them all.",
        }
        .raise()
    });
    let swept = or_raise(sweep::take(step))?;
    for line in swept.done.iter().chain(&swept.delayed) {
        notice!("{}", legible(line));
    }
    Some(swept.more)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_accept_restore(reason: Option<&str>) -> bool {
    or_raise(required("reason", reason).and_then(repair::accept_restore))
}

/// Notes in the audit that a role was granted a level; NULL: that its rights were taken away.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn note_grant(role: Option<Regrole>, level: Option<&str>) {
    or_raise(required("role", role).and_then(|role| repair::note_grant(role.0, level)));
}

/// Notes the end of a sweep by hand.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn note_sweep() {
    sweep::note_by_hand(is_visited());
}

/// When this database was last swept, by the worker or by hand; NULL when that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn last_sweep() -> Option<Timestamptz> {
    let by_hand = sweep::by_hand_at(false).max(sweep::by_hand_at(true));
    let visited = board::visits().remove(&pg::current_database().to_u32());
    by_hand.max(visited.and_then(|visited| visited.swept_at)).map(Timestamptz)
}

/// When this database was last swept by hand while no worker came; NULL when that is not known.
#[pg_extern(schema = "idempotence", volatile, parallel_unsafe)]
fn swept_instead() -> Option<Timestamptz> {
    sweep::by_hand_at(false).map(Timestamptz)
}

/// When the server came up. No session counts as silent for longer than since then.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn up_since() -> Timestamptz {
    // In the first moments after the start nothing tells. Then the server has just come up.
    Timestamptz(pg::up_since().unwrap_or_else(pg::now_us))
}

/// The process id of the background worker's launcher; 0 when the launcher does not run, NULL when the library is
/// not preloaded.
#[pg_extern(schema = "idempotence", volatile, parallel_safe)]
fn launcher() -> Option<i32> {
    board::launcher_pid()
}

/// Whether the worker is to visit this database: whether the library is preloaded, and the setting
/// `idempotence.databases` includes the database.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn is_visited() -> bool {
    board::launcher_pid().is_some() && guc::databases().is_none_or(|names| names.contains(&pg::current_database_name()))
}

/// The setting `idempotence.max_sessions_per_role`, also in a backend that has not loaded the library yet.
#[pg_extern(schema = "idempotence", stable, parallel_safe)]
fn max_sessions_per_role() -> i64 {
    guc::max_sessions_per_role()
}
