//! Which errors of a command are its request's final failure.

/// The classes of errors that come from the surroundings: the statement and the objects it names, rights, connection and
/// transaction, resources, other servers. After such an error a retry may succeed. In doubt a class is in the list.
const OF_SURROUNDINGS: [&[u8; 2]; 36] = [
    b"03", b"08", b"09", b"0A", b"0B", b"0F", b"0L", b"0P", b"0Z", b"10", b"24", b"25", b"26", b"27", b"28", b"2B",
    b"2D", b"2F", b"34", b"38", b"39", b"3B", b"3D", b"3F", b"40", b"42", b"53", b"54", b"55", b"57", b"58", b"72",
    b"F0", b"HV", b"ID", b"XX",
];

/// A failed assertion. Like a cancelled statement (57014), a handler of PL/pgSQL for OTHERS does not catch it.
const ASSERT_FAILURE: &[u8; 5] = b"P0004";

/// Whether an error with this SQLSTATE is final: it comes from the request's data, a constraint or the application itself.
pub fn is_final(sqlstate: &[u8; 5]) -> bool {
    sqlstate != ASSERT_FAILURE && !OF_SURROUNDINGS.iter().any(|class| sqlstate.starts_with(&class[..]))
}

#[cfg(test)]
mod tests {
    use super::is_final;

    #[test]
    fn what_the_surroundings_cause_is_not_final() {
        for sqlstate in ["22012", "23505", "44000", "P0001", "P0002", "AB001", "ZZZZZ", "02000"] {
            assert!(is_final(sqlstate.as_bytes().try_into().expect("five characters")), "{sqlstate}");
        }
        for sqlstate in ["40001", "42501", "53200", "57014", "P0004", "ID001", "XX000", "HV000", "0A000"] {
            assert!(!is_final(sqlstate.as_bytes().try_into().expect("five characters")), "{sqlstate}");
        }
    }
}
