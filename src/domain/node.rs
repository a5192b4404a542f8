//! The names of servers. A server is called a node where it is told from others, for example in the name of a client
//! session.

use super::limits::NODE_CHARS_MAX;
use std::ffi::CStr;

/// What stands for "no node" where a session's binding is changed. So it is not the name of a node.
pub const NONE: &str = "-";

/// What is wrong with the name of a node, as the DETAIL of an error; `None`: nothing.
pub fn fault(name: &[u8]) -> Option<String> {
    let is_foreign = |byte: &&u8| !byte.is_ascii_alphanumeric() && !b"_.-".contains(byte);
    match name.iter().find(is_foreign) {
        Some(byte) if byte.is_ascii_graphic() => Some(format!("Found the character {}.", char::from(*byte))),
        Some(byte) if byte.is_ascii() => Some(format!("Found a blank or a control character, U+{byte:04X}.")),
        Some(_) => Some("Found a character that is none of ASCII.".into()),
        None if name == NONE.as_bytes() => Some("Found \"-\", which stands for no node.".into()),
        None if name.is_empty() || name.len() > NODE_CHARS_MAX => Some(format!("Found {} characters.", name.len())),
        None => None,
    }
}

/// What a name of a node is made of, as the HINT of an error.
pub const FORM: &CStr = c"The name of a node has 1 to 32 characters: letters of ASCII, digits, _, . and -.";

/// The name of a server that was given none: the identifier that PostgreSQL made for its data, in hexadecimal.
pub fn of_system(identifier: u64) -> String {
    format!("{identifier:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_nodes() {
        let longest = "n".repeat(NODE_CHARS_MAX);
        for name in ["a", "A", "7", "_", ".", "--", "Orders-2.eu_west", "6f1c0c1d2a3b4c5d", &longest] {
            assert_eq!(fault(name.as_bytes()), None, "{name}");
        }
        let too_long = "n".repeat(NODE_CHARS_MAX + 1);
        for name in ["", "-", " ", "a b", "a@b", "a/b", "a\n", "é", "a\u{0}", "\u{2d7}", &too_long] {
            assert!(fault(name.as_bytes()).is_some(), "{name:?}");
        }
        assert!(fault(&[b'a', 0xff]).is_some(), "a name need not be text");
        assert!(FORM.to_string_lossy().contains(&format!(" 1 to {NODE_CHARS_MAX} ")));
    }

    proptest! {
        #[test]
        fn the_identifier_of_every_system_makes_a_name(identifier in any::<u64>(), other in any::<u64>()) {
            prop_assert_eq!(fault(of_system(identifier).as_bytes()), None);
            prop_assert_eq!(identifier == other, of_system(identifier) == of_system(other));
        }
    }
}
