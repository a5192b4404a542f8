//! What an explanation says in sentences: why a begin would answer what it would, and what to do next.

use super::foresee::Answer;
use super::kept::Kept;
use super::now::Now;
use crate::domain::class::Class;
use crate::error::{Texts, legible};
use crate::pg;
use crate::requests::request::Request;
use crate::store::checkpoint::Checkpoint;
use crate::store::witness::Transaction;
use pgrx::spi::quote_literal;
use serde_json::{Value, json};

/// Why a begin would answer so, and what to do next.
type Words = (String, String);

/// What a begin would answer and why: the status of the ticket, or the SQLSTATE of the error, and whether the outcome would be
/// handed out. And what to do next.
pub fn tell(
    answer: Result<Answer, Texts>,
    request: &Request<'_>,
    kept: &Kept,
    redacted: bool,
    now: Option<&Now>,
) -> (Value, String) {
    let (status, replayed, (because, next)) = match answer {
        Err(told) => {
            let because = legible(&format!("{}. {}", capitalised(&told.message), told.detail));
            let begin = json!({ "status": null, "because": because, "replayed": false, "sqlstate": told.sqlstate() });
            return (begin, legible(&after_error(told, request, kept, now)));
        }
        Ok(Answer::Started) => ("started", false, started(kept)),
        Ok(Answer::TakenOver(attempt)) => ("taken_over", false, taken_over(attempt, kept)),
        Ok(Answer::Replay(class)) => (class.status(), true, replay(class, kept, redacted)),
        Ok(Answer::GivenUp(attempts)) => ("failed", true, (
            format!("Its session gives it up after attempt {attempts}, which was begun and not completed. The begin records that it has failed."),
            "Find out what its workers die of, and whether its effect has happened. The next begin records that it has failed; idem_force_record() records something else before that.".into(),
        )),
        Ok(Answer::Held) => ("in_progress", false, ("Another transaction has its lock.".into(), while_held(now))),
        Ok(Answer::Leased(until)) => ("in_progress", false, (
            format!("A lease that is in its way lasts until {}.", pg::iso_moment(until)),
            "Wait: its holder is at work. If the holder is known to be dead, idem_force_release(session, request, reason, live => true) lets the next begin take it over now.".into(),
        )),
        Ok(Answer::SessionTaken) => ("in_progress", false, (
            "Another transaction has its client session, to end it, to hand it over or to save it.".into(),
            "Ask again in a moment.".into(),
        )),
        Ok(Answer::NotDurable) if pg::in_recovery() => ("in_progress", false, (
            "It is done here, but this standby has not received that from the server that it follows.".into(),
            "Ask the primary: if this server was the primary before, the new primary may lack the outcome, and then a retry executes the request.".into(),
        )),
        Ok(Answer::NotDurable) => ("in_progress", false, (
            "Its outcome is committed, but not yet as durable as a commit here would be.".into(),
            "Ask again in a moment: it is done, and a retry executes nothing. If it stays so, a synchronous standby is away, and the row standby of idempotence.health tells which.".into(),
        )),
    };
    let begin = json!({ "status": status, "because": legible(&because), "replayed": replayed, "sqlstate": null });
    (begin, legible(&next))
}

fn after_error(told: Texts, request: &Request<'_>, kept: &Kept, now: Option<&Now>) -> String {
    let session = request.keyed().map(|keyed| &keyed.session);
    match &kept.outcome {
        _ if told.sqlstate() == "ID012" => told.hint,
        _ if session.is_some_and(|session| session.dropped_at.is_some()) => {
            "Find out why the session was dropped. Its owner makes it again with idem_create_session() and the same options; what is kept of its requests counts again then.".into()
        }
        _ if session.is_none_or(|session| !session.inbox) => told.hint,
        Some(outcome) if outcome.lives_at(kept.asked_at) => "Nothing: it was seen, so idem_once() says false.".into(),
        _ if now.is_some() => while_held(now),
        _ => "It was not seen here, or so long ago that this has expired, or it was forgotten (see audit_trail): idem_once() says true and notes it.".into(),
    }
}

fn started(kept: &Kept) -> Words {
    const GOES_ON: &str = "A retry goes on with it. If nobody retries it, its caller settles it (idem_settle), or an admin calls idem_force_record() with what has happened.";
    let (because, next) = match (&kept.checkpoint, &kept.lease, &kept.outcome) {
        (Some(Checkpoint { point, .. }), ..) => {
            (format!("It stopped at its point \"{point}\", and nobody is at work on it."), GOES_ON)
        }
        (None, Some(_), _) => ("It stopped before it was done, and nobody is at work on it.".into(), GOES_ON),
        (None, None, Some(_)) => (
            "Its outcome has expired, so it counts as new.".into(),
            "It was done before, and that was forgotten when it expired. A retry executes it again: send it only if that is wanted.",
        ),
        (None, None, None) => (
            "Nothing is kept of it: it was not done here, or it has expired, or it was forgotten.".into(),
            "It was not done here, or so long ago that its outcome has expired, or it was forgotten (see audit_trail). A retry executes it.",
        ),
    };
    (because, next.into())
}

