//! The proof for the orders: what the workers and the settlers were told, held against what the service outside and
//! the database hold.

use std::collections::HashMap;

use crate::found::{End, Found, Verdicts};
use crate::outside::Charge;
use crate::proof::finding::{self, Finding, all_refused, finding};
use crate::told::ToldBook;

/// Checks every claim.
pub fn judge(told: &ToldBook, found: &Found) -> Vec<Finding> {
    vec![
        recorded_once(told, found),
        charged_once(told, found),
        given_back(told, found),
        noticed_once(told, found),
        verdicts_know_all(told, found),
        superseded_never_record(told, found),
        all_refused("a superseded token that insists gets ID005", told.stubborn),
        one_answer(told, found),
        nothing_refused(told),
        no_orphans(found),
    ]
}

/// Checks that leases ran out, and that orders were settled as cancelled.
pub fn faults_were_real(told: &ToldBook, found: &Found) -> Finding {
    let Verdicts { never_begun, after_attempts, .. } = found.verdicts(told);
    let counts = [
        ("taken over", told.claims(true)),
        ("superseded", told.refused_tokens()),
        ("cancelled", never_begun + after_attempts),
    ];
    finding::faults_were_real("the workers' faults were real", &counts)
}

/// How often each request occurs.
fn count<'a>(requests: impl Iterator<Item = &'a String>) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for request in requests {
        *counts.entry(request.as_str()).or_default() += 1;
    }
    counts
}

/// Each order has one outcome. If it is done, the execution of the outcome is the only one that was committed. If it
/// is cancelled, none was.
fn recorded_once(told: &ToldBook, found: &Found) -> Finding {
    let outcomes = count(found.outcomes.iter());
    let receipts = count(found.receipts.iter().map(|receipt| &receipt.request));
    let executions: HashMap<&str, &str> =
        found.receipts.iter().map(|receipt| (receipt.request.as_str(), receipt.execution.as_str())).collect();
    let (mut done, mut cancelled, mut wrong) = (0, 0, 0);
    for request in told.orders.keys() {
        let request = request.as_str();
        let recorded = outcomes.get(request) == Some(&1);
        let executed = receipts.get(request).copied().unwrap_or(0);
        match found.end(request) {
            End::Done(response)
                if recorded && executed == 1 && response["execution"].as_str() == executions.get(request).copied() =>
            {
                done += 1;
            }
            End::Cancelled(_) if recorded && executed == 0 => cancelled += 1,
            _ => wrong += 1,
        }
    }
    let strays = outcomes.keys().chain(receipts.keys()).filter(|request| !told.orders.contains_key(**request)).count();
    finding(
        "each order is recorded once, as done or cancelled",
        done > 0 && wrong == 0 && strays == 0,
        format!("{done} done, {cancelled} cancelled, {wrong} otherwise, {strays} that nobody asked for"),
    )
}

/// The charge under the key of each order that is done is the only one, and the one that the outcome names.
fn charged_once(told: &ToldBook, found: &Found) -> Finding {
    let charges = charges_by_key(found);
    let (mut charged, mut wrong) = (0, 0);
    for (request, told) in &told.orders {
        let End::Done(response) = found.end(request) else {
            continue;
        };
        match charges.get(request.as_str()).map(Vec::as_slice) {
            Some([charge])
                if response["charge"] == charge.id
                    && charge.amount == told.order.amount
                    && !found.ledger.voided.contains(request) =>
            {
                charged += charge.amount;
            }
            _ => wrong += 1,
        }
    }
    let strays = charges.keys().filter(|key| !told.orders.contains_key(**key)).count();
    finding(
        "each order that is done is charged once, outside",
        wrong == 0 && strays == 0,
        format!("{} charges, {charged} in all, {wrong} missing or wrong, {strays} unknown", found.ledger.charges.len()),
    )
}

