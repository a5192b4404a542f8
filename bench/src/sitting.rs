//! A full run takes hours. The page is written after each row, and a run that was cut off goes on with it in another
//! sitting: the parts of rows that are in the page are taken from there.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::iter;
use std::path::Path;

use anyhow::{Context, Result};

use crate::page::{Part, mark};
use crate::row::Row;

/// Where the sources of the extension are, relative to the checkout.
const SOURCES: [&str; 3] = ["src", "sql", "Cargo.lock"];

/// What stands for the sources of the extension: equal for equal sources, wherever they are built.
pub fn sources() -> Result<String> {
    let mut hasher = DefaultHasher::new();
    SOURCES.iter().try_for_each(|source| add(Path::new(source), &mut hasher))?;
    Ok(format!("sources {:016x}", hasher.finish()))
}

fn add(path: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    path.hash(hasher);
    if path.is_dir() {
        let mut entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        entries.sort();
        entries.iter().try_for_each(|entry| add(entry, hasher))
    } else {
        fs::read(path).with_context(|| format!("reading {}", path.display()))?.hash(hasher);
        Ok(())
    }
}

/// A page that was written before; `None` if there is none, or if it is about another build or another extent. The machine
/// and the server may be others, since each part names its own.
pub fn former(page: &Path, subject: &str) -> Result<Option<String>> {
    match fs::read_to_string(page) {
        Ok(text) => Ok(text.starts_with(&mark(subject)).then_some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What a [`mark`] tells.
fn marked(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix("<!-- ")?.strip_suffix(" -->")
}

/// The part of a row in a page, if it was measured.
pub fn part(page: &str, row: &Row) -> Option<Part> {
    let heading = format!("## {}\n", row.title);
    let goal = format!("| {}: ", row.title);
    let lines = || page.split_inclusive('\n');
    let mut of_section = lines().skip_while(|line| *line != heading);
    let (first, place) = (of_section.next()?, marked(of_section.next()?)?);
    let section = iter::once(first).chain(of_section.take_while(|line| !line.starts_with("## "))).collect();
    let summary = lines().filter(|line| line.starts_with(&goal)).collect();
    Some(Part { place: place.into(), summary, section })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;
    use crate::plan::Plan;
    use crate::rows;

    #[test]
    fn the_parts_of_a_page_are_found_again() {
        let all = rows::chosen(&rows::IDS.map(String::from)).expect("all ids are known");
        let part_of = |row: &Row| Part {
            place: format!("the machine of {}", row.id),
            summary: format!("| {}: a ratio | | ≥ 1 | 1.0 | yes |\n", row.title),
            section: format!("## {}\n\nText.\n\n### Of {}\n\n|  | a |\n\n", row.title, row.id),
        };
        let parts: Vec<Part> = all.iter().map(part_of).collect();
        let rows: Vec<(&Row, Option<&Part>)> = all.iter().zip(parts.iter().map(Some)).collect();
        let text = Page::new(&Plan::quick(), &[], "this".into()).text(&rows);
        assert!(text.starts_with(&mark("this")) && !text.starts_with(&mark("that")));
        for (row, written) in all.iter().zip(parts) {
            assert_eq!(part(&text, row), Some(written));
        }
        let other = Row { title: "Tea", ..all.into_iter().next().expect("there are rows") };
        assert_eq!(part(&text, &other), None);
    }
}
