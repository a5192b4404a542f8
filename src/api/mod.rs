//! The SQL functions: check arguments for NULL, call the protocol, shape the row. Nothing else.
//!
//! No function is STRICT: a NULL would silently become a NULL answer. `request` is text or bigint with
//! one meaning, so that it does not matter which one a driver hits.

use crate::error::Error;

pub mod admin;
pub mod client;
pub mod former;
pub mod ids;
pub mod internal;
pub mod request;
pub mod session;
pub mod ticket;

/// An argument that must be given.
fn required<T>(argument: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::NullArgument {
        argument,
        element: None,
        because: "The function cannot do without it.".into(),
    })
}

/// The elements of an array argument, none of which may be null.
fn elements<T>(argument: &'static str, values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    let element = |(place, value): (usize, Option<T>)| {
        let because = "Each element names a request.".into();
        value.ok_or(Error::NullArgument { argument, element: Some(place + 1), because })
    };
    values.enumerate().map(element).collect()
}
