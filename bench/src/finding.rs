//! A single measured value and its goal, for the rows that have no variants to run in turn.

use crate::spread::Spread;

/// A line of the page: what was measured, the measured value, and its goal.
pub struct Finding {
    pub what: String,
    pub measured: Spread,
    /// The number of decimals that the page shows.
    pub decimals: usize,
    pub goal: Option<Goal>,
}

/// The bounds of a goal. The median of the measured values must be within them.
#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
}

impl Finding {
    /// A finding without a goal.
    pub fn new(what: impl Into<String>, measured: Spread, decimals: usize) -> Finding {
        Finding { what: what.into(), measured, decimals, goal: None }
    }

    /// The same finding with a goal.
    pub fn with_goal(self, goal: Goal) -> Finding {
        Finding { goal: Some(goal), ..self }
    }
}
