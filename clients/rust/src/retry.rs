//! Attempts: when to try again, and until when.

use crate::Error;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

/// `deadline`: how long to try. `patience`: how long to try while another process holds the claim.
pub(crate) struct Retry {
    began: Instant,
    deadline: Duration,
    patience: Duration,
    count: u32,
}

impl Retry {
    pub fn new(deadline: Duration, patience: Duration) -> Retry {
        Retry { began: Instant::now(), deadline, patience, count: 0 }
    }

    pub fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.began.elapsed())
    }

    /// Waits before the next attempt. Returns the error if it is final, or if the time is over.
    pub async fn after(&mut self, error: Error) -> Result<(), Error> {
        let busy = matches!(error, Error::InProgress { .. });
        let limit = if busy { self.patience } else { self.deadline };
        let left = limit.saturating_sub(self.began.elapsed());
        if left.is_zero() || !error.is_retryable() {
            return Err(error);
        }
        let most = Duration::from_millis(if busy { 250 } else { 2000 });
        let pause = most.min(Duration::from_millis(50) * (1 << self.count.min(10)));
        self.count += 1;
        // Between half of the pause and all of it. A new RandomState is random, and needs no dependency.
        let share = (RandomState::new().hash_one(self.count) % 1000) as f64 / 2000.0 + 0.5;
        tokio::time::sleep(left.min(pause.mul_f64(share))).await;
        Ok(())
    }
}

/// Evaluates an attempt until it has succeeded or failed permanently.
macro_rules! retrying {
    ($retry:ident, $attempt:expr) => {
        loop {
            match $attempt {
                Ok(value) => break Ok(value),
                Err(error) => {
                    if let Err(error) = $retry.after(error).await {
                        break Err(error);
                    }
                }
            }
        }
    };
}
pub(crate) use retrying;
