//! A request as a caller names it, resolved and checked.

use crate::domain::identity::Digest;
use crate::domain::limits::KEY_CHARS_MAX;
use crate::domain::time_key;
use crate::error::{Error, Name};
use crate::guc;
use crate::open::{self, Which};
use crate::pg::{self, Jsonb};
use crate::protocol::liveness;
use crate::protocol::numbered::{Numbered, Numbering};
use crate::store::client::Client;
use crate::store::outcome::Wanted;
use crate::store::secret;
use crate::store::session::{Right, Session, Standing};
use pgrx::datum::Interval;
use std::borrow::Cow;
use std::rc::Rc;

/// What the right to a session is needed for, see [`Error::NotYours`].
pub const USE: &str = "use its requests";

/// Under which rules of its session a request is taken.
#[derive(Clone, Copy)]
pub enum Rules {
    /// Those of now: to begin it, or to look it up.
    Current,
    /// Those it was begun under in this transaction: for the steps that follow. A client session's never
    /// change.
    OfBegin,
}

/// A request that the caller has the right to use.
pub enum Request<'a> {
    /// Of a standing session.
    Keyed(Keyed<'a>),
    /// Of a client session.
    Numbered(Numbered<'a>),
}

impl<'a> Request<'a> {
    /// Finds the session, checks the caller's right to it, then what names the request.
    pub fn resolve(session: &str, key: &'a str, numbering: Numbering<'a>, rules: Rules) -> Result<Request<'a>, Error> {
        if let Some(id) = time_key::client_session(session) {
            let client = Client::of_caller(session, &id, USE)?;
            return Numbered::of(client, key, numbering).map(Request::Numbered);
        }
        let request = Keyed::resolve(session, key, rules)?;
        numbering.refuse(session)?;
        Ok(Request::Keyed(request))
    }

    /// Its session.
    pub fn session(&self) -> Session {
        match self {
            Request::Keyed(request) => Session::Standing(Rc::clone(&request.session)),
            Request::Numbered(request) => Session::Client(Rc::clone(&request.session)),
        }
    }

    /// What it is called on the open list.
    pub fn which(&self) -> Which<'_> {
        match self {
            Request::Keyed(Keyed { session, key, .. }) => Which { session: &session.name, stream: "", request: key },
            Request::Numbered(Numbered { session, stream, key, .. }) => {
                Which { session: &session.name, stream, request: key }
            }
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> Name {
        let Which { session, stream, request } = self.which();
        Name::in_stream(session, stream, request)
    }

    /// Where its outcome, if it has a key, and its checkpoint are kept.
    pub fn digest(&self) -> Digest {
        match self {
            Request::Keyed(request) => request.digest(),
            Request::Numbered(request) => secret::digest(&request.session.id, request.stream, &request.key),
        }
    }

    /// What is locked for it: itself, or where numbers share a slot or a line, that.
    pub fn lock(&self) -> Digest {
        match self {
            Request::Keyed(request) => request.digest(),
            Request::Numbered(request) => request.lock(),
        }
    }

    /// What tells it from others under its lock, see [`crate::open::answered`].
    pub fn number(&self) -> i64 {
        match self {
            Request::Keyed(_) => 0,
            Request::Numbered(request) => request.range.first,
        }
    }

    /// What the store looks for.
    pub fn wanted(&self, digest: Digest) -> Wanted<'_> {
        match self {
            Request::Keyed(request) => request.wanted(digest),
            Request::Numbered(request) => Wanted {
                session: &request.session.id,
                session_name: &request.session.name,
                stream: request.stream,
                key: &request.key,
                digest,
            },
        }
    }

    /// Until when a checkpoint of it counts: as long as an outcome recorded in its place would. In a client
    /// session neither has an end of its own.
    pub fn checkpoint_expires_at(&self, written_at_us: i64) -> i64 {
        match self {
            Request::Keyed(request) => request.expires_at_us(written_at_us, request.session.ttl_us()),
            Request::Numbered(_) => i64::MAX,
        }
    }

    /// Refuses a client session that nothing is known of any more.
    pub fn check_known(&self) -> Result<(), Error> {
        match self {
            Request::Keyed(_) => Ok(()),
            Request::Numbered(request) => liveness::check_known(&request.session),
        }
    }

    /// Refuses an inbox: there requests are not begun.
    pub fn check_not_inbox(&self) -> Result<(), Error> {
        match self {
            Request::Keyed(request) => check_sort(&request.session, false),
            Request::Numbered(_) => Ok(()),
        }
    }
}

