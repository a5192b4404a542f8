//! Makes, changes and drops standing sessions.

use crate::arguments;
use crate::domain::allowance::Kind;
use crate::domain::identity;
use crate::domain::limits::{ATTEMPTS_MAX, SESSION_CHARS_MAX, TTL_US_MAX, TTL_US_MIN};
use crate::domain::node;
use crate::domain::right::Right;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::journal::table;
use crate::model::StandingSession;
use crate::names;
use crate::pg;
use crate::sessions::{quota, resolve};
use crate::store::audit;
use crate::store::restore;
use crate::store::secret;
use crate::store::session::standing;
use pgrx::datum::Interval;
use pgrx::pg_sys;
use uuid::Uuid;

/// A ttl so short is hardly meant: retries come later.
const BRIEF_US: i64 = 60_000_000;

/// What may be asked for when a session is made and when it is changed. NULL leaves an option as it is or was.
pub struct Asked<'a> {
    /// How long its outcomes live. In a session that is made NULL means: as long as `idempotence.retention` says.
    pub ttl: Option<Interval>,
    /// Whether each request must come with a payload.
    pub require_payload: Option<bool>,
    /// The owner; at first the current role.
    pub owner: Option<pg_sys::Oid>,
    /// The role that it is lent to. The role `-` (0): nobody.
    pub usable_by: Option<pg_sys::Oid>,
    /// After how many attempts a request is given up instead of taken over. 0: never, as in a session that is made with NULL.
    pub max_attempts: Option<i32>,
    /// The node that it is bound to. `-`: none.
    pub node: Option<&'a str>,
}

impl Asked<'_> {
    /// The session with what is asked for. Refuses what no session can have.
    fn of(&self, so_far: StandingSession) -> Result<StandingSession, Error> {
        let name = &so_far.name;
        let ttl_us =
            self.ttl.as_ref().map(|ttl| arguments::duration_us("ttl", ttl, TTL_US_MIN, TTL_US_MAX)).transpose()?;
        check_new_roles(name, self.owner, self.usable_by.filter(|role| *role != pg_sys::InvalidOid))?;
        let max_attempts =
            self.max_attempts.map_or(so_far.max_attempts, |attempts| (attempts != 0).then_some(attempts));
        check_attempts(name, so_far.inbox, max_attempts)?;
        check_node(name, self.node)?;
        Ok(StandingSession {
            ttl_us: ttl_us.or(so_far.ttl_us),
            require_payload: self.require_payload.unwrap_or(so_far.require_payload),
            owner: self.owner.unwrap_or(so_far.owner),
            usable_by: self.usable_by.map_or(so_far.usable_by, |role| (role != pg_sys::InvalidOid).then_some(role)),
            max_attempts,
            node: self.node.map_or(so_far.node, |node| (node != node::NONE).then(|| node.into())),
            ..so_far
        })
    }
}

/// Makes a session, or makes a dropped one again. Gives false if there was such a session, with the same options. An inbox
/// only deduplicates; time keys are UUIDs of version 7; a journal is a table that keeps the requests, in place of ours.
pub fn create(
    name: &str,
    inbox: bool,
    time_keys: bool,
    journal: Option<&str>,
    asked: &Asked<'_>,
) -> Result<bool, Error> {
    check_name(name)?;
    if time_keys && asked.ttl.is_none() {
        return Err(Error::Invalid {
            message: format!("session \"{name}\" with time_keys needs a ttl"),
            detail: "How old a key may be is fixed when the session is made.".into(),
            hint: "Give ttl => '24 hours', say.",
        });
    }
    let new = StandingSession {
        id: Uuid::now_v7().into_bytes(),
        name: name.into(),
        owner: pg::current_role(),
        inbox,
        time_keys,
        created_at: pg::now_us(),
        ..StandingSession::default()
    };
    let wanted = asked.of(new)?;
    let journal = journal.map(|journal| checked_journal(&wanted, journal)).transpose()?;
    let wanted = StandingSession { journal, ..wanted };
    lock_to_change(name, "idem_create_session")?;
    let Some((so_far, _)) = standing::find(name) else {
        restore::refuse_new_session(name)?;
        secret::put_in_use()?;
        check_limits(&wanted, None)?;
        standing::save(&wanted);
        return Ok(true);
    };
    let wanted = asked.of(StandingSession {
        id: so_far.id,
        owner: so_far.owner,
        usable_by: so_far.usable_by,
        node: so_far.node.clone(),
        created_at: so_far.created_at,
        ..wanted
    })?;
    if so_far.dropped_at.is_none() {
        resolve::check(&so_far, Right::Own, "make it again")?;
        return if wanted == so_far { Ok(false) } else { Err(other_options(&so_far, &wanted)) };
    }
    // An admin may make it again, but may neither take nor lend it: its outcomes are still there.
    let roles = |session: &StandingSession| (session.owner, session.usable_by);
    if roles(&wanted) != roles(&so_far) || !pg::is_admin() {
        resolve::check(&so_far, Right::Own, "make the dropped session again")?;
    }
    // Its outcomes were made under these rules, so the rules stay. For example, a key that was too old stays so.
    let same_rules = StandingSession {
        inbox: so_far.inbox,
        time_keys: so_far.time_keys,
        ttl_us: if so_far.time_keys { so_far.ttl_us } else { wanted.ttl_us },
        journal: so_far.journal.clone(),
        ..wanted.clone()
    };
    if wanted != same_rules {
        let (ttl_us, dropped_at) = (so_far.ttl_us, so_far.dropped_at);
        return Err(other_options(&StandingSession { ttl_us, dropped_at, ..same_rules }, &wanted));
    }
    check_limits(&wanted, Some(&so_far))?;
    standing::save(&wanted);
    Ok(true)
}

