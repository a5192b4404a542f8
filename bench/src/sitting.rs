//! A full run takes hours. What each row adds to the page is kept, so that a run that was cut off goes on in another
//! sitting.

use std::fs;
use std::io;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::page::Part;

/// Where the parts are kept, relative to the checkout.
const DIRECTORY: &str = "target/bench";
/// The file that tells what was measured, so that only equal things come into one page.
const SUBJECT: &str = "subject";

/// The parts of a run's page that have been measured.
pub struct Sitting {
    directory: PathBuf,
}

impl Sitting {
    /// Begins a run of this subject, or goes on with one.
    pub fn open(resume: bool, subject: &str) -> Result<Self> {
        let directory = PathBuf::from(DIRECTORY);
        if resume {
            if found(fs::read_to_string(directory.join(SUBJECT)))?.is_none_or(|kept| kept != subject) {
                bail!("there is no run of this build with these options to go on with: leave out --resume");
            }
        } else {
            found(fs::remove_dir_all(&directory))?;
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(SUBJECT), subject)?;
        }
        Ok(Self { directory })
    }

    /// The part of a row that has been measured.
    pub fn measured(&self, row: &str) -> Result<Option<Part>> {
        let Some(summary) = found(fs::read_to_string(self.summary(row)))? else { return Ok(None) };
        let section = fs::read_to_string(self.section(row)).with_context(|| format!("the section of {row}"))?;
        Ok(Some(Part { summary, section }))
    }

    /// Keeps the part of a row. The summary comes last: where it is, the section is.
    pub fn keep(&self, row: &str, part: &Part) -> Result<()> {
        fs::write(self.section(row), &part.section)?;
        fs::write(self.summary(row), &part.summary)?;
        Ok(())
    }

    fn summary(&self, row: &str) -> PathBuf {
        self.directory.join(format!("{row}.summary.md"))
    }

    fn section(&self, row: &str) -> PathBuf {
        self.directory.join(format!("{row}.section.md"))
    }
}

/// What was read, if there was something.
fn found<T>(result: io::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
