//! A session that had ended before a crash stays ended after it.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::shop::{DATABASE, start};
use idempotence_cluster_tests::{Cluster, Version};

use super::killing::{EITHER, all_refuse, crash};

// Goal: a registration that arrives late, after a crash and after the client has registered anew, fences
// nobody.
// Method: the first session is unused when the crash comes. Request ids with a time in them and without; the
// newer session is registered with an id of the same kind, with an id of the other kind, and without an id.
pub async fn a_late_registration_of_a_lost_session_fences_no_newer_one(version: Version) -> Result<()> {
    const IDS: [&str; 3] = ["idem_generate_id()", "gen_random_uuid()", "NULL"];
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut late = Vec::new();
        for first in &IDS[..2] {
            for newer in IDS {
                let client = format!("c {first} {newer} {killed:?}");
                let id = before.text(&format!("SELECT {first}")).await?;
                let registration = format!("client => '{client}', request_id => '{id}'");
                let session = before.register(&registration).await?;
                late.push((client, registration, newer, session));
            }
        }
        let after = crash(&server, killed).await?;
        for (client, registration, newer, lost) in &late {
            let session = after.register(&format!("client => '{client}', request_id => {newer}")).await?;
            let state = after.sqlstate(&format!("SELECT FROM idem_register({registration})")).await?;
            ensure!(state == "ID005", "{client}: the late registration gives {state}");
            after.execute(&session, "1", "1").await?;
            let former = after.answer(lost, "1").await?;
            ensure!(["ID004", "ID005"].contains(&former.as_str()), "{client}: the former session answers {former}");
        }
    }
    Ok(())
}

// Goal: no crash brings back a session that had ended.
// Method: closed and expired sessions, with an outcome and without; two crashes, because the second also
// follows a recovery.
pub async fn an_ended_session_stays_ended_through_crashes(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let id = before.text("SELECT gen_random_uuid()").await?;
        let closed = before.register("").await?;
        before.execute(&closed, "1", "1").await?;
        let closed_unused = before.register(&format!("request_id => '{id}'")).await?;
        let client = format!("client => 'c {killed:?}', timeout => '2 s'");
        let expired = before.register(&client).await?;
        before.execute(&expired, "1", "1").await?;
        for session in [&closed, &closed_unused] {
            ensure!(before.text(&format!("SELECT idem_close('{session}')")).await? == "t");
        }
        before.silence(&expired).await?;
        // This registration finds the expired session past its end.
        before.register(&client).await?;
        // An end that is not committed is no end.
        let spared = before.register("").await?;
        before.execute(&spared, "1", "1").await?;
        ensure!(before.text(&format!("BEGIN; SELECT idem_close('{spared}')")).await? == "t");

        for _ in 0..2 {
            let after = crash(&server, killed).await?;
            for session in [&closed, &expired] {
                all_refuse(&after, session, "ID004").await?;
                ensure!(after.lookup(session, "1").await? == "succeeded", "its owner is not answered any more");
            }
            all_refuse(&after, &closed_unused, "ID004").await?;
            let again = after.sqlstate(&format!("SELECT FROM idem_register(request_id => '{id}')")).await?;
            ensure!(again == "ID004", "the registration of the ended session, sent again: {again}");
            ensure!(after.replay(&spared, "1").await? == "succeeded|1");
        }
    }
    Ok(())
}

// Goal: a fenced session stays fenced through any crash, and the session that fenced it stays usable.
// Method: fenced sessions with an outcome and without; after each crash the registration of a fenced session
// arrives late.
pub async fn a_fenced_session_stays_fenced_through_crashes(version: Version) -> Result<()> {
    let server = start(version)?;
    for killed in EITHER {
        let before = server.reconnect(DATABASE).await?;
        let mut trios = Vec::new();
        for recorded in [true, false] {
            let (first, second) = (before.text("SELECT idem_generate_id()").await?, format!("{recorded} {killed:?}"));
            let client = format!("client => 'c {second}'");
            let late = format!("{client}, request_id => '{first}'");
            let former = before.register(&late).await?;
            if recorded {
                before.execute(&former, "1", "1").await?;
            }
            let current = before.register(&client).await?;
            before.execute(&current, "1", "1").await?;
            trios.push((former, current, late, client));
        }
        for round in 2..4 {
            let after = crash(&server, killed).await?;
            for (former, current, late, _) in &trios {
                all_refuse(&after, former, "ID005").await?;
                let state = after.sqlstate(&format!("SELECT FROM idem_register({late})")).await?;
                ensure!(state == "ID005", "the late registration of a fenced session gives {state}");
                after.execute(current, &round.to_string(), "1").await?;
            }
        }
        // A fenced session without an outcome stays fenced even if the session that fenced it is gone as
        // well.
        let mut fenced = Vec::new();
        for (_, current, _, client) in &trios {
            let unsaved = before_last(&server, client, &mut fenced, current).await?;
            fenced.push((unsaved, "ID004"));
        }
        let after = crash(&server, killed).await?;
        for (session, state) in &fenced {
            all_refuse(&after, session, state).await?;
        }
        for (_, _, late, client) in &trios {
            after.register(client).await?;
            ensure!(after.sqlstate(&format!("SELECT FROM idem_register({late})")).await? == "ID005");
        }
    }
    Ok(())
}

/// Fences `current` with a session, and this session with another. Returns the newest session, which has no
/// outcome.
async fn before_last(
    server: &Cluster,
    client: &str,
    fenced: &mut Vec<(String, &'static str)>,
    current: &str,
) -> Result<String> {
    let connection = server.reconnect(DATABASE).await?;
    let next = connection.register(client).await?;
    let newest = connection.register(client).await?;
    fenced.extend([(current.to_owned(), "ID005"), (next, "ID005")]);
    Ok(newest)
}
