//! The extension's own rules. These modules are pure, so that they can be compiled without the extension.

#[allow(dead_code)]
#[path = "../../../src/domain/class.rs"]
pub mod class;
// Its comments name a neighbour in the extension.
#[allow(dead_code, rustdoc::broken_intra_doc_links)]
#[path = "../../../src/domain/decision.rs"]
pub mod decision;
#[allow(dead_code)]
#[path = "../../../src/domain/lease.rs"]
pub mod lease;
#[allow(dead_code)]
#[path = "../../../src/domain/limits.rs"]
pub mod limits;
#[allow(dead_code)]
#[path = "../../../src/domain/sequence.rs"]
pub mod sequence;
// The limits name it.
#[allow(dead_code)]
#[path = "../../../src/domain/time_key.rs"]
pub mod time_key;
