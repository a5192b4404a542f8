//! The recorded form of an answer, which all adapters share.

use axum::body::Bytes;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The headers that are recorded by default.
pub const HEADERS: [&str; 9] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "location",
    "etag",
    "last-modified",
    "link",
    "retry-after",
];

/// Statuses that say that the request was not processed: a corrected or later retry executes it.
const NOT_PROCESSED: [u16; 8] = [401, 405, 407, 408, 409, 415, 425, 429];

/// A complete answer that has not been sent yet.
pub type Reply = Response<Bytes>;

/// Whether an answer with this status is recorded. Otherwise a retry executes the request.
pub fn is_final(status: StatusCode) -> bool {
    (200..500).contains(&status.as_u16()) && !NOT_PROCESSED.contains(&status.as_u16())
}

/// The answer as jsonb, in which strings have no character U+0000. A header value has one character for each byte.
pub fn recorded(reply: &Reply, kept: &[HeaderName]) -> Value {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect::<String>();
    let headers: Vec<_> = reply
        .headers()
        .iter()
        .filter(|(name, _)| kept.contains(name))
        .map(|(name, value)| json!([name.as_str(), text(value)]))
        .collect();
    let mut response = json!({"status": reply.status().as_u16(), "headers": headers});
    match std::str::from_utf8(reply.body()) {
        Ok(text) if !text.contains('\0') => response["body"] = text.into(),
        _ => response["base64"] = BASE64_STANDARD.encode(reply.body()).into(),
    }
    response
}

/// The answer, or None if no adapter has recorded it.
pub fn replayed(response: &Value) -> Option<Reply> {
    let body = match &response["base64"] {
        Value::String(base64) => BASE64_STANDARD.decode(base64).ok()?,
        _ => response["body"].as_str().unwrap_or_default().as_bytes().to_vec(),
    };
    let mut reply = Response::new(Bytes::from(body));
    *reply.status_mut() = StatusCode::from_u16(response["status"].as_u64()?.try_into().ok()?).ok()?;
    for header in response["headers"].as_array()? {
        let name = HeaderName::try_from(header[0].as_str()?).ok()?;
        reply.headers_mut().append(name, header_value(header[1].as_str()?)?);
    }
    reply.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    Some(reply)
}

fn header_value(text: &str) -> Option<HeaderValue> {
    let bytes: Option<Vec<u8>> = text.chars().map(|char| u8::try_from(char).ok()).collect();
    // Version 1.2.0 of an adapter may have recorded other characters, as UTF-8.
    HeaderValue::from_bytes(&bytes.unwrap_or_else(|| text.as_bytes().to_vec())).ok()
}
