//! Keyed names: the digests of requests and lanes, and the names of locks.
//!
//! Each name is a digest that is keyed with the database's secret. `pg_locks` shows everybody half of it, and
//! any role may take advisory locks. Without the secret nobody can compute the name of another role's lock, so
//! nobody can block or watch another role's requests.

use crate::domain::identity::{Digest, Lane, SessionId};
use crate::lock::{LockClass, Tag};
use crate::model::{KnownBy, Stream};
use crate::store::secret;
use pgrx::pg_sys;

/// The digest of a request: where its outcome, if it has a key, and its checkpoint are kept.
pub fn of_request(session: &SessionId, stream: &str, request: &str) -> Digest {
    Digest::of(&secret::key(), session, stream, request)
}

/// The digest of a lane: what is locked for a numbered request.
pub fn of_lane(stream: Stream<'_>, lane: Lane) -> Digest {
    Digest::of_lane(&secret::key(), stream.session, stream.name, lane)
}

/// The lock on the making, changing and dropping of a standing session.
pub fn standing_session(name: &str) -> Tag {
    lock(LockClass::StandingSession, &[name.as_bytes()])
}

/// The lock on a client session.
pub fn client_session(id: &SessionId) -> Tag {
    lock(LockClass::ClientSession, &[id])
}

/// The lock on a client session's saving.
pub fn save(id: &SessionId) -> Tag {
    lock(LockClass::Save, &[id])
}

/// The lock on the writing of a client session's sign of life.
pub fn sign_of_life(id: &SessionId) -> Tag {
    lock(LockClass::SignOfLife, &[id])
}

/// The lock on what a client says of a stream.
pub fn marks(stream: Stream<'_>) -> Tag {
    lock(LockClass::Marks, &[stream.session, stream.name.as_bytes()])
}

/// The lock on the registering of a client, or under an id.
pub fn registration(owner: pg_sys::Oid, by: KnownBy<'_>) -> Tag {
    of_registered(LockClass::Registration, owner, by)
}

/// The lock on the saving of a session that such a registration made.
pub fn save_of_registered(owner: pg_sys::Oid, by: KnownBy<'_>) -> Tag {
    of_registered(LockClass::SaveOfRegistered, owner, by)
}

fn of_registered(class: LockClass, owner: pg_sys::Oid, by: KnownBy<'_>) -> Tag {
    let owner = owner.to_u32().to_le_bytes();
    match by {
        KnownBy::Client(client) => lock(class, &[b"client", &owner, client.as_bytes()]),
        KnownBy::RequestId(id) => lock(class, &[b"id", &owner, id]),
    }
}

/// The parts have fixed lengths, except the last one, so that they do not run together. They are named also
/// where no session exists, and so no key is in use.
fn lock(class: LockClass, parts: &[&[u8]]) -> Tag {
    Tag::named(class, &Digest::of_parts(&secret::key_for_locks(), parts))
}
