//! Versions of the extension. An installation replaces the library, and ALTER EXTENSION UPDATE replaces the objects of
//! each database. So for a while the two can have different versions. `store/catalog.rs` refuses objects of another
//! version than the library's.

/// The version of this library. The library works only with objects of the same version.
pub const LIBRARY: &str = env!("CARGO_PKG_VERSION");

/// Whether `version` comes before `other`. Versions are numbers with dots between them. A part that is not a number
/// counts as 0.
pub fn is_older(version: &str, other: &str) -> bool {
    let numbers = |version: &str| version.split('.').map(|number| number.parse().unwrap_or(0)).collect::<Vec<u32>>();
    numbers(version) < numbers(other)
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn versions_are_compared_number_by_number() {
        for (older, newer) in [("1.0.0", "1.1.0"), ("1.1.0", "1.1.1"), ("1.9.0", "1.10.0"), ("1.1.0", "2.0.0")] {
            assert!(is_older(older, newer), "{older} {newer}");
            assert!(!is_older(newer, older), "{newer} {older}");
        }
        assert!(!is_older("1.1.0", "1.1.0"));
        assert!(is_older("none", "1.0.0"));
    }
}
