//! The proof: what the clients were told, held against what the database holds.
//!
//! [`judge`] is a pure function of the journal and the evidence, so the tests can show that each of its
//! claims fails on evidence that is wrong.

use std::collections::{HashMap, HashSet};

use crate::bank::OPENING_BALANCE;
use crate::evidence::{Effect, Evidence, Kept, Lookup};
use crate::journal::{Book, Entry};
use crate::numbered::WINDOW;
use crate::proof::finding::{Finding, all_refused, finding};

pub mod finding;
pub mod fulfilment;

/// Checks every claim.
pub fn judge(book: &Book, evidence: &Evidence) -> Vec<Finding> {
    let effects = by_request(&evidence.effects);
    let mut findings = vec![
        money_conserved(evidence),
        balances_explained(evidence),
        answered_once(book, &effects, Identification::Key),
        answered_once(book, &effects, Identification::Number),
        unanswered_at_most_once(book, &effects),
        only_what_was_asked(book, &evidence.effects),
        one_answer(book),
        nothing_refused(book),
    ];
    if let Some(kept) = &evidence.kept {
        findings.extend([
            lookup_agrees(book, kept),
            effects_have_outcomes(book, &evidence.effects, kept),
            outcomes_have_effects(book, &effects, kept),
            forgotten_in_turn(book, kept),
            lost_without_answers(book, kept),
            all_refused("a used key with another payload gets ID001", book.mismatches),
            all_refused("a number no longer kept gets ID003", book.discarded),
            all_refused("a late one of a former process gets ID005 (or ID004)", book.late),
            nothing_left_behind(kept),
        ]);
    }
    findings
}

/// The effects by the names of their requests.
type EffectsByRequest<'a> = HashMap<&'a str, Vec<&'a Effect>>;

fn by_request(effects: &[Effect]) -> EffectsByRequest<'_> {
    let mut map = EffectsByRequest::new();
    for effect in effects {
        map.entry(&effect.request).or_default().push(effect);
    }
    map
}

fn execution_count(effects: &EffectsByRequest<'_>, key: &str) -> usize {
    effects.get(key).map_or(0, Vec::len)
}

fn money_conserved(evidence: &Evidence) -> Finding {
    let accounts = evidence.balances.len();
    let opening: i64 = evidence.balances.keys().map(|_| OPENING_BALANCE).sum();
    let now: i64 = evidence.balances.values().sum();
    finding(
        "money is conserved",
        accounts > 0 && now == opening,
        format!("{accounts} accounts hold {now}, opened with {opening}"),
    )
}

fn balances_explained(evidence: &Evidence) -> Finding {
    let mut expected: HashMap<i32, i64> = evidence.balances.keys().map(|&id| (id, OPENING_BALANCE)).collect();
    for effect in &evidence.effects {
        *expected.entry(effect.debit).or_default() -= effect.amount;
        *expected.entry(effect.credit).or_default() += effect.amount;
    }
    let wrong = expected.iter().filter(|(id, balance)| evidence.balances.get(id) != Some(balance)).count();
    finding(
        "every balance is what the effects make of it",
        wrong == 0,
        format!("{} effects, {wrong} wrong balances", evidence.effects.len()),
    )
}

/// How a request is identified in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identification {
    Key,
    Number,
}

impl Identification {
    fn of(entry: &Entry) -> Self {
        if entry.transfer.number().is_some() { Self::Number } else { Self::Key }
    }
}

/// A request whose answer is a success took effect exactly once. A request whose answer is a failure never
/// took effect.
fn answered_once(book: &Book, effects: &EffectsByRequest<'_>, by: Identification) -> Finding {
    let (mut answered, mut missing, mut doubled) = (0, 0, 0);
    for (name, entry) in book.entries.iter().filter(|(_, entry)| Identification::of(entry) == by) {
        let Some(answer) = &entry.answer else {
            continue;
        };
        answered += 1;
        let due = usize::from(!answer.failed);
        missing += due.saturating_sub(execution_count(effects, name));
        doubled += execution_count(effects, name).saturating_sub(due);
    }
    finding(
        match by {
            Identification::Key => "each answered request with a key took effect once",
            Identification::Number => "each answered request with a number took effect once",
        },
        answered > 0 && missing == 0 && doubled == 0,
        format!("{answered} requests: {missing} effects missing, {doubled} too many"),
    )
}

fn unanswered_at_most_once(book: &Book, effects: &EffectsByRequest<'_>) -> Finding {
    let executions: Vec<usize> = book
        .entries
        .iter()
        .filter(|(_, entry)| entry.answer.is_none())
        .map(|(key, _)| execution_count(effects, key))
        .collect();
    let doubled = executions.iter().filter(|&&times| times > 1).count();
    let done = executions.iter().filter(|&&times| times == 1).count();
    finding(
        "each never answered one at most once",
        doubled == 0,
        format!("{} requests: {done} done, {doubled} done twice", executions.len()),
    )
}

fn only_what_was_asked(book: &Book, effects: &[Effect]) -> Finding {
    let stray = effects
        .iter()
        .filter(|effect| !book.entries.get(&effect.request).is_some_and(|entry| asks_for(entry, effect)))
        .count();
    finding("no effect that nobody asked for", stray == 0, format!("{stray} unknown or altered"))
}

fn asks_for(entry: &Entry, effect: &Effect) -> bool {
    let transfer = &entry.transfer;
    (transfer.debit, transfer.credit, transfer.amount) == (effect.debit, effect.credit, effect.amount)
}

