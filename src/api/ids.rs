//! Identifiers that the server makes, or derives from content.

use super::call::required;
use crate::arguments;
use crate::error::{Error, or_raise};
use crate::pg::{self, Jsonb};
use pgrx::datum;
use pgrx::pg_extern;
use uuid::Uuid;

#[pg_extern(volatile, parallel_safe)]
fn idem_generate_id() -> datum::Uuid {
    fresh()
}

#[pg_extern(volatile, parallel_safe)]
fn idem_generate_ids(n: Option<i32>) -> Vec<datum::Uuid> {
    let n = or_raise(required("n", n).and_then(count));
    (0..n).map(|_| fresh()).collect()
}

#[pg_extern(immutable, parallel_safe)]
fn idem_key(payload: Option<Jsonb>) -> String {
    let payload = or_raise(required("payload", payload));
    if !payload.tells_something() {
        Error::Invalid {
            message: "a key cannot be derived from content that says nothing".into(),
            detail: "The payload has no string, number or boolean in it, so that all requests like it would be one."
                .into(),
            hint: "Give what tells this request from others. A null is most often a field that the client did not set.",
        }
        .raise();
    }
    // The digest is that of the fingerprint. Without hyphens it does not look like a UUID.
    let digest = payload.fingerprint();
    format!("{:032x}", u128::from_be_bytes(digest))
}

#[pg_extern(immutable, parallel_safe)]
fn idem_fingerprint(payload: Option<Jsonb>) -> datum::Uuid {
    datum::Uuid::from_bytes(or_raise(required("payload", payload)).fingerprint())
}

/// Makes a UUIDv7 that is greater than those this backend made before, so that the ids of one call are in order.
fn fresh() -> datum::Uuid {
    datum::Uuid::from_bytes(Uuid::now_v7().into_bytes())
}

fn count(n: i32) -> Result<usize, Error> {
    match usize::try_from(n) {
        Ok(n) if n > 0 => {
            let hint = "Fetch them in several calls, or raise idempotence.max_batch.";
            arguments::check_batch(|| "the number of identifiers".into(), n, hint)?;
            pg::make_sure_of(n * size_of::<datum::Uuid>()).map(|()| n)
        }
        _ => Err(Error::Invalid {
            message: "the number of identifiers must be at least 1".into(),
            detail: format!("Found {n}."),
            hint: "Ask for as many as you need.",
        }),
    }
}
