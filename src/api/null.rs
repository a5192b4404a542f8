//! Arguments that must not be NULL.

use crate::error::Error;

/// The value of an argument that must not be null.
pub fn required<T>(argument: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::NullArgument {
        what: format!("argument \"{argument}\""),
        because: "The function cannot do without it.".into(),
    })
}

/// The elements of an array argument, none of which may be null.
pub fn elements<T>(argument: &'static str, values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>, Error> {
    let element = |(place, value): (usize, Option<T>)| {
        value.ok_or_else(|| Error::NullArgument {
            what: format!("element {} of argument \"{argument}\"", place + 1),
            because: "Each element names a request.".into(),
        })
    };
    values.enumerate().map(element).collect()
}
