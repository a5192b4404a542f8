//! Leases on a hot standby, and after its promotion.

use anyhow::{Context, Result, ensure};
use idempotence_cluster_tests::shop::{self, DATABASE};
use idempotence_cluster_tests::{Connection, Version};

/// Begins a request with a lease. Returns its token.
async fn lease(connection: &Connection, key: &str, length: &str) -> Result<i64> {
    let begin = format!("SELECT token FROM idem_begin('jobs', '{key}', wait => '1 min', lease => '{length}')");
    let token = connection.text(&begin).await?;
    token.parse().with_context(|| format!("request {key} has the token {token:?}"))
}

fn record(key: &str, token: i64) -> String {
    format!("SELECT FROM idem_record('jobs', '{key}', '{token}', token => {token})")
}

/// Checks that this token completes nothing.
async fn is_refused(connection: &Connection, key: &str, token: i64) -> Result<()> {
    for call in [
        record(key, token),
        format!("SELECT idem_extend('jobs', '{key}', {token}, '1 min')"),
        format!("SELECT idem_checkpoint('jobs', '{key}', 'p', token => {token})"),
        format!("SELECT idem_release('jobs', '{key}', token => {token})"),
    ] {
        let state = connection.sqlstate(&call).await?;
        ensure!(state == "ID005", "{call} gives {state}");
    }
    Ok(())
}

// Goal: a promoted standby keeps each claim that it received: who has a lease goes on, and others wait for its end.
// Method: a lease that lives on, one that soon runs out and one that has run out; what the standby shows of them,
// then the promotion.
pub async fn a_promoted_standby_keeps_the_claims_that_it_received(version: Version) -> Result<()> {
    let primary = shop::start_preloaded(version)?;
    primary.psql(DATABASE, "SELECT idem_create_session('jobs')")?;
    let standby = primary.standby()?;
    let on_primary = primary.connect(DATABASE).await?;
    let out = lease(&on_primary, "out", "10 ms").await?;
    on_primary.text(&format!("SELECT idem_checkpoint('jobs', 'out', 'half', '7', token => {out})")).await?;
    let (brief, live) = (lease(&on_primary, "brief", "3 s").await?, lease(&on_primary, "live", "10 min").await?);
    standby.catch_up_with(&primary)?;

    let on_standby = standby.connect(DATABASE).await?;
    let kept =
        "SELECT request, state, attempt, point FROM idempotence.unfinished WHERE request <> 'brief' ORDER BY request";
    ensure!(on_standby.text(kept).await? == "live|leased|1|\nout|run out|1|half");
    for key in ["live", "out"] {
        ensure!(on_standby.lookup("jobs", key).await? == "in_progress", "{key}");
        let begin = format!("SELECT FROM idem_begin('jobs', '{key}', lease => '1 min')");
        ensure!(on_standby.sqlstate(&begin).await? == "25006", "{key}");
        ensure!(on_standby.sqlstate(&format!("SELECT FROM idem_settle('jobs', '{key}')")).await? == "25006", "{key}");
    }
    ensure!(on_standby.sqlstate(&record("live", live)).await? == "25006");

    primary.kill9()?;
    standby.promote()?;
    let begin = async |key: &str, wait: &str| {
        let begin = format!(
            "SELECT status, attempt, point, token > {live}
               FROM idem_begin('jobs', '{key}', wait => '{wait}', lease => '1 min')"
        );
        on_standby.text(&begin).await
    };
    ensure!(begin("live", "0").await? == "in_progress|||");
    let until =
        "SELECT t.expires_at = u.leased_until FROM idem_begin('jobs', 'live', wait => '0') t, idempotence.unfinished u
                  WHERE u.request = 'live'";
    ensure!(on_standby.text(until).await? == "t");
    ensure!(begin("out", "0").await? == "taken_over|2|half|t");
    ensure!(begin("brief", "1 min").await? == "taken_over|2||t");
    is_refused(&on_standby, "out", out).await?;
    is_refused(&on_standby, "brief", brief).await?;
    on_standby.text(&record("live", live)).await?;
    ensure!(on_standby.replay("jobs", "live").await? == format!("succeeded|{live}"));
    Ok(())
}

// Goal: a claim whose commit a failover lost completes nothing, and the claim before it counts again.
// Method: the primary hands out claims after the standby has been cut off. Then the standby is promoted.
pub async fn tokens_that_a_failover_lost_complete_nothing(version: Version) -> Result<()> {
    let primary = shop::start(version)?;
    primary.psql(DATABASE, "SELECT idem_create_session('jobs')")?;
    let standby = primary.standby()?;
    let on_primary = primary.connect(DATABASE).await?;
    let (taken, released) =
        (lease(&on_primary, "taken", "10 ms").await?, lease(&on_primary, "released", "1 min").await?);
    let goes_on = lease(&on_primary, "goes on", "10 ms").await?;
    standby.catch_up_with(&primary)?;
    standby.stop_fast()?;

    let lost = [
        ("new", lease(&on_primary, "new", "1 min").await?),
        ("taken", lease(&on_primary, "taken", "1 min").await?),
        ("goes on", lease(&on_primary, "goes on", "1 min").await?),
    ];
    on_primary.text(&format!("SELECT idem_release('jobs', 'released', token => {released})")).await?;
    is_refused(&on_primary, "taken", taken).await?;
    primary.kill9()?;
    standby.start()?;
    standby.promote()?;

    let after = standby.connect(DATABASE).await?;
    for (key, token) in lost {
        is_refused(&after, key, token).await?;
    }
    ensure!(after.text("SELECT status FROM idem_begin('jobs', 'released', wait => '0')").await? == "in_progress");
    after.text(&record("released", released)).await?;
    // Nobody has challenged it here.
    after.text(&record("goes on", goes_on)).await?;
    let newer = lease(&after, "taken", "1 min").await?;
    ensure!(newer > lost[1].1, "token {newer} follows {lost:?}");
    is_refused(&after, "taken", taken).await?;
    is_refused(&after, "taken", lost[1].1).await?;
    after.text(&record("taken", newer)).await?;
    ensure!(
        after.text("SELECT status, attempt FROM idem_begin('jobs', 'new', lease => '1 min')").await? == "started|1"
    );
    is_refused(&after, "new", lost[0].1).await
}
