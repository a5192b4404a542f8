//! Which sessions a crash voids, and which sessions it does not.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::Version;
use idempotence_cluster_tests::shop::{DATABASE, start};

use super::killing::{EITHER, all_refuse, crash};

// Goal: a crash voids exactly the sessions without an outcome. Such a session is gone, and each call says so.
// Method: a session that was registered, that was used in every way that records nothing, and that is in use
// when the crash comes.
pub async fn a_session_without_an_outcome_is_gone_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let id = before.text("SELECT idem_generate_id()").await?;
        let client = format!("client => 'c {killed:?}', request_id => '{id}'");
        let session = before.register(&client).await?;
        before
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT FROM idem_record('{session}', 1); ROLLBACK;
                 BEGIN; SELECT FROM idem_begin('{session}', 1); SELECT idem_release('{session}', 1); COMMIT;
                 SELECT idem_heartbeat('{session}');
                 BEGIN; SELECT FROM idem_begin('{session}', 2); SELECT FROM idem_record('{session}', 2)"
            ))
            .await?;

        let after = crash(&server, killed).await?;
        all_refuse(&after, &session, "ID004").await?;
        let lookup = after.sqlstate(&format!("SELECT FROM idem_lookup('{session}', 1)")).await?;
        ensure!(lookup == "ID004", "looked up: {lookup}");
        // The client of the session starts over.
        let again = after.text(&format!("SELECT resumed, next_number, session FROM idem_register({client})")).await?;
        let again = again.strip_prefix("f|1|").with_context(|| format!("registered anew: {again}"))?;
        ensure!(again != session, "a session came back");
        after.execute(again, "1", "1").await?;
    }
    Ok(())
}

// Goal: a session with an outcome loses nothing in a crash: its answers, its past numbers and its place stay.
// Method: sessions of both orders, with numbers that are kept, overwritten, acknowledged and half done; the
// answers must be the same after the crash.
pub async fn a_session_with_an_outcome_goes_on_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        before.text("CHECKPOINT").await?;
        let any = before.register("window_size => 3").await?;
        for number in 1..=6 {
            before.execute(&any, &number.to_string(), &number.to_string()).await?;
        }
        before.text(&format!("SELECT idem_ack('{any}', 4)")).await?;
        before
            .text(&format!(
                "BEGIN; SELECT FROM idem_begin('{any}', 7, payload => '1'); SELECT idem_checkpoint('{any}', 7, 'p', '2'); COMMIT;
                 BEGIN; SELECT FROM idem_begin('{any}', 8); SELECT FROM idem_record('{any}', 8)"
            ))
            .await?;
        let other = server.reconnect(DATABASE).await?;
        let strict = other.register("window_size => 2, ordering => 'strict'").await?;
        for (first, last) in [(1, 3), (4, 4), (5, 9)] {
            other.execute_range(&strict, first, last, &first.to_string()).await?;
        }

        let after = crash(&server, killed).await?;
        for (session, request, wanted) in [
            (&any, "5", "succeeded|5"),
            (&any, "6", "succeeded|6"),
            (&any, "4", "ID003"),
            (&any, "1", "ID003"),
            (&any, "11", "ID006"),
            (&any, "7, payload => '3'", "ID001"),
            (&any, "7", "started|"),
            (&any, "8", "started|"),
            (&strict, "5, last => 9", "succeeded|5"),
            (&strict, "4", "succeeded|4"),
            (&strict, "1, last => 3", "ID003"),
            (&strict, "9, last => 10", "ID006"),
            (&strict, "11", "ID006"),
            (&strict, "10, last => 12", "started|"),
        ] {
            let answer = after.answer(session, request).await?;
            ensure!(answer == wanted, "{killed:?}: begin {request} gives {answer} instead of {wanted}");
        }
        let point = format!("BEGIN; SELECT point, state FROM idem_begin('{any}', 7, payload => '1'); ROLLBACK");
        ensure!(after.text(&point).await? == "p|2");
        after.execute(&any, "7", "7").await?;
        after.execute(&any, "8", "8").await?;
        after.execute_range(&strict, 10, 12, "10").await?;
        ensure!(after.text(&format!("SELECT * FROM idem_position('{any}')")).await? == "8|9|4|0");
        ensure!(after.text(&format!("SELECT * FROM idem_position('{strict}')")).await? == "12|13|0|0");
        ensure!(after.text(&format!("SELECT idem_close('{any}'), idem_close('{strict}')")).await? == "t|t");
    }
    Ok(())
}

// Goal: a session becomes durable without an outcome too, as soon as it has promised anything to its client.
// Method: the first call of each session is a checkpoint, an acknowledgement, an allocation or a failed
// outcome; then a crash.
pub async fn whatever_saves_a_session_lets_it_go_on_after_a_crash(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut sessions = Vec::new();
        for saving in [
            "BEGIN; SELECT FROM idem_begin('$', 1); SELECT idem_checkpoint('$', 1, 'p'); COMMIT",
            "SELECT idem_ack('$', 1, 'elsewhere')",
            "SELECT idem_allocate('$', 1, 'elsewhere')",
            "BEGIN; SELECT FROM idem_begin('$', 1, stream => 'elsewhere'); SELECT FROM idem_record('$', 1, stream => 'elsewhere', failed => true); COMMIT",
        ] {
            let session = before.register("").await?;
            before.text(&saving.replace('$', &session)).await?;
            sessions.push(session);
        }
        let after = crash(&server, killed).await?;
        for session in &sessions {
            after.text(&format!("SELECT idem_heartbeat('{session}')")).await?;
            after.execute(session, "1", "1").await?;
        }
        let [_, acked, allocated, recorded] = &sessions[..] else { unreachable!() };
        ensure!(after.answer(acked, "1, stream => 'elsewhere'").await? == "ID003");
        ensure!(after.text(&format!("SELECT idem_allocate('{allocated}', 1, 'elsewhere')")).await? == "2");
        ensure!(after.answer(recorded, "1, stream => 'elsewhere'").await? == "failed|");
    }
    Ok(())
}
