//! What the proof says.

use std::fmt;

use crate::journal::Tally;

/// One line of the proof: a claim, and whether it holds.
#[derive(Clone, Debug)]
pub struct Finding {
    pub holds: bool,
    pub claim: &'static str,
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "ok" } else { "FAILED" };
        write!(f, "  {verdict:<7} {:<53} {}", self.claim, self.found)
    }
}

pub(crate) fn finding(claim: &'static str, holds: bool, found: String) -> Finding {
    Finding { holds, claim, found }
}

/// Checks that each request that had to be refused was refused.
pub(crate) fn all_refused(claim: &'static str, Tally { refused, accepted }: Tally) -> Finding {
    finding(claim, accepted == 0, format!("{} sent, {accepted} not refused so", refused + accepted))
}

/// Checks that each kind of fault did occur: a run without faults proves nothing.
pub fn faults_were_real(claim: &'static str, counts: &[(&str, u64)]) -> Finding {
    finding(
        claim,
        counts.iter().all(|(_, count)| *count > 0),
        counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", "),
    )
}
