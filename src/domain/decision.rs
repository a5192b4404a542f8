//! The decision table: what begin does, given what it found under the request's name.
//!
//! A begin that holds the request's lock decides by this table. So does a begin that only looks: another transaction
//! holds the lock, or this one is read-only, or the server is a standby. The order of the rules is the order of the
//! lines in [`decide`].

use super::sequence::{Place, Placed};

/// A payload's digest, see [`super::fingerprint`].
pub type Fingerprint = [u8; 16];

/// What the table needs to know of an outcome, or of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptFacts {
    /// Until when it counts, in PostgreSQL's microseconds.
    pub expires_at: i64,
    /// Whether the transaction's snapshot sees it. Under READ COMMITTED it always does.
    pub visible: bool,
    /// The fingerprint of the payload that the request came with, if it had one.
    pub fingerprint: Option<Fingerprint>,
}

/// What the table needs to know of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeaseFacts {
    /// Whether it is the request's own. Otherwise it belongs to another number of the same lane.
    pub own: bool,
    /// When it runs out.
    pub until: i64,
    /// Until when it counts after it ran out.
    pub expires_at: i64,
    /// 1 for the first holder, and one more for each that took over.
    pub attempt: i32,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
    /// The fingerprint of the payload that the request came with, if it had one.
    pub fingerprint: Option<Fingerprint>,
}

/// All that a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The time when begin was called, before any wait.
    pub asked_at: i64,
    /// The fingerprint of the payload given with this call, if there is one.
    pub fingerprint: Option<Fingerprint>,
    /// The outcome found, expired or not.
    pub outcome: Option<KeptFacts>,
    /// The checkpoint found, expired or not.
    pub checkpoint: Option<KeptFacts>,
    /// The time of this look. A lease is judged by it, since it may run out during a wait.
    pub now: i64,
    /// The lease found.
    pub lease: Option<LeaseFacts>,
    /// After how many attempts the request is given up instead of taken over.
    pub max_attempts: Option<i32>,
    /// For a time key: the earliest time at which an outcome of the key can have expired.
    pub time_key_expires_at: Option<i64>,
    /// Where its number stands in its stream. A request with a key is always next.
    pub placed: Placed,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Hand out the outcome.
    Replay,
    /// Execute the request.
    Execute {
        /// Whether the lease of another holder ran out, whose effect may have happened.
        taken_over: bool,
        /// Whether it goes on from the checkpoint.
        from_checkpoint: bool,
    },
    /// Another holder has a lease that has not run out: wait for it.
    Leased,
    /// All attempts that the session allows were begun and none was completed: record a final failure.
    GiveUp,
    /// ID001.
    PayloadMismatch,
    /// 40001: the decision rests on a row that the transaction's snapshot does not see.
    Unserializable,
    /// ID010.
    KeyTooOld,
    /// ID003.
    Discarded,
    /// ID006.
    OutOfSequence,
}

/// Applies the table.
pub fn decide(facts: &Facts) -> Decision {
    // An expired row counts as absent, though it is still in its table.
    let outcome = facts.outcome.filter(|outcome| outcome.expires_at > facts.asked_at);
    let checkpoint = facts.checkpoint.filter(|checkpoint| checkpoint.expires_at > facts.asked_at);

    if let Some(outcome) = outcome {
        return if !outcome.visible {
            Decision::Unserializable
        } else if differ(outcome.fingerprint, facts.fingerprint) {
            Decision::PayloadMismatch
        } else {
            Decision::Replay
        };
    }
    let leased = facts.lease.filter(|lease| lease.until > facts.now);
    let counts = |lease: &LeaseFacts| lease.own && lease.expires_at > facts.asked_at;
    let lease = leased.or(facts.lease.filter(counts));
    // No outcome is kept, and an outcome of so old a key may have expired. So the request may have been executed. Its
    // own lease proves that it was not: the lease began before the key was too old, and the record deletes it.
    if lease.is_none_or(|lease| !lease.own) && facts.time_key_expires_at.is_some_and(|end| end <= facts.asked_at) {
        return Decision::KeyTooOld;
    }
    let Placed { place, visible } = facts.placed;
    match place {
        // What has to come first may be what is leased.
        Place::Ahead(_) | Place::Overlaps(_) if leased.is_some_and(|lease| !lease.own) => return Decision::Leased,
        _ if !visible => return Decision::Unserializable,
        Place::Kept(_) | Place::Discarded => return Decision::Discarded,
        Place::Ahead(_) | Place::Overlaps(_) => return Decision::OutOfSequence,
        Place::Next(_) => {}
    }
    // The lease of another number is only waited for. Once it ran out, its number has been given up: otherwise this
    // one would not be due.
    if let Some(lease) = lease {
        if lease.own && differ(lease.fingerprint, facts.fingerprint) {
            return Decision::PayloadMismatch;
        } else if lease.until > facts.now {
            return Decision::Leased;
        } else if !lease.visible {
            return Decision::Unserializable;
        }
    }
    match checkpoint {
        Some(checkpoint) if !checkpoint.visible => return Decision::Unserializable,
        Some(checkpoint) if differ(checkpoint.fingerprint, facts.fingerprint) => return Decision::PayloadMismatch,
        _ => {}
    }
    match (lease, facts.max_attempts) {
        (Some(lease), Some(most)) if lease.attempt >= most => Decision::GiveUp,
        (lease, _) => Decision::Execute { taken_over: lease.is_some(), from_checkpoint: checkpoint.is_some() },
    }
}

