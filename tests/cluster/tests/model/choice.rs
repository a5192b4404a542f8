//! The choice of the next step: at random, with a likelihood for each kind of step.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::memory::Memory;
use super::step::{Call, Step};
use super::stream::Kind;

/// Chooses what a connection does next.
pub fn choose(rng: &mut StdRng, memory: &Memory, by: usize, serial: usize) -> Step {
    if memory.sessions.is_empty() {
        return register(rng);
    }
    // Mostly a session that takes requests.
    let session = match memory.alive().choose(rng) {
        Some(alive) if rng.random_bool(0.9) => *alive,
        _ => rng.random_range(0..memory.sessions.len()),
    };
    let roll = rng.random_range(0..100);
    if !memory.in_transaction(by) {
        return match roll {
            0..60 => Step::Begin,
            60..65 => register(rng),
            65..66 if memory.sessions.len() > 1 => Step::Close { session },
            66..68 if memory.is_idle(session) => Step::Silence { session },
            _ => Step::Call { session, call: call(rng, memory, by, session, serial) },
        };
    }
    match roll {
        0..14 if memory.may_commit(by) => Step::Commit,
        14 => Step::Commit,
        15 => Step::Rollback,
        16..22 => Step::Savepoint,
        22..24 if memory.has_savepoint(by) => Step::RollbackTo,
        24..26 if memory.has_savepoint(by) => Step::ReleaseSavepoint,
        26..60 => match memory.open_requests(by).choose(rng) {
            Some(&(session, stream, first)) => Step::Call { session, call: go_on(rng, stream, first, serial) },
            None => Step::Call { session, call: begin(rng, memory, by, session) },
        },
        60..85 => Step::Call { session, call: begin(rng, memory, by, session) },
        _ => Step::Call { session, call: call(rng, memory, by, session, serial) },
    }
}

fn register(rng: &mut StdRng) -> Step {
    Step::Register {
        client: rng.random_bool(0.7).then(|| rng.random_range(0..2)),
        resume: rng.random_bool(0.3),
        request_id: rng.random_bool(0.4).then(|| rng.random_range(0..3)),
        kind: Kind { strict: rng.random_bool(0.5), window: rng.random_range(1..5) },
    }
}

/// A call that goes on with a begun request.
fn go_on(rng: &mut StdRng, stream: usize, first: i64, serial: usize) -> Call {
    match rng.random_range(0..20) {
        0 => Call::Ack { stream, upto: first },
        3 => Call::Release { stream, first },
        1 | 2 | 4 | 5 => Call::Checkpoint { stream, first, point: format!("p{serial}") },
        _ => {
            let status = if rng.random_bool(0.8) { "succeeded" } else { "failed" };
            Call::Record { stream, first, answer: format!("{status}|{serial}") }
        }
    }
}

fn begin(rng: &mut StdRng, memory: &Memory, by: usize, session: usize) -> Call {
    let stream = usize::from(rng.random_bool(0.2));
    let view = memory.stream(by, session, stream);
    let kind = memory.sessions[session].kind;
    let range = match view.done.choose(rng) {
        Some(done) if rng.random_bool(0.35) => done.range,
        _ => {
            let first = near(rng, memory, by, session, stream).max(1);
            (first, if kind.strict { first + rng.random_range(0..3) } else { first })
        }
    };
    let payload = rng.random_bool(0.5).then(|| if rng.random_bool(0.8) { range.0 } else { -1 });
    let said = if rng.random_bool(0.1) { near(rng, memory, by, session, stream) } else { 0 };
    Call::Begin { stream, range, payload, said }
}

/// A call of any other kind, or a call for a request that may not be begun.
fn call(rng: &mut StdRng, memory: &Memory, by: usize, session: usize, serial: usize) -> Call {
    let stream = usize::from(rng.random_bool(0.2));
    let number = near(rng, memory, by, session, stream);
    match rng.random_range(0..14) {
        0..3 => {
            let half_way = memory.stream(by, session, stream).checkpoints.into_keys().filter(|_| rng.random_bool(0.5));
            Call::Lookup { stream, number: half_way.max().unwrap_or(number.max(1)) }
        }
        3..5 => Call::Position { stream },
        5 => Call::Heartbeat,
        6..8 => Call::Ack { stream, upto: number.saturating_sub(rng.random_range(0..3)).max(0) },
        8 | 9 if !memory.sessions[session].kind.strict => Call::Allocate { stream, count: rng.random_range(1..4) },
        10 => go_on(rng, stream, number.max(1), serial),
        _ => begin(rng, memory, by, session),
    }
}

/// A number near the position of the stream. Half of the time it is the next number.
fn near(rng: &mut StdRng, memory: &Memory, by: usize, session: usize, stream: usize) -> i64 {
    let kind = memory.sessions[session].kind;
    let stream = memory.stream(by, session, stream);
    let next = stream.done.iter().map(|done| done.range.1).max().unwrap_or(0).max(stream.acked) + 1;
    if rng.random_bool(0.5) {
        return next;
    }
    rng.random_range((next - 2 * kind.window - 2).max(0)..next + kind.window + 2)
}
