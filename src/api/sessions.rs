//! The SQL functions on sessions, standing ones and those of clients; and the name of the server, which they can be bound to.

use super::call::{Result, enter, required};
use crate::arguments;
use crate::error::legible;
use crate::guc;
use crate::journal::create;
use crate::pg::{self, Composite, CompositeRow, Regrole, Regtype, Timestamptz};
use crate::sessions::calls::{self, Position};
use crate::sessions::register::{self, Registered, Registration};
use crate::sessions::standing::{self, Asked};
use pgrx::datum::{Interval, IntoDatum, Uuid};
use pgrx::pg_sys::Datum;
use pgrx::{PgSqlErrorCode, default, ereport, pg_extern};

#[pg_extern(volatile, parallel_unsafe)]
fn idem_create_session(
    session: Option<&str>,
    ttl: default!(Option<Interval>, "NULL"),
    require_payload: default!(Option<bool>, "false"),
    inbox: default!(Option<bool>, "false"),
    time_keys: default!(Option<bool>, "false"),
    owner: default!(Option<Regrole>, "NULL"),
    usable_by: default!(Option<Regrole>, "NULL"),
    max_attempts: default!(Option<i32>, "NULL"),
    node: default!(Option<&str>, "NULL"),
    journal: default!(Option<&str>, "NULL"),
) -> Result<()> {
    enter("idem_create_session");
    let session = required("session", session)?;
    let require_payload = Some(required("require_payload", require_payload)?);
    let (owner, usable_by) = (owner.map(|role| role.0), usable_by.map(|role| role.0));
    let asked = Asked { ttl, require_payload, owner, usable_by, max_attempts, node };
    let (inbox, time_keys) = (required("inbox", inbox)?, required("time_keys", time_keys)?);
    if !standing::create(session, inbox, time_keys, journal, &asked)? {
        let message = format!("session \"{session}\" already exists with the same options, skipping");
        ereport!(NOTICE, PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT, legible(&message));
    }
    Ok(())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_alter_session(
    session: Option<&str>,
    ttl: default!(Option<Interval>, "NULL"),
    require_payload: default!(Option<bool>, "NULL"),
    owner: default!(Option<Regrole>, "NULL"),
    usable_by: default!(Option<Regrole>, "NULL"),
    max_attempts: default!(Option<i32>, "NULL"),
    node: default!(Option<&str>, "NULL"),
) -> Result<()> {
    enter("idem_alter_session");
    let (owner, usable_by) = (owner.map(|role| role.0), usable_by.map(|role| role.0));
    let asked = Asked { ttl, require_payload, owner, usable_by, max_attempts, node };
    Ok(standing::alter(required("session", session)?, &asked)?)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_create_journal(
    journal: Option<&str>,
    tenant: default!(Option<&str>, "'tenant'"),
    tenant_type: default!(Option<Regtype>, "'text'"),
) -> Result<()> {
    enter("idem_create_journal");
    let journal = required("journal", journal)?;
    let tenant_type = required("tenant_type", tenant_type)?.0;
    if !create::create(journal, required("tenant", tenant)?, tenant_type)? {
        let message = format!("table \"{journal}\" is a journal already, skipping");
        ereport!(NOTICE, PgSqlErrorCode::ERRCODE_DUPLICATE_TABLE, legible(&message));
    }
    Ok(())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_drop_session(session: Option<&str>) -> Result<()> {
    enter("idem_drop_session");
    Ok(standing::drop(required("session", session)?)?)
}

#[pg_extern(stable, parallel_safe)]
fn idem_node() -> String {
    guc::node()
}

impl CompositeRow for Registered {
    const SQL_TYPE: &'static str = "idem_session";

    fn columns(self) -> impl AsRef<[Option<Datum>]> {
        [
            Some(pg::text(&self.session.name)),
            Some(self.resumed.into()),
            Some(self.session.window.into()),
            pg::interval(self.session.timeout_us).into_datum(),
            Some(self.expires_at.into()),
            Some(self.next_number.into()),
        ]
    }
}

impl CompositeRow for Position {
    const SQL_TYPE: &'static str = "idem_position";

    fn columns(self) -> impl AsRef<[Option<Datum>]> {
        [self.last_number, self.next_number, self.acked, self.allocated].map(|number| Some(number.into()))
    }
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_register(
    client: default!(Option<&str>, "NULL"),
    timeout: default!(Option<Interval>, "NULL"),
    window_size: default!(Option<i32>, "NULL"),
    ordering: default!(Option<&str>, "'any'"),
    resume: default!(Option<bool>, "false"),
    request_id: default!(Option<Uuid>, "NULL"),
    wait: default!(Option<Interval>, "NULL"),
) -> Result<Composite<Registered>> {
    enter("idem_register");
    Ok(Composite(register::register(&Registration {
        client,
        timeout,
        window_size,
        ordering: required("ordering", ordering)?,
        resume: required("resume", resume)?,
        request_id: request_id.map(|id| *id.as_bytes()),
        wait_us: arguments::wait_us(wait)?,
    })?))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_heartbeat(session: Option<&str>) -> Result<Timestamptz> {
    enter("idem_heartbeat");
    Ok(Timestamptz(calls::heartbeat(required("session", session)?)?))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_ack(session: Option<&str>, upto: Option<i64>, stream: default!(Option<&str>, "''")) -> Result<()> {
    enter("idem_ack");
    Ok(calls::ack(required("session", session)?, required("upto", upto)?, required("stream", stream)?)?)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_allocate(session: Option<&str>, n: Option<i32>, stream: default!(Option<&str>, "''")) -> Result<i64> {
    enter("idem_allocate");
    Ok(calls::allocate(required("session", session)?, required("n", n)?, required("stream", stream)?)?)
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_position(session: Option<&str>, stream: default!(Option<&str>, "''")) -> Result<Composite<Position>> {
    enter("idem_position");
    Ok(Composite(calls::position(required("session", session)?, required("stream", stream)?)?))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_close(session: Option<&str>) -> Result<bool> {
    enter("idem_close");
    Ok(calls::close(required("session", session)?)?)
}
