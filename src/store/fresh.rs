//! Which keys are not in a closed segment, since they were made after it was closed.
//!
//! A UUIDv7 tells when it was made, by a clock that may be wrong. So the times alone prove nothing; what the segment has
//! does. The digest of such a key begins with its time ([`Digest::of`]), so the index shows at one place whether there is
//! any key of a later time. Nothing is inserted into a closed segment, except by a restore, which sends a message.
//!
//! [`Digest::of`]: crate::domain::identity::Digest::of

use crate::domain::time_key;
use crate::pg;
use crate::store::outcome_columns::{Columns, DIGEST, KEY};
use crate::store::rel::{Rel, Snapshot};
use crate::store::tuple::{uuid_at_least, uuid_below};
use std::ops::Range;

/// How long after the closing a key counts as fresh at the earliest. Clients' clocks are ahead by less, mostly.
const AFTER_US: i64 = 10_000_000;

/// The times that are looked at begin there and end so much later. Other keys' digests look like times too, all over the
/// index, so the part that is looked at is short.
const LENGTH_US: i64 = 366 * 86_400 * 1_000_000;

/// How many rows are looked at. With more of them there, nothing is known.
const ROWS_MAX: usize = 64;

/// The times of which the segment, which was closed at `closed_at`, has no UUIDv7; `None`: not known.
pub(super) fn times(segment: &Rel, closed_at: i64) -> Option<Range<i64>> {
    let begin = closed_at.checked_add(AFTER_US)?;
    let mut fresh = begin..begin.checked_add(LENGTH_US)?;
    let now_us = pg::now_us();
    let (first, end) = (time_key::earliest(fresh.start)?, time_key::earliest(fresh.end)?);
    let keys = &mut [uuid_at_least(DIGEST, &first), uuid_below(DIGEST, &end)];
    let mut rows = 0;
    let too_many = segment.find(Some(segment.table.by_digest()), keys, Snapshot::LatestMvcc, |row: &Columns<'_>| {
        // What is left is the time around now that has no key.
        match row.get::<String>(KEY).and_then(|key| time_key::parse(&key)).map(|id| time_key::time_us(&id)) {
            Some(made_at) if made_at <= now_us => fresh.start = fresh.start.max(made_at + 1),
            Some(made_at) => fresh.end = fresh.end.min(made_at),
            None => {}
        }
        rows += 1;
        (rows > ROWS_MAX).then_some(())
    });
    (too_many.is_none() && !fresh.is_empty()).then_some(fresh)
}
