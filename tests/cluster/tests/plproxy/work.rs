//! Payments of tenants. The proxy has a function of each name, which PL/Proxy executes on the shard of the tenant. The
//! shard begins the request in the tenant's session, writes the effect and records, all in one transaction.

use anyhow::Result;
use idempotence_cluster_tests::Cluster;
use idempotence_cluster_tests::driver::{Attempt, Work};
use idempotence_cluster_tests::plproxy::{SHARDS, Sharded, node};
use idempotence_cluster_tests::shop::DATABASE;

/// The tenants have the numbers from 0 to this one, without it.
pub const TENANTS: usize = 8;

/// What a shard has.
const SHARD: &str = "
    CREATE TABLE effect (tenant int NOT NULL, key text NOT NULL, attempt text NOT NULL);
    CREATE FUNCTION pay(tenant int, key text, attempt text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
      t idem_ticket;
    BEGIN
      t := idem_begin('tenant-' || tenant, key);
      IF t.status = 'started' THEN
        INSERT INTO effect VALUES (tenant, key, attempt);
        PERFORM idem_record('tenant-' || tenant, key, jsonb_build_object('attempt', attempt));
        RETURN attempt;
      END IF;
      RETURN t.response ->> 'attempt';
    END $$;
    CREATE FUNCTION effects(OUT key text, OUT attempt text) RETURNS SETOF record LANGUAGE sql
      AS 'SELECT key, attempt FROM effect';
    CREATE FUNCTION outcome(tenant int, key text, OUT status text, OUT attempt text) RETURNS SETOF record LANGUAGE sql
      AS $$SELECT status, response ->> 'attempt' FROM idem_lookup('tenant-' || tenant, key)$$";

/// A tenant lives on the shard of its number, unless it has moved.
fn proxy() -> String {
    format!(
        "CREATE TABLE moved (tenant int PRIMARY KEY, shard int NOT NULL);
         CREATE FUNCTION place(tenant int) RETURNS int LANGUAGE sql
           AS 'SELECT coalesce((SELECT m.shard FROM moved m WHERE m.tenant = $1), $1)';
         CREATE FUNCTION pay(tenant int, key text, attempt text) RETURNS text LANGUAGE plproxy
           AS $$ CLUSTER '{SHARDS}'; RUN ON place(tenant); $$;
         CREATE FUNCTION effects(OUT key text, OUT attempt text) RETURNS SETOF record LANGUAGE plproxy
           AS $$ CLUSTER '{SHARDS}'; RUN ON ALL; $$;
         CREATE FUNCTION outcome(tenant int, key text, OUT status text, OUT attempt text) RETURNS SETOF record LANGUAGE plproxy
           AS $$ CLUSTER '{SHARDS}'; RUN ON place(tenant); $$;
         CREATE FUNCTION tenant_of(key text) RETURNS int LANGUAGE sql
           AS $$SELECT get_byte(decode(right(key, 2), 'hex'), 0) % {TENANTS}$$"
    )
}

/// The work.
pub struct Payments;

impl Payments {
    /// Creates the functions on all servers. Each shard has the sessions of all tenants, bound to their shards.
    pub fn create(sharded: &Sharded) -> Result<()> {
        sharded.proxy().psql(DATABASE, &proxy())?;
        for shard in sharded.shards() {
            shard.psql(DATABASE, SHARD)?;
            for tenant in 0..TENANTS {
                let node = node(tenant % sharded.shards().len());
                shard.psql(DATABASE, &format!("SELECT idem_create_session('tenant-{tenant}', node => '{node}')"))?;
            }
        }
        Ok(())
    }
}

/// Binds the session of a tenant to a shard, as told to one of the shards.
pub fn bind(at: &Cluster, tenant: usize, to: usize) -> Result<()> {
    at.psql(DATABASE, &format!("SELECT idem_alter_session('tenant-{tenant}', node => '{}')", node(to))).map(drop)
}

impl Work for Payments {
    // The call is the whole request.
    fn begin(&self, Attempt { key, name }: &Attempt) -> String {
        format!(
            "SELECT CASE WHEN executed_by IS NULL THEN 'in_progress' ELSE 'succeeded' END, executed_by
               FROM pay(tenant_of('{key}'), '{key}', '{name}') executed_by"
        )
    }

    fn execute(&self, _: &Attempt) -> Vec<String> {
        Vec::new()
    }

    fn end(&self) -> &'static str {
        "SELECT"
    }

    fn effects(&self) -> String {
        "SELECT key, attempt FROM effects()".into()
    }

    fn effects_each(&self) -> usize {
        1
    }

    fn outcomes(&self, keys: &str) -> String {
        format!("SELECT key, o.status, o.attempt FROM unnest({keys}) key, LATERAL outcome(tenant_of(key), key) o")
    }
}
