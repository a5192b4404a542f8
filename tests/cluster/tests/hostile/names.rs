//! What a role puts into the way of the extension's SQL: operators, functions, types and relations of the names that this
//! SQL uses.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::{Cluster, Version};

// Goal: while the extension acts as its owner, a caller's search_path has no say in what an operator means.
// Method: after half a restore, whoever makes a session has the notes of the restore read. The caller's operator would
// make him superuser.
pub async fn an_operator_of_a_caller_makes_nobody_superuser(version: Version) -> Result<()> {
    let server = Cluster::start(version)?;
    server.psql("postgres", "CREATE ROLE app LOGIN")?;
    server.psql(
        "postgres",
        "CREATE EXTENSION idempotence; SELECT idem_grant('app'); GRANT CREATE ON SCHEMA public TO app;
         INSERT INTO idempotence.restore (noted_at, looked_at, orphans, brought) VALUES (now(), now(), 1, 'session')",
    )?;
    let app = server.connect_as("postgres", "app").await?;
    app.text(
        "CREATE FUNCTION public.eqf(bigint, int) RETURNS bool LANGUAGE plpgsql AS
             $$ BEGIN RAISE WARNING 'running as %', current_user; EXECUTE 'ALTER ROLE app SUPERUSER'; RETURN true; END $$;
         CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = int, FUNCTION = public.eqf);
         SET search_path = public, pg_catalog",
    )
    .await?;
    app.text("SELECT idem_create_session('newsess', ttl => '1 day')").await?;
    let promoted = server.psql("postgres", "SELECT rolsuper FROM pg_roles WHERE rolname = 'app'")?;
    ensure!(promoted.trim() == "f", "the caller is superuser");
    Ok(())
}
