//! What a role may want to do with a session, and so whose privileges it needs.

/// What a caller wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Work with the session's requests: takes the privileges of the owner, or of the role that the session is
    /// lent to.
    Use,
    /// Change, lend, drop the session, or make it again: takes the privileges of the owner.
    Own,
}
