//! Settling: a verdict on a request whose answer was lost, which no crash and no failover may turn over.

mod pair;
mod races;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in races:
    a_verdict_stands_whatever_crashes,
    a_verdict_stands_through_a_failover,
);
