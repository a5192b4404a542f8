//! The proof: what the clients were told, held against what the database holds.
//!
//! [`Evidence`] is read once everything is quiet; [`judge`] is a pure function of it and of the
//! journal, so that each of its findings is itself tested against evidence that is wrong.

use std::collections::HashMap;
use std::fmt;

use anyhow::Result;
use serde_json::Value;
use tokio_postgres::Client;

use crate::bank::{OPENING_BALANCE, Outcome};
use crate::journal::{Book, Entry};

/// How many keys to look up in one statement.
const LOOKUP_BATCH: usize = 5_000;

/// A row of `effect`: an execution that was committed.
#[derive(Clone, Debug)]
pub struct Effect {
    pub execution: String,
    pub request: String,
    pub debit: i32,
    pub credit: i32,
    pub amount: i64,
}

/// What the extension remembers of a key.
#[derive(Clone, Debug)]
pub struct Memory {
    pub status: String,
    pub response: Value,
}

/// What the database holds after the run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub balances: HashMap<i32, i64>,
    pub effects: Vec<Effect>,
    /// What the extension holds; `None` in a run without keys.
    pub kept: Option<Kept>,
}

#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// `idem_lookup` of every key that was ever asked for.
    pub lookups: HashMap<String, Memory>,
    /// The keys of all outcomes of the session.
    pub outcomes: Vec<String>,
    /// Advisory locks still held or waited for: claims are such.
    pub locks: i64,
}

impl Evidence {
    /// Reads it as the bank's role; `dba` may see what belongs to nobody in particular.
    pub async fn read(bank: &Client, dba: &Client, book: &Book, with_keys: bool) -> Result<Self> {
        let balances = bank.query("SELECT id, balance FROM account", &[]).await?;
        let effects = bank.query("SELECT execution::text, request, debit, credit, amount FROM effect", &[]).await?;
        Ok(Self {
            balances: balances.iter().map(|row| (row.get(0), row.get(1))).collect(),
            effects: effects
                .iter()
                .map(|row| Effect {
                    execution: row.get(0),
                    request: row.get(1),
                    debit: row.get(2),
                    credit: row.get(3),
                    amount: row.get(4),
                })
                .collect(),
            kept: match with_keys {
                true => Some(Kept::read(bank, dba, book).await?),
                false => None,
            },
        })
    }
}

impl Kept {
    async fn read(bank: &Client, dba: &Client, book: &Book) -> Result<Self> {
        let keys: Vec<&String> = book.entries.keys().collect();
        let mut lookups = HashMap::with_capacity(keys.len());
        for batch in keys.chunks(LOOKUP_BATCH) {
            let rows = bank
                .query(
                    "SELECT key, status, response
                       FROM unnest($1::text[]) AS key, idem_lookup('payments', key)",
                    &[&batch],
                )
                .await?;
            lookups.extend(rows.iter().map(|row| {
                let memory =
                    Memory { status: row.get(1), response: row.get::<_, Option<Value>>(2).unwrap_or_default() };
                (row.get(0), memory)
            }));
        }
        let outcomes = dba.query("SELECT request FROM idempotence.outcomes WHERE session = 'payments'", &[]).await?;
        let locks = dba.query_one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", &[]).await?;
        Ok(Self { lookups, outcomes: outcomes.iter().map(|row| row.get(0)).collect(), locks: locks.get(0) })
    }
}

/// One line of the proof.
#[derive(Clone, Debug)]
pub struct Finding {
    pub holds: bool,
    pub claim: &'static str,
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "ok" } else { "FAILED" };
        write!(f, "  {verdict:<7} {:<52} {}", self.claim, self.found)
    }
}

fn finding(claim: &'static str, holds: bool, found: String) -> Finding {
    Finding { holds, claim, found }
}

