//! Waiting for another holder of a request. A call that waits is counted once, however often it looks again. A wait that
//! lasts longer than `idempotence.log_waits` is logged while it lasts, with both sides.

use crate::domain::identity::Digest;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::model::Session;
use crate::monitor::{Counter, counters, in_flight};
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::request::Request;
use crate::store::lease::{self, Holder};
use crate::wake::Sleeper;

/// The wait of a call. Its end is counted, also if an error ends it.
pub struct Wait {
    session: Session,
    since: i64,
    /// When it is to be logged; `None`: it is not going to be.
    log_at: Option<i64>,
}

impl Wait {
    /// Begins to wait.
    pub fn of(session: Session) -> Wait {
        // The cell that counts is taken now. At the end, perhaps in an error, counting needs no lock.
        counters::count(&session, Counter::Waits);
        let since = pg::now_us();
        Wait { session, since, log_at: guc::log_waits_us().map(|after_us| since + after_us) }
    }

    fn log(&mut self, request: &Request<'_>, holder: String) {
        self.log_at = None;
        let (pid, waited_ms) = (pg::process_id(), (pg::now_us() - self.since) / 1000);
        pg::log_line(format!("process {pid} still waits for {} after {waited_ms} ms", request.name()), holder);
    }

    /// How long the wait may go on before it is time to log it; `None`: it is not going to be.
    fn unlogged_us(&self) -> Option<i64> {
        self.log_at.map(|log_at| (log_at - pg::now_us()).max(0))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let waited_ms = u64::try_from((pg::now_us() - self.since) / 1000).unwrap_or(0);
        counters::add(&self.session, Counter::WaitMs, waited_ms);
    }
}

/// Takes the request's lock if nobody has it; gives whether it did.
pub fn take_at_once(request: &Request<'_>, claim: &Tag) -> Result<bool, Error> {
    open::with_room(|| request.name(), || claim.try_acquire())
}

/// Takes the request's lock, and waits for it up to the deadline; gives whether it did.
pub fn take(request: &Request<'_>, claim: &Tag, deadline: Deadline, wait: &mut Option<Wait>) -> Result<bool, Error> {
    if take_at_once(request, claim)? {
        return Ok(true);
    }
    if deadline.left_us() == Some(0) {
        return Ok(false);
    }
    open::with_room(|| request.name(), || in_two(request, claim, deadline, wait, |us| claim.acquire(us)))
}

/// Waits up to the deadline until no other transaction has the request's lock, which is not taken; gives whether that came
/// true.
pub fn wait_for_end(request: &Request<'_>, claim: &Tag, deadline: Deadline, wait: &mut Option<Wait>) -> bool {
    in_two(request, claim, deadline, wait, |us| claim.wait_for_end_of_holder(us))
}

/// Waits up to the deadline for whoever has the lock. If the wait is to be logged before that, it is cut in two for the line. So
/// a caller loses its place in the queue once, and a deadlock is looked for anew.
fn in_two(
    request: &Request<'_>,
    claim: &Tag,
    deadline: Deadline,
    wait: &mut Option<Wait>,
    wait_for: impl Fn(Option<i64>) -> bool,
) -> bool {
    let wait = wait.get_or_insert_with(|| Wait::of(request.session()));
    let cut_us = wait.unlogged_us().map(cut_us);
    let Some(cut_us) = cut_us.filter(|cut_us| deadline.left_us().is_none_or(|left_us| left_us > *cut_us)) else {
        return wait_for(deadline.left_us());
    };
    let began = pg::now_us();
    if wait_for(Some(cut_us)) {
        return true;
    }
    wait.log(request, holder(claim));
    pg::waiting_since(began, || wait_for(deadline.left_us()))
}

/// The error for a wait for a request's lock that ran out.
pub fn ran_out(what: String, claim: &Tag, hint: &'static str) -> Error {
    match claim.holder_pid().filter(|pid| pg::waits_for_standby(*pid)) {
        Some(pid) => Error::AwaitsStandby { what, pid: Some(pid), hint },
        None => Error::WaitRanOut { what, hint },
    }
}

/// Sleeps until the lease under the lock may have changed, at the latest until this moment; gives whether it is worth
/// looking again. The first time it only prepares to sleep.
pub fn sleep(
    sleeper: &mut Option<Sleeper>,
    request: &Request<'_>,
    lock: &Digest,
    until: i64,
    deadline: Deadline,
    wait: &mut Option<Wait>,
) -> bool {
    /// Timers are no more exact than this.
    const EARLY_US: i64 = 1_000;
    let Some(sleeper) = sleeper else {
        *sleeper = Some(Sleeper::of(lock, deadline.left_us()));
        return true;
    };
    let wait = wait.get_or_insert_with(|| Wait::of(request.session()));
    match wait.unlogged_us() {
        Some(us) if us > EARLY_US => return sleeper.sleep(until.min(pg::now_us().saturating_add(us))),
        Some(_) => wait.log(request, lease_in_words(request, lock)),
        None => {}
    }
    sleeper.sleep(until)
}

/// Where a wait for a lock is cut that is to be logged after this time. PostgreSQL looks for a deadlock once a wait has
/// lasted `deadlock_timeout`. A cut shortly before that would put the look off by as much again, and both settings have the
/// same default. So such a cut comes shortly after.
fn cut_us(unlogged_us: i64) -> i64 {
    const AFTER_US: i64 = 10_000;
    let looked_us = pg::deadlock_timeout_us();
    if (looked_us / 2..looked_us + AFTER_US).contains(&unlogged_us) { looked_us + AFTER_US } else { unlogged_us }
}

/// Who holds the lock, in words.
fn holder(claim: &Tag) -> String {
    let Some(pid) = claim.holder_pid() else { return "A prepared transaction has it, or nobody any more.".into() };
    let backend = pg::backends().into_iter().find(|backend| backend.pid == pid);
    let (application, role) = match &backend {
        Some(backend) => (backend.application.as_str(), pg::role_name(backend.role).unwrap_or_default()),
        None => ("", String::new()),
    };
    let held = in_flight::read()
        .into_iter()
        .find(|held| held.pid == Some(pid) && held.named.as_ref().is_some_and(|named| named.lock == claim.lock_id()));
    let since = held.map(|held| format!(" since {}", pg::describe_moment(held.since))).unwrap_or_default();
    let written = if pg::waits_for_standby(pid) {
        " It has written its commit, and waits for a synchronous standby: to end it undoes nothing."
    } else {
        ""
    };
    format!("Process {pid} (role \"{role}\", application \"{application}\") has it{since}.{written}")
}

/// Who has, or had, the lease that is kept under the lock of a request.
pub fn holder_of_lease(request: &Request<'_>, claim: &Digest) -> Option<Holder> {
    match request.in_journal() {
        None => lease::holder(request.stream(), claim),
        Some(kept) => {
            let (role, application, until) = kept.row().ok().flatten()?.holder()?;
            Some(Holder { role, application, until })
        }
    }
}

/// Who has the lease of a request, in words.
pub fn lease_in_words(request: &Request<'_>, claim: &Digest) -> String {
    let Some(Holder { role, application, until }) = holder_of_lease(request, claim) else {
        return "Nobody has a lease of it any more.".into();
    };
    let until = pg::describe_moment(until);
    format!("Role \"{role}\" (application \"{application}\") has a lease until {until}.")
}
