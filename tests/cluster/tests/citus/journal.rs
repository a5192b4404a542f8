//! Requests whose outcomes lie in the tenant's own shard: in a journal that is distributed as the effects are.

use anyhow::Result;
use idempotence_cluster_tests::citus::{Citus, DATABASE};
use idempotence_cluster_tests::driver::{Attempt, Work};
use rand::RngExt;

/// How many tenants there are.
const TENANTS: i32 = 40;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Begin, effect and record are statements of a transaction, on a node of the client's choice.
    Statements,
    /// One function does all. Citus executes it on the node that has the tenant's shard.
    Delegated,
}

/// Requests that may come to any node.
pub struct Journaled(pub Way);

/// The tenant of a key, as SQL. The last digits of a key are random.
fn tenant_of(key: &str) -> String {
    format!("('x' || right({key}, 4))::bit(16)::int % {TENANTS}")
}

impl Journaled {
    /// Creates the tables and the function, and the session on each node.
    pub async fn create(citus: &Citus) -> Result<()> {
        let tables = "CREATE TABLE charge (tenant int, key text, attempt text);
                      SELECT create_distributed_table('charge', 'tenant');
                      ALTER TABLE charge REPLICA IDENTITY FULL;
                      SELECT idem_create_journal('charge_request', 'tenant', 'int');
                      SELECT create_distributed_table('charge_request', 'tenant', colocate_with => 'charge')";
        citus.coordinator().psql(DATABASE, tables)?;
        for node in citus.nodes() {
            let session = "SELECT idem_create_session('charges', journal => 'charge_request')";
            node.wait_for(DATABASE, "SELECT to_regclass('charge_request') IS NOT NULL", "t").await?;
            node.psql(DATABASE, session)?;
        }
        let function = "CREATE FUNCTION charge(tenant int, key text, attempt text) RETURNS text LANGUAGE plpgsql AS $$
                        DECLARE begun idem_ticket := idem_begin('charges', key, stream => tenant::text);
                        BEGIN
                          IF begun.status <> 'started' THEN
                            RETURN concat_ws('|', begun.status, begun.response ->> 'attempt');
                          END IF;
                          INSERT INTO charge VALUES (tenant, key, attempt);
                          PERFORM idem_record('charges', key, jsonb_build_object('attempt', attempt), stream => tenant::text);
                          RETURN concat_ws('|', 'succeeded', attempt);
                        END $$;
                        SELECT create_distributed_function('charge(int, text, text)', 'tenant', colocate_with => 'charge', force_delegation => true)";
        citus.coordinator().psql(DATABASE, function).map(drop)
    }
}

impl Work for Journaled {
    fn node(&self, nodes: usize) -> usize {
        rand::rng().random_range(0..nodes)
    }

    fn begin(&self, Attempt { key, name }: &Attempt) -> String {
        // As a constant, so that Citus sees it in the call.
        let tenant = i32::from_str_radix(&key[key.len() - 4..], 16).unwrap_or(0) % TENANTS;
        match self.0 {
            Way::Statements => format!(
                "BEGIN; SELECT status, response ->> 'attempt' FROM idem_begin('charges', '{key}', stream => '{tenant}')"
            ),
            Way::Delegated => format!("SELECT charge({tenant}, '{key}', '{name}')"),
        }
    }

    fn execute(&self, Attempt { key, name }: &Attempt) -> Vec<String> {
        let tenant = tenant_of(&format!("'{key}'"));
        vec![
            format!("INSERT INTO charge VALUES ({tenant}, '{key}', '{name}')"),
            format!(
                "SELECT FROM idem_record('charges', '{key}', '{{\"attempt\": \"{name}\"}}', stream => ({tenant})::text)"
            ),
            "COMMIT".into(),
        ]
    }

    fn end(&self) -> &'static str {
        match self.0 {
            Way::Statements => "COMMIT",
            Way::Delegated => "SELECT",
        }
    }

    fn effects(&self) -> String {
        "SELECT key, attempt FROM charge".into()
    }

    fn effects_each(&self) -> usize {
        1
    }

    fn outcomes(&self, keys: &str) -> String {
        format!(
            "SELECT key, status, response ->> 'attempt' FROM unnest({keys}) key,
             LATERAL idem_lookup('charges', key, stream => ({})::text)",
            tenant_of("key")
        )
    }
}
