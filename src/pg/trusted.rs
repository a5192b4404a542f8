//! Statements during which no function is called that is not a superuser's.
//!
//! PostgreSQL asks a hook about each function that is about to be called: by an expression or an operator, by a trigger, by
//! a check of a domain, by a statement that another function executes. It also asks where it computes a constant while it
//! plans. So nothing that somebody has hung on a table gets past this, however it is reached.
//!
//! The hook checks functions in this process only. A parallel worker would execute functions without the check, so while such
//! a statement runs, no query of this process has parallel workers (`hooks.rs`).

use super::attempt::in_rust;
use super::own::{Own, finally};
use super::raw::text_of;
use crate::error::Error;
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::CStr;
use std::rc::Rc;

/// What is to be done once a statement is planned, before it is executed, with the tables that it uses.
pub type OncePlanned = Rc<dyn Fn(&[pg_sys::Oid])>;

/// A journal that statements are at work on.
struct AtWork {
    journal: String,
    /// What is to be done once the first of them is planned.
    once_planned: Option<OncePlanned>,
}

static AT_WORK: Own<Option<AtWork>> = Own::new();

/// The hooks that were there before ours.
static mut NEXT_NEEDED: pg_sys::needs_fmgr_hook_type = None;
static mut NEXT: pg_sys::fmgr_hook_type = None;

/// Installs the hooks, once a backend.
pub fn init_trusted() {
    // SAFETY: the process has one thread, and calls no function while it loads the library.
    unsafe {
        NEXT_NEEDED = pg_sys::needs_fmgr_hook;
        pg_sys::needs_fmgr_hook = Some(is_needed);
        NEXT = pg_sys::fmgr_hook;
        pg_sys::fmgr_hook = Some(called);
    }
}

/// Runs `work`, statements on a journal. Where they would call a function that is not a superuser's, that is an error.
/// `check` is called when the first of them is planned, and may refuse the tables that it uses.
pub fn without_users_code<T>(journal: &str, check: OncePlanned, work: impl FnOnce() -> T) -> T {
    let now = AtWork { journal: journal.to_owned(), once_planned: Some(check) };
    let mut former = AT_WORK.with(|at_work| at_work.replace(now));
    finally(work, || drop(AT_WORK.with(|at_work| std::mem::replace(at_work, former.take()))))
}

/// Whether functions may be called that are not a superuser's. If not, queries are executed without parallel workers.
pub(super) fn may_call_users_code() -> bool {
    AT_WORK.with(|at_work| at_work.is_none())
}

/// To be called between the planning of a statement and its execution.
///
/// # Safety
/// The statement is planned and started. The frames from here to whoever catches PostgreSQL's errors own nothing that needs
/// a destructor.
pub(super) unsafe fn is_planned(query: *const pg_sys::QueryDesc) {
    // SAFETY: as the caller warrants. The text is a terminated string.
    let text = || unsafe { CStr::from_ptr((*query).sourceText) }.to_bytes();
    // A planner that another library brings may execute statements of its own first. They do not name the journal.
    let is_first = |AtWork { journal, once_planned }: &AtWork| {
        once_planned.is_some() && text().windows(journal.len()).any(|part| part == journal.as_bytes())
    };
    if !AT_WORK.with(|at_work| at_work.as_ref().is_some_and(is_first)) {
        return;
    }
    // SAFETY: as the caller warrants. The entries of a range table are nodes of this type.
    unsafe {
        in_rust(|| {
            let check = AT_WORK.with(|at_work| at_work.as_mut()?.once_planned.take());
            let entries = PgList::<pg_sys::RangeTblEntry>::from_pg((*(*query).plannedstmt).rtable);
            let tables = entries.iter_ptr().filter(|entry| (**entry).rtekind == pg_sys::RTEKind::RTE_RELATION);
            let tables: Vec<pg_sys::Oid> = tables.map(|entry| (*entry).relid).collect();
            check.iter().for_each(|check| check(&tables));
        });
    }
}

/// PostgreSQL asks this of each function that is neither built in, nor SECURITY DEFINER, nor has settings.
#[pg_guard]
unsafe extern "C-unwind" fn is_needed(function: pg_sys::Oid) -> bool {
    check(function);
    // SAFETY: the hook that was there before.
    unsafe { NEXT_NEEDED.is_some_and(|next| next(function)) }
}

/// PostgreSQL tells this of calls of the others that are not built in.
#[pg_guard]
unsafe extern "C-unwind" fn called(
    event: pg_sys::FmgrHookEventType::Type,
    function: *mut pg_sys::FmgrInfo,
    argument: *mut pg_sys::Datum,
) {
    // SAFETY: the function is about to be called, or was. The hook that was there before.
    unsafe {
        if event == pg_sys::FmgrHookEventType::FHET_START {
            check((*function).fn_oid);
        }
        if let Some(next) = NEXT {
            next(event, function, argument);
        }
    }
}

fn check(function: pg_sys::Oid) {
    let journal = AT_WORK.with(|at_work| at_work.as_ref().map(|at_work| at_work.journal.clone()));
    let Some(journal) = journal.filter(|_| !belongs_to_superuser(function)) else { return };
    // SAFETY: the function is there. Its name is a terminated string.
    let name = unsafe { text_of(pg_sys::format_procedure_qualified(function)) }.unwrap_or_default();
    let detail = format!("Its use would call {name}, a function that does not belong to a superuser.");
    Error::UnfitJournal { journal, detail }.raise()
}

/// PostgreSQL itself raises an error for a function that is gone.
fn belongs_to_superuser(function: pg_sys::Oid) -> bool {
    let owner = with_function(function, |form| form.proowner);
    // SAFETY: looks up the role in a cache of the backend.
    owner.is_none_or(|owner| unsafe { pg_sys::superuser_arg(owner) })
}

/// What `read` makes of a function's row of `pg_proc`; `None` if the function is gone.
pub(super) fn with_function<T>(function: pg_sys::Oid, read: impl FnOnce(&pg_sys::FormData_pg_proc) -> T) -> Option<T> {
    let (cache, none) = (pg_sys::SysCacheIdentifier::PROCOID as i32, pg_sys::Datum::null());
    // SAFETY: the row is read while it is held.
    unsafe {
        let row = pg_sys::SearchSysCache(cache, function.into(), none, none, none);
        (!row.is_null()).then(|| {
            let made = read(&*pg_sys::GETSTRUCT(row).cast());
            pg_sys::ReleaseSysCache(row);
            made
        })
    }
}
