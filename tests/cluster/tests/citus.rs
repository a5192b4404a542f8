//! Citus: a coordinator and two workers, as real servers. `make test-citus` runs this; the other suites skip it.

mod commits;
mod crashes;
mod journal;
mod moves;
mod work;
