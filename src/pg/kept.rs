//! Plans of commands, kept by a backend from call to call.
//!
//! A command is known again by its text, the role that executes it, and the settings that decide how a text is read.
//! PostgreSQL itself analyses and plans a kept plan anew when a table of it has changed, or the search_path, or after
//! DISCARD PLANS. What it does not see is a literal that means something else by now: `'now'::timestamptz`, a date after
//! `SET datestyle`, or a label of an enum after `ALTER TYPE … RENAME VALUE`. The meaning is part of the analysis. So a
//! command that has a literal of such a type is not kept: each call analyses it. Neither is a command that calls an SQL
//! function, since the planner may put the function's body, with its literals, in the place of the call. Whether this is
//! so is looked up again after each analysis.

use super::own::Own;
use super::role::current_role;
use super::trusted::with_function;
use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};

/// How many commands are kept. The one that was used longest ago makes way.
const COMMANDS_MAX: usize = 64;

/// The longest text that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 8192;

/// A command that is kept. Its address stays the same while it is in use.
pub(super) struct KeptCommand {
    /// Its text.
    pub text: CString,
    reader: Reader,
    /// Its plan.
    pub plan: pg_sys::SPIPlanPtr,
    /// What the plan was made of.
    source: *const pg_sys::CachedPlanSource,
    /// How many plans had been made when the analysis was looked at. A new analysis is followed by a new plan, unless that
    /// fails.
    generation: Cell<c_int>,
    /// How many calls are executing it, one within the other.
    in_use: Cell<u32>,
}

/// Who reads the text, and by which settings.
type Reader = (pg_sys::Oid, bool, c_int, bool, bool);

fn reader() -> Reader {
    #[cfg(before_pg19)]
    use pg_sys::standard_conforming_strings;
    use pg_sys::{Array_nulls, Transform_null_equals, backslash_quote};
    /// PostgreSQL 19 has standard string literals only.
    #[cfg(not(before_pg19))]
    #[allow(non_upper_case_globals, reason = "it stands for the variable of older servers")]
    const standard_conforming_strings: bool = true;
    // SAFETY: variables of the backend.
    unsafe { (current_role(), standard_conforming_strings, backslash_quote, Array_nulls, Transform_null_equals) }
}

/// What is kept; what was used last comes first.
#[allow(clippy::vec_box, reason = "the address of each stays the same")]
static KEPT: Own<Vec<Box<KeptCommand>>> = Own::new();

/// The command, if it is kept. It then counts as in use until [`KeptCommand::give_back`].
pub(super) fn find(text: &str) -> Option<&'static KeptCommand> {
    let reader = reader();
    let found = KEPT.with(|list| {
        let place = list.iter().position(|kept| kept.text.as_bytes() == text.as_bytes() && kept.reader == reader)?;
        list[..=place].rotate_right(1);
        Some(&raw const *list[0])
    })?;
    // SAFETY: a command leaves the list only here and when another one is kept, and not while it is in use.
    let found = unsafe { &*found };
    // SAFETY: the plan is kept, so its source is valid.
    let source = unsafe { &*found.source };
    // A call that is executing the plan goes on with it; its analysis is as new as that call.
    if found.in_use.get() == 0 && source.generation != found.generation.get() {
        if freezes(source) {
            let frozen = KEPT.with(|list| list.remove(0));
            drop(frozen);
            return None;
        }
        found.generation.set(source.generation);
    }
    found.in_use.set(found.in_use.get() + 1);
    Some(found)
}

/// Keeps a command with its plan. It then counts as in use. Gives nothing if it cannot be kept.
///
/// # Safety
/// The plan is of one statement and is not saved yet.
pub(super) unsafe fn keep(text: &CStr, plan: pg_sys::SPIPlanPtr) -> Option<&'static KeptCommand> {
    // SAFETY: the plan is of one statement, so it has one source.
    let source = unsafe { &*pg_sys::list_nth(pg_sys::SPI_plan_get_plan_sources(plan), 0).cast() };
    if text.count_bytes() > TEXT_BYTES_MAX || freezes(source) {
        return None;
    }
    let former = KEPT.with(|list| match list.len() {
        COMMANDS_MAX => list.iter().rposition(|kept| kept.in_use.get() == 0).map(|place| Some(list.remove(place))),
        _ => Some(None),
    })?;
    drop(former);
    // SAFETY: the plan is not saved yet. From here on it lives until it is freed.
    unsafe { pg_sys::SPI_keepplan(plan) };
    // No plan has been made yet of what was just looked at.
    let generation = Cell::new(0);
    let (text, reader) = (text.to_owned(), reader());
    let kept = Box::new(KeptCommand { text, reader, plan, source, generation, in_use: Cell::new(1) });
    let address = &raw const *kept;
    KEPT.with(|list| list.insert(0, kept));
    // SAFETY: as in find().
    Some(unsafe { &*address })
}

