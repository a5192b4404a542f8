//! SQL functions whose C functions are not pgrx's: users' SQL runs below `idem_run`, see `execute.rs`, and `idem_begin` is called
//! without the arguments that were left out, see [`leave_out_nulls`].

use super::attempt::in_rust;
use super::values::{Composite, CompositeRow};
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::{FromDatum, pg_sys};

/// Declares a C function, and the function that tells the server how to call it. `$body` is given the call.
macro_rules! c_function {
    ($name:ident, $information:ident, $body:expr) => {
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $information() -> &'static pgrx::pg_sys::Pg_finfo_record {
            &pgrx::pg_sys::Pg_finfo_record { api_version: 1 }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(call: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: called by the server, for the SQL function as it is declared.
            unsafe { $body(call) }
        }
    };
}
pub(crate) use c_function;

/// The arguments of a call, by their places. Their types are those that the function is declared with.
pub struct Arguments<'a>(&'a [pg_sys::NullableDatum]);

impl<'a> Arguments<'a> {
    /// # Safety
    /// `call` is valid for as long as the arguments are used.
    pub(super) unsafe fn of(call: pg_sys::FunctionCallInfo) -> Self {
        // SAFETY: as the caller warrants. A call has as many arguments as it says.
        unsafe { Self(std::slice::from_raw_parts((*call).args.as_ptr(), (*call).nargs as usize)) }
    }

    /// An argument, in the type that it is declared with. An argument that was left out is NULL.
    pub fn get<T: FromDatum>(&self, place: usize) -> Option<T> {
        let argument = self.0.get(place)?;
        // SAFETY: the caller asks for the type that the argument is declared with.
        unsafe { T::from_datum(argument.value, argument.isnull) }
    }
}

/// # Safety
/// `call` is that of a function that is declared to return the type of the row.
pub(super) unsafe fn returned<R: CompositeRow>(call: pg_sys::FunctionCallInfo, answer: Composite<R>) -> pg_sys::Datum {
    // SAFETY: as the caller warrants.
    unsafe { answer.box_into(&mut FcInfo::from_ptr(call)).sans_lifetime() }
}

/// The body of a function that answers with a row.
///
/// # Safety
/// `call` is that of an SQL function with the arguments and the result that `work` expects.
pub unsafe fn answered<R: CompositeRow>(
    call: pg_sys::FunctionCallInfo,
    work: impl FnOnce(&Arguments<'_>) -> Composite<R>,
) -> pg_sys::Datum {
    // SAFETY: this frame owns nothing that needs a destructor; `work` runs within in_rust().
    unsafe { in_rust(|| returned(call, work(&Arguments::of(call)))) }
}

/// The arguments that no call is without.
const REQUIRED: usize = 2;

// Makes the planner leave out the arguments at the end of a call that are NULL, as those are that the caller has left out: in
// FROM the executor makes each argument ready as an expression of its own, in 600 instructions.
c_function!(idem_leave_out_nulls, pg_finfo_idem_leave_out_nulls, |call| in_rust(|| {
    let request: *mut pg_sys::Node = Arguments::of(call).0[0].value.cast_mut_ptr();
    pg_sys::Datum::from(leave_out_nulls(request))
}));

/// # Safety
/// `request` is a request of the planner to a support function.
unsafe fn leave_out_nulls(request: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: the tag of a node tells its type. A function that the planner simplifies has a list of arguments.
    unsafe {
        if (*request).type_ != pg_sys::NodeTag::T_SupportRequestSimplify {
            return std::ptr::null_mut();
        }
        let call = (*request.cast::<pg_sys::SupportRequestSimplify>()).fcall;
        let arguments = std::slice::from_raw_parts((*(*call).args).elements, (*(*call).args).length as usize);
        let is_null = |argument: *mut pg_sys::Node| {
            (*argument).type_ == pg_sys::NodeTag::T_Const && (*argument.cast::<pg_sys::Const>()).constisnull
        };
        let last = arguments.iter().rposition(|argument| !is_null(argument.ptr_value.cast()));
        let given = last.map_or(REQUIRED, |last| REQUIRED.max(last + 1));
        if given == arguments.len() {
            return std::ptr::null_mut();
        }
        let shorter: *mut pg_sys::FuncExpr = pg_sys::copyObjectImpl(call.cast()).cast();
        (*shorter).args = pg_sys::list_truncate((*shorter).args, given as i32);
        shorter.cast()
    }
}
