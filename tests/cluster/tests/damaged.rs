//! A row whose header is damaged.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::DATABASE;
use idempotence_cluster_tests::{Cluster, Version, on_each_version};

on_each_version!(a_row_with_the_header_of_a_composite_value_is_an_error);

/// The place of a row's flags (`t_infomask`) in its header.
const FLAGS_AT: u64 = 20;

/// HEAP_XMAX_COMMITTED and HEAP_XMAX_INVALID, which only values of composite types have both.
const COMPOSITE_VALUE: u16 = 0x0400 | 0x0800;

// Goal: a row that PostgreSQL might refuse to read, where no guard of pgrx catches its error, is an error of the call;
// the server and the other requests go on.
// Method: the flags of an outcome are changed in the file of its table while the server is down.
async fn a_row_with_the_header_of_a_composite_value_is_an_error(version: Version) -> Result<()> {
    let server = Cluster::start_with(version, &[("ignore_checksum_failure", "on")])?;
    server.create_database(DATABASE)?;
    let connection = server.connect(DATABASE).await?;
    connection.text("SELECT idem_create_session('payments')").await?;
    for key in ["damaged", "sound"] {
        connection.execute("payments", key, "1").await?;
    }
    let find =
        "SELECT pg_relation_filepath('idempotence.outcome_0'), ctid FROM idempotence.outcome_0 WHERE key = 'damaged'";
    let found = connection.text(find).await?;
    let path = found.strip_suffix("|(0,1)").with_context(|| format!("the row is not where it is expected: {found}"))?;
    drop(connection);
    server.stop_fast()?;
    let file = OpenOptions::new().read(true).write(true).open(server.data_dir().join(path))?;
    // The line pointers follow the header of the page. A line pointer begins with 15 bits that say where its row
    // begins.
    let mut word = [0; 2];
    file.read_exact_at(&mut word, 24)?;
    let flags_at = u64::from(u16::from_ne_bytes(word) & 0x7fff) + FLAGS_AT;
    file.read_exact_at(&mut word, flags_at)?;
    file.write_all_at(&(u16::from_ne_bytes(word) | COMPOSITE_VALUE).to_ne_bytes(), flags_at)?;
    server.start()?;

    let connection = server.connect(DATABASE).await?;
    let pid = connection.pid().await?;
    for call in ["idem_lookup('payments', 'damaged')", "idem_begin('payments', 'damaged')"] {
        let error = connection.error(&format!("SELECT {call}")).await?;
        ensure!(error.code().code() == "XX001" && error.message().contains("composite value"), "{call}: {error:?}");
        ensure!(connection.replay("payments", "sound").await? == "succeeded|1");
    }
    ensure!(connection.pid().await? == pid);
    Ok(())
}
