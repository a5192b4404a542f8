//! The SQL functions that leases, settling and pipelines add: claim, extend and settle.

use super::call::{AsKey, by_any_number, in_progress_if_in_doubt, with_request};
use super::null::required;
use super::ticket::{self, Ticket};
use crate::arguments;
use crate::error::or_raise;
use crate::pg::{Composite, Jsonb, Timestamptz};
use crate::requests::answer::Begun;
use crate::requests::claim;
use crate::requests::finish;
use crate::requests::numbered::Numbering;
use crate::requests::request::Rules;
use crate::requests::settle::{self, Settled};
use pgrx::datum::{Interval, Uuid};
use pgrx::{default, pg_extern};

#[pg_extern(name = "idem_claim", volatile, parallel_unsafe)]
fn idem_claim_text(
    session: Option<&str>,
    request: Option<&str>,
    payload: default!(Option<Jsonb>, "NULL"),
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    last: default!(Option<i64>, "NULL"),
    ack: default!(Option<i64>, "NULL"),
) {
    claim(session, request, payload, wait, Numbering { stream, last, ack, ..Numbering::default() })
}

#[pg_extern(name = "idem_claim", volatile, parallel_unsafe)]
fn idem_claim_bigint(
    session: Option<&str>,
    request: Option<i64>,
    payload: default!(Option<Jsonb>, "NULL"),
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    last: default!(Option<i64>, "NULL"),
    ack: default!(Option<i64>, "NULL"),
) {
    claim(session, request, payload, wait, Numbering { stream, last, ack, ..Numbering::default() })
}

#[pg_extern(name = "idem_claim", volatile, parallel_unsafe)]
fn idem_claim_uuid(
    session: Option<&str>,
    request: Option<Uuid>,
    payload: default!(Option<Jsonb>, "NULL"),
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    last: default!(Option<i64>, "NULL"),
    ack: default!(Option<i64>, "NULL"),
) {
    claim(session, request, payload, wait, Numbering { stream, last, ack, ..Numbering::default() })
}

fn claim(
    session: Option<&str>,
    request: Option<impl AsKey>,
    payload: Option<Jsonb>,
    wait: Option<Interval>,
    numbering: Numbering<'_>,
) {
    or_raise(with_request(Rules::Current, session, request, numbering, |request| {
        claim::claim(request, payload, arguments::wait_us(wait)?)
    }));
}

#[pg_extern(name = "idem_extend", volatile, parallel_unsafe)]
fn idem_extend_text(
    session: Option<&str>,
    request: Option<&str>,
    token: Option<i64>,
    lease: Option<Interval>,
    stream: default!(Option<&str>, "NULL"),
) -> Timestamptz {
    extend(session, request, token, lease, stream)
}

#[pg_extern(name = "idem_extend", volatile, parallel_unsafe)]
fn idem_extend_bigint(
    session: Option<&str>,
    request: Option<i64>,
    token: Option<i64>,
    lease: Option<Interval>,
    stream: default!(Option<&str>, "NULL"),
) -> Timestamptz {
    extend(session, request, token, lease, stream)
}

#[pg_extern(name = "idem_extend", volatile, parallel_unsafe)]
fn idem_extend_uuid(
    session: Option<&str>,
    request: Option<Uuid>,
    token: Option<i64>,
    lease: Option<Interval>,
    stream: default!(Option<&str>, "NULL"),
) -> Timestamptz {
    extend(session, request, token, lease, stream)
}

fn extend(
    session: Option<&str>,
    request: Option<impl AsKey>,
    token: Option<i64>,
    lease: Option<Interval>,
    stream: Option<&str>,
) -> Timestamptz {
    Timestamptz(or_raise(with_request(Rules::OfLease, session, request, by_any_number(stream), |request| {
        let token = required("token", token)?;
        finish::extend(request, token, arguments::lease_us(&required("lease", lease)?)?)
    })))
}

#[pg_extern(name = "idem_settle", volatile, parallel_unsafe)]
fn idem_settle_text(
    session: Option<&str>,
    request: Option<&str>,
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    response: default!(Option<Jsonb>, "NULL"),
) -> Composite<Ticket> {
    settle(session, request, wait, stream, response)
}

#[pg_extern(name = "idem_settle", volatile, parallel_unsafe)]
fn idem_settle_bigint(
    session: Option<&str>,
    request: Option<i64>,
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    response: default!(Option<Jsonb>, "NULL"),
) -> Composite<Ticket> {
    settle(session, request, wait, stream, response)
}

#[pg_extern(name = "idem_settle", volatile, parallel_unsafe)]
fn idem_settle_uuid(
    session: Option<&str>,
    request: Option<Uuid>,
    wait: default!(Option<Interval>, "NULL"),
    stream: default!(Option<&str>, "NULL"),
    response: default!(Option<Jsonb>, "NULL"),
) -> Composite<Ticket> {
    settle(session, request, wait, stream, response)
}

fn settle(
    session: Option<&str>,
    request: Option<impl AsKey>,
    wait: Option<Interval>,
    stream: Option<&str>,
    response: Option<Jsonb>,
) -> Composite<Ticket> {
    let settled = with_request(Rules::Current, session, request, by_any_number(stream), |request| {
        settle::settle(request, arguments::wait_us(wait)?, response)
    });
    ticket::settled(or_raise(in_progress_if_in_doubt(settled, Settled::Answered(Begun::InProgress(None)))))
}
