//! Identifiers that the server makes, or derives from content.

use super::call::{Result, required};
use crate::arguments;
use crate::error::Error;
use crate::pg::{self, Jsonb};
use pgrx::datum;
use pgrx::pg_extern;
use uuid::Uuid;

#[pg_extern(volatile, parallel_safe)]
fn idem_generate_id() -> datum::Uuid {
    fresh()
}

#[pg_extern(volatile, parallel_safe)]
fn idem_generate_ids(n: Option<i32>) -> Result<Vec<datum::Uuid>> {
    let n = required("n", n)?;
    let count = usize::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| Error::Invalid {
        message: "the number of identifiers must be at least 1".into(),
        detail: format!("Found {n}."),
        hint: "Ask for as many as you need.",
    })?;
    let hint = "Fetch them in several calls, or raise idempotence.max_batch.";
    arguments::check_batch(|| "the number of identifiers".into(), count, hint)?;
    pg::make_sure_of(count * size_of::<datum::Uuid>())?;
    Ok((0..count).map(|_| fresh()).collect())
}

#[pg_extern(immutable, parallel_safe)]
fn idem_key(payload: Option<Jsonb>) -> Result<String> {
    let payload = required("payload", payload)?;
    if !payload.tells_something() {
        Err(Error::Invalid {
            message: "a key cannot be derived from content that says nothing".into(),
            detail: "The payload has no string, number or boolean in it, so that all requests like it would be one."
                .into(),
            hint: "Give what tells this request from others. A null is most often a field that the client did not set.",
        })?;
    }
    // The digest is that of the fingerprint. Without hyphens it does not look like a UUID.
    let digest = payload.fingerprint();
    Ok(format!("{:032x}", u128::from_be_bytes(digest)))
}

#[pg_extern(immutable, parallel_safe)]
fn idem_fingerprint(payload: Option<Jsonb>) -> Result<datum::Uuid> {
    Ok(datum::Uuid::from_bytes(required("payload", payload)?.fingerprint()))
}

/// Makes a UUIDv7 that is greater than those this backend made before, so that the ids of one call are in order.
fn fresh() -> datum::Uuid {
    datum::Uuid::from_bytes(Uuid::now_v7().into_bytes())
}
