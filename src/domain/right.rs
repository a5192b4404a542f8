//! The rights to a session: what a caller wants to do with it, and whose privileges that needs.

/// What a caller wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// To use the session's requests. It needs the privileges of the owner or of the role that the session is lent to.
    Use,
    /// To change, lend or drop the session, or to make it again. It needs the privileges of the owner.
    Own,
}
