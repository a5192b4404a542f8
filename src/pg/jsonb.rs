//! `jsonb` values: they are passed on unread, measured, digested, and made from an error.

use super::raw;
use super::taken::TakenError;
use super::values::of_datum;
use crate::domain::fingerprint::Hasher;
use pgrx::callconv::{ArgAbi, BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys::{JsonbIteratorToken as Step, jbvType as Kind};
use pgrx::{FromDatum, IntoDatum, pg_sys};
use std::ffi::{CStr, c_char, c_int};

of_datum!(
    /// A `jsonb` argument or result. It is passed on unread, since to parse it would cost more than the rest of the call.
    Jsonb(pub(super) pg_sys::Datum), "jsonb", pg_sys::JSONBOID
);

impl Jsonb {
    /// The value that a text stands for.
    pub fn of_text(text: &str) -> Jsonb {
        let text = std::ffi::CString::new(text).expect("a text of ours has no NUL");
        // SAFETY: the function takes a terminated string, which it copies.
        Jsonb(
            unsafe { pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(text.as_ptr().into())]) }
                .expect("a jsonb is not null"),
        )
    }

    /// An error as an object of its `sqlstate`, `message`, `detail` and `hint`, of at most `bytes_max` bytes. A text that is
    /// missing is null. If the object would be too large, the message is truncated, and a detail or a hint that does not fit
    /// as a whole is null; if not even an empty message fits, the `sqlstate` is the only member.
    /// Frees the error. Nothing here is allocated by Rust, since the texts may be of any length.
    pub(super) fn of_error(error: TakenError, bytes_max: usize) -> Jsonb {
        // SAFETY: each text is null or terminated, and is used before the error is freed.
        let bytes = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes());
        let [sqlstate, message, detail, hint] = error.texts().map(bytes);
        let object = |message, detail, hint| {
            Jsonb::of_texts(&[(c"sqlstate", sqlstate), (c"message", message), (c"detail", detail), (c"hint", hint)])
        };
        // In an object of texts each text takes as many bytes as it has.
        let told = match bytes_max.checked_sub(object(Some(b""), None, None).raw_bytes()) {
            None => Jsonb::of_texts(&[(c"sqlstate", sqlstate)]),
            Some(mut room) => {
                let message = truncated(message.unwrap_or_default(), room);
                room -= message.len();
                let mut fitting = |text: Option<_>| {
                    let fits = text.filter(|text: &&[u8]| !text.is_empty() && text.len() <= room)?;
                    room -= fits.len();
                    Some(fits)
                };
                let detail = fitting(detail);
                object(Some(message), detail, fitting(hint))
            }
        };
        error.free();
        told
    }

    /// An object of texts, in the encoding of the server. A text that is missing is null.
    fn of_texts(members: &[(&CStr, Option<&[u8]>)]) -> Jsonb {
        // SAFETY: each text is copied. All is allocated in the current memory context.
        unsafe {
            let (mut list, context) = (std::ptr::null_mut(), pg_sys::CurrentMemoryContext);
            for text in members.iter().flat_map(|(name, value)| [Some(name.to_bytes()), *value]) {
                let datum = text.map_or(pg_sys::Datum::null(), |text| {
                    pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as c_int).into()
                });
                list = pg_sys::accumArrayResult(list, datum, text.is_none(), pg_sys::TEXTOID, context);
            }
            let members = [Some(pg_sys::makeArrayResult(list, context))];
            Jsonb(pgrx::direct_function_call_as_datum(pg_sys::jsonb_object, &members).expect("a jsonb is not null"))
        }
    }

    /// The value as text.
    pub fn to_text(self) -> String {
        // SAFETY: a jsonb datum is what the function takes. It gives a terminated string.
        unsafe {
            let text = pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.0)]);
            text.and_then(|text| raw::text_of(text.cast_mut_ptr())).unwrap_or_default()
        }
    }

    /// Copies a jsonb value out of a row and its TOAST table into the current memory context. The copy stays valid
    /// when the row's page and table are let go.
    ///
    /// # Safety
    /// `datum` must be a jsonb value whose table is still locked.
    pub unsafe fn copied(datum: pg_sys::Datum) -> Jsonb {
        // SAFETY: a jsonb datum is a varlena pointer.
        Jsonb(unsafe { pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr()) }.into())
    }

    /// The datum, to be stored.
    pub fn datum(self) -> pg_sys::Datum {
        self.0
    }

    /// Its size before compression, in bytes. The value itself is not read.
    pub fn raw_bytes(self) -> usize {
        // SAFETY: a jsonb datum is a varlena, perhaps a TOAST pointer. Its header tells the size.
        unsafe { pg_sys::toast_raw_datum_size(self.0) as usize }.saturating_sub(pg_sys::VARHDRSZ)
    }

    /// Whether it contains a string, number or boolean at any depth. The names of members do not count.
    pub fn tells_something(self) -> bool {
        let mut tells = false;
        self.read(|step, value| {
            tells = matches!(step, Step::WJB_VALUE | Step::WJB_ELEM) && value.type_ != Kind::jbvNull;
            !tells
        });
        tells
    }

    /// Whether it has more levels of arrays and objects. It is read no further than to the first such level.
    pub fn is_deeper_than(self, levels: usize) -> bool {
        let mut level = 0;
        self.read(|step, _| {
            match step {
                Step::WJB_BEGIN_ARRAY | Step::WJB_BEGIN_OBJECT => level += 1,
                Step::WJB_END_ARRAY | Step::WJB_END_OBJECT => level -= 1,
                _ => {}
            }
            level <= levels
        });
        level > levels
    }

    /// Whether its text, as COPY writes it, may have more bytes. It is read no further than to there.
    pub fn is_longer_as_text_than(self, limit: usize) -> bool {
        let mut bytes = 0;
        self.read(|step, value| {
            let is_scalar = matches!(step, Step::WJB_KEY | Step::WJB_VALUE | Step::WJB_ELEM);
            bytes += match value.type_ {
                // SAFETY: JsonbIteratorNext() has filled the string in, and the value that it is of is being read.
                Kind::jbvString if is_scalar => unsafe {
                    4 + string_bytes(value).iter().map(|byte| escaped_bytes(*byte)).sum::<usize>()
                },
                // SAFETY: likewise the numeric, and this is within the guard.
                Kind::jbvNumeric if is_scalar => unsafe { 4 + with_wire_form(value.val.numeric, digits) },
                _ => 8,
            };
            bytes <= limit
        });
        bytes > limit
    }

    /// Shows `visit` each token of the value, until it gives false. It is called within a guard, so it has nothing to drop and
    /// does not panic.
    fn read(self, mut visit: impl FnMut(Step::Type, &pg_sys::JsonbValue) -> bool) {
        // SAFETY: a jsonb datum is a varlena pointer. The value is valid for the whole walk. JsonbIteratorNext() fills in
        // what is shown, which points into the value.
        unsafe {
            raw::guarded(|| {
                let jsonb: *mut pg_sys::Jsonb = raw::pg_detoast_datum(self.0.cast_mut_ptr()).cast();
                let mut iterator = raw::JsonbIteratorInit(&raw mut (*jsonb).root);
                let mut value = std::mem::zeroed::<pg_sys::JsonbValue>();
                loop {
                    let step = raw::JsonbIteratorNext(&mut iterator, &mut value, false);
                    if step == Step::WJB_DONE || !visit(step, &value) {
                        break;
                    }
                }
                if jsonb.cast() != self.0.cast_mut_ptr::<pg_sys::varlena>() {
                    raw::pfree(jsonb.cast());
                }
            });
        }
    }

    /// Digests the value, walking it in jsonb's own order.
    pub fn fingerprint(self) -> [u8; 16] {
        let mut fingerprint = Hasher::default();
        // A top-level scalar is stored as an array of one element that is marked as no array.
        let mut scalar = false;
        // SAFETY: the type of a value names the active union member. This is within the guard.
        self.read(|step, value| unsafe {
            match step {
                Step::WJB_BEGIN_OBJECT => fingerprint.token(b'{', &[]),
                Step::WJB_END_OBJECT => fingerprint.token(b'}', &[]),
                Step::WJB_BEGIN_ARRAY if value.val.array.rawScalar => scalar = true,
                Step::WJB_BEGIN_ARRAY => fingerprint.token(b'[', &[]),
                Step::WJB_END_ARRAY if scalar => {}
                Step::WJB_END_ARRAY => fingerprint.token(b']', &[]),
                Step::WJB_KEY => fingerprint.token(b'k', string_bytes(value)),
                _ => match value.type_ {
                    Kind::jbvBool => fingerprint.token(if value.val.boolean { b'1' } else { b'0' }, &[]),
                    Kind::jbvNumeric => with_wire_form(value.val.numeric, |wire| fingerprint.number(wire)),
                    Kind::jbvString => fingerprint.token(b's', string_bytes(value)),
                    // A stored value has no other scalars.
                    _ => fingerprint.token(b'z', &[]),
                },
            }
            true
        });
        fingerprint.finish()
    }
}

