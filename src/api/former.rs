//! C functions that only catalogs of former versions name: a function whose arguments have changed has a
//! C function of another name since. pg_upgrade, and CREATE EXTENSION at a former version, must still find
//! them; called before ALTER EXTENSION UPDATE they say that it is due, as all do that use the tables.

use super::null::{elements, required};
use super::{requests, standing_sessions};
use crate::error::or_raise;
use crate::pg::Regrole;
use pgrx::datum::{Array, Interval};
use pgrx::iter::TableIterator;
use pgrx::{name, pg_extern};

/// Of 1.0.0.
#[pg_extern(sql = false)]
fn idem_create_session(
    session: Option<&str>,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    inbox: Option<bool>,
    time_keys: Option<bool>,
    owner: Option<Regrole>,
) {
    standing_sessions::idem_create_session_lent(session, ttl, require_payload, inbox, time_keys, owner, None);
}

/// Of 1.0.0.
#[pg_extern(sql = false)]
fn idem_alter_session(
    session: Option<&str>,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    owner: Option<Regrole>,
) {
    standing_sessions::idem_alter_session_lent(session, ttl, require_payload, owner, None);
}

/// Of 1.0.0.
#[pg_extern(sql = false)]
fn idem_once_many(
    session: Option<&str>,
    requests: Option<Array<'_, &str>>,
) -> TableIterator<'static, (name!(ord, i64), name!(request, String))> {
    TableIterator::new(or_raise((|| {
        let session = required("session", session)?;
        let requests = required("requests", requests)?;
        let keys = elements("requests", requests.iter().map(|key| key.map(Into::into)))?;
        requests::once_many(session, &keys)
    })()))
}
