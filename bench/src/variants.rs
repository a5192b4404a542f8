//! Variants that several rows compare, besides those of `guarded.rs`.

use crate::row::Variant;
use crate::script::{COUNT_LEDGER, COUNT_OUTCOMES, COUNT_REQUESTS, KEY, Keygen, transaction};

/// Counts the client sessions that are open.
const COUNT_LIVE_SESSIONS: &str = "SELECT count(*) FROM idempotence.session_live";
/// Counts the sessions in the hand-written table.
const COUNT_HAND_WRITTEN_SESSIONS: &str = "SELECT count(*) FROM session_by_hand";

/// The number of keys in a batch.
const BATCH: u32 = 1000;

/// The ways to deduplicate, the last two in one statement.
pub fn in_batches() -> [Variant; 4] {
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
    let batch =
        |name, count, sql| Variant { keys: BATCH, new_keys: BATCH, ..Variant::new(name, count, sql, Keygen::Batch) };
    let by_hand = format!(
        "INSERT INTO request (scope, key, expires_at) SELECT 'events', k, now() + interval '7 days' FROM unnest({keys}) k
ON CONFLICT (scope, key) DO NOTHING RETURNING key"
    );
    [
        Variant::new("single statements", COUNT_REQUESTS, format!("{};\n", insert(KEY)), Keygen::Ascending),
        batch("1000 statements, one transaction", COUNT_REQUESTS, one_by_one),
        batch("one statement by hand", COUNT_REQUESTS, format!("WITH new AS ({by_hand}) SELECT count(*) FROM new;\n")),
        batch("idem_once_many", COUNT_OUTCOMES, format!("SELECT count(*) FROM idem_once_many('events', {keys});\n")),
    ]
}

/// Numbered requests by hand: the number is a key in the client's name.
pub fn numbered_by_hand() -> Variant {
    Variant::new(
        "hand-written",
        COUNT_REQUESTS,
        transaction(
            "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES (:session, :k::text, :fingerprint, now() + interval '7 days')
ON CONFLICT (scope, key) DO NOTHING RETURNING true",
            "UPDATE request SET response = :response WHERE scope = :session AND key = :k::text",
        ),
        Keygen::Numbered,
    )
}

/// Signs of life, by hand and with the extension.
pub fn signs() -> [Variant; 2] {
    let variant =
        |name, sql: &str| Variant { new_keys: 0, ..Variant::new(name, COUNT_LEDGER, sql.into(), Keygen::Numbered) };
    [
        variant(
            "UPDATE by hand",
            "UPDATE session_by_hand SET last_seen = clock_timestamp() WHERE id = :by_hand::uuid;\n",
        ),
        variant("idem_heartbeat", "SELECT idem_heartbeat(:session);\n"),
    ]
}

/// Registrations, by hand and with the extension.
pub fn registering() -> [Variant; 2] {
    let variant = |name, count, sql: &str| Variant::new(name, count, sql.into(), Keygen::Ascending);
    [
        variant(
            "INSERT by hand",
            COUNT_HAND_WRITTEN_SESSIONS,
            "INSERT INTO session_by_hand (client, timeout) VALUES ('app-' || :t || :u || :c, '5 min') RETURNING id;\n",
        ),
        variant("idem_register", COUNT_LIVE_SESSIONS, "SELECT * FROM idem_register('app-' || :t || :u || :c);\n"),
    ]
}
