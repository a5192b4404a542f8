//! The list of a session's outcomes, for whoever may use the session. A monitor gets the list of any session, without
//! responses and fingerprints.

use crate::arguments;
use crate::domain::class::Class;
use crate::error::Error;
use crate::model::Session;
use crate::pg::{RowStore, Timestamptz};
use crate::requests::keyed::refuse_journal;
use crate::sessions::resolve;
use crate::store::listing::{self, Listing};
use crate::store::sql;

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

/// A list of outcomes, of which the rows are still to be given.
pub struct ListedOutcomes {
    session: Session,
    query: String,
}

/// Lists outcomes of a session, that which was recorded last first. The session may be dropped or ended.
pub fn outcomes(session: &str, asked: &AskedListing<'_>) -> Result<ListedOutcomes, Error> {
    let (session, in_full) = resolve::to_look_at(session)?;
    if let Session::Standing(session) = &session {
        refuse_journal(session, "idem_outcomes")?;
    }
    let class = asked.status.map(class).transpose()?;
    let most = most(asked.most)?;
    // A key of a session with time_keys is kept in lower case.
    let has_time_keys = matches!(&session, Session::Standing(session) if session.time_keys);
    let prefix = asked.prefix.map(|prefix| if has_time_keys { prefix.to_lowercase() } else { prefix.to_owned() });
    let [since, before] = [&asked.since, &asked.before].map(|at| at.as_ref().map(|at| at.0));
    let query = listing::query(&session, &Listing { prefix: prefix.as_deref(), class, since, before, most, in_full });
    Ok(ListedOutcomes { session, query })
}

impl ListedOutcomes {
    /// Gives the rows.
    pub fn fill(self, store: &RowStore) -> Result<(), Error> {
        if let (0, Session::Standing(session)) = (sql::fill(store, &self.query), &self.session) {
            // They may all be on the node that the session is bound to.
            session.check_here()?;
        }
        Ok(())
    }
}

fn class(status: &str) -> Result<Class, Error> {
    Class::of_status(status).ok_or_else(|| Error::Invalid {
        message: format!("status \"{status}\" is none that an outcome has"),
        detail: "The statuses of outcomes are succeeded, failed and cancelled.".into(),
        hint: "Name one of these, or leave status out. The view idempotence.unfinished lists what is not done.",
    })
}

fn most(most: i32) -> Result<usize, Error> {
    match usize::try_from(most) {
        Ok(most) if most > 0 => {
            let hint =
                "Ask for fewer, and go on with before => recorded_at of the last one, or raise idempotence.max_batch.";
            arguments::check_batch(|| "the number of outcomes asked for".into(), most, hint).map(|()| most)
        }
        _ => Err(Error::Invalid {
            message: "argument \"most\" is out of range".into(),
            detail: format!("Found {most}; it must be at least 1."),
            hint: "Say how many outcomes are wanted, or leave most out.",
        }),
    }
}
