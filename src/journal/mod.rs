//! Journals: tables of users in which the requests of a standing session are kept, instead of in our own.
//!
//! A journal is an ordinary table, so it can be what ours cannot: sharded over many servers beside the rows that its
//! requests change, and moved with them. So it is written and read by SQL alone, with the rights of the caller. What
//! arbitrates between two copies of a request is the table's unique index, since an advisory lock is known on one server
//! only.
//!
//! A request has one row, by its tenant, its session's name and its key. The row says what our tables say in three places:
//! the outcome, the lease and the checkpoint of the request. The session's name stands for the session, since its id differs
//! from server to server.
//!
//! `table.rs` finds such a table and says what is wrong with one that does not fit; `create.rs` makes one. `row.rs` reads and
//! writes the row of a request, with the statements of `statement.rs`. `sweep/journals.rs` deletes rows that have expired.

pub mod create;
pub mod row;
mod statement;
pub mod table;
