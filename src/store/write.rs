//! Writing rows, in two ways.
//!
//! *Directly*, as PostgreSQL writes its catalogs (`CatalogTupleInsert` and its like): no executor and no
//! plan. This way serves a table with plain indexes only. It fires no trigger, evaluates no expression or
//! predicate of an index, and looks at no constraint but unique indexes.
//!
//! *By SQL*, as the owner of the table: the executor does all that it does for anybody's statement. This
//! way is taken as soon as somebody has given the table anything that the direct way passes over, a
//! partial index or a row trigger of pg_repack's, say.
//!
//! Which way serves is looked up once for each relcache entry. Whoever adds an index or a trigger takes a
//! lock that conflicts with ours, or waits for us before what he added is relied on; and he sends a
//! message, which we take in together with our lock.

use crate::error::Error;
use crate::pg;
use crate::store::cache::{self, Table};
use crate::store::rel::{Access, Rel};
use crate::store::tuple::{Tid, check_columns};
use crate::store::update;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};

/// The triggers that the extension itself has put on its tables. Its own rows do not concern them.
const OUR_TRIGGERS: [&CStr; 2] = [c"forget_cached", c"note_restored"];

/// How a table takes its rows.
#[derive(Clone, Copy)]
pub(super) struct Way {
    /// Nothing keeps rows from being written directly.
    direct: bool,
    /// A rule does something else instead of writing a row.
    replaced: bool,
    /// The columns that must not be NULL, a bit for each.
    not_null: u64,
}

thread_local! {
    /// Whether what is being written by SQL is the extension's own.
    static WRITING: Cell<bool> = const { Cell::new(false) };
    /// A plan for each statement. PostgreSQL plans it again by itself when the table has changed.
    static PLANS: RefCell<HashMap<(Table, Verb), pg_sys::SPIPlanPtr>> = RefCell::default();
}

/// Whether a write by SQL is the extension's own; else it is a restore, or a superuser's hand.
pub fn is_ours() -> bool {
    WRITING.get()
}

/// Runs `work`, whose writes by SQL are the extension's own.
pub fn as_ours<T>(work: impl FnOnce() -> T) -> T {
    /// Also an error ends it.
    struct Ours(bool);
    impl Drop for Ours {
        fn drop(&mut self) {
            WRITING.set(self.0);
        }
    }
    let _ours = Ours(WRITING.replace(true));
    work()
}

/// What a statement does with a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Verb {
    Insert,
    Update,
    Delete,
}

impl Rel {
    /// Inserts a row and makes it seen by the commands that follow.
    pub fn insert(&self, columns: &[Option<pg_sys::Datum>]) {
        self.with_tuple(columns, |rel, tuple| match tuple {
            // SAFETY: the tuple was formed for this table, which the direct way serves.
            Some(tuple) => unsafe { pg_sys::CatalogTupleInsert(rel, tuple) },
            None => self.by_sql(Verb::Insert, columns, None),
        });
    }

    /// Puts a row in the place of another with the same primary key.
    pub fn update(&self, at: Tid<'_>, columns: &[Option<pg_sys::Datum>]) {
        self.with_tuple(columns, |rel, tuple| match tuple {
            // SAFETY: as in insert(), and `at` is a row of this table, which is locked since the row was
            // found; the caller's advisory lock keeps others from changing it.
            Some(tuple) => unsafe { update::update(rel, &mut at.get(), tuple) },
            None => self.by_sql(Verb::Update, columns, Some(at)),
        });
    }

    /// Deletes a row.
    pub fn delete(&self, at: Tid<'_>) {
        debug_assert!(self.access == Access::Write);
        // SAFETY: as in update(). The counter makes a row deletable that this very command inserted.
        unsafe {
            pg_sys::CommandCounterIncrement();
            if self.is_as_made() {
                pg_sys::CatalogTupleDelete(self.rel, &mut at.get());
            } else {
                self.by_sql(Verb::Delete, &[], Some(at));
            }
            pg_sys::CommandCounterIncrement();
        }
    }

