//! Crashes at each moment of a commit.

use anyhow::{Result, ensure};
use idempotence_cluster_tests::crashes::is_disconnected;
use idempotence_cluster_tests::elsewhere::Elsewhere;
use idempotence_cluster_tests::shop::{DATABASE, start_with};
use idempotence_cluster_tests::{Cluster, Connection, Version};

use super::programs::{Keeps, Sessions, create};

/// The moments that separate the two commits, and all moments.
const APART: [&str; 2] = ["between", "after"];
const MOMENTS: [&str; 4] = ["before", "between", "after", "done"];

/// A server, and the module.
struct Place {
    server: Cluster,
    elsewhere: Elsewhere,
    sessions: Sessions,
    requests: usize,
}

impl Place {
    /// Starts a server that preloads these libraries; `#` stands for the module.
    async fn start(version: Version, two_phases: bool, preloaded: &str) -> Result<Self> {
        let elsewhere = Elsewhere::build(version, two_phases)?;
        let preloaded = preloaded.replace('#', &elsewhere.library());
        let server = start_with(version, &[("shared_preload_libraries", &preloaded)])?;
        elsewhere.create_function(&server, DATABASE)?;
        let sessions = create(&server).await?;
        Ok(Self { server, elsewhere, sessions, requests: 0 })
    }

    async fn connect(&self) -> Result<Connection> {
        let connection = self.server.reconnect(DATABASE).await?;
        connection.text(&format!("SET elsewhere.file = '{}'", self.elsewhere.file())).await?;
        // From here on the library is loaded, and has looked for a coordinator.
        connection.text("SELECT FROM idem_run('payments', 'looks', 'SELECT 1')").await?;
        Ok(connection)
    }

    /// Attempts a new request, dies at this moment of its commit, and attempts it again until it is answered. Returns
    /// how often its effect has happened.
    async fn dies_at(&mut self, moment: &str, keeps: Keeps, settings: &str) -> Result<usize> {
        self.requests += 1;
        let (number, effect) = (self.requests, format!("{keeps:?} {}", self.requests));
        let (witness, dying) = (self.connect().await?, self.connect().await?);
        dying.text(&format!("SET elsewhere.dies = '{moment}'; {settings}")).await?;
        match self.sessions.attempt(&dying, keeps, number, &effect).await {
            Err(error) if is_disconnected(&error) => {}
            other => anyhow::bail!("{effect} was to die {moment}, but: {other:?}"),
        }
        // The server has noticed the death when it ends this connection, too.
        witness.wait_for_end().await?;
        let retrying = self.connect().await?;
        retrying.text(settings).await?;
        for _ in 0..2 {
            self.sessions.attempt(&retrying, keeps, number, &effect).await?;
        }
        self.elsewhere.times(&retrying, &effect).await
    }
}

// Goal: wherever the server dies, an effect elsewhere and what was written here about it are both there or both not.
// Method: the process kills itself at each moment of its commit, with each thing that a transaction can write here. The
// module is preloaded before ours and after ours, or is loaded by the transaction itself.
async fn each_order(version: Version, preloaded: &str) -> Result<()> {
    let mut place = Place::start(version, true, preloaded).await?;
    for keeps in Keeps::ALL {
        let moments = if keeps == Keeps::Outcome { &MOMENTS[..] } else { &APART[..] };
        for moment in moments {
            let times = place.dies_at(moment, keeps, "").await?;
            ensure!(times == 1, "preloading {preloaded:?}, killed {moment}, {keeps:?}: {times} effects");
        }
    }
    Ok(())
}

pub async fn an_effect_elsewhere_happens_once_wherever_the_commit_dies(version: Version) -> Result<()> {
    for preloaded in ["#,idempotence", "idempotence,#", "idempotence", ""] {
        each_order(version, preloaded).await?;
    }
    Ok(())
}

// Goal: the two-phase commit is what keeps them together: without it a crash between the commits doubles the effect.
// Method: the same crash, where the setting is off, and where the module cannot be asked.
pub async fn without_two_phases_a_crash_between_the_commits_doubles_the_effect(version: Version) -> Result<()> {
    let mut able = Place::start(version, true, "#,idempotence").await?;
    let times = able.dies_at("between", Keeps::Outcome, "SET idempotence.coordinate = off").await?;
    ensure!(times == 2, "with the setting off: {times} effects");
    let times = able.dies_at("between", Keeps::Outcome, "").await?;
    ensure!(times == 1, "with the setting on: {times} effects");
    let mut unable = Place::start(version, false, "#,idempotence").await?;
    let times = unable.dies_at("between", Keeps::Outcome, "").await?;
    ensure!(times == 2, "where nobody can be asked: {times} effects");
    Ok(())
}
