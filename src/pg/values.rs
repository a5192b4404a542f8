//! Values of other types: arguments, columns, and results: rows of composite types, those of a query, or a few that we make.

use super::raw;
use super::server::iso_moment;
use pgrx::callconv::{ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, Interval, IntoDatum};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::{FromDatum, pg_sys};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::ffi::CStr;
use std::marker::PhantomData;

/// Declares a type of arguments and results of which a datum has all, be it the value or a pointer to it.
macro_rules! of_datum {
    ($(#[$about:meta])* $name:ident($visible:vis $inner:ty), $sql:literal, $oid:expr) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $name($visible $inner);

        pgrx::impl_sql_translatable!($name, $sql);

        // SAFETY: the caller passes an argument of the declared type, which has such datums.
        unsafe impl<'fcx> ArgAbi<'fcx> for $name {
            unsafe fn unbox_arg_unchecked(arg: pgrx::callconv::Arg<'_, 'fcx>) -> Self {
                // SAFETY: as above.
                unsafe { arg.unbox_arg_using_from_datum() }.expect("pgrx unboxes an argument that is not null")
            }
        }

        // SAFETY: as above.
        unsafe impl BoxRet for $name {
            unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
                // SAFETY: as above.
                unsafe { fcinfo.return_raw_datum(self.0.into()) }
            }
        }

        impl FromDatum for $name {
            unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, of: pg_sys::Oid) -> Option<$name> {
                // SAFETY: as the caller warrants.
                unsafe { <$inner as FromDatum>::from_polymorphic_datum(datum, is_null, of) }.map($name)
            }
        }

        impl IntoDatum for $name {
            fn into_datum(self) -> Option<pg_sys::Datum> {
                Some(self.0.into())
            }

            fn type_oid() -> pg_sys::Oid {
                $oid
            }
        }
    };
}

pub(super) use of_datum;

of_datum!(
    /// A `regrole`.
    Regrole(pub pg_sys::Oid), "regrole", pg_sys::REGROLEOID
);
of_datum!(
    /// A `regtype`.
    Regtype(pub pg_sys::Oid), "regtype", pg_sys::REGTYPEOID
);
of_datum!(
    /// A `timestamptz`, in microseconds since 2000-01-01 UTC.
    Timestamptz(pub i64), "timestamptz", pg_sys::TIMESTAMPTZOID
);

impl Serialize for Timestamptz {
    fn serialize<S: Serializer>(&self, json: S) -> Result<S::Ok, S::Error> {
        json.serialize_str(&iso_moment(self.0))
    }
}

/// A value of one of our composite types.
pub trait CompositeRow: 'static {
    /// The composite type's name.
    const SQL_TYPE: &'static str;
    /// The values of the columns in their order; `None` is NULL. Each datum has the column's declared type.
    fn columns(self) -> impl AsRef<[Option<pg_sys::Datum>]>;
}

/// A function's result of a composite type.
pub struct Composite<R>(pub R);

// SAFETY: names the composite type that the extension's script creates.
unsafe impl<R: CompositeRow> SqlTranslatable for Composite<R> {
    const TYPE_IDENT: &'static str = R::SQL_TYPE;
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::NotValidAsArgument(R::SQL_TYPE));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::literal(R::SQL_TYPE)));
}

// SAFETY: returns a composite datum of the type that the function is declared to return.
unsafe impl<R: CompositeRow> BoxRet for Composite<R> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: pgrx passes the call's own fcinfo.
        let row_type = unsafe { result_type((*fcinfo.as_mut_ptr()).flinfo) };
        let columns = self.0.columns();
        let columns = columns.as_ref();
        let (mut values, mut nulls) = split(columns);
        // SAFETY: the arrays have a value for each column of the type, which is checked first. The closure has nothing to
        // drop and does not panic.
        let row = unsafe {
            raw::guarded(|| {
                let shape = raw::lookup_rowtype_tupdesc(row_type, -1);
                let fits = (*shape).natts as usize == columns.len();
                let row = fits.then(|| {
                    let tuple = raw::heap_form_tuple(shape, values.as_mut_ptr(), nulls.as_mut_ptr());
                    raw::HeapTupleHeaderGetDatum((*tuple).t_data)
                });
                if (*shape).tdrefcount >= 0 {
                    raw::DecrTupleDescRefCount(shape);
                }
                row
            })
        };
        let row = row.unwrap_or_else(|| panic!("{} has as many columns as its type", R::SQL_TYPE));
        // SAFETY: it is a row of the declared type.
        unsafe { fcinfo.return_raw_datum(row) }
    }
}