/// Changes a session.
pub fn alter(name: &str, asked: &Asked<'_>) -> Result<(), Error> {
    let present = find_to_change(name, "change it", "idem_alter_session")?;
    let changed = asked.of(present.clone())?;
    if present.time_keys && changed.ttl_us != present.ttl_us {
        return Err(Error::Invalid {
            message: format!("the ttl of session \"{name}\" cannot change"),
            detail: "It has time_keys: keys that were refused as too old must stay so, and kept ones must stay kept."
                .into(),
            hint: "Make another session with the ttl wanted.",
        });
    }
    if let Some(journal) = changed.journal.as_ref().filter(|_| changed.owner != present.owner) {
        table::find(journal)?.check_owner(&changed)?;
    }
    check_limits(&changed, Some(&present))?;
    standing::save(&changed);
    let changes = differences(&present, &changed, |option, was, is| format!("{option} was {was}, is {is} now"));
    if !changes.is_empty() {
        audit::note("alter_session", name, "", None, &changes.join("; "));
    }
    if changed.ttl_us() < BRIEF_US.min(present.ttl_us()) {
        Error::BriefTtl { session: name.into(), was: ttl_in_words(&present), is: ttl_in_words(&changed) }.warn();
    }
    Ok(())
}

/// Drops a session. Its outcomes stay until they expire. If the session is made again, it finds them.
pub fn drop(name: &str) -> Result<(), Error> {
    let present = find_to_change(name, "drop it", "idem_drop_session")?;
    let found = options(&present).map(|(option, is)| format!("{option} {is}")).join(", ");
    standing::save(&StandingSession { dropped_at: Some(pg::now_us()), ..present });
    audit::note("drop_session", name, "", None, &found);
    Ok(())
}

/// The session, if the caller has the owner's privileges. Locks it against other changes.
fn find_to_change(name: &str, action: &'static str, function: &'static str) -> Result<StandingSession, Error> {
    // The right is checked before any lock, and again under the lock, since the owner may have changed.
    resolve::standing(name, Right::Own, action)?;
    lock_to_change(name, function)?;
    let Some((present, _)) = standing::find(name).filter(|(present, _)| present.dropped_at.is_none()) else {
        return Err(resolve::unknown(name));
    };
    resolve::check(&present, Right::Own, action)?;
    Ok(present)
}

fn lock_to_change(name: &str, function: &'static str) -> Result<(), Error> {
    arguments::check_writable(function, || "Sessions are rows of a table.".into())?;
    let what = || format!("another transaction's change of session \"{name}\"");
    names::standing_session_lock(name).acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::Invalid {
            message: "the name of a session is empty".into(),
            detail: "Found a name of 0 characters.".into(),
            hint: "Name it after what its requests do, such as 'payments'.",
        });
    }
    if identity::client_session(name).is_some() {
        return Err(Error::Invalid {
            message: format!("session \"{name}\" cannot be named like a client session"),
            detail: "A UUID, alone or before an @, is the name of a client session, which the server makes up itself."
                .into(),
            hint: "Name it after what its requests do, such as 'payments'.",
        });
    }
    arguments::check_chars("the name of a session", name, SESSION_CHARS_MAX, "Choose a shorter name.")
}

/// Refuses a role that does not exist, and an owner whose privileges the caller does not have. As with GRANT, an owner may
/// lend to any role.
fn check_new_roles(session: &str, owner: Option<pg_sys::Oid>, usable_by: Option<pg_sys::Oid>) -> Result<(), Error> {
    if let Some(role) = owner.into_iter().chain(usable_by).find(|role| pg::role_name(*role).is_none()) {
        return Err(Error::NoSuchRole { role: role.to_u32() });
    }
    match owner {
        Some(owner) if !pg::has_privileges_of(owner) => {
            Err(Error::CannotGive { session: session.into(), role: role_in_words(owner) })
        }
        _ => Ok(()),
    }
}

