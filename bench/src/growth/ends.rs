//! What is compared: the cost at a small end and at a large one.

use anyhow::Result;

use crate::count::{Cost, Means};
use crate::finding::{Finding, Goal};
use crate::spread::Spread;

/// What is there at the large end costs at most so many times what it costs at the small end.
pub const GOAL: Goal = Goal::AtMost(1.3);

/// One end of a comparison: what there is, and what a transaction costs then, in each round.
pub struct End {
    pub name: String,
    pub costs: Vec<Cost>,
}

/// Both ends, whose costs `measure` finds.
pub fn ends(sizes: [u64; 2], mut measure: impl FnMut(u64) -> Result<Vec<Cost>>) -> Result<[End; 2]> {
    let mut end = |size: u64| anyhow::Ok(End { name: size.to_string(), costs: measure(size)? });
    Ok([end(sizes[0])?, end(sizes[1])?])
}

/// What a transaction costs at two ends.
pub struct Comparison {
    pub what: String,
    pub small: End,
    pub large: End,
    /// For the extension; what is by hand has none.
    goal: Option<Goal>,
}

impl Comparison {
    fn new(what: impl Into<String>, [small, large]: [End; 2], goal: Option<Goal>) -> Comparison {
        Comparison { what: what.into(), small, large, goal }
    }

    /// The cost at the large end against that at the small one.
    pub fn finding(&self) -> Finding {
        let ratios = self.large.costs.iter().zip(&self.small.costs);
        let ratio = Spread::of(ratios.map(|(large, small)| large.number() / small.number()));
        let what = format!("{}, {} / {}", self.what, self.large.name, self.small.name);
        Finding { goal: self.goal, ..Finding::new(what, ratio, 2) }
    }
}

/// All that the row shows.
pub struct Grown {
    /// By what the costs were counted.
    pub means: Means,
    pub comparisons: Vec<Comparison>,
    pub findings: Vec<Finding>,
}

impl Grown {
    /// Nothing so far.
    pub fn new(means: Means) -> Grown {
        Grown { means, comparisons: Vec::new(), findings: Vec::new() }
    }

    /// Adds a comparison.
    pub fn compare(&mut self, what: impl Into<String>, ends: [End; 2], goal: Option<Goal>) {
        self.comparisons.push(Comparison::new(what, ends, goal));
    }

    /// Adds a line about the private memory of a backend.
    pub fn tell_memory(&mut self, what: &str, end: &End) {
        let memory = Spread::of(end.costs.iter().map(|cost| cost.memory_kb / 1024.0));
        let what = format!("{what}, {}: private memory of a backend, MB", end.name);
        self.findings.push(Finding::new(what, memory, 1));
    }
}
