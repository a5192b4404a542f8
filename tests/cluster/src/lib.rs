//! The code that the tests of whole clusters share: private servers of each version, connections that take
//! and return text, and the load that runs while a test disturbs a server.
//!
//! - [`fixture`] makes rows of each kind that the extension keeps, and checks that they are still there.
//! - [`plproxy`] is a proxy and its shards.
//! - [`bank`], [`senders`], [`workers`] and [`workload`] are clients that go on, whatever happens to their server, and so are
//!   those of [`driver`], whatever stands between them and it.
//! - [`patroni`], [`haproxy`], [`pgpool`] and [`citus`] are what stands around servers, and [`daemon`] runs it.
//!
//! Environment variables name the servers to test: `IDEM_PG15_CONFIG` to `IDEM_PG18_CONFIG`. A test never
//! waits for a fixed time. It waits for a condition, at most for [`LIMIT`].

pub mod bank;
pub mod c_module;
pub mod citus;
pub mod client;
pub mod cluster;
pub mod connection;
pub mod crashes;
pub mod daemon;
pub mod documented;
pub mod driver;
pub mod dump;
pub mod effort;
pub mod elsewhere;
pub mod fixture;
pub mod frozen;
pub mod haproxy;
pub mod limits;
pub mod load;
pub mod patroni;
pub mod payments;
pub mod pgpool;
pub mod plproxy;
pub mod ring;
pub mod runbook;
pub mod senders;
pub mod shop;
pub mod standby;
pub mod text;
pub mod upgrade;
pub mod version;
pub mod workers;
pub mod workload;

pub use cluster::Cluster;
pub use connection::{Connection, describe};
pub use limits::LIMIT;
pub use runbook::Runbook;
pub use version::Version;
