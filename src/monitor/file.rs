//! The file that keeps the counters while the server is down. The postmaster writes it when it ends in good order, and
//! reads and removes it when it starts. If the file cannot be written or read, the server starts and stops all the same,
//! and the counters begin anew.

use crate::monitor::tallies::Tally;
use pgrx::log;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;

/// Below the data directory, where PostgreSQL keeps its own statistics.
const FILE: &str = "pg_stat/idempotence.json";
const BEING_WRITTEN: &str = "pg_stat/idempotence.json.tmp";

/// The number of the file's form. A file of another form is not read.
const FORM: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    form: u32,
    tallies: Vec<Tally>,
}

/// Writes the counters.
pub fn write(tallies: Vec<Tally>) {
    let written = serde_json::to_vec(&File { form: FORM, tallies }).map_err(io::Error::from).and_then(|bytes| {
        fs::write(BEING_WRITTEN, bytes)?;
        fs::rename(BEING_WRITTEN, FILE)
    });
    if let Err(error) = written {
        log!("could not write \"{FILE}\", the counters of idempotence begin anew: {error}");
    }
}

/// The counters that were written, which are read once.
pub fn read() -> Vec<Tally> {
    let bytes = match fs::read(FILE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            log!("could not read \"{FILE}\", the counters of idempotence begin anew: {error}");
            return Vec::new();
        }
    };
    // Counters that were read are not read again after a crash.
    if let Err(error) = fs::remove_file(FILE) {
        log!("could not remove \"{FILE}\": {error}");
    }
    match serde_json::from_slice::<File>(&bytes) {
        Ok(File { form: FORM, tallies }) => return tallies,
        Ok(File { form, .. }) => {
            log!("did not read \"{FILE}\", the counters of idempotence begin anew: it has form {form}, and not {FORM}");
        }
        Err(error) => log!("could not read \"{FILE}\", the counters of idempotence begin anew: {error}"),
    }
    Vec::new()
}
