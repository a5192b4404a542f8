//! The columns of `idempotence.session`.

use crate::store::tuple::{Tuple, columns};

columns! { "session", COLUMNS:
    ID, CREATED_AT, ENDED_AT, OWNER, WINDOW_SIZE, REQUIRE_PAYLOAD, INBOX, TIME_KEYS, ORDERING, ENDED, REQUEST_ID, TTL,
    TIMEOUT, NAME, CLIENT, USABLE_BY, MAX_ATTEMPTS, NODE, JOURNAL
}

pub type Columns<'a> = Tuple<'a, COLUMNS>;
