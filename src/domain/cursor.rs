//! How far a scan of a table has come.

use std::fmt;

/// A place between two rows of a table. The scan has visited all rows before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The page.
    pub page: u32,
    /// The line pointer on that page.
    pub item: u16,
}

impl Cursor {
    /// Before the first row.
    pub const START: Cursor = Cursor { page: 0, item: 0 };

    /// The cursor as one number, for storing.
    pub fn number(self) -> i64 {
        i64::from(self.page) << 16 | i64::from(self.item)
    }

    /// The inverse of [`Cursor::number`].
    pub fn of_number(number: i64) -> Cursor {
        Cursor { page: (number >> 16) as u32, item: number as u16 }
    }

    /// The place behind the row with this `ctid`, which is written as in SQL; `None` if it is no `ctid`.
    pub fn behind(ctid: &str) -> Option<Cursor> {
        let (page, item) = ctid.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        Some(Cursor { page: page.parse().ok()?, item: item.parse().ok()? })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.page, self.item)
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    #[test]
    fn a_cursor_is_the_same_as_number_and_as_text() {
        let cursor = Cursor::behind("(4294967294,291)").expect("a ctid");
        assert_eq!(Cursor::of_number(cursor.number()), cursor);
        assert_eq!(cursor.to_string(), "(4294967294,291)");
        assert_eq!(Cursor::of_number(Cursor::START.number()), Cursor::START);
        assert_eq!(Cursor::behind("(1)"), None);
    }
}
