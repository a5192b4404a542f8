//! SQL functions that execute a command of their caller between two steps of ours.
//!
//! The command is executed below the function as it would be below one in C, see `attempt.rs`. So the frames from the
//! function's entry to the command are plain: they own nothing that needs a destructor, and our steps are closures for
//! [`in_rust`].

use super::attempt::in_rust;
use super::execute::{CommandOrder, Work, execute};
use super::jsonb::Jsonb;
use super::values::{Composite, CompositeRow};
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::Interval;
use pgrx::{FromDatum, pg_sys};
use std::ops::ControlFlow;

/// What comes before a command: the answer, and nothing is executed; or the command that is due.
pub type Before<'a, R> = ControlFlow<Composite<R>, CommandOrder<'a>>;

/// What came of a command: `to_jsonb` of the first column of its row, `None` if that is null, or if there is no row; or an
/// error, as an object of its `sqlstate`, `message`, `detail` and `hint`. What the command did is rolled back then.
pub type Came = Result<Option<Jsonb>, Jsonb>;

/// The arguments of a call, by their places. Their types are those that the function is declared with.
pub struct Arguments<'a>(&'a [pg_sys::NullableDatum]);

impl Arguments<'_> {
    fn get<T: FromDatum>(&self, place: usize) -> Option<T> {
        let argument = &self.0[place];
        // SAFETY: the caller of this private function asks for the type that the argument is declared with.
        unsafe { T::from_datum(argument.value, argument.isnull) }
    }

    /// A text.
    pub fn text(&self, place: usize) -> Option<&str> {
        self.get(place)
    }

    /// A jsonb.
    pub fn jsonb(&self, place: usize) -> Option<Jsonb> {
        self.get(place)
    }

    /// An interval.
    pub fn interval(&self, place: usize) -> Option<Interval> {
        self.get(place)
    }
}

/// Defines the C function for an SQL function that executes a command: its name, that of the function that tells the server how
/// it is called, and what comes before and after the command.
macro_rules! function_around_command {
    ($name:ident, $information:ident, $before:ident, $after:ident) => {
        /// Tells the server how the function is called.
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $information() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const INFORMATION: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &INFORMATION
        }

        /// The C function.
        ///
        /// # Safety
        /// Called by the server, for an SQL function with the arguments and the result that the steps expect.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: as above.
            unsafe { $crate::pg::around_command(call, $before, $after) }
        }
    };
}
pub(crate) use function_around_command;

/// The body of the function: what comes before the command, the command, and what comes after it.
///
/// # Safety
/// `call` is that of an SQL function with the arguments and the result that the steps expect. The caller's frame owns nothing
/// that needs a destructor.
pub unsafe fn around_command<R: CompositeRow>(
    call: pg_sys::FunctionCallInfo,
    before: for<'a> fn(&'a Arguments<'_>) -> Before<'a, R>,
    after: fn(&Arguments<'_>, Came) -> Composite<R>,
) -> pg_sys::Datum {
    // SAFETY: no frame from here to the command owns anything, and the steps run in in_rust(). The arguments stay valid during
    // the call.
    unsafe {
        let due =
            in_rust(|| before(&arguments(call)).map_break(|answer| returned(call, answer)).map_continue(Work::of));
        let mut work = match due {
            ControlFlow::Continue(work) => work,
            ControlFlow::Break(answer) => return answer,
        };
        let error = execute(&mut work);
        in_rust(|| {
            let came = error.map_or_else(|| Ok(work.response), |error| Err(Jsonb::of_error(error)));
            returned(call, after(&arguments(call), came))
        })
    }
}

/// # Safety
/// `call` is valid, and stays so for as long as the result is used.
unsafe fn arguments<'a>(call: pg_sys::FunctionCallInfo) -> Arguments<'a> {
    // SAFETY: as the caller warrants. A call has as many arguments as it says.
    unsafe { Arguments(std::slice::from_raw_parts((*call).args.as_ptr(), (*call).nargs as usize)) }
}

/// # Safety
/// `call` is that of a function that is declared to return the type of the row.
unsafe fn returned<R: CompositeRow>(call: pg_sys::FunctionCallInfo, answer: Composite<R>) -> pg_sys::Datum {
    // SAFETY: as the caller warrants.
    unsafe { answer.box_into(&mut FcInfo::from_ptr(call)).sans_lifetime() }
}
