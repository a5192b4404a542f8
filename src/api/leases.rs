//! The SQL functions that leases, settling and pipelines add: claim, extend and settle.

use super::call::{by_any_number, by_key, in_progress_if_in_doubt, with_request};
use super::null::required;
use crate::arguments;
use crate::error::or_raise;
use crate::pg::{self, Composite, Jsonb, Timestamptz};
use crate::requests::answer::Ticket;
use crate::requests::claim;
use crate::requests::finish;
use crate::requests::numbered::Numbering;
use crate::requests::request::Rules;
use crate::requests::settle;
use pgrx::datum::{Interval, Uuid};
use pgrx::{default, pg_extern};
use std::borrow::Cow;

by_key! {
    "idem_claim": idem_claim_text, idem_claim_bigint, idem_claim_uuid;
    fn(
        session: Option<&str>,
        request: key,
        payload: default!(Option<Jsonb>, "NULL"),
        wait: default!(Option<Interval>, "NULL"),
        stream: default!(Option<&str>, "NULL"),
        last: default!(Option<i64>, "NULL"),
        ack: default!(Option<i64>, "NULL"),
    ) {
        let numbering = Numbering { stream, last, ack, ..Numbering::default() };
        or_raise(with_request(Rules::Current, session, request, numbering, |request| {
            claim::claim(request, payload, arguments::wait_us(wait)?)
        }));
    }
}

by_key! {
    "idem_extend": idem_extend_text, idem_extend_bigint, idem_extend_uuid;
    fn(
        session: Option<&str>,
        request: key,
        token: Option<i64>,
        lease: Option<Interval>,
        stream: default!(Option<&str>, "NULL"),
    ) -> Timestamptz {
        Timestamptz(or_raise(with_request(Rules::OfLease, session, request, by_any_number(stream), |request| {
            let token = required("token", token)?;
            finish::extend(request, token, arguments::lease_us(&required("lease", lease)?)?)
        })))
    }
}

by_key! {
    "idem_settle": idem_settle_text, idem_settle_bigint, idem_settle_uuid;
    fn(
        session: Option<&str>,
        request: key,
        wait: default!(Option<Interval>, "NULL"),
        stream: default!(Option<&str>, "NULL"),
        response: default!(Option<Jsonb>, "NULL"),
    ) -> Composite<Ticket> {
        let settled = with_request(Rules::Current, session, request, by_any_number(stream), |request| {
            settle::settle(request, arguments::wait_us(wait)?, response)
        });
        Composite(or_raise(in_progress_if_in_doubt(settled)))
    }
}
