//! A request of a standing session, named by its key.

use crate::arguments;
use crate::domain::identity::Digest;
use crate::domain::limits::KEY_CHARS_MAX;
use crate::domain::time_key::{self, AHEAD_US_MAX};
use crate::error::{Error, RequestName};
use crate::journal::row::InJournal;
use crate::journal::table;
use crate::model::StandingSession;
use crate::names;
use crate::pg;
use crate::sessions::resolve;
use crate::store::probe::Probe;
use std::borrow::Cow;
use std::rc::Rc;

/// A request of a standing session.
pub struct Keyed<'a> {
    /// Its session.
    pub session: Rc<StandingSession>,
    /// Its key. A time key is in canonical form: lower case.
    pub key: Cow<'a, str>,
    /// The time in its key, in a session with `time_keys`.
    pub key_time_us: Option<i64>,
    /// Its row, in a session with a journal.
    pub journal: Option<Box<InJournal<'a>>>,
}

impl<'a> Keyed<'a> {
    /// Checks the key of a request of a session that the caller has the right to. In a session with a journal, the stream
    /// names the request's tenant.
    pub fn of(session: Rc<StandingSession>, key: &'a str, stream: Option<&str>) -> Result<Keyed<'a>, Error> {
        check_key(&session.name, key)?;
        let (key, key_time_us) = match session.time_keys.then(|| time_key::parse(key)) {
            None => (Cow::Borrowed(key), None),
            // In upper case it is the same UUID, so it must be the same request.
            Some(Some(id)) => (Cow::Owned(id.hyphenated().to_string()), Some(time_key::time_us(&id))),
            Some(None) => {
                return Err(Error::Invalid {
                    message: format!("{} has a key that is no UUID of version 7", RequestName::new(&session.name, key)),
                    detail: "The session was made with time_keys, so that a key tells its own age.".into(),
                    hint: "Make keys with idem_generate_id(), or any UUIDv7 library, in their form of 36 characters.",
                });
            }
        };
        let journal = in_journal(&session, &key, stream)?;
        Ok(Keyed { session, key, key_time_us, journal })
    }

    /// Its name for messages.
    pub fn name(&self) -> RequestName {
        RequestName::in_stream(&self.session.name, self.tenant(), &self.key)
    }

    /// The name of its tenant, in a session with a journal; otherwise empty.
    pub fn tenant(&self) -> &str {
        self.journal.as_ref().map_or("", |kept| kept.tenant())
    }

    /// The digest under which it is kept and locked, and by which memory knows it.
    pub fn digest(&self) -> Digest {
        names::of_request(&self.session.id, self.tenant(), &self.key)
    }

    /// What the tables are searched for.
    pub fn probe(&self, digest: Digest) -> Probe<'_> {
        Probe { session: &self.session.id, session_name: &self.session.name, stream: "", key: &self.key, digest }
    }

    /// Refuses a key from the future: its outcome would live until a ttl after the key's time.
    pub fn check_time(&self, now_us: i64) -> Result<(), Error> {
        let is_ahead = |time_us: &i64| *time_us > now_us.saturating_add(AHEAD_US_MAX);
        let Some(time_us) = self.key_time_us.filter(is_ahead) else { return Ok(()) };
        let (ahead_s, tolerated_s) = ((time_us - now_us) / 1_000_000, AHEAD_US_MAX / 1_000_000);
        Err(Error::Invalid {
            message: format!("{} has a key from the future", self.name()),
            detail: format!(
                "The key's time is {ahead_s} seconds ahead of the database's clock; {tolerated_s} are tolerated."
            ),
            hint: "Set the clock of the client that made the key.",
        })
    }

    /// In a session with `time_keys`: the earliest time at which an outcome of the key can have expired. No outcome was
    /// recorded with a shorter ttl than the session's, and none expires sooner than a ttl after the key's time.
    pub fn key_expires_at_us(&self) -> Option<i64> {
        self.key_time_us.map(|time_us| time_us.saturating_add(self.session.ttl_us()))
    }

    /// When an outcome recorded at `recorded_at_us` expires.
    pub fn expires_at_us(&self, recorded_at_us: i64, ttl_us: i64) -> i64 {
        recorded_at_us.max(self.key_time_us.unwrap_or(i64::MIN)).saturating_add(ttl_us)
    }
}

/// The row of a request in its session's journal; `None`: the session has none.
/// Refuses a table that has changed hands, or has taken the place of another one: it would know of no request.
fn in_journal<'a>(
    session: &Rc<StandingSession>,
    key: &Cow<'a, str>,
    stream: Option<&str>,
) -> Result<Option<Box<InJournal<'a>>>, Error> {
    let Some(name) = &session.journal else { return Ok(None) };
    // The owner executes the statements where the caller has a level, but no right to the session.
    let as_owner = !pg::is_superuser() && !resolve::may_use(session.owner, session.usable_by);
    let journal = match as_owner {
        // Whoever is on call need not have the right to the table's schema.
        true => pg::as_role(session.owner, || table::find(name))?,
        false => table::find(name)?,
    };
    journal.check_owner(session)?;
    let tenant = journal.tenant_text(&session.name, stream.unwrap_or_default())?;
    Ok(Some(Box::new(InJournal::new(journal, tenant, Rc::clone(session), key.clone(), as_owner))))
}

/// Refuses a session of the other sort. Inboxes and other sessions keep duplicates out in different ways, so they must
/// not meet on one key.
pub fn check_sort(session: &StandingSession, inbox: bool) -> Result<(), Error> {
    match (session.inbox, inbox) {
        (true, false) => Err(Error::Invalid {
            message: format!("session \"{}\" is an inbox", session.name),
            detail: "An inbox only deduplicates: its requests are not begun and have no response.".into(),
            hint: "Use idem_once() or idem_once_many() here, or a session made without inbox.",
        }),
        (false, true) => Err(Error::Invalid {
            message: format!("session \"{}\" is not an inbox", session.name),
            detail: "idem_once() and idem_once_many() serve sessions made with inbox => true only.".into(),
            hint: "Use idem_begin() and idem_record() here, or make an inbox with idem_create_session().",
        }),
        _ => Ok(()),
    }
}

/// Refuses a session with a journal for a function that works on our tables only.
pub fn refuse_journal(session: &StandingSession, function: &'static str) -> Result<(), Error> {
    let Some(journal) = &session.journal else { return Ok(()) };
    Err(Error::Invalid {
        message: format!("{function}() does not work on session \"{}\"", session.name),
        detail: format!("Its requests are rows of journal {journal}, which is a table of its owner."),
        hint: "Use SQL on the journal. docs/scaling.md tells what its columns mean.",
    })
}

/// Refuses a key that does not have 1 to 255 characters.
pub fn check_key(session: &str, key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::Invalid {
            message: format!("a request of session \"{session}\" has an empty key"),
            detail: "Found a key of 0 characters.".into(),
            hint: "Send the key that names the operation; it must be the same on each retry.",
        });
    }
    let what = format_args!("the key of a request of session \"{session}\"");
    arguments::check_chars(what, key, KEY_CHARS_MAX, "Send a digest of it, idem_key() makes one from jsonb.")
}
