//! Reads the body of a request completely, so that it can be compared and sent to the handler again.

use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use futures_util::{StreamExt, stream};
use http_body_util::LengthLimitError;
use std::error::Error as StdError;
use std::iter;

pub enum Read {
    Whole(Bytes),
    /// The body, with the part that was read.
    TooLarge(Body),
    /// It broke off, or has fewer bytes than its Content-Length.
    Incomplete,
}

/// Reads up to `limit` bytes, with or without a Content-Length.
pub async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Read {
    if body.size_hint().lower() > limit as u64 {
        return Read::TooLarge(body);
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.trim().parse::<usize>().ok());
    let mut rest = body.into_data_stream();
    let (mut chunks, mut length) = (Vec::new(), 0);
    while let Some(chunk) = rest.next().await {
        match chunk {
            Ok(chunk) => {
                length += chunk.len();
                chunks.push(chunk);
            }
            Err(error) if is_limit(&error) => {
                return Read::TooLarge(Body::from_stream(stream::iter([Err::<Bytes, _>(error)])));
            }
            Err(_) => return Read::Incomplete,
        }
        if length > limit {
            let read = stream::iter(chunks.into_iter().map(Ok));
            return Read::TooLarge(Body::from_stream(read.chain(rest)));
        }
    }
    if announced.is_some_and(|announced| length < announced) {
        return Read::Incomplete;
    }
    Read::Whole(match <[Bytes; 1]>::try_from(chunks) {
        Ok([only]) => only,
        Err(chunks) => chunks.concat().into(),
    })
}

/// Whether a layer in front limits bodies, and this one exceeds its limit.
fn is_limit(error: &axum::Error) -> bool {
    iter::successors(Some(error as &(dyn StdError + 'static)), |error| (**error).source())
        .any(|error| error.is::<LengthLimitError>())
}