/// Every claim, with what was found.
pub fn judge(book: &Book, evidence: &Evidence) -> Vec<Finding> {
    let effects = by_request(&evidence.effects);
    let mut findings = vec![
        money_conserved(evidence),
        balances_explained(evidence),
        answered_once(book, &effects),
        unanswered_at_most_once(book, &effects),
        only_what_was_asked(book, &evidence.effects),
        one_answer(book),
        nothing_refused(book),
    ];
    if let Some(kept) = &evidence.kept {
        findings.extend([
            lookup_agrees(book, kept),
            effects_have_outcomes(&evidence.effects, kept),
            outcomes_have_effects(book, &effects, kept),
            mismatches_refused(book),
            nothing_left_behind(kept),
        ]);
    }
    findings
}

/// Is the proof worth anything? Without faults, retries prove nothing. `kills`: where wanted.
pub fn put_to_test(replies_lost: u64, replays: Option<u64>, kills: Option<u64>) -> Finding {
    let found = [("replies lost", Some(replies_lost)), ("replays", replays), ("kills", kills)];
    let counted = || found.iter().filter_map(|(what, count)| Some((what, (*count)?)));
    finding(
        "the faults were real",
        counted().all(|(_, count)| count > 0),
        counted().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", "),
    )
}

type ByRequest<'a> = HashMap<&'a str, Vec<&'a Effect>>;

fn by_request(effects: &[Effect]) -> ByRequest<'_> {
    let mut map = ByRequest::new();
    for effect in effects {
        map.entry(&effect.request).or_default().push(effect);
    }
    map
}

fn times(effects: &ByRequest<'_>, key: &str) -> usize {
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

/// A request that was answered took effect exactly once; one whose answer is a failure, never.
fn answered_once(book: &Book, effects: &ByRequest<'_>) -> Finding {
    let (mut answered, mut missing, mut doubled) = (0, 0, 0);
    for (key, entry) in &book.entries {
        let Some(answer) = &entry.answer else {
            continue;
        };
        answered += 1;
        let due = usize::from(!answer.failed);
        missing += due.saturating_sub(times(effects, key));
        doubled += times(effects, key).saturating_sub(due);
    }
    finding(
        "each answered request took effect exactly once",
        answered > 0 && missing == 0 && doubled == 0,
        format!("{answered} requests: {missing} effects missing, {doubled} too many"),
    )
}

fn unanswered_at_most_once(book: &Book, effects: &ByRequest<'_>) -> Finding {
    let executions: Vec<usize> =
        book.entries.iter().filter(|(_, entry)| entry.answer.is_none()).map(|(key, _)| times(effects, key)).collect();
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
        format!("{} replays: {contradictions} differ; {twice} requests said twice to be done just now", book.replays),
    )
}

fn nothing_refused(book: &Book) -> Finding {
    let mut found = format!("{} refused", book.refusals.len());
    if let Some(reason) = book.refusals.first() {
        found += &format!(", the first with {reason}");
    }
    finding("no request in order was refused", book.refusals.is_empty(), found)
}

fn lookup_agrees(book: &Book, kept: &Kept) -> Finding {
    let answers = book.entries.iter().filter_map(|(key, entry)| Some((key, entry.answer.as_ref()?)));
    let (mut compared, mut differ) = (0, 0);
    for (key, answer) in answers {
        compared += 1;
        if kept.lookups.get(key).and_then(outcome_of).as_ref() != Some(answer) {
            differ += 1;
        }
    }
    finding(
        "idem_lookup says what the client was told",
        compared > 0 && differ == 0,
        format!("{compared} compared, {differ} differ"),
    )
}

fn outcome_of(memory: &Memory) -> Option<Outcome> {
    Some(Outcome {
        failed: match memory.status.as_str() {
            "succeeded" => false,
            "failed" => true,
            _ => return None,
        },
        response: memory.response.clone(),
    })
}

