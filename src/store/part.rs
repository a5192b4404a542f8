//! A table looked through in parts, each in a transaction of its own, so that no step of the sweep takes
//! long however large the table is. What moves behind the place that was come to is met the next time.

use crate::domain::identity::SessionId;
use crate::error::Error;
use crate::store::cache::Table;
use crate::store::rel::{Access, Rel};
use crate::store::sql;
use pgrx::datum::{DatumWithOid, Uuid};
use std::fmt;

/// The pages of a part: 2 MB, some ten thousand rows.
const PAGES: u32 = 256;

/// A place between two rows of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    page: u32,
    item: u16,
}

impl Place {
    /// Before the first row.
    pub const START: Place = Place { page: 0, item: 0 };

    /// As it is kept in a table.
    pub fn number(self) -> i64 {
        i64::from(self.page) << 16 | i64::from(self.item)
    }

    /// From [`Place::number`].
    pub fn of_number(number: i64) -> Place {
        Place { page: (number >> 16) as u32, item: number as u16 }
    }

    /// Behind the row that SQL calls by this `ctid`.
    fn behind(ctid: &str) -> Option<Place> {
        let (page, item) = ctid.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Place { page: page.parse().ok()?, item: item.parse().ok()? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.page, self.item)
    }
}

/// What was found.
pub struct Part {
    /// The rows' ids.
    pub ids: Vec<SessionId>,
    /// Where to go on; `None` at the end of the table.
    pub next: Option<Place>,
}

/// Finds rows of which a condition on `t` holds, at most `limit`, from a place on. The condition's
/// arguments count from $2.
pub fn find(
    table: Table,
    id: &str,
    from: Place,
    limit: usize,
    condition: &str,
    arguments: Vec<DatumWithOid<'_>>,
) -> Result<Part, Error> {
    let pages = Rel::open(table, Access::Read).pages();
    let end = Place { page: from.page.saturating_add(PAGES), item: 0 };
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
    let next = match rows.last().and_then(|(_, ctid)| Place::behind(ctid)) {
        Some(last) if rows.len() >= limit => Some(last),
        _ => (end.page < pages).then_some(end),
    };
    Ok(Part { ids: rows.iter().map(|(id, _)| *id.as_bytes()).collect(), next })
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_the_same_as_number_and_as_text() {
        let place = Place::behind("(4294967294,291)").expect("a ctid");
        assert_eq!(Place::of_number(place.number()), place);
        assert_eq!(place.to_string(), "(4294967294,291)");
        assert_eq!(Place::of_number(Place::START.number()), Place::START);
        assert_eq!(Place::behind("(1)"), None);
    }
}
