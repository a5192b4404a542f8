//! What the requests of these tests do: they are begun and recorded on the coordinator, in an ordinary session, and
//! insert a row on one worker or a row on each of two.

use anyhow::Result;
use idempotence_cluster_tests::citus::{Citus, DATABASE};
use idempotence_cluster_tests::driver::{Attempt, Work};

/// Requests with effects for these tenants.
pub struct Payment {
    tenants: Vec<i32>,
}

impl Payment {
    /// Creates the tables and the session, once in a cluster.
    pub fn create(citus: &Citus) -> Result<()> {
        let create = "CREATE TABLE effect (tenant int, key text, attempt text);
                      SELECT create_distributed_table('effect', 'tenant');
                      SELECT idem_create_session('payments')";
        citus.coordinator().psql(DATABASE, create).map(drop)
    }

    /// Requests that write on each of these workers.
    pub async fn on(citus: &Citus, workers: &[usize]) -> Result<Self> {
        let mut tenants = Vec::new();
        for worker in workers {
            tenants.push(citus.tenant_on("effect", *worker, &tenants).await?);
        }
        Ok(Self { tenants })
    }

    /// The condition for the rows of the first tenant.
    pub fn is_tenant(&self) -> String {
        format!("tenant = {}", self.tenants[0])
    }

    /// The statements that record the outcome and commit.
    pub fn record(&self, attempt: &Attempt) -> String {
        self.execute(attempt).split_off(self.tenants.len()).join("; ")
    }

    /// The statements that insert the effects.
    pub fn insert(&self, attempt: &Attempt) -> Vec<String> {
        let Attempt { key, name } = attempt;
        let insert = |tenant| format!("INSERT INTO effect VALUES ({tenant}, '{key}', '{name}')");
        self.tenants.iter().map(insert).collect()
    }
}

impl Work for Payment {
    fn begin(&self, Attempt { key, .. }: &Attempt) -> String {
        format!("BEGIN; SELECT status, response ->> 'attempt' FROM idem_begin('payments', '{key}')")
    }

    fn execute(&self, attempt: &Attempt) -> Vec<String> {
        let Attempt { key, name } = attempt;
        let mut steps = self.insert(attempt);
        steps.push(format!("SELECT FROM idem_record('payments', '{key}', '{{\"attempt\": \"{name}\"}}')"));
        steps.push("COMMIT".into());
        steps
    }

    fn effects(&self) -> String {
        format!("SELECT key, attempt FROM effect WHERE tenant = ANY (ARRAY{:?})", self.tenants)
    }

    fn effects_each(&self) -> usize {
        self.tenants.len()
    }

    fn outcomes(&self, keys: &str) -> String {
        format!(
            "SELECT key, status, response ->> 'attempt' FROM unnest({keys}) key, LATERAL idem_lookup('payments', key)"
        )
    }
}
