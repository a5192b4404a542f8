//! `pg_upgrade` of a cluster from PostgreSQL 15 to 18.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::upgrade::upgrade;
use idempotence_cluster_tests::{Cluster, Version, fixture};

/// The settings with the library preloaded, which both servers may have. The worker visits each database once
/// and then rests.
const PRELOADED: [(&str, &str); 2] = [("shared_preload_libraries", "idempotence"), ("idempotence.naptime", "1d")];

async fn an_upgrade_keeps_everything(mode: &str, create_extension: &str, settings: &[(&str, &str)]) -> Result<()> {
    let old = Cluster::start_with(Version::Pg15, settings)?;
    fixture::create_roles(&old)?;
    old.psql("postgres", "CREATE DATABASE shop")?;
    old.psql("shop", create_extension)?;
    let fixture = fixture::fill(&old, "shop").await?;
    // Without types, because the newer server also counts row types and array types.
    let members =
        "SELECT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
                   WHERE e.extname = 'idempotence' AND d.deptype = 'e' AND d.classid <> 'pg_type'::regclass ORDER BY 1";
    let members_before = old.psql("shop", members)?;

    // A name that nobody has set is made from the identifier that pg_upgrade changes.
    let superuser = fixture::connect(&old, "shop", "postgres").await?;
    let node = superuser.text("SELECT idem_node()").await?;
    superuser.text(&format!("SELECT idem_create_session('bound', node => '{node}', owner => 'app')")).await?;

    let new = Cluster::start_with(Version::Pg18, settings)?;
    upgrade(&old, &new, mode)?;
    let members = new.psql("shop", members)?;
    ensure!(members == members_before, "the extension's members were:\n{members_before}\nand are:\n{members}");
    ensure!(new.psql("shop", "SELECT count(*) FROM idempotence.secret")? == "1\n", "there is another secret");
    // The old server was stopped in order, so that not even unlogged rows are lost.
    let app = fixture::connect(&new, "shop", "app").await?;
    ensure!(app.answer(&fixture.clients.unsaved, "1").await? == "started|");
    // A session that is bound to the former name executes nothing before the server has that name again.
    let gone = format!("01890a5d-ac96-774b-bcce-b302099a8057@{node}");
    for session in ["bound", &gone] {
        let answer = app.answer(session, "1").await?;
        ensure!(answer == "ID012", "under another name {session} answers {answer}");
    }
    new.conf("idempotence.node", &node)?;
    new.restart()?;
    let app = fixture::connect(&new, "shop", "app").await?;
    ensure!(app.answer("bound", "1").await? == "started|");
    ensure!(app.answer(&gone, "1").await? == "ID004");
    new.psql("shop", "DELETE FROM idempotence.session WHERE name = 'bound'")?;
    fixture.check(&new, "shop").await?;
    // The extension can be dropped.
    new.psql("shop", "DROP EXTENSION idempotence")?;
    Ok(())
}

// Goal: an upgraded cluster gives the same answers as the old cluster.
// Method: pg_upgrade by copying. Rows and privileges are compared, and then every request is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_by_copying_keeps_everything() -> Result<()> {
    an_upgrade_keeps_everything("--copy", "CREATE EXTENSION idempotence", &[]).await
}

// Goal: the same if the new cluster takes the old cluster's files, and the library is preloaded in both
// servers.
// Method: pg_upgrade by linking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_by_linking_keeps_everything() -> Result<()> {
    an_upgrade_keeps_everything("--link", "CREATE EXTENSION idempotence", &PRELOADED).await
}

// Goal: the same if the extension shares the schema of its tables.
// Method: the schema is created before the extension, so that it is no member of the extension.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_the_extension_in_its_own_schema() -> Result<()> {
    let create = "CREATE SCHEMA idempotence; CREATE EXTENSION idempotence SCHEMA idempotence";
    an_upgrade_keeps_everything("--copy", create, &[]).await
}
