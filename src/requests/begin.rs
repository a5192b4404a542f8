//! Begin, which checks and sets: the caller gets either the claim or the answer.
//!
//! Begin tries for the request's lock. With the lock it looks at all that is kept and decides. Without it, it looks for
//! a committed outcome, which it may replay at once; if there is none it waits for the lock, looks again and decides. A
//! request that starts goes on the open list and keeps the lock. Any other answer gives the lock back. A lease of
//! another holder is waited for without the lock.
//!
//! Where the last begin of this backend was a replay, the next one may well be a replay too, as when a batch is sent
//! again. Such a begin looks for a committed outcome first, and takes the lock only if there is none.

use crate::arguments::WAIT_BY_ARGUMENT;
use crate::domain::decision::Decision;
use crate::error::Error;
use crate::guc;
use crate::journal::row::{InJournal, slack_us};
use crate::lock::Tag;
use crate::monitor::{Counter, counters};
use crate::open;
use crate::pg::{self, Deadline, Durability, Jsonb};
use crate::requests::answer::Begun;
use crate::requests::decide::{Aim, Asked, Decided};
use crate::requests::find::{KeptRequest, Seeker};
use crate::requests::keeping;
use crate::requests::request::{self, Request};
use crate::requests::start;
use crate::requests::waiting::{self, Waiting};
use crate::sessions::{liveness, resolve};
use crate::transaction::told;
use pgrx::PgSqlErrorCode;
use std::cell::Cell;

thread_local! {
    /// Whether the last begin of this backend was a replay.
    static LAST_REPLAYED: Cell<bool> = const { Cell::new(false) };
}

