//! Commit coordinators: a transaction that writes here has them commit in two phases, so that no crash separates an
//! effect elsewhere from its outcome. The coordinator here is `c/elsewhere.c`; the test `citus` has the real one.

mod crashes;
mod programs;
mod watched;

use idempotence_cluster_tests::on_each_version;

on_each_version!(in crashes:
    an_effect_elsewhere_happens_once_wherever_the_commit_dies,
    without_two_phases_a_crash_between_the_commits_doubles_the_effect,
);

on_each_version!(in watched:
    only_a_transaction_that_writes_here_asks,
    a_coordinator_that_is_loaded_late_is_noticed,
);
