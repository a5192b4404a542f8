//! The protocol of leases as a model: every order of steps of three workers is searched for a state that breaks a
//! promise. Times, tokens and decisions come from the modules of the extension itself ([`domain`]), so the model and
//! the extension cannot decide differently.
//!
//! **What is modelled.** One lock, and what is kept under it: the outcome, the checkpoints and the lease. That is
//! either a request with a key, or a slot of a client session that two numbers share ([`setup::Form`]). Workers call
//! begin (with a lease and without), record, extend, checkpoint, release and settle; clients acknowledge; the sweep
//! deletes. A call takes the lock in one step, looks and writes in another, and commits or rolls back in a third.
//! Between any two steps the clock may go on, the server may crash (and its clock may be set back meanwhile), and a
//! worker may die. A crash takes what was not committed, and the leases if they are unlogged. Workers keep their tokens
//! and use them as long as they live, also tokens that they have no right to any more, and those of a begin that never
//! committed.
//!
//! **What is not.** The effect of a leased claim is outside the database and leaves no trace in it. It may happen
//! between any two steps of its holder, so a step for it would change nothing: from its commit on, a leased claim
//! counts as one whose effect may have happened. Only READ COMMITTED is modelled, where each look sees all that is
//! committed, and only commits that a crash does not take. Payloads are all the same.
//!
//! **What is assumed.** No two leases are made in the same microsecond, not even after the clock was set back. A token
//! is a time, so where a lease's row is gone nothing else keeps tokens apart. `same_moment` in [`setup::Setup`] drops
//! this assumption, where the row is kept.
//!
//! **That it can fail.** [`setup::Fault`] puts known mistakes into the steps. The tests demand that each is found.

pub mod domain;
pub mod history;
pub mod kept;
pub mod look;
pub mod model;
pub mod promises;
pub mod setup;
pub mod state;
pub mod write;
