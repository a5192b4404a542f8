//! The setting `idempotence.databases`.

/// Which databases the background worker visits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Databases {
    /// `*`: every database.
    All,
    /// The databases with these names, in exactly this spelling.
    Named(Vec<String>),
}

impl Databases {
    /// Reads names that are separated by commas. A name in double quotes may contain commas and blanks.
    pub fn parse(setting: &str) -> Databases {
        let (mut names, mut name) = (Vec::new(), Name::default());
        let mut characters = setting.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '"' if name.quoted && characters.peek() == Some(&'"') => {
                    characters.next();
                    name.text.push('"');
                }
                '"' => name.toggle_quotes(),
                ',' if !name.quoted => names.extend(std::mem::take(&mut name).whole()),
                other => name.text.push(other),
            }
        }
        names.extend(name.whole());
        if names.iter().any(|name| name == "*") { Databases::All } else { Databases::Named(names) }
    }

    /// Whether the worker visits the database with this name.
    pub fn include(&self, name: &str) -> bool {
        match self {
            Databases::All => true,
            Databases::Named(names) => names.iter().any(|named| named == name),
        }
    }

    /// The names; `None`: all databases are visited.
    pub fn names(&self) -> Option<&[String]> {
        match self {
            Databases::All => None,
            Databases::Named(names) => Some(names),
        }
    }
}

/// A name that [`Databases::parse`] is reading.
#[derive(Default)]
struct Name {
    text: String,
    quoted: bool,
    was_quoted: bool,
}

impl Name {
    fn toggle_quotes(&mut self) {
        if !self.was_quoted {
            // What stands before the quotes, mostly blanks, does not belong to the name.
            self.text.clear();
        }
        self.quoted = !self.quoted;
        self.was_quoted = true;
    }

    fn whole(self) -> Option<String> {
        let text = if self.was_quoted { self.text } else { self.text.trim().to_owned() };
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::Databases::{self, All, Named};

    fn named(names: &[&str]) -> Databases {
        Named(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn names_are_read_as_they_are_spelt() {
        for (setting, databases) in [
            ("*", All),
            (" shop , * ", All),
            ("", named(&[])),
            (" , ", named(&[])),
            ("shop", named(&["shop"])),
            (" shop,Shop ,my shop", named(&["shop", "Shop", "my shop"])),
            (r#""a,b", " c ", "say ""hi""""#, named(&["a,b", " c ", "say \"hi\""])),
            (r#""open"#, named(&["open"])),
        ] {
            assert_eq!(Databases::parse(setting), databases, "{setting:?}");
        }
        assert!(All.include("any"));
        assert!(named(&["shop"]).include("shop"));
        assert!(!named(&["shop"]).include("Shop"));
    }
}
