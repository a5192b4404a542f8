//! Many client sessions at work.

use anyhow::Result;

use super::ends::{GOAL, Grown, ends};
use super::ground::{Ground, request};
use crate::count::Load;
use crate::script::Keygen;

/// The window of the sessions.
const WINDOW: u64 = 5;

/// The number of sessions whose windows one statement fills.
const PART: u64 = 20_000;

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    // Each session in turn, in an order that jumps, and so its next number.
    let script = format!(
        "\\set i 100000000001 + :m * 77003 % :sessions\n\\set number {WINDOW} + 1 + :m / :sessions\n{}",
        request(Keygen::Ascending, "'01990000-0000-7000-8000-' || :i", ":number::bigint")
    );
    let ends = ends([10, ground.quick_or(5_000, 100_000)], |sessions| {
        eprintln!("growth: filling the windows of {sessions} client sessions");
        ground.fresh()?;
        for from in (1..=sessions).step_by(PART as usize) {
            let to = sessions.min(from + PART - 1);
            ground.psql(&format!(
                "CALL make_clients({from}, {to}, {WINDOW}); CALL fill_windows({from}, {to}, {WINDOW})"
            ))?;
        }
        ground.psql("VACUUM (ANALYZE)")?;
        let variables = [("sessions", sessions)];
        let load = Load { variables: &variables, ..Load::new(&script, 2_000, ground.quick_or(5_000, 20_000)) };
        ground.costs(&format!("{sessions} client sessions"), &load)
    })?;
    ends.iter().for_each(|end| grown.tell_memory("Client sessions", end));
    grown.compare("Client sessions: begin, record", ends, Some(GOAL));
    Ok(())
}