fn one_answer(book: &Book) -> Finding {
    let contradictions: u32 = book.entries.values().map(|e| e.contradictions).sum();
    let twice = book.entries.values().filter(|e| e.executions > 1).count();
    finding(
        "every answer to a request is the same",
        contradictions == 0 && twice == 0,
        format!(
            "{} replays: {contradictions} differ; {twice} requests said twice to be done just now",
            book.key_replays + book.number_replays
        ),
    )
}

fn nothing_refused(book: &Book) -> Finding {
    let mut found = format!("{} refused", book.refusals.len());
    if let Some(reason) = book.refusals.first() {
        found += &format!(", the first with {reason}");
    }
    finding("no request in order was refused", book.refusals.is_empty(), found)
}

/// Whether the extension has discarded the outcome of a number, because a later number took its place. It
/// then knows only that the number is over.
fn is_discarded(kept: &Kept, entry: &Entry) -> bool {
    Identification::of(entry) == Identification::Number
        && kept.lookups.get(&entry.transfer.name()).is_some_and(|lookup| lookup.status == "discarded")
}

fn lookup_agrees(book: &Book, kept: &Kept) -> Finding {
    let (mut compared, mut differ, mut over) = (0, 0, 0);
    for (name, entry) in &book.entries {
        match &entry.answer {
            Some(_) if is_discarded(kept, entry) => over += 1,
            Some(answer) => {
                compared += 1;
                if kept.lookups.get(name).and_then(Lookup::outcome).as_ref() != Some(answer) {
                    differ += 1;
                }
            }
            None => {}
        }
    }
    finding(
        "idem_lookup says what the client was told",
        compared > 0 && differ == 0,
        format!("{compared} compared, {differ} differ; {over} numbers are over"),
    )
}

/// One direction: the extension has an outcome for each effect, and the outcome names the same execution.
fn effects_have_outcomes(book: &Book, effects: &[Effect], kept: &Kept) -> Finding {
    let remembered = |effect: &Effect| {
        kept.lookups
            .get(&effect.request)
            .is_some_and(|lookup| lookup.status == "succeeded" && lookup.response["execution"] == effect.execution)
    };
    let over = |effect: &Effect| book.entries.get(&effect.request).is_some_and(|entry| is_discarded(kept, entry));
    let unrecorded = effects.iter().filter(|effect| !remembered(effect) && !over(effect)).count();
    finding("every effect has its outcome", unrecorded == 0, format!("{} effects, {unrecorded} without", effects.len()))
}

/// The other direction: each outcome belongs to a request that was asked for and that took effect, unless
/// the outcome is a failure.
fn outcomes_have_effects(book: &Book, effects: &EffectsByRequest<'_>, kept: &Kept) -> Finding {
    let groundless = kept
        .outcomes
        .iter()
        .filter(|name| {
            let outcome = kept.lookups.get(*name).and_then(Lookup::outcome);
            !outcome.is_some_and(|outcome| {
                book.entries.contains_key(*name) && execution_count(effects, name) == usize::from(!outcome.failed)
            })
        })
        .count();
    let remembered = kept.lookups.values().filter(|lookup| lookup.outcome().is_some()).count();
    let listed = kept.outcomes.len();
    finding(
        "every outcome has its effect",
        listed > 0 && groundless == 0 && listed == remembered,
        format!("{listed} outcomes, {groundless} without; idem_lookup knows {remembered}"),
    )
}

/// The outcome of a number is discarded only after a later number in the same place has an outcome.
fn forgotten_in_turn(book: &Book, kept: &Kept) -> Finding {
    let place = |entry: &Entry| {
        let number = entry.transfer.number()?;
        Some(((entry.transfer.session.clone(), number % WINDOW), number))
    };
    let mut newest: HashMap<(String, i64), i64> = HashMap::new();
    for entry in kept.outcomes.iter().filter_map(|name| book.entries.get(name)) {
        if let Some((place, number)) = place(entry) {
            newest.entry(place).and_modify(|newest| *newest = number.max(*newest)).or_insert(number);
        }
    }
    let over: Vec<_> = book.entries.values().filter(|entry| is_discarded(kept, entry)).filter_map(place).collect();
    let lost = over.iter().filter(|(place, number)| newest.get(place).is_none_or(|newest| newest <= number)).count();
    finding(
        "a number is forgotten only for a later one",
        lost == 0,
        format!("{} over, {} kept in their places, {lost} lost", over.len(), newest.len()),
    )
}

/// A crash loses only sessions without an outcome. The database still knows every session in which a request
/// was answered.
fn lost_without_answers(book: &Book, kept: &Kept) -> Finding {
    let known: HashSet<&str> = kept.sessions.iter().map(|session| session.session.as_str()).collect();
    let answered: HashSet<&str> = book
        .entries
        .values()
        .filter(|entry| Identification::of(entry) == Identification::Number && entry.answer.is_some())
        .map(|entry| entry.transfer.session.as_str())
        .collect();
    let wrong = answered.iter().filter(|session| !known.contains(*session) || book.lost.contains(**session)).count();
    finding(
        "a session with an outcome is never lost",
        wrong == 0,
        format!("{} with one, {wrong} lost; {} lost without", answered.len(), book.lost.len()),
    )
}

fn nothing_left_behind(kept: &Kept) -> Finding {
    let in_progress = kept.lookups.values().filter(|lookup| lookup.status == "in_progress").count();
    finding(
        "no claim is left behind",
        in_progress == 0 && kept.locks == 0,
        format!("{in_progress} in progress, {} locks", kept.locks),
    )
}

#[cfg(test)]
mod tests;
