//! The fingerprint of a payload: 128 bits that are the same for two payloads that are equal as `jsonb`.
//!
//! The walk over a `jsonb` value (in `pg/jsonb.rs`) feeds its tokens to a [`Hasher`] in jsonb's own order. That
//! order does not depend on the order in which the members were written. Each token is fed as a tag, a length and
//! its bytes, so no two different walks feed the same bytes.
//!
//! PostgreSQL's own `jsonb_hash_extended` does not serve: it rotates and xors the hashes of the elements. Exchanging
//! two elements of an array that are 32 places apart leaves that hash unchanged, under every seed.

use std::sync::LazyLock;

/// A digest in the making. Tokens are short, and the hash is fastest in one go. So they are collected first.
pub struct Hasher {
    collected: [u8; COLLECTED_MAX],
    used: usize,
    /// What did not find room, and what came before it.
    fed: Option<Box<blake3::Hasher>>,
}

/// Room for the tokens of a payload of usual size.
const COLLECTED_MAX: usize = 1024;

/// The beginning of every digest. The context string keeps them apart from every other use of the hash.
static BEGINNING: LazyLock<blake3::Hasher> =
    LazyLock::new(|| blake3::Hasher::new_derive_key("idempotence 1.0 payload fingerprint"));

impl Hasher {
    /// Feeds a number in PostgreSQL's wire form.
    ///
    /// It has four fields of 16 bits, ndigits, weight, sign and dscale, and then the digits. The fourth field, dscale, is
    /// left out. It is the display scale, which `=` ignores: 1.0 equals 1.00.
    pub fn number(&mut self, wire: &[u8]) {
        let (head, digits) = wire.split_at(wire.len().min(8));
        self.token(b'n', &head[..head.len().min(6)]);
        self.token(b'd', digits);
    }

    /// The digest.
    pub fn finish(self) -> [u8; 16] {
        let collected = &self.collected[..self.used];
        let hash = match self.fed {
            Some(mut fed) => fed.update(collected).finalize(),
            None => BEGINNING.clone().update(collected).finalize(),
        };
        hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// Feeds one token that is no number. The tag tells what it is: one of `{}[]` by itself, `k` a member's name, `s` a
    /// string, `0` and `1` false and true, `z` null.
    pub fn token(&mut self, tag: u8, bytes: &[u8]) {
        let mut head = [0; 9];
        head[0] = tag;
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        match self.collected[self.used..].split_first_chunk_mut() {
            Some((first, rest)) if bytes.len() <= rest.len() => {
                *first = head;
                rest[..bytes.len()].copy_from_slice(bytes);
                self.used += head.len() + bytes.len();
            }
            _ => {
                let fed = self.fed.get_or_insert_with(|| Box::new(BEGINNING.clone()));
                fed.update(&self.collected[..self.used]).update(&head).update(bytes);
                self.used = 0;
            }
        }
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher { collected: [0; COLLECTED_MAX], used: 0, fed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest<'a>(tokens: impl IntoIterator<Item = (u8, &'a [u8])>) -> [u8; 16] {
        let mut fingerprint = Hasher::default();
        tokens.into_iter().for_each(|(tag, bytes)| fingerprint.token(tag, bytes));
        fingerprint.finish()
    }

    fn digest_of_number(wire: &[u8]) -> [u8; 16] {
        let mut fingerprint = Hasher::default();
        fingerprint.number(wire);
        fingerprint.finish()
    }

    /// ndigits, weight, sign, dscale, digits.
    const ONE_POINT_0: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 1, 0, 1];
    const ONE_POINT_00: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 2, 0, 1];
    const MINUS_ONE: &[u8] = &[0, 1, 0, 0, 0x40, 0, 0, 0, 0, 1];

    #[test]
    fn the_scale_of_a_number_does_not_count_but_its_sign_does() {
        assert_eq!(digest_of_number(ONE_POINT_0), digest_of_number(ONE_POINT_00));
        assert_ne!(digest_of_number(ONE_POINT_0), digest_of_number(MINUS_ONE));
    }

    #[test]
    fn what_is_collected_first_does_not_matter() {
        let long = [b'x'; 3 * COLLECTED_MAX];
        for bytes in [1, COLLECTED_MAX - 10, COLLECTED_MAX - 9, COLLECTED_MAX, long.len()] {
            let mut at_once = blake3::Hasher::new_derive_key("idempotence 1.0 payload fingerprint");
            let mut fingerprint = Hasher::default();
            for _ in 0..3 {
                fingerprint.token(b's', &long[..bytes]);
                at_once.update(b"s").update(&(bytes as u64).to_le_bytes()).update(&long[..bytes]);
            }
            assert_eq!(fingerprint.finish()[..], at_once.finalize().as_bytes()[..16]);
        }
    }

    #[test]
    fn tokens_do_not_run_together() {
        assert_ne!(digest([(b's', &b"ab"[..]), (b's', b"c")]), digest([(b's', &b"a"[..]), (b's', b"bc")]));
        assert_ne!(digest([(b'k', &b"a"[..])]), digest([(b's', &b"a"[..])]));
    }

    #[test]
    fn elements_far_apart_do_not_commute() {
        let walk = |first: &'static [u8], last: &'static [u8]| {
            let strings = std::iter::once(first).chain([&b"x"[..]; 31]).chain([last]);
            digest(strings.map(|string| (b's', string)))
        };
        assert_ne!(walk(b"a", b"b"), walk(b"b", b"a"));
    }
}
