//! Which of the two ways to write a row serves a table, see `write.rs`. In the direct way the indexes of a written row are
//! maintained in `direct.rs` and `batch.rs`.
//!
//! A backend looks up the way of a table once, and again after each message about the table. Whoever adds an index or a
//! trigger takes a lock that conflicts with ours, or waits for our transactions before relying on what was added. That
//! backend also sends a message, which this one takes in together with its lock on the table.

use crate::pg;
use crate::store::catalog::Table;
use pgrx::pg_sys;
use std::ffi::CStr;
use std::slice;

/// The triggers that the extension itself has put on its tables. They ignore rows that the extension writes.
const OUR_TRIGGERS: [&CStr; 3] = [c"forget_cached", c"note_restored", c"undouble_restored"];

/// A B-tree on one plain column.
#[derive(Clone, Copy)]
pub(super) struct SimpleIndex {
    pub oid: pg_sys::Oid,
    /// The column, counted from 0.
    pub column: usize,
    pub is_unique: bool,
}

/// How a table takes its rows.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Whether rows may be written directly.
    pub direct: bool,
    /// Whether a rule (INSTEAD) keeps a statement from writing its row.
    pub replaced: bool,
    /// The columns that must not be NULL, a bit for each.
    not_null: u64,
    /// The indexes, if the table has one or two and they are B-trees on one column each.
    pub simple_indexes: [Option<SimpleIndex>; 2],
}

impl Way {
    /// Finds out how a table takes its rows.
    ///
    /// # Safety
    ///
    /// `rel` is open and locked, and is `table`.
    pub unsafe fn of(rel: pg_sys::Relation, table: Table) -> Way {
        // SAFETY: the relation is open, so its relcache entry and what that points to stay valid.
        unsafe {
            let shape = (*rel).rd_att;
            let indexes: Vec<_> = indexes_of(rel).into_iter().map(|index| index_facts(index)).collect();
            let replaces = |rules: &pg_sys::RuleLock| {
                slice::from_raw_parts(rules.rules, rules.numLocks as usize).iter().any(|rule| (**rule).isInstead)
            };
            let are_ours = |triggers: &pg_sys::TriggerDesc| {
                slice::from_raw_parts(triggers.triggers, triggers.numtriggers as usize).iter().all(is_our_trigger)
            };
            // The one CHECK of the secret is ours, and may be ignored.
            let checks = u16::from(table == Table::Secret);
            let may_be_ignored = |constraints: &pg_sys::TupleConstr| {
                constraints.num_check <= checks && !constraints.has_generated_stored
            };
            let direct = (*rel).rd_rules.is_null()
                && (*rel).trigdesc.as_ref().is_none_or(are_ours)
                && (*shape).constr.as_ref().is_none_or(may_be_ignored)
                && indexes.iter().all(|(is_plain, _)| *is_plain);
            let not_null = |column: &usize| (*pg::tuple_attribute(shape, *column)).attnotnull;
            let columns = (*shape).natts as usize;
            let replaced = (*rel).rd_rules.as_ref().is_some_and(replaces);
            let not_null = (0..columns).filter(not_null).fold(0, |bits, column| bits | 1 << column);
            let simple_indexes = match indexes[..] {
                [(_, only)] => [only, None],
                [(_, Some(first)), (_, Some(second))] => [Some(first), Some(second)],
                _ => [None; 2],
            };
            Way { direct, replaced, not_null, simple_indexes }
        }
    }

    /// Whether a row with these columns may be written directly.
    pub fn serves(self, columns: &[Option<pg_sys::Datum>]) -> bool {
        let null_where_it_must_not_be =
            || columns.iter().enumerate().any(|(number, column)| column.is_none() && self.not_null >> number & 1 == 1);
        self.direct && !null_where_it_must_not_be()
    }
}

fn is_our_trigger(trigger: &pg_sys::Trigger) -> bool {
    // SAFETY: a trigger has a name, which is terminated.
    !trigger.tgisinternal && OUR_TRIGGERS.contains(&unsafe { CStr::from_ptr(trigger.tgname) })
}

/// Whether an index is on plain columns, has no predicate, enforces no exclusion constraint, and is checked at once; and what
/// it is if it is a B-tree on one column that takes entries. That counts only where rows may be written directly.
///
/// # Safety
/// The index is one of an open and locked table.
unsafe fn index_facts(oid: pg_sys::Oid) -> (bool, Option<SimpleIndex>) {
    // SAFETY: an index of a locked table exists. Its row of pg_index is part of its relcache entry.
    unsafe {
        let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
        let (row, form) = ((*index).rd_indextuple, (*index).rd_index);
        let is_null = |column: u32| pg_sys::heap_attisnull(row, column as i32, std::ptr::null_mut());
        let is_plain = is_null(pg_sys::Anum_pg_index_indexprs)
            && is_null(pg_sys::Anum_pg_index_indpred)
            && !(*form).indisexclusion
            && (*form).indimmediate;
        let fits = (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID && (*form).indnatts == 1 && (*form).indisready;
        // The number is 0 for an expression.
        let column = usize::try_from(*(*form).indkey.values.as_ptr() - 1).ok().filter(|_| fits);
        let simple = column.map(|column| SimpleIndex { oid, column, is_unique: (*form).indisunique });
        pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
        (is_plain, simple)
    }
}

/// The indexes of a table.
///
/// # Safety
/// The table is open and locked.
pub(super) unsafe fn indexes_of(rel: pg_sys::Relation) -> Vec<pg_sys::Oid> {
    // SAFETY: as the caller warrants. The list has as many oids as it says.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let count = if list.is_null() { 0 } else { (*list).length };
        (0..count).map(|number| pg_sys::list_nth_oid(list, number)).collect()
    }
}
