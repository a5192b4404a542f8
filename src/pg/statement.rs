//! Statements that a backend prepares once. PostgreSQL plans them, and decides whether the current role may execute them.

use super::durable::Writer;
use super::heap::tuple_attribute;
use super::jsonb::Jsonb;
use super::own::Own;
use super::raw::text_of;
use pgrx::{FromDatum, pg_sys};
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::hash::Hash;
use std::rc::Rc;

/// A statement of a backend, parsed once. PostgreSQL plans it anew by itself when a table of it has changed, or another
/// role executes it.
pub struct Statement {
    plan: pg_sys::SPIPlanPtr,
    parameters: usize,
}

/// What a statement sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// What the transaction's isolation level says.
    OfTransaction,
    /// What is committed now, and what this transaction has written.
    Newest,
}

/// A row that a statement gave.
pub struct FoundRow {
    tuple: pg_sys::HeapTuple,
    shape: pg_sys::TupleDesc,
    /// Where the values go that outlive the row.
    context: pg_sys::MemoryContext,
}

impl Statement {
    /// Parses a statement with parameters of these types.
    pub fn prepare(text: &str, types: &[pg_sys::Oid]) -> Statement {
        let text = CString::new(text).expect("a statement of ours has no NUL");
        let mut types = types.to_vec();
        // SAFETY: SPI is connected, and copies the text and the types. The plan outlives the connection once it is kept.
        let plan = unsafe {
            pg_sys::SPI_connect();
            let plan = pg_sys::SPI_prepare(text.as_ptr(), types.len() as i32, types.as_mut_ptr());
            assert!(!plan.is_null(), "SPI prepares a single statement");
            pg_sys::SPI_keepplan(plan);
            pg_sys::SPI_finish();
            plan
        };
        Statement { plan, parameters: types.len() }
    }

    /// Executes the statement, and shows `each` the rows that it returned. Gives how many it processed.
    pub fn execute(&self, values: &[Option<pg_sys::Datum>], sight: Sight, mut each: impl FnMut(&FoundRow)) -> u64 {
        assert_eq!(values.len(), self.parameters, "a value for each parameter");
        let nulls: Vec<_> = values.iter().map(|value| if value.is_some() { b' ' } else { b'n' } as c_char).collect();
        let mut values: Vec<_> = values.iter().map(|value| value.unwrap_or(pg_sys::Datum::null())).collect();
        // SAFETY: the plan is kept, and the arrays have an element for each parameter. SPI is connected while its rows are
        // read. An error ends the connection, and drops the snapshot, with its (sub)transaction.
        unsafe {
            let context = pg_sys::CurrentMemoryContext;
            pg_sys::SPI_connect();
            let snapshot = match sight {
                Sight::OfTransaction => std::ptr::null_mut(),
                Sight::Newest => pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()),
            };
            let done = pg_sys::SPI_execute_snapshot(
                self.plan,
                values.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                false,
                true,
                0,
            );
            assert!(done > 0, "SPI executes a statement of ours");
            let (processed, table) = (pg_sys::SPI_processed, pg_sys::SPI_tuptable);
            if !table.is_null() {
                for number in 0..processed as usize {
                    each(&FoundRow { tuple: *(*table).vals.add(number), shape: (*table).tupdesc, context });
                }
            }
            if !snapshot.is_null() {
                pg_sys::UnregisterSnapshot(snapshot);
            }
            pg_sys::SPI_finish();
            processed
        }
    }
}

/// The statements of a backend that are prepared once, by what they do.
pub struct Statements<K>(Own<HashMap<K, Rc<Statement>>>);

impl<K: Eq + Hash> Statements<K> {
    /// None yet.
    #[allow(clippy::new_without_default, reason = "a static takes no other constructor than this")]
    pub const fn new() -> Statements<K> {
        Statements(Own::new())
    }

    /// The statement, prepared now if it was not: `make` gives its text and the types of its parameters.
    pub fn get(&self, key: K, make: impl FnOnce() -> (String, Vec<pg_sys::Oid>)) -> Rc<Statement> {
        if let Some(known) = self.0.with(|statements| statements.get(&key).cloned()) {
            return known;
        }
        let (text, types) = make();
        let statement = Rc::new(Statement::prepare(&text, &types));
        // Not dropped while they are in use: to free a plan calls into PostgreSQL.
        let former = self.0.with(|statements| statements.insert(key, Rc::clone(&statement)));
        drop(former);
        statement
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: the plan is kept, and this was the only pointer to it. Whoever executes it counts, or has borrowed it.
        unsafe { pg_sys::SPI_freeplan(self.plan) };
    }
}

impl FoundRow {
    /// The value of a column, counted from 0, in the type that the column has. A text is copied; a timestamptz is an `i64` in
    /// microseconds since 2000-01-01 UTC.
    pub fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        let mut null = false;
        // SAFETY: the row is valid while it is read, and the caller asks for the type that the column has.
        unsafe {
            let value = pg_sys::SPI_getbinval(self.tuple, self.shape, column as i32 + 1, &mut null);
            T::from_datum(value, null)
        }
    }

    /// A uuid.
    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        self.get::<pgrx::datum::Uuid>(column).map(|uuid| *uuid.as_bytes())
    }

    /// A jsonb, copied.
    pub fn jsonb(&self, column: usize) -> Option<Jsonb> {
        let value = self.get::<Jsonb>(column)?;
        // SAFETY: the row is valid while it is read. The copy is made in the caller's memory context.
        unsafe {
            let own = pg_sys::MemoryContextSwitchTo(self.context);
            let copy = Jsonb::copied(value.datum());
            pg_sys::MemoryContextSwitchTo(own);
            Some(copy)
        }
    }

    /// The transaction that wrote the row, from a column that has the row's `xmin`.
    pub fn writer(&self, column: usize) -> Option<Writer> {
        self.get::<pg_sys::TransactionId>(column).map(Writer::of_xid)
    }
}

/// The names of the columns that a query gives, found without running it; `None` if it is not one statement that gives
/// rows.
pub fn columns_of(query: &str) -> Option<Vec<String>> {
    let query = CString::new(query).expect("a text value has no NUL");
    // SAFETY: SPI is connected for as long as the plan is used, and SPI_finish() frees the plan. A plan that a cursor could
    // run has one source, which describes its rows. An ERROR inside ends the (sub)transaction, and with it the connection.
    unsafe {
        pg_sys::SPI_connect();
        let plan = pg_sys::SPI_prepare(query.as_ptr(), 0, std::ptr::null_mut());
        let columns = (!plan.is_null() && pg_sys::SPI_is_cursor_plan(plan)).then(|| {
            let source: *mut pg_sys::CachedPlanSource =
                pg_sys::list_nth(pg_sys::SPI_plan_get_plan_sources(plan), 0).cast();
            let shape = (*source).resultDesc;
            let name = |number| {
                let column = tuple_attribute(shape, number);
                text_of((*column).attname.data.as_ptr()).unwrap_or_default()
            };
            (0..(*shape).natts as usize).map(name).collect()
        });
        pg_sys::SPI_finish();
        columns
    }
}