fn taken_over(attempt: i32, kept: &Kept) -> Words {
    let at = kept.lease.as_ref().map(|lease| pg::iso_moment(lease.lease.until));
    let point = kept.checkpoint.as_ref().map(|checkpoint| &checkpoint.point);
    let because = format!(
        "A lease of it ran out{}{}, and nobody has completed it. This would be attempt {attempt}.",
        at.map(|at| format!(" at {at}")).unwrap_or_default(),
        point.map(|point| format!(", at or after its point \"{point}\"")).unwrap_or_default()
    );
    let next = "Find out whether its effect outside the database has happened. A retry takes it over and is told the point. If nobody retries it, its caller settles it (idem_settle), or an admin repairs it: idem_force_record() with what has happened, or idem_force_release() to let it start again.";
    (because, next.into())
}

fn replay(class: Class, kept: &Kept, redacted: bool) -> Words {
    let is_kept = match kept.given_up {
        true => {
            "It was given up: all attempts that its session allows were begun, and none was completed. That is its outcome."
        }
        false => "Its outcome is kept.",
    };
    let has_fingerprint = kept.outcome.as_ref().is_some_and(|outcome| outcome.fingerprint.is_some());
    let of_another = if has_fingerprint { " Another payload than the first is refused (ID001)." } else { "" };
    let next = if redacted {
        "Nothing: a retry executes nothing. Its response was redacted, so a retry gets NULL."
    } else if kept.given_up {
        "Find out what its workers died of, and whether its effect has happened: a retry gets this failure and executes nothing. idem_force_record() records what has happened instead; idem_forget() lets a retry execute it."
    } else if matches!(class, Class::Failed | Class::GivenUp) {
        "Nothing: a retry gets this failure and executes nothing. To have it executed after all, idem_forget() it first."
    } else {
        "Nothing: a retry gets this outcome and executes nothing. Whoever may use the session gets the response with idem_lookup()."
    };
    (format!("{is_kept}{of_another}"), next.into())
}

/// What to do while a transaction has the request's lock.
fn while_held(now: Option<&Now>) -> String {
    match now.and_then(|now| Some((now, now.holder.as_ref()?))) {
        Some((_, Transaction { prepared: Some(gid), .. })) => format!(
            "COMMIT PREPARED or ROLLBACK PREPARED {}, as its transaction manager decides. The request is in progress until then.",
            quote_literal(gid)
        ),
        Some((now, holder @ Transaction { pid: Some(pid), .. })) => while_at_work(*pid, holder, now.blocker.as_ref()),
        _ => "Ask again in a moment.".into(),
    }
}

/// What to do while this process has the lock. Ending it undoes the request, unless it has committed already; and it helps
/// nobody if another one holds it up.
fn while_at_work(pid: i32, holder: &Transaction, blocker: Option<&Transaction>) -> String {
    let root = blocker.map_or(Some(pid), |blocker| blocker.pid);
    match (root, blocker) {
        (Some(root), _) if blocker.unwrap_or(holder).waits_for(pg::FOR_STANDBY) => {
            let held_up = if root == pid { String::new() } else { format!(", which holds up process {pid},") };
            format!(
                "Wait: process {root}{held_up} has written its commit here, and waits for a synchronous standby. pg_terminate_backend({root}) would undo nothing: a retry gets the outcome, once the standby has it. The row standby of idempotence.health tells what is away."
            )
        }
        (Some(root), Some(Transaction { state, .. })) => format!(
            "Wait: process {pid} is at work on it, and waits for process {root} ({}). If that one hangs, pg_terminate_backend({root}) rolls it back, and process {pid} goes on. To end process {pid} would free nothing but this request.",
            state.as_deref().unwrap_or("state unknown")
        ),
        (None, Some(Transaction { prepared: Some(gid), .. })) => format!(
            "Wait: process {pid} is at work on it, and waits for a prepared transaction. COMMIT PREPARED or ROLLBACK PREPARED {}, as its transaction manager decides.",
            quote_literal(gid)
        ),
        (None, _) => format!(
            "Ask again in a moment: process {pid} is at work on it, and waits for a prepared transaction that has just ended."
        ),
        (Some(_), None) => format!(
            "Wait: process {pid} is at work on it. If that transaction hangs, pg_terminate_backend({pid}) rolls it back; a retry then executes the request."
        ),
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
