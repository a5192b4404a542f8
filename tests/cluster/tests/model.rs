//! A model of a client, compared with the extension's own arithmetic and with servers: both must give the
//! same answer at each of thousands of random steps. The model remembers everything, and the extension keeps
//! a few slots. Each run takes other steps; `IDEM_MODEL_SEED` repeats a run.

mod answers;
mod choice;
mod log;
mod memory;
mod requests;
mod sessions;
mod step;
mod stream;
mod transactions;

/// This module of the extension is pure, so that it can be compiled without the extension. Its unit tests run
/// with those of the extension.
#[allow(dead_code)]
#[path = "../../../src/domain/sequence.rs"]
mod sequence;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::client::UP;
use idempotence_cluster_tests::{Cluster, Connection, Version, on_each_version};
use memory::Memory;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use step::{Call, Names, Step, TIMEOUT_S};
use stream::{Done, Kind, Place, STREAMS, Stream};

on_each_version!(a_server_answers_each_step_as_the_model_does);

fn seed() -> Result<u64> {
    match std::env::var("IDEM_MODEL_SEED") {
        Ok(seed) => seed.parse().context("IDEM_MODEL_SEED"),
        Err(_) => Ok(rand::random()),
    }
}

// Goal: from slots, window and acknowledged numbers the domain places each request just as a memory of
// everything does.
// Method: numbers near the end of streams of both orders, with ranges, acknowledgements and dropped
// responses.
#[test]
fn the_domain_places_each_request_as_the_model_does() -> Result<()> {
    let seed = seed()?;
    let mut rng = StdRng::seed_from_u64(seed);
    for episode in 0..2000 {
        let kind = Kind { strict: rng.random_bool(0.5), window: rng.random_range(1..6) };
        let (mut stream, mut slots) = (Stream::default(), vec![None; kind.window as usize]);
        for step in 0..60 {
            go_one_step(&mut rng, kind, &mut stream, &mut slots).with_context(|| {
                format!("IDEM_MODEL_SEED={seed}, episode {episode}, step {step}: {kind:?}, {stream:?}")
            })?;
        }
    }
    Ok(())
}

/// A slot of the domain, as the store keeps it.
type Slot = Option<sequence::Kept>;

fn go_one_step(rng: &mut StdRng, kind: Kind, stream: &mut Stream, slots: &mut [Slot]) -> Result<()> {
    let next = stream.position(kind).1;
    let number = rng.random_range((next - 2 * kind.window).max(1)..next + kind.window + 1);
    match rng.random_range(0..10) {
        0 => stream.acked = stream.acked.max(number - 2),
        1 => {
            if let Some(&at) = stream.kept(kind).first() {
                let done = &mut stream.done[at];
                done.dropped = true;
                let range = sequence::Range { first: done.range.0, last: done.range.1 };
                slots.iter_mut().flatten().filter(|kept| kept.range == range).for_each(|kept| kept.answers = false);
            }
        }
        _ => {
            let last = if kind.strict { number + rng.random_range(0..3) } else { number };
            let said = if rng.random_bool(0.2) { rng.random_range(0..=number) } else { 0 };
            send(kind, stream, slots, (number, last), said)?;
        }
    }
    Ok(())
}

