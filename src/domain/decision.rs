//! The decision table: what a begin does with what it found under the request's name.
//!
//! Both the caller that holds the lock and the one that only looks (lock taken, read-only, standby)
//! decide by it. The order of the rules is the order of the lines in [`decide`].

/// A payload's digest, see [`super::fingerprint`].
pub type Fingerprint = [u8; 16];

/// What is kept of a request that has an outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutcomeFacts {
    /// When it was recorded and until when it lives, in PostgreSQL's microseconds.
    pub expires_at: i64,
    /// Whether the transaction's snapshot sees it (always, under READ COMMITTED).
    pub visible: bool,
    /// The payload it was recorded for, where one was given.
    pub fingerprint: Option<Fingerprint>,
}

/// What is kept of a request that stopped on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointFacts {
    /// Until when it counts.
    pub expires_at: i64,
    /// As of an outcome.
    pub visible: bool,
    /// As of an outcome.
    pub fingerprint: Option<Fingerprint>,
}

/// Whether a request may be executed, as far as its number tells (see [`super::sequence`]). A request with a key
/// always may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// It may.
    Due {
        /// Whether the transaction's snapshot sees the rows that say so.
        visible: bool,
    },
    /// It was done or skipped, and its outcome is no longer kept.
    Discarded {
        /// As above.
        visible: bool,
    },
    /// There is a gap before it, or it overlaps a request that was done.
    OutOfSequence {
        /// As above.
        visible: bool,
    },
}

/// All that a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The clock when begin was called, before any wait.
    pub asked_at: i64,
    /// The payload given now.
    pub fingerprint: Option<Fingerprint>,
    /// What was found.
    pub outcome: Option<OutcomeFacts>,
    /// What was found.
    pub checkpoint: Option<CheckpointFacts>,
    /// When an outcome of a time key would have expired.
    pub time_key_expires_at: Option<i64>,
    /// Whether it may be executed at all.
    pub eligibility: Eligibility,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Hand out the outcome.
    Replay,
    /// Execute from the start.
    Start,
    /// Execute from the checkpoint.
    Continue,
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

/// Decides.
pub fn decide(facts: &Facts) -> Decision {
    // An expired row that is still there is absent.
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
    // Nothing is kept and the key is older than anything kept could be: it may have been executed.
    if facts.time_key_expires_at.is_some_and(|end| end <= facts.asked_at) {
        return Decision::KeyTooOld;
    }
    match facts.eligibility {
        Eligibility::Due { visible: false }
        | Eligibility::Discarded { visible: false }
        | Eligibility::OutOfSequence { visible: false } => {
            return Decision::Unserializable;
        }
        Eligibility::Discarded { visible: true } => return Decision::Discarded,
        Eligibility::OutOfSequence { visible: true } => return Decision::OutOfSequence,
        Eligibility::Due { visible: true } => {}
    }
    match checkpoint {
        Some(checkpoint) if !checkpoint.visible => Decision::Unserializable,
        Some(checkpoint) if differ(checkpoint.fingerprint, facts.fingerprint) => Decision::PayloadMismatch,
        Some(_) => Decision::Continue,
        None => Decision::Start,
    }
}

