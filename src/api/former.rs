//! C functions that only catalogs of former versions name.
//!
//! When the arguments of an SQL function change, its C function gets another name. pg_upgrade, and CREATE
//! EXTENSION at a former version, must still find the C function of the former name. If it is called before ALTER
//! EXTENSION UPDATE, it says that the update is due, as do all functions that use the tables.

use super::null::{elements, required};
use super::ticket::Ticket;
use super::{repairs, requests, standing_sessions};
use crate::error::or_raise;
use crate::pg::{Composite, Jsonb, Regrole};
use crate::requests::numbered::Numbering;
use crate::store::catalog;
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
    standing_sessions::idem_create_session_lent(
        session,
        ttl,
        require_payload,
        inbox,
        time_keys,
        owner,
        None,
        None,
        None,
        None,
    );
}

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_alter_session(
    session: Option<&str>,
    ttl: Option<Interval>,
    require_payload: Option<bool>,
    owner: Option<Regrole>,
) {
    standing_sessions::idem_alter_session_lent(session, ttl, require_payload, owner, None, None, None);
}

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_forget_text(session: Option<&str>, request: Option<&str>, reason: Option<&str>) -> bool {
    repairs::forget(session, request, reason, None)
}

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_forget_bigint(session: Option<&str>, request: Option<i64>, reason: Option<&str>) -> bool {
    repairs::forget(session, request, reason, None)
}

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_begin_text(
    session: Option<&str>,
    request: Option<&str>,
    payload: Option<Jsonb>,
    wait: Option<Interval>,
    stream: Option<&str>,
    last: Option<i64>,
    ack: Option<i64>,
) -> Composite<Ticket> {
    requests::begin(session, request, payload, wait, Numbering { stream, last, ack, ..Numbering::default() }, None)
}

/// As in version 1.0.0.
#[pg_extern(sql = false)]
fn idem_begin_bigint(
    session: Option<&str>,
    request: Option<i64>,
    payload: Option<Jsonb>,
    wait: Option<Interval>,
    stream: Option<&str>,
    last: Option<i64>,
    ack: Option<i64>,
) -> Composite<Ticket> {
    requests::begin(session, request, payload, wait, Numbering { stream, last, ack, ..Numbering::default() }, None)
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
        let fresh = requests::once_many(session, keys)?;
        Ok(fresh.into_iter().map(|(ord, key)| (ord, key.into_owned())).collect::<Vec<_>>())
    })()))
}

/// As in version 1.0.0, where it was part of `idem_run`, which says that the update is due before it comes here.
#[pg_extern(sql = false)]
fn returns_rows(_command: Option<&str>) -> bool {
    catalog::check_version();
    false
}

/// As [`returns_rows`]. Its argument was a row.
#[pg_extern(sql = false)]
fn first_column() -> Option<Jsonb> {
    catalog::check_version();
    None
}

/// As [`returns_rows`].
#[pg_extern(sql = false)]
fn recorded(
    _session: Option<&str>,
    _request: Option<&str>,
    _response: Option<Jsonb>,
    _failed: Option<bool>,
    _ttl: Option<Interval>,
) -> Option<Composite<Ticket>> {
    catalog::check_version();
    None
}