/// One way: whatever took effect is remembered, as that very execution.
fn effects_have_outcomes(effects: &[Effect], kept: &Kept) -> Finding {
    let unrecorded = effects
        .iter()
        .filter(|effect| {
            !kept
                .lookups
                .get(&effect.request)
                .is_some_and(|memory| memory.status == "succeeded" && memory.response["execution"] == effect.execution)
        })
        .count();
    finding("every effect has its outcome", unrecorded == 0, format!("{} effects, {unrecorded} without", effects.len()))
}

/// The other way: whatever is remembered was asked for, and took effect unless it failed.
fn outcomes_have_effects(book: &Book, effects: &ByRequest<'_>, kept: &Kept) -> Finding {
    let groundless = kept
        .outcomes
        .iter()
        .filter(|key| {
            let outcome = kept.lookups.get(*key).and_then(outcome_of);
            !outcome.is_some_and(|outcome| {
                book.entries.contains_key(*key) && times(effects, key) == usize::from(!outcome.failed)
            })
        })
        .count();
    let remembered = kept.lookups.values().filter(|memory| outcome_of(memory).is_some()).count();
    let listed = kept.outcomes.len();
    finding(
        "every outcome has its effect",
        listed > 0 && groundless == 0 && listed == remembered,
        format!("{listed} outcomes, {groundless} without; idem_lookup knows {remembered}"),
    )
}

fn mismatches_refused(book: &Book) -> Finding {
    let (refused, accepted) = (book.mismatches_refused, book.mismatches_accepted);
    finding(
        "a used key with another payload gets ID001",
        accepted == 0,
        format!("{} sent, {accepted} not refused so", refused + accepted),
    )
}

