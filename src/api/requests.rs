//! The SQL functions on requests: begin, claim, record, checkpoint, release, extend, settle, lookup and once.

use super::call::{
    Result, by_any_number, by_key, enter, in_progress_if_in_doubt, key_of_number, key_of_uuid, required,
    rules_to_complete, to_complete, with_request,
};
use crate::arguments;
use crate::domain::class::Class;
use crate::error::{Error, or_raise};
use crate::pg::{self, Arguments, Composite, Filled, Jsonb, Keys, Listed, Timestamptz, c_function};
use crate::requests::answer::Ticket;
use crate::requests::begin;
use crate::requests::claim;
use crate::requests::decide::Aim;
use crate::requests::finish;
use crate::requests::lookup;
use crate::requests::numbered::Numbering;
use crate::requests::once;
use crate::requests::request::{Request, Rules};
use crate::requests::settle;
use pgrx::datum::{Interval, Uuid};
use pgrx::{default, pg_extern};
use std::borrow::Cow;

// What the planner leaves out of a call of idem_begin, a function of pgrx would miss. So these are declared in `sql/begin.sql`.
c_function!(idem_begin_text, pg_finfo_idem_begin_text, |call| pg::answered(call, |given| {
    idem_begin(given, given.get(place::REQUEST).map(Cow::Borrowed))
}));
c_function!(idem_begin_bigint, pg_finfo_idem_begin_bigint, |call| pg::answered(call, |given| {
    idem_begin(given, given.get(place::REQUEST).map(key_of_number))
}));
c_function!(idem_begin_uuid, pg_finfo_idem_begin_uuid, |call| pg::answered(call, |given| {
    idem_begin(given, given.get(place::REQUEST).map(key_of_uuid))
}));

/// The places of the arguments of `idem_begin`.
mod place {
    use crate::store::tuple::places;

    places!(pub SESSION, REQUEST, PAYLOAD, WAIT, STREAM, LAST, ACK, LEASE);
}

fn idem_begin(given: &Arguments<'_>, request: Option<Cow<'_, str>>) -> Composite<Ticket> {
    enter("idem_begin");
    let (stream, last, ack) = (given.get(place::STREAM), given.get(place::LAST), given.get(place::ACK));
    let numbering = Numbering { stream, last, ack, ..Numbering::default() };
    let begun = with_request(Rules::Current, given.get(place::SESSION), request, numbering, |request| {
        let lease_us = given.get(place::LEASE).as_ref().map(arguments::lease_us).transpose()?;
        let wait_us = arguments::wait_us(given.get(place::WAIT))?;
        begin::begin(request, given.get(place::PAYLOAD), wait_us, Aim::Execute { lease_us }).map(Ticket::from)
    });
    Composite(or_raise(in_progress_if_in_doubt(begun)))
}

by_key! {
    "idem_record": idem_record_text, idem_record_bigint, idem_record_uuid;
    fn(
        session: Option<&str>,
        request: key,
        response: default!(Option<Jsonb>, "NULL"),
        failed: default!(Option<bool>, "false"),
        token: default!(Option<i64>, "NULL"),
        ttl: default!(Option<Interval>, "NULL"),
        stream: default!(Option<&str>, "NULL"),
    ) -> Option<Timestamptz> {
        let outcome = with_request(rules_to_complete(token), session, request, to_complete(token, stream), |request| {
            let class = if required("failed", failed)? { Class::Failed } else { Class::Succeeded };
            finish::record(request, class, response, token, ttl)
        });
        or_raise(outcome).expires_at.map(Timestamptz)
    }
}

by_key! {
    "idem_checkpoint": idem_checkpoint_text, idem_checkpoint_bigint, idem_checkpoint_uuid;
    fn(
        session: Option<&str>,
        request: key,
        point: Option<&str>,
        state: default!(Option<Jsonb>, "NULL"),
        token: default!(Option<i64>, "NULL"),
        stream: default!(Option<&str>, "NULL"),
    ) {
        or_raise(with_request(rules_to_complete(token), session, request, to_complete(token, stream), |request| {
            finish::checkpoint(request, required("point", point)?, state, token)
        }));
    }
}

by_key! {
    "idem_release": idem_release_text, idem_release_bigint, idem_release_uuid;
    fn(
        session: Option<&str>,
        request: key,
        token: default!(Option<i64>, "NULL"),
        stream: default!(Option<&str>, "NULL"),
    ) {
        or_raise(with_request(rules_to_complete(token), session, request, to_complete(token, stream), |request| {
            finish::release(request, token)
        }));
    }
}

by_key! {
    "idem_lookup": idem_lookup_text, idem_lookup_bigint, idem_lookup_uuid;
    fn(
        session: Option<&str>,
        request: key,
        stream: default!(Option<&str>, "NULL"),
        wait: default!(Option<Interval>, "NULL"),
    ) -> Composite<Ticket> {
        /// No lookup waits for others that is not asked to.
        const AT_ONCE: Option<i64> = Some(0);
        let look = |request: &Request<'_>| {
            let wait_us = if wait.is_some() { arguments::wait_us(wait)? } else { AT_ONCE };
            lookup::lookup(request, wait_us)
        };
        let known = match with_request(Rules::Current, session, request, by_any_number(stream), look) {
            Err(Error::SessionNotHere { .. }) => Ok(Ticket { status: "not_here", ..Ticket::default() }),
            known => in_progress_if_in_doubt(known),
        };
        Composite(or_raise(known))
    }
}

by_key! {
    "idem_once": idem_once_text, idem_once_bigint, idem_once_uuid;
    fn(session: Option<&str>, request: key) -> Result<bool> {
        let (session, request) = (required("session", session)?, required("request", request)?);
        Ok(!once::once(session, &[&request], "idem_once")?.is_empty())
    }
}

#[pg_extern(volatile, parallel_unsafe)]
fn idem_once_many<'a>(session: Option<&'a str>, requests: Option<Keys<'a>>) -> Result<Filled<'a, Listed>> {
    enter("idem_once_many");
    let session = required("session", session)?;
    let mut keys = required("requests", requests)?.read()?;
    let places = once::once(session, &keys.iter().map(|key| &**key).collect::<Vec<_>>(), "idem_once_many")?;
    // Each key that is seen for the first time, with its place in the list, counted from 1.
    Ok(pg::listed(places.into_iter().map(move |place| (place as i64 + 1, std::mem::take(&mut keys[place])))))
}

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
