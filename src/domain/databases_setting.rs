//! The setting `idempotence.databases`.

/// The names in the setting, which are separated by commas. A name in double quotes may contain commas and blanks. `None`:
/// one of them is `*`, which is every database.
pub fn names(setting: &str) -> Option<Vec<String>> {
    let mut quoted = false;
    let parts = setting.split(|character| {
        quoted ^= character == '"';
        character == ',' && !quoted
    });
    let names = parts.map(|part| match part.trim().strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').unwrap_or(rest).replace("\"\"", "\""),
        None => part.trim().to_owned(),
    });
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    names.iter().all(|name| name != "*").then_some(names)
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_are_read_as_they_are_spelt() {
        for (setting, named) in [
            ("*", None),
            (" shop , * ", None),
            ("", Some(&[][..])),
            (" , ", Some(&[][..])),
            ("shop", Some(&["shop"][..])),
            (" shop,Shop ,my shop", Some(&["shop", "Shop", "my shop"][..])),
            (r#""a,b", " c ", "say ""hi""""#, Some(&["a,b", " c ", "say \"hi\""][..])),
            (r#""open"#, Some(&["open"][..])),
        ] {
            let named = named.map(|named| named.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            assert_eq!(names(setting), named, "{setting:?}");
        }
    }
}
