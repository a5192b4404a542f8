//! The digest of a request's name: 128 bits that stand for (session, stream, request).
//!
//! Half of the digest is the name of an advisory lock, which `pg_locks` shows to everybody. So the digest is keyed with
//! a secret of the database: no role can compute the digest of another role's request. The digest is an index key and
//! never a proof. A row that is found by it is compared with session and request in full.

use super::limits::SESSION_CHARS_MAX;
use super::time_key;
use uuid::Uuid;

/// A 128-bit digest of a request's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Digest(pub [u8; 16]);

/// The id by which the server knows a session. It stays the same for the session's whole life.
pub type SessionId = [u8; 16];

/// The key of the digests.
pub type Secret = [u8; 32];

impl Digest {
    /// Digests the name of a request.
    ///
    /// If the request is named by a UUIDv7, the digest begins with the 48-bit time of that UUID. Fresh requests are
    /// then inserted side by side on few index pages instead of all over the index. The other 80 bits stay a keyed
    /// hash.
    pub fn of(secret: &Secret, session: &SessionId, stream: &str, request: &str) -> Digest {
        // The length keeps ("a", "bc") apart from ("ab", "c").
        let length = (stream.len() as u64).to_le_bytes();
        let mut digest = Digest::of_parts(secret, &[session, &length, stream.as_bytes(), request.as_bytes()]);
        if let Some(id) = time_key::parse(request) {
            digest.0[..6].copy_from_slice(&id.as_bytes()[..6]);
        }
        digest
    }

    /// Digests the name of anything else that is locked. The caller sees to it that the parts do not run together.
    pub fn of_parts(secret: &Secret, parts: &[&[u8]]) -> Digest {
        // To hash one piece is a third of the work of hashing it in parts, and nearly all names are short.
        let mut joined = [0; SHORT_BYTES];
        let hash = match join(parts, &mut joined) {
            Some(name) => blake3::keyed_hash(secret, name),
            None => {
                parts.iter().fold(&mut blake3::Hasher::new_keyed(secret), |hasher, part| hasher.update(part)).finalize()
            }
        };
        Digest(hash.as_bytes().first_chunk().copied().unwrap_or_default())
    }

    /// The half that names the lock. It is all hash and contains no time.
    pub fn lock_id(&self) -> u64 {
        u64::from_be_bytes(self.0.last_chunk().copied().unwrap_or_default())
    }
}

/// How long a name may be to be hashed in one piece.
const SHORT_BYTES: usize = 128;

/// Joins the parts of a name in `room`; `None` if they do not fit.
fn join<'a>(parts: &[&[u8]], room: &'a mut [u8; SHORT_BYTES]) -> Option<&'a [u8]> {
    let mut end = 0;
    for part in parts {
        room.get_mut(end..end + part.len())?.copy_from_slice(part);
        end += part.len();
    }
    Some(&room[..end])
}

/// What the name of a client session says. The server makes such names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientName<'a> {
    /// The session's id.
    pub id: Uuid,
    /// What follows the `@`: the node where the session was registered. A caller may leave it
    /// out, or give anything here, also what is not the name of a node.
    pub node: Option<&'a str>,
}

/// Reads the name of a client session: a UUID alone, or before an `@`. `None`: the name is that of a standing session.
pub fn client_session(name: &str) -> Option<ClientName<'_>> {
    let (id, node) = name.split_once('@').map_or((name, None), |(id, node)| (id, Some(node)));
    let id = Uuid::try_parse(id).ok()?;
    (name.len() <= SESSION_CHARS_MAX).then_some(ClientName { id, node })
}

