//! What an explanation says in sentences: why a begin would answer what it would, and what to do next.

use super::foresee::{Answer, Because};
use super::kept::Kept;
use super::told::{Begin, Now, Of, Outcome, Unfinished};
use crate::domain::class::Class;
use crate::error::{Texts, legible};
use crate::pg;
use crate::store::witness::Transaction;
use pgrx::spi::quote_literal;

/// What a begin would answer, and why.
pub fn answer(
    answer: &Result<Answer, Texts>,
    kept: &Kept,
    outcome: Option<&Outcome>,
    unfinished: Option<&Unfinished>,
) -> Begin {
    let (status, replayed, because) = match answer {
        Err(told) => {
            let because = format!("{}. {}", capitalised(&told.message), told.detail);
            return Begin {
                status: None,
                because: legible(&because),
                replayed: false,
                sqlstate: Some(told.sqlstate()),
            };
        }
        Ok(Answer::Started) => ("started", false, why_started(kept, unfinished)),
        Ok(Answer::TakenOver(attempt)) => {
            let at = unfinished.and_then(|unfinished| unfinished.leased_until.as_ref());
            let because = format!(
                "A lease of it ran out{}{}, and nobody has completed it. This would be attempt {attempt}.",
                at.map(|at| format!(" at {at}")).unwrap_or_default(),
                point(unfinished).map(|point| format!(", at or after its point \"{point}\"")).unwrap_or_default()
            );
            ("taken_over", false, because)
        }
        Ok(Answer::Replay(class)) => {
            let fingerprint = kept.outcome.as_ref().and_then(|outcome| outcome.fingerprint);
            let of_another =
                if fingerprint.is_some() { " Another payload than the first is refused (ID001)." } else { "" };
            let kept = match outcome {
                Some(outcome) if outcome.given_up => {
                    "It was given up: all attempts that its session allows were begun, and none was completed. That is its outcome."
                }
                _ => "Its outcome is kept.",
            };
            (class.status(), true, format!("{kept}{of_another}"))
        }
        Ok(Answer::GivenUp(attempts)) => {
            let because = format!(
                "Its session gives it up after attempt {attempts}, which was begun and not completed. The begin records that it has failed."
            );
            ("failed", true, because)
        }
        Ok(Answer::InProgress(because)) => ("in_progress", false, why_in_progress(because)),
    };
    Begin { status: Some(status), because: legible(&because), replayed, sqlstate: None }
}

fn why_started(kept: &Kept, unfinished: Option<&Unfinished>) -> String {
    match (unfinished, &kept.outcome) {
        (Some(_), _) => match point(unfinished) {
            Some(point) => format!("It stopped at its point \"{point}\", and nobody is at work on it."),
            None => "It stopped before it was done, and nobody is at work on it.".into(),
        },
        (None, Some(_)) => "Its outcome has expired, so it counts as new.".into(),
        (None, None) => "Nothing is kept of it: it was not done here, or it has expired, or it was forgotten.".into(),
    }
}

fn point(unfinished: Option<&Unfinished>) -> Option<&str> {
    unfinished?.point.as_deref()
}

fn why_in_progress(because: &Because) -> String {
    match because {
        Because::Held => "Another transaction has its lock.".into(),
        Because::Leased(until) => format!("A lease that is in its way lasts until {}.", pg::iso_moment(*until)),
        Because::SessionTaken => {
            "Another transaction has its client session, to end it, to hand it over or to save it.".into()
        }
        Because::NotDurable => "Its outcome is committed, but not yet as durable as a commit here would be.".into(),
    }
}

