//! SQL commands that others wrote: executing one within an extension's script, and which rows one returns.

use pgrx::{Spi, pg_sys, spi};
use std::ffi::CStr;

/// Executes a command within an extension's script as if the script had ended. Otherwise a GRANT would count as a
/// grant by the extension itself, which no dump saves.
pub fn outside_of_script(command: &str) -> Result<(), spi::Error> {
    /// Restores the variable, also when an error unwinds.
    struct Script(bool);
    impl Drop for Script {
        fn drop(&mut self) {
            // SAFETY: sets a variable of the backend to what it was.
            unsafe { pg_sys::creating_extension = self.0 }
        }
    }

    // SAFETY: a variable of the backend. ALTER EXTENSION sets it, and resets it however the script ends.
    let _script = Script(unsafe { pg_sys::creating_extension });
    // SAFETY: as above.
    unsafe { pg_sys::creating_extension = false };
    Spi::run(command)
}

/// Whether a command returns rows, found without running it.
///
/// A command of several statements counts as one that returns none. For a SELECT the parse tree tells. Any other
/// statement (RETURNING, EXPLAIN, CALL with output arguments) has to be analysed, which costs several times as much.
pub fn returns_rows(command: &str) -> bool {
    let command = std::ffi::CString::new(command).expect("a text value has no NUL");
    // SAFETY: the parser gives a list of RawStmt. The tag of a node tells which struct the node is.
    unsafe {
        let parsed = pg_sys::raw_parser(command.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        if parsed.is_null() || (*parsed).length > 1 {
            // A later statement cannot be analysed before an earlier one has run.
            return false;
        }
        let first: *mut pg_sys::RawStmt = pg_sys::list_nth(parsed, 0).cast();
        let statement = (*first).stmt;
        if (*statement).type_ == pg_sys::NodeTag::T_SelectStmt {
            return (*statement.cast::<pg_sys::SelectStmt>()).intoClause.is_null();
        }
    }
    analysis_finds_rows(&command)
}

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
                CStr::from_ptr((*column).attname.data.as_ptr()).to_string_lossy().into_owned()
            };
            (0..(*shape).natts as usize).map(name).collect()
        });
        pg_sys::SPI_finish();
        columns
    }
}

fn analysis_finds_rows(command: &CStr) -> bool {
    let mut types = [pg_sys::JSONBOID];
    // SAFETY: SPI is connected for as long as the plan is used, and SPI_finish() frees the plan. The call is told how
    // many elements `types` has. An ERROR inside ends the (sub)transaction, and with it the connection.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(command.as_ptr(), types.len() as i32, types.as_mut_ptr());
        let rows = !plan.is_null() && pg_sys::SPI_is_cursor_plan(plan);
        pg_sys::SPI_finish();
        rows
    }
}
