//! The SQL functions on client sessions: register, heartbeat, ack, allocate, position and close.

use super::null::required;
use crate::arguments;
use crate::error::or_raise;
use crate::pg::{self, Composite, CompositeRow, Timestamptz};
use crate::sessions::calls;
use crate::sessions::position::Position;
use crate::sessions::register::{self, Registered, Registration};
use pgrx::datum::{Interval, IntoDatum, Uuid};
use pgrx::pg_sys::Datum;
use pgrx::{default, pg_extern};

impl CompositeRow for Registered {
    const SQL_TYPE: &'static str = "idem_session";
    type Columns = [Option<Datum>; 6];

    fn columns(self) -> Self::Columns {
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
    type Columns = [Option<Datum>; 4];

    fn columns(self) -> Self::Columns {
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
) -> Composite<Registered> {
    Composite(or_raise((|| {
        register::register(&Registration {
            client,
            timeout,
            window_size,
            ordering: required("ordering", ordering)?,
            resume: required("resume", resume)?,
            request_id: request_id.map(|id| *id.as_bytes()),
            wait_us: arguments::wait_us(wait)?,
        })
    })()))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_heartbeat(session: Option<&str>) -> Timestamptz {
    Timestamptz(or_raise(required("session", session).and_then(calls::heartbeat)))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_ack(session: Option<&str>, upto: Option<i64>, stream: default!(Option<&str>, "''")) {
    or_raise((|| calls::ack(required("session", session)?, required("upto", upto)?, required("stream", stream)?))());
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_allocate(session: Option<&str>, n: Option<i32>, stream: default!(Option<&str>, "''")) -> i64 {
    or_raise((|| calls::allocate(required("session", session)?, required("n", n)?, required("stream", stream)?))())
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_position(session: Option<&str>, stream: default!(Option<&str>, "''")) -> Composite<Position> {
    Composite(or_raise((|| calls::position(required("session", session)?, required("stream", stream)?))()))
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_close(session: Option<&str>) -> bool {
    or_raise(required("session", session).and_then(calls::close))
}
