//! A list of requests as the result of a function.

use super::filled::materialized;
use super::scratch::TextRoom;
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Datum;
use pgrx::pg_sys;
use std::borrow::Cow;

/// A result of type `TABLE (ord bigint, request text)`. The rows are put into PostgreSQL's store for them all at once.
/// A function that is called for each row costs three times as much.
pub struct Listed<'a>(pub Vec<(i64, Cow<'a, str>)>);

pgrx::impl_sql_translatable!(Listed<'_>, "TABLE (ord bigint, request text)");

// SAFETY: returns rows of the type that the function is declared to return.
unsafe impl BoxRet for Listed<'_> {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        let mut room = TextRoom::default();
        // SAFETY: pgrx passes the call's own fcinfo. materialized() makes a store with the shape of the declared type, which has these two columns. The store copies each row.
        unsafe {
            let result = materialized(fcinfo.as_mut_ptr());
            let (store, shape) = ((*result).setResult, (*result).setDesc);
            let mut nulls = [false; 2];
            for (ord, request) in &self.0 {
                let mut values = [(*ord).into(), room.text(request)];
                pg_sys::tuplestore_putvalues(store, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            }
        }
        fcinfo.return_null()
    }
}