/// Places a request by the domain and by the model. Executes it if it is the next request.
fn send(kind: Kind, stream: &mut Stream, slots: &mut [Slot], range: stream::Range, said: i64) -> Result<()> {
    let order = if kind.strict { sequence::Order::Strict } else { sequence::Order::Any };
    let asked = sequence::Range { first: range.0, last: range.1 };
    let acked = sequence::Acked { stored: stream.acked, visible: true, with_request: said };
    let kept: Vec<_> = match order {
        sequence::Order::Any => slots[(range.0 % kind.window) as usize].into_iter().collect(),
        sequence::Order::Strict => slots.iter().flatten().copied().collect(),
    };
    let found = sequence::place(order, kind.window as i32, acked, &kept, asked).place;
    let wanted = stream.place(kind, range, said);
    let agree = match (found, &wanted) {
        (sequence::Place::Kept(at), Place::Answered(done)) => {
            kept[at].range == sequence::Range { first: stream.done[*done].range.0, last: stream.done[*done].range.1 }
        }
        (sequence::Place::Discarded, Place::Discarded) => true,
        (sequence::Place::Next(_), Place::Next) => true,
        (sequence::Place::Ahead(_) | sequence::Place::Overlaps(_), Place::OutOfSequence) => true,
        _ => false,
    };
    ensure!(agree, "{asked:?} with ack {said}: {found:?} by the domain, {wanted:?} by the model");
    if let sequence::Place::Next(slot) = found {
        slots[slot as usize] = Some(sequence::Kept { range: asked, slot, answers: true, visible: true });
        stream.done.push(Done { range, answer: String::new(), payload: None, dropped: false });
        stream.acked = stream.acked.max(said);
    }
    Ok(())
}

