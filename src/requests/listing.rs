//! The list of a session's outcomes, for whoever may use the session. A monitor gets the list of any session, without
//! responses and fingerprints.

use crate::arguments;
use crate::domain::class::Class;
use crate::error::{Error, or_raise};
use crate::model::Session;
use crate::pg::RowStore;
use crate::requests::keyed::refuse_journal;
use crate::sessions::resolve;
use crate::store::listing;
use crate::store::sql;

/// Lists outcomes of a session that were recorded in a period, that which was recorded last first. The session may be dropped
/// or ended. Gives what fills in the rows.
pub fn outcomes(
    session: &str,
    prefix: Option<&str>,
    status: Option<&str>,
    period: [Option<i64>; 2],
    most: i32,
) -> Result<impl FnOnce(&RowStore) + use<>, Error> {
    let (session, in_full) = resolve::to_look_at(session)?;
    let as_kept = match &session {
        Session::Standing(session) => {
            refuse_journal(session, "idem_outcomes")?;
            prefix.map(|prefix| session.prefix_as_kept(prefix))
        }
        Session::Client(_) => prefix.map(Into::into),
    };
    let (class, most) = (status.map(class).transpose()?, self::most(most)?);
    let query = listing::query(&session, as_kept.as_deref(), class, period, most, in_full);
    Ok(move |store: &RowStore| {
        if let (0, Session::Standing(session)) = (sql::fill(store, &query), session) {
            // They may all be on the node that the session is bound to.
            or_raise(session.check_here());
        }
    })
}

fn class(status: &str) -> Result<Class, Error> {
    Class::of_status(status).ok_or_else(|| Error::Invalid {
        message: format!("status \"{status}\" is none that an outcome has"),
        detail: "The statuses of outcomes are succeeded, failed and cancelled.".into(),
        hint: "Name one of these, or leave status out. The view idempotence.unfinished lists what is not done.",
    })
}

fn most(most: i32) -> Result<usize, Error> {
    let wanted = usize::try_from(most).ok().filter(|wanted| *wanted > 0).ok_or_else(|| Error::Invalid {
        message: "argument \"most\" is out of range".into(),
        detail: format!("Found {most}; it must be at least 1."),
        hint: "Say how many outcomes are wanted, or leave most out.",
    })?;
    let hint = "Ask for fewer, and go on with before => recorded_at of the last one, or raise idempotence.max_batch.";
    arguments::check_batch(|| "the number of outcomes asked for".into(), wanted, hint)?;
    Ok(wanted)
}
