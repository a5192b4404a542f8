//! Making, changing and dropping standing sessions.

use crate::arguments;
use crate::domain::limits::{SESSION_CHARS_MAX, TTL_US_MAX, TTL_US_MIN};
use crate::domain::quota::Kind;
use crate::domain::right::Right;
use crate::domain::time_key;
use crate::error::{Error, WAIT_BY_SETTING};
use crate::guc;
use crate::model::StandingSession;
use crate::names;
use crate::pg;
use crate::sessions::{quota, resolve};
use crate::store::restore;
use crate::store::secret;
use crate::store::session::standing;
use pgrx::datum::Interval;
use pgrx::pg_sys;
use uuid::Uuid;

/// What a session is made with.
pub struct Options {
    /// NULL: as long as `idempotence.retention` says.
    pub ttl: Option<Interval>,
    /// Whether each request must come with a payload.
    pub require_payload: bool,
    /// Whether it only deduplicates.
    pub inbox: bool,
    /// Whether its keys are UUIDv7 that tell their age.
    pub time_keys: bool,
    /// NULL: the current role, or, of a dropped one made again, its former owner.
    pub owner: Option<pg_sys::Oid>,
    /// NULL: nobody, or as it is where there is one; the role `-` (0): nobody.
    pub usable_by: Option<pg_sys::Oid>,
}

/// What became of a create.
pub enum Created {
    /// There is one now.
    New,
    /// There was one with the same options.
    AlreadyThere,
}