/// Under the key of an order that is cancelled nothing stays charged, and nothing will be.
fn given_back(told: &ToldBook, found: &Found) -> Finding {
    let charges = charges_by_key(found);
    let cancelled = told.orders.keys().filter(|request| matches!(found.end(request), End::Cancelled(_)));
    let (voided, kept): (Vec<&String>, Vec<&String>) =
        cancelled.partition(|request| found.ledger.voided.contains(*request));
    let given_back = voided.iter().filter(|request| charges.contains_key(request.as_str())).count();
    finding(
        "nothing stays charged for a cancelled order",
        kept.is_empty(),
        format!("{} void, {given_back} of them had been charged; {} not void", voided.len(), kept.len()),
    )
}

fn charges_by_key(found: &Found) -> HashMap<&str, Vec<&Charge>> {
    let mut charges: HashMap<&str, Vec<&Charge>> = HashMap::new();
    for charge in &found.ledger.charges {
        charges.entry(&charge.key).or_default().push(charge);
    }
    charges
}

/// No notice went out twice, although notices know no keys. An outcome that says that its notice was sent is right.
fn noticed_once(told: &ToldBook, found: &Found) -> Finding {
    let (mut sent, mut unsure, mut wrong) = (0, 0, 0);
    for request in told.orders.keys() {
        let notices = found.ledger.notices.get(request).copied().unwrap_or(0);
        match found.end(request) {
            End::Done(response) if response["notice"] == "sent" && notices == 1 => sent += 1,
            End::Done(response) if response["notice"] == "perhaps sent" && notices <= 1 => unsure += 1,
            End::Cancelled(_) | End::Open if notices <= 1 => {}
            _ => wrong += 1,
        }
    }
    finding(
        "no notice without a key is sent twice",
        wrong == 0,
        format!("{sent} sent, {unsure} perhaps sent, and said so, {wrong} wrong"),
    )
}

/// A verdict of cancelled told of every attempt, so whoever got it knows whether something may have been done.
fn verdicts_know_all(told: &ToldBook, found: &Found) -> Finding {
    let Verdicts { never_begun, after_attempts, wrong } = found.verdicts(told);
    finding(
        "a verdict tells of every attempt before it",
        wrong == 0,
        format!("{never_begun} never begun, {after_attempts} after attempts, {wrong} verdicts wrong"),
    )
}

/// The token of an outcome is that of the last claim. No other record was accepted.
fn superseded_never_record(told: &ToldBook, found: &Found) -> Finding {
    let (mut refused, mut wrong) = (0, 0);
    for (request, told) in &told.orders {
        refused += told.superseded.len();
        let tokens = told.claims.iter().map(|claim| claim.token);
        let sound = match found.end(request) {
            End::Done(response) => {
                let winner = response["token"].as_i64().unwrap_or(0);
                tokens.max() <= Some(winner)
                    && told.recorded.iter().all(|token| *token == winner)
                    && !told.superseded.contains(&winner)
                    && found.receipts.iter().filter(|r| r.request == *request).all(|receipt| receipt.token == winner)
            }
            End::Cancelled(_) | End::Open => told.recorded.is_empty(),
        };
        wrong += usize::from(!sound);
    }
    finding(
        "what was superseded never records",
        wrong == 0,
        format!("{refused} tokens refused with ID005, {wrong} recorded all the same"),
    )
}

fn one_answer(told: &ToldBook, found: &Found) -> Finding {
    let contradictions: u32 = told.orders.values().map(|told| told.contradictions).sum();
    let differ = told
        .orders
        .iter()
        .filter(|(request, told)| {
            told.answer.as_ref().is_some_and(|answer| {
                !found
                    .lookups
                    .get(*request)
                    .is_some_and(|lookup| (&lookup.status, &lookup.response) == (&answer.status, &answer.response))
            })
        })
        .count();
    finding(
        "every answer about an order is the same",
        contradictions == 0 && differ == 0,
        format!("{} answers: {contradictions} contradict, {differ} differ from idem_lookup", told.answers),
    )
}

fn nothing_refused(told: &ToldBook) -> Finding {
    let mut found = format!("{} refused", told.refusals.len());
    if let Some(reason) = told.refusals.first() {
        found += &format!(", the first with {reason}");
    }
    finding("no call for an order was refused for anything else", told.refusals.is_empty(), found)
}

fn no_orphans(found: &Found) -> Finding {
    finding("no orphan is left", found.unfinished == 0, format!("{} unfinished", found.unfinished))
}

#[cfg(test)]
mod tests;
