//! SQL functions that execute a command of their caller between two steps of ours.
//!
//! The command is executed below the function as it would be below one in C, see `attempt.rs`. So the frames from the
//! function's entry to the command are plain: they own nothing that needs a destructor, and our steps are closures for
//! [`in_rust`].

use super::attempt::in_rust;
use super::entry::{Arguments, returned};
use super::execute::{Work, execute};
use super::jsonb::Jsonb;
use super::values::{Composite, CompositeRow};
use pgrx::pg_sys;
use std::ops::ControlFlow;

/// What comes before a command: the answer, and nothing is executed; or the command that is due.
pub type Before<R> = ControlFlow<Composite<R>, Work>;

/// What came of a command: `to_jsonb` of the first column of its row, `None` if that is null, or if there is no row; or an
/// error, as an object of its `sqlstate`, `message`, `detail` and `hint`. What the command did is rolled back then.
pub type Came = Result<Option<Jsonb>, Jsonb>;

/// The body of the function: what comes before the command, the command, and what comes after it.
///
/// # Safety
/// `call` is that of an SQL function with the arguments and the result that the steps expect. The caller's frame owns nothing
/// that needs a destructor.
pub unsafe fn around_command<R: CompositeRow>(
    call: pg_sys::FunctionCallInfo,
    before: fn(&Arguments<'_>) -> Before<R>,
    after: fn(&Arguments<'_>, Came) -> Composite<R>,
) -> pg_sys::Datum {
    // SAFETY: no frame from here to the command owns anything, and the steps run in in_rust(). The arguments stay valid during
    // the call.
    unsafe {
        let mut work = match in_rust(|| before(&Arguments::of(call)).map_break(|answer| returned(call, answer))) {
            ControlFlow::Continue(work) => work,
            ControlFlow::Break(answer) => return answer,
        };
        let error = execute(&mut work);
        in_rust(|| {
            let came = error.map_or_else(|| Ok(work.response), |error| Err(Jsonb::of_error(error)));
            returned(call, after(&Arguments::of(call), came))
        })
    }
}
