//! Runbooks of `docs/operations.md`: a test types what the page says, as the role that the page says, and looks at what
//! the page promises.

use std::fs;
use std::vec::IntoIter;

use anyhow::{Context, Result, ensure};
use idempotence_demo::host::run;
use idempotence_demo::server::{SUPERUSER, Server};

use crate::limits::LIMIT;

/// The blocks of commands below a heading that were not typed yet.
pub struct Runbook(IntoIter<(String, String)>);

impl Runbook {
    /// The blocks below this heading, which is given with its `#`, up to the next one.
    pub fn of(heading: &str) -> Result<Self> {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md"))?;
        let missing = || format!("the page has no section {heading:?}");
        let section = page.split_once(&format!("\n{heading}\n")).with_context(missing)?.1;
        let section = section.split("\n## ").next().unwrap_or(section);
        let section = section.split("\n### ").next().unwrap_or(section);
        let parts: Vec<&str> = section.split("```").collect();
        let block = |part: &&str| part.split_once('\n').map(|(kind, text)| (kind.trim().to_owned(), text.to_owned()));
        let blocks = parts.iter().skip(1).step_by(2).map(|part| block(part).context("a block has no end"));
        Ok(Self(blocks.collect::<Result<Vec<_>>>()?.into_iter()))
    }

    /// What the next block says, which is written in this language.
    pub fn next(&mut self, kind: &str) -> Result<String> {
        let (found, text) = self.0.next().context("a block is missing")?;
        ensure!(found == kind, "the block is of {found}, and not of {kind}: {text}");
        Ok(text)
    }

    /// Types the next block of SQL, as the role that its first line names (`-- as on_call`), else as a superuser. Gives what
    /// is shown.
    pub fn sql(&mut self, server: &Server, database: &str) -> Result<String> {
        self.sql_with(server, database, &[])
    }

    /// The same, where the page has examples, such as the number of a process, that are different here.
    pub fn sql_with(&mut self, server: &Server, database: &str, here: &[(&str, &str)]) -> Result<String> {
        let mut text = self.next("sql")?;
        for (example, here) in here {
            ensure!(text.contains(example), "the block has no {example:?}: {text}");
            text = text.replace(example, here);
        }
        let role = text.lines().next().and_then(|line| line.trim().strip_prefix("-- as ")).unwrap_or(SUPERUSER);
        server.psql_as(database, role, &text).with_context(|| text.clone())
    }

    /// Types the next block for a shell in the server's directory, as a superuser who reaches the server by default.
    pub fn sh(&mut self, server: &Server) -> Result<String> {
        let text = self.next("sh")?;
        let (home, port) = (server.home().display(), server.addr().port());
        let script = format!(
            "set -e; cd '{home}'; export PATH='{}':$PATH PGHOST='{home}' PGPORT={port} PGUSER={SUPERUSER}\n{text}",
            server.path_of("").display()
        );
        run(server.program("/bin/sh").arg("-c").arg(script), None, LIMIT).context(text)
    }

    /// The end: each block was typed.
    pub fn end(mut self) -> Result<()> {
        let left = self.0.next();
        ensure!(left.is_none(), "the page has a block that is not tried: {left:?}");
        Ok(())
    }
}
