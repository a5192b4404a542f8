//! The row about growth: what a request costs where there is much of something, against what it costs where there is
//! little of it.

mod clients;
mod connections;
mod ends;
mod ground;
mod kept;
mod pooler;
mod responses;
mod sharing;
mod tenants;

use anyhow::Result;

use crate::count::Counter;
use crate::lab::Lab;
use crate::plan::Plan;
use crate::row::{OFF_4, Row};
use ground::{Ground, TEMPLATE};

pub use ends::{Comparison, End, Grown};

/// The id of the row.
pub const GROWTH: &str = "growth";

/// The id of the row about connections.
pub const CONNECTIONS: &str = "connections";

pub fn row() -> Row {
    Row {
        id: GROWTH,
        title: "Growth",
        text: "What a request costs where there is much of something, against what it costs where there is little of it, in instructions at \
user level for each transaction. A transaction is `BEGIN`, `idem_begin` (three columns), `idem_record`, `COMMIT`, each a round trip, and \
no work in between, which would hide what grows. By hand it is the `INSERT` and the `UPDATE`. The library is preloaded, \
`synchronous_commit` is off, and every session, key and connection is used as often as any other. Rates and the private memory of a \
backend are given for information.\n\n\
*Kept*: that many outcomes are kept, a third of them in each segment, half of them under random keys. *Tenants*: that many standing \
sessions, a tenant each, used at random by four connections. *Client sessions*: that many are at work, one connection uses them one after \
the other, and each has filled its window before. *Responses*: of that many bytes, and hardly compressible; a byte more is what a \
transaction costs beyond that with 100 bytes, for each byte. *Clients at once*: 16 on all the processors that there are, on one session or \
on a session each, against one alone; a client session has a window of 16 then.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

/// Connections are a row of their own: a thousand backends are too many for valgrind, and a row is counted by one means.
pub fn connections_row() -> Row {
    Row {
        id: CONNECTIONS,
        title: "Connections",
        text: "The request of the section before on that many connections: direct, and through PgBouncer in \
transaction mode with 20 connections to the server. Most of what grows is the server's own, so two `SELECT`s that do nothing stand \
beside.",
        ..row()
    }
}

/// Measures all parts but the connections.
pub fn measure(lab: &Lab, plan: &Plan) -> Result<Grown> {
    measured(lab, plan, Counter::new(), |ground, grown| {
        kept::measure(ground, grown)?;
        tenants::measure(ground, grown)?;
        clients::measure(ground, grown)?;
        responses::measure(ground, grown)?;
        sharing::measure(ground, grown)
    })
}

/// Measures the connections.
pub fn measure_connections(lab: &Lab, plan: &Plan) -> Result<Grown> {
    measured(lab, plan, Counter::without_valgrind(), connections::measure)
}

/// What parts measure on a server of their own.
fn measured(
    lab: &Lab,
    plan: &Plan,
    counter: Counter,
    parts: impl FnOnce(&Ground<'_>, &mut Grown) -> Result<()>,
) -> Result<Grown> {
    let server = lab.another_server(&[
        ("shared_preload_libraries", "idempotence"),
        ("max_connections", "1100"),
        ("synchronous_commit", "off"),
    ])?;
    server.psql("postgres", &format!("CREATE DATABASE {TEMPLATE}"))?;
    for script in
        [include_str!("../sql/schema.sql"), include_str!("../sql/keys.sql"), include_str!("../sql/growth.sql")]
    {
        server.psql(TEMPLATE, script)?;
    }
    let mut grown = Grown::new(counter.means());
    let ground = Ground { server, counter, rounds: plan.few_rounds, plan };
    parts(&ground, &mut grown)?;
    Ok(grown)
}
