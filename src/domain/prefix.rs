//! The keys that begin with a prefix: those from the prefix on, up to the first key behind all of them. Keys are compared
//! by their bytes (collation "C"), so a range of keys is found by an index, and no character of a prefix is a wildcard.

/// The least text that comes after every text with this prefix; `None`: every text from the prefix on has it.
pub fn end_of(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        if let Some(next) = next(last) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// The character that comes next in UTF-8, whose bytes are in the order of the code points.
fn next(character: char) -> Option<char> {
    match character {
        // The surrogates between these two are no characters.
        '\u{D7FF}' => Some('\u{E000}'),
        other => char::from_u32(other as u32 + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::end_of;
    use proptest::prelude::*;

    #[test]
    fn ends() {
        assert_eq!(end_of(""), None);
        assert_eq!(end_of("order-"), Some("order.".into()));
        assert_eq!(end_of("a%_"), Some("a%`".into()));
        assert_eq!(end_of("x\u{D7FF}"), Some("x\u{E000}".into()));
        assert_eq!(end_of("x\u{10FFFF}\u{10FFFF}"), Some("y".into()));
        assert_eq!(end_of("\u{10FFFF}"), None);
    }

    proptest! {
        #[test]
        fn the_range_has_what_begins_with_the_prefix(prefix in "[a-c\u{7F}\u{7FF}\u{D7FF}\u{FFFF}\u{10FFFF}]{0,3}",
                                                     key in "[a-c\u{7F}\u{7FF}\u{D7FF}\u{FFFF}\u{10FFFF}]{0,5}") {
            let is_in = key.as_bytes() >= prefix.as_bytes()
                && end_of(&prefix).is_none_or(|end| key.as_bytes() < end.as_bytes());
            prop_assert_eq!(is_in, key.starts_with(&prefix));
        }
    }
}
