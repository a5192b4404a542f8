//! A row that a scan found, its columns, and the scan keys for finding it.

use crate::error::Error;
use crate::pg;
use pgrx::{FromDatum, pg_sys};
use std::marker::PhantomData;

/// Defines a constant for each name: its place in the list, counted from 0.
macro_rules! places {
    ($visible:vis $($name:ident),+ $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "they are the names of constants")]
        enum Places {
            $($name),+
        }

        $(
            #[allow(dead_code, reason = "only statements may use it")]
            $visible const $name: usize = Places::$name as usize;
        )+
    };
}
pub(crate) use places;

/// Defines a constant for each column of a table, with its position counted from 0, one for their number, and the type of a row
/// that was found. A unit test compares the columns with the table in `sql/tables.sql`.
macro_rules! columns {
    ($table:literal, $row:ident, $count:ident: $($column:ident),+ $(,)?) => {
        $crate::store::tuple::places!(pub(super) $($column),+);
        /// A row.
        #[allow(dead_code, reason = "only statements may read it")]
        pub(super) type $row<'a> = $crate::store::tuple::Tuple<'a, $count>;
        /// The number of columns.
        #[allow(dead_code, reason = "only statements may use it")]
        pub(super) const $count: usize = [$(stringify!($column)),+].len();

        #[cfg(test)]
        #[test]
        fn the_columns_are_those_of_the_table() {
            let named = [$(stringify!($column).to_lowercase()),+];
            assert_eq!(named.as_slice(), $crate::store::tuple::columns_in_sql($table), "table {}", $table);
        }
    };
}
pub(super) use columns;

/// The columns of one of our tables in the order of CREATE TABLE.
#[cfg(test)]
pub(super) fn columns_in_sql(table: &str) -> Vec<String> {
    let sql = include_str!("../../sql/tables.sql");
    let start = format!("TABLE idempotence.{table} (");
    let (_, body) = sql.split_once(&start).expect("the table is made in tables.sql");
    let (body, _) = body.split_once("\n)").expect("its columns end");
    body.lines()
        .map(str::trim)
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

/// The place of a row in an open table. It cannot outlive the open table (`'rel`): as soon as nobody has the table
/// locked, VACUUM FULL and CLUSTER may give the place to another row.
#[derive(Clone, Copy)]
pub struct Tid<'rel> {
    tid: pg_sys::ItemPointerData,
    rel: PhantomData<&'rel ()>,
}

impl Tid<'_> {
    /// A place in a table that is open for as long as `'rel`.
    pub(super) fn of(tid: pg_sys::ItemPointerData) -> Self {
        Tid { tid, rel: PhantomData }
    }

    /// The place as PostgreSQL takes it.
    pub(super) fn get(self) -> pg_sys::ItemPointerData {
        self.tid
    }
}

/// Where a row stood when it was found. The next search for the row looks there first. By then another row may stand
/// there, or none.
#[derive(Clone, Copy)]
pub struct Hint {
    pub(super) file: pg_sys::Oid,
    pub(super) tid: pg_sys::ItemPointerData,
}

/// A row of an open table of `N` columns. It is valid until the scan goes on.
pub struct Tuple<'rel, const N: usize> {
    tuple: *const pg_sys::HeapTupleData,
    values: [pg_sys::Datum; N],
    nulls: [bool; N],
    rel: PhantomData<&'rel ()>,
}

