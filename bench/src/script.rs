//! The parts of the `pgbench` scripts: the values and keys that they use, the transaction with the work
//! in it, and the queries that count what they leave behind.

/// The values that are the same in each transaction, by the names that scripts know them by.
pub const CONSTANTS: [(&str, &str); 3] = [
    ("payload", r#"{"account": 4711, "amount": 250, "note": "rent for May"}"#),
    // The SHA-256 hash of the payload, which the client computes.
    ("fingerprint", r"\x2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"),
    ("response", r#"{"status": "booked", "transfer": 4711}"#),
];

/// How a script generates its keys: as text of 36 characters, from three numbers.
#[derive(Clone, Copy)]
pub enum Keygen {
    /// Keys like UUIDv7: each key of a client is greater than the key before.
    Ascending,
    /// Keys like the ascending ones, but without the last four digits, in which the keys of a batch differ.
    Batch,
    /// Keys like UUIDv4.
    Random,
    /// The ascending keys of the outcomes that are kept from the beginning, in random order.
    Kept,
    /// Ascending keys. In addition, each client has its own session, and counts its transactions in `k`.
    Numbered,
}

impl Keygen {
    /// The beginning of each script, which chooses the numbers of the key, and the account and the amount of
    /// the work.
    ///
    /// The variables of pgbench cannot hold text, so each statement puts the key together from numbers, in
    /// the same way in each variant. Decimal digits are valid hexadecimal digits too.
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
                "\\if :k = 0\nSELECT session, split_part(session, '@', 1) AS by_hand FROM idem_register() \\gset\nINSERT INTO session_by_hand (id, client, timeout) VALUES (:by_hand::uuid, :session, '5 min');\n\\endif\n\\set k :k + 1\n"
            }
            _ => "",
        };
        format!("{session}{parts}\\set account random(1, 100000)\n\\set amount random(1, 1000)\n")
    }
}

/// The SQL expression for an ascending or kept key.
pub const KEY: &str = "'01' || :t || '-' || :u || '-7a3c-8b5c-' || :c";
/// The SQL expression for a random key.
pub const RANDOM_KEY: &str = ":t || '-' || :u || '-4a3c-8b5c-' || :c";

/// Counts the outcomes of keys that the extension keeps.
pub const COUNT_OUTCOMES: &str =
    "SELECT (SELECT count(*) FROM idempotence.outcome_0) + (SELECT count(*) FROM idempotence.outcome_1)
     + (SELECT count(*) FROM idempotence.outcome_2)";
/// Counts the requests in the hand-written table.
pub const COUNT_REQUESTS: &str = "SELECT count(*) FROM request";
/// Counts the rows of the floor.
pub const COUNT_FLOOR_OUTCOMES: &str = "SELECT count(*) FROM outcome";
/// Counts the lines of the ledger, one for each execution of the work.
pub const COUNT_LEDGER: &str = "SELECT count(*) FROM ledger";

/// A transaction that does the work between two steps, in six round trips.
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

/// The same transaction in one round trip: all of it is sent before any answer is read.
pub fn pipeline(first: &str, second: &str) -> String {
    format!("\\startpipeline\n{}\\endpipeline\n", transaction(first, second))
}