/// The name of a client session that was registered on a node.
pub fn client_session_name(id: &SessionId, node: Option<&str>) -> String {
    let id = Uuid::from_bytes(*id);
    node.map_or_else(|| id.to_string(), |node| format!("{id}@{node}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = [7; 32];
    const SESSION: SessionId = [1; 16];

    #[test]
    fn every_part_of_the_name_and_the_secret_count() {
        let digest = Digest::of(&SECRET, &SESSION, "", "k");
        assert_eq!(digest, Digest::of(&SECRET, &SESSION, "", "k"));
        assert_ne!(digest, Digest::of(&[8; 32], &SESSION, "", "k"));
        assert_ne!(digest, Digest::of(&SECRET, &[2; 16], "", "k"));
        assert_ne!(digest, Digest::of(&SECRET, &SESSION, "s", "k"));
        assert_ne!(digest, Digest::of(&SECRET, &SESSION, "", "K"));
    }

    #[test]
    fn a_name_has_the_same_digest_in_one_piece_and_in_parts() {
        for length in [0, 1, 39, 102, 103, 104, 105, 128, 1020] {
            let request = "k".repeat(length);
            let mut hasher = blake3::Hasher::new_keyed(&SECRET);
            hasher.update(&SESSION).update(&1u64.to_le_bytes()).update(b"s").update(request.as_bytes());
            assert_eq!(Digest::of(&SECRET, &SESSION, "s", &request).0, hasher.finalize().as_bytes()[..16], "{length}");
        }
    }

    #[test]
    fn stream_and_request_do_not_run_together() {
        assert_ne!(Digest::of(&SECRET, &SESSION, "a", "bc"), Digest::of(&SECRET, &SESSION, "ab", "c"));
    }

    #[test]
    fn a_uuidv7_keeps_its_time_in_front_and_a_hash_behind() {
        let one = "01890a5d-ac96-774b-bcce-b302099a8057";
        let two = "01890a5d-ac96-774b-bcce-b302099a8058";
        let (a, b) = (Digest::of(&SECRET, &SESSION, "", one), Digest::of(&SECRET, &SESSION, "", two));
        assert_eq!(a.0[..6], [0x01, 0x89, 0x0a, 0x5d, 0xac, 0x96]);
        assert_eq!(a.0[..6], b.0[..6]);
        assert_ne!(a.0[6..], b.0[6..]);
        assert_ne!(a.lock_id(), b.lock_id());
    }

    #[test]
    fn every_spelling_of_a_uuid_names_a_client_session() {
        const ID: &str = "919108f7-52d1-4320-9bac-f847db4148a8";
        let id = Uuid::try_parse(ID).unwrap();
        for spelling in [ID, "{919108F7-52d1-4320-9bac-f847db4148a8}", "919108f752d143209bacf847db4148a8"] {
            assert_eq!(client_session(spelling), Some(ClientName { id, node: None }), "{spelling}");
            for node in ["a", "Orders-2", "", "@", "a@b", "no node"] {
                let name = format!("{spelling}@{node}");
                assert_eq!(client_session(&name), Some(ClientName { id, node: Some(node) }), "{name}");
            }
        }
        for name in ["payments", "", "@", "@a", "payments@a", "919108f7-52d1-4320-9bac@a", &format!(" {ID}@a")] {
            assert_eq!(client_session(name), None, "{name}");
        }
        let too_long = format!("{ID}@{}", "n".repeat(SESSION_CHARS_MAX));
        assert_eq!(client_session(&too_long), None);
    }

    proptest! {
        #[test]
        fn the_name_of_a_client_session_is_read_as_it_was_made(
            id in any::<[u8; 16]>(),
            node in proptest::option::of("[A-Za-z0-9_.-]{1,32}"),
        ) {
            let name = client_session_name(&id, node.as_deref());
            let read = client_session(&name).map(|name| (name.id.into_bytes(), name.node));
            prop_assert_eq!(read, Some((id, node.as_deref())));
        }
    }

    proptest! {
        #[test]
        fn different_names_have_different_digests(
            a in (any::<[u8; 16]>(), ".{0,20}", ".{1,40}"),
            b in (any::<[u8; 16]>(), ".{0,20}", ".{1,40}"),
        ) {
            let (x, y) = (Digest::of(&SECRET, &a.0, &a.1, &a.2), Digest::of(&SECRET, &b.0, &b.1, &b.2));
            prop_assert_eq!(a == b, x == y);
        }
    }
}
