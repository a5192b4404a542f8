//! Repairs by hand, for admins. Each takes a reason and is noted in `idempotence.audit`.

use crate::arguments;
use crate::domain::class::Class;
use crate::domain::identity::{self, Digest};
use crate::domain::limits::REASON_CHARS_MAX;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::open::{self, RequestKey};
use crate::pg;
use crate::requests::keyed::Keyed;
use crate::sessions::resolve;
use crate::store::audit::{self, Repair};
use crate::store::checkpoint;
use crate::store::inbox;
use crate::store::outcome;
use crate::store::restore;
use crate::store::session::standing;
use std::rc::Rc;

/// Forgets the outcome and the checkpoint of a request, so that the request may be executed again. Tells whether there
/// was anything to forget. A caller that may execute the function is an admin and needs no right to the session.
pub fn forget(session_name: &str, key: &str, reason: &str) -> Result<bool, Error> {
    check_reason(reason)?;
    if identity::client_session(session_name).is_some() {
        return Err(Error::Invalid {
            message: format!("a request of client session \"{session_name}\" cannot be forgotten"),
            detail: "That a number was done is told by what its slot keeps.".into(),
            hint: "Let its client send the operation again under a number of its own.",
        });
    }
    let Some((session, _)) = standing::find(session_name) else {
        return Err(resolve::unknown(session_name));
    };
    let request = Keyed::of(Rc::new(session), key)?;
    arguments::check_writable("idem_forget", || "A repair is noted in idempotence.audit.".into())?;
    if open::holds(RequestKey { session: session_name, stream: "", request: &request.key }) {
        let hint = "Record or release it; what is not recorded needs no forgetting.";
        return Err(Error::AlreadyBegun { name: request.name(), hint });
    }
    let digest = request.digest();
    if !Tag::request(&digest).acquire(guc::wait_us()) {
        return Err(Error::WaitRanOut { what: request.name().to_string(), hint: WAIT_BY_SETTING });
    }

    let found = forget_all(&request, digest)?;
    let (session, request) = (session_name, request.key.as_ref());
    audit::insert(&Repair { action: "forget", session, request, reason, found: found.unwrap_or("nothing") });
    Ok(found.is_some())
}

/// Deletes what is kept of the request and tells what that was. The caller has the request's lock.
fn forget_all(request: &Keyed<'_>, digest: Digest) -> Result<Option<&'static str>, Error> {
    if request.session.inbox {
        // No other call on an inbox takes the lock, so the deletion may have to wait for a row.
        let delete = || inbox::delete(&digest, pg::now_us());
        let waited = || Error::WaitRanOut { what: request.name().to_string(), hint: WAIT_BY_SETTING };
        return Ok(pg::bounded_or_error(guc::wait_us(), delete, waited)?.then_some("succeeded outcome"));
    }
    let probe = request.probe(digest);
    let outcome = outcome::clear(&probe)?;
    let checkpoint = checkpoint::delete(&probe)?;
    Ok(match outcome {
        Some(Class::Succeeded) => Some("succeeded outcome"),
        Some(Class::Failed) => Some("failed outcome"),
        None => checkpoint.then_some("checkpoint"),
    })
}

/// Accepts that a restore brought rows without their sessions. Tells whether there was anything to accept.
pub fn accept_restore(reason: &str) -> Result<bool, Error> {
    check_reason(reason)?;
    arguments::check_writable("idem_accept_restore", || "A decision is noted in idempotence.audit.".into())?;
    if !Tag::sweep().acquire(guc::wait_us()) {
        let what = "a restore by another transaction, or a step of the sweep,".into();
        return Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING });
    }
    let accepted = restore::accept()?;
    if accepted {
        let found = "rows restored, perhaps without their sessions";
        audit::insert(&Repair { action: "accept_restore", session: "", request: "", reason, found });
    }
    Ok(accepted)
}

fn check_reason(reason: &str) -> Result<(), Error> {
    if reason.trim().is_empty() {
        return Err(Error::Invalid {
            message: "the reason is empty".into(),
            detail: "A repair takes a reason, which idempotence.audit keeps.".into(),
            hint: "Say in a few words why it is done, for whoever reads the audit later.",
        });
    }
    arguments::check_chars(
        "the reason",
        reason,
        REASON_CHARS_MAX,
        "Say it in fewer words, or refer to where it is told in full.",
    )
}