impl<'rel, const N: usize> Tuple<'rel, N> {
    /// # Safety
    /// `tuple` must be a valid row of the table that `shape` describes. The table must be open for as long as `'rel`.
    /// The scan must not go on while the result is used.
    pub(super) unsafe fn read(tuple: pg_sys::HeapTuple, shape: pg_sys::TupleDesc) -> Tuple<'rel, N> {
        let mut values = [pg_sys::Datum::null(); N];
        let mut nulls = [true; N];
        // SAFETY: the arrays have as many elements as the table has columns, which is checked here. No error is raised:
        // the row is that of a table, and the extension has added no column with a default.
        unsafe {
            check_row(tuple);
            if (*shape).natts as usize != N {
                return Tuple::read_among_dropped(tuple, shape);
            }
            pg::raw::harmless::heap_deform_tuple(tuple, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        Tuple { tuple, values, nulls, rel: PhantomData }
    }

    /// # Safety
    /// As for [`Tuple::read`], and [`check_row`] has accepted the row.
    #[cold]
    unsafe fn read_among_dropped(tuple: pg_sys::HeapTuple, shape: pg_sys::TupleDesc) -> Tuple<'rel, N> {
        let mut values = [pg_sys::Datum::null(); pg::COLUMNS_MAX];
        let mut nulls = [true; pg::COLUMNS_MAX];
        // SAFETY: the arrays have room for all columns, which is checked here.
        unsafe {
            check_columns(shape, N);
            pg::raw::harmless::heap_deform_tuple(tuple, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        let (values, nulls) = (std::array::from_fn(|n| values[n]), std::array::from_fn(|n| nulls[n]));
        Tuple { tuple, values, nulls, rel: PhantomData }
    }

    /// The place of the row.
    pub fn at(&self) -> Tid<'rel> {
        // SAFETY: the tuple is valid, see read().
        Tid::of(unsafe { (*self.tuple).t_self })
    }

    /// The transaction that wrote the row.
    pub fn writer(&self) -> pg::Writer {
        // SAFETY: a valid tuple has a header.
        unsafe { pg::Writer::of(self.tuple) }
    }

    /// Whether the transaction's snapshot sees the row, see [`pg::snapshot_sees`].
    pub fn visible(&self) -> bool {
        pg::snapshot_sees(self.xmin())
    }

    /// Whether this transaction wrote the row, which is then not committed yet.
    pub fn is_ours(&self) -> bool {
        // SAFETY: reads the transaction state.
        unsafe { pg::raw::harmless::TransactionIdIsCurrentTransactionId(self.xmin()) }
    }

    fn xmin(&self) -> pg_sys::TransactionId {
        // SAFETY: a valid tuple, see read(), has a header.
        unsafe { pg_sys::htup::HeapTupleHeaderGetXmin((*self.tuple).t_data) }
    }

    /// The value of a column; `None` is NULL.
    pub fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        (!self.nulls[column]).then_some(self.values[column])
    }

    /// The values of all columns, to be written again. They are valid as long as the row is.
    pub fn columns(&self) -> [Option<pg_sys::Datum>; N] {
        std::array::from_fn(|column| self.datum(column))
    }

    /// The value of a column, copied; a timestamptz is an `i64`, in microseconds since 2000-01-01 UTC.
    pub fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        // SAFETY: the caller asks for the type that the column has. The scan keeps the table open and locked. The
        // database's encoding is UTF-8, checked at CREATE EXTENSION.
        unsafe { T::from_datum(self.values[column], self.nulls[column]) }
    }

    /// A `"char"`.
    pub fn char(&self, column: usize) -> Option<u8> {
        self.datum(column).map(|datum| datum.value() as u8)
    }

    /// A uuid.
    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        // SAFETY: the datum of a uuid is a pointer to its 16 bytes in the row.
        self.datum(column).map(|datum| unsafe { *datum.cast_mut_ptr::<[u8; 16]>() })
    }

    /// An interval, in microseconds.
    pub fn interval_us(&self, column: usize) -> Option<i64> {
        self.get(column).as_ref().and_then(pg::interval_us)
    }

    /// A jsonb, copied out of the row and its TOAST table.
    pub fn jsonb(&self, column: usize) -> Option<pg::Jsonb> {
        // SAFETY: the datum is that of a jsonb column, and the scan keeps the table open and locked.
        self.datum(column).map(|datum| unsafe { pg::Jsonb::copied(datum) })
    }

    /// Whether a text column holds exactly these bytes.
    pub fn text_is(&self, column: usize, value: &str) -> bool {
        // SAFETY: a text is a varlena, and the scan keeps the table open and locked.
        self.datum(column).is_some_and(|datum| unsafe {
            let mut text: *mut pg_sys::varlena = datum.cast_mut_ptr();
            // A key is short, but in a long row it may have been compressed or moved to the TOAST table all the same.
            if pgrx::varlena::varatt_is_4b_c(text) || pgrx::varlena::varatt_is_1b_e(text) {
                text = pg_sys::pg_detoast_datum_packed(text);
            }
            pgrx::varlena::varlena_to_byte_slice(text) == value.as_bytes()
        })
    }
}

