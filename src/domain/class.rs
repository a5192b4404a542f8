//! How the execution of a request ended, and the letters that stand for this in the tables.

/// What an outcome says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// The request was done.
    Succeeded = b's',
    /// A final failure.
    Failed = b'f',
    /// All attempts were begun, and none was completed. To clients that is a final failure too.
    GivenUp = b'g',
    /// The request was settled before it was done, and is never executed.
    Cancelled = b'c',
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 4] = [Class::Succeeded, Class::Failed, Class::GivenUp, Class::Cancelled];

    /// The letter in the column `class`.
    pub fn letter(self) -> u8 {
        self as u8
    }

    /// What a letter in the column `class` stands for.
    pub fn of_letter(letter: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.letter() == letter)
    }

    /// What a status stands for.
    pub fn of_status(status: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.status() == status)
    }

    /// The status in an `idem_ticket`.
    pub fn status(self) -> &'static str {
        match self {
            Class::Succeeded => "succeeded",
            Class::Failed | Class::GivenUp => "failed",
            Class::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn a_letter_stands_for_one_class() {
        for class in Class::ALL {
            assert_eq!(Class::of_letter(class.letter()), Some(class));
        }
        assert_eq!(Class::of_letter(b'd'), None);
    }
}
