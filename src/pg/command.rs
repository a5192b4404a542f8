//! SQL commands that others wrote: which columns one gives.

use super::raw::text_of;
use pgrx::pg_sys;

/// The names of the columns that a query gives, found without running it; `None` if it is not one statement that gives
/// rows.
pub fn columns_of(query: &str) -> Option<Vec<String>> {
    let query = std::ffi::CString::new(query).expect("a text value has no NUL");
    // SAFETY: SPI is connected for as long as the plan is used, and SPI_finish() frees the plan. A plan that a cursor could
    // run has one source, which describes its rows. An ERROR inside ends the (sub)transaction, and with it the connection.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(query.as_ptr(), 0, std::ptr::null_mut());
        let columns = (!plan.is_null() && pg_sys::SPI_is_cursor_plan(plan)).then(|| {
            let source: *mut pg_sys::CachedPlanSource =
                pg_sys::list_nth(pg_sys::SPI_plan_get_plan_sources(plan), 0).cast();
            let shape = (*source).resultDesc;
            let name = |number| {
                let column = super::heap::tuple_attribute(shape, number);
                text_of((*column).attname.data.as_ptr()).unwrap_or_default()
            };
            (0..(*shape).natts as usize).map(name).collect()
        });
        pg_sys::SPI_finish();
        columns
    }
}
