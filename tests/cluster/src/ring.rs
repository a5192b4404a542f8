//! The ring of segments, as SQL.

/// The number of the segment that takes new outcomes.
pub const CURRENT: &str = "SELECT number FROM idempotence.segment WHERE current";

/// Makes the current segment so old that the next sweep turns the ring, if the ring can turn.
pub const HURRY: &str = "UPDATE idempotence.segment SET opened_at = opened_at - interval '30 days' WHERE current";
