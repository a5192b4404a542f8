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
    "This request needs an idempotency key",
    "Send the header Idempotency-Key with a new key for each new request, and the same key with each retry.",
);
pub const KEY_MALFORMED: Problem = problem(
    400,
    "key-malformed",
    "The idempotency key is malformed",
    "The header Idempotency-Key must be sent once and contain one string of 1 to 255 visible ASCII characters.",
);
pub const KEY_REUSED: Problem = problem(
    422,
    "key-reused",
    "The idempotency key was used for another request",
    "The method, the path, the query or the body differs from those of the first request with this key. \
     A new request needs a new key.",
);
pub const IN_PROGRESS: Problem = problem(
    409,
    "in-progress",
    "The request is in progress",
    "The first request with this key has not been answered yet. Send the request again later, unchanged.",
);
pub const INTERRUPTED: Problem = problem(
    409,
    "interrupted",
    "The request was interrupted",
    "The first request with this key stopped in the middle. It has to be taken over before it can be answered.",
);
pub const SUPERSEDED: Problem = problem(
    409,
    "superseded",
    "The request was taken over",
    "Another process has taken over the request with this key. Send the request again later, unchanged.",
);
pub const CANCELLED: Problem = problem(
    410,
    "cancelled",
    "The request was cancelled",
    "The request with this key was cancelled before it was executed. It never takes effect.",
);
pub const UNKNOWN: Problem = problem(404, "unknown", "The request is unknown", "No request with this key is known.");
pub const BODY_TOO_LARGE: Problem =
    problem(413, "body-too-large", "The body is too large", "The body is larger than the limit of this route.");
pub const BODY_INCOMPLETE: Problem = problem(
    400,
    "body-incomplete",
    "The body is incomplete",
    "Fewer bytes arrived than Content-Length announces. Nothing was executed. Send the request again, unchanged.",
);
pub const RESPONSE_TOO_LARGE: Problem = problem(
    500,
    "response-too-large",
    "The response is too large to be recorded",
    "The limit is the setting idempotence.max_response of the database. The effects of the request were rolled back.",
);
pub const UNAVAILABLE: Problem = problem(
    503,
    "unavailable",
    "The service is unavailable",
    "It is not known whether the request took effect. Send the request again, unchanged.",
);

impl Problem {
    /// The same problem with another detail, made of its own.
    pub fn because(self, detail: impl FnOnce(&str) -> String) -> Problem {
        let detail = detail(&self.detail);
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
