//! C functions that only catalogs of former versions name.
//!
//! When the arguments of an SQL function change, its C function gets another name. pg_upgrade, and CREATE
//! EXTENSION at a former version, must still find the C function of the former name. If it is called before ALTER
//! EXTENSION UPDATE, it says that the update is due, as do all functions that use the tables.

use super::null::{elements, required};
use super::{requests, standing_sessions};
use crate::error::or_raise;
use crate::pg::Regrole;
use pgrx::datum::{Array, Interval};
use pgrx::iter::TableIterator;
use pgrx::{name, pg_extern};

/// As in version 1.0.0.
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

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_alter_session(
    session: Option<&str>,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    owner: Option<Regrole>,
) {
    standing_sessions::idem_alter_session_lent(session, ttl, require_payload, owner, None);
}

/// As in version 1.0.0.
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
