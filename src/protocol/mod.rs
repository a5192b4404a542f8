//! What each call does, step by step: the protocols of check-and-set over `domain`, `store`, `lock`
//! and `open`. Arguments have been checked for NULL by `api`; everything else is checked here, rights
//! before any lock.

pub mod begin;
pub mod client;
pub mod giving_up;
pub mod kept;
pub mod liveness;
pub mod lookup;
pub mod numbered;
pub mod once;
pub mod position;
pub mod quota;
pub mod registration;
pub mod repair;
pub mod request;
pub mod saving;
pub mod standing;
pub mod steps;
pub mod sweep;