/// A request of a standing session.
pub struct Keyed<'a> {
    /// Its session.
    pub session: Rc<Standing>,
    /// Its key, in canonical form where it is a time key.
    pub key: Cow<'a, str>,
    /// The time in its key, in a session with `time_keys`.
    pub key_time_us: Option<i64>,
}

impl<'a> Keyed<'a> {
    /// Finds the session, checks the caller's right to it, then the key.
    pub fn resolve(session: &str, key: &'a str, rules: Rules) -> Result<Keyed<'a>, Error> {
        let begun = match rules {
            Rules::OfBegin => open::session_of(session, key),
            Rules::Current => None,
        };
        let session = match begun {
            Some(session) => session.allowed(Right::Use, USE)?,
            None => Standing::of_caller(session, Right::Use, USE)?,
        };
        Keyed::of(session, key)
    }

    /// Checks the key of a request of a session that the caller has the right to.
    pub fn of(session: Rc<Standing>, key: &'a str) -> Result<Keyed<'a>, Error> {
        check_key(&session.name, key)?;
        if !session.time_keys {
            return Ok(Keyed { session, key: Cow::Borrowed(key), key_time_us: None });
        }
        // Upper case is the same UUID: it must be the same request.
        let Some(id) = time_key::parse(key) else {
            return Err(Error::Invalid {
                message: format!("{} has a key that is no UUID of version 7", Name::new(&session.name, key)),
                detail: "The session was made with time_keys, so that a key tells its own age.".into(),
                hint: "Make keys with idem_generate_id(), or any UUIDv7 library, in their form of 36 characters.",
            });
        };
        let key = Cow::Owned(id.hyphenated().to_string());
        Ok(Keyed { session, key, key_time_us: Some(time_key::time_us(&id)) })
    }

    /// Its name for messages.
    pub fn name(&self) -> Name {
        Name::new(&self.session.name, &self.key)
    }

    /// Where it is kept, and locked.
    pub fn digest(&self) -> Digest {
        secret::digest(&self.session.id, "", &self.key)
    }

    /// What the store looks for.
    pub fn wanted(&self, digest: Digest) -> Wanted<'_> {
        Wanted { session: &self.session.id, session_name: &self.session.name, stream: "", key: &self.key, digest }
    }

    /// Refuses a key from the future: it would outlive its segment.
    pub fn check_time(&self, now_us: i64) -> Result<(), Error> {
        match self.key_time_us {
            Some(time_us) if time_us > now_us.saturating_add(time_key::AHEAD_US_MAX) => Err(Error::Invalid {
                message: format!("{} has a key from the future", self.name()),
                detail: format!(
                    "The key's time is {} seconds ahead of the database's clock; {} are tolerated.",
                    (time_us - now_us) / 1_000_000,
                    time_key::AHEAD_US_MAX / 1_000_000
                ),
                hint: "Set the clock of the client that made the key.",
            }),
            _ => Ok(()),
        }
    }

    /// When an outcome recorded at `recorded_at_us` expires.
    pub fn expires_at_us(&self, recorded_at_us: i64, ttl_us: i64) -> i64 {
        recorded_at_us.max(self.key_time_us.unwrap_or(i64::MIN)).saturating_add(ttl_us)
    }
}

/// Refuses a session of the other sort: the two arbitrate differently and must not meet on one key.
pub fn check_sort(session: &Standing, inbox: bool) -> Result<(), Error> {
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

/// 1 to 255 characters.
pub fn check_key(session: &str, key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::Invalid {
            message: format!("a request of session \"{session}\" has an empty key"),
            detail: "Found a key of 0 characters.".into(),
            hint: "Send the key that names the operation; it must be the same on each retry.",
        });
    }
    check_chars(
        &format!("the key of a request of session \"{session}\""),
        key,
        KEY_CHARS_MAX,
        "Send a digest of it, idem_key() makes one from jsonb.",
    )
}

