//! How a handler fails, and how the layer detects it.

// The macro task_local uses a RefCell. The rule against it is for code that calls PostgreSQL.
#![allow(clippy::disallowed_types)]

use crate::BoxError;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::{Arc, Mutex, PoisonError};

/// What a protected handler fails with. `?` makes it of any error: everything is rolled back, the handler is called
/// again if its own connection was lost or the server reported an error that a new attempt may solve, and otherwise the
/// answer is 500. [`Failure::answer`] rolls the handler's effects back, too, and its answer is final.
pub struct Failure(Box<(Response, Raised)>);

pub enum Raised {
    /// The handler refuses the request: its answer is recorded without its effects.
    Refusal,
    /// The handler has failed with this error.
    Error(BoxError),
    /// The transaction could not be begun.
    Unavailable(crate::Error),
}

impl Failure {
    /// An answer without effects: everything that the handler has written is rolled back. If its status is final, the
    /// answer is recorded, and each retry gets it.
    pub fn answer(response: impl IntoResponse) -> Failure {
        Failure(Box::new((response.into_response(), Raised::Refusal)))
    }

    pub(super) fn unavailable(error: crate::Error) -> Failure {
        Failure(Box::new((StatusCode::SERVICE_UNAVAILABLE.into_response(), Raised::Unavailable(error))))
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut response = Response::new(Body::from("Internal Server Error"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        Failure(Box::new((response, Raised::Error(error.into()))))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (mut response, raised) = *self.0;
        match MARK.try_with(Mark::clone) {
            Ok(mark) => mark.set(raised),
            // A layer has moved the handler to another task. Its answer carries the mark.
            Err(_) => {
                let mark = Mark::default();
                mark.set(raised);
                response.extensions_mut().insert(mark);
            }
        }
        response
    }
}

tokio::task_local! {
    /// The mark of the request that this task handles.
    static MARK: Mark;
}

/// Where a [`Failure`] of the handler is noted for its request. It does not depend on the response: a layer between may
/// replace that.
#[derive(Clone, Default)]
pub struct Mark(Arc<Mutex<Option<Raised>>>);

impl Mark {
    fn set(&self, raised: Raised) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
    }

    fn take(&self) -> Option<Raised> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs a handler. Returns its response, and whether it has failed with a [`Failure`].
pub async fn noted(handler: impl Future<Output = Response>) -> (Response, Option<Raised>) {
    let mark = Mark::default();
    let mut response = MARK.scope(mark.clone(), handler).await;
    let carried = response.extensions_mut().remove::<Mark>();
    let raised = mark.take().or_else(|| carried?.take());
    (response, raised)
}
