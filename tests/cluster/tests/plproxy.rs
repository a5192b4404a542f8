//! PL/Proxy in front of shards that each keep the outcomes of their own tenants: load, kills, growth, and tenants that
//! move. The suite runs these tests where Debian's postgresql-15-plproxy can be had.

mod control;
mod growth;
mod tenants;
mod work;
