//! Statements with their arguments in place, for the simple query protocol: it executes several statements in one round
//! trip, and leaves no prepared statement in a connection that a pooler may give to another client.

use crate::{BoxError, Error};

/// Replaces each `$n` by the n-th argument, as a literal.
pub fn with_arguments(sql: &str, args: &[Option<&str>]) -> Result<String, Error> {
    let mut parts = sql.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        match part[..digits].parse::<usize>() {
            Ok(number) => text.push_str(&literal(args.get(number - 1).copied().flatten())?),
            Err(_) => text.push('$'),
        }
        text.push_str(&part[digits..]);
    }
    Ok(text)
}

/// An `E''` literal means the same under both settings of `standard_conforming_strings`.
fn literal(value: Option<&str>) -> Result<String, Error> {
    match value {
        None => Ok("NULL".into()),
        Some(value) if value.contains('\0') => {
            Err(Error::Other(BoxError::from("text that contains the character U+0000 cannot be sent to PostgreSQL")))
        }
        Some(value) => Ok(format!(" E'{}'", value.replace('\\', "\\\\").replace('\'', "''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::with_arguments;

    #[test]
    fn arguments_are_quoted_and_never_read_again() {
        let sql = with_arguments("SELECT $1::text, $2::text, $3::int, $$x$$", &[Some("a'b\\$2"), None, Some("7")]);
        assert_eq!(sql.unwrap(), r"SELECT  E'a''b\\$2'::text, NULL::text,  E'7'::int, $$x$$");
    }

    #[test]
    fn a_nul_is_refused() {
        assert!(with_arguments("SELECT $1::text", &[Some("a\0b")]).is_err());
    }
}
