//! The rows about client sessions.

use crate::guarded::{CEILING, HAND_WRITTEN, IDEMPOTENCE, guarded};
use crate::row::{Comparison, GoalRatio, Metric, OFF_4, ON_4, Row, Variant, cells, cells_off};
use crate::script::{KEY, Keygen, transaction};
use crate::variants::{numbered_by_hand, registering, signs};

/// Counts the numbered requests that have an outcome.
const COUNT_REPLIES: &str =
    "SELECT COALESCE(sum(last), 0) FROM (SELECT max(last) AS last FROM idempotence.reply GROUP BY session, stream) s";
/// Numbered requests, compared with requests that have keys.
pub fn numbered() -> Row {
    let mut variants = guarded(KEY, Keygen::Numbered);
    for variant in &mut variants {
        if variant.name == "idempotence" {
            variant.name = "idempotence, keyed";
        }
    }
    variants[HAND_WRITTEN] = numbered_by_hand();
    variants.push(Variant::new(
        "idempotence, numbered",
        COUNT_REPLIES,
        transaction(
            "SELECT * FROM idem_begin(:session, :k::bigint, :payload)",
            "SELECT idem_record(:session, :k::bigint, :response)",
        ),
        Keygen::Numbered,
    ));
    let (keyed, numbered) = (IDEMPOTENCE, variants.len() - 1);
    let rate =
        |what, denominator| Comparison { what, metric: Metric::Rate, numerator: numbered, denominator, goal: None };
    Row {
        id: "numbered",
        title: "Numbered requests",
        text: "The same transaction again. Each client has a session of its own, registers it in its first transaction, and \
numbers its requests 1, 2, 3 and so on. By hand, the number is a key in the client's name.",
        variants,
        comparisons: vec![
            rate("transactions/s, numbered / keyed", keyed),
            rate("transactions/s, numbered / hand-written", HAND_WRITTEN),
            Comparison {
                what: "server CPU beyond the ceiling's, numbered / hand-written",
                metric: Metric::CpuBeyond(CEILING),
                numerator: numbered,
                denominator: HAND_WRITTEN,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the ceiling's, numbered / keyed",
                metric: Metric::CpuBeyond(CEILING),
                numerator: numbered,
                denominator: keyed,
                goal: None,
            },
        ],
        cells: cells_off(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

/// Signs of life of a client session.
pub fn heartbeat() -> Row {
    Row {
        id: "heartbeat",
        title: "Signs of life",
        text: "Each client sends signs of life for its session as fast as it can. By hand, that is an `UPDATE` of a logged row by \
primary key. `idem_heartbeat` writes once in an eighth of the timeout, without a flush. ",
        variants: signs().into(),
        comparisons: vec![Comparison {
            what: "signs/s, idem_heartbeat / UPDATE by hand",
            metric: Metric::Rate,
            numerator: 1,
            denominator: 0,
            goal: Some(GoalRatio(3.0)),
        }],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![ON_4],
    }
}

/// The registration of a client session.
pub fn register() -> Row {
    Row {
        id: "register",
        title: "Registering",
        text: "A client gets a session. By hand, that is a row in a logged table with a unique name of the client. `idem_register` \
writes its row in an unlogged table and waits for no flush. ",
        variants: registering().into(),
        comparisons: vec![Comparison {
            what: "registrations/s, idem_register / INSERT by hand",
            metric: Metric::Rate,
            numerator: 1,
            denominator: 0,
            goal: Some(GoalRatio(3.0)),
        }],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![ON_4],
    }
}
