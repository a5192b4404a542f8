//! The signals that ask a program to end.

use std::future::pending;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The number of signals so far that asked the program to end.
pub struct Signals(watch::Receiver<u32>);

impl Signals {
    /// Counts the signals from now on.
    pub fn listen() -> Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (counter, count) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                counter.send_modify(|count| *count += 1);
            }
        });
        Ok(Self(count))
    }

    pub fn seen(&self) -> u32 {
        *self.0.borrow()
    }

    /// Returns once there have been this number of signals.
    pub async fn reach(&self, times: u32) {
        if self.0.clone().wait_for(|&count| count >= times).await.is_err() {
            // The task that counts the signals ends only with the runtime.
            pending().await
        }
    }
}