/// The scan key `column = value` for a uuid column.
pub fn uuid_equals(column: usize, value: &[u8; 16]) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_UUID_EQ, pg::uuid(value))
}

/// The scan key `column >= value` for a uuid column.
pub fn uuid_at_least(column: usize, value: &[u8; 16]) -> pg_sys::ScanKeyData {
    compares(column, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_UUID_GE, pg::uuid(value))
}

/// The scan key `column < value` for a uuid column.
pub fn uuid_below(column: usize, value: &[u8; 16]) -> pg_sys::ScanKeyData {
    compares(column, pg_sys::BTLessStrategyNumber, pg_sys::F_UUID_LT, pg::uuid(value))
}

/// The scan key `column = value` for a text column in collation "C".
pub fn text_equals(column: usize, value: &str) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_TEXTEQ, pg::text(value))
}

/// The scan key `column = value` for an integer column.
pub fn int4_equals(column: usize, value: i32) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_INT4EQ, value.into())
}

/// The scan key `column < value` for an integer column.
pub fn int4_below(column: usize, value: i32) -> pg_sys::ScanKeyData {
    compares(column, pg_sys::BTLessStrategyNumber, pg_sys::F_INT4LT, value.into())
}

/// The scan key `column = value` for a "char" column.
pub fn char_equals(column: usize, value: u8) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_CHAREQ, (value as i8).into())
}

/// The scan key `column = value` for a column that holds a role.
pub fn oid_equals(column: usize, value: pg_sys::Oid) -> pg_sys::ScanKeyData {
    equals(column, pg_sys::F_OIDEQ, value.into())
}

/// The scan key `column IS NULL`.
pub fn is_null(column: usize) -> pg_sys::ScanKeyData {
    let sk_flags = (pg_sys::SK_ISNULL | pg_sys::SK_SEARCHNULL) as i32;
    // SAFETY: a key of this kind has neither function nor value, so the rest is zero.
    pg_sys::ScanKeyData { sk_flags, sk_attno: number(column), ..unsafe { std::mem::zeroed() } }
}

fn equals(column: usize, function: u32, value: pg_sys::Datum) -> pg_sys::ScanKeyData {
    compares(column, pg_sys::BTEqualStrategyNumber, function, value)
}

fn compares(column: usize, strategy: u32, function: u32, value: pg_sys::Datum) -> pg_sys::ScanKeyData {
    // SAFETY: ScanKeyInit() fills the whole key. The callers give the function of the server that compares values of this type.
    unsafe {
        let mut key = std::mem::zeroed();
        pg::raw::harmless::ScanKeyInit(&mut key, number(column), strategy as u16, function.into(), value);
        key
    }
}

/// PostgreSQL counts columns from 1.
fn number(column: usize) -> i16 {
    column as i16 + 1
}

/// Raises an error if the row has a header that no row of a table has. Then the page is damaged, and PostgreSQL might
/// raise an error while it reads the columns, where no guard of pgrx catches it.
///
/// # Safety
/// The row must be valid.
unsafe fn check_row(row: pg_sys::HeapTuple) {
    // SAFETY: as the caller warrants.
    if !unsafe { pg::is_row_of_table(row) } {
        let message = "a row in a table of schema \"idempotence\" has the header of a composite value".into();
        Error::Corrupted { message }.raise();
    }
}

/// Raises an error if the table has not the extension's columns. Somebody may have added others behind them, and dropped
/// these again.
///
/// # Safety
/// `shape` must be valid.
pub(super) unsafe fn check_columns(shape: pg_sys::TupleDesc, expected: usize) {
    // SAFETY: as the caller warrants.
    let (found, fits) = unsafe {
        let found = (*shape).natts as usize;
        let is_dropped = |column| (*pg::tuple_attribute(shape, column)).attisdropped;
        (found, found == expected || (expected..=pg::COLUMNS_MAX).contains(&found) && (expected..found).all(is_dropped))
    };
    if !fits {
        let message = format!("a table of schema \"idempotence\" has {found} columns instead of {expected}");
        Error::Corrupted { message }.raise();
    }
}
