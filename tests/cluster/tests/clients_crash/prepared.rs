//! Prepared transactions of client sessions, and a crash before their end.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::shop::{DATABASE, start};

use super::killing::{EITHER, all_refuse, crash};

// Goal: while the first outcome of a session is prepared, its requests and calls are in progress. The commit
// keeps the session, and the rollback leaves it to the crash.
// Method: two sessions whose first outcome is prepared, then a crash; one transaction is committed, and the
// other is rolled back.
pub async fn a_prepared_first_outcome_keeps_its_session_through_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut sessions = Vec::new();
        for name in ["kept", "undone"] {
            let session = before.register("").await?;
            before
                .text(&format!(
                    "BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT FROM idem_record('{session}', 1, '1'); PREPARE TRANSACTION '{name}'"
                ))
                .await?;
            sessions.push(session);
        }
        let after = crash(&server, killed).await?;
        after.text("SET idempotence.wait = '10 ms'").await?;
        for session in &sessions {
            ensure!(after.answer(session, "1").await? == "in_progress|");
            ensure!(after.answer(session, "2").await? == "in_progress|");
            ensure!(after.lookup(session, "1").await? == "in_progress");
            for call in ["heartbeat('$')", "ack('$', 1)", "allocate('$', 1)", "close('$')"] {
                let state = after.sqlstate(&format!("SELECT idem_{}", call.replace('$', session))).await?;
                ensure!(state == "55P03", "idem_{call}: {state}");
            }
        }
        after.text("COMMIT PREPARED 'kept'").await?;
        after.text("ROLLBACK PREPARED 'undone'").await?;
        let [kept, undone] = &sessions[..] else { unreachable!() };
        ensure!(after.replay(kept, "1").await? == "succeeded|1");
        after.execute(kept, "2", "2").await?;
        all_refuse(&after, undone, "ID004").await?;
    }
    Ok(())
}

// Goal: a prepared registration does not fence the former session yet, but nobody can work in that session in
// the meantime.
// Method: two prepared registrations, then a crash; one registration is committed, and the other is rolled
// back.
pub async fn a_prepared_registration_keeps_the_former_session_through_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut formers = Vec::new();
        for name in ["fencing", "undone"] {
            let client = format!("client => '{name} {killed:?}'");
            let former = before.register(&client).await?;
            before.execute(&former, "1", "1").await?;
            before.text(&format!("BEGIN; SELECT FROM idem_register({client}); PREPARE TRANSACTION '{name}'")).await?;
            formers.push((former, client));
        }
        let after = crash(&server, killed).await?;
        after.text("SET idempotence.wait = '10 ms'").await?;
        for (former, client) in &formers {
            ensure!(after.replay(former, "1").await? == "succeeded|1");
            ensure!(after.answer(former, "2").await? == "in_progress|");
            let state = after.sqlstate(&format!("SELECT FROM idem_register({client})")).await?;
            ensure!(state == "55P03", "a registration beside a prepared registration gives {state}");
        }
        after.text("COMMIT PREPARED 'fencing'").await?;
        after.text("ROLLBACK PREPARED 'undone'").await?;
        let [(fenced, _), (spared, client)] = &formers[..] else { unreachable!() };
        all_refuse(&after, fenced, "ID005").await?;
        after.execute(spared, "2", "2").await?;
        after.register(client).await?;
        all_refuse(&after, spared, "ID005").await?;
    }
    Ok(())
}
