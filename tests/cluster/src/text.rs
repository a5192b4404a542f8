//! Comparison of texts, line by line.

/// The lines of one text that the other text does not have.
pub fn lines_only_in<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let others: Vec<&str> = other.lines().collect();
    text.lines().filter(|line| !others.contains(line)).collect()
}
