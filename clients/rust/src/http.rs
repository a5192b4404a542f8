//! The header Idempotency-Key: what it names, and what is recorded of an answer. What all adapters answer stands in
//! clients/http_vectors.json.

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LINK, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const DOCS: &str = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header";
pub const HEADERS: [&str; 8] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "location",
    "etag",
    "last-modified",
    "link",
];

/// What a caller is told in the place of the handler's answer: status, name, title.
pub type Problem = (u16, &'static str, &'static str);

pub const KEY_MISSING: Problem = (400, "key-missing", "this request needs a header Idempotency-Key");
pub const KEY_MALFORMED: Problem =
    (400, "key-malformed", "the header Idempotency-Key is not one string of 1 to 255 characters");
pub const UNKNOWN: Problem = (404, "unknown", "nothing is known of a request with this key");
pub const IN_PROGRESS: Problem =
    (409, "in-progress", "the first request with this key is still at work: send it again later, unchanged");
pub const INTERRUPTED: Problem =
    (409, "interrupted", "the first request with this key stopped in the middle: somebody must look what happened");
pub const SUPERSEDED: Problem =
    (409, "superseded", "somebody else has taken over the request with this key: send it again later, unchanged");
pub const CANCELLED: Problem = (410, "cancelled", "the request with this key was cancelled, and never takes effect");
pub const LENGTH_REQUIRED: Problem = (411, "length-required", "a body that is to be protected needs a Content-Length");
pub const BODY_TOO_LARGE: Problem = (413, "body-too-large", "the body is too large to be protected");
pub const KEY_REUSED: Problem =
    (422, "key-reused", "the key was used for another request: a new request needs a new key");
pub const UNAVAILABLE: Problem = (503, "unavailable", "nobody knows what was done: send it again, unchanged");

/// An answer that is complete, and has not left yet.
pub type Reply = Response<Bytes>;

pub fn problem((status, name, title): Problem, docs: &str) -> Reply {
    let body = json!({"type": format!("{docs}#{name}"), "title": title, "status": status}).to_string();
    let mut reply = Response::new(Bytes::from(body));
    *reply.status_mut() = StatusCode::from_u16(status).expect("it is one");
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Ok(link) = HeaderValue::try_from(format!("<{docs}>; rel=\"describedby\"")) {
        headers.insert(LINK, link);
    }
    if status == 409 || status == 503 {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    reply
}

/// Whether it is kept. Else a retry executes the request.
pub fn is_final(status: StatusCode) -> bool {
    (200..500).contains(&status.as_u16()) && ![408, 409, 425, 429].contains(&status.as_u16())
}

/// As jsonb, which has no character 0.
pub fn recorded(reply: &Reply, kept: &[HeaderName]) -> Value {
    let headers: Vec<_> = reply
        .headers()
        .iter()
        .filter(|(name, _)| kept.contains(name))
        .filter_map(|(name, value)| Some(json!([name.as_str(), value.to_str().ok()?])))
        .collect();
    let mut response = json!({"status": reply.status().as_u16(), "headers": headers});
    match std::str::from_utf8(reply.body()) {
        Ok(text) if !text.contains('\0') => response["body"] = text.into(),
        _ => response["base64"] = BASE64_STANDARD.encode(reply.body()).into(),
    }
    response
}

/// None if no adapter has recorded it.
pub fn replayed(response: &Value) -> Option<Reply> {
    let body = match &response["base64"] {
        Value::String(base64) => BASE64_STANDARD.decode(base64).ok()?,
        _ => response["body"].as_str().unwrap_or_default().as_bytes().to_vec(),
    };
    let mut reply = Response::new(Bytes::from(body));
    *reply.status_mut() = StatusCode::from_u16(response["status"].as_u64()?.try_into().ok()?).ok()?;
    for header in response["headers"].as_array()? {
        let name = HeaderName::try_from(header[0].as_str()?).ok()?;
        reply.headers_mut().append(name, HeaderValue::try_from(header[1].as_str()?).ok()?);
    }
    reply.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    Some(reply)
}

/// The key that was sent: none, one, or something that is none.
pub fn key(headers: &HeaderMap, strict: bool) -> Result<Option<String>, Problem> {
    let mut sent = headers.get_all("idempotency-key").iter();
    let Some(first) = sent.next() else { return Ok(None) };
    let text = first.to_str().map_err(|_| KEY_MALFORMED)?.trim_matches(' ');
    let key = match text.strip_prefix('"') {
        Some(quoted) => unquoted(quoted),
        // What is neither white space nor has a meaning in a list or a string.
        None if strict || !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;".contains(&byte)) => None,
        None => Some(text.to_owned()),
    };
    match key {
        Some(key) if (1..=255).contains(&key.len()) && sent.next().is_none() => Ok(Some(key)),
        _ => Err(KEY_MALFORMED),
    }
}

/// A string of RFC 8941 behind its first quote, with parameters, which say nothing here.
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

/// The name of the request: the caller, a colon, the key. No caller can make it the name of another's request.
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
