//! Who the caller is: a function of the request, or an extractor that authenticates.

use crate::Error;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// What identifies a caller: a string that is not empty, or an integer. A UUID is one as its text. An `Option` that is
/// `None`, like an empty string, identifies nobody, and its request is refused.
pub trait Principal {
    /// The id as text, or None.
    fn id(self) -> Option<String>;
}

impl Principal for String {
    fn id(self) -> Option<String> {
        (!self.is_empty()).then_some(self)
    }
}

impl Principal for &str {
    fn id(self) -> Option<String> {
        self.to_owned().id()
    }
}

impl<P: Principal> Principal for Option<P> {
    fn id(self) -> Option<String> {
        self.and_then(P::id)
    }
}

macro_rules! integers {
    ($($integer:ty),*) => { $(
        impl Principal for $integer {
            fn id(self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}

integers!(i16, i32, i64, i128, isize, u16, u32, u64, u128, usize);

type Function = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type Extractor = dyn for<'a> Fn(&'a mut Parts) -> BoxFuture<'a, Result<Option<String>, Response>> + Send + Sync;

#[derive(Clone)]
pub enum Identity {
    /// All callers share their keys.
    Shared,
    Function(Arc<Function>),
    Extractor(Arc<Extractor>),
}

impl Identity {
    pub fn of<P: Principal>(identity: impl Fn(&Parts) -> P + Send + Sync + 'static) -> Identity {
        Identity::Function(Arc::new(move |parts| identity(parts).id()))
    }

    pub fn extracted<E, S, P>(state: S, identity: impl Fn(&E) -> P + Send + Sync + 'static) -> Identity
    where
        E: FromRequestParts<S> + Send + 'static,
        S: Send + Sync + 'static,
        P: Principal,
    {
        let shared = Arc::new((state, identity));
        Identity::Extractor(Arc::new(move |parts| {
            let shared = shared.clone();
            Box::pin(async move {
                let (state, identity) = &*shared;
                let caller = E::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
                Ok(identity(&caller).id())
            })
        }))
    }

    /// The caller's id, or the extractor's rejection. An error if the application has no id for the caller. The id of
    /// callers who share their keys is empty.
    pub async fn name(&self, parts: &mut Parts) -> Result<Result<String, Response>, Error> {
        let id = match self {
            Identity::Shared => return Ok(Ok(String::new())),
            Identity::Function(function) => function(parts),
            Identity::Extractor(extractor) => match extractor(parts).await {
                Ok(id) => id,
                Err(rejection) => return Ok(Err(rejection)),
            },
        };
        let fault = "the identity of the caller is missing or empty: authenticate in front of the adapter; \
                     identity must return the principal's id";
        id.map(Ok).ok_or_else(|| Error::Other(fault.into()))
    }
}
