//! The columns of `idempotence.session`.

use crate::store::tuple::columns;

columns! { "session", Columns, COLUMNS:
    ID, CREATED_AT, OWNER, WINDOW_SIZE, TIMEOUT, REQUIRE_PAYLOAD, INBOX, TIME_KEYS, ORDERING, NODE, CLIENT, REQUEST_ID,
    ENDED, ENDED_AT, NAME, TTL, USABLE_BY, MAX_ATTEMPTS, JOURNAL
}
