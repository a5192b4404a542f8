//! The list of a session's outcomes, for whoever may use the session. A monitor gets the list of any session, without
//! responses and fingerprints.

use crate::domain::class::Class;
use crate::error::Error;
use crate::guc;
use crate::model::Session;
use crate::pg::{self, Timestamptz};
use crate::requests::keyed::refuse_journal;
use crate::sessions::resolve;
use crate::store::listing::{self, Listed, Listing};

/// Which outcomes a caller asks for. The arguments are as given.
pub struct AskedListing<'a> {
    /// `prefix`
    pub prefix: Option<&'a str>,
    /// `status`
    pub status: Option<&'a str>,
    /// `since`
    pub since: Option<Timestamptz>,
    /// `before`
    pub before: Option<Timestamptz>,
    /// `most`
    pub most: i32,
}

/// Lists outcomes of a session, that which was recorded last first. The session may be dropped or ended.
pub fn outcomes(session: &str, asked: &AskedListing<'_>) -> Result<Vec<Listed>, Error> {
    pg::begin_call();
    let (session, in_full) = resolve::to_look_at(session)?;
    if let Session::Standing(session) = &session {
        refuse_journal(session, "idem_outcomes")?;
    }
    let class = asked.status.map(class).transpose()?;
    let most = most(asked.most)?;
    // A key of a session with time_keys is kept in lower case.
    let has_time_keys = matches!(&session, Session::Standing(session) if session.time_keys);
    let prefix = asked.prefix.map(|prefix| if has_time_keys { prefix.to_lowercase() } else { prefix.to_owned() });
    let listed = listing::of_session(
        &session,
        &Listing {
            prefix: prefix.as_deref(),
            class,
            since: asked.since,
            before: asked.before,
            most,
            living_at: pg::now_us(),
            in_full,
        },
    )?;
    pg::check_memory()?;
    if let (Session::Standing(session), []) = (&session, &listed[..]) {
        // They may all be on the node that the session is bound to.
        session.check_here()?;
    }
    Ok(listed)
}

fn class(status: &str) -> Result<Class, Error> {
    Class::ALL.into_iter().find(|class| class.status() == status).ok_or_else(|| Error::Invalid {
        message: format!("status \"{status}\" is none that an outcome has"),
        detail: "The statuses of outcomes are succeeded, failed and cancelled.".into(),
        hint: "Name one of these, or leave status out. The view idempotence.unfinished lists what is not done.",
    })
}

fn most(most: i32) -> Result<usize, Error> {
    match usize::try_from(most) {
        Ok(most) if most > guc::max_batch() => Err(Error::LimitExceeded {
            what: "the number of outcomes asked for".into(),
            found: most.to_string(),
            limit: guc::max_batch().to_string(),
            hint: "Ask for fewer, and go on with before => recorded_at of the last one, or raise idempotence.max_batch.",
        }),
        Ok(most) if most > 0 => Ok(most),
        _ => Err(Error::Invalid {
            message: "argument \"most\" is out of range".into(),
            detail: format!("Found {most}; it must be at least 1."),
            hint: "Say how many outcomes are wanted, or leave most out.",
        }),
    }
}