/// Makes a session, or a dropped one again.
pub fn create(name: &str, options: &Options) -> Result<Created, Error> {
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
    check_writable("idem_create_session")?;
    take_lock(name)?;

    let now_us = pg::now_us();
    let wanted = |id, created_at, owner, usable_by| StandingSession {
        id,
        name: name.into(),
        owner,
        usable_by: lent(options.usable_by, usable_by),
        require_payload: options.require_payload,
        inbox: options.inbox,
        time_keys: options.time_keys,
        ttl_us,
        created_at,
        dropped_at: None,
    };
    match standing::find(name) {
        None => {
            check_max_ttl(name, ttl_us)?;
            restore::check(name)?;
            secret::put_in_use()?;
            let owner = options.owner.unwrap_or_else(pg::current_role);
            quota::take(owner, Kind::Standing)?;
            standing::save(&wanted(Uuid::now_v7().into_bytes(), now_us, owner, None));
        }
        Some((there, _)) if there.dropped_at.is_none() => {
            resolve::check(&there, Right::Own, "make it again")?;
            let owner = options.owner.unwrap_or(there.owner);
            let same = wanted(there.id, there.created_at, owner, there.usable_by);
            return if same == there { Ok(Created::AlreadyThere) } else { Err(other_options(&there, &same)) };
        }
        Some((tombstone, _)) => {
            let owner = options.owner.unwrap_or(tombstone.owner);
            let again = wanted(tombstone.id, tombstone.created_at, owner, tombstone.usable_by);
            // An admin may bring it back, but neither take nor lend it: its outcomes are still there.
            let roles = |session: &StandingSession| (session.owner, session.usable_by);
            if roles(&again) != roles(&tombstone) || !pg::is_admin() {
                resolve::check(&tombstone, Right::Own, "make the dropped session again")?;
            }
            // These rules made them, and have to hold on: a key once too old to tell stays so.
            let rules = |session: &StandingSession| {
                (session.inbox, session.time_keys, session.ttl_us.filter(|_| session.time_keys))
            };
            if rules(&again) != rules(&tombstone) {
                let same_but_rules = StandingSession {
                    require_payload: again.require_payload,
                    owner: again.owner,
                    usable_by: again.usable_by,
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
    Ok(Created::New)
}

/// Changes a session; NULL leaves an option as it is.
pub fn alter(
    name: &str,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    owner: Option<pg_sys::Oid>,
    usable_by: Option<pg_sys::Oid>,
) -> Result<(), Error> {
    let ttl_us = ttl.as_ref().map(checked_ttl_us).transpose()?;
    let there = find_to_change(name, "change it", "idem_alter_session")?;
    if let Some(owner) = owner {
        check_giving(name, owner)?;
    }
    check_lending(usable_by)?;
    if there.time_keys && ttl_us.is_some_and(|ttl_us| Some(ttl_us) != there.ttl_us) {
        return Err(Error::Invalid {
            message: format!("the ttl of session \"{name}\" cannot change"),
            detail: "It has time_keys: keys that were refused as too old must stay so, and kept ones must stay kept."
                .into(),
            hint: "Make another session with the ttl wanted.",
        });
    }
    if ttl_us.is_some() && ttl_us != there.ttl_us {
        check_max_ttl(name, ttl_us)?;
    }
    let former_owner = there.owner;
    let changed = StandingSession {
        ttl_us: ttl_us.or(there.ttl_us),
        require_payload: require_payload.unwrap_or(there.require_payload),
        owner: owner.unwrap_or(there.owner),
        usable_by: lent(usable_by, there.usable_by),
        ..there
    };
    if changed.owner != former_owner {
        quota::take(changed.owner, Kind::Standing)?;
    }
    standing::save(&changed);
    Ok(())
}

/// Drops a session. Its outcomes stay until they expire, and are found again if it is made again.
pub fn drop(name: &str) -> Result<(), Error> {
    let there = find_to_change(name, "drop it", "idem_drop_session")?;
    standing::save(&StandingSession { dropped_at: Some(pg::now_us()), ..there });
    Ok(())
}

/// The session, locked against other changes, which is the caller's own.
fn find_to_change(name: &str, action: &'static str, function: &'static str) -> Result<StandingSession, Error> {
    // Rights before any lock, and again under it: the owner may have changed.
    resolve::standing(name, Right::Own, action)?;
    check_writable(function)?;
    take_lock(name)?;
    match standing::find(name) {
        Some((there, _)) if there.dropped_at.is_none() => {
            resolve::check(&there, Right::Own, action)?;
            Ok(there)
        }
        _ => Err(resolve::unknown(name)),
    }
}

fn take_lock(name: &str) -> Result<(), Error> {
    if names::standing_session(name).acquire(guc::wait_us()) {
        Ok(())
    } else {
        let what = format!("another transaction's change of session \"{name}\"");
        Err(Error::WaitRanOut { what, hint: WAIT_BY_SETTING })
    }
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
    if time_key::client_session(name).is_some() {
        return Err(Error::Invalid {
            message: format!("session \"{name}\" cannot have the form of a UUID for a name"),
            detail: "Such names are those of client sessions, which the server makes up itself.".into(),
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

/// As with GRANT, an owner may lend to any role.
fn check_lending(usable_by: Option<pg_sys::Oid>) -> Result<(), Error> {
    match usable_by {
        Some(role) if role != pg_sys::InvalidOid && pg::role_name(role).is_none() => {
            Err(Error::NoSuchRole { role: role.to_u32() })
        }
        _ => Ok(()),
    }
}

/// Whom a session is lent to: NULL leaves that as it is, the role `-` (0) ends it.
fn lent(asked: Option<pg_sys::Oid>, so_far: Option<pg_sys::Oid>) -> Option<pg_sys::Oid> {
    match asked {
        None => so_far,
        Some(role) => (role != pg_sys::InvalidOid).then_some(role),
    }
}

fn checked_ttl_us(ttl: &Interval) -> Result<i64, Error> {
    arguments::duration_us("ttl", ttl, TTL_US_MIN, TTL_US_MAX)
}

/// A ttl that the session has already is not asked for.
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

fn other_options(there: &StandingSession, wanted: &StandingSession) -> Error {
    let ttl = |session: &StandingSession| {
        session.ttl_us.map_or("that of idempotence.retention".into(), arguments::describe_us)
    };
    let mut differences = Vec::new();
    let mut compare = |option: &str, there: String, wanted: String| {
        if there != wanted {
            differences.push(format!("{option} is {there}, not {wanted}"));
        }
    };
    compare("inbox", there.inbox.to_string(), wanted.inbox.to_string());
    compare("time_keys", there.time_keys.to_string(), wanted.time_keys.to_string());
    compare("require_payload", there.require_payload.to_string(), wanted.require_payload.to_string());
    compare("ttl", ttl(there), ttl(wanted));
    let role = |role: pg_sys::Oid| pg::role_name(role).unwrap_or_else(|| role.to_u32().to_string());
    compare("owner", role(there.owner), role(wanted.owner));
    let lent = |session: &StandingSession| session.usable_by.map_or("-".into(), role);
    compare("usable_by", lent(there), lent(wanted));
    Error::SessionExists {
        session: there.name.clone(),
        dropped: there.dropped_at.is_some(),
        detail: format!("Its {}.", differences.join("; its ")),
        hint: "Change ttl, require_payload, owner or usable_by with idem_alter_session(). inbox and time_keys never change, nor does ttl with time_keys; dropping the session does not help.",
    }
}