// Goal: whatever two connections of a client do with its sessions, each gets the answer that the model says.
// Method: episodes of random steps: new, repeated, skipped and acknowledged numbers, ranges, payloads,
// savepoints, rollbacks, registrations, resumptions, fencing, closing and silence. No call waits. Before each begin,
// idem_explain is asked what it will answer.
async fn a_server_answers_each_step_as_the_model_does(version: Version) -> Result<()> {
    const EPISODES: usize = 150;
    const STEPS: usize = 80;
    let cluster = Cluster::start(version)?;
    cluster.create_database("shop")?;
    let connections = [cluster.connect("shop").await?, cluster.connect("shop").await?];
    connections[0].text(FORESEEN).await?;
    for connection in &connections {
        connection.text("SET idempotence.wait = '0'; SET lock_timeout = '1 min'").await?;
    }
    let can_end = format!("SELECT clock_timestamp() > {UP} + 1.125 * '{TIMEOUT_S} s'::interval");
    cluster.wait_for("shop", &can_end, "t").await?;
    let seed = seed()?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut met = BTreeMap::new();
    for episode in 0..EPISODES {
        let mut trace = Vec::new();
        go_through(&mut rng, &connections, episode, STEPS, &mut trace)
            .await
            .with_context(|| format!("IDEM_MODEL_SEED={seed}, episode {episode}:\n{}", trace.join("\n")))?;
        for (_, answer) in trace.iter().filter_map(|line| line.rsplit_once(" -- ")) {
            *met.entry(answer.split('|').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
    }
    met.retain(|answer, _| ANSWERS.contains(&answer.as_str()) || answer.parse::<i64>().is_err());
    println!("{met:?}");
    for answer in ANSWERS {
        ensure!(met.contains_key(answer), "IDEM_MODEL_SEED={seed}: the answer {answer} did not come up");
    }
    Ok(())
}

/// All possible answers to a step, but for numbers.
const ANSWERS: [&str; 20] = [
    "",
    "t",
    "f",
    "started",
    "succeeded",
    "failed",
    "in_progress",
    "discarded",
    "suspended",
    "unknown",
    "ID001",
    "ID002",
    "ID003",
    "ID004",
    "ID005",
    "ID006",
    "ID007",
    "ID008",
    "55006",
    "55P03",
];

async fn go_through(
    rng: &mut StdRng,
    connections: &[Connection; 2],
    episode: usize,
    steps: usize,
    trace: &mut Vec<String>,
) -> Result<()> {
    let ids = connections[0].text("SELECT gen_random_uuid() FROM generate_series(1, 3)").await?;
    let mut names = Names { sessions: Vec::new(), request_ids: ids.lines().map(Into::into).collect(), episode };
    let mut memory = Memory::default();
    for serial in 0..steps {
        let by = usize::from(rng.random_bool(0.4));
        let step = choice::choose(rng, &memory, by, serial);
        let failed = go(connections, &mut memory, &mut names, by, &step, trace).await?;
        if failed && memory.in_transaction(by) {
            let back = if memory.has_savepoint(by) && rng.random_bool(0.7) { Step::RollbackTo } else { Step::Rollback };
            go(connections, &mut memory, &mut names, by, &back, trace).await?;
        }
    }
    for by in 0..connections.len() {
        go(connections, &mut memory, &mut names, by, &Step::Rollback, trace).await?;
    }
    Ok(())
}

/// Takes one step. Returns whether the step failed, as the model says.
async fn go(
    connections: &[Connection; 2],
    memory: &mut Memory,
    names: &mut Names,
    by: usize,
    step: &Step,
    trace: &mut Vec<String>,
) -> Result<bool> {
    let sql = step.sql(names);
    let foreseen = foresee(&connections[by], names, step).await?;
    let found = connections[by].try_text(&sql).await;
    let state = found.as_ref().err().and_then(|error| error.code()).map(|state| state.code().to_owned());
    let failed = state.is_some();
    let mut answer = match (found, state) {
        (_, Some(state)) => state,
        (found, None) => found?,
    };
    if let (Step::Register { .. }, false) = (step, failed) {
        answer = numbered(names, &answer)?;
    }
    let wanted = memory.take(by, step);
    if failed && !memory.in_transaction(by) {
        // A server reports the error before it rolls back and releases the locks.
        connections[by].text("SELECT").await?;
    }
    trace.push(format!("{by}: {sql} -- {answer}"));
    ensure!(answer == wanted, "connection {by} was to be answered {wanted}");
    if let Some(foreseen) = foreseen {
        let status = answer.split('|').next().unwrap_or_default();
        // An explanation knows no payload that could differ. And a request that starts outside a transaction block is not
        // recorded when its statement commits.
        let told = status == foreseen || status == "ID001" || (status, foreseen.as_str()) == ("ID008", "started");
        ensure!(told, "connection {by} was to be answered {foreseen}, by idem_explain");
    }
    Ok(failed)
}

/// What an explanation says that a begin answers, if it is about the same numbers. The transaction goes on where the
/// explanation fails. Where it cannot tell of a session, since another transaction has all that is known of it, a begin
/// answers `in_progress`.
const FORESEEN: &str = "
    CREATE FUNCTION foreseen(session text, first bigint, last bigint, stream text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        told jsonb;
    BEGIN
        told := idem_explain(session, first, stream);
        IF told #> '{of,request}' = to_jsonb(first::text) AND told #> '{of,last}' = to_jsonb(last) THEN
            RETURN coalesce(told #>> '{begin_answers,status}', told #>> '{begin_answers,sqlstate}');
        END IF;
        RETURN NULL;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'in_progress';
    WHEN OTHERS THEN
        RETURN SQLSTATE;
    END
    $$";

/// What idem_explain() says that the step will be answered, if the step is a begin that gives no numbers up.
async fn foresee(connection: &Connection, names: &Names, step: &Step) -> Result<Option<String>> {
    let Step::Call { session, call: Call::Begin { stream, range: (first, last), said: 0, .. } } = step else {
        return Ok(None);
    };
    let (session, stream) = (&names.sessions[*session], STREAMS[*stream]);
    let foreseen = connection.text(&format!("SELECT foreseen('{session}', {first}, {last}, '{stream}')")).await?;
    Ok((!foreseen.is_empty()).then_some(foreseen))
}

/// Replaces the name of the session by its place in the order of registration.
fn numbered(names: &mut Names, answer: &str) -> Result<String> {
    let columns: Vec<&str> = answer.split('|').collect();
    let [resumed, session, next] = columns[..] else { anyhow::bail!("registered: {answer}") };
    if !names.sessions.iter().any(|name| name == session) {
        names.sessions.push(session.to_owned());
    }
    let at = names.sessions.iter().position(|name| name == session).context("it was just added")?;
    Ok(format!("{resumed}|{at}|{next}"))
}
