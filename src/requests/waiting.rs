//! Waiting for another holder of a request. A call that waits is counted once, however often it looks again. A wait that
//! lasts longer than `idempotence.log_waits` is logged while it lasts, with both sides.

use crate::domain::identity::Digest;
use crate::error::Error;
use crate::guc;
use crate::lock::Tag;
use crate::monitor::{Counter, counters, in_flight};
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::request::Request;
use crate::store::lease::{self, Holder};
use crate::wake::Sleeper;

/// Takes the request's lock if nobody has it; gives whether it did.
pub fn take_at_once(request: &Request<'_>, claim: &Tag) -> Result<bool, Error> {
    open::with_room(|| request.name(), || claim.try_acquire())
}

/// The error for a wait for a request's lock that ran out.
pub fn ran_out(what: String, claim: &Tag, hint: &'static str) -> Error {
    match claim.holder_pid().filter(|pid| pg::waits_for_standby(*pid)) {
        Some(pid) => Error::AwaitsStandby { what, pid, hint },
        None => Error::WaitRanOut { what, hint },
    }
}

/// The error for an outcome that a failover may still take back.
pub fn not_durable(what: String, hint: &'static str) -> Error {
    Error::NotDurable { what, on_standby: pg::in_recovery(), hint }
}

/// The waits of a call for other holders of a request, up to a deadline. Their end is counted, also if an error ends them.
pub struct Waiting<'a> {
    request: &'a Request<'a>,
    deadline: Deadline,
    /// Since when the call waits, if it does.
    since: Option<i64>,
    /// When that is to be logged; `None`: it is not going to be.
    log_at: Option<i64>,
    sleeper: Option<Sleeper>,
}

impl<'a> Waiting<'a> {
    /// A call that has not waited yet.
    pub fn until(deadline: Deadline, request: &'a Request<'a>) -> Waiting<'a> {
        Waiting { request, deadline, since: None, log_at: None, sleeper: None }
    }

    /// Takes the request's lock, and waits for it; gives whether it did.
    pub fn take(&mut self, claim: &Tag) -> Result<bool, Error> {
        let request = self.request;
        if take_at_once(request, claim)? {
            return Ok(true);
        }
        if self.deadline.left_us() == Some(0) {
            return Ok(false);
        }
        // What fails around the wait is not for lack of room for a lock.
        let mut failed = None;
        let taken = self.in_two(claim, |us| {
            open::with_room(|| request.name(), || claim.acquire(us)).unwrap_or_else(|error| {
                failed = Some(error);
                true
            })
        });
        failed.map_or(Ok(taken), Err)
    }

    /// Waits until no other transaction has the request's lock, which is not taken; gives whether that came true.
    pub fn wait_for_end(&mut self, claim: &Tag) -> bool {
        self.in_two(claim, |us| claim.wait_for_end_of_holder(us))
    }

    /// Waits for whoever has the lock. If the wait is to be logged before the deadline, it is cut in two for the line. So a
    /// caller loses its place in the queue once, and a deadlock is looked for anew.
    fn in_two(&mut self, claim: &Tag, mut wait_for: impl FnMut(Option<i64>) -> bool) -> bool {
        self.begin();
        let deadline = self.deadline;
        let cut_us = self.log_at.map(|log_at| cut_us((log_at - pg::now_us()).max(0)));
        let Some(cut_us) = cut_us.filter(|cut_us| deadline.left_us().is_none_or(|left_us| left_us > *cut_us)) else {
            return wait_for(deadline.left_us());
        };
        let began = pg::now_us();
        if wait_for(Some(cut_us)) {
            return true;
        }
        self.log(holder(claim));
        pg::waiting_since(began, || wait_for(deadline.left_us()))
    }

    /// Sleeps until the lease under the lock may have changed, at the latest until this moment; gives whether it is worth
    /// looking again. The first time it only prepares to sleep.
    pub fn sleep(&mut self, lock: &Digest, until: i64) -> bool {
        /// Timers are no more exact than this.
        const EARLY_US: i64 = 1_000;
        if self.sleeper.is_none() {
            self.sleeper = Some(Sleeper::of(lock, self.deadline.left_us()));
            return true;
        }
        self.begin();
        if self.log_at.is_some_and(|log_at| log_at <= pg::now_us() + EARLY_US) {
            self.log(lease_in_words(self.request, lock));
        }
        let until = self.log_at.map_or(until, |log_at| until.min(log_at));
        self.sleeper.as_mut().is_none_or(|sleeper| sleeper.sleep(until))
    }

    fn begin(&mut self) {
        if self.since.is_none() {
            // The cell that counts is taken now. At the end, perhaps in an error, counting needs no lock.
            counters::count(&self.request.session(), Counter::Waits);
            let since = pg::now_us();
            self.since = Some(since);
            self.log_at = guc::log_waits_us().map(|after_us| since + after_us);
        }
    }

    fn log(&mut self, holder: String) {
        self.log_at = None;
        let waited_ms = self.since.map_or(0, |since| (pg::now_us() - since) / 1000);
        let (pid, name) = (pg::process_id(), self.request.name());
        pg::log_line(&format!("process {pid} still waits for {name} after {waited_ms} ms"), &holder, "");
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let waited_ms = u64::try_from((pg::now_us() - since) / 1000).unwrap_or(0);
            counters::add(&self.request.session(), Counter::WaitMs, waited_ms);
        }
    }
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
        .find(|held| held.pid == Some(pid) && held.names.is_some() && held.entry.lock == claim.lock_id());
    let since = held.map(|held| format!(" since {}", pg::describe_moment(held.entry.since))).unwrap_or_default();
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
        Some(kept) => kept.row().ok().flatten()?.holder,
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
