//! Rows as the result of a function: those of a query, or a few that we make.

use super::raw::harmless;
use super::values::{TextRoom, split};
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use std::borrow::Cow;
use std::ffi::CStr;
use std::marker::PhantomData;

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
            harmless::SetTuplestoreDestReceiverParams(receiver, store, context, no_detoasting, no_map, no_message);
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
