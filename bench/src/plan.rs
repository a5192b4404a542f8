//! How much is measured.

/// The extent of all measurements.
#[derive(Debug)]
pub struct Plan {
    /// Whether only the cells with a goal are measured.
    pub quick: bool,
    /// The number of rounds, in each of which every variant runs once.
    pub rounds: usize,
    /// The seconds of a run that count.
    pub seconds: u32,
    /// The number of outcomes that are kept when a measurement begins.
    pub kept: u64,
    /// The number of transactions whose write-ahead log is measured.
    pub wal_transactions: u64,
    /// The number of rounds of the rows that are not measured in seconds.
    pub wal_rounds: usize,
    /// The number of requests after which the space of sessions is measured.
    pub slot_requests: u64,
    /// The number of waits for a lease in a round.
    pub wakes: usize,
    /// The number of requests of one session under an old snapshot.
    pub held_requests: u64,
    /// The number of outcomes in a segment that is emptied.
    pub emptied: u64,
    /// The number of outcomes that are kept in measurements about many kept outcomes.
    pub many: u64,
}