    /// Gives `write` the row for the direct way, or nothing where that does not serve.
    fn with_tuple(
        &self,
        columns: &[Option<pg_sys::Datum>],
        write: impl FnOnce(pg_sys::Relation, Option<pg_sys::HeapTuple>),
    ) {
        debug_assert!(self.access == Access::Write);
        let (mut values, mut nulls) = pg::split(columns);
        // SAFETY: values and nulls have one element a column of the table's row, checked here.
        unsafe {
            check_columns((*self.rel).rd_att, columns.len());
            if self.way().serves(columns) {
                let tuple = pg_sys::heap_form_tuple((*self.rel).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
                write(self.rel, Some(tuple));
                pg_sys::heap_freetuple(tuple);
            } else {
                write(self.rel, None);
            }
            pg_sys::CommandCounterIncrement();
        }
    }

    /// Whether nobody has added to the table what the direct way passes over.
    pub(super) fn is_as_made(&self) -> bool {
        self.way().direct
    }

    fn way(&self) -> Way {
        let remember = |cache: &mut cache::Cache, way| cache.ways[self.table as usize] = Some(way);
        cache::remembered(|cache| cache.ways[self.table as usize], || (self.look_for_way(), true), remember)
    }

    fn look_for_way(&self) -> Way {
        // SAFETY: the relation is open, so its entry and what hangs on it are valid and stay.
        unsafe {
            let (rel, shape) = (self.rel, (*self.rel).rd_att);
            let direct = (*rel).rd_rules.is_null()
                && triggers_of((*rel).trigdesc).iter().all(is_our_trigger)
                && constraints_are_ours(self.table, shape)
                && indexes_are_plain(rel);
            let not_null = |column: &usize| (*pg::tuple_attribute(shape, *column)).attnotnull;
            let columns = (*shape).natts as usize;
            let replaced = rules_of((*rel).rd_rules).iter().any(|rule| (**rule).isInstead);
            Way { direct, replaced, not_null: (0..columns).filter(not_null).fold(0, |bits, column| bits | 1 << column) }
        }
    }

    /// Executes the statement for a row: all of its columns, its place, or both.
    fn by_sql(&self, verb: Verb, columns: &[Option<pg_sys::Datum>], at: Option<Tid<'_>>) {
        let mut values: Vec<_> = columns.iter().map(|column| column.unwrap_or(pg_sys::Datum::null())).collect();
        let mut nulls: Vec<_> = columns.iter().map(|column| if column.is_none() { b'n' } else { b' ' } as _).collect();
        let mut tid = at.map(Tid::get);
        if let Some(tid) = &mut tid {
            values.push(pg_sys::Datum::from(tid as *mut pg_sys::ItemPointerData));
            nulls.push(b' ' as _);
        }
        let run = || {
            // SAFETY: the plan takes as many values as there are, of these types. The snapshot sees what
            // was committed until now, as the lock is held under which the row was found. SPI_finish()
            // frees what was allocated; an ERROR inside ends the connection with the (sub)transaction.
            unsafe {
                pg_sys::SPI_connect();
                let plan = self.plan(verb);
                let latest = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
                let crosscheck = std::ptr::null_mut();
                let (read_only, fire_triggers, no_limit) = (false, true, 0);
                let code = pg_sys::SPI_execute_snapshot(
                    plan,
                    values.as_mut_ptr(),
                    nulls.as_ptr(),
                    latest,
                    crosscheck,
                    read_only,
                    fire_triggers,
                    no_limit,
                );
                let written = if code < 0 { 0 } else { pg_sys::SPI_processed };
                pg_sys::UnregisterSnapshot(latest);
                pg_sys::SPI_finish();
                written
            }
        };
        if self.way().replaced || as_ours(|| pg::as_role(self.owner(), run)) != 1 {
            Error::NotWritten { relation: format!("idempotence.{}", self.table.name()) }.raise();
        }
    }

    /// # Safety
    /// SPI is connected.
    unsafe fn plan(&self, verb: Verb) -> pg_sys::SPIPlanPtr {
        if let Some(plan) = PLANS.with_borrow(|plans| plans.get(&(self.table, verb)).copied()) {
            return plan;
        }
        // SAFETY: the relation is open; `types` has an element for each parameter of the statement. A plan
        // that is kept lives as long as the backend.
        let plan = unsafe {
            let (statement, mut types) = self.statement(verb);
            let statement = CString::new(statement).expect("a column of ours has no NUL in its name");
            let plan = pg_sys::SPI_prepare(statement.as_ptr(), types.len() as i32, types.as_mut_ptr());
            pg_sys::SPI_keepplan(plan);
            plan
        };
        PLANS.with_borrow_mut(|plans| plans.insert((self.table, verb), plan));
        plan
    }

    /// The statement, and the types of its parameters.
    fn statement(&self, verb: Verb) -> (String, Vec<pg_sys::Oid>) {
        // SAFETY: the relation is open, and the numbers are those of its columns.
        let (names, mut types): (Vec<String>, Vec<pg_sys::Oid>) = unsafe {
            let shape = (*self.rel).rd_att;
            let column = |number| {
                let column = pg::tuple_attribute(shape, number);
                let name = CStr::from_ptr((*column).attname.data.as_ptr()).to_string_lossy();
                (format!("\"{name}\""), (*column).atttypid)
            };
            (0..(*shape).natts as usize).map(column).unzip()
        };
        let parameters = (1..=names.len()).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
        let (table, place) = (self.table.name(), names.len() + 1);
        let names = names.join(", ");
        let statement = match verb {
            Verb::Insert => format!("INSERT INTO idempotence.{table} ({names}) VALUES ({parameters})"),
            Verb::Update => format!(
                "UPDATE idempotence.{table} SET ({names}) = ROW ({parameters}) WHERE ctid OPERATOR(pg_catalog.=) ${place}"
            ),
            Verb::Delete => {
                types.clear();
                format!("DELETE FROM idempotence.{table} WHERE ctid OPERATOR(pg_catalog.=) $1")
            }
        };
        if verb != Verb::Insert {
            types.push(pg_sys::TIDOID);
        }
        (statement, types)
    }
}

impl Way {
    fn serves(self, columns: &[Option<pg_sys::Datum>]) -> bool {
        let null_where_it_must_not_be =
            || columns.iter().enumerate().any(|(number, column)| column.is_none() && self.not_null >> number & 1 == 1);
        self.direct && !null_where_it_must_not_be()
    }
}

/// # Safety
/// The rules are null, or those of an open relation.
unsafe fn rules_of<'a>(rules: *const pg_sys::RuleLock) -> &'a [*mut pg_sys::RewriteRule] {
    if rules.is_null() {
        return &[];
    }
    // SAFETY: an open relation has this many rules.
    unsafe { std::slice::from_raw_parts((*rules).rules, (*rules).numLocks as usize) }
}

/// # Safety
/// The description is null, or that of an open relation.
unsafe fn triggers_of<'a>(description: *const pg_sys::TriggerDesc) -> &'a [pg_sys::Trigger] {
    if description.is_null() {
        return &[];
    }
    // SAFETY: an open relation's description has this many triggers.
    unsafe { std::slice::from_raw_parts((*description).triggers, (*description).numtriggers as usize) }
}

fn is_our_trigger(trigger: &pg_sys::Trigger) -> bool {
    // SAFETY: a trigger has a name, which ends with a NUL.
    !trigger.tgisinternal && OUR_TRIGGERS.contains(&unsafe { CStr::from_ptr(trigger.tgname) })
}

/// Whether there is no constraint that the direct way passes over: the secret alone has a CHECK of ours.
///
/// # Safety
/// `shape` is that of an open relation.
unsafe fn constraints_are_ours(table: Table, shape: pg_sys::TupleDesc) -> bool {
    let ours = u16::from(table == Table::Secret);
    // SAFETY: as the caller warrants.
    unsafe {
        let constraints = (*shape).constr;
        constraints.is_null() || (*constraints).num_check <= ours && !(*constraints).has_generated_stored
    }
}

/// Whether all indexes are on columns alone, without a predicate, and checked at once.
///
/// # Safety
/// The relation is open and locked.
unsafe fn indexes_are_plain(rel: pg_sys::Relation) -> bool {
    // SAFETY: an index on the list of a locked table is there; its pg_index row is part of its entry.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let count = if list.is_null() { 0 } else { (*list).length };
        (0..count).all(|number| {
            let index = pg_sys::index_open(pg_sys::list_nth_oid(list, number), pg_sys::AccessShareLock as i32);
            let (row, form) = ((*index).rd_indextuple, (*index).rd_index);
            let is_null = |column: u32| pg_sys::heap_attisnull(row, column as i32, std::ptr::null_mut());
            let plain = is_null(pg_sys::Anum_pg_index_indexprs)
                && is_null(pg_sys::Anum_pg_index_indpred)
                && !(*form).indisexclusion
                && (*form).indimmediate;
            pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
            plain
        })
    }
}