/// Begins a request. `wait_us` is the result of [`crate::arguments::wait_us`].
pub fn begin(request: &Request<'_>, payload: Option<Jsonb>, wait_us: Option<i64>, aim: Aim) -> Result<Begun, Error> {
    request.check_not_inbox()?;
    // Expiry is judged at this moment, before any wait. A caller that came in time gets the answer, however long it
    // waits.
    let asked_at = pg::now_us();
    if let Request::Keyed(keyed) = request {
        keyed.check_time(asked_at)?;
    }
    let fingerprint = if aim == Aim::Settle { None } else { request::fingerprint(request, payload)? };
    if open::holds(request.request_key()) {
        let hint = match aim {
            Aim::Execute { .. } => {
                "Call idem_begin() once: (idem_begin(...)).* calls it once per column; write SELECT * FROM idem_begin(...)."
            }
            Aim::Claim => "Claim it once.",
            Aim::Settle => "Record or release it: what this transaction does of it is not lost.",
        };
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let deadline = Deadline::after(wait_us);
    let call = Asked { request, lock: request.lock(), asked_at, fingerprint, aim, deadline };
    let begun = if pg::read_only() {
        call.replay_only()?
    } else if LAST_REPLAYED.get()
        && let Attempt::Answered(replay) = call.attempt_without_lock(Seeker::Passer)?
    {
        replay
    } else {
        open::reserve()?;
        call.claim_or_answer()?
    };
    LAST_REPLAYED.set(matches!(begun, Begun::Replay(_)));
    let durability = if aim == Aim::Settle { Durability::Flushed } else { Durability::OfCaller };
    let begun = match begun {
        // The caller may rely on the outcome as if it had committed it itself. This wait holds no lock.
        Begun::Replay(outcome) if !pg::wait_until_durable(outcome.writer, durability, asked_at, || deadline) => {
            Begun::NotDurable
        }
        begun => begun,
    };
    call.note(&begun);
    debug_assert!(
        !matches!(begun, Begun::Started(_)) || open::holds(request.request_key()),
        "a started request is on the open list"
    );
    Ok(begun)
}

/// How often a row may be gone that was there a moment before. More often, something keeps it from being written.
const VANISHED_MAX: usize = 10;

/// The result of one attempt to answer.
enum Attempt {
    /// This is the answer.
    Answered(Begun),
    /// Nothing is certain without the lock. An attempt with the lock never ends like this.
    NoAnswer,
    /// Another transaction has the client session alone, to end it or to hand it over.
    SessionTaken,
    /// Another holder has a lease until this moment.
    Leased(i64),
    /// The row of the request was there, and was deleted meanwhile.
    Vanished,
}

impl Attempt {
    /// The wait for whoever has the claim ran out.
    const RAN_OUT: Attempt = Attempt::Answered(Begun::InProgress(None));

    /// Whether the claim stays with this transaction.
    fn keeps_claim(&self) -> bool {
        matches!(self, Attempt::Answered(Begun::Started(_) | Begun::GivenUp(_)))
    }
}

impl Asked<'_> {
    /// Refuses the request if its transaction holds as many locks already as one may take of the server's lock table.
    fn check_room(&self) -> Result<(), Error> {
        let (held, most) = (open::locks(), guc::max_locks());
        if held < most || Tag::request(&self.lock).is_held_by_us() {
            return Ok(());
        }
        Err(Error::LimitExceeded {
            what: format!("the number of requests begun in one transaction, with {},", self.request.name()),
            found: (held + 1).to_string(),
            limit: format!("{most}, as idempotence.max_lock_share says"),
            hint: "Begin them in several transactions, or have max_locks_per_transaction raised, which takes a restart. An inbox takes no lock for each request.",
        })
    }

    fn claim_or_answer(&self) -> Result<Begun, Error> {
        let (mut waiting, mut vanished) = (Waiting::until(self.deadline, self.request), 0);
        let kept = self.request.in_journal();
        if kept.is_none() {
            self.check_room()?;
        }
        loop {
            let attempt = match kept {
                None => self.attempt_under_lock(&mut waiting)?,
                Some(kept) => self.attempt_in_journal(kept, &mut vanished)?,
            };
            match attempt {
                Attempt::Answered(begun) => return Ok(begun),
                Attempt::Leased(until) if !self.sleep(&mut waiting, until) => {
                    return Ok(Begun::InProgress(Some(until)));
                }
                Attempt::Leased(_) | Attempt::Vanished => {}
                Attempt::NoAnswer | Attempt::SessionTaken if self.wait_while_taken() => {}
                Attempt::NoAnswer | Attempt::SessionTaken => return Ok(Begun::InProgress(None)),
            }
        }
    }

    /// Answers with the request's lock, or with a committed outcome: that stands, whoever has the lock.
    fn attempt_under_lock(&self, waiting: &mut Waiting<'_>) -> Result<Attempt, Error> {
        let claim = Tag::request(&self.lock);
        let mut claimed = waiting::take_at_once(self.request, &claim)?;
        let mut attempt =
            if claimed { self.attempt_with_lock()? } else { self.attempt_without_lock(Seeker::Beginner)? };
        if let Attempt::NoAnswer = attempt {
            if !waiting.take(&claim)? {
                return Ok(Attempt::RAN_OUT);
            }
            claimed = true;
            attempt = self.attempt_with_lock()?;
        }
        if claimed && !attempt.keeps_claim() {
            // A replay leaves no lock. And whoever has the session alone, or a lease, may want this very request, so the
            // request's lock is given back before the wait.
            claim.release();
        }
        Ok(attempt)
    }

    /// As [`Asked::attempt_under_lock`], in a journal, whose unique index arbitrates. Whoever inserts the request's row has
    /// the claim. Whoever finds one there looks for an outcome, and locks the row if there is none.
    fn attempt_in_journal(&self, kept: &InJournal<'_>, vanished: &mut usize) -> Result<Attempt, Error> {
        let Request::Keyed(keyed) = self.request else { unreachable!("only keyed requests are in a journal") };
        let ttl_us = keyed.session.ttl_us();
        let expires_at = keyed.expires_at_us(pg::now_us(), ttl_us).saturating_add(slack_us(ttl_us));
        match self.insert_claim(kept, expires_at)? {
            None => return Ok(Attempt::RAN_OUT),
            Some(true) => return self.attempt_with_lock(),
            Some(false) => {}
        }
        if let answered @ Attempt::Answered(_) = self.attempt_without_lock(Seeker::Beginner)? {
            return Ok(answered);
        }
        let attempt = || if kept.lock()? { self.attempt_with_lock() } else { Ok(Attempt::Vanished) };
        let attempt = self.tentatively(attempt, Attempt::keeps_claim)?.unwrap_or(Attempt::RAN_OUT);
        *vanished += usize::from(matches!(attempt, Attempt::Vanished));
        if *vanished > VANISHED_MAX { Err(kept.not_written()) } else { Ok(attempt) }
    }

    /// Inserts the request's row, and gives whether it is new; `None`: the wait for others at work on it ran out. Where
    /// that is an error in any case, no subtransaction is needed.
    fn insert_claim(&self, kept: &InJournal<'_>, expires_at: i64) -> Result<Option<bool>, Error> {
        if self.aim != Aim::Claim {
            return self.tentatively(|| Ok(kept.claim(expires_at)), |_| true);
        }
        let ran_out = || Error::WaitRanOut { what: self.request.name().to_string(), hint: WAIT_BY_ARGUMENT };
        let claim = || kept.claim(expires_at);
        Ok(Some(self.naming(|| pg::in_time_or_error(self.deadline.left_us(), claim, ran_out))))
    }

    /// Runs `work`, which waits for others at work on the request's row. If the wait runs out (`None`), or `keep` does not
    /// want what comes, all is taken back.
    fn tentatively<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
        keep: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Error> {
        let keep = |done: &Result<T, Error>| done.as_ref().is_ok_and(keep);
        self.naming(|| pg::tentatively(self.deadline.left_us(), work, keep)).transpose()
    }

    /// Runs `work`. If it meets a row that the transaction's snapshot does not see, the error names the request. Other
    /// failures to serialize have a DETAIL, which tells the reason.
    fn naming<T>(&self, work: impl FnOnce() -> T) -> T {
        pg::replacing_error(PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE, work, |error| {
            error.detail().is_none().then(|| Error::Unserializable(self.request.name()))
        })
    }

    /// Waits for a change of the lease; whether it is worth looking again. A transaction that keeps its snapshot does
    /// not wait, since it could not rely on what comes.
    fn sleep(&self, waiting: &mut Waiting<'_>, until: i64) -> bool {
        !pg::keeps_snapshot() && self.deadline.left_us() != Some(0) && waiting.sleep(&self.lock, until)
    }

    /// Replays a committed outcome, if there is one. If there is none, nothing follows from that: whoever has the lock
    /// may just be recording it.
    fn attempt_without_lock(&self, seeker: Seeker) -> Result<Attempt, Error> {
        match self.find_and_decide(seeker, false) {
            Ok(Some(Decided {
                decision: Decision::Replay, kept: KeptRequest { outcome: Some(outcome), .. }, ..
            })) => Ok(Attempt::Answered(Begun::Replay(outcome))),
            Ok(None) => Ok(Attempt::SessionTaken),
            // Without the lock none of these is certain.
            Ok(_) | Err(Error::KeyTooOld { .. } | Error::OutOfSequence { .. }) => Ok(Attempt::NoAnswer),
            Err(error) => Err(error),
        }
    }

    /// Replays or refuses: a standby and a read-only transaction cannot execute the request.
    fn replay_only(&self) -> Result<Begun, Error> {
        loop {
            match self.find_and_decide(Seeker::Beginner, false) {
                Ok(Some(Decided {
                    decision: Decision::Replay,
                    kept: KeptRequest { outcome: Some(outcome), .. },
                    ..
                })) => {
                    return Ok(Begun::Replay(outcome));
                }
                Ok(None) if self.wait_while_taken() => continue,
                Ok(None) => return Ok(Begun::InProgress(None)),
                // On a standby the requests that must come before it may still be on their way.
                Err(Error::OutOfSequence { .. }) if pg::in_recovery() => break,
                Err(error) => return Err(error),
                Ok(Some(_)) => break,
            }
        }
        let due = if self.aim == Aim::Settle {
            "its settling would have to be recorded"
        } else {
            "it would have to be executed"
        };
        let detail = format!("No outcome of {} is kept here, so {due}.", self.request.name());
        Err(Error::ReadOnly { function: self.aim.function(), detail })
    }

    /// Replays, or starts the request. The caller has the request's lock, so what is kept of the request does not change
    /// meanwhile.
    fn attempt_with_lock(&self) -> Result<Attempt, Error> {
        debug_assert!(
            keeping::holds_claim(self.request, &self.lock),
            "only the holder of the claim decides to execute"
        );
        // Settling goes on after some errors, and of one an answer is made. None leaves the lock.
        self.decide_and_start().inspect_err(|_| keeping::release_claim(self.request, &self.lock))
    }

    fn decide_and_start(&self) -> Result<Attempt, Error> {
        let Some(found) = self.find_and_decide(Seeker::LockHolder, true)? else { return Ok(Attempt::SessionTaken) };
        Ok(match (found.decision, found.kept.outcome, &found.lease) {
            (Decision::Replay, Some(outcome), _) => Attempt::Answered(Begun::Replay(outcome)),
            (Decision::Leased, _, Some(lease)) => Attempt::Leased(lease.lease.until),
            (_, outcome, _) => {
                if let Request::Keyed(keyed) = self.request {
                    // The session may have been closed while this call was on its way to the claim.
                    resolve::check_still_open(&keyed.session)?;
                }
                let kept = KeptRequest { outcome, ..found.kept };
                match start::start(self, Decided { kept, ..found })? {
                    Some(begun) => Attempt::Answered(begun),
                    None => Attempt::SessionTaken,
                }
            }
        })
    }

    /// Counts the answer, and remembers one other than `started`, for the error if the program records the request all the
    /// same.
    fn note(&self, begun: &Begun) {
        let which = (self.lock, self.request.number());
        let counter = match begun {
            Begun::Started(start) => {
                open::forget_answers(which);
                match self.aim {
                    // The record that follows counts.
                    Aim::Settle => return,
                    // A claim raises an error for this.
                    Aim::Claim if !start.is_the_beginning() => return,
                    _ if start.taken_over => Counter::TakenOver,
                    _ => Counter::Started,
                }
            }
            Begun::Replay(outcome) => {
                open::note_answer(which, Some(outcome.class));
                told::at_commit(|| format!("{}: {}, replayed", self.request.name(), outcome.class.status()));
                Counter::Replayed
            }
            Begun::GivenUp(outcome) => {
                open::note_answer(which, Some(outcome.class));
                if self.aim == Aim::Claim {
                    return;
                }
                Counter::Failed
            }
            Begun::InProgress(_) | Begun::NotDurable => {
                open::note_answer(which, None);
                Counter::InProgress
            }
        };
        counters::count(&self.request.session(), counter);
    }

    /// Waits while another transaction has the client session alone; whether it is worth trying again.
    fn wait_while_taken(&self) -> bool {
        self.request.numbered().is_none_or(|request| liveness::wait_while_taken(&request.session, self.deadline))
    }
}