/// Refuses to bind to what is not the name of a node.
fn check_node(session: &str, asked: Option<&str>) -> Result<(), Error> {
    let asked = asked.filter(|node| *node != node::NONE);
    let Some(detail) = asked.and_then(|node| node::fault(node.as_bytes())) else { return Ok(()) };
    Err(Error::Invalid {
        message: format!("session \"{session}\" cannot be bound to a node of that name"),
        detail,
        hint: "The name of a node has 1 to 32 characters: letters of ASCII, digits, _, . and -. To bind the session to none, give '-'.",
    })
}

/// Refuses a number of attempts that no session can have, and any in an inbox.
fn check_attempts(session: &str, inbox: bool, max_attempts: Option<i32>) -> Result<(), Error> {
    match max_attempts {
        Some(attempts) if !(1..=ATTEMPTS_MAX).contains(&attempts) => Err(Error::Invalid {
            message: format!("max_attempts of session \"{session}\" is out of range"),
            detail: format!("Found {attempts}; it goes from 1 to {ATTEMPTS_MAX}, and 0 is no limit."),
            hint: "Say after how many attempts a request whose lease runs out again and again is given up.",
        }),
        Some(_) if inbox => Err(Error::Invalid {
            message: format!("inbox \"{session}\" cannot have max_attempts"),
            detail: "The requests of an inbox are not begun, so there are no attempts.".into(),
            hint: "Leave max_attempts out.",
        }),
        _ => Ok(()),
    }
}

/// The name of a journal, qualified and quoted. The table has to be there, and to fit.
fn checked_journal(session: &StandingSession, journal: &str) -> Result<String, Error> {
    if session.inbox {
        return Err(Error::Invalid {
            message: format!("inbox \"{}\" cannot have a journal", session.name),
            detail: "An inbox notes that keys were seen, many at a time, in tables of the extension.".into(),
            hint: "Leave journal out, or make a session that is no inbox.",
        });
    }
    let journal = table::find_named(journal)?;
    journal.check_owner(session)?;
    Ok(journal.name.clone())
}

/// Refuses a ttl and an owner beyond the limits, where they are new.
fn check_limits(wanted: &StandingSession, so_far: Option<&StandingSession>) -> Result<(), Error> {
    let most_us = guc::max_ttl_us();
    if let Some(ttl_us) = wanted.ttl_us
        && ttl_us > most_us
        && so_far.is_none_or(|so_far| so_far.ttl_us != wanted.ttl_us)
    {
        return Err(Error::LimitExceeded {
            what: format!("the ttl of session \"{}\"", wanted.name),
            found: arguments::describe_us(ttl_us),
            limit: arguments::describe_us(most_us),
            hint: "Ask for a shorter one, or have a superuser raise idempotence.max_ttl.",
        });
    }
    match so_far {
        Some(so_far) if so_far.owner == wanted.owner => Ok(()),
        _ => quota::take(wanted.owner, Kind::Standing),
    }
}

/// The options of a session, in words.
fn options(session: &StandingSession) -> [(&'static str, String); 9] {
    let none = || "-".to_owned();
    [
        ("inbox", session.inbox.to_string()),
        ("time_keys", session.time_keys.to_string()),
        ("journal", session.journal.clone().unwrap_or_else(none)),
        ("require_payload", session.require_payload.to_string()),
        ("ttl", ttl_in_words(session)),
        ("max_attempts", session.max_attempts.map_or("without a limit".into(), |attempts| attempts.to_string())),
        ("owner", role_in_words(session.owner)),
        ("usable_by", session.usable_by.map_or_else(none, role_in_words)),
        ("node", session.node.clone().unwrap_or_else(|| node::NONE.into())),
    ]
}

/// The options in which two states of a session differ. `say` puts an option in words, and what it is in each.
fn differences(of: &StandingSession, to: &StandingSession, say: fn(&str, &str, &str) -> String) -> Vec<String> {
    let both = options(of).into_iter().zip(options(to));
    let differing = both.filter(|(first, second)| first != second);
    differing.map(|((option, first), (_, second))| say(option, &first, &second)).collect()
}

fn ttl_in_words(session: &StandingSession) -> String {
    session.ttl_us.map_or("that of idempotence.retention".into(), arguments::describe_us)
}

fn role_in_words(role: pg_sys::Oid) -> String {
    pg::role_name(role).unwrap_or_else(|| role.to_u32().to_string())
}

/// The error for a session that exists with other options.
fn other_options(present: &StandingSession, wanted: &StandingSession) -> Error {
    let differences =
        differences(present, wanted, |option, present, wanted| format!("{option} is {present}, not {wanted}"));
    Error::SessionExists {
        session: present.name.clone(),
        dropped: present.dropped_at.is_some(),
        detail: format!("Its {}.", differences.join("; its ")),
        hint: "Change ttl, require_payload, owner, usable_by, max_attempts or node with idem_alter_session(). inbox, time_keys and journal never change, nor does ttl with time_keys; dropping the session does not help.",
    }
}