fn nothing_left_behind(kept: &Kept) -> Finding {
    let in_progress = kept.lookups.values().filter(|memory| memory.status == "in_progress").count();
    finding(
        "no claim is left behind",
        in_progress == 0 && kept.locks == 0,
        format!("{in_progress} in progress, {} locks", kept.locks),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bank::Transfer;
    use crate::client::Answer;

    const DONE: &str = "done";
    const FAILED: &str = "failed";
    const UNHEARD: &str = "unheard";

    fn transfer(key: &str, amount: i64) -> Transfer {
        Transfer { key: key.to_owned(), debit: 1, credit: 2, amount }
    }

    fn effect(execution: &str, key: &str, amount: i64) -> Effect {
        Effect { execution: execution.to_owned(), request: key.to_owned(), debit: 1, credit: 2, amount }
    }

    fn memory(status: &str, response: Value) -> Memory {
        Memory { status: status.to_owned(), response }
    }

    fn answer(replayed: bool, failed: bool, response: Value) -> Answer {
        Answer { outcome: Outcome { failed, response }, replayed }
    }

    /// A run in which all is well: one request done and replayed, one failed, one done but
    /// never answered.
    fn sound() -> (Book, Evidence) {
        let mut book = Book::default();
        book.ask(&transfer(DONE, 10));
        book.answer(DONE, answer(false, false, json!({ "execution": "a" })));
        book.answer(DONE, answer(true, false, json!({ "execution": "a" })));
        book.ask(&transfer(FAILED, 5000));
        book.answer(FAILED, answer(false, true, json!({ "error": "funds" })));
        book.ask(&transfer(UNHEARD, 20));
        book.mismatches_refused = 1;

        let kept = Kept {
            lookups: HashMap::from([
                (DONE.into(), memory("succeeded", json!({ "execution": "a" }))),
                (FAILED.into(), memory("failed", json!({ "error": "funds" }))),
                (UNHEARD.into(), memory("succeeded", json!({ "execution": "b" }))),
            ]),
            outcomes: vec![DONE.into(), FAILED.into(), UNHEARD.into()],
            locks: 0,
        };
        let evidence = Evidence {
            balances: HashMap::from([(1, 970), (2, 1030)]),
            effects: vec![effect("a", DONE, 10), effect("b", UNHEARD, 20)],
            kept: Some(kept),
        };
        (book, evidence)
    }

    /// The claims that do not hold once the sound run has been spoilt.
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
        assert_eq!(failed.len(), 2);
    }

    #[test]
    fn a_run_without_faults_proves_nothing() {
        assert!(put_to_test(1, Some(1), Some(1)).holds);
        assert!(put_to_test(1, None, None).holds);
        assert!(!put_to_test(0, Some(1), Some(1)).holds);
        assert!(!put_to_test(1, Some(0), None).holds);
        assert!(!put_to_test(1, Some(1), Some(0)).holds);
    }

    #[test]
    fn lost_money_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.balances.insert(2, 1029);
        });
        assert_eq!(failed, ["money is conserved", "every balance is what the effects make of it"]);
    }

    #[test]
    fn a_double_execution_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.effects.push(effect("c", DONE, 10));
            evidence.balances = HashMap::from([(1, 960), (2, 1040)]);
        });
        assert_eq!(
            failed,
            [
                "each answered request took effect exactly once",
                "every effect has its outcome",
                "every outcome has its effect"
            ]
        );
    }

    #[test]
    fn a_double_execution_of_an_unanswered_request_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.effects.push(effect("c", UNHEARD, 20));
            evidence.balances = HashMap::from([(1, 950), (2, 1050)]);
        });
        assert!(failed.contains(&"each never answered one at most once"));
    }

    #[test]
    fn a_lost_effect_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.effects.remove(0);
            evidence.balances = HashMap::from([(1, 980), (2, 1020)]);
        });
        assert_eq!(failed, ["each answered request took effect exactly once", "every outcome has its effect"]);
    }

    #[test]
    fn an_effect_of_a_failed_request_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.effects.push(effect("c", FAILED, 5000));
            evidence.balances = HashMap::from([(1, -4030), (2, 6030)]);
        });
        assert!(failed.contains(&"each answered request took effect exactly once"));
    }

    #[test]
    fn an_altered_effect_is_seen() {
        let failed = failures(|_, evidence, _| {
            evidence.effects[0].amount = 11;
            evidence.balances = HashMap::from([(1, 969), (2, 1031)]);
        });
        assert_eq!(failed, ["no effect that nobody asked for"]);
    }

    #[test]
    fn another_answer_on_replay_is_seen() {
        let failed = failures(|book, _, _| {
            book.answer(DONE, answer(true, false, json!({ "execution": "c" })));
        });
        assert_eq!(failed, ["every answer to a request is the same"]);
    }

    #[test]
    fn an_answer_that_claims_a_second_execution_is_seen() {
        let failed = failures(|book, _, _| {
            book.answer(DONE, answer(false, false, json!({ "execution": "a" })));
        });
        assert_eq!(failed, ["every answer to a request is the same"]);
    }

    #[test]
    fn a_refusal_is_seen() {
        let failed = failures(|book, _, _| book.refusals.push("XX000: oops".into()));
        assert_eq!(failed, ["no request in order was refused"]);
    }

    #[test]
    fn a_memory_that_differs_from_the_answer_is_seen() {
        let failed = failures(|_, _, kept| {
            kept.lookups.insert(FAILED.into(), memory("failed", json!({ "error": "other" })));
        });
        assert_eq!(failed, ["idem_lookup says what the client was told"]);
    }

    #[test]
    fn a_forgotten_outcome_is_seen() {
        let failed = failures(|_, _, kept| {
            kept.lookups.insert(UNHEARD.into(), memory("unknown", Value::Null));
            kept.outcomes.pop();
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
        let failed = failures(|book, _, _| book.mismatches_accepted = 1);
        assert_eq!(failed, ["a used key with another payload gets ID001"]);
    }

    #[test]
    fn a_claim_left_behind_is_seen() {
        let failed = failures(|_, _, kept| kept.locks = 1);
        assert_eq!(failed, ["no claim is left behind"]);
    }
}