/// What to do next.
pub fn advice(
    answer: Result<Answer, Texts>,
    of: &Of,
    now: Option<&Now>,
    outcome: Option<&Outcome>,
    unfinished: Option<&Unfinished>,
) -> String {
    match answer {
        Err(told) if told.sqlstate() == "ID012" => told.hint,
        Err(_) if of.kind == "inbox" && of.session_ended.is_none() => match outcome {
            Some(outcome) if !outcome.expired => "Nothing: it was seen, so idem_once() says false.".into(),
            _ if now.is_some() => while_in_progress(&Because::Held, now),
            _ => "It was not seen here, or so long ago that this has expired, or it was forgotten (see audit_trail): idem_once() says true and notes it.".into(),
        },
        Err(_) if of.session_ended == Some("dropped") => {
            "Find out why the session was dropped. Its owner makes it again with idem_create_session() and the same options; what is kept of its requests counts again then.".into()
        }
        Err(told) => told.hint,
        Ok(Answer::Replay(class)) => match outcome {
            Some(outcome) if outcome.redacted => {
                "Nothing: a retry executes nothing. Its response was redacted, so a retry gets NULL.".into()
            }
            Some(outcome) if outcome.given_up => {
                "Find out what its workers died of, and whether its effect has happened: a retry gets this failure and executes nothing. idem_force_record() records what has happened instead; idem_forget() lets a retry execute it.".into()
            }
            _ if matches!(class, Class::Failed | Class::GivenUp) => {
                "Nothing: a retry gets this failure and executes nothing. To have it executed after all, idem_forget() it first.".into()
            }
            _ => "Nothing: a retry gets this outcome and executes nothing. Whoever may use the session gets the response with idem_lookup().".into(),
        },
        Ok(Answer::InProgress(because)) => while_in_progress(&because, now),
        Ok(Answer::TakenOver(_)) => {
            "Find out whether its effect outside the database has happened. A retry takes it over and is told the point. If nobody retries it, its caller settles it (idem_settle), or an admin repairs it: idem_force_record() with what has happened, or idem_force_release() to let it start again.".into()
        }
        Ok(Answer::GivenUp(_)) => {
            "Find out what its workers die of, and whether its effect has happened. The next begin records that it has failed; idem_force_record() records something else before that.".into()
        }
        Ok(Answer::Started) => match (unfinished, outcome) {
            (Some(_), _) => "A retry goes on with it. If nobody retries it, its caller settles it (idem_settle), or an admin calls idem_force_record() with what has happened.".into(),
            (None, Some(_)) => "It was done before, and that was forgotten when it expired. A retry executes it again: send it only if that is wanted.".into(),
            (None, None) => "It was not done here, or so long ago that its outcome has expired, or it was forgotten (see audit_trail). A retry executes it.".into(),
        },
    }
}

fn while_in_progress(because: &Because, now: Option<&Now>) -> String {
    let holder = now.and_then(|now| now.holder.as_ref());
    match (because, holder.and_then(|holder| holder.prepared.as_ref()), holder.and_then(|holder| holder.pid)) {
        (Because::Leased(_), ..) => {
            "Wait: its holder is at work. If the holder is known to be dead, idem_force_release(session, request, reason, live => true) lets the next begin take it over now.".into()
        }
        (Because::Held, Some(gid), _) => format!(
            "COMMIT PREPARED or ROLLBACK PREPARED {}, as its transaction manager decides. The request is in progress until then.",
            quote_literal(gid)
        ),
        (Because::Held, None, Some(pid)) => while_at_work(pid, holder, now.and_then(|now| now.blocker.as_ref())),
        (Because::NotDurable, ..) => {
            "Ask again in a moment: it is done, and a retry executes nothing. If it stays so, a synchronous standby is away, and the row standby of idempotence.health tells which.".into()
        }
        _ => "Ask again in a moment.".into(),
    }
}

/// What to do while this process has the lock. Ending it undoes the request, unless it has committed already; and it helps
/// nobody if another one holds it up.
fn while_at_work(pid: i32, holder: Option<&Transaction>, blocker: Option<&Transaction>) -> String {
    let waits_for_standby = |of: Option<&Transaction>| of.is_some_and(|of| of.waits_for(pg::FOR_STANDBY));
    let root = blocker.map_or(Some(pid), |blocker| blocker.pid);
    match (root, blocker) {
        (Some(root), _) if waits_for_standby(blocker.or(holder)) => {
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
