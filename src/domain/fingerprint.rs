//! The fingerprint of a payload: 128 bits that are the same for two payloads that are equal as `jsonb`.
//!
//! The walk over a `jsonb` value (in `pg/jsonb.rs`) feeds its tokens to a [`Hasher`] in jsonb's own order. That
//! order does not depend on the order in which the members were written. Each token is fed as a tag, a length and
//! its bytes, so no two different walks feed the same bytes.
//!
//! PostgreSQL's own `jsonb_hash_extended` does not serve: it rotates and xors the hashes of the elements. Exchanging
//! two elements of an array that are 32 places apart leaves that hash unchanged, under every seed.

use std::sync::LazyLock;

/// One step of the walk over a `jsonb` value.
pub enum Token<'a> {
    /// `{`
    ObjectBegin,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayBegin,
    /// `]`
    ArrayEnd,
    /// A member's name.
    Key(&'a [u8]),
    /// A string.
    String(&'a [u8]),
    /// A number in PostgreSQL's wire form, see [`Hasher::token`].
    Numeric(&'a [u8]),
    /// `true` or `false`
    Bool(bool),
    /// `null`
    Null,
}

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
    /// Starts a digest.
    pub fn new() -> Hasher {
        Hasher { collected: [0; COLLECTED_MAX], used: 0, fed: None }
    }

    /// Feeds one token.
    ///
    /// The wire form of a numeric has four fields of 16 bits, ndigits, weight, sign and dscale, and then the digits.
    /// The fourth field, dscale, is left out. It is the display scale, which `=` ignores: 1.0 equals 1.00.
    pub fn token(&mut self, token: Token<'_>) {
        match token {
            Token::ObjectBegin => self.put(b'{', &[]),
            Token::ObjectEnd => self.put(b'}', &[]),
            Token::ArrayBegin => self.put(b'[', &[]),
            Token::ArrayEnd => self.put(b']', &[]),
            Token::Key(name) => self.put(b'k', name),
            Token::String(text) => self.put(b's', text),
            Token::Numeric(wire) => {
                let (head, digits) = wire.split_at(wire.len().min(8));
                self.put(b'n', &head[..head.len().min(6)]);
                self.put(b'd', digits);
            }
            Token::Bool(false) => self.put(b'0', &[]),
            Token::Bool(true) => self.put(b'1', &[]),
            Token::Null => self.put(b'z', &[]),
        }
    }

    /// The digest.
    pub fn finish(self) -> [u8; 16] {
        let collected = &self.collected[..self.used];
        let hash = match self.fed {
            Some(mut fed) => fed.update(collected).finalize(),
            None => BEGINNING.clone().update(collected).finalize(),
        };
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.as_bytes()[..16]);
        digest
    }

    fn put(&mut self, tag: u8, bytes: &[u8]) {
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
        Hasher::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(tokens: impl IntoIterator<Item = Token<'static>>) -> [u8; 16] {
        let mut fingerprint = Hasher::new();
        tokens.into_iter().for_each(|token| fingerprint.token(token));
        fingerprint.finish()
    }

    /// ndigits, weight, sign, dscale, digits.
    const ONE_POINT_0: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 1, 0, 1];
    const ONE_POINT_00: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 2, 0, 1];
    const MINUS_ONE: &[u8] = &[0, 1, 0, 0, 0x40, 0, 0, 0, 0, 1];

    #[test]
    fn the_scale_of_a_number_does_not_count_but_its_sign_does() {
        assert_eq!(digest([Token::Numeric(ONE_POINT_0)]), digest([Token::Numeric(ONE_POINT_00)]));
        assert_ne!(digest([Token::Numeric(ONE_POINT_0)]), digest([Token::Numeric(MINUS_ONE)]));
    }

    #[test]
    fn what_is_collected_first_does_not_matter() {
        let long = [b'x'; 3 * COLLECTED_MAX];
        for bytes in [1, COLLECTED_MAX - 10, COLLECTED_MAX - 9, COLLECTED_MAX, long.len()] {
            let mut at_once = blake3::Hasher::new_derive_key("idempotence 1.0 payload fingerprint");
            let mut fingerprint = Hasher::new();
            for _ in 0..3 {
                fingerprint.token(Token::String(&long[..bytes]));
                at_once.update(b"s").update(&(bytes as u64).to_le_bytes()).update(&long[..bytes]);
            }
            assert_eq!(fingerprint.finish()[..], at_once.finalize().as_bytes()[..16]);
        }
    }

    #[test]
    fn tokens_do_not_run_together() {
        let pairs = [
            (vec![Token::String(b"ab"), Token::String(b"c")], vec![Token::String(b"a"), Token::String(b"bc")]),
            (vec![Token::Key(b"a")], vec![Token::String(b"a")]),
            (vec![Token::Null], vec![Token::String(b"")]),
            (vec![Token::ArrayBegin, Token::ArrayEnd], vec![Token::ObjectBegin, Token::ObjectEnd]),
            (vec![Token::Bool(true)], vec![Token::Bool(false)]),
        ];
        for (left, right) in pairs {
            assert_ne!(digest(left), digest(right));
        }
    }

    #[test]
    fn elements_far_apart_do_not_commute() {
        let walk = |first: &'static [u8], last: &'static [u8]| {
            let between = (0..31).map(|_| Token::String(b"x"));
            digest(std::iter::once(Token::String(first)).chain(between).chain([Token::String(last)]))
        };
        assert_ne!(walk(b"a", b"b"), walk(b"b", b"a"));
    }
}
