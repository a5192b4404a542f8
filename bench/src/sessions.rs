//! The rows about client sessions.

use crate::rows::{
    CEILING, Cell, Comparison, Goal, HAND, IN_LEDGER, IN_REQUEST, KEY, Keygen, Measure, OFF_4, Row, Variant, cells,
    guarded, transaction,
};

/// The row that is measured by what is left in the tables.
pub const SLOTS: &str = "slots";

const IN_REPLY: &str =
    "SELECT COALESCE(sum(last), 0) FROM (SELECT max(last) AS last FROM idempotence.reply GROUP BY session, stream) s";
const IN_LIVE: &str = "SELECT count(*) FROM idempotence.session_live";
const IN_BY_HAND: &str = "SELECT count(*) FROM session_by_hand";

const ON_4: Cell = Cell { synchronous: true, clients: 4 };

/// All of them, in the order of the page.
pub fn rows() -> [Row; 4] {
    [numbered(), heartbeat(), register(), slots()]
}

fn numbered() -> Row {
    let mut variants = guarded(KEY, Keygen::Numbered);
    for variant in &mut variants {
        if variant.name == "idempotence" {
            variant.name = "idempotence, keyed";
        }
    }
    // By hand a number is a key of its client.
    variants[HAND] = Variant {
        name: "hand-written",
        sql: transaction(
            "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES (:session, :k::text, :fingerprint, now() + interval '7 days')
ON CONFLICT (scope, key) DO NOTHING RETURNING true",
            "UPDATE request SET response = :response WHERE scope = :session AND key = :k::text",
        ),
        keys: 1,
        new_keys: 1,
        count: IN_REQUEST,
        keygen: Keygen::Numbered,
    };
    variants.push(Variant {
        name: "idempotence, numbered",
        sql: transaction(
            "SELECT * FROM idem_begin(:session, :k::bigint, :payload)",
            "SELECT idem_record(:session, :k::bigint, :response)",
        ),
        keys: 1,
        new_keys: 1,
        count: IN_REPLY,
        keygen: Keygen::Numbered,
    });
    let (keyed, ours) = (HAND + 1, HAND + 2);
    let rate = |what, theirs| Comparison { what, measure: Measure::Rate, ours, theirs, goal: None };
    Row {
        id: "numbered",
        title: "Numbered requests",
        text: "The same transaction, each client with a session of its own, registered in its first transaction, and requests \
numbered 1, 2, 3 and so on. By hand the number is a key in the client's name.",
        variants,
        comparisons: vec![
            rate("transactions/s, numbered / keyed", keyed),
            rate("transactions/s, numbered / hand-written", HAND),
            Comparison {
                what: "server CPU beyond the ceiling's, numbered / hand-written",
                measure: Measure::CpuBeyond(CEILING),
                ours,
                theirs: HAND,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the ceiling's, numbered / keyed",
                measure: Measure::CpuBeyond(CEILING),
                ours,
                theirs: keyed,
                goal: None,
            },
        ],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

fn heartbeat() -> Row {
    let variant = |name, sql: &str| Variant {
        name,
        sql: sql.into(),
        keys: 1,
        new_keys: 0,
        count: IN_LEDGER,
        keygen: Keygen::Numbered,
    };
    Row {
        id: "heartbeat",
        title: "Signs of life",
        text: "Each client keeps its session alive, as fast as it can. By hand that is an `UPDATE` of a logged row by primary key; \
`idem_heartbeat` writes, without a flush, once in an eighth of the timeout. ",
        variants: vec![
            variant(
                "UPDATE by hand",
                "UPDATE session_by_hand SET last_seen = clock_timestamp() WHERE id = :session::uuid;\n",
            ),
            variant("idem_heartbeat", "SELECT idem_heartbeat(:session);\n"),
        ],
        comparisons: vec![Comparison {
            what: "signs/s, idem_heartbeat / UPDATE by hand",
            measure: Measure::Rate,
            ours: 1,
            theirs: 0,
            goal: Some(Goal(3.0)),
        }],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![ON_4],
    }
}

fn register() -> Row {
    let variant = |name, count, sql: &str| Variant {
        name,
        sql: sql.into(),
        keys: 1,
        new_keys: 1,
        count,
        keygen: Keygen::Ascending,
    };
    Row {
        id: "register",
        title: "Registering",
        text: "A client gets a session: by hand, a row in a logged table with a unique name of the client; `idem_register` writes \
its row in an unlogged one and waits for no flush. ",
        variants: vec![
            variant(
                "INSERT by hand",
                IN_BY_HAND,
                "INSERT INTO session_by_hand (client, timeout) VALUES ('app-' || :t || :u || :c, '5 min') RETURNING id;\n",
            ),
            variant("idem_register", IN_LIVE, "SELECT * FROM idem_register('app-' || :t || :u || :c);\n"),
        ],
        comparisons: vec![Comparison {
            what: "registrations/s, idem_register / INSERT by hand",
            measure: Measure::Rate,
            ours: 1,
            theirs: 0,
            goal: Some(Goal(3.0)),
        }],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![ON_4],
    }
}

fn slots() -> Row {
    Row {
        id: SLOTS,
        title: "The space of sessions",
        text: "1000 sessions with a window of 5 are sent requests in laps, one request each in turn, each request a transaction, by \
four connections at once, autovacuum at its defaults. What the tables take after the first laps, in which all slots are written \
once, is held against what they take at the end, and the share of HOT updates is what the server counted.",
        variants: Vec::new(),
        comparisons: Vec::new(),
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}
