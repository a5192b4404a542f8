//! Export: gives all that has to be known of a session's requests where the session goes on, on another server.
//!
//! What is executed here after the export, or has been executed and is not in it, is executed again there. So an export
//! makes sure of this:
//!
//! * The session was dropped or bound to another node, and that is committed: no request of it begins any more, and none
//!   is replayed.
//! * Everybody who was at work in it has ended (`at_rest.rs`).
//! * No lease of it lasts: its holder could still record here, with the token. A lease that ran out gets another token,
//!   in the exporting transaction. Its holder is superseded by that, and a begin at the other server takes the request over.
//! * The session's lock is held to the end of the transaction. So the session is not made again meanwhile, nor imported into.
//! * The sweep's lock is shared while the rows are read. So nothing is deleted or emptied under the query. It is
//!   given back at the end of the call, since whoever may export could otherwise keep the sweep away for as long as he likes.
//! * Where the transaction keeps its snapshot, that has to see all that is exported (40001).

use crate::arguments;
use crate::domain::lease::Lease;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::lock::Tag;
use crate::model::{Session, StandingSession};
use crate::names;
use crate::open;
use crate::pg::{self, Deadline};
use crate::requests::at_rest;
use crate::requests::keeping;
use crate::requests::keyed::{Keyed, refuse_journal};
use crate::requests::repair;
use crate::requests::request::Request;
use crate::requests::start::supersede;
use crate::requests::waiting;
use crate::sessions::resolve;
use crate::store::audit;
use crate::store::lease::{self, NewLease};
use crate::store::moving;
use crate::store::outcome;
use crate::store::rel::{Access, Snapshot};
use crate::store::session::standing;
use crate::store::sql;
use std::rc::Rc;

/// Makes sure that nobody is at work in the session, and that nobody begins. Gives what fills in the rows.
pub fn export(name: &str, reason: &str, prefix: Option<&str>) -> Result<impl FnOnce(&pg::RowStore) + use<>, Error> {
    let found = standing(name)?;
    refuse_journal(&found, "idem_export")?;
    repair::check_reason(reason)?;
    arguments::check_writable("idem_export", || "The export is to be noted in idempotence.audit.".into())?;
    let deadline = Deadline::after(guc::wait_us());
    let what = || format!("a change of session \"{name}\", or an import into it,");
    names::standing_session_lock(&found.name).acquire_or_fail(deadline.left_us(), WAIT_BY_SETTING, what)?;
    let session = closed(name)?;
    at_rest::wait(&session, deadline)?;
    let prefix = session.prefix_as_kept(prefix.unwrap_or_default());
    supersede_leases(&session, &prefix, deadline)?;
    // It comes last, and is only tried for: no wait of this call may keep the sweep away.
    if !pg::retry(deadline.left_us(), |_| Tag::sweep().try_share()) {
        return Err(Error::WaitRanOut { what: "a step of the sweep".into(), hint: WAIT_BY_SETTING });
    }
    if pg::keeps_snapshot() && moving::any_unseen(&session.id) {
        return Err(Error::ExportsUnseen { session: session.name.clone() });
    }
    let reason = reason.to_owned();
    Ok(move |store: &pg::RowStore| {
        let rows = sql::fill(store, &moving::query(&session.id, &prefix));
        Tag::sweep().release_share();
        let found = if rows == 1 { "1 request".into() } else { format!("{rows} requests") };
        audit::note("export", &session.name, &prefix, Some(&reason), &found);
    })
}

/// Sees to it that no token completes a request here any more.
fn supersede_leases(session: &Rc<StandingSession>, prefix: &str, deadline: Deadline) -> Result<(), Error> {
    for key in lease::keys_of(&session.id).iter().filter(|key| key.starts_with(prefix)) {
        let request = Request::Keyed(Keyed::of(Rc::clone(session), key, None)?);
        let digest = request.digest();
        let lock = Tag::request(&digest);
        if !open::with_room(|| request.name(), || lock.acquire(deadline.left_us()))? {
            return Err(waiting::ran_out(request.name().to_string(), &lock, WAIT_BY_SETTING));
        }
        let now_us = pg::now_us();
        let Some(kept) = keeping::lease(&request, &digest, Snapshot::Itself)? else { continue };
        let (done, _) = outcome::find(&request.probe(digest), now_us, Snapshot::Itself, Access::Read)?;
        if done.is_some_and(|done| done.lives_at(now_us)) {
            // An import has brought the outcome since the begin, and the lease is over.
            keeping::delete_lease(&request, &digest)?;
        } else if kept.lease.runs_at(now_us) {
            let hint = "Export again when its holder has recorded or released it, or when the lease has run out.";
            return Err(Error::Leased { name: request.name(), until: pg::describe_moment(kept.lease.until), hint });
        } else {
            let superseded = supersede(&request, kept.lease, now_us, None)?;
            // Nobody takes it over by this.
            let (attempt, holder) = (kept.lease.attempt, waiting::holder_of_lease(&request, &digest));
            let new = kept.with(Lease { attempt, ..superseded }, request.stream(), &digest);
            keeping::save_lease(&request, &NewLease { holder, ..new })?;
        }
    }
    Ok(())
}

/// The standing session to export, which the caller owns or administers.
fn standing(name: &str) -> Result<Rc<StandingSession>, Error> {
    match resolve::owned_or_any(name, "export it")? {
        Session::Standing(session) => Ok(session),
        Session::Client(session) => Err(Error::Invalid {
            message: format!("client session \"{}\" cannot be exported", session.name),
            detail: "It stays where its client has registered.".into(),
            hint: "Let its client close it with idem_close(), and register at the other server.",
        }),
    }
}

/// The session under its lock. Refuses one that is not closed for all others.
fn closed(name: &str) -> Result<Rc<StandingSession>, Error> {
    let session = standing(name)?;
    let committed = standing::find(name).is_some_and(|(_, committed)| committed);
    let is_closed = session.dropped_at.is_some() || session.check_here().is_err();
    if is_closed && committed {
        return Ok(session);
    }
    Err(Error::SessionOpen { session: session.name.clone(), closed_here: is_closed })
}
