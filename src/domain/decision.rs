//! The decision table: what begin does, given what it found under the request's name.
//!
//! A begin that holds the request's lock decides by this table. So does a begin that only looks: another
//! transaction holds the lock, or this one is read-only, or the server is a standby. The order of the rules is the order of the
//! lines in [`decide`].

/// A payload's digest, see [`super::fingerprint`].
pub type Fingerprint = [u8; 16];

/// What the table needs to know of an outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutcomeFacts {
    /// Until when it lives, in PostgreSQL's microseconds.
    pub expires_at: i64,
    /// Whether the transaction's snapshot sees it. Under READ COMMITTED it always does.
    pub visible: bool,
    /// The fingerprint of the payload that the request came with, if it had one.
    pub fingerprint: Option<Fingerprint>,
}

/// What the table needs to know of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointFacts {
    /// Until when it counts.
    pub expires_at: i64,
    /// Whether the transaction's snapshot sees it.
    pub visible: bool,
    /// The fingerprint of the payload that the request came with, if it had one.
    pub fingerprint: Option<Fingerprint>,
}

/// Whether its number lets a request be executed (see [`super::sequence`]). A request with a key is always due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// It may be executed.
    Due {
        /// Whether the transaction's snapshot sees the rows that show this.
        visible: bool,
    },
    /// It is discarded: it was done or skipped, and its outcome is no longer kept.
    Discarded {
        /// As in [`Eligibility::Due`].
        visible: bool,
    },
    /// It comes too early, or it overlaps a request without being the same, see [`super::sequence::Place`].
    OutOfSequence {
        /// As in [`Eligibility::Due`].
        visible: bool,
    },
}

/// All that a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The time when begin was called, before any wait.
    pub asked_at: i64,
    /// The fingerprint of the payload given with this call, if there is one.
    pub fingerprint: Option<Fingerprint>,
    /// The outcome found, expired or not.
    pub outcome: Option<OutcomeFacts>,
    /// The checkpoint found, expired or not.
    pub checkpoint: Option<CheckpointFacts>,
    /// For a time key: the earliest time at which an outcome of the key can have expired.
    pub time_key_expires_at: Option<i64>,
    /// Whether its number lets it be executed.
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
    // No outcome is kept, and an outcome of so old a key may have expired. So the request may have been executed.
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

    /// Tests every line of the table, in the table's order.
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
        /// Two things must never happen: to execute a request that has a live outcome, and to replay an outcome
        /// for another payload.
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
