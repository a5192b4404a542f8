//! Many clients at once, on one session or on a session each.

use anyhow::Result;

use super::ends::{GOAL, Grown, ends};
use super::ground::{Ground, by_hand, request};
use crate::count::Load;
use crate::script::{KEY, Keygen};

/// The number of clients, and the window of the client sessions.
const CLIENTS: u64 = 16;

pub fn measure(ground: &Ground<'_>, grown: &mut Grown) -> Result<()> {
    // Client sessions are used by one load each, since numbers go on. `at` is the first session of a load.
    let own = |script: &str| format!("\\set i 100000000000 + :at + :client_id\n\\set number :m + 1\n{script}");
    let shared =
        |script: &str| format!("\\set i 100000000000 + :at\n\\set number :m * :clients + :client_id + 1\n{script}");
    let numbered = request(Keygen::Ascending, "'01990000-0000-7000-8000-' || :i", ":number::bigint");
    let ways = [
        ("keyed, all on one session", Some(GOAL), request(Keygen::Ascending, "'payments'", KEY)),
        ("keyed, a session each", Some(GOAL), request(Keygen::Ascending, "'tenant ' || :client_id", KEY)),
        ("numbered, all on one session", Some(GOAL), shared(&numbered)),
        ("numbered, a session each", Some(GOAL), own(&numbered)),
        ("hand-written", None, by_hand(Keygen::Ascending, KEY)),
    ];
    ground.fresh()?;
    ground.psql(&format!(
        "SELECT idem_create_session('tenant ' || n, ttl => '7 days') FROM generate_series(0, {CLIENTS} - 1) n;
         CALL make_clients(1, 1000, {CLIENTS}); VACUUM (ANALYZE)"
    ))?;
    let mut at = 1;
    for (what, goal, script) in ways {
        let ends = ends([1, CLIENTS], |clients| {
            let variables = [("clients", clients), ("at", at)];
            at += CLIENTS;
            let (few, more) = (300, ground.quick_or(8_000, 40_000) / clients);
            let load = Load { variables: &variables, clients: clients as u32, ..Load::new(&script, few, more) };
            ground.costs(&format!("{clients} clients, {what}"), &load)
        })?;
        grown.compare(format!("Clients at once: {what}"), ends, goal);
    }
    Ok(())
}
