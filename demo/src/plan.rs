//! How much load there is, and what its clients leave to chance.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Config, IsolationLevel};

use crate::bank::Work;
use crate::client::{Interface, SendOptions};

/// The share of attempts in which the application fails between its work and COMMIT.
pub const ROLLBACK_RATE: f64 = 0.01;

/// How much load there is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of clients that give their requests keys.
    pub keyed_clients: u32,
    /// The number of clients that number their requests.
    pub numbered_clients: u32,
    /// The number of workers that do orders outside the database.
    pub workers: u32,
    pub accounts: u32,
    pub seed: u64,
    /// How to connect: to the proxy, as the bank's role.
    pub config: Config,
    /// Whether requests are protected by the extension. If not, the same load is sent without it.
    pub with_keys: bool,
}

/// The random choices of a client.
pub struct Choices {
    pub rng: SmallRng,
    accounts: i32,
    with_keys: bool,
}

impl Choices {
    pub fn new(plan: &Plan, number: u32) -> Self {
        let rng = SmallRng::seed_from_u64(plan.seed.wrapping_add(number.into()));
        Self { rng, accounts: plan.accounts.cast_signed(), with_keys: plan.with_keys }
    }

    /// Choices of the same kind that are independent of these.
    pub fn fork(&mut self) -> Self {
        Self { rng: SmallRng::from_rng(&mut self.rng), accounts: self.accounts, with_keys: self.with_keys }
    }

    /// What the next transfer is to do.
    pub fn work(&mut self) -> Work {
        let debit = self.rng.random_range(1..=self.accounts);
        // The credit goes to any other account.
        let credit = (debit + self.rng.random_range(0..self.accounts - 1)) % self.accounts + 1;
        // One in twenty asks for more than an account is likely to hold, and fails for good.
        let amount = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(500..3000),
            _ => self.rng.random_range(1..50),
        };
        Work { debit, credit, amount }
    }

    /// How to send the next request.
    pub fn send_options(&mut self) -> SendOptions {
        let interfaces: &[Interface] = if self.with_keys {
            &[Interface::Statements, Interface::Statements, Interface::Function, Interface::Run]
        } else {
            &[Interface::WithoutKeys]
        };
        SendOptions {
            interface: *interfaces.choose(&mut self.rng).expect("not empty"),
            isolation: match self.rng.random_range(0..4) {
                0 => IsolationLevel::RepeatableRead,
                1 => IsolationLevel::Serializable,
                _ => IsolationLevel::ReadCommitted,
            },
            wait: ["0", "100 ms", "1 s"].choose(&mut self.rng).expect("not empty"),
        }
    }
}
