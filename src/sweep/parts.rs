//! The result of a step of the sweep, and the look of a step through a table in parts.
//!
//! A step looks through a table in parts, each in a transaction of its own, so that no transaction of the sweep takes
//! long, however large the table is. A row that moves to a place which was already looked at is met by the next
//! look.

use crate::domain::cursor::Cursor;
use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use pgrx::datum::{DatumWithOid, Uuid};

/// The result of one transaction of a step.
#[derive(Default)]
pub struct Progress {
    /// What was done, in words, for notices and the log.
    pub done: Vec<String>,
    /// What could not be done yet, and who is in the way, in words.
    pub delayed: Vec<String>,
    /// Whether the step has more to do.
    pub more: bool,
}

impl Progress {
    /// The result of a step that counts what it does. Where the count is 0 nothing is said.
    pub fn counted(count: usize, what: &str, more: bool) -> Progress {
        let done = if count > 0 { vec![format!("{what}: {count}")] } else { Vec::new() };
        Progress { done, delayed: Vec::new(), more }
    }

    /// Notes what cannot be done yet, since somebody has a lock. The query names who that is.
    pub fn delay(&mut self, what: &str, query: &str) -> Result<(), Error> {
        let by = match sql::first::<String>(query)? {
            Some(holders) => format!("held by {holders}"),
            None => "whoever held it has just let go".into(),
        };
        self.delayed.push(format!("{what} yet: {by}"));
        Ok(())
    }
}

/// The number of pages in a part: 2 MB, some ten thousand rows.
const PAGES: u32 = 256;

/// With how many rows of a part something was done, and where to go on. `None`: the table ends here.
pub type Done = Result<(usize, Option<Cursor>), Error>;

/// Finds, from a place on, at most `limit` rows that meet a condition. The condition calls the row `t`, and its
/// arguments are $2 and up. Gives the value of the `id` column of each row found, a session's id or a digest; and where to go on.
pub fn find(
    table: Table,
    id: &str,
    from: Cursor,
    limit: usize,
    condition: &str,
    arguments: Vec<DatumWithOid<'_>>,
) -> Result<(Vec<SessionId>, Option<Cursor>), Error> {
    let pages = Rel::open(table, Access::Read).pages();
    let end = Cursor { page: from.page.saturating_add(PAGES), item: 0 };
    let query = format!(
        "SELECT t.{id}, t.ctid::pg_catalog.text FROM idempotence.{} t
         WHERE t.ctid OPERATOR(pg_catalog.>) '{from}'::pg_catalog.tid AND t.ctid OPERATOR(pg_catalog.<) '{end}'::pg_catalog.tid
           AND ({condition})
         ORDER BY t.ctid LIMIT $1",
        table.name()
    );
    let all: Vec<_> = [(limit as i64).into()].into_iter().chain(arguments).collect();
    let rows = sql::pairs::<Uuid, String>(&query, &all)?;
    let next = match rows.last().and_then(|(_, ctid)| Cursor::behind(ctid)) {
        Some(last) if rows.len() >= limit => Some(last),
        _ => (end.page < pages).then_some(end),
    };
    Ok((rows.iter().map(|(id, _)| *id.as_bytes()).collect(), next))
}
