//! Explain: tells all that is known of one request, for whoever is on call: who is at work on it, what was recorded, what
//! is unfinished, how it was repaired, what a begin would answer and why, and what to do next. It takes no lock and
//! writes nothing, so it works on a standby and in a transaction that only reads. It never tells a payload, a state or a
//! response, since its answer is pasted into tickets.

mod foresee;
mod kept;
mod now;
mod words;

use crate::domain::end::End;
use crate::domain::sequence::Order;
use crate::error::Error;
use crate::guc;
use crate::model::Session;
use crate::pg;
use crate::requests::numbered::Numbering;
use crate::requests::request::Request;
use crate::sessions::{liveness, resolve};
use crate::store::catalog;
use crate::store::inbox;
use crate::store::session::client as saved;
use crate::store::witness::{self, At};
use kept::Kept;
use now::Now;
use serde_json::{Value, json};

/// How many transactions and how many repairs are told of at most.
const MOST: usize = 10;

/// The version of the shape. It changes if a member changes its meaning or goes away, not if one is added.
const VERSION: u32 = 1;

/// Explains a request of a session that the caller may use, or look at as a monitor. Gives JSON. jsonb orders the members of an
/// object by the lengths of their names, so the names of the sections are chosen such that this is the order in which somebody
/// on call asks for them. A section that has nothing to tell is null.
pub fn explain(session: &str, key: &str, stream: Option<&str>) -> Result<String, Error> {
    let (session, may_use) = resolve::to_look_at(session)?;
    let numbering = Numbering { stream, by_any_number: true, ..Numbering::default() };
    let request = Request::of(session, key, numbering)?;
    request.check_known()?;
    let lock = request.lock();
    // Who is at work is looked at first, so that a commit in between is not missed.
    let in_hand = if is_of_inbox(&request) { inbox::at_work(&lock) } else { None };
    let at = in_hand.map_or(At::Lock(&lock), |by| At::Transaction(pg::top_transaction(by)));
    let (at_work, waiters) = witness::at_work(&at, MOST + 1)?;
    let kept = Kept::of(&request, lock)?;
    let exact = kept.exact(&request);
    let request = exact.as_ref().unwrap_or(&request);
    let (audit_trail, redacted_at) = repairs(request, may_use)?;
    let of = of(request);
    let answer = foresee::begin(request).map_err(Error::texts);
    let now = if at_work.is_empty() { None } else { Some(Now::of(at_work, waiters, lock_is_of(request))?) };
    let redacted = kept.is_redacted(redacted_at);
    let (begin_answers, what_to_do_next) = words::tell(answer, request, &kept, redacted, now.as_ref());
    let told = json!({
        "of": of,
        "now": now,
        "outcome": kept.outcome(redacted),
        "version": VERSION,
        "unfinished": kept.unfinished(request)?,
        "audit_trail": audit_trail,
        "begin_answers": begin_answers,
        "what_to_do_next": what_to_do_next,
    });
    Ok(told.to_string())
}

/// Which request it is.
fn of(request: &Request<'_>) -> Value {
    let session = request.session();
    let (kind, owner, node, ended, at) = match &session {
        Session::Standing(session) => {
            let kind = if session.inbox { "inbox" } else { "standing" };
            let ended = session.dropped_at.map(|_| "dropped");
            (kind, session.owner, session.node.as_deref(), ended, session.dropped_at)
        }
        Session::Client(session) => {
            let written = saved::find(&session.id).and_then(|saved| saved.ended);
            let how = match (written, liveness::check(session)) {
                (Some((_, End::Closed)), _) => Some("closed"),
                (Some((_, End::Fenced)), _) | (None, Err(Error::SessionFenced { .. })) => Some("fenced"),
                // A session whose clock has run out has ended, whether anybody has written that down or not.
                (Some((_, End::Expired)), _) | (None, Err(Error::SessionEnded { .. })) => Some("expired"),
                (None, _) => None,
            };
            ("client", session.owner, session.node(), how, written.map(|(at, _)| at))
        }
    };
    let key = request.request_key();
    json!({
        // standing, inbox or client, as in the view `sessions`.
        "kind": kind,
        "last": request.range().map(|range| range.last),
        "node": guc::node(),
        "owner": pg::role_name(owner).unwrap_or_else(|| owner.to_u32().to_string()),
        // A standby sees neither locks nor unlogged tables of the primary.
        "server": if pg::in_recovery() { "standby" } else { "primary" },
        "stream": (request.range().is_some() || request.in_journal().is_some()).then_some(key.stream),
        "request": key.request,
        "session": key.session,
        // The node that a standing session is bound to, or where a client session was registered.
        "session_node": node,
        "session_ended": ended,
        "session_ended_at": at.map(pg::iso_moment),
    })
}

fn is_of_inbox(request: &Request<'_>) -> bool {
    request.keyed().is_some_and(|keyed| keyed.session.inbox)
}

/// What others wait for who wait for the request.
fn lock_is_of(request: &Request<'_>) -> &'static str {
    match request {
        Request::Keyed(_) if is_of_inbox(request) => "transaction",
        Request::Keyed(_) => "request",
        Request::Numbered(numbered) if numbered.session.order == Order::Any => "slot",
        Request::Numbered(_) => "stream",
    }
}

/// The last repairs of a request, the last one first, as far as the caller may know of them, and when the last one that takes
/// responses away took place. Who may use the session is told that there were repairs, and who may read the audit is told why as
/// well. A monitor is told nothing.
fn repairs(request: &Request<'_>, may_use: bool) -> Result<(Option<Value>, Option<i64>), Error> {
    let key = request.request_key();
    let name = if key.stream.is_empty() { key.request.to_owned() } else { format!("{}/{}", key.stream, key.request) };
    let made_at = match request.session() {
        Session::Standing(session) => session.created_at,
        Session::Client(session) => session.created_at,
    };
    let with_reason = catalog::may_read("audit");
    let (found, redacted_at) = witness::repairs(key.session, &name, made_at, MOST, with_reason)?;
    Ok(((may_use || with_reason).then_some(found), redacted_at))
}