/// The type that a function is declared to return. To look the type up by its name would depend on the search_path.
///
/// # Safety
/// `function` is that of a call.
unsafe fn result_type(function: *mut pg_sys::FmgrInfo) -> pg_sys::Oid {
    // SAFETY: as the caller warrants.
    unsafe {
        // The expression of the call tells it; a call without an expression has the catalog.
        match raw::harmless::get_fn_expr_rettype(function) {
            pg_sys::InvalidOid => pg_sys::get_func_rettype((*function).fn_oid),
            row_type => row_type,
        }
    }
}

/// The columns of a result.
pub trait Shape: 'static {
    /// The columns as SQL: `TABLE (…)`.
    const SQL: &'static str;
}

/// A result of any number of rows. It is a function of ours, which is called when PostgreSQL's store for the rows is there,
/// and fills the store. The rows go from a query's plan to the store, and a store beyond `work_mem` is a file. So their
/// number does not matter to memory.
pub struct Filled<'a, S>(Box<dyn FnOnce(&RowStore) + 'a>, PhantomData<S>);

impl<'a, S: Shape> Filled<'a, S> {
    /// The result that `fill` fills.
    pub fn by(fill: impl FnOnce(&RowStore) + 'a) -> Filled<'a, S> {
        Filled(Box::new(fill), PhantomData)
    }
}

/// PostgreSQL's store for the rows of a result.
pub struct RowStore(*mut pg_sys::ReturnSetInfo);

impl RowStore {
    /// Adds a row, whose values are copied.
    ///
    /// # Safety
    /// There are as many values as columns, each in its column's type.
    unsafe fn put(&self, values: &mut [pg_sys::Datum], nulls: &mut [bool]) {
        // SAFETY: as the caller warrants. The store lives until the function has returned.
        unsafe {
            let (store, shape) = ((*self.0).setResult, (*self.0).setDesc);
            pg_sys::tuplestore_putvalues(store, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }

    /// Executes a query and adds its rows. It must give the columns of the result, in their types. Gives how many rows it
    /// has added.
    pub fn add(&self, query: &CStr) -> u64 {
        // SAFETY: the store and its context live until the function has returned, and the receiver is used before that.
        // The columns are those that the store was made for. SPI_finish() frees what was allocated. An ERROR inside ends
        // the (sub)transaction, and with it the connection.
        unsafe {
            let receiver = pg_sys::CreateDestReceiver(pg_sys::CommandDest::DestTuplestore);
            let (no_detoasting, no_map, no_message) = (false, std::ptr::null_mut(), std::ptr::null());
            let (store, context) = ((*self.0).setResult, (*(*self.0).econtext).ecxt_per_query_memory);
            raw::harmless::SetTuplestoreDestReceiverParams(receiver, store, context, no_detoasting, no_map, no_message);
            let options = pg_sys::SPIExecuteOptions { dest: receiver, ..Default::default() };
            pg_sys::SPI_connect();
            let code = pg_sys::SPI_execute_extended(query.as_ptr(), &options);
            let added = if code < 0 { 0 } else { pg_sys::SPI_processed };
            pg_sys::SPI_finish();
            added
        }
    }
}

// SAFETY: names the type that box_into() returns.
unsafe impl<S: Shape> SqlTranslatable for Filled<'_, S> {
    const TYPE_IDENT: &'static str = S::SQL;
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Err(ArgumentError::NotValidAsArgument(S::SQL));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::literal(S::SQL)));
}

// SAFETY: returns rows of the type that the function is declared to return.
unsafe impl<S: Shape> BoxRet for Filled<'_, S> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: pgrx passes the call's own fcinfo. The store is made with the shape of the declared type, in the memory of the
        // caller's query. It is checked that the function's caller takes a store.
        let store = unsafe {
            let call = fcinfo.as_mut_ptr();
            pg_sys::InitMaterializedSRF(call, 0);
            RowStore((*call).resultinfo.cast())
        };
        (self.0)(&store);
        fcinfo.return_null()
    }
}

