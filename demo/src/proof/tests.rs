//! Each claim fails on evidence that is wrong.

use serde_json::{Value, json};

use super::*;
use crate::bank::{Outcome, PAYMENTS, Transfer};
use crate::client::Answer;
use crate::evidence::Session;
use crate::proof::finding::faults_were_real;

const DONE: &str = "payments/done";
const FAILED: &str = "payments/failed";
const UNANSWERED: &str = "payments/unanswered";
const DISCARDED: &str = "client/1";
const NUMBER: &str = "client/6";

fn transfer(name: &str, amount: i64) -> Transfer {
    let (session, request) = name.split_once('/').expect("two parts");
    assert!(session == PAYMENTS || request.parse::<i64>().is_ok());
    Transfer { session: session.to_owned(), request: request.to_owned(), debit: 1, credit: 2, amount }
}

fn effect(execution: &str, key: &str, amount: i64) -> Effect {
    Effect { execution: execution.to_owned(), request: key.to_owned(), debit: 1, credit: 2, amount }
}

fn lookup(status: &str, response: Value) -> Lookup {
    Lookup { status: status.to_owned(), response }
}

fn answer(replayed: bool, failed: bool, response: Value) -> Answer {
    Answer { outcome: Outcome { failed, response }, replayed }
}

/// A run in which all is well. Of the requests with keys, the first is done and replayed, the second failed,
/// and the third is done but was never answered. Of the requests with numbers, the first is done and
/// discarded, and the second is done and took the place of the first.
fn sound() -> (Book, Evidence) {
    let mut book = Book::default();
    book.ask(&transfer(DONE, 10));
    book.answer(&transfer(DONE, 10), answer(false, false, json!({ "execution": "a" })));
    book.answer(&transfer(DONE, 10), answer(true, false, json!({ "execution": "a" })));
    book.ask(&transfer(FAILED, 5000));
    book.answer(&transfer(FAILED, 5000), answer(false, true, json!({ "error": "funds" })));
    book.ask(&transfer(UNANSWERED, 20));
    for (name, execution, amount) in [(DISCARDED, "c", 1), (NUMBER, "d", 2)] {
        book.ask(&transfer(name, amount));
        book.answer(&transfer(name, amount), answer(false, false, json!({ "execution": execution })));
    }
    book.mismatches.refused = 1;

    let kept = Kept {
        lookups: HashMap::from([
            (DONE.into(), lookup("succeeded", json!({ "execution": "a" }))),
            (FAILED.into(), lookup("failed", json!({ "error": "funds" }))),
            (UNANSWERED.into(), lookup("succeeded", json!({ "execution": "b" }))),
            (DISCARDED.into(), lookup("discarded", Value::Null)),
            (NUMBER.into(), lookup("succeeded", json!({ "execution": "d" }))),
        ]),
        outcomes: [DONE, FAILED, UNANSWERED, NUMBER].map(Into::into).into(),
        sessions: vec![Session {
            client: "one".into(),
            session: "client".into(),
            ended: None,
            saved: true,
            last_number: 6,
        }],
        locks: 0,
    };
    let evidence = Evidence {
        balances: HashMap::from([(1, 967), (2, 1033)]),
        effects: vec![
            effect("a", DONE, 10),
            effect("b", UNANSWERED, 20),
            effect("c", DISCARDED, 1),
            effect("d", NUMBER, 2),
        ],
        kept: Some(kept),
    };
    (book, evidence)
}

/// Makes the balances agree with the effects.
fn settle(evidence: &mut Evidence) {
    let moved: i64 = evidence.effects.iter().map(|effect| effect.amount).sum();
    evidence.balances = HashMap::from([(1, OPENING_BALANCE - moved), (2, OPENING_BALANCE + moved)]);
}

/// The claims that do not hold after `spoil` has changed the sound run.
fn failures(spoil: impl FnOnce(&mut Book, &mut Evidence, &mut Kept)) -> Vec<&'static str> {
    let (mut book, mut evidence) = sound();
    let mut kept = evidence.kept.take().expect("a run with keys");
    spoil(&mut book, &mut evidence, &mut kept);
    evidence.kept = Some(kept);
    judge(&book, &evidence).into_iter().filter(|finding| !finding.holds).map(|finding| finding.claim).collect()
}

#[test]
fn a_sound_run_is_proved() {
    assert!(failures(|_, _, _| {}).is_empty());
}

#[test]
fn a_run_without_requests_proves_nothing() {
    let failed: Vec<_> =
        judge(&Book::default(), &Evidence::default()).into_iter().filter(|finding| !finding.holds).collect();
    assert_eq!(failed.len(), 3);
}

#[test]
fn a_run_without_faults_proves_nothing() {
    assert!(faults_were_real("real", &[("replies lost", 1), ("kills", 2)]).holds);
    assert!(!faults_were_real("real", &[("replies lost", 1), ("kills", 0)]).holds);
}

#[test]
fn lost_money_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.balances.insert(2, 1032);
    });
    assert_eq!(failed, ["money is conserved", "every balance is what the effects make of it"]);
}

