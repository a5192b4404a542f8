//! An array of requests, of any type that a request may have.

use super::raw::text_of;
use crate::error::Error;
use pgrx::callconv::ArgAbi;
use pgrx::pg_sys;
use std::borrow::Cow;
use std::marker::PhantomData;
use uuid::Uuid;

/// An array argument of type `anycompatiblearray`. For such a parameter PostgreSQL takes an array without a type as
/// `text[]`. With an overload for each type of array the call would be ambiguous.
/// The argument lives as long as the call (`'fcx`).
pub struct Keys<'fcx>(pg_sys::Datum, PhantomData<&'fcx ()>);

pgrx::impl_sql_translatable!(Keys<'_>, arg_only = "anycompatiblearray");

// SAFETY: the argument is an array, and Keys holds the datum of an array.
unsafe impl<'fcx> ArgAbi<'fcx> for Keys<'fcx> {
    unsafe fn unbox_arg_unchecked(arg: pgrx::callconv::Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller passes an argument of our declared type.
        let array = unsafe { arg.unbox_arg_using_from_datum::<pg_sys::Datum>() };
        Keys(array.expect("pgrx unboxes an argument that is not null"), PhantomData)
    }
}

impl<'fcx> Keys<'fcx> {
    /// The elements as keys, none of which may be NULL.
    pub fn read(&self) -> Result<Vec<Cow<'fcx, str>>, Error> {
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: the array lives as long as the call. Its header tells the type of its elements, and the layout of
        // that type is looked up. deconstruct_array() makes two arrays of `count` elements.
        let (element, values, nulls) = unsafe {
            let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(self.0.cast_mut_ptr()).cast();
            let element = (*array).elemtype;
            let (mut length, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(element, &mut length, &mut by_value, &mut align);
            pg_sys::deconstruct_array(
                array,
                element,
                length.into(),
                by_value,
                align,
                &mut values,
                &mut nulls,
                &mut count,
            );
            let count = count as usize;
            (element, std::slice::from_raw_parts(values, count), std::slice::from_raw_parts(nulls, count))
        };
        // The keys are copied several times on their way.
        super::memory::make_sure_of(values.len().saturating_mul(512))?;
        let reader = reader(element)?;
        if let Some(place) = nulls.iter().position(|null| *null) {
            return Err(Error::NullArgument {
                what: format!("element {} of argument \"requests\"", place + 1),
                because: "Each element names a request.".into(),
            });
        }
        // SAFETY: the reader was chosen by the elements' type, and none is NULL.
        Ok(values.iter().map(|value| unsafe { reader.key(*value) }).collect())
    }
}

/// How an element is turned into a key.
enum Reader {
    /// As it is.
    Text,
    /// By the output function of its type, and whether its values are padded with spaces.
    Output(pg_sys::Oid, bool),
}

fn reader(element: pg_sys::Oid) -> Result<Reader, Error> {
    if [pg_sys::TEXTOID, pg_sys::VARCHAROID].contains(&element) {
        return Ok(Reader::Text);
    }
    let (mut category, mut preferred, mut output, mut is_varlena) = (0, false, pg_sys::InvalidOid, false);
    // SAFETY: looks up the type of the array's elements.
    let (base, name) = unsafe {
        pg_sys::get_type_category_preferred(element, &mut category, &mut preferred);
        pg_sys::getTypeOutputInfo(element, &mut output, &mut is_varlena);
        (pg_sys::getBaseType(element), text_of(pg_sys::format_type_be(element)).unwrap_or_default())
    };
    let others = [pg_sys::UUIDOID, pg_sys::INT2OID, pg_sys::INT4OID, pg_sys::INT8OID];
    if others.contains(&element) || category as u8 == pg_sys::TYPCATEGORY_STRING {
        return Ok(Reader::Output(output, base == pg_sys::BPCHAROID));
    }
    Err(Error::Invalid {
        message: format!("requests cannot be of type {name}"),
        detail: "A request is named by a text, a number or a UUID.".into(),
        hint: "Give an array of type text[], bigint[] or uuid[].",
    })
}

impl Reader {
    /// # Safety
    /// `value` must be of the type that this reader was made for, and must live as long as the key.
    unsafe fn key<'a>(&self, value: pg_sys::Datum) -> Cow<'a, str> {
        match self {
            // SAFETY: a text or varchar is a varlena; the database's encoding is UTF-8.
            Reader::Text => unsafe {
                let mut text: *mut pg_sys::varlena = value.cast_mut_ptr();
                if !pgrx::varlena::varatt_is_4b_u(text) {
                    text = pg_sys::pg_detoast_datum_packed(text);
                }
                std::str::from_utf8_unchecked(pgrx::varlena::varlena_to_byte_slice(text)).into()
            },
            Reader::Output(output, padded) => {
                // SAFETY: the output function of the value's type returns a terminated string.
                let text = unsafe { text_of(pg_sys::OidOutputFunctionCall(*output, value)) }.unwrap_or_default();
                if *padded { text.trim_end_matches(' ').to_owned().into() } else { text.into() }
            }
        }
    }
}

/// The key that a UUID stands for: its 36 characters in lower case.
pub fn uuid_key(bytes: [u8; 16]) -> String {
    Uuid::from_bytes(bytes).hyphenated().to_string()
}
