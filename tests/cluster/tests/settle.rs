//! Settling: a verdict on a request whose answer was lost, which no crash and no failover may turn over.

mod flush;
mod pair;
mod races;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in flush:
    a_verdict_survives_a_crash_whatever_synchronous_commit_says,
    a_verdict_on_a_commit_that_is_not_flushed_waits_for_the_flush,
);

on_each_version!(in races:
    a_verdict_stands_whatever_crashes,
    a_verdict_stands_through_a_failover,
);
