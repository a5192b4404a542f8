//! Keyed names: the digests of requests and lanes, and the names of locks.
//!
//! Each name is a digest that is keyed with the database's secret. `pg_locks` shows half of it to everybody, and
//! any role may take advisory locks. Without the secret nobody can compute the name of another role's lock, so
//! nobody can block or watch another role's requests. Two locks have a fixed name, since a database has one of each:
//! the secret's and the sweep's (`Tag::of_all`).

use crate::domain::identity::{Digest, SessionId};
use crate::domain::sequence::Order;
use crate::lock::{LockClass, Tag};
use crate::model::{ClientSession, KnownBy, Stream};
use crate::store::secret;
use pgrx::pg_sys;

/// The digest of a request. A keyed request's outcome and any request's checkpoint are kept under it, and a keyed
/// request is locked by it.
pub fn of_request(session: &SessionId, stream: &str, request: &str) -> Digest {
    Digest::of(&secret::key(), session, stream, request)
}

/// Whether an outcome's digest is what the key that counts makes of its session and its key. Asked also where [`of_request`]
/// raises an error.
pub fn fits(digest: &Digest, session: &SessionId, request: &str) -> bool {
    Digest::of(&secret::key_for_locks(), session, "", request).0 == digest.0
}

/// The digests of many requests of a standing session, as [`of_request`] makes each.
pub fn of_requests<'a>(session: &SessionId, requests: impl Iterator<Item = &'a str>) -> impl Iterator<Item = Digest> {
    let (secret, session) = (secret::key(), *session);
    requests.map(move |request| Digest::of(&secret, &session, "", request))
}

/// The digest of the lane of a slot, by which a numbered request is locked. Two requests in one lane are never at work at the
/// same time. Where numbers come one after the other, the whole stream is one lane.
pub fn of_lane(session: &ClientSession, stream: Stream<'_>, slot: i32) -> Digest {
    // These names are no numbers, so the digest is never that of a request.
    match session.order {
        Order::Any => of_request(stream.session, stream.name, &format!("slot {slot}")),
        Order::Strict => of_request(stream.session, stream.name, "line"),
    }
}

/// The lock on making, changing and dropping a standing session.
pub fn standing_session_lock(name: &str) -> Tag {
    lock(LockClass::StandingSession, &[name.as_bytes()])
}

/// The lock on a client session.
pub fn client_session_lock(id: &SessionId) -> Tag {
    lock(LockClass::ClientSession, &[id])
}

/// The lock on saving a client session.
pub fn save_lock(id: &SessionId) -> Tag {
    lock(LockClass::Save, &[id])
}

/// The lock on writing a client session's sign of life.
pub fn sign_of_life_lock(id: &SessionId) -> Tag {
    lock(LockClass::SignOfLife, &[id])
}

/// The lock on the marks of a stream.
pub fn marks_lock(stream: Stream<'_>) -> Tag {
    lock(LockClass::Marks, &[stream.session, stream.name.as_bytes()])
}

/// The lock on a registration by a role, or on saving a session that a later registration could find: by the client's name or
/// by the registration's id.
pub fn registered_lock(class: LockClass, owner: pg_sys::Oid, by: KnownBy<'_>) -> Tag {
    let owner = owner.to_u32().to_le_bytes();
    match by {
        KnownBy::Client(client) => lock(class, &[b"client", &owner, client.as_bytes()]),
        KnownBy::RequestId(id) => lock(class, &[b"id", &owner, id]),
    }
}

/// For a given class and first part, every part except the last one has a fixed length. So two lists of parts never
/// join to the same bytes.
/// Locks are also taken before there is a session, and so before a key is in use: hence `key_for_locks()`.
fn lock(class: LockClass, parts: &[&[u8]]) -> Tag {
    Tag::named(class, &Digest::of_parts(&secret::key_for_locks(), parts))
}
