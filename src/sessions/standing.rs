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

/// The options that a session is made with.
pub struct Options<'a> {
    /// How long its outcomes live; NULL: as long as `idempotence.retention` says.
    pub ttl: Option<Interval>,
    /// Whether each request must come with a payload.
    pub require_payload: bool,
    /// Whether it is an inbox, which only deduplicates.
    pub inbox: bool,
    /// Whether its keys are time keys: UUIDs of version 7.
    pub time_keys: bool,
    /// The owner. NULL: the current role, or the former owner if there is or was such a session.
    pub owner: Option<pg_sys::Oid>,
    /// The role that it is lent to. NULL: nobody, or as before if there is or was such a session. The role `-` (0):
    /// nobody.
    pub usable_by: Option<pg_sys::Oid>,
    /// After how many attempts a request is given up instead of taken over. NULL or 0: never.
    pub max_attempts: Option<i32>,
    /// The node that it is bound to. NULL: none, or as before if there is or was such a session. `-`: none.
    pub node: Option<&'a str>,
    /// The table that keeps its requests; NULL: ours do.
    pub journal: Option<&'a str>,
}

/// Makes a session, or makes a dropped one again. Gives false if there was such a session, with the same options.
pub fn create(name: &str, options: &Options<'_>) -> Result<bool, Error> {
    check_name(name)?;
    let ttl_us = options.ttl.as_ref().map(checked_ttl_us).transpose()?;
    if options.time_keys && ttl_us.is_none() {
        return Err(Error::Invalid {
            message: format!("session \"{name}\" with time_keys needs a ttl"),
            detail: "How old a key may be is fixed when the session is made.".into(),
            hint: "Give ttl => '24 hours', say.",
        });
    }
    if let Some(owner) = options.owner {
        check_giving(name, owner)?;
    }
    check_lending(options.usable_by)?;
    let max_attempts = checked_attempts(name, options.max_attempts)?.flatten();
    refuse_attempts_of_inbox(name, options.inbox, max_attempts)?;
    check_node(name, options.node)?;
    let owner = options.owner.unwrap_or_else(pg::current_role);
    let journal = options.journal.map(|journal| checked_journal(name, options.inbox, owner, journal)).transpose()?;
    check_writable("idem_create_session")?;
    take_lock(name)?;

    let now_us = pg::now_us();
    // What the session is to be; `so_far` is what it is or was.
    let wanted = |id, created_at, owner, so_far: Option<&StandingSession>| StandingSession {
        id,
        name: name.into(),
        owner,
        usable_by: lent(options.usable_by, so_far.and_then(|so_far| so_far.usable_by)),
        node: bound(options.node, so_far.and_then(|so_far| so_far.node.as_deref())),
        require_payload: options.require_payload,
        inbox: options.inbox,
        time_keys: options.time_keys,
        ttl_us,
        max_attempts,
        journal: journal.clone(),
        created_at,
        dropped_at: None,
    };
    match standing::find(name) {
        None => {
            check_max_ttl(name, ttl_us)?;
            restore::refuse_new_session(name)?;
            secret::put_in_use()?;
            let owner = options.owner.unwrap_or_else(pg::current_role);
            quota::take(owner, Kind::Standing)?;
            standing::save(&wanted(Uuid::now_v7().into_bytes(), now_us, owner, None));
        }
        Some((present, _)) if present.dropped_at.is_none() => {
            resolve::check(&present, Right::Own, "make it again")?;
            let owner = options.owner.unwrap_or(present.owner);
            let same = wanted(present.id, present.created_at, owner, Some(&present));
            return if same == present { Ok(false) } else { Err(other_options(&present, &same)) };
        }
        Some((tombstone, _)) => {
            let owner = options.owner.unwrap_or(tombstone.owner);
            let again = wanted(tombstone.id, tombstone.created_at, owner, Some(&tombstone));
            // An admin may make it again, but may neither take nor lend it: its outcomes are still there.
            let roles = |session: &StandingSession| (session.owner, session.usable_by);
            if roles(&again) != roles(&tombstone) || !pg::is_admin() {
                resolve::check(&tombstone, Right::Own, "make the dropped session again")?;
            }
            // Its outcomes were made under these rules, so the rules stay. For example, a key that was too old stays
            // so.
            let rules = |session: &StandingSession| {
                let ttl_us = session.ttl_us.filter(|_| session.time_keys);
                (session.inbox, session.time_keys, ttl_us, session.journal.clone())
            };
            if rules(&again) != rules(&tombstone) {
                let same_but_rules = StandingSession {
                    require_payload: again.require_payload,
                    max_attempts: again.max_attempts,
                    owner: again.owner,
                    usable_by: again.usable_by,
                    node: again.node.clone(),
                    ..tombstone
                };
                return Err(other_options(&same_but_rules, &again));
            }
            if again.owner != tombstone.owner {
                quota::take(again.owner, Kind::Standing)?;
            }
            if again.ttl_us != tombstone.ttl_us {
                check_max_ttl(name, ttl_us)?;
            }
            standing::save(&again);
        }
    }
    Ok(true)
}

