//! A table looked through in parts, each in a transaction of its own, so that no step of the sweep takes
//! long however large the table is. What moves behind the place that was come to is met the next time.

use crate::domain::cursor::Cursor;
use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::store::catalog::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use pgrx::datum::{DatumWithOid, Uuid};

/// The pages of a part: 2 MB, some ten thousand rows.
const PAGES: u32 = 256;

/// What was found.
pub struct Part {
    /// The rows' ids.
    pub ids: Vec<SessionId>,
    /// Where to go on; `None` at the end of the table.
    pub next: Option<Cursor>,
}

/// Finds rows of which a condition on `t` holds, at most `limit`, from a place on. The condition's
/// arguments count from $2.
pub fn find(
    table: Table,
    id: &str,
    from: Cursor,
    limit: usize,
    condition: &str,
    arguments: Vec<DatumWithOid<'_>>,
) -> Result<Part, Error> {
    let pages = Rel::open(table, Access::Read).pages();
    let end = Cursor { page: from.page.saturating_add(PAGES), item: 0 };
    let query = format!(
        "SELECT t.{id}, t.ctid::pg_catalog.text FROM idempotence.{} t
         WHERE t.ctid OPERATOR(pg_catalog.>) '{from}'::pg_catalog.tid AND t.ctid OPERATOR(pg_catalog.<) '{end}'::pg_catalog.tid
           AND ({condition})
         ORDER BY t.ctid LIMIT $1",
        table.name()
    );
    let mut all: Vec<DatumWithOid<'_>> = vec![(limit as i64).into()];
    all.extend(arguments);
    let rows = sql::pairs::<Uuid, String>(&query, &all)?;
    let next = match rows.last().and_then(|(_, ctid)| Cursor::behind(ctid)) {
        Some(last) if rows.len() >= limit => Some(last),
        _ => (end.page < pages).then_some(end),
    };
    Ok(Part { ids: rows.iter().map(|(id, _)| *id.as_bytes()).collect(), next })
}
