//! The name of a request in messages.

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
        write!(f, "request \"{}\" of ", self.request)?;
        if !self.stream.is_empty() {
            write!(f, "stream \"{}\" of ", self.stream)?;
        }
        write!(f, "session \"{}\"", self.session)
    }
}
