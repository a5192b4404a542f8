//! Each claim fails on evidence that is wrong.

use serde_json::{Value, json};

use super::*;
use crate::evidence::Lookup;
use crate::found::Receipt;
use crate::orders::Order;
use crate::told::{Answer, Claim, Told};

/// An order that was done at the second attempt, after the first worker's lease had run out.
const DONE: &str = "done";
/// An order that was cancelled before anybody began it.
const LOST: &str = "lost";
/// An order that was cancelled after an attempt that had charged.
const STOPPED: &str = "stopped";

fn order(request: &str) -> Order {
    Order { request: request.into(), amount: 7 }
}

fn claim(token: i64, attempt: i32) -> Claim {
    Claim { token, attempt, taken_over: attempt > 1 }
}

fn lookup(status: &str, response: &Value) -> Lookup {
    Lookup { status: status.into(), response: response.clone() }
}

fn answer(status: &str, response: &Value) -> Answer {
    Answer { status: status.into(), response: response.clone() }
}

fn charge(id: i64, key: &str) -> Charge {
    Charge { id, key: key.into(), amount: 7 }
}

fn receipt(execution: &str, request: &str, token: i64) -> Receipt {
    Receipt { execution: execution.into(), request: request.into(), token }
}

/// A run in which all is well.
fn sound() -> (ToldBook, Found) {
    let mut told = ToldBook::default();
    for request in [DONE, LOST, STOPPED] {
        told.ask(&order(request));
    }
    let done = json!({ "charge": 1, "notice": "sent", "execution": "e", "token": 12 });
    let (lost, stopped) = (json!({ "verdict": "v" }), json!({ "verdict": "w" }));
    let of_done = of(&mut told, DONE);
    of_done.claims = vec![claim(11, 1), claim(12, 2)];
    of_done.superseded = [11].into();
    of_done.recorded = vec![12];
    let of_stopped = of(&mut told, STOPPED);
    of_stopped.claims = vec![claim(13, 1)];
    of_stopped.superseded = [13].into();
    told.answer(&order(DONE), answer("succeeded", &done));
    told.answer(&order(LOST), answer("cancelled", &lost));
    told.stubborn.count(true);
    told.verdicts = HashMap::from([("v".into(), None), ("w".into(), Some(1)), ("rolled back".into(), None)]);

    let mut found = Found {
        lookups: HashMap::from([
            (DONE.into(), lookup("succeeded", &done)),
            (LOST.into(), lookup("cancelled", &lost)),
            (STOPPED.into(), lookup("cancelled", &stopped)),
        ]),
        receipts: vec![receipt("e", DONE, 12)],
        outcomes: [DONE, LOST, STOPPED].map(Into::into).into(),
        ..Found::default()
    };
    found.ledger.charges = vec![charge(1, DONE), charge(2, STOPPED)];
    found.ledger.calls = HashMap::from([(DONE.into(), 2), (STOPPED.into(), 1)]);
    found.ledger.voided = [LOST, STOPPED].map(Into::into).into();
    found.ledger.notices = HashMap::from([(DONE.into(), 1)]);
    (told, found)
}

fn of<'a>(told: &'a mut ToldBook, request: &str) -> &'a mut Told {
    told.orders.get_mut(request).expect("asked for")
}

/// The claims that do not hold after `spoil` has changed the sound run.
fn failures(spoil: impl FnOnce(&mut ToldBook, &mut Found)) -> Vec<&'static str> {
    let (mut told, mut found) = sound();
    spoil(&mut told, &mut found);
    judge(&told, &found).into_iter().filter(|finding| !finding.holds).map(|finding| finding.claim).collect()
}

const ONCE: &str = "each order is recorded once, as done or cancelled";
const CHARGED: &str = "each order that is done is charged once, outside";
const BACK: &str = "nothing stays charged for a cancelled order";
const NOTICE: &str = "no notice without a key is sent twice";
const VERDICT: &str = "a verdict tells of every attempt before it";
const FENCED: &str = "what was superseded never records";
const ANSWER: &str = "every answer about an order is the same";

#[test]
fn a_sound_run_is_proved() {
    assert!(failures(|_, _| {}).is_empty());
    let (told, found) = sound();
    assert!(faults_were_real(&told, &found).holds);
}

#[test]
fn a_run_without_orders_or_faults_proves_nothing() {
    assert!(judge(&ToldBook::default(), &Found::default()).iter().any(|finding| !finding.holds));
    assert!(!faults_were_real(&ToldBook::default(), &Found::default()).holds);
}