/// Changes a session; NULL leaves an option as it is.
pub fn alter(
    name: &str,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    owner: Option<pg_sys::Oid>,
    usable_by: Option<pg_sys::Oid>,
    max_attempts: Option<i32>,
    node: Option<&str>,
) -> Result<(), Error> {
    check_node(name, node)?;
    let max_attempts = checked_attempts(name, max_attempts)?;
    let ttl_us = ttl.as_ref().map(checked_ttl_us).transpose()?;
    let present = find_to_change(name, "change it", "idem_alter_session")?;
    if let Some(owner) = owner {
        check_giving(name, owner)?;
    }
    check_lending(usable_by)?;
    if present.time_keys && ttl_us.is_some_and(|ttl_us| Some(ttl_us) != present.ttl_us) {
        return Err(Error::Invalid {
            message: format!("the ttl of session \"{name}\" cannot change"),
            detail: "It has time_keys: keys that were refused as too old must stay so, and kept ones must stay kept."
                .into(),
            hint: "Make another session with the ttl wanted.",
        });
    }
    if ttl_us.is_some() && ttl_us != present.ttl_us {
        check_max_ttl(name, ttl_us)?;
    }
    let changed = StandingSession {
        ttl_us: ttl_us.or(present.ttl_us),
        require_payload: require_payload.unwrap_or(present.require_payload),
        owner: owner.unwrap_or(present.owner),
        usable_by: lent(usable_by, present.usable_by),
        max_attempts: max_attempts.unwrap_or(present.max_attempts),
        node: bound(node, present.node.as_deref()),
        ..present.clone()
    };
    refuse_attempts_of_inbox(name, changed.inbox, changed.max_attempts)?;
    if changed.owner != present.owner {
        if let Some(journal) = &changed.journal {
            check_journals_owner(name, changed.owner, journal)?;
        }
        quota::take(changed.owner, Kind::Standing)?;
    }
    standing::save(&changed);
    let changes = differences(&present, &changed);
    if !changes.is_empty() {
        let changes = changes.iter().map(|(option, was, is)| format!("{option} was {was}, is {is} now"));
        note("alter_session", name, &changes.collect::<Vec<_>>().join("; "));
    }
    let lasts_us = |session: &StandingSession| session.ttl_us.unwrap_or_else(guc::retention_us);
    if lasts_us(&changed) < BRIEF_US.min(lasts_us(&present)) {
        Error::BriefTtl { session: name.into(), was: ttl_in_words(&present), is: ttl_in_words(&changed) }.warn();
    }
    Ok(())
}

