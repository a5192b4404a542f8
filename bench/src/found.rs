//! What is found where there are no variants to run in turn: a line each.

use crate::stats::Spread;

/// A line.
pub struct Found {
    pub what: String,
    pub measured: Spread,
    pub decimals: usize,
    pub goal: Option<Goal>,
}

/// What is to be reached.
#[derive(Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
}

impl Found {
    pub fn new(what: impl Into<String>, measured: Spread, decimals: usize) -> Found {
        Found { what: what.into(), measured, decimals, goal: None }
    }

    pub fn with_goal(self, goal: Goal) -> Found {
        Found { goal: Some(goal), ..self }
    }
}
