//! Arguments that must not be NULL.

use crate::error::Error;

/// The value of an argument that must not be null.
pub fn required<T>(argument: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::NullArgument {
        argument,
        element: None,
        because: "The function cannot do without it.".into(),
    })
}

/// The elements of an array argument, none of which may be null.
pub fn elements<T>(argument: &'static str, values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    let element = |(place, value): (usize, Option<T>)| {
        let because = "Each element names a request.".into();
        value.ok_or(Error::NullArgument { argument, element: Some(place + 1), because })
    };
    values.enumerate().map(element).collect()
}
