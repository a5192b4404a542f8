//! Many connections.

use anyhow::Result;

use super::ends::{GOAL, Grown, ends};
use super::ground::{Ground, by_hand, ceiling, request};
use super::pooler::Pooler;
use crate::count::Load;
use crate::script::{KEY, Keygen};

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    let ours = request(Keygen::Ascending, "'payments'", KEY);
    let ways = [
        ("begin, record", Some(GOAL), &ours),
        ("hand-written", None, &by_hand(Keygen::Ascending, KEY)),
        ("two SELECTs", None, &ceiling(Keygen::Ascending)),
    ];
    ground.fresh()?;
    let pooler = Pooler::start(&ground.server)?;
    if pooler.is_none() {
        eprintln!("growth: there is no pgbouncer (Debian's package has this name)");
    }
    let address = pooler.as_ref().map(Pooler::connect_string);
    for (name, through) in [("direct", None), ("through PgBouncer", address.as_deref())] {
        if name != "direct" && through.is_none() {
            continue;
        }
        for (what, goal, script) in ways {
            let what = format!("Connections, {name}: {what}");
            let ends = ends([10, ground.quick_or(100, 1_000)], |clients| {
                // As many transactions before the measured ones, and all in all as many measured ones.
                let (few, more) = (20, ground.quick_or(20_000, 100_000) / clients);
                let load = Load { clients: clients as u32, pooler: through, ..Load::new(script, few, more) };
                ground.costs(&format!("{what}, {clients}"), &load)
            })?;
            grown.compare(what, ends, goal);
        }
    }
    Ok(())
}
