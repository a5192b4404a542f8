//! The name of a request in messages.

/// The name of a request in messages.
#[derive(Debug)]
pub struct RequestName {
    /// The session's name.
    pub session: String,
    /// The stream's name, where it is not the session's own numbering.
    pub stream: String,
    /// The request's key or number.
    pub request: String,
}

impl RequestName {
    /// Names a request.
    pub fn new(session: &str, request: &str) -> RequestName {
        RequestName::in_stream(session, "", request)
    }

    /// Names a request of a stream.
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