/// At most so many characters.
pub fn check_chars(what: &str, value: &str, chars_max: usize, hint: &'static str) -> Result<(), Error> {
    // Bytes first: they bound the characters, and need no counting.
    let chars = if value.len() <= chars_max { 0 } else { value.chars().count() };
    if chars <= chars_max {
        return Ok(());
    }
    Err(Error::LimitExceeded {
        what: what.into(),
        found: format!("{chars} characters"),
        limit: format!("{chars_max} characters"),
        hint,
    })
}

/// At most so many bytes.
pub fn check_jsonb(
    what: &str,
    of: &Name,
    value: Option<Jsonb>,
    bytes_max: usize,
    hint: &'static str,
) -> Result<(), Error> {
    match value.map_or(0, Jsonb::raw_bytes) {
        bytes if bytes <= bytes_max => Ok(()),
        bytes => Err(Error::LimitExceeded {
            what: format!("the {what} of {of}"),
            found: format!("{bytes} bytes"),
            limit: format!("{bytes_max} bytes"),
            hint,
        }),
    }
}

/// The digest of a payload that is not too large; refuses none where the session requires one.
pub fn fingerprint(request: &Request<'_>, payload: Option<Jsonb>) -> Result<Option<[u8; 16]>, Error> {
    match payload {
        None => match request {
            Request::Keyed(request) if request.session.require_payload => Err(Error::NullArgument {
                argument: "payload",
                element: None,
                because: format!("Session \"{}\" requires one with each request.", request.session.name),
            }),
            _ => Ok(None),
        },
        Some(payload) => {
            // The name is made only if it is needed: this is the hot path.
            if payload.raw_bytes() > guc::max_payload_bytes() {
                let hint = "Send what tells requests apart, not all of it, or raise idempotence.max_payload.";
                check_jsonb("payload", &request.name(), Some(payload), guc::max_payload_bytes(), hint)?;
            }
            Ok(Some(payload.fingerprint()))
        }
    }
}

/// How long to wait: the argument, or the setting where it is null. `None` is for ever.
pub fn wait_us(wait: Option<Interval>) -> Result<Option<i64>, Error> {
    let Some(wait) = wait else { return Ok(guc::wait_us()) };
    match pg::interval_us(&wait) {
        // 'infinity', where the server knows it.
        None if wait.micros() == i64::MAX => Ok(None),
        Some(us) if us >= 0 => Ok(Some(us)),
        found => Err(Error::Invalid {
            message: format!("the wait is {}", if found.is_some() { "negative" } else { "out of range" }),
            detail: "A wait is '0' or longer; NULL means as long as idempotence.wait says.".into(),
            hint: "To wait for ever, SET idempotence.wait = -1.",
        }),
    }
}

/// A length of time between two bounds.
pub fn duration_us(argument: &str, value: &Interval, us_min: i64, us_max: i64) -> Result<i64, Error> {
    match pg::interval_us(value) {
        Some(us) if (us_min..=us_max).contains(&us) => Ok(us),
        _ => Err(Error::Invalid {
            message: format!("the {argument} is out of range"),
            detail: format!("It must be at least {} and at most {}.", describe_us(us_min), describe_us(us_max)),
            hint: "Give an interval, such as '24 hours' or '7 days'; a month counts as 30 days.",
        }),
    }
}

/// A length of time for messages, as days, hours, minutes or seconds, whichever is whole.
pub fn describe_us(us: i64) -> String {
    const UNITS: [(i64, &str); 4] = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    for (unit_s, unit) in UNITS {
        let unit_us = unit_s * 1_000_000;
        if us >= unit_us && us % unit_us == 0 {
            let count = us / unit_us;
            return format!("{count} {unit}{}", if count == 1 { "" } else { "s" });
        }
    }
    format!("{us} microseconds")
}