/// Drops a session. Its outcomes stay until they expire. If the session is made again, it finds them.
pub fn drop(name: &str) -> Result<(), Error> {
    let present = find_to_change(name, "drop it", "idem_drop_session")?;
    let found = options(&present).map(|(option, is)| format!("{option} {is}")).join(", ");
    standing::save(&StandingSession { dropped_at: Some(pg::now_us()), ..present });
    note("drop_session", name, &found);
    Ok(())
}

/// Notes in the audit what the owner of a session has decided.
fn note(action: &str, session: &str, found: &str) {
    audit::note(action, session, "", None, found);
}

/// The session, if the caller has the owner's privileges. Locks it against other changes.
fn find_to_change(name: &str, action: &'static str, function: &'static str) -> Result<StandingSession, Error> {
    // The right is checked before any lock, and again under the lock, since the owner may have changed.
    resolve::standing(name, Right::Own, action)?;
    check_writable(function)?;
    take_lock(name)?;
    match standing::find(name) {
        Some((present, _)) if present.dropped_at.is_none() => {
            resolve::check(&present, Right::Own, action)?;
            Ok(present)
        }
        _ => Err(resolve::unknown(name)),
    }
}

fn take_lock(name: &str) -> Result<(), Error> {
    let what = || format!("another transaction's change of session \"{name}\"");
    names::standing_session_lock(name).acquire_or_fail(guc::wait_us(), WAIT_BY_SETTING, what)
}

