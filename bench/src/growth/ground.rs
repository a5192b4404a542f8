//! The server on which growth is measured, and the scripts that its parts share.

use anyhow::Result;
use idempotence_demo::server::Server;

use crate::count::{Cost, Counter, Load};
use crate::lab::DATABASE;
use crate::plan::Plan;
use crate::script::{KEY, Keygen};
use crate::spread::Spread;

/// The database that is copied for each part.
pub const TEMPLATE: &str = "growth";

/// Where all parts are measured.
pub struct Ground<'a> {
    pub server: Server,
    pub counter: Counter,
    pub rounds: usize,
    pub plan: &'a Plan,
}

impl Ground<'_> {
    /// Makes the measured database anew.
    pub fn fresh(&self) -> Result<()> {
        self.counter.begin_anew();
        // The worker may be in it.
        self.server.psql("postgres", &format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"))?;
        // The worker may be in the one that is copied.
        self.server.psql(
            "postgres",
            &format!(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{TEMPLATE}';
                 CREATE DATABASE {DATABASE} TEMPLATE {TEMPLATE} STRATEGY file_copy"
            ),
        )?;
        Ok(())
    }

    /// Runs SQL in the measured database.
    pub fn psql(&self, sql: &str) -> Result<String> {
        Ok(self.server.psql(DATABASE, sql)?.trim_end().to_owned())
    }

    /// Either number, as the plan wants it.
    pub fn quick_or<T>(&self, quick: T, complete: T) -> T {
        if self.plan.quick { quick } else { complete }
    }

    /// The costs of a load, one for each round.
    pub fn costs(&self, what: &str, load: &Load<'_>) -> Result<Vec<Cost>> {
        let costs = self.counter.costs(&self.server, load, self.rounds)?;
        let median = |value: fn(&Cost) -> f64| Spread::of(costs.iter().map(value)).median;
        eprintln!("growth: {what}: {:.0}, {:.0} a second", median(|cost| cost.number()), median(|cost| cost.rate));
        Ok(costs)
    }
}

/// The script of a request between BEGIN and COMMIT, without work. `session` is an expression for its name.
pub fn request(keygen: Keygen, session: &str, key: &str) -> String {
    transaction(
        keygen,
        &format!("SELECT status, replayed, response FROM idem_begin({session}, {key}, :payload)"),
        &format!("SELECT idem_record({session}, {key}, :response)"),
    )
}

/// The same by hand.
pub fn by_hand(keygen: Keygen, key: &str) -> String {
    transaction(
        keygen,
        &format!(
            "INSERT INTO request (scope, key, fingerprint, expires_at)
VALUES ('payments', {key}, :fingerprint, now() + interval '7 days') ON CONFLICT (scope, key) DO NOTHING RETURNING true"
        ),
        &format!("UPDATE request SET response = :response WHERE scope = 'payments' AND key = {key}"),
    )
}

/// Two statements that do nothing.
pub fn ceiling(keygen: Keygen) -> String {
    transaction(keygen, &format!("SELECT {KEY}, :payload::jsonb"), &format!("SELECT {KEY}, :response::jsonb"))
}

fn transaction(keygen: Keygen, first: &str, second: &str) -> String {
    format!("{}\\set m :m + 1\nBEGIN;\n{first};\n{second};\nCOMMIT;\n", keygen.script())
}
