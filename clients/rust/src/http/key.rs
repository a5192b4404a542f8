//! The header Idempotency-Key, and the key under which a request is recorded.

use super::problem::{KEY_MALFORMED, Problem};
use axum::http::header::HeaderMap;
use sha2::{Digest, Sha256};

/// The key in the header, if there is one.
pub fn key(headers: &HeaderMap, strict: bool) -> Result<Option<String>, Problem> {
    let mut sent = headers.get_all("idempotency-key").iter();
    let Some(first) = sent.next() else { return Ok(None) };
    let text = first.to_str().map_err(|_| KEY_MALFORMED)?.trim_matches(' ');
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquoted(quoted),
        // No white space, and no character that has a meaning in a list or a string.
        None if strict || !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;".contains(&byte)) => None,
        None => Some(text.to_owned()),
    };
    match key {
        Some(key) if (1..=255).contains(&key.len()) && sent.next().is_none() => Ok(Some(key)),
        _ => Err(KEY_MALFORMED),
    }
}

/// A string of RFC 8941 behind its first quote, with parameters, which are ignored.
fn unquoted(text: &str) -> Option<String> {
    let mut key = String::new();
    let mut rest = text.chars();
    loop {
        match rest.next()? {
            '"' => break,
            '\\' => key.push(rest.next().filter(|escaped| "\"\\".contains(*escaped))?),
            plain @ ' '..='~' => key.push(plain),
            _ => return None,
        }
    }
    let parameters = rest.as_str().trim_start_matches(' ');
    let Some(parameters) = parameters.strip_prefix(';') else { return parameters.is_empty().then_some(key) };
    parameters.split(';').all(|parameter| is_parameter(parameter.trim_matches(' '))).then_some(key)
}

fn is_parameter(text: &str) -> bool {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let in_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
    name.starts_with(|first: char| first == '*' || first.is_ascii_lowercase())
        && name.bytes().all(in_name)
        && !value.is_empty()
        && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;".contains(&byte))
}

/// In hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of the request in the session: the caller, a colon, the key. No caller can produce the key of another
/// caller.
pub fn name(identity: &str, key: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'@' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let mut caller: String = identity.bytes().map(encoded).collect();
    if caller.len() > 100 {
        caller = format!("~{}", digest(identity.as_bytes()));
    }
    let mut name = format!("{caller}:{key}");
    if name.len() > 255 {
        name = format!("{caller}~:{}:{key}", digest(key.as_bytes()));
        name.truncate(255);
    }
    name
}
