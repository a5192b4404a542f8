//! How much is measured.

/// The extent of all measurements.
#[derive(Debug)]
pub struct Plan {
    /// Whether only the cells with a goal are measured.
    pub quick: bool,
    /// The number of rounds of a cell with a goal. In a round, every variant runs once.
    pub rounds: usize,
    /// The number of rounds of all else: of cells without a goal, and of what varies little from round to round.
    pub few_rounds: usize,
    /// The seconds of a run that count.
    pub seconds: u32,
    /// The number of outcomes that are kept when a measurement begins.
    pub kept: u64,
    /// The number of transactions whose write-ahead log is measured.
    pub wal_transactions: u64,
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

impl Plan {
    /// A run of hours.
    pub fn complete() -> Plan {
        Plan {
            quick: false,
            rounds: 7,
            few_rounds: 3,
            seconds: 2,
            kept: 200_000,
            wal_transactions: 100_000,
            slot_requests: 1_000_000,
            wakes: 500,
            held_requests: 30_000,
            emptied: 1_000_000,
            many: 10_000_000,
        }
    }

    /// A run of minutes: few rounds, and only the cells that have a goal.
    pub fn quick() -> Plan {
        Plan {
            quick: true,
            rounds: 3,
            few_rounds: 1,
            seconds: 1,
            wal_transactions: 20_000,
            slot_requests: 100_000,
            wakes: 200,
            held_requests: 10_000,
            emptied: 100_000,
            many: 200_000,
            ..Plan::complete()
        }
    }
}
