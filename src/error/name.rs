//! The name of a request in messages, and what becomes of names there.

use std::ops::RangeInclusive;

/// The name of a request, to be shown in a message.
#[derive(Clone, Debug)]
pub struct RequestName {
    /// The session's name.
    pub session: String,
    /// The stream's name; empty for the session's own numbering and for keys.
    pub stream: String,
    /// The request's key or number.
    pub request: String,
}

impl RequestName {
    /// Names a request that is in no stream, or in the session's own numbering.
    pub fn new(session: &str, request: &str) -> RequestName {
        RequestName::in_stream(session, "", request)
    }

    /// Names a request in a stream.
    pub fn in_stream(session: &str, stream: &str, request: &str) -> RequestName {
        RequestName { session: session.into(), stream: stream.into(), request: request.into() }
    }
}

impl std::fmt::Display for RequestName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        write!(f, "request {} of ", quoted(&self.request))?;
        if !self.stream.is_empty() {
            write!(f, "stream {} of ", quoted(&self.stream))?;
        }
        write!(f, "session {}", quoted(&self.session))
    }
}

/// What shows as nothing, turns the direction of the text, or begins another line: two names that differ in nothing else look
/// the same.
const UNSEEN: [RangeInclusive<char>; 14] = [
    '\u{AD}'..='\u{AD}',
    '\u{34F}'..='\u{34F}',
    '\u{61C}'..='\u{61C}',
    '\u{115F}'..='\u{1160}',
    '\u{17B4}'..='\u{17B5}',
    '\u{180B}'..='\u{180F}',
    '\u{200B}'..='\u{200F}',
    '\u{2028}'..='\u{202E}',
    '\u{2060}'..='\u{206F}',
    '\u{3164}'..='\u{3164}',
    '\u{FE00}'..='\u{FE0F}',
    '\u{FEFF}'..='\u{FEFF}',
    '\u{FFF9}'..='\u{FFFB}',
    '\u{E0000}'..='\u{E0FFF}',
];

/// A text as it goes into messages, into the log and into the view `health`. Names are chosen by users: what would move a
/// terminal's cursor, and what no reader sees, is written as in PostgreSQL's `E'…'`.
pub fn legible(text: &str) -> String {
    let hides = |c: char| c.is_control() || UNSEEN.iter().any(|range| range.contains(&c));
    text.chars().map(|c| if hides(c) { escaped(c) } else { c.to_string() }).collect()
}

/// A character as in PostgreSQL's `E'…'`.
pub fn escaped(c: char) -> String {
    match u32::from(c) {
        c @ ..=0xFFFF => format!("\\u{c:04X}"),
        c => format!("\\U{c:08X}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestName, legible};

    #[test]
    fn a_name_is_no_more_than_a_name() {
        let name = RequestName::in_stream("s\" is done", "", "a\u{1b}[2J\r\nb\u{9b}\u{202e}c ü");
        let shown = r#"request "a\u001B[2J\u000D\u000Ab\u009B\u202Ec ü" of session "s"" is done""#;
        assert_eq!(legible(&name.to_string()), shown);
        assert_eq!(legible(shown), shown);
        assert_eq!(legible("a\u{200b}b\u{feff}\u{e0041}"), "a\\u200Bb\\uFEFF\\U000E0041");
    }
}