#[test]
fn a_double_execution_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects.push(effect("c", DONE, 10));
        settle(evidence);
    });
    assert_eq!(
        failed,
        [
            "each answered request with a key took effect once",
            "every effect has its outcome",
            "every outcome has its effect"
        ]
    );
}

#[test]
fn a_double_execution_of_an_unanswered_request_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects.push(effect("c", UNANSWERED, 20));
        settle(evidence);
    });
    assert!(failed.contains(&"each never answered one at most once"));
}

#[test]
fn a_lost_effect_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects.remove(0);
        settle(evidence);
    });
    assert_eq!(failed, ["each answered request with a key took effect once", "every outcome has its effect"]);
}

#[test]
fn an_effect_of_a_failed_request_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects.push(effect("c", FAILED, 5000));
        settle(evidence);
    });
    assert!(failed.contains(&"each answered request with a key took effect once"));
}

#[test]
fn an_altered_effect_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects[0].amount = 11;
        settle(evidence);
    });
    assert_eq!(failed, ["no effect that nobody asked for"]);
}

#[test]
fn another_answer_on_replay_is_seen() {
    let failed = failures(|book, _, _| {
        book.answer(&transfer(DONE, 10), answer(true, false, json!({ "execution": "z" })));
    });
    assert_eq!(failed, ["every answer to a request is the same"]);
}

#[test]
fn an_answer_that_claims_a_second_execution_is_seen() {
    let failed = failures(|book, _, _| {
        book.answer(&transfer(DONE, 10), answer(false, false, json!({ "execution": "a" })));
    });
    assert_eq!(failed, ["every answer to a request is the same"]);
}

#[test]
fn a_refusal_is_seen() {
    let failed = failures(|book, _, _| book.refusals.push("XX000: oops".into()));
    assert_eq!(failed, ["no request in order was refused"]);
}

#[test]
fn a_lookup_that_differs_from_the_answer_is_seen() {
    let failed = failures(|_, _, kept| {
        kept.lookups.insert(FAILED.into(), lookup("failed", json!({ "error": "other" })));
    });
    assert_eq!(failed, ["idem_lookup says what the client was told"]);
}

#[test]
fn a_forgotten_outcome_is_seen() {
    let failed = failures(|_, _, kept| {
        kept.lookups.insert(UNANSWERED.into(), lookup("unknown", Value::Null));
        kept.outcomes.retain(|name| name != UNANSWERED);
    });
    assert_eq!(failed, ["every effect has its outcome"]);
}

#[test]
fn an_outcome_without_an_effect_is_seen() {
    let failed = failures(|_, _, kept| kept.outcomes.push("stranger".into()));
    assert_eq!(failed, ["every outcome has its effect"]);
}

#[test]
fn an_accepted_mismatch_is_seen() {
    let failed = failures(|book, _, _| book.mismatches.accepted = 1);
    assert_eq!(failed, ["a used key with another payload gets ID001"]);
}

#[test]
fn a_claim_left_behind_is_seen() {
    let failed = failures(|_, _, kept| kept.locks = 1);
    assert_eq!(failed, ["no claim is left behind"]);
}

#[test]
fn a_double_execution_of_a_number_is_seen() {
    for name in [DISCARDED, NUMBER] {
        let failed = failures(|_, evidence, _| {
            evidence.effects.push(effect("z", name, 2));
            settle(evidence);
        });
        assert_eq!(failed[0], "each answered request with a number took effect once", "{name}");
    }
}

#[test]
fn a_lost_effect_of_a_number_is_seen() {
    let failed = failures(|_, evidence, _| {
        evidence.effects.remove(2);
        settle(evidence);
    });
    assert_eq!(failed, ["each answered request with a number took effect once"]);
}

#[test]
fn a_number_discarded_without_a_later_one_is_seen() {
    let failed = failures(|_, _, kept| {
        kept.lookups.insert(NUMBER.into(), lookup("discarded", Value::Null));
        kept.outcomes.pop();
    });
    assert_eq!(failed, ["a number is forgotten only for a later one"]);
}

#[test]
fn a_discarded_key_is_seen() {
    let failed = failures(|_, _, kept| {
        kept.lookups.insert(DONE.into(), lookup("discarded", Value::Null));
        kept.outcomes.remove(0);
    });
    assert_eq!(failed, ["idem_lookup says what the client was told", "every effect has its outcome"]);
}

#[test]
fn a_lost_session_is_seen() {
    assert!(failures(|book, _, _| _ = book.lost.insert("without an outcome".into())).is_empty());
    let claim = ["a session with an outcome is never lost"];
    assert_eq!(failures(|book, _, _| _ = book.lost.insert("client".into())), claim);
    assert_eq!(failures(|_, _, kept| kept.sessions.clear()), claim);
}

#[test]
fn an_accepted_request_that_had_to_be_refused_is_seen() {
    assert_eq!(failures(|book, _, _| book.discarded.accepted = 1), ["a number no longer kept gets ID003"]);
    let failed = failures(|book, _, _| book.late.accepted = 1);
    assert_eq!(failed, ["a late one of a former process gets ID005 (or ID004)"]);
}
