//! How the execution of a request ended, and the letters that stand for this in the tables.

/// Whether an outcome is a success or a final failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The letter `s`.
    Succeeded,
    /// The letter `f`.
    Failed,
}

impl Class {
    /// The letter in the column `class`.
    pub fn letter(self) -> u8 {
        match self {
            Class::Succeeded => b's',
            Class::Failed => b'f',
        }
    }

    /// What a letter in the column `class` stands for.
    pub fn of_letter(letter: u8) -> Option<Class> {
        match letter {
            b's' => Some(Class::Succeeded),
            b'f' => Some(Class::Failed),
            _ => None,
        }
    }

    /// The status in an `idem_ticket`.
    pub fn status(self) -> &'static str {
        match self {
            Class::Succeeded => "succeeded",
            Class::Failed => "failed",
        }
    }
}

/// What begin answered when it did not let the caller execute the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The request has this outcome.
    Done(Class),
    /// Another transaction holds its claim.
    InProgress,
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn a_letter_stands_for_one_class() {
        for class in [Class::Succeeded, Class::Failed] {
            assert_eq!(Class::of_letter(class.letter()), Some(class));
        }
        assert_eq!(Class::of_letter(b'd'), None);
    }
}