fn check_writable(function: &'static str) -> Result<(), Error> {
    arguments::check_writable(function, || "Sessions are rows of a table.".into())
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

fn check_giving(session: &str, owner: pg_sys::Oid) -> Result<(), Error> {
    match pg::role_name(owner) {
        None => Err(Error::NoSuchRole { role: owner.to_u32() }),
        Some(_) if pg::has_privileges_of(owner) => Ok(()),
        Some(role) => Err(Error::CannotGive { session: session.into(), role }),
    }
}

/// Refuses to lend to a role that does not exist. As with GRANT, an owner may lend to any other role.
fn check_lending(usable_by: Option<pg_sys::Oid>) -> Result<(), Error> {
    match usable_by {
        Some(role) if role != pg_sys::InvalidOid && pg::role_name(role).is_none() => {
            Err(Error::NoSuchRole { role: role.to_u32() })
        }
        _ => Ok(()),
    }
}

/// The role that a session is to be lent to: NULL leaves it as it is, the role `-` (0) ends the loan.
fn lent(asked: Option<pg_sys::Oid>, so_far: Option<pg_sys::Oid>) -> Option<pg_sys::Oid> {
    match asked {
        None => so_far,
        Some(role) => (role != pg_sys::InvalidOid).then_some(role),
    }
}

/// The node that a session is to be bound to: NULL leaves it as it is, `-` ends the binding.
fn bound(asked: Option<&str>, so_far: Option<&str>) -> Option<String> {
    match asked {
        None => so_far.map(Into::into),
        Some(node) => (node != node::NONE).then(|| node.into()),
    }
}

/// Refuses to bind to what is not the name of a node.
fn check_node(session: &str, asked: Option<&str>) -> Result<(), Error> {
    match asked.filter(|node| *node != node::NONE).and_then(|node| node::fault(node.as_bytes())) {
        None => Ok(()),
        Some(detail) => Err(Error::Invalid {
            message: format!("session \"{session}\" cannot be bound to a node of that name"),
            detail,
            hint: "The name of a node has 1 to 32 characters: letters of ASCII, digits, _, . and -. To bind the session to none, give '-'.",
        }),
    }
}

/// The number of attempts that is asked for: NULL leaves it as it is, 0 takes the limit away.
fn checked_attempts(session: &str, asked: Option<i32>) -> Result<Option<Option<i32>>, Error> {
    match asked {
        None => Ok(None),
        Some(0) => Ok(Some(None)),
        Some(attempts) if (1..=ATTEMPTS_MAX).contains(&attempts) => Ok(Some(Some(attempts))),
        Some(attempts) => Err(Error::Invalid {
            message: format!("max_attempts of session \"{session}\" is out of range"),
            detail: format!("Found {attempts}; it goes from 1 to {ATTEMPTS_MAX}, and 0 is no limit."),
            hint: "Say after how many attempts a request whose lease runs out again and again is given up.",
        }),
    }
}

fn refuse_attempts_of_inbox(session: &str, inbox: bool, max_attempts: Option<i32>) -> Result<(), Error> {
    if !inbox || max_attempts.is_none() {
        return Ok(());
    }
    Err(Error::Invalid {
        message: format!("inbox \"{session}\" cannot have max_attempts"),
        detail: "The requests of an inbox are not begun, so there are no attempts.".into(),
        hint: "Leave max_attempts out.",
    })
}

/// The name of a journal, qualified and quoted. The table has to be there, and to fit.
fn checked_journal(session: &str, inbox: bool, owner: pg_sys::Oid, journal: &str) -> Result<String, Error> {
    if inbox {
        return Err(Error::Invalid {
            message: format!("inbox \"{session}\" cannot have a journal"),
            detail: "An inbox notes that keys were seen, many at a time, in tables of the extension.".into(),
            hint: "Leave journal out, or make a session that is no inbox.",
        });
    }
    let Some(table) = table::relation(journal)? else { return Err(Error::NoJournal { journal: journal.into() }) };
    check_journals_owner(session, owner, &table.name)?;
    Ok(table.name)
}

/// Refuses an owner of a session who does not have the privileges of its journal's owner.
fn check_journals_owner(session: &str, owner: pg_sys::Oid, journal: &str) -> Result<(), Error> {
    match pg::has_privileges(owner, table::find(journal)?.owner) {
        true => Ok(()),
        false => Err(Error::NotYourJournal { journal: journal.into(), session: session.into() }),
    }
}

fn checked_ttl_us(ttl: &Interval) -> Result<i64, Error> {
    arguments::duration_us("ttl", ttl, TTL_US_MIN, TTL_US_MAX)
}

/// Refuses a ttl above the setting. Callers do not ask for a ttl that the session already has.
fn check_max_ttl(session: &str, ttl_us: Option<i64>) -> Result<(), Error> {
    let most_us = guc::max_ttl_us();
    match ttl_us {
        Some(ttl_us) if ttl_us > most_us => Err(Error::LimitExceeded {
            what: format!("the ttl of session \"{session}\""),
            found: arguments::describe_us(ttl_us),
            limit: arguments::describe_us(most_us),
            hint: "Ask for a shorter one, or have a superuser raise idempotence.max_ttl.",
        }),
        _ => Ok(()),
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

/// The options in which two states of a session differ, with what each has in the first and in the second.
fn differences(first: &StandingSession, second: &StandingSession) -> Vec<(&'static str, String, String)> {
    let compared =
        options(first).into_iter().zip(options(second)).map(|((option, first), (_, second))| (option, first, second));
    compared.filter(|(_, first, second)| first != second).collect()
}

fn ttl_in_words(session: &StandingSession) -> String {
    session.ttl_us.map_or("that of idempotence.retention".into(), arguments::describe_us)
}

fn role_in_words(role: pg_sys::Oid) -> String {
    pg::role_name(role).unwrap_or_else(|| role.to_u32().to_string())
}

/// The error for a session that exists with other options.
fn other_options(present: &StandingSession, wanted: &StandingSession) -> Error {
    let differences = differences(present, wanted);
    let differences =
        differences.iter().map(|(option, present, wanted)| format!("{option} is {present}, not {wanted}"));
    let differences: Vec<String> = differences.collect();
    Error::SessionExists {
        session: present.name.clone(),
        dropped: present.dropped_at.is_some(),
        detail: format!("Its {}.", differences.join("; its ")),
        hint: "Change ttl, require_payload, owner, usable_by, max_attempts or node with idem_alter_session(). inbox, time_keys and journal never change, nor does ttl with time_keys; dropping the session does not help.",
    }
}