/// Whether two fingerprints differ. If one of them is missing there is nothing to compare.
fn differ(kept: Option<Fingerprint>, given: Option<Fingerprint>) -> bool {
    matches!((kept, given), (Some(kept), Some(given)) if kept != given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Fingerprint = [1; 16];
    const B: Fingerprint = [2; 16];

    const DUE: Placed = Placed { place: Place::Next(0), visible: true };
    const OVER: Placed = Placed { place: Place::Discarded, visible: true };
    const EARLY: Placed = Placed { place: Place::Ahead(1), visible: true };

    const NEW: Facts = Facts {
        asked_at: 100,
        fingerprint: Some(A),
        outcome: None,
        checkpoint: None,
        now: 100,
        lease: None,
        max_attempts: None,
        time_key_expires_at: None,
        placed: DUE,
    };
    const KEPT: KeptFacts = KeptFacts { expires_at: 200, visible: true, fingerprint: Some(A) };
    const REACHED: KeptFacts = KeptFacts { expires_at: 200, visible: true, fingerprint: Some(A) };

    const RAN_OUT: LeaseFacts =
        LeaseFacts { own: true, until: 100, expires_at: 200, attempt: 2, visible: true, fingerprint: Some(A) };
    const START: Decision = Decision::Execute { taken_over: false, from_checkpoint: false };
    const CONTINUE: Decision = Decision::Execute { taken_over: false, from_checkpoint: true };
    const TAKE_OVER: Decision = Decision::Execute { taken_over: true, from_checkpoint: false };

    /// Tests every line of the table, in the table's order.
    #[test]
    fn every_rule() {
        let with = |outcome| Facts { outcome: Some(outcome), ..NEW };
        let at = |checkpoint| Facts { checkpoint: Some(checkpoint), ..NEW };
        let of = |lease| Facts { lease: Some(lease), ..NEW };
        let table = [
            (NEW, START),
            (with(KEPT), Decision::Replay),
            (with(KeptFacts { fingerprint: None, ..KEPT }), Decision::Replay),
            (Facts { fingerprint: None, ..with(KEPT) }, Decision::Replay),
            (with(KeptFacts { fingerprint: Some(B), ..KEPT }), Decision::PayloadMismatch),
            (with(KeptFacts { visible: false, ..KEPT }), Decision::Unserializable),
            (with(KeptFacts { expires_at: 100, ..KEPT }), START),
            (with(KeptFacts { expires_at: 100, visible: false, ..KEPT }), START),
            (at(REACHED), CONTINUE),
            (at(KeptFacts { fingerprint: Some(B), ..REACHED }), Decision::PayloadMismatch),
            (at(KeptFacts { visible: false, ..REACHED }), Decision::Unserializable),
            (at(KeptFacts { expires_at: 100, ..REACHED }), START),
            (Facts { time_key_expires_at: Some(101), ..NEW }, START),
            (Facts { time_key_expires_at: Some(100), ..NEW }, Decision::KeyTooOld),
            (Facts { time_key_expires_at: Some(100), ..with(KEPT) }, Decision::Replay),
            (Facts { time_key_expires_at: Some(100), ..at(REACHED) }, Decision::KeyTooOld),
            (Facts { placed: Placed { visible: false, ..DUE }, ..NEW }, Decision::Unserializable),
            (Facts { placed: OVER, ..NEW }, Decision::Discarded),
            (Facts { placed: Placed { visible: false, ..OVER }, ..NEW }, Decision::Unserializable),
            (Facts { placed: EARLY, ..NEW }, Decision::OutOfSequence),
            (Facts { placed: Placed { visible: false, ..EARLY }, ..NEW }, Decision::Unserializable),
            (Facts { placed: EARLY, ..at(REACHED) }, Decision::OutOfSequence),
            (Facts { placed: OVER, ..with(KEPT) }, Decision::Replay),
            (of(RAN_OUT), TAKE_OVER),
            (Facts { time_key_expires_at: Some(100), ..of(RAN_OUT) }, TAKE_OVER),
            (Facts { time_key_expires_at: Some(100), ..of(LeaseFacts { until: 101, ..RAN_OUT }) }, Decision::Leased),
            (Facts { time_key_expires_at: Some(100), ..of(LeaseFacts { own: false, ..RAN_OUT }) }, Decision::KeyTooOld),
            (
                Facts { time_key_expires_at: Some(100), ..of(LeaseFacts { expires_at: 100, ..RAN_OUT }) },
                Decision::KeyTooOld,
            ),
            (
                Facts { checkpoint: Some(REACHED), ..of(RAN_OUT) },
                Decision::Execute { taken_over: true, from_checkpoint: true },
            ),
            (Facts { outcome: Some(KEPT), ..of(RAN_OUT) }, Decision::Replay),
            (of(LeaseFacts { until: 101, ..RAN_OUT }), Decision::Leased),
            (Facts { now: 101, ..of(LeaseFacts { until: 101, ..RAN_OUT }) }, TAKE_OVER),
            (of(LeaseFacts { until: 101, visible: false, ..RAN_OUT }), Decision::Leased),
            (of(LeaseFacts { until: 101, fingerprint: Some(B), ..RAN_OUT }), Decision::PayloadMismatch),
            (of(LeaseFacts { until: 101, own: false, fingerprint: Some(B), ..RAN_OUT }), Decision::Leased),
            (of(LeaseFacts { own: false, fingerprint: Some(B), ..RAN_OUT }), START),
            (of(LeaseFacts { visible: false, ..RAN_OUT }), Decision::Unserializable),
            (of(LeaseFacts { expires_at: 100, ..RAN_OUT }), START),
            (Facts { max_attempts: Some(3), ..of(RAN_OUT) }, TAKE_OVER),
            (Facts { max_attempts: Some(2), ..of(RAN_OUT) }, Decision::GiveUp),
            (Facts { max_attempts: Some(2), ..of(LeaseFacts { until: 101, ..RAN_OUT }) }, Decision::Leased),
            (Facts { placed: OVER, ..of(LeaseFacts { until: 101, ..RAN_OUT }) }, Decision::Discarded),
            (Facts { placed: EARLY, ..of(LeaseFacts { until: 101, own: false, ..RAN_OUT }) }, Decision::Leased),
            (Facts { placed: EARLY, ..of(LeaseFacts { until: 101, ..RAN_OUT }) }, Decision::OutOfSequence),
            (Facts { placed: EARLY, ..of(LeaseFacts { own: false, ..RAN_OUT }) }, Decision::OutOfSequence),
        ];
        for (facts, decision) in table {
            assert_eq!(decide(&facts), decision, "{facts:?}");
        }
    }

    fn fingerprint() -> impl Strategy<Value = Option<Fingerprint>> {
        prop::option::of(prop_oneof![Just(A), Just(B)])
    }

    proptest! {
        /// Two things must never happen: to execute a request that has a live outcome, and to replay an outcome
        /// for another payload.
        #[test]
        fn a_live_outcome_is_never_executed_again(
            asked_at in 0i64..10, expires_at in 0i64..10, visible: bool,
            kept in fingerprint(), given in fingerprint(),
            time_key_expires_at in prop::option::of(0i64..10),
            checkpoint in prop::option::of((0i64..10, any::<bool>(), fingerprint())),
            lease in prop::option::of((any::<bool>(), 0i64..10, 0i64..10, fingerprint())),
        ) {
            let lease = lease.map(|(own, until, expires_at, fingerprint)| LeaseFacts { own, until, expires_at, fingerprint, ..RAN_OUT });
            let outcome = KeptFacts { expires_at, visible, fingerprint: kept };
            let checkpoint = checkpoint.map(|(expires_at, visible, fingerprint)| KeptFacts { expires_at, visible, fingerprint });
            let decision = decide(&Facts { asked_at, fingerprint: given, outcome: Some(outcome), checkpoint, now: asked_at, lease, max_attempts: None, time_key_expires_at, placed: DUE });
            if expires_at > asked_at {
                let executes = matches!(decision, Decision::Execute { .. } | Decision::GiveUp | Decision::KeyTooOld);
                prop_assert!(!executes);
                prop_assert_eq!(decision == Decision::Replay, visible && !differ(kept, given));
            } else {
                prop_assert!(decision != Decision::Replay);
            }
        }
    }
}