/// # Safety
/// `value` must be a string or a key that JsonbIteratorNext() filled in. The walked value must outlive the result.
unsafe fn string_bytes(value: &pg_sys::JsonbValue) -> &'static [u8] {
    // SAFETY: this is the active member for a string. Pointer and length describe its bytes in the walked value, which
    // outlives the result as the caller warrants.
    unsafe { std::slice::from_raw_parts(value.val.string.val.cast(), value.val.string.len as usize) }
}

/// As many whole characters from the beginning of a text, which is in the encoding of the server, as fit into `bytes_max`.
fn truncated(text: &[u8], bytes_max: usize) -> &[u8] {
    // SAFETY: the text has as many bytes as is said.
    let bytes = unsafe { pg_sys::pg_mbcliplen(text.as_ptr().cast(), text.len() as c_int, bytes_max as c_int) };
    &text[..bytes as usize]
}

/// The bytes that a byte of a string takes in the text of a jsonb as COPY writes it, which doubles each backslash.
fn escaped_bytes(byte: u8) -> usize {
    match byte {
        b'\\' => 4,
        b'"' | 8 | 9 | 10 | 12 | 13 => 3,
        0..32 => 7,
        _ => 1,
    }
}

/// The digits that a numeric has at the most in its text, by its wire form: the number of its groups of four digits, the
/// weight of the first, the sign, and the digits behind the point.
fn digits(wire: &[u8]) -> usize {
    let field = |number: usize| wire.get(2 * number..2 * number + 2).map_or([0; 2], |field| [field[0], field[1]]);
    let (weight, behind_point) = (i16::from_be_bytes(field(1)), u16::from_be_bytes(field(3)));
    4 * (usize::try_from(weight).unwrap_or(0) + 1) + usize::from(behind_point)
}

/// Gives `work` a numeric in its binary wire form, the only canonical form that PostgreSQL makes public. The form is freed at
/// once, since there may be many numbers and each takes a buffer of 1 kB.
///
/// # Safety
/// `numeric` must point to a valid numeric. Called within a guard.
unsafe fn with_wire_form<T>(numeric: pg_sys::Numeric, work: impl FnOnce(&[u8]) -> T) -> T {
    // SAFETY: numeric_send() takes a numeric and returns a bytea in the current memory context.
    unsafe {
        let no_collation = pg_sys::InvalidOid;
        let wire: *mut pg_sys::varlena =
            raw::DirectFunctionCall1Coll(Some(raw::numeric_send), no_collation, numeric.into()).cast_mut_ptr();
        let made = work(pgrx::varlena::varlena_to_byte_slice(wire));
        raw::pfree(wire.cast());
        made
    }
}
