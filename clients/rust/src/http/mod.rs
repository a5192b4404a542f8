//! What all adapters for HTTP have in common. clients/http_vectors.json and docs/http.md specify it.

pub mod key;
pub mod problem;
pub mod reply;
