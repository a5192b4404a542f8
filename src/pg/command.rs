//! Commands of others: what one gives, and how one is executed in a script.

use pgrx::{Spi, pg_sys, spi};
use std::ffi::CStr;

/// Executes a command in an extension's script as if the script had ended: what is granted in a script
/// counts as what the extension itself grants, which no dump saves.
pub fn outside_of_script(command: &str) -> Result<(), spi::Error> {
    /// Puts the state back, also when an error unwinds.
    struct Script(bool);
    impl Drop for Script {
        fn drop(&mut self) {
            // SAFETY: sets a variable of the backend to what it was.
            unsafe { pg_sys::creating_extension = self.0 }
        }
    }

    // SAFETY: a variable of the backend; ALTER EXTENSION sets it, and resets it however it ends.
    let _script = Script(unsafe { pg_sys::creating_extension });
    // SAFETY: as above.
    unsafe { pg_sys::creating_extension = false };
    Spi::run(command)
}

/// Whether a command gives rows, found without running it.
///
/// Several statements give none. Of a SELECT the grammar tells. Anything else (with RETURNING, EXPLAIN, CALL with output arguments)
/// is analysed, which costs several times as much.
pub fn returns_rows(command: &str) -> bool {
    let command = std::ffi::CString::new(command).expect("a text value has no NUL");
    // SAFETY: the parser gives a list of RawStmt, whose node says by its tag which struct it is.
    unsafe {
        let parsed = pg_sys::raw_parser(command.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        if parsed.is_null() || (*parsed).length > 1 {
            // A later statement could not be analysed before an earlier one has run.
            return false;
        }
        let first: *mut pg_sys::RawStmt = pg_sys::list_nth(parsed, 0).cast();
        let statement = (*first).stmt;
        if (*statement).type_ == pg_sys::NodeTag::T_SelectStmt {
            return (*statement.cast::<pg_sys::SelectStmt>()).intoClause.is_null();
        }
    }
    analysis_gives_rows(&command)
}

fn analysis_gives_rows(command: &CStr) -> bool {
    let mut types = [pg_sys::JSONBOID];
    // SAFETY: SPI is connected for the time of the plan, which SPI_finish() frees; `types` has as many
    // elements as is said. An ERROR inside ends the connection by ending the (sub)transaction.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(command.as_ptr(), types.len() as i32, types.as_mut_ptr());
        let rows = !plan.is_null() && pg_sys::SPI_is_cursor_plan(plan);
        pg_sys::SPI_finish();
        rows
    }
}
