//! The list of all rows.

mod batch;
mod calls;
mod lease;
mod pipeline;
mod replay;
mod request;
mod sessions;

use anyhow::{Result, bail};

use crate::field::{self, FIELD};
use crate::growth::{self, CONNECTIONS, GROWTH};
use crate::held::{self, HELD};
use crate::instructions::{self, INSTRUCTIONS};
use crate::life::{self, LIFE};
use crate::ring::{self, RING};
use crate::row::Row;
use crate::slots::{self, SLOTS};
use crate::wake::{self, WAKE};
use crate::wal::{self, WAL};

/// The ids of all rows, in the order of the page.
pub const IDS: [&str; 20] = [
    INSTRUCTIONS,
    "request",
    WAL,
    LIFE,
    "pipeline",
    "replay",
    "run",
    "procedure",
    "once",
    "lease",
    WAKE,
    "numbered",
    "heartbeat",
    "register",
    SLOTS,
    HELD,
    RING,
    GROWTH,
    CONNECTIONS,
    FIELD,
];

/// The rows with these ids, in the order of the page.
pub fn chosen(ids: &[String]) -> Result<Vec<Row>> {
    if let Some(unknown) = ids.iter().find(|id| !IDS.contains(&id.as_str())) {
        bail!("there is no row {unknown}; there are {}", IDS.join(", "));
    }
    Ok(all().into_iter().filter(|row| ids.iter().any(|id| id == row.id)).collect())
}

/// All rows, in the order of the page.
pub fn all() -> Vec<Row> {
    vec![
        instructions::row(),
        request::row(),
        wal::row(),
        life::row(),
        pipeline::row(),
        replay::row(),
        calls::run(),
        calls::procedure(),
        batch::row(),
        lease::row(),
        wake::row(),
        sessions::numbered(),
        sessions::heartbeat(),
        sessions::register(),
        slots::row(),
        held::row(),
        ring::row(),
        growth::row(),
        growth::connections_row(),
        field::row(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_name_existing_variants() {
        for row in chosen(&IDS.map(String::from)).expect("all ids are known") {
            for comparison in &row.comparisons {
                assert!(comparison.numerator.max(comparison.denominator) < row.variants.len(), "{}", row.id);
            }
            assert!(row.goal_cells.iter().all(|cell| row.cells.contains(cell)), "{}", row.id);
        }
    }

    #[test]
    fn rows_of_older_servers_compare_what_these_have() {
        for (older, newer) in all().into_iter().map(|row| row.on(15)).zip(all()) {
            assert!(older.variants.iter().zip(&newer.variants).all(|(older, newer)| older.name == newer.name));
            let kept = |row: &Row| {
                row.comparisons.iter().all(|each| each.numerator.max(each.denominator) < row.variants.len())
            };
            assert!(kept(&older), "{}", older.id);
        }
        let request = request::row();
        assert!(request::row().on(18).comparisons.len() < request.comparisons.len());
    }

    #[test]
    fn an_unknown_row_is_refused() {
        assert!(chosen(&["tea".into()]).is_err());
    }
}
