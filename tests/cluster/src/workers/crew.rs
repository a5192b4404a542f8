//! What the workers have in common.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::journal::Journal;
use super::tally::Tally;
use crate::cluster::Cluster;
use crate::load::lock;

/// What the workers need in the database. The index is for the long form.
const SETUP: &str = "
    SELECT idem_create_session('jobs');
    CREATE TABLE effect (request int NOT NULL, token bigint, worker int NOT NULL);
    CREATE INDEX ON effect (request)";

/// The workers.
pub struct Workers<'a> {
    /// The server that new connections go to.
    pub(super) cluster: Mutex<&'a Cluster>,
    pub(super) database: &'a str,
    pub(super) requests: usize,
    pub(super) open: Mutex<BTreeSet<usize>>,
    pub(super) journal: Mutex<Journal>,
    /// What the workers met with.
    pub tally: Tally,
    /// Set as soon as claims may have got lost in a crash, since they are unlogged.
    pub loses_claims: AtomicBool,
}

impl<'a> Workers<'a> {
    /// Makes room for the workers in a database that has the extension.
    pub fn new(cluster: &'a Cluster, database: &'a str, requests: usize) -> Result<Self> {
        cluster.psql(database, SETUP)?;
        Ok(Self {
            cluster: Mutex::new(cluster),
            database,
            requests,
            open: Mutex::new((0..requests).collect()),
            journal: Mutex::default(),
            tally: Tally::default(),
            loses_claims: AtomicBool::new(false),
        })
    }

    /// Sends all further connections to another server.
    pub fn move_to(&self, cluster: &'a Cluster) {
        *lock(&self.cluster) = cluster;
    }
}
