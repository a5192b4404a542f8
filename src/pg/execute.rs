//! SQL functions that execute a command of their caller, by SPI, between two steps of ours.
//!
//! The command is executed below the function as it would be below one in C, see `attempt.rs`. So the frames from the
//! function's entry to the command are plain: they own nothing that needs a destructor, and our steps are closures for
//! [`in_rust`].

use super::attempt::{attempt, in_rust};
use super::entry::{Arguments, returned};
use super::heap::tuple_attribute;
use super::jsonb::Jsonb;
use super::kept::{self, KeptCommand};
use super::taken::in_subtransaction;
use super::values::{Composite, CompositeRow};
use crate::error::{Error, or_raise};
use pgrx::pg_sys;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ops::ControlFlow;

/// What comes before a command: the answer, and nothing is executed; or the command that is due.
pub type Before<R> = ControlFlow<Composite<R>, Work>;

/// What came of a command: `to_jsonb` of the first column of its row, `None` if that is null, or if there is no row; or an
/// error, as [`Takes`] says. What the command did is rolled back then.
pub type Came = Result<Option<Jsonb>, Jsonb>;

/// The body of the function: what comes before the command, the command, and what comes after it.
///
/// # Safety
/// `call` is that of an SQL function with the arguments and the result that the steps expect. The caller's frame owns nothing
/// that needs a destructor.
pub unsafe fn around_command<R: CompositeRow>(
    call: pg_sys::FunctionCallInfo,
    before: fn(&Arguments<'_>) -> Result<Before<R>, Error>,
    after: fn(&Arguments<'_>, Came) -> Result<Composite<R>, Error>,
) -> pg_sys::Datum {
    // SAFETY: no frame from here to the command owns anything, and the steps run in in_rust(). The arguments stay valid during
    // the call.
    unsafe {
        let mut work =
            match in_rust(|| or_raise(before(&Arguments::of(call))).map_break(|answer| returned(call, answer))) {
                ControlFlow::Continue(work) => work,
                ControlFlow::Break(answer) => return answer,
            };
        let error = execute(&mut work);
        in_rust(|| {
            let came = error.map_or(Ok(work.response), Err);
            returned(call, or_raise(after(&Arguments::of(call), came)))
        })
    }
}

/// The errors that are given to the step after the command. All others are raised.
#[derive(Clone, Copy)]
pub struct Takes {
    /// Whether an error with this SQLSTATE is one of them.
    pub is_taken: fn(&[u8; 5]) -> bool,
    /// The most bytes of the object that an error becomes. Its members are `sqlstate`, `message`, `detail` and `hint`.
    pub bytes_max: usize,
}

/// A command to be executed, or at work. It is plain data.
#[derive(Clone, Copy)]
pub struct Work {
    text: *const c_char,
    /// Its only parameter.
    parameter: Option<pg_sys::Datum>,
    takes: Option<Takes>,
    /// Where the response goes.
    context: pg_sys::MemoryContext,
    /// The command as it is kept, if it is.
    kept: Option<&'static KeptCommand>,
    /// What the command gave.
    response: Option<Jsonb>,
}

impl Work {
    /// A command with its parameter, in the current memory context. `None` for `takes`: all errors are raised, and no
    /// subtransaction is needed.
    pub fn of(command: &str, parameter: Option<Jsonb>, takes: Option<Takes>) -> Work {
        let kept = kept::find(command);
        // SAFETY: the copy of the command is terminated.
        let copy = || unsafe { pg_sys::pnstrdup(command.as_ptr().cast(), command.len()) }.cast_const();
        let text = kept.map_or_else(copy, |kept| kept.text.as_ptr());
        // SAFETY: a variable of the backend.
        let context = unsafe { pg_sys::CurrentMemoryContext };
        Work { text, parameter: parameter.map(Jsonb::datum), takes, context, kept, response: None }
    }
}

/// Executes the command. Gives the error that the function takes, as an object.
///
/// # Safety
/// The caller's frames own nothing that needs a destructor.
unsafe fn execute(work: &mut Work) -> Option<Jsonb> {
    // SAFETY: as the caller warrants. The error that attempt() has met is passed on at once.
    unsafe {
        let Some(takes) = work.takes else {
            let done = attempt(|| run(work));
            work.kept.iter().for_each(|kept| kept.give_back(!done));
            if !done {
                pg_re_throw();
            }
            return None;
        };
        let error = in_subtransaction(|| run(work));
        work.kept.iter().for_each(|kept| kept.give_back(error.is_some()));
        let error = error?;
        if !(takes.is_taken)(&error.sqlstate()) {
            error.raise_again();
        }
        Some(in_rust(|| Jsonb::of_error(error, takes.bytes_max)))
    }
}

// SAFETY: declared as PostgreSQL declares them. They have no guard, since users' errors pass through them.
unsafe extern "C-unwind" {
    fn SPI_connect() -> c_int;
    fn SPI_finish() -> c_int;
    fn SPI_prepare_cursor(text: *const c_char, n: c_int, types: *mut pg_sys::Oid, options: c_int)
    -> pg_sys::SPIPlanPtr;
    fn SPI_execute_plan(
        plan: pg_sys::SPIPlanPtr,
        values: *mut pg_sys::Datum,
        nulls: *const c_char,
        read_only: bool,
        rows: c_long,
    ) -> c_int;
    fn SPI_execute_with_args(
        text: *const c_char,
        n: c_int,
        types: *mut pg_sys::Oid,
        values: *mut pg_sys::Datum,
        nulls: *const c_char,
        read_only: bool,
        rows: c_long,
    ) -> c_int;
    fn raw_parser(text: *const c_char, mode: pg_sys::RawParseMode::Type) -> *mut pg_sys::List;
    fn FunctionCall1Coll(
        function: *mut pg_sys::FmgrInfo,
        collation: pg_sys::Oid,
        argument: pg_sys::Datum,
    ) -> pg_sys::Datum;
    fn pg_re_throw() -> !;
    fn geterrposition() -> c_int;
    fn errposition(position: c_int) -> c_int;
    fn internalerrposition(position: c_int) -> c_int;
    fn internalerrquery(query: *const c_char) -> c_int;
}

/// Runs the command, and takes its response.
///
/// # Safety
/// As for [`execute`].
unsafe fn run(work: &mut Work) {
    // SAFETY: as the caller warrants. SPI is connected while it is used; an error ends the connection with its
    // (sub)transaction. The arrays have one element each, for one parameter. What SPI returns is valid until SPI_finish().
    unsafe {
        SPI_connect();
        let mut types = [pg_sys::JSONBOID];
        let mut values = [work.parameter.unwrap_or(pg_sys::Datum::null())];
        let nulls = if work.parameter.is_some() { c" " } else { c"n" }.as_ptr();
        let (plan, several) = plan(work, &mut types);
        let done = if plan.is_null() {
            SPI_execute_with_args(work.text, 1, types.as_mut_ptr(), values.as_mut_ptr(), nulls, false, 0)
        } else {
            SPI_execute_plan(plan, values.as_mut_ptr(), nulls, false, 0)
        };
        if done < 0 || done == pg_sys::SPI_OK_SELINTO as c_int {
            in_rust::<()>(|| refuse(done));
        }
        if !several && !pg_sys::SPI_tuptable.is_null() {
            match pg_sys::SPI_processed {
                0 => {}
                1 => first_column(work),
                rows => in_rust::<()>(|| Error::SeveralRows { rows }.raise()),
            }
        }
        SPI_finish();
    }
}

/// The plan by which the command is executed; null: without one. And whether it is several statements: a later one can be
/// analysed only after an earlier one was executed. Keeps the command, if it is new and can be kept.
///
/// # Safety
/// As for [`run`], with SPI connected.
unsafe fn plan(work: &mut Work, types: &mut [pg_sys::Oid; 1]) -> (pg_sys::SPIPlanPtr, bool) {
    // SAFETY: what is kept and in use is valid. The parser gives a list of RawStmt. SPI copies the types.
    unsafe {
        if let Some(kept) = work.kept {
            return (kept.plan, false);
        }
        let count = parsed(work.text).as_ref().map_or(0, |statements| statements.length);
        if count != 1 {
            return (std::ptr::null_mut(), count > 1);
        }
        let text = work.text;
        let plan = SPI_prepare_cursor(text, 1, types.as_mut_ptr(), pg_sys::CURSOR_OPT_PARALLEL_OK as c_int);
        work.kept = in_rust(|| kept::keep(CStr::from_ptr(text), plan));
        (plan, false)
    }
}

/// Parses a text. An error tells its place in the text, as one that SPI meets.
///
/// # Safety
/// As for [`run`].
unsafe fn parsed(text: *const c_char) -> *mut pg_sys::List {
    unsafe extern "C-unwind" fn place(text: *mut c_void) {
        // SAFETY: only errfinish() calls this, while it builds the error.
        unsafe {
            let position = geterrposition();
            if position > 0 {
                errposition(0);
                internalerrposition(position);
                internalerrquery(text.cast());
            }
        }
    }

    // SAFETY: as the caller warrants. The callback is on the stack of callbacks only while the parser runs; an error
    // restores the stack.
    unsafe {
        let mut callback = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(place),
            arg: text.cast_mut().cast(),
        };
        pg_sys::error_context_stack = &mut callback;
        let statements = raw_parser(text, pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        pg_sys::error_context_stack = callback.previous;
        statements
    }
}

/// Raises the error for what SPI does not execute for us.
fn refuse(done: c_int) -> ! {
    const SELECT_INTO: c_int = pg_sys::SPI_OK_SELINTO as c_int;
    match done {
        SELECT_INTO => Error::SelectInto,
        pg_sys::SPI_ERROR_COPY => Error::CopyCommand,
        pg_sys::SPI_ERROR_TRANSACTION => Error::TransactionCommand,
        other => unreachable!("SPI gave {other}"),
    }
    .raise()
}

/// Takes `to_jsonb` of the first column of the row that SPI has.
///
/// # Safety
/// As for [`run`], and SPI has a row.
unsafe fn first_column(work: &mut Work) {
    // SAFETY: as the caller warrants. The row is read by its own shape. An error drops the snapshot with its
    // (sub)transaction.
    unsafe {
        let shape = (*pg_sys::SPI_tuptable).tupdesc;
        if (*shape).natts == 0 {
            return;
        }
        let mut null = false;
        let value = in_rust(|| pg_sys::SPI_getbinval(*(*pg_sys::SPI_tuptable).vals, shape, 1, &mut null));
        if null {
            return;
        }
        pg_sys::CurrentMemoryContext = work.context;
        if (*tuple_attribute(shape, 0)).atttypid == pg_sys::JSONBOID {
            work.response = Some(in_rust(|| Jsonb::copied(value)));
        } else {
            // A cast to json that a user has made may be called. It sees what the command did.
            let function = in_rust(|| {
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                to_jsonb_of(shape)
            });
            work.response = Some(Jsonb(FunctionCall1Coll(function, pg_sys::InvalidOid, value)));
            in_rust(|| pg_sys::PopActiveSnapshot());
        }
    }
}

/// `to_jsonb` for the first column of a shape. The function asks the expression of its call for the type of its argument,
/// so the call gets an expression with that type.
///
/// # Safety
/// The shape is valid and has a column.
unsafe fn to_jsonb_of(shape: pg_sys::TupleDesc) -> *mut pg_sys::FmgrInfo {
    // SAFETY: as the caller warrants. All is allocated in the current memory context, which outlives the call.
    unsafe {
        let column = tuple_attribute(shape, 0);
        let argument = pg_sys::makeNullConst((*column).atttypid, (*column).atttypmod, (*column).attcollation);
        let call = pg_sys::makeFuncExpr(
            pg_sys::F_TO_JSONB.into(),
            pg_sys::JSONBOID,
            pg_sys::lappend(std::ptr::null_mut(), argument.cast()),
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        );
        let function: *mut pg_sys::FmgrInfo = pg_sys::palloc0(size_of::<pg_sys::FmgrInfo>()).cast();
        pg_sys::fmgr_info(pg_sys::F_TO_JSONB.into(), function);
        (*function).fn_expr = call.cast();
        function
    }
}
