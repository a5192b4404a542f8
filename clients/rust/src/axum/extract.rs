//! The connection as an argument of a handler.

use super::failure::Failure;
use crate::conn::{Conn, Slot};
use crate::database::Database;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

impl<D: Database, S: Send + Sync> FromRequestParts<S> for Conn<D> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let Some(slot) = parts.extensions.get::<Slot<D>>().cloned() else {
            return Err(
                "the route of this handler has no layer Idempotent over this type of pool, or its layer has a \
                        lease, whose handler takes Extension<Arc<Lease<…>>>"
                    .into(),
            );
        };
        match slot.lend_or_begin().await {
            Ok(Some(conn)) => Ok(conn),
            Ok(None) => Err("the handler takes its connection twice: take one Conn, and pass it on".into()),
            Err(error) => Err(Failure::unavailable(error)),
        }
    }
}
