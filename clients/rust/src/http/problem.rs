//! Problem documents (RFC 9457): the answers that the adapter gives in place of the handler.

use super::reply::Reply;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER};
use serde_json::json;
use std::borrow::Cow;

/// The page that explains the types.
pub const DOCS: &str = "https://pgxn.org/dist/idempotence/docs/http.html";

/// One type of problem.
#[derive(Clone, Debug)]
pub struct Problem {
    status: u16,
    name: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
}

const fn problem(status: u16, name: &'static str, title: &'static str, detail: &'static str) -> Problem {
    Problem { status, name, title, detail: Cow::Borrowed(detail) }
}

pub const KEY_MISSING: Problem = problem(
    400,
    "key-missing",
    "the request has no header Idempotency-Key",
    "Generate one key for each operation, and send it with each attempt.",
);
pub const KEY_MALFORMED: Problem = problem(
    400,
    "key-malformed",
    "the header Idempotency-Key is not one string of 1 to 255 characters",
    "Send one quoted string of 1 to 255 printable ASCII characters.",
);
pub const BODY_INCOMPLETE: Problem = problem(
    400,
    "body-incomplete",
    "the body of the request is incomplete",
    "The body broke off before its announced end, so nothing was executed. Send the request again.",
);
pub const UNKNOWN: Problem = problem(
    404,
    "unknown",
    "no request with this key is known",
    "The request was never executed, its answer has expired, or it belongs to another caller.",
);
pub const IN_PROGRESS: Problem = problem(
    409,
    "in-progress",
    "the first request with this key is still in progress",
    "Send the same request again later, with the same key.",
);
pub const INTERRUPTED: Problem = problem(
    409,
    "interrupted",
    "the first request with this key stopped in the middle",
    "Its effect may have happened. An operator or a completer must finish it.",
);
pub const SUPERSEDED: Problem = problem(
    409,
    "superseded",
    "another process has taken over the request with this key",
    "Send the same request again later, with the same key.",
);
pub const CANCELLED: Problem = problem(
    410,
    "cancelled",
    "the request with this key was cancelled",
    "It never takes effect. A new request needs a new key.",
);
pub const BODY_TOO_LARGE: Problem = problem(
    413,
    "body-too-large",
    "the body of the request is too large",
    "The body exceeds the limit of this route for requests with a key.",
);
pub const KEY_REUSED: Problem = problem(
    422,
    "key-reused",
    "the key was used for another request",
    "A new request needs a new key. A retry must have the same method, path, query and body.",
);
pub const RESPONSE_TOO_LARGE: Problem = problem(
    500,
    "response-too-large",
    "the response is too large to be recorded",
    "The response exceeds idempotence.max_response, so nothing was executed.",
);
pub const UNAVAILABLE: Problem = problem(
    503,
    "unavailable",
    "the outcome of the request is unknown",
    "Send the same request again, with the same key.",
);

impl Problem {
    /// The same problem with another detail.
    pub fn because(self, detail: String) -> Problem {
        Problem { detail: detail.into(), ..self }
    }

    /// Its document. `docs`: the page that explains the types.
    pub fn reply(self, docs: &str) -> Reply {
        let Problem { status, name, title, detail } = self;
        let body = json!({"type": format!("{docs}#{name}"), "title": title, "status": status, "detail": detail});
        let mut reply = Reply::new(Bytes::from(body.to_string()));
        *reply.status_mut() = StatusCode::from_u16(status).expect("a status of the table above");
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
}
