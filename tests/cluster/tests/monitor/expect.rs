//! What a query is to give.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Connection;

/// Checks that a query gives these rows.
pub async fn expect(connection: &Connection, sql: &str, wanted: &str) -> Result<()> {
    let found = connection.text(sql).await?;
    ensure!(found == wanted, "{sql}\ngives\n{found}\nand not\n{wanted}");
    Ok(())
}
