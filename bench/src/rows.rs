//! What is compared with what: the rows of the benchmark, and each variant as a `pgbench` script.

use anyhow::{Result, bail};

use crate::held::{self, HELD};
use crate::life::{self, LIFE};
use crate::ring::{self, RING};
use crate::sessions::{self, SLOTS};

/// The scripts' values that are the same in each transaction.
pub const CONSTANTS: [(&str, &str); 3] = [
    ("payload", r#"{"account": 4711, "amount": 250, "note": "rent for May"}"#),
    // SHA-256 of the payload, made by the client.
    ("fingerprint", r"\x2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"),
    ("response", r#"{"status": "booked", "transfer": 4711}"#),
];

/// The row that is measured by what is written to the log.
pub const WAL: &str = "wal";

/// All rows, in the order of the page.
pub const IDS: [&str; 13] = [
    "request",
    WAL,
    LIFE,
    "replay",
    "run",
    "procedure",
    "once",
    "numbered",
    "heartbeat",
    "register",
    SLOTS,
    HELD,
    RING,
];

/// What one client does again and again.
pub struct Variant {
    pub name: &'static str,
    /// The statements, without what makes keys and numbers.
    pub sql: String,
    /// Keys dealt with in a transaction.
    pub keys: u32,
    /// How many of them are new; checked against `count` after the measuring.
    pub new_keys: u32,
    /// Counts the rows that it adds one of for each new key.
    pub count: &'static str,
    /// How its keys come about.
    pub keygen: Keygen,
}

/// How a script makes its keys: as text of 36 characters, in three parts.
#[derive(Clone, Copy)]
pub enum Keygen {
    /// UUIDv7-like: each is later than the client's one before.
    Ascending,
    /// The same but for the last four digits, which tell the keys of a batch apart.
    Batch,
    /// UUIDv4-like.
    Random,
    /// Those of the outcomes that are kept from the beginning.
    Kept,
    /// As ascending ones, and each client has a session of its own and counts its transactions in `k`.
    Numbered,
}

/// Two variants held against each other.
pub struct Comparison {
    pub what: &'static str,
    pub measure: Measure,
    /// Places in the row's list of variants.
    pub ours: usize,
    pub theirs: usize,
    pub goal: Option<Goal>,
}

/// What is compared of them.
#[derive(Clone, Copy, PartialEq)]
pub enum Measure {
    /// Keys a second: more is better.
    Rate,
    /// Server CPU beyond that of the variant in this place: less is better.
    CpuBeyond(usize),
    /// Bytes of log beyond that of the variant in this place: less is better.
    WalBeyond(usize),
}

/// The ratio to reach: at least for rates, at most for costs.
#[derive(Clone, Copy)]
pub struct Goal(pub f64);

/// `synchronous_commit` and clients.
#[derive(Clone, Copy, PartialEq)]
pub struct Cell {
    pub synchronous: bool,
    pub clients: u32,
}

/// A row of the benchmark.
pub struct Row {
    pub id: &'static str,
    pub title: &'static str,
    pub text: &'static str,
    pub variants: Vec<Variant>,
    pub comparisons: Vec<Comparison>,
    pub cells: Vec<Cell>,
    /// Where the goals hold.
    pub goal_cells: Vec<Cell>,
}

impl Row {
    /// The cells to measure; the quick plan has just those with a goal.
    pub fn cells(&self, quick: bool) -> &[Cell] {
        if quick { &self.goal_cells } else { &self.cells }
    }
}

impl Variant {
    /// The whole script, as `pgbench` reads it.
    pub fn script(&self) -> String {
        format!("{}{}", self.keygen.script(), self.sql)
    }
}

impl Keygen {
    /// What each script begins with: the parts of its key, and what to work on.
    ///
    /// pgbench has no variables of text: a key is put together in the statement, in each variant alike.
    /// Decimal digits are hexadecimal ones too.
    pub fn script(self) -> String {
        let parts = match self {
            Self::Ascending | Self::Numbered => {
                "\\set n :n + 1\n\\set t 990000 + :n / 9000\n\\set u 1000 + :n % 9000\n\\set c random(100000000000, 999999999999)\n"
            }
            Self::Batch => {
                "\\set n :n + 1\n\\set t 990000 + :n / 9000\n\\set u 1000 + :n % 9000\n\\set c random(10000000, 99999999)\n"
            }
            Self::Random => {
                "\\set t random(10000000, 99999999)\n\\set u random(1000, 9999)\n\\set c random(100000000000, 999999999999)\n"
            }
            Self::Kept => {
                "\\set n random(1, :kept)\n\\set t 980000 + :n / 9000\n\\set u 1000 + :n % 9000\n\\set c 100000000000 + :n * 7990271 % 900000000000\n"
            }
        };
        let session = match self {
            Self::Numbered => {
                "\\if :k = 0\nSELECT session FROM idem_register() \\gset\nINSERT INTO session_by_hand (id, client, timeout) VALUES (:session::uuid, :session, '5 min');\n\\endif\n\\set k :k + 1\n"
            }
            _ => "",
        };
        format!("{session}{parts}\\set account random(1, 100000)\n\\set amount random(1, 1000)\n")
    }
}

pub const KEY: &str = "'01' || :t || '-' || :u || '-7a3c-8b5c-' || :c";
pub const RANDOM_KEY: &str = ":t || '-' || :u || '-4a3c-8b5c-' || :c";

const IN_OUTCOMES: &str =
    "SELECT (SELECT count(*) FROM idempotence.outcome_0) + (SELECT count(*) FROM idempotence.outcome_1)
     + (SELECT count(*) FROM idempotence.outcome_2)";
pub const IN_REQUEST: &str = "SELECT count(*) FROM request";
const IN_FLOOR: &str = "SELECT count(*) FROM outcome";
pub const IN_LEDGER: &str = "SELECT count(*) FROM ledger";

pub const OFF_4: Cell = Cell { synchronous: false, clients: 4 };

/// The rows with these ids, in the order of the page.
pub fn chosen(ids: &[String]) -> Result<Vec<Row>> {
    if let Some(unknown) = ids.iter().find(|id| !IDS.contains(&id.as_str())) {
        bail!("there is no row {unknown}; there are {}", IDS.join(", "));
    }
    Ok([request(), wal(), life::row(), replay(), run(), procedure(), once()]
        .into_iter()
        .chain(sessions::rows())
        .chain([held::row(), ring::row()])
        .filter(|row| ids.iter().any(|id| id == row.id))
        .collect())
}

pub fn cells(clients: &[u32]) -> Vec<Cell> {
    [false, true]
        .iter()
        .flat_map(|&synchronous| clients.iter().map(move |&clients| Cell { synchronous, clients }))
        .collect()
}

/// A transaction with the work between two steps: six round trips.
pub fn transaction(first: &str, second: &str) -> String {
    format!(
        "BEGIN;
{first};
UPDATE account SET balance = balance + :amount WHERE id = :account;
INSERT INTO ledger (account, amount) VALUES (:account, :amount);
{second};
COMMIT;
"
    )
}

pub const CEILING: usize = 0;
const FLOOR: usize = 1;
pub const HAND: usize = 2;
pub const OURS: usize = 3;

/// The four ways to guard one transaction.
pub fn guarded(key: &str, keygen: Keygen) -> Vec<Variant> {
    let variant = |name, count, sql| Variant { name, sql, keys: 1, new_keys: 1, count, keygen };
    vec![
        variant(
            "ceiling",
            IN_LEDGER,
            transaction(&format!("SELECT {key}, :payload::jsonb"), &format!("SELECT {key}, :response::jsonb")),
        ),
        variant(
            "floor",
            IN_FLOOR,
            transaction(
                &format!("SELECT {key}, :payload::jsonb"),
                &format!(
                    "INSERT INTO outcome (id, session, recorded_at, expires_at, recorded_by, class, key, response)
VALUES (({key})::uuid, '01990000-0000-7000-8000-000000000000', now(), now() + interval '7 days', 10, 's', {key}, :response)"
                ),
            ),
        ),
        variant(
            "hand-written",
            IN_REQUEST,
            transaction(
                &format!(
                    "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {key}, :fingerprint, now() + interval '7 days')
ON CONFLICT (scope, key) DO NOTHING RETURNING true"
                ),
                &format!("UPDATE request SET response = :response WHERE scope = 'payments' AND key = {key}"),
            ),
        ),
        variant(
            "idempotence",
            IN_OUTCOMES,
            transaction(
                &format!("SELECT * FROM idem_begin('payments', {key}, :payload)"),
                &format!("SELECT idem_record('payments', {key}, :response)"),
            ),
        ),
    ]
}

fn request() -> Row {
    Row {
        id: "request",
        title: "Begin, work, record",
        text: "Each client, again and again: `BEGIN`, a first step, the work (one account updated by primary key, one line \
added to a ledger), a second step, `COMMIT`; six statements, each a round trip, all prepared. Only the two steps differ. \
*Ceiling*: two `SELECT`s that do nothing with the same parameters. *Floor*: the second of them is replaced by one `INSERT` of \
the outcome's row, the least that any durable scheme writes; it protects from nothing. *Hand-written*: `INSERT … ON CONFLICT`, \
then `UPDATE`; its fingerprint is computed by the client, at no cost to the server, whereas `idem_begin` is given the payload and \
digests it.",
        variants: guarded(KEY, Keygen::Ascending),
        comparisons: vec![
            Comparison {
                what: "transactions/s, idempotence / floor",
                measure: Measure::Rate,
                ours: OURS,
                theirs: FLOOR,
                goal: Some(Goal(1.05)),
            },
            Comparison {
                what: "transactions/s, idempotence / hand-written",
                measure: Measure::Rate,
                ours: OURS,
                theirs: HAND,
                goal: Some(Goal(1.2)),
            },
            Comparison {
                what: "transactions/s, idempotence / ceiling",
                measure: Measure::Rate,
                ours: OURS,
                theirs: CEILING,
                goal: None,
            },
            Comparison {
                what: "transactions/s, hand-written / ceiling",
                measure: Measure::Rate,
                ours: HAND,
                theirs: CEILING,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the ceiling's, idempotence / hand-written",
                measure: Measure::CpuBeyond(CEILING),
                ours: OURS,
                theirs: HAND,
                goal: Some(Goal(0.5)),
            },
        ],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

fn wal() -> Row {
    let mut variants = guarded(KEY, Keygen::Ascending);
    variants.extend(guarded(RANDOM_KEY, Keygen::Random));
    let random = variants.len() / 2;
    Row {
        id: WAL,
        title: "Write-ahead log",
        text: "The transactions of the row before, in a fresh copy of the database for each run and right after a checkpoint, so \
that the full images of the pages first touched count as they do in life (`full_page_writes` is on). *Records* is the log without \
those images, as `pg_waldump --stats` counts it; *all* is the distance that the log has advanced. The fewer transactions there are \
between two checkpoints, and the larger the tables, the more the images weigh; random keys touch pages all over an index.",
        variants,
        comparisons: vec![
            Comparison {
                what: "bytes beyond the ceiling's, idempotence / hand-written, UUIDv7 keys",
                measure: Measure::WalBeyond(CEILING),
                ours: OURS,
                theirs: HAND,
                goal: Some(Goal(0.5)),
            },
            Comparison {
                what: "bytes beyond the ceiling's, idempotence / hand-written, random keys",
                measure: Measure::WalBeyond(random + CEILING),
                ours: random + OURS,
                theirs: random + HAND,
                goal: None,
            },
        ],
        cells: vec![OFF_4],
        goal_cells: vec![OFF_4],
    }
}

fn replay() -> Row {
    let variant = |name, count, sql: String| Variant { name, sql, keys: 1, new_keys: 0, count, keygen: Keygen::Kept };
    Row {
        id: "replay",
        title: "Replays",
        text: "A request that was done comes again: its answer is read, in a transaction of its own, the key drawn from all that \
are kept. By hand that is a `SELECT` by primary key, which compares no payload. Nothing is written, so `synchronous_commit` makes no \
difference.",
        variants: vec![
            variant(
                "SELECT by hand",
                IN_REQUEST,
                format!("SELECT response FROM request WHERE scope = 'payments' AND key = {KEY};\n"),
            ),
            variant("idem_begin", IN_OUTCOMES, format!("SELECT * FROM idem_begin('payments', {KEY});\n")),
            variant(
                "idem_begin with payload",
                IN_OUTCOMES,
                format!("SELECT * FROM idem_begin('payments', {KEY}, :payload);\n"),
            ),
            variant("idem_lookup", IN_OUTCOMES, format!("SELECT * FROM idem_lookup('payments', {KEY});\n")),
        ],
        comparisons: vec![
            Comparison {
                what: "replays/s, idem_begin / SELECT by hand",
                measure: Measure::Rate,
                ours: 1,
                theirs: 0,
                goal: Some(Goal(0.95)),
            },
            Comparison {
                what: "replays/s, idem_begin with payload / SELECT by hand",
                measure: Measure::Rate,
                ours: 2,
                theirs: 0,
                goal: None,
            },
            Comparison {
                what: "replays/s, idem_lookup / SELECT by hand",
                measure: Measure::Rate,
                ours: 3,
                theirs: 0,
                goal: None,
            },
        ],
        cells: [1, 4, 16].map(|clients| Cell { synchronous: false, clients }).into(),
        goal_cells: vec![OFF_4],
    }
}

const ARGS: &str = "jsonb_build_object('account', :account::integer, 'amount', :amount::integer)";

fn run() -> Row {
    let variant =
        |name, count, sql: String| Variant { name, sql, keys: 1, new_keys: 1, count, keygen: Keygen::Ascending };
    Row {
        id: "run",
        title: "idem_run",
        text: "A PL/pgSQL function that does the same work, called directly (and so done twice when it is sent twice), and made \
idempotent by `idem_run`; one statement, one round trip, one transaction.",
        variants: vec![
            variant("the function called", IN_LEDGER, format!("SELECT pay({ARGS});\n")),
            variant(
                "idem_run",
                IN_OUTCOMES,
                format!("SELECT * FROM idem_run('payments', {KEY}, 'SELECT pay($1)', {ARGS});\n"),
            ),
        ],
        comparisons: vec![Comparison {
            what: "calls/s, idem_run / the function called",
            measure: Measure::Rate,
            ours: 1,
            theirs: 0,
            goal: Some(Goal(0.85)),
        }],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

fn procedure() -> Row {
    let variant =
        |name, count, sql: String| Variant { name, sql, keys: 1, new_keys: 1, count, keygen: Keygen::Ascending };
    Row {
        id: "procedure",
        title: "Inside a function of one's own",
        text: "All of a request in one PL/pgSQL function: without protection, with the check and the record written by hand, and \
with `idem_begin` and `idem_record`. Here no round trips hide what the steps cost.",
        variants: vec![
            variant("unprotected", IN_LEDGER, format!("SELECT pay({ARGS});\n")),
            variant("hand-written", IN_REQUEST, format!("SELECT pay_by_hand({KEY}, :fingerprint, {ARGS});\n")),
            variant("idempotence", IN_OUTCOMES, format!("SELECT pay_once({KEY}, {ARGS});\n")),
        ],
        comparisons: vec![
            Comparison {
                what: "calls/s, idempotence / hand-written",
                measure: Measure::Rate,
                ours: 2,
                theirs: 1,
                goal: None,
            },
            Comparison {
                what: "calls/s, idempotence / unprotected",
                measure: Measure::Rate,
                ours: 2,
                theirs: 0,
                goal: None,
            },
            Comparison {
                what: "server CPU beyond the unprotected's, idempotence / hand-written",
                measure: Measure::CpuBeyond(0),
                ours: 2,
                theirs: 1,
                goal: None,
            },
        ],
        cells: cells(&[1, 4, 16]),
        goal_cells: vec![OFF_4],
    }
}

/// Keys of a batch in `idem_once_many`.
const BATCH: u32 = 1000;

fn once() -> Row {
    let prefix = "'01' || :t || '-' || :u || '-7a3c-8b5c-' || :c";
    let keys = format!("ARRAY(SELECT {prefix} || i FROM generate_series(1000, {}) i)", 999 + BATCH);
    let insert = |key: &str| {
        format!(
            "INSERT INTO request (scope, key, expires_at) VALUES ('events', {key}, now() + interval '7 days') ON CONFLICT (scope, key) DO NOTHING"
        )
    };
    let mut one_by_one = String::from("BEGIN;\n");
    for i in 1000..1000 + BATCH {
        one_by_one += &format!("{};\n", insert(&format!("{prefix} || '{i}'")));
    }
    one_by_one += "COMMIT;\n";
    let batch = |name, count, sql| Variant { name, sql, keys: BATCH, new_keys: BATCH, count, keygen: Keygen::Batch };
    let by_hand = format!(
        "INSERT INTO request (scope, key, expires_at) SELECT 'events', k, now() + interval '7 days' FROM unnest({keys}) k
ON CONFLICT (scope, key) DO NOTHING RETURNING key"
    );
    Row {
        id: "once",
        title: "Deduplicating a batch",
        text: "A consumer of events looks which of 1000 it has not seen. One statement for each, each its own transaction; the same \
thousand in one transaction; one call of `idem_once_many`; and, for comparison, one statement for all by hand. The server makes \
up the array of keys in the last two, so their cost includes that.",
        variants: vec![
            Variant {
                name: "single statements",
                sql: format!("{};\n", insert(KEY)),
                keys: 1,
                new_keys: 1,
                count: IN_REQUEST,
                keygen: Keygen::Ascending,
            },
            batch("1000 statements, one transaction", IN_REQUEST, one_by_one),
            batch("one statement by hand", IN_REQUEST, format!("WITH new AS ({by_hand}) SELECT count(*) FROM new;\n")),
            batch("idem_once_many", IN_OUTCOMES, format!("SELECT count(*) FROM idem_once_many('events', {keys});\n")),
        ],
        comparisons: vec![
            Comparison {
                what: "keys/s, idem_once_many / single statements",
                measure: Measure::Rate,
                ours: 3,
                theirs: 0,
                goal: Some(Goal(20.0)),
            },
            Comparison {
                what: "keys/s, idem_once_many / 1000 statements, one transaction",
                measure: Measure::Rate,
                ours: 3,
                theirs: 1,
                goal: None,
            },
            Comparison {
                what: "keys/s, idem_once_many / one statement by hand",
                measure: Measure::Rate,
                ours: 3,
                theirs: 2,
                goal: None,
            },
        ],
        cells: cells(&[1, 4]),
        goal_cells: cells(&[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_name_variants_that_are_there() {
        for row in chosen(&IDS.map(String::from)).expect("all ids are known") {
            for comparison in &row.comparisons {
                assert!(comparison.ours.max(comparison.theirs) < row.variants.len(), "{}", row.id);
            }
            assert!(row.goal_cells.iter().all(|cell| row.cells.contains(cell)), "{}", row.id);
        }
    }

    #[test]
    fn an_unknown_row_is_refused() {
        assert!(chosen(&["tea".into()]).is_err());
    }
}
