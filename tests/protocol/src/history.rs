//! What has happened so far, as far as a promise needs it, and which promises were broken. Nothing of this is known to
//! the database or to a worker, and no step depends on it.

use crate::domain::class::Class;
use crate::kept::{Call, Change, Did, End, LeaseChange, Outcome, Stored, number};

/// The promises that a commit can break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Broken {
    /// An outcome came beside one that lives, or after one.
    pub outcome_changed: bool,
    /// A request was recorded twice.
    pub recorded_twice: bool,
    /// A claim completed something that had no right to.
    pub stale_completed: bool,
    /// Cancelled and done, in whichever order.
    pub cancelled_and_done: bool,
    /// A number was recorded that was given up.
    pub given_up_recorded: bool,
    /// A lease was taken away before its end.
    pub early: bool,
    /// A begin did not say that an effect may have happened.
    pub unsaid: bool,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct History {
    /// The newest outcome of each request that anybody could see.
    pub seen: [Option<Outcome>; 2],
    /// Whether the effect of each request may have happened, and nobody has said what became of it.
    pub open_effect: [bool; 2],
    /// What was broken.
    pub broken: Broken,
}

/// Whether an outcome says that the request was done.
fn is_done(outcome: &Outcome) -> bool {
    outcome.class != Class::Cancelled.letter()
}

impl History {
    /// Notes a commit. `before` is what was stored before it; `stale` is whether the worker had no right to its claim.
    pub fn note_commit(&mut self, before: &Stored, change: &Change, stale: bool, now_us: i64) {
        let broken = &mut self.broken;
        broken.early |= change.early;
        broken.unsaid |= change.unsaid;
        broken.stale_completed |= stale && matches!(change.did, Did::ByToken(..));
        if let Some(new) = change.outcome {
            let of = usize::from(new.of);
            if let Some(seen) = self.seen[of].filter(|seen| seen.expires_at > now_us) {
                broken.outcome_changed = true;
                broken.recorded_twice |= is_done(&seen) && is_done(&new);
                broken.cancelled_and_done |= is_done(&seen) != is_done(&new);
            }
            broken.given_up_recorded |= number(new.of) <= before.mark;
            self.seen[of] = Some(new);
        }
        match change.did {
            Did::Lease(of, _) => self.open_effect[usize::from(of)] = true,
            Did::Own(_, End::Release) | Did::ByToken(_, Call::Extend | Call::Checkpoint) => {}
            Did::Ack(upto) => self.open_effect[..=usize::from(upto)].fill(false),
            Did::Sweep if change.lease == LeaseChange::Keep => {}
            _ => self.open_effect = [false; 2],
        }
    }

    /// Notes a crash that took the leases.
    pub fn note_loss(&mut self) {
        self.open_effect = [false; 2];
    }
}