#[test]
fn a_second_record_is_seen() {
    assert_eq!(failures(|_, found| found.receipts.push(receipt("f", DONE, 12))), [ONCE]);
    assert_eq!(failures(|_, found| found.outcomes.push(DONE.into())), [ONCE]);
}

#[test]
fn a_record_without_its_receipt_is_seen() {
    assert_eq!(failures(|_, found| found.receipts.clear()), [ONCE]);
    assert_eq!(failures(|_, found| found.receipts[0].execution = "f".into()), [ONCE]);
}

#[test]
fn a_record_of_a_cancelled_order_is_seen() {
    assert_eq!(failures(|_, found| found.receipts.push(receipt("f", STOPPED, 13))), [ONCE]);
}

#[test]
fn an_order_that_is_neither_done_nor_cancelled_is_seen() {
    let failed = failures(|_, found| {
        found.lookups.insert(LOST.into(), lookup("unknown", &Value::Null));
        found.outcomes.retain(|request| request != LOST);
    });
    assert_eq!(failed, [ONCE, ANSWER]);
}

#[test]
fn an_order_that_nobody_asked_for_is_seen() {
    assert_eq!(failures(|_, found| found.outcomes.push("stranger".into())), [ONCE]);
    assert_eq!(failures(|_, found| found.ledger.charges.push(charge(3, "stranger"))), [CHARGED]);
}

#[test]
fn a_wrong_charge_is_seen() {
    assert_eq!(failures(|_, found| found.ledger.charges.push(charge(3, DONE))), [CHARGED]);
    assert_eq!(failures(|_, found| _ = found.ledger.charges.remove(0)), [CHARGED]);
    assert_eq!(failures(|_, found| found.ledger.charges[0].id = 3), [CHARGED]);
    assert_eq!(failures(|_, found| found.ledger.charges[0].amount = 8), [CHARGED]);
    assert_eq!(failures(|_, found| _ = found.ledger.voided.insert(DONE.into())), [CHARGED]);
}

#[test]
fn a_charge_that_is_not_given_back_is_seen() {
    assert_eq!(failures(|_, found| _ = found.ledger.voided.remove(STOPPED)), [BACK]);
}

#[test]
fn a_second_notice_is_seen() {
    for request in [DONE, STOPPED] {
        assert_eq!(failures(|_, found| _ = found.ledger.notices.insert(request.into(), 2)), [NOTICE]);
    }
}

#[test]
fn a_notice_that_was_not_sent_is_seen() {
    assert_eq!(failures(|_, found| found.ledger.notices.clear()), [NOTICE]);
}

#[test]
fn a_verdict_that_leaves_out_an_attempt_is_seen() {
    assert_eq!(failures(|told, _| _ = told.verdicts.insert("w".into(), None)), [VERDICT]);
    assert_eq!(failures(|told, _| of(told, STOPPED).claims.push(claim(14, 2))), [VERDICT]);
}

#[test]
fn a_charge_of_which_a_verdict_did_not_tell_is_seen() {
    assert_eq!(failures(|_, found| _ = found.ledger.calls.insert(LOST.into(), 1)), [VERDICT]);
}

#[test]
fn a_verdict_that_no_settler_was_given_is_seen() {
    assert_eq!(failures(|told, _| _ = told.verdicts.remove("v")), [VERDICT]);
}

#[test]
fn a_record_with_a_superseded_token_is_seen() {
    assert_eq!(failures(|told, _| of(told, DONE).recorded.push(11)), [FENCED]);
    assert_eq!(failures(|told, _| _ = of(told, DONE).superseded.insert(12)), [FENCED]);
    assert_eq!(failures(|told, _| of(told, DONE).claims.push(claim(15, 3))), [FENCED]);
    assert_eq!(failures(|told, _| of(told, STOPPED).recorded.push(13)), [FENCED]);
    assert_eq!(failures(|_, found| found.receipts[0].token = 11), [FENCED]);
    assert_eq!(failures(|told, _| told.stubborn.count(false)), ["a superseded token that insists gets ID005"]);
}

#[test]
fn another_answer_is_seen() {
    let failed = failures(|told, _| told.answer(&order(LOST), answer("cancelled", &json!({ "verdict": "x" }))));
    assert_eq!(failed, [ANSWER]);
    let failed = failures(|told, _| told.answer(&order(STOPPED), answer("succeeded", &json!({}))));
    assert_eq!(failed, [ANSWER]);
}

#[test]
fn a_refusal_is_seen() {
    let failed = failures(|told, _| told.refusals.push("XX000: oops".into()));
    assert_eq!(failed, ["no call for an order was refused for anything else"]);
}

#[test]
fn an_orphan_is_seen() {
    assert_eq!(failures(|_, found| found.unfinished = 1), ["no orphan is left"]);
}