/// Rows of a function whose SQL is spelt out.
pub struct Spelt;

impl Shape for Spelt {
    const SQL: &'static str = "SETOF record";
}

/// A few rows as the result of a function. Each row has the columns that are declared there.
pub fn rows(rows: Vec<Vec<Option<pg_sys::Datum>>>) -> Filled<'static, Spelt> {
    Filled::by(move |store| {
        for row in &rows {
            // SAFETY: the store is there. A row has a value for each column, which is checked; the store copies it.
            unsafe {
                assert_eq!(row.len(), (*(*store.0).setDesc).natts as usize, "as many columns as are declared");
                let (mut values, mut nulls) = split(row);
                store.put(&mut values, &mut nulls);
            }
        }
    })
}

/// Requests with their places in a list.
pub struct Listed;

impl Shape for Listed {
    const SQL: &'static str = "TABLE (ord bigint, request text)";
}

/// A list of requests as the result of a function. The rows are put into the store all at once. A function that is called for
/// each row costs three times as much.
pub fn listed<'a>(requests: impl Iterator<Item = (i64, Cow<'a, str>)> + 'a) -> Filled<'a, Listed> {
    Filled::by(move |store| {
        let mut room = TextRoom::default();
        for (ord, request) in requests {
            // SAFETY: the declared type has these two columns.
            unsafe { store.put(&mut [ord.into(), room.text(&request)], &mut [false; 2]) }
        }
    })
}

/// A limit that none of our rows reaches.
pub const COLUMNS_MAX: usize = 32;

/// The columns as `heap_form_tuple` takes them: their values, and which of them are NULL.
pub fn split(columns: &[Option<pg_sys::Datum>]) -> ([pg_sys::Datum; COLUMNS_MAX], [bool; COLUMNS_MAX]) {
    debug_assert!(columns.len() <= COLUMNS_MAX);
    let (mut values, mut nulls) = ([pg_sys::Datum::null(); COLUMNS_MAX], [true; COLUMNS_MAX]);
    for (number, column) in columns.iter().enumerate() {
        if let Some(value) = column {
            (values[number], nulls[number]) = (*value, false);
        }
    }
    (values, nulls)
}

/// A text value in the current memory context.
pub fn text(value: &str) -> pg_sys::Datum {
    value.into_datum().expect("a string is not null")
}

/// Memory for one text value. PostgreSQL copies a value when it forms a row of it, so the memory serves the next one.
#[derive(Default)]
pub struct TextRoom(Vec<u64>);

impl TextRoom {
    /// The value, which is there until the next one is formed.
    pub fn text(&mut self, value: &str) -> pg_sys::Datum {
        let bytes = pg_sys::VARHDRSZ + value.len();
        let words = bytes.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        let room: *mut pg_sys::varlena = self.0.as_mut_ptr().cast();
        // SAFETY: there is room for the header and the value. A key is far shorter than a value can be.
        unsafe {
            pgrx::varlena::set_varsize_4b(room, bytes as i32);
            room.cast::<u8>().add(pg_sys::VARHDRSZ).copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
        room.into()
    }
}

/// A uuid value. It is a pointer to these bytes, and valid as long as they are.
pub fn uuid(bytes: &[u8; 16]) -> pg_sys::Datum {
    pg_sys::Datum::from(bytes.as_ptr())
}

const DAY_US: i64 = 86_400 * 1_000_000;

/// An interval in microseconds, with days of 24 hours and months of 30 days; `None` if the number would overflow, as
/// for an infinite interval.
pub fn interval_us(interval: &Interval) -> Option<i64> {
    let days = i64::from(interval.months()) * 30 + i64::from(interval.days());
    days.checked_mul(DAY_US)?.checked_add(interval.micros())
}

/// An interval of this many microseconds, as days of 24 hours and the rest.
pub fn interval(us: i64) -> Interval {
    let days = i32::try_from(us / DAY_US).unwrap_or(0);
    let rest = us - i64::from(days) * DAY_US;
    Interval::new(0, days, rest).unwrap_or_else(|_| Interval::from_micros(us))
}
