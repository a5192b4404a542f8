//! How a client session ends.

/// How a client session ended; the letters stand in the column `ended`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// `c`: its client closed it.
    Closed,
    /// `e`: its client fell silent.
    Expired,
    /// `f`: its client registered anew.
    Fenced,
}

impl End {
    /// All of them.
    pub const ALL: [End; 3] = [End::Closed, End::Expired, End::Fenced];

    /// The letter stored; of a session that was never saved a capital, so that those can be counted.
    pub fn letter(self, saved: bool) -> u8 {
        let letter = match self {
            End::Closed => b'c',
            End::Expired => b'e',
            End::Fenced => b'f',
        };
        if saved { letter } else { letter.to_ascii_uppercase() }
    }

    /// What a letter stands for.
    pub fn of_letter(letter: u8) -> Option<End> {
        match letter.to_ascii_lowercase() {
            b'c' => Some(End::Closed),
            b'e' => Some(End::Expired),
            b'f' => Some(End::Fenced),
            _ => None,
        }
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