/// Payloads are compared when both times one was given.
fn differ(kept: Option<Fingerprint>, given: Option<Fingerprint>) -> bool {
    matches!((kept, given), (Some(kept), Some(given)) if kept != given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Fingerprint = [1; 16];
    const B: Fingerprint = [2; 16];

    const DUE: Eligibility = Eligibility::Due { visible: true };

    const NEW: Facts = Facts {
        asked_at: 100,
        fingerprint: Some(A),
        outcome: None,
        checkpoint: None,
        time_key_expires_at: None,
        eligibility: DUE,
    };
    const KEPT: OutcomeFacts = OutcomeFacts { expires_at: 200, visible: true, fingerprint: Some(A) };
    const REACHED: CheckpointFacts = CheckpointFacts { expires_at: 200, visible: true, fingerprint: Some(A) };

    /// Walks every line of the table in its order.
    #[test]
    fn every_rule() {
        let with = |outcome| Facts { outcome: Some(outcome), ..NEW };
        let at = |checkpoint| Facts { checkpoint: Some(checkpoint), ..NEW };
        let table = [
            (NEW, Decision::Start),
            (with(KEPT), Decision::Replay),
            (with(OutcomeFacts { fingerprint: None, ..KEPT }), Decision::Replay),
            (Facts { fingerprint: None, ..with(KEPT) }, Decision::Replay),
            (with(OutcomeFacts { fingerprint: Some(B), ..KEPT }), Decision::PayloadMismatch),
            (with(OutcomeFacts { visible: false, ..KEPT }), Decision::Unserializable),
            (with(OutcomeFacts { expires_at: 100, ..KEPT }), Decision::Start),
            (with(OutcomeFacts { expires_at: 100, visible: false, ..KEPT }), Decision::Start),
            (at(REACHED), Decision::Continue),
            (at(CheckpointFacts { fingerprint: Some(B), ..REACHED }), Decision::PayloadMismatch),
            (at(CheckpointFacts { visible: false, ..REACHED }), Decision::Unserializable),
            (at(CheckpointFacts { expires_at: 100, ..REACHED }), Decision::Start),
            (Facts { time_key_expires_at: Some(101), ..NEW }, Decision::Start),
            (Facts { time_key_expires_at: Some(100), ..NEW }, Decision::KeyTooOld),
            (Facts { time_key_expires_at: Some(100), ..with(KEPT) }, Decision::Replay),
            (Facts { time_key_expires_at: Some(100), ..at(REACHED) }, Decision::KeyTooOld),
            (Facts { eligibility: Eligibility::Due { visible: false }, ..NEW }, Decision::Unserializable),
            (Facts { eligibility: Eligibility::Discarded { visible: true }, ..NEW }, Decision::Discarded),
            (Facts { eligibility: Eligibility::Discarded { visible: false }, ..NEW }, Decision::Unserializable),
            (Facts { eligibility: Eligibility::OutOfSequence { visible: true }, ..NEW }, Decision::OutOfSequence),
            (Facts { eligibility: Eligibility::OutOfSequence { visible: false }, ..NEW }, Decision::Unserializable),
            (
                Facts { eligibility: Eligibility::OutOfSequence { visible: true }, ..at(REACHED) },
                Decision::OutOfSequence,
            ),
            (Facts { eligibility: Eligibility::Discarded { visible: true }, ..with(KEPT) }, Decision::Replay),
        ];
        for (facts, decision) in table {
            assert_eq!(decide(&facts), decision, "{facts:?}");
        }
    }

    fn fingerprint() -> impl Strategy<Value = Option<Fingerprint>> {
        prop::option::of(prop_oneof![Just(A), Just(B)])
    }

    proptest! {
        /// The two that must never happen: executing what has a live outcome, replaying for another payload.
        #[test]
        fn a_live_outcome_is_never_executed_again(
            asked_at in 0i64..10, expires_at in 0i64..10, visible: bool,
            kept in fingerprint(), given in fingerprint(),
            time_key_expires_at in prop::option::of(0i64..10),
            checkpoint in prop::option::of((0i64..10, any::<bool>(), fingerprint())),
        ) {
            let outcome = OutcomeFacts { expires_at, visible, fingerprint: kept };
            let checkpoint = checkpoint.map(|(expires_at, visible, fingerprint)| CheckpointFacts { expires_at, visible, fingerprint });
            let decision = decide(&Facts { asked_at, fingerprint: given, outcome: Some(outcome), checkpoint, time_key_expires_at, eligibility: DUE });
            if expires_at > asked_at {
                prop_assert!(!matches!(decision, Decision::Start | Decision::Continue | Decision::KeyTooOld));
                prop_assert_eq!(decision == Decision::Replay, visible && !differ(kept, given));
            } else {
                prop_assert!(decision != Decision::Replay);
            }
        }
    }
}
