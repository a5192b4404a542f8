//! Many standing sessions, a tenant each.

use anyhow::Result;

use super::ends::{GOAL, Grown, ends};
use super::ground::{Ground, request};
use crate::count::Load;
use crate::script::{KEY, Keygen};

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    let script = format!("\\set i random(1, :sessions)\n{}", request(Keygen::Ascending, "'tenant ' || :i", KEY));
    let ends = ends([10, ground.quick_or(20_000, 1_000_000)], |sessions| {
        ground.fresh()?;
        // As idem_create_session makes them.
        ground.psql(&format!(
            "INSERT INTO idempotence.session (id, created_at, owner, require_payload, inbox, time_keys, ttl, name)
             SELECT gen_random_uuid(), now(), current_role::regrole, false, false, false, '7 days', 'tenant ' || n
               FROM generate_series(1, {sessions}) n;
             VACUUM (ANALYZE) idempotence.session"
        ))?;
        let variables = [("sessions", sessions)];
        let load =
            Load { variables: &variables, clients: 4, ..Load::new(&script, 1_000, ground.quick_or(2_000, 10_000)) };
        ground.costs(&format!("{sessions} tenants"), &load)
    })?;
    ends.iter().for_each(|end| grown.tell_memory("Tenants", end));
    grown.compare("Tenants: begin, record", ends, Some(GOAL));
    Ok(())
}