impl KeptCommand {
    /// Ends a use of the command. After a failure its analysis is looked at again before the next use: it may be new, without
    /// a plan.
    pub(super) fn give_back(&self, failed: bool) {
        self.in_use.set(self.in_use.get() - 1);
        if failed {
            self.generation.set(-1);
        }
    }
}

/// Ends all uses, at the end of the transaction. An error in the wrong place may have left one behind.
pub fn end_uses() {
    KEPT.with(|list| list.iter().for_each(|kept| kept.in_use.set(0)));
}

/// Forgets all commands, at the end of a transaction.
pub fn forget_commands() {
    // Not dropped while they are in use: to free a plan calls into PostgreSQL.
    let commands = KEPT.take();
    drop(commands);
}

impl Drop for KeptCommand {
    fn drop(&mut self) {
        // SAFETY: the plan is kept, and this was the only pointer to it. Nobody is executing it, since what is in use stays on
        // the list up to the end of the transaction.
        unsafe { pg_sys::SPI_freeplan(self.plan) };
    }
}

/// Whether a function is written in SQL, and not PostgreSQL's own: those have no literal that could mean something else.
#[pg_guard]
unsafe extern "C-unwind" fn is_sql(function: pg_sys::Oid, _context: *mut c_void) -> bool {
    function.to_u32() >= pg_sys::FirstNormalObjectId
        && with_function(function, |form| form.prolang == SQL_LANGUAGE).unwrap_or(false)
}

/// The language `sql`. PostgreSQL gives it this oid in every database.
const SQL_LANGUAGE: pg_sys::Oid = pg_sys::Oid::from_u32(14);

/// Whether the present analysis of a command has something that may mean something else later.
fn freezes(source: &pg_sys::CachedPlanSource) -> bool {
    // SAFETY: the walker gets a list of Query, as it is given parts of one by PostgreSQL's walkers.
    unsafe { is_frozen(source.query_list.cast(), std::ptr::null_mut()) }
}

/// Looks for a literal that may mean something else later, and for a call of an SQL function, as a walker of expressions.
#[pg_guard]
unsafe extern "C-unwind" fn is_frozen(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    if node.is_null() {
        return false;
    }
    // SAFETY: the tag of a node tells which struct the node is. The walkers call this function with nodes and with the
    // context that they were given.
    unsafe {
        match (*node).type_ {
            pg_sys::NodeTag::T_Const => {
                let literal: *const pg_sys::Const = node.cast();
                // One without a place in the text comes from a view, a default or a policy. Its meaning is fixed there.
                let is_in_text = (*literal).location >= 0;
                is_in_text && !(*literal).constisnull && !means_the_same((*literal).consttype)
            }
            // A statement without a plan, as CALL, DO and CREATE: each call reads its text.
            pg_sys::NodeTag::T_Query if (*node.cast::<pg_sys::Query>()).commandType == pg_sys::CmdType::CMD_UTILITY => {
                true
            }
            pg_sys::NodeTag::T_Query => pg_sys::query_tree_walker(node.cast(), Some(is_frozen), context, 0),
            _ => {
                pg_sys::check_functions_in_node(node, Some(is_sql), context)
                    || pg_sys::expression_tree_walker(node, Some(is_frozen), context)
            }
        }
    }
}

/// Whether the text of a literal of this type means the same at any time and under any settings. For a table's name
/// (`regclass`, as in `nextval('…')`) PostgreSQL sees when that changes.
///
/// # Safety
/// Called in a transaction.
unsafe fn means_the_same(type_: pg_sys::Oid) -> bool {
    const IMMUTABLE: u8 = pg_sys::PROVOLATILE_IMMUTABLE;
    // SAFETY: look-ups in the system caches, of a type that a query names.
    unsafe {
        let element = pg_sys::get_element_type(type_);
        if element != pg_sys::InvalidOid {
            return means_the_same(element);
        }
        if type_ == pg_sys::REGCLASSOID {
            return true;
        }
        let (mut input, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        pg_sys::getTypeInputInfo(type_, &mut input, &mut parameter);
        pg_sys::func_volatile(input) as u8 == IMMUTABLE
    }
}
