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

/// A text as it goes into messages and into the log. Names are chosen by users: what would move a terminal's cursor, begin
/// another line or turn the direction of the text is written as in PostgreSQL's `E'…'`.
pub fn legible(text: &str) -> String {
    const TURNS: [RangeInclusive<char>; 3] =
        ['\u{200E}'..='\u{200F}', '\u{2028}'..='\u{202E}', '\u{2066}'..='\u{2069}'];
    let hides = |c: char| c.is_control() || TURNS.iter().any(|range| range.contains(&c));
    text.chars().map(|c| if hides(c) { format!("\\u{:04X}", u32::from(c)) } else { c.to_string() }).collect()
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
    }
}
