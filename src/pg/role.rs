//! The role whose rights count, and acting as another role.

use super::own::finally;
use super::raw::{GetUserNameFromId, cstring_to_text, guarded, harmless, text_of};
use pgrx::{Spi, pg_sys};
use std::ffi::CStr;

/// The role whose rights count. Inside a SECURITY DEFINER function that is the owner of the function.
pub fn current_role() -> pg_sys::Oid {
    // SAFETY: reads a variable of the backend.
    unsafe { harmless::GetUserId() }
}

/// Whether the current role has the privileges of `owner`. If `owner` was dropped, only superusers have them.
pub fn has_privileges_of(owner: pg_sys::Oid) -> bool {
    let role = current_role();
    role == owner || has_privileges(role, owner)
}

/// The name of a role; `None` if the role was dropped.
pub fn role_name(role: pg_sys::Oid) -> Option<String> {
    // SAFETY: returns a terminated string in the current memory context, or null.
    unsafe { text_of(pg_sys::GetUserNameFromId(role, true)) }
}

/// The name of the role whose rights count, which says who did something also after the role was dropped. It is empty if
/// the role was dropped already.
pub fn current_role_name() -> String {
    role_name(current_role()).unwrap_or_default()
}

/// As [`current_role_name`], as a value of type text.
pub fn current_role_text() -> pg_sys::Datum {
    // SAFETY: looks the role up in the system caches. The closure has nothing to drop and does not panic.
    unsafe {
        guarded(|| {
            let name = GetUserNameFromId(current_role(), true);
            cstring_to_text(if name.is_null() { c"".as_ptr() } else { name }).into()
        })
    }
}

/// The name of the role that the connection is of, whatever role it has become since (SET SESSION AUTHORIZATION, SET ROLE,
/// SECURITY DEFINER).
pub fn login_name() -> String {
    // SAFETY: reads a variable of the backend.
    role_name(unsafe { pg_sys::GetAuthenticatedUserId() }).unwrap_or_default()
}

/// What the client calls itself.
pub fn application_name() -> String {
    // SAFETY: the value of a setting, a terminated string or null.
    unsafe { text_of(pg_sys::application_name) }.unwrap_or_default()
}

/// Runs `work` as the role `owner`. SQL on our tables is executed so, since nobody but their owner has a privilege on them.
/// The search_path is one on which the caller's objects are not: SQL that left a name to the path would run the caller's
/// code with the other role's rights.
pub fn as_role<T>(owner: pg_sys::Oid, work: impl FnOnce() -> T) -> T {
    let (mut caller, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: reads and sets two variables of the backend.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut caller, &mut context);
        pg_sys::SetUserIdAndSecContext(owner, context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
    }
    let work = || {
        // SAFETY: the level is ended below. An error ends it with its (sub)transaction.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            set_for_now(c"search_path", c"pg_catalog, pg_temp", pg_sys::GucAction::GUC_ACTION_SAVE);
            let done = work();
            pg_sys::AtEOXact_GUC(false, level);
            done
        }
    };
    // SAFETY: sets the variables to their former values.
    finally(work, || unsafe { pg_sys::SetUserIdAndSecContext(caller, context) })
}

/// Sets a setting that anybody may set, until the end that `action` tells.
///
/// # Safety
/// Called in a transaction.
pub(super) unsafe fn set_for_now(name: &CStr, value: &CStr, action: pg_sys::GucAction::Type) {
    let (anybody, session) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_SESSION);
    // SAFETY: as the caller warrants. The strings live as long as the call.
    unsafe { pg_sys::set_config_option(name.as_ptr(), value.as_ptr(), anybody, session, action, true, 0, false) };
}

/// Whether a role has the privileges of another one.
pub fn has_privileges(role: pg_sys::Oid, of: pg_sys::Oid) -> bool {
    // SAFETY: looks up the roles in the system caches. A role that was dropped has no privileges.
    unsafe { pg_sys::has_privs_of_role(role, of) }
}

/// Whether the current role is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: looks up the role in a cache of the backend.
    unsafe { pg_sys::superuser() }
}

/// Whether the current role is an admin, that is, may execute the repair function `idem_force_record`.
pub fn is_admin() -> bool {
    let query = "SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))
        FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_depend d ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
         AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
        JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) d.objid
        WHERE e.extname OPERATOR(pg_catalog.=) 'idempotence' AND p.proname OPERATOR(pg_catalog.=) 'idem_force_record'";
    Spi::connect(|client| client.select(query, Some(1), &[]).and_then(|rows| rows.first().get_one::<bool>()))
        .ok()
        .flatten()
        .unwrap_or(false)
}
