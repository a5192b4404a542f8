//! The rows of the benchmark as plain data: the variants of each row, and how they are compared.

use crate::script::Keygen;

/// A row of the benchmark.
pub struct Row {
    pub id: &'static str,
    pub title: &'static str,
    pub text: &'static str,
    pub variants: Vec<Variant>,
    pub comparisons: Vec<Comparison>,
    pub cells: Vec<Cell>,
    /// The cells in which the comparisons are held against their goals.
    pub goal_cells: Vec<Cell>,
}

impl Row {
    /// The cells to measure. A quick run measures only the cells with a goal.
    pub fn cells(&self, quick: bool) -> &[Cell] {
        if quick { &self.goal_cells } else { &self.cells }
    }

    /// The row for this major version of PostgreSQL, without the variants that it does not have, which come last.
    pub fn on(mut self, major: u32) -> Self {
        self.variants.retain(|variant| variant.is_on(major));
        let last = self.variants.len();
        self.comparisons.retain(|comparison| comparison.numerator.max(comparison.denominator) < last);
        self
    }
}

/// One way to do what the row is about: the transaction that each client repeats.
pub struct Variant {
    pub name: &'static str,
    /// The statements, without the beginning of the script, which generates keys.
    pub sql: String,
    /// The number of keys in a transaction.
    pub keys: u32,
    /// The number of new keys in a transaction. After the runs, `count` is checked against it.
    pub new_keys: u32,
    /// The query that counts the rows of a table to which the variant adds a row for each new key.
    pub count: &'static str,
    /// How the script generates its keys.
    pub keygen: Keygen,
    /// What is run in the database before each run of the variant; empty: nothing.
    pub before: &'static str,
    /// The first major version of PostgreSQL that has what the variant uses; 0: all have it.
    pub since: u32,
}

impl Variant {
    /// A transaction with one key, which is new each time.
    pub fn new(name: &'static str, count: &'static str, sql: String, keygen: Keygen) -> Self {
        Self { name, sql, keys: 1, new_keys: 1, count, keygen, before: "", since: 0 }
    }

    /// Whether this major version of PostgreSQL has what the variant uses.
    pub fn is_on(&self, major: u32) -> bool {
        self.since <= major
    }

    /// The complete script for `pgbench`.
    pub fn script(&self) -> String {
        format!("{}{}", self.keygen.script(), self.sql)
    }
}

/// The ratio of a metric between two variants.
pub struct Comparison {
    pub what: &'static str,
    pub metric: Metric,
    /// The position of one variant in the row's list of variants.
    pub numerator: usize,
    /// The position of the variant that it is compared with.
    pub denominator: usize,
    pub goal: Option<GoalRatio>,
}

/// What is compared. Positions are those in the row's list of variants.
#[derive(Clone, Copy, PartialEq)]
pub enum Metric {
    /// Keys per second; more is better.
    Rate,
    /// The CPU time of the server beyond the CPU time of the variant in this position; less is better.
    CpuBeyond(usize),
    /// The bytes of write-ahead log beyond the bytes of the variant in this position; less is better.
    WalBeyond(usize),
}

/// The ratio to reach: at least this ratio for rates, at most this ratio for costs.
#[derive(Clone, Copy)]
pub struct GoalRatio(pub f64);

/// The conditions of a measurement: `synchronous_commit`, and the number of clients.
#[derive(Clone, Copy, PartialEq)]
pub struct Cell {
    pub synchronous: bool,
    pub clients: u32,
}

/// `synchronous_commit` off, four clients.
pub const OFF_4: Cell = Cell { synchronous: false, clients: 4 };
/// `synchronous_commit` on, four clients.
pub const ON_4: Cell = Cell { synchronous: true, clients: 4 };

/// The cells with these numbers of clients, first with `synchronous_commit` off and then on.
pub fn cells(clients: &[u32]) -> Vec<Cell> {
    [false, true]
        .iter()
        .flat_map(|&synchronous| clients.iter().map(move |&clients| Cell { synchronous, clients }))
        .collect()
}

/// The cells with these numbers of clients and `synchronous_commit` off, and one with it on: there the disk decides, and the
/// number of clients says little more.
pub fn cells_off(clients: &[u32]) -> Vec<Cell> {
    clients.iter().map(|&clients| Cell { synchronous: false, clients }).chain([ON_4]).collect()
}
