//! The ways in which a client session ends.

/// How a client session ended. The column `ended` stores the letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum End {
    /// Its client closed it.
    Closed = b'c',
    /// Its client fell silent.
    Expired = b'e',
    /// Its client registered anew.
    Fenced = b'f',
}

impl End {
    /// All the ways.
    pub const ALL: [End; 3] = [End::Closed, End::Expired, End::Fenced];

    /// The letter to store. It is a capital for a session that was never saved, so that such sessions can be counted.
    pub fn letter(self, saved: bool) -> u8 {
        if saved { self as u8 } else { (self as u8).to_ascii_uppercase() }
    }

    /// What a letter stands for.
    pub fn of_letter(letter: u8) -> Option<End> {
        End::ALL.into_iter().find(|end| end.letter(true) == letter.to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::End;

    #[test]
    fn a_letter_stands_for_an_end_saved_or_not() {
        for end in End::ALL {
            assert_eq!([true, false].map(|saved| End::of_letter(end.letter(saved))), [Some(end); 2]);
            assert_ne!(end.letter(true), end.letter(false));
        }
        assert_eq!(End::of_letter(b'x'), None);
    }
}
