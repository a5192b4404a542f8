//! Time keys: UUIDs of version 7, which carry the time when they were made.
//!
//! In a session with `time_keys` the age of a key is known even when nothing is kept of its request. This file reads the
//! time; `decision.rs` has the rule that refuses a key which is too old.

use uuid::Uuid;

/// How far a client's clock may be ahead of the database's, in microseconds.
pub const AHEAD_US_MAX: i64 = 5 * 60 * 1_000_000;

/// Microseconds from the Unix epoch, which UUIDs count from, to PostgreSQL's epoch (2000-01-01).
const EPOCH_DIFFERENCE_US: i64 = 946_684_800 * 1_000_000;

/// Reads a UUIDv7 in its canonical form of 36 characters; `None` for anything else.
pub fn parse(key: &str) -> Option<Uuid> {
    // The length excludes the other spellings (braced, urn:, without hyphens). The check of the version digit saves
    // parsing the keys of the many clients that send version 4.
    if key.len() != 36 || key.as_bytes()[14] != b'7' {
        return None;
    }
    let id = Uuid::try_parse(key).ok()?;
    (id.get_variant() == uuid::Variant::RFC4122).then_some(id)
}

/// When an id that came at `now_us` was made. Only an id of version 7 tells, and only if it is not from the future.
pub fn made_at_us(id: &Uuid, now_us: i64) -> Option<i64> {
    let tells = id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122;
    let made_at = time_us(id);
    (tells && made_at <= now_us.saturating_add(AHEAD_US_MAX)).then_some(made_at)
}

/// The time in a UUIDv7, in PostgreSQL's microseconds (since 2000-01-01).
pub fn time_us(id: &Uuid) -> i64 {
    let bytes = id.as_bytes();
    let ms = bytes[..6].iter().fold(0i64, |ms, byte| ms << 8 | i64::from(*byte));
    ms * 1000 - EPOCH_DIFFERENCE_US
}

/// When the first and the last of some keys were made; `None` unless all are UUIDv7s.
pub fn made_from_to<'a>(keys: impl IntoIterator<Item = &'a str>) -> Option<(i64, i64)> {
    keys.into_iter().try_fold((i64::MAX, i64::MIN), |(first, last), key| {
        let made_at = time_us(&parse(key)?);
        Some((first.min(made_at), last.max(made_at)))
    })
}

/// The first of all 16 bytes that begin with a time of this moment or later, as a UUIDv7 begins; `None`: no UUIDv7 tells
/// this moment.
pub fn earliest(at_us: i64) -> Option<[u8; 16]> {
    let ms = u64::try_from(at_us.checked_add(EPOCH_DIFFERENCE_US)?).ok()?.div_ceil(1000);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    (ms < 1 << 48).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_rfcs_example() {
        // RFC 9562, appendix A.6: 2022-02-22 19:22:22.000 UTC.
        let id = parse("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap();
        assert_eq!(time_us(&id), (1_645_557_742_000 - 946_684_800_000) * 1000);
    }

    #[test]
    fn keys_tell_from_when_to_when_they_were_made_if_all_are_of_version_7() {
        let (early, late) = ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "017f22e2-79b1-7cc3-98c4-dc0c0c07398f");
        let at = time_us(&parse(early).unwrap());
        assert_eq!(made_from_to([early]), Some((at, at)));
        assert_eq!(made_from_to([late, early]), Some((at, at + 1000)));
        assert_eq!(made_from_to([early, "k"]), None);
    }

    #[test]
    fn the_earliest_id_of_a_moment_is_of_that_moment_or_later() {
        let id = parse("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap();
        let at = time_us(&id);
        let ms = |at_us| earliest(at_us).map(|bytes| bytes[..6].to_vec());
        assert_eq!(ms(at), Some(id.as_bytes()[..6].to_vec()));
        assert_eq!(ms(at - 999), ms(at));
        assert!(ms(at + 1) > ms(at));
        assert!(earliest(at + 1).unwrap() > *id.as_bytes());
        assert_eq!((earliest(-EPOCH_DIFFERENCE_US - 1), earliest(i64::MAX)), (None, None));
    }

    #[test]
    fn an_id_tells_when_it_was_made_unless_that_has_not_come() {
        let (id, at) =
            (parse("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap(), (1_645_557_742_000 - 946_684_800_000) * 1000);
        assert_eq!(made_at_us(&id, at), Some(at));
        assert_eq!(made_at_us(&id, at - AHEAD_US_MAX), Some(at));
        assert_eq!(made_at_us(&id, at - AHEAD_US_MAX - 1), None);
        assert_eq!(made_at_us(&Uuid::try_parse("919108f7-52d1-4320-9bac-f847db4148a8").unwrap(), at), None);
    }

    #[test]
    fn only_version_7_in_canonical_form() {
        for key in [
            "",
            "7",
            "919108f7-52d1-4320-9bac-f847db4148a8",
            "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
            "017f22e279b07cc398c4dc0c0c07398f",
            "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
            "017f22e2-79b0-7cc3-98c4-dc0c0c0739é",
        ] {
            assert_eq!(parse(key), None, "{key}");
        }
    }
}
